"""Replays of agents, questions, subgraphs, branches, updates and other graphs."""

from __future__ import annotations

from asyncio import to_thread
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from support.provenance.replay_graphs import PAYS, Items, Model, asking, graph_of, hello, noting, replayed
from support.provenance.replays import Scene, faces, is_same, two_turns
from support.provenance.replays import memory as memory
from support.provenance.replays import scene as scene
from support.tool_graphs import ASKED, calls, resume, run, thread

from langgraph_keel import ToolCache, ToolPolicy

# -- agents ------------------------------------------------------------------------------------------------------------


def decided(*kinds: dict[str, Any]) -> dict[str, Any]:
    return {"decisions": list(kinds)}


@faces
async def test_replay_of_an_agent_with_human_decisions(scene: Scene, face: str) -> None:
    outer: Any = HumanInTheLoopMiddleware({"pay": True})
    graph: Any = create_agent(
        Model(script=PAYS), scene.tools(), middleware=[outer, scene.cache.middleware()], checkpointer=scene.saver
    )
    await run(graph, face, hello(), thread("t"))
    edited = {"type": "edit", "edited_action": {"name": "pay", "args": {"x": 100}}}
    await resume(graph, face, decided(edited), thread("t"))
    await run(graph, face, hello("again"), thread("t"))
    await resume(graph, face, decided({"type": "reject", "message": "no"}), thread("t"))
    assert scene.acted == ["pay 100", "search 5"]
    replay = await is_same(scene, face, graph)
    assert len(replay.calls) == 4


@faces
async def test_a_tool_that_asked_does_not_run_again_in_a_replay(scene: Scene, face: str) -> None:
    runs: list[str] = []
    script = [calls(("ask", {"x": 1}, "one"), ("pay", {"x": 1}, "two")), calls(("ask", {"x": 2}, "three"))]
    tools, middleware = [asking(runs), *scene.tools()], [scene.cache.middleware()]
    graph: Any = create_agent(Model(script=script), tools, middleware=middleware, checkpointer=scene.saver)
    await run(graph, face, hello(), thread("t"))
    for answer in ("yes", "no"):
        await resume(graph, face, answer, thread("t"))
    assert runs == ["yes", "no"]
    await is_same(scene, face, graph)
    assert runs == ["yes", "no"]


@faces
async def test_replay_ends_at_an_answer_missing_from_the_ledger(memory: Scene, face: str) -> None:
    """The ledger keeps only the last of two equal calls that asked.

    Its result must not be used for the first.
    """
    runs: list[str] = []
    script = [calls(("ask", {"x": 1}, "one")), calls(("ask", {"x": 1}, "one"))]
    middleware = [ToolCache(memory.saver, default=ToolPolicy(scope="thread")).middleware()]
    graph: Any = create_agent(Model(script=script), [asking(runs)], middleware=middleware, checkpointer=memory.saver)
    await run(graph, face, hello(), thread("t"))
    for answer in ("yes", "no"):
        await resume(graph, face, answer, thread("t"))
    replay = await replayed(memory.saver, face, graph, thread("t"))
    assert (replay.same, replay.differences, replay.steps) == (False, (), 3)
    assert "a person had a part" in str(replay.ended)
    assert runs == ["yes", "no"]


@faces
async def test_replay_reports_a_changed_tool(memory: Scene, face: str) -> None:
    """A tool's description is input of the model; its results come from the ledger."""
    await two_turns(memory, face)
    tools = [memory.tools()[0], memory.tools()[1].model_copy(update={"description": "Acts otherwise."})]
    from support.provenance.replay_graphs import agent

    replay = await replayed(memory.saver, face, agent(memory.saver, tools, memory.cache), thread("t"))
    places = [(found.step, found.node, found.field) for found in replay.differences]
    assert places[0] == (1, "model", "tools.search")
    assert {place[2] for place in places} == {"tools.search", "tool search.version"}
    cache = ToolCache(memory.saver, {"pay": ToolPolicy(version="2")})
    replay = await replayed(memory.saver, face, agent(memory.saver, memory.tools(), cache), thread("t"))
    assert [(found.step, found.field, found.replayed) for found in replay.differences] == [
        (2, "tool pay.version", "2"),
        (7, "tool pay.version", "2"),
    ]


