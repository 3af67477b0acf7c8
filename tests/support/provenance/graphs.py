"""The ways in which a graph calls models, each run and checked in its own scene."""

from __future__ import annotations

import contextvars
import threading
from asyncio import gather, to_thread
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.func import entrypoint, task
from langgraph.graph import START
from langgraph.types import Command, RetryPolicy, Send, interrupt

from support.provenance.models import Failed, Fake
from support.provenance.runs import ASK, START_WITH, Scene, a_run, both, calling, graph_of, thread_config
from support.tool_graphs import strictly


def asking(scene: Scene, *questions: str) -> Any:
    """Return a node that calls a model before each question."""
    model = scene.model()

    def ask(state: Any) -> Any:
        return {"said": [(model.invoke(ASK), str(interrupt(question)))[1] for question in questions]}

    async def aask(state: Any) -> Any:
        return {"said": [(await model.ainvoke(ASK), str(interrupt(question)))[1] for question in questions]}

    return both(ask, aask)


def failing(scene: Scene, *, times: int) -> Fake:
    """Return a model whose first calls fail."""
    left = [times]

    def fail() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise Failed("what was asked: SECRET")

    return scene.model(hook=fail)


@a_run
async def again_and_again(scene: Scene) -> None:
    graph = scene.compiled(("a", calling(scene.model())), ("b", calling(scene.model(), 2)))
    await scene.run(graph)
    await scene.run(graph)


@a_run
async def streamed(scene: Scene) -> None:
    graph = scene.compiled(("a", calling(scene.model())), ("b", calling(scene.model())))
    for mode in ("values", "messages"):
        options: Any = {"stream_mode": mode, "durability": scene.durability}
        if scene.face == "sync":
            await to_thread(lambda: list(graph.stream(START_WITH, scene.config, **options)))  # noqa: B023
        else:
            assert [part async for part in graph.astream(START_WITH, scene.config, **options)]


@a_run
async def runs_given_up(scene: Scene) -> None:
    """Stop reading a stream after its first part; the next run resumes the thread."""
    graph = scene.compiled(("a", calling(scene.model())), ("b", calling(scene.model())))
    options: Any = {"stream_mode": "updates", "durability": scene.durability}
    if scene.face == "sync":
        stream = graph.stream(START_WITH, scene.config, **options)
        await to_thread(lambda: (next(stream), stream.close()))
    else:
        astream = graph.astream(START_WITH, scene.config, **options)
        await anext(astream)
        await astream.aclose()
    # Calls that had begun by then, without any stored result, are recorded with the next step.
    scene.late = set(scene.told.ids)
    await scene.run(graph)


@a_run
async def events(scene: Scene) -> None:
    graph = scene.compiled(("a", calling(scene.model())))
    options: Any = {"version": "v2", "durability": scene.durability}
    assert [event async for event in graph.astream_events(START_WITH, scene.config, **options)]


@a_run
async def batches(scene: Scene) -> None:
    graph = scene.compiled(("a", calling(scene.model())), ("b", calling(scene.model())))
    scene.threads = [f"{scene.thread} {number}" for number in range(3)]
    given: Any = ([START_WITH] * 3, [thread_config(thread) for thread in scene.threads])
    if scene.face == "sync":
        await to_thread(lambda: graph.batch(*given, durability=scene.durability))
    else:
        await graph.abatch(*given, durability=scene.durability)


@a_run
async def threads_at_once(scene: Scene) -> None:
    graph = scene.compiled(("a", calling(scene.model(hook=lambda: threading.Event().wait(0.002)), 2)))
    scene.threads = [f"{scene.thread} {number}" for number in range(4)]
    await gather(*[scene.run(graph, config=thread_config(thread)) for thread in scene.threads])


@a_run
async def a_numbered_thread(scene: Scene) -> None:
    number = abs(hash(scene.thread))
    scene.threads = [str(number)]
    await scene.run(scene.compiled(("a", calling(scene.model()))), config=thread_config(number))


