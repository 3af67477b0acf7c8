"""A refused tool ends a replay, even if the graph handles errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy
from support.provenance.replay_graphs import Items, agent, graph_of, hello, noting, replayed
from support.provenance.replays import Scene, faces, opened
from support.provenance.replays import memory as memory
from support.tool_graphs import BACKENDS, run, thread

from langgraph_keel import ToolNotReplayed

LOCAL = BACKENDS[:3]


@pytest.fixture(params=LOCAL)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    yield from opened(request.param, request, tmp_path)


def directly(pay: BaseTool) -> Any:
    return pay.invoke({"x": 1})


def in_a_pool(pay: BaseTool) -> Any:
    with ThreadPoolExecutor() as pool:
        return pool.submit(pay.invoke, {"x": 1}).result()


def in_a_loop(pay: BaseTool) -> Any:
    with ThreadPoolExecutor() as pool:
        return pool.submit(lambda: asyncio.run(pay.ainvoke({"x": 1}))).result()


WAYS = pytest.mark.parametrize("call", [directly, in_a_pool, in_a_loop])


async def is_refused(scene: Scene, face: str, graph: Any, **options: Any) -> None:
    """Check that a replay ends with a refused tool, and leaves no effect or thread."""
    acted = scene.acted
    assert acted
    replay = await replayed(scene.saver, face, graph, thread("t"), **options)
    assert (scene.acted, scene.threads) == (acted, ["t"])
    assert (replay.same, replay.differences) == (False, ())
    assert "tool 'pay' did not run" in str(replay.ended)
    assert isinstance(replay.error, ToolNotReplayed)


@WAYS
@faces
async def test_a_fallback_does_not_act_after_a_refused_tool(
    scene: Scene, face: str, call: Callable[[BaseTool], Any]
) -> None:
    pay, other = scene.tools()

    def node(state: Any) -> Any:
        try:
            return {"items": [call(pay)]}
        except Exception:
            return {"items": [other.func(1)]}

    graph = graph_of(scene.saver, ("node", node), ("end", noting("b")))
    await run(graph, face, {"items": []}, thread("t"))
    await is_refused(scene, face, graph)


@faces
async def test_an_allowed_tool_may_run_in_a_pool(memory: Scene, face: str) -> None:
    pay = memory.tools()[0]
    graph = graph_of(memory.saver, ("node", lambda state: {"items": [in_a_pool(pay)]}))
    await run(graph, face, {"items": []}, thread("t"))
    assert (await replayed(memory.saver, face, graph, thread("t"), allow_tools=["pay"])).same
    assert memory.acted == ["pay 1", "pay 1"]


@faces
async def test_a_retry_policy_does_not_retry_a_refused_tool(memory: Scene, face: str) -> None:
    pay, ran = memory.tools()[0], list[int]()

    def node(state: Any) -> Any:
        ran.append(1)
        return {"items": [pay.invoke({"x": 1})]}

    builder: Any = StateGraph(Items)
    builder.add_node("node", node, retry_policy=RetryPolicy(max_attempts=5, initial_interval=0.01, retry_on=Exception))
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=memory.saver)
    await run(graph, face, {"items": []}, thread("t"))
    ran.clear()
    await is_refused(memory, face, graph)
    assert len(ran) == 1


@faces
async def test_a_refused_tool_in_parallel_with_other_nodes(memory: Scene, face: str) -> None:
    pay, done = memory.tools()[0], list[int]()

    def other(state: Any) -> Any:
        done.append(1)
        return {"items": ["other"]}

    async def waiting(state: Any) -> Any:
        await asyncio.sleep(0.05)
        return {"items": ["waited"]}

    builder: Any = StateGraph(Items)
    nodes = {"pay": lambda state: {"items": [pay.invoke({"x": 1})]}, "other": other}
    for name, node in (nodes | ({"waiting": waiting} if face == "async" else {})).items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=memory.saver)
    await run(graph, face, {"items": []}, thread("t"))
    await is_refused(memory, face, graph)
    assert (await replayed(memory.saver, face, graph, thread("t"), allow_tools=["pay"])).same


async def test_a_refused_tool_in_a_task_group(memory: Scene) -> None:
    pay = memory.tools()[0]

    async def node(state: Any) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                paid = [group.create_task(pay.ainvoke({"x": number})) for number in range(2)]
        except* Exception:
            await pay.ainvoke({"x": 9})
        return {"items": [each.result() for each in paid]}

    graph = graph_of(memory.saver, ("node", node))
    await run(graph, "async", {"items": []}, thread("t"))
    await is_refused(memory, "async", graph)


@faces
async def test_a_refused_tool_in_a_subgraph(memory: Scene, face: str) -> None:
    pay = memory.tools()[0]
    inner = graph_of(None, ("node", lambda state: {"items": [pay.invoke({"x": 1})]}))
    graph = graph_of(memory.saver, ("team", inner), ("end", noting("b")))
    await run(graph, face, {"items": []}, thread("t"))
    await is_refused(memory, face, graph)


@faces
async def test_a_refused_tool_in_a_task_of_an_entrypoint(memory: Scene, face: str) -> None:
    pay = memory.tools()[0]

    @task
    def act(x: int) -> Any:
        return pay.invoke({"x": x})

    @entrypoint(checkpointer=memory.saver)
    def work(x: int) -> Any:
        try:
            return act(x).result()
        except Exception:
            return "otherwise"

    await run(work, "sync", 1, thread("t"))
    await is_refused(memory, "sync", work)


@faces
async def test_tools_of_other_graphs_run_during_a_replay(memory: Scene, face: str) -> None:
    """They run in other graphs; without a context, they run after the replay."""
    pay, said = memory.tools()[0], list[Any]()
    outside = graph_of(memory.saver, ("node", lambda state: {"items": [pay.invoke({"x": 5})]}))

    def node(state: Any) -> Any:
        if memory.acted:
            worker = threading.Thread(target=lambda: said.append(outside.invoke({"items": []}, thread("u"))["items"]))
            worker.start()
            worker.join()
        return {"items": ["done"]}

    graph = graph_of(memory.saver, ("node", node))
    await run(graph, face, {"items": []}, thread("t"))
    await asyncio.to_thread(pay.invoke, {"x": 1})
    assert (await replayed(memory.saver, face, graph, thread("t"))).same
    assert said == [["did 5"]]
    assert in_a_pool(pay) == "did 1"


@faces
async def test_a_refused_tool_in_an_agent_that_handles_errors(scene: Scene, face: str) -> None:
    from langgraph.prebuilt import ToolNode

    graph = scene.agent(cached=False, nodes=ToolNode(scene.tools()[:1], handle_tool_errors=lambda error: "never mind"))
    await run(graph, face, hello(), thread("t"))
    await is_refused(scene, face, graph)


def _pay(x: int) -> str:
    return f"did {x}"


def _pay_in(x: int, unit: str = "EUR", places: int = 2) -> str:
    return f"did {x} {unit} {places}"


@faces
async def test_a_tool_whose_schema_changed_is_refused_as_an_earlier_call(memory: Scene, face: str) -> None:
    def paying(act: Any) -> Any:
        pay = StructuredTool.from_function(act, name="pay", description="Pays.")
        return agent(memory.saver, [pay, memory.tools()[1]], memory.cache)

    await run(paying(_pay), face, hello(), thread("t"))
    replay = await replayed(memory.saver, face, paying(_pay_in), thread("t"))
    assert [(each.step, each.field) for each in replay.differences] == [(2, "tool pay.version")]
    assert replay.differences[0].recorded != replay.differences[0].replayed
    assert "in step 2 tool 'pay' did not run" in str(replay.ended)
    assert "called it with the same arguments, but its schema has changed" in str(replay.ended)
    assert f"Ended early: {replay.ended}" in str(replay)
    assert isinstance(replay.error, ToolNotReplayed)
    assert (replay.error.is_new, replay.error.called) == (False, {"x": 1})