@pytest.mark.parametrize("scope", ["shared", "run", "thread"])
@faces
async def test_replay_finds_tool_results_in_every_scope(scene: Scene, face: str, scope: Any) -> None:
    cache = ToolCache(scene.saver, default=ToolPolicy(scope=scope))
    scene.cache = cache
    graph = scene.agent()
    config: Any = {**thread("t"), "metadata": {"run_id": "r1"}}
    await run(graph, face, hello(), config)
    assert scene.acted == ["pay 1", "search 5"]
    await is_same(scene, face, graph)


# -- questions and answers ---------------------------------------------------------------------------------------------


def approved(*questions: str) -> Any:
    def approve(state: Any) -> Any:
        return {"items": [f"{question} {interrupt(question)}" for question in questions]}

    return approve


@faces
async def test_replayed_questions_receive_their_recorded_answers(scene: Scene, face: str) -> None:
    graph = graph_of(scene.saver, ("note", noting("a")), ("ask", approved("one", "two")), ("end", noting("b")))
    for turn in ("x", "y"):
        await run(graph, face, {"items": [turn]}, thread("t"))
        for answer in (f"{turn}1", f"{turn}2"):
            await resume(graph, face, answer, thread("t"))
    replay = await is_same(scene, face, graph)
    assert replay.steps == 10


@faces
async def test_replay_reports_a_new_question(memory: Scene, face: str) -> None:
    await run(graph_of(memory.saver, ("note", noting("a")), ("end", noting("b"))), face, {"items": []}, thread("t"))
    graph = graph_of(memory.saver, ("note", noting("a")), ("end", approved("why?")))
    replay = await replayed(memory.saver, face, graph, thread("t"))
    assert [str(found) for found in replay.differences] == ["step 2: question: was none, now ['why?']"]


def fanned(saver: Any) -> Any:
    """Return a graph of three parallel subgraphs, each of which asks twice."""
    inner: Any = StateGraph(Items)
    inner.add_node("pre", lambda state: {"items": []})
    inner.add_node("ask", lambda state: {"items": [state["items"][0] + interrupt(1) + interrupt(2)]})
    inner.add_edge(START, "pre")
    inner.add_edge("pre", "ask")
    builder: Any = StateGraph(Items)
    builder.add_node("sub", inner.compile())
    builder.add_conditional_edges(START, lambda state: [Send("sub", {"items": [name]}) for name in "abc"], ["sub"])
    return builder.compile(checkpointer=saver)


@faces
async def test_replayed_answers_reach_the_same_subgraphs(scene: Scene, face: str) -> None:
    graph, count = fanned(scene.saver), 0
    result = await run(graph, face, {"items": []}, thread("t"))
    while asked := result.get(ASKED):
        some = asked[count % 2 :][:2] or asked
        answers = {each.id: f"{each.value}:{count}{place} " for place, each in enumerate(some)}
        result, count = await run(graph, face, Command(resume=answers), thread("t")), count + 1
    assert len(set(result["items"])) == 6
    await is_same(scene, face, graph)


@faces
async def test_replay_of_a_question_that_is_waiting_or_was_dropped(memory: Scene, face: str) -> None:
    graph = graph_of(memory.saver, ("note", noting("a")), ("ask", approved("one")))
    await run(graph, face, {"items": ["x"]}, thread("t"))
    assert (await is_same(memory, face, graph)).steps == 3
    await run(graph, face, {"items": ["y"]}, thread("t"))
    await resume(graph, face, "yes", thread("t"))
    assert (await is_same(memory, face, graph)).steps == 7