@a_run
async def fan_out(scene: Scene) -> None:
    builder = graph_of(("a", calling(scene.model())))
    builder.add_node("worker", calling(scene.model()))
    builder.add_conditional_edges("a", lambda _: [Send("worker", START_WITH) for _ in range(4)], ["worker"])
    builder.add_node("end", calling(scene.model()))
    builder.add_edge("worker", "end")
    graph = builder.compile(checkpointer=scene.saver)
    await scene.run(graph)
    await scene.run(graph)


@a_run
async def functional(scene: Scene) -> None:
    model = scene.model()

    @task
    def ask(number: int) -> str:
        return str(model.invoke(ASK).content)

    @task
    async def aask(number: int) -> str:
        return str((await model.ainvoke(ASK)).content)

    @entrypoint(checkpointer=scene.saver)
    def flow(given: Any) -> Any:
        return [*[each.result() for each in [ask(1), ask(2)]], model.invoke(ASK).content]

    @entrypoint(checkpointer=scene.saver)
    async def aflow(given: Any) -> Any:
        return [*(await gather(aask(1), aask(2))), (await model.ainvoke(ASK)).content]

    for _ in range(2):
        await scene.run(flow if scene.face == "sync" else aflow)


@a_run
async def agent(scene: Scene) -> None:
    """LangChain's agent, with a tool that calls a model three times in parallel."""
    model = scene.model()

    def look(at: int) -> str:
        return str(model.invoke(ASK).content)

    async def alook(at: int) -> str:
        return str((await model.ainvoke(ASK)).content)

    tool = StructuredTool.from_function(look, alook, name="look", description="Looks.")
    calls: Any = [{"name": "look", "args": {"at": number}, "id": f"c{number}"} for number in range(3)]
    scripted = scene.model(script=[AIMessage("", tool_calls=calls)])
    graph: Any = create_agent(scripted, [tool], checkpointer=scene.saver)
    await scene.run(graph, {"messages": ASK})
    await scene.run(graph, {"messages": ASK})


@a_run
async def tried_again(scene: Scene) -> None:
    builder = graph_of(("a", calling(scene.model())))
    again = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=Failed)
    builder.add_node("luck", calling(failing(scene, times=2)), retry_policy=again)
    builder.add_edge("a", "luck")
    await scene.run(builder.compile(checkpointer=scene.saver))
    tries = [(call.attempt, call.error) for call in await scene.records() if call.node == "luck"]
    assert tries == [(1, "Failed"), (2, "Failed"), (3, None)]


@a_run
async def failed_and_gone_on_with(scene: Scene) -> None:
    graph = scene.compiled(("a", calling(scene.model())), ("luck", calling(failing(scene, times=2))))
    for value in (START_WITH, None):
        await scene.fails(graph, value)
        scene.unfinished = {call.id for call in scene.told.calls[1:]}
        await scene.check()
    scene.unfinished.clear()
    await scene.run(graph, None)


@a_run
async def failed_and_given_up(scene: Scene) -> None:
    graph = scene.compiled(("a", calling(scene.model())), ("luck", calling(failing(scene, times=9))))
    await scene.fails(graph)
    await scene.fails(graph)
    given_up = [call.id for call in scene.told.calls if call.step in (2, 5)]
    # If only the ends of runs are stored, the next one is the first later checkpoint.
    scene.unfinished = set(given_up[1:] if scene.durability == "exit" else given_up)


@a_run
async def failures_that_nodes_handle(scene: Scene) -> None:
    model = failing(scene, times=9).with_fallbacks([scene.model()])
    await scene.run(scene.compiled(("a", calling(model)), ("b", calling(model))))


@a_run
async def asked_and_answered(scene: Scene) -> None:
    graph = scene.compiled(("a", calling(scene.model())), ("ask", asking(scene, "one", "two")))
    given: list[Any] = [START_WITH, Command(resume="yes")]
    for value in given:
        await scene.run(graph, value)
        scene.unfinished = {call.id for call in scene.told.calls[1:]}
        await scene.check()
    scene.unfinished.clear()
    await scene.run(graph, Command(resume="yes"))


@a_run
async def asked_in_a_subgraph(scene: Scene) -> None:
    model = calling(scene.model())
    sub = graph_of(("x", model), ("ask", asking(scene, "one")), ("y", model)).compile()
    graph = scene.compiled(("a", model), ("sub", sub), ("b", model))
    await scene.run(graph)
    scene.unfinished = {scene.told.calls[2].id}
    await scene.check()
    if scene.durability != "exit":  # with "exit", the resulting checkpoint of the subgraph is never stored
        scene.unfinished.clear()
    await scene.run(graph, Command(resume="yes"))


@a_run
async def conditional_edges(scene: Scene) -> None:
    model = scene.model()

    def way(state: Any) -> str:
        return str((model.invoke(ASK), "b")[1])

    async def away(state: Any) -> str:
        return str((await model.ainvoke(ASK), "b")[1])

    builder = graph_of(("a", calling(scene.model())))
    builder.add_node("b", calling(scene.model()))
    builder.add_conditional_edges("a", both(way, away), ["b"])
    await scene.run(builder.compile(checkpointer=scene.saver))


@a_run
async def batches_in_a_node(scene: Scene) -> None:
    model = scene.model()

    def node(state: Any) -> Any:
        return {"said": [str(said.content) for said in model.batch([ASK] * 3)]}

    async def anode(state: Any) -> Any:
        return {"said": [str(said.content) for said in await model.abatch([ASK] * 3)]}

    await scene.run(scene.compiled(("a", both(node, anode)), ("b", calling(model))))


@a_run
async def updated_between(scene: Scene) -> None:
    model = calling(scene.model())
    graph = scene.compiled(("a", model), ("b", model), interrupt_before=["b"])
    await scene.run(graph)
    for changes in ({}, {"as_node": "a"}):
        await to_thread(lambda: graph.update_state(scene.config, {"said": ["more"]}, **changes))  # noqa: B023
        await scene.run(graph, None)


@a_run
async def forked(scene: Scene) -> None:
    model = calling(scene.model())
    graph = scene.compiled(("a", model), ("b", model), ("c", model))
    await scene.run(graph)
    await scene.run(graph)
    old = (await scene.listed())[-1 if scene.durability == "exit" else 3].config
    await scene.run(graph, None, old)
    await scene.run(graph, START_WITH, old)
    await scene.run(graph)


@a_run
async def a_copy_of_the_saver(scene: Scene) -> None:
    """Under strict msgpack, LangGraph uses the copy that `with_allowlist` returns."""
    with pytest.MonkeyPatch.context() as patch:
        strictly(patch)
        await around(scene, inner(scene))


@a_run
async def streams_given_up(scene: Scene) -> None:
    model = scene.model()

    def node(state: Any) -> Any:
        return {"said": [str(next(iter(model.stream(ASK))).content)]}

    async def anode(state: Any) -> Any:
        stream: Any = model.astream(ASK)
        said = await anext(stream)
        await stream.aclose()
        return {"said": [str(said.content)]}

    await scene.run(scene.compiled(("a", both(node, anode)), ("b", calling(model))))
    assert [call.error for call in await scene.records()] == ["GeneratorExit", None]


@a_run
async def late(scene: Scene) -> None:
    """An unawaited call ends after a later step, and once after the run."""
    is_time, threads, model = threading.Event(), [], scene.model()
    slow = scene.model(hook=lambda: is_time.wait(10) and None)

    def node(state: Any) -> Any:
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(slow.invoke, ASK)))
        threads[-1].start()
        return {}

    await scene.run(scene.compiled(("a", node), ("b", calling(model))))
    is_time.set()
    threads[0].join()
    scene.late = {call.id for call in scene.told.calls if call.step == 1}
    assert {call.id for call in await scene.records() if call.checkpoint_id is None} == scene.late
    await scene.run(scene.compiled(("b", calling(model))))
    if scene.durability != "exit":  # with "exit", no later checkpoint is stored, so the call stays where it began
        scene.unfinished = set(scene.late)