@faces
async def test_replay_of_a_step_that_failed_and_was_resumed(memory: Scene, face: str) -> None:
    ran: list[int] = []

    def flaky(state: Any) -> Any:
        ran.append(1)
        if len(ran) % 2:
            raise ConnectionError("once")
        return {"items": ["made it"]}

    graph = graph_of(memory.saver, ("note", noting("a")), ("flaky", flaky), ("end", noting("b")))
    with pytest.raises(ConnectionError):
        await run(graph, face, {"items": []}, thread("t"))
    await run(graph, face, None, thread("t"))
    await is_same(memory, face, graph)
    assert len(ran) == 4


@faces
async def test_replay_of_static_interrupts(memory: Scene, face: str) -> None:
    graph = graph_of(memory.saver, ("a", noting("a")), ("b", noting("b")), ("c", noting("c")), interrupt_before="*")
    await run(graph, face, {"items": []}, thread("t"))
    for _ in range(3):
        await run(graph, face, None, thread("t"))
    assert (await is_same(memory, face, graph)).steps == 5


# -- histories with branches -------------------------------------------------------------------------------------------


@faces
async def test_replay_of_updates_forks_and_commands(scene: Scene, face: str) -> None:
    graph = scene.agent()
    await run(graph, face, hello(), thread("t"))
    await to_thread(graph.update_state, thread("t"), {"messages": [HumanMessage("more")]}, as_node="tools")
    await run(graph, face, None, thread("t"))
    old = next(found for found in scene.saver.list(thread("t")) if found.metadata["step"] == 1)
    await run(graph, face, None, old.config)
    await run(graph, face, Command(update={"messages": [HumanMessage("so")]}, goto="model"), thread("t"))
    await run(graph, face, hello("last"), thread("t"))
    sources = [found.metadata["source"] for found in scene.saver.list(thread("t"))]
    assert {"input", "loop", "update", "fork"} == set(sources)
    await is_same(scene, face, graph)
    branch = await replayed(scene.saver, face, graph, old.config)
    assert (branch.same, branch.first) == (True, None)


@faces
async def test_replay_ends_at_an_update_after_a_difference(memory: Scene, face: str) -> None:
    graph = graph_of(memory.saver, ("a", noting("a")), ("b", noting("b")))
    await run(graph, face, {"items": []}, thread("t"))
    await to_thread(graph.update_state, thread("t"), {"items": ["more"]}, as_node="a")
    await run(graph, face, None, thread("t"))
    assert (await is_same(memory, face, graph)).steps == 6
    changed = graph_of(memory.saver, ("a", noting("x")), ("b", noting("b")))
    replay = await replayed(memory.saver, face, changed, thread("t"))
    assert str(replay.first) == "step 1: items[0]: was 'a 0', now 'x 0'"
    assert "update_state" in str(replay.ended)


@faces
async def test_replay_of_a_thread_that_begins_with_an_update_or_was_pruned(scene: Scene, face: str) -> None:
    graph = graph_of(scene.saver, ("a", noting("a")), ("b", noting("b")))
    await to_thread(graph.update_state, thread("t"), {"items": ["begun"]}, as_node="a")
    await run(graph, face, None, thread("t"))
    assert (await is_same(scene, face, graph)).steps == 1
    await to_thread(scene.saver.prune, ["t"])
    await run(graph, face, {"items": ["next"]}, thread("t"))
    assert (await is_same(scene, face, graph)).steps == 4


@faces
async def test_replay_reports_a_changed_order_of_nodes(memory: Scene, face: str) -> None:
    nodes = ("a", noting("a")), ("b", noting("b")), ("c", noting("c"))
    await run(graph_of(memory.saver, *nodes), face, {"items": []}, thread("t"))
    replay = await replayed(memory.saver, face, graph_of(memory.saver, nodes[0], nodes[2], nodes[1]), thread("t"))
    first = replay.first
    assert first is not None
    assert (first.step, first.field, first.recorded, first.replayed) == (1, "next[0]", "'b'", "'c'")
    shorter = await replayed(memory.saver, face, graph_of(memory.saver, *nodes[:2]), thread("t"))
    assert str(shorter.differences[-1]) == "step 3: run: was continued, now ended"