@a_run
async def cached(scene: Scene) -> None:
    model = scene.model(cache=InMemoryCache())
    await scene.run(scene.compiled(("a", calling(model, 2)), ("b", calling(model))))
    assert [call.cached for call in await scene.records()] == [False, True, True]


def inner(scene: Scene, **options: Any) -> Any:
    return graph_of(("x", calling(scene.model())), ("y", calling(scene.model()))).compile(**options)


async def around(scene: Scene, node: Any) -> None:
    graph = scene.compiled(("a", calling(scene.model())), ("sub", node), ("b", calling(scene.model())))
    await scene.run(graph)
    await scene.run(graph)


@a_run
async def subgraph(scene: Scene) -> None:
    await around(scene, inner(scene))


@a_run
async def subgraph_with_a_memory(scene: Scene) -> None:
    await around(scene, inner(scene, checkpointer=True))


@a_run
async def subgraph_not_stored(scene: Scene) -> None:
    if scene.durability == "sync":  # LangGraph 1.2 fails: its loop waits for a write that does not exist
        scene.durability = "async"
    await around(scene, inner(scene, checkpointer=False))


@a_run
async def subgraphs_in_subgraphs(scene: Scene) -> None:
    model = calling(scene.model())
    await around(scene, graph_of(("x", model), ("y", inner(scene)), ("z", model)).compile())


@a_run
async def subgraph_called_in_a_node(scene: Scene) -> None:
    sub, model = inner(scene), scene.model()

    def node(state: Any) -> Any:
        said = [model.invoke(ASK), sub.invoke(state), model.invoke(ASK)]
        return {"said": [str(len(said))]}

    async def anode(state: Any) -> Any:
        said = [await model.ainvoke(ASK), await sub.ainvoke(state), await model.ainvoke(ASK)]
        return {"said": [str(len(said))]}

    await around(scene, both(node, anode))


@a_run
async def subgraphs_called_in_one_node(scene: Scene) -> None:
    """LangGraph distinguishes their namespaces by a number."""
    subs = inner(scene), inner(scene)

    def node(state: Any) -> Any:
        return {"said": [str(len([sub.invoke(state) for sub in subs]))]}

    async def anode(state: Any) -> Any:
        return {"said": [str(len([await sub.ainvoke(state) for sub in subs]))]}

    await around(scene, both(node, anode))


def piped(scene: Scene) -> Any:
    """A node that is a sequence: its model runs outside the context of its task."""

    def ask(state: Any) -> Any:
        scene.told.look()
        return ASK

    async def aask(state: Any) -> Any:
        return ask(state)

    def said(answer: Any) -> Any:
        return {"said": [str(answer.content)]}

    return both(ask, aask) | scene.model() | said


@a_run
async def sequences(scene: Scene) -> None:
    await around(scene, piped(scene))


@a_run
async def sequences_in_subgraphs(scene: Scene) -> None:
    inner = graph_of(("x", piped(scene)), ("y", calling(scene.model())), ("z", piped(scene))).compile()
    await around(scene, inner)


@a_run
async def sequences_at_once(scene: Scene) -> None:
    builder = graph_of(("a", piped(scene)))
    for name in ("b", "c"):
        builder.add_node(name, piped(scene))
        builder.add_edge(START, name)
    await scene.run(builder.compile(checkpointer=scene.saver))


@a_run
async def sequences_not_stored(scene: Scene) -> None:
    if scene.durability == "sync":
        scene.durability = "async"
    await around(scene, graph_of(("x", piped(scene))).compile(checkpointer=False))
