"""Replays of subgraphs, tasks and raw threads.

A replay does not touch caches, drift or other channels.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache as ModelCache
from langchain_core.runnables import RunnableConfig
from langgraph.cache.memory import InMemoryCache
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import CachePolicy, interrupt
from support.provenance.replay_graphs import PAYS, Items, Model, asking, graph_of, hello, noting, replayed
from support.provenance.replays import Scene, faces, is_same, two_turns
from support.provenance.replays import memory as memory
from support.provenance.replays import scene as scene
from support.provenance.runs import recorder_of
from support.tool_graphs import resume, run, strictly, thread

from langgraph_keel import MemorySaver, SqliteSaver, ToolCache


@pytest.mark.parametrize("checkpointer", [None, True])
@faces
async def test_replay_of_models_in_subgraphs(scene: Scene, face: str, checkpointer: Any) -> None:
    def outer(system: str) -> Any:
        inner = scene.agent(system=system).copy({"checkpointer": checkpointer})
        builder: Any = StateGraph(MessagesState)
        builder.add_sequence([("before", lambda state: {}), ("team", inner), ("after", lambda state: {})])
        builder.add_edge(START, "before")
        return builder.compile(checkpointer=scene.saver)

    graph = outer("Be brief.")
    for text in ("one", "two"):
        await run(graph, face, hello(text), thread("t"))
    replay = await is_same(scene, face, graph)
    assert {call.path for call in replay.calls} == {"team|model"}
    changed = await replayed(scene.saver, face, outer("Be long."), thread("t"))
    assert changed.first is not None
    assert (changed.first.step, changed.first.node, changed.first.field) == (2, "team|model", "system_hash")
    assert {found.step for found in changed.differences} == {2, 7}
    root: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    second = next(found for found in scene.saver.list(root) if found.metadata["step"] == 4)
    assert (await replayed(scene.saver, face, graph, second.config)).same


@faces
async def test_replay_of_an_entrypoint(scene: Scene, face: str) -> None:
    @task
    def add(x: int) -> int:
        return x + 1

    @entrypoint(checkpointer=scene.saver)
    def work(x: int, *, previous: Any = None) -> Any:
        answer = interrupt(add(x).result())
        return entrypoint.final(value=answer, save=f"{previous} {answer}")

    for number in (1, 2):
        await run(work, "sync", number, thread("t"))
        await resume(work, "sync", f"answer {number}", thread("t"))
    await is_same(scene, "sync", work)


@faces
async def test_a_tool_in_a_separate_thread_does_not_run_in_a_replay(memory: Scene, face: str) -> None:
    """It has no context, but a config, which identifies it."""
    pay = memory.tools()[0]
    kept = memory.cache.tool(pay)
    said: list[str] = []

    def node(state: Any, config: RunnableConfig) -> Any:
        def work() -> None:
            for each, x in ((kept, 1), (pay, 2)):
                try:
                    said.append(each.invoke({"x": x}, config))
                except BaseException as error:
                    said.append(type(error).__name__)

        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
        return {"items": ["done"]}

    graph = graph_of(memory.saver, ("node", node), ("end", noting("b")))
    await run(graph, face, {"items": []}, thread("t"))
    assert memory.acted == ["pay 1", "pay 2"]
    replay = await replayed(memory.saver, face, graph, thread("t"))
    assert said == ["did 1", "did 2", "did 1", "Refused"]
    assert memory.acted == ["pay 1", "pay 2"]
    assert "tool 'pay'" in str(replay.ended)


@faces
async def test_a_tool_called_without_callbacks_does_not_run_in_a_replay(memory: Scene, face: str) -> None:
    pay = memory.tools()[0]
    graph = graph_of(memory.saver, ("node", lambda state: {"items": [pay.invoke({"x": 1}, {"callbacks": []})]}))
    await run(graph, face, {"items": []}, thread("t"))
    replay = await replayed(memory.saver, face, graph, thread("t"))
    assert (memory.acted, replay.same) == (["pay 1"], False)


@faces
async def test_a_node_cache_is_not_used_in_a_replay(memory: Scene, face: str) -> None:
    ran: list[int] = []

    def node(state: Any) -> Any:
        ran.append(1)
        return {"items": ["ran"]}

    builder: Any = StateGraph(Items)
    builder.add_node("node", node, cache_policy=CachePolicy())
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=memory.saver, cache=InMemoryCache())
    await run(graph, face, {"items": []}, thread("t"))
    await run(graph, face, {"items": []}, thread("u"))
    assert len(ran) == 1
    assert (await replayed(memory.saver, face, graph, thread("t"))).same
    assert len(ran) == 2


@faces
async def test_replay_names_a_node_cache_of_a_subgraph(memory: Scene, face: str) -> None:
    builder: Any = StateGraph(Items)
    builder.add_node("node", noting("a"), cache_policy=CachePolicy())
    builder.add_edge(START, "node")
    graph = graph_of(memory.saver, ("team", builder.compile(cache=InMemoryCache())))
    await run(graph, face, {"items": []}, thread("t"))
    replay = await replayed(memory.saver, face, graph, thread("t"))
    assert (replay.same, replay.differences) == (False, ())
    assert "node cache of subgraph 'team'" in str(replay.ended)


@faces
async def test_replay_names_answers_of_langchains_model_cache(memory: Scene, face: str) -> None:
    cache = ModelCache()
    graph = memory.agent(model=Model(script=PAYS, cache=cache))
    await run(graph, face, hello(), thread("t"))
    replay = await replayed(memory.saver, face, graph, thread("t"))
    assert not replay.same
    assert "step 1, was answered by LangChain's cache" in str(replay.ended)
    cache.clear()
    assert (await replayed(memory.saver, face, graph, thread("t"))).same


@faces
async def test_replay_names_steps_without_recorded_calls(face: str, tmp_path: Path) -> None:
    """Calls are compared only if both sides recorded them.

    The verdict names the other steps.
    """
    path, model = str(tmp_path / "t.db"), Model(script=PAYS)
    told = "Model calls not compared, as none are recorded: step {}"
    for text, provenance in (("one", True), ("two", False)):
        with SqliteSaver.from_conn_string(path, provenance=provenance) as saver:
            await run(talker(saver, model), face, hello(text), thread("t"))
    with SqliteSaver.from_conn_string(path) as saver:
        replay = await replayed(saver, face, talker(saver, model), thread("t"))
        assert (replay.same, replay.uncompared, len(replay.calls)) == (True, (4,), 2)
        assert str(replay).splitlines()[1:] == [told.format(4)]
        other = await replayed(saver, face, talker(saver, Model(script=PAYS, seed=1)), thread("t"))
        assert [(each.step, each.field) for each in other.differences] == [(1, "seed")]
    with SqliteSaver.from_conn_string(path, provenance=False) as saver:
        replay = await replayed(saver, face, talker(saver, model), thread("t"))
        assert (replay.same, replay.uncompared, len(replay.calls)) == (True, (4,), 2)
        other = await replayed(saver, face, talker(saver, Model(script=PAYS, seed=1)), thread("t"))
        assert [(each.step, each.field) for each in other.differences] == [(1, "seed")]


def talker(saver: Any, model: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("talk", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_edge(START, "talk")
    return builder.compile(checkpointer=saver)


@faces
async def test_replay_reports_additional_model_calls(memory: Scene, face: str) -> None:
    def graph(times: int) -> Any:
        def talk(state: Any) -> Any:
            return {"items": [Model().invoke("so").text for _ in range(times)][:1]}

        return graph_of(memory.saver, ("talk", talk))

    await run(graph(1), face, {"items": []}, thread("t"))
    await is_same(memory, face, graph(1))
    replay = await replayed(memory.saver, face, graph(3), thread("t"))
    assert [each.field for each in replay.differences] == ["call of a model"] * 2


@pytest.mark.parametrize("on_drift", ["ignore", "warn", "raise"])
@faces
async def test_drift_in_a_replay_is_a_difference_without_a_warning(face: str, on_drift: Any, tmp_path: Path) -> None:
    with MemorySaver(on_drift=on_drift) as saver, warnings.catch_warnings():
        warnings.simplefilter("error")
        scene = Scene(saver, ToolCache(saver), tmp_path / "lines")
        await two_turns(scene, face)
        other = scene.agent(model=Model(script=PAYS, served="fake-2"))
        middle = next(found for found in saver.list(thread("t")) if found.metadata["step"] == 4)
        for config in (thread("t"), middle.config):
            replay = await replayed(saver, face, other, config)
            assert replay.first is not None
            assert replay.first.field == "served_model"


@faces
async def test_replay_without_provenance_compares_states(face: str, tmp_path: Path) -> None:
    with MemorySaver(provenance=False) as saver:
        scene = Scene(saver, ToolCache(saver), tmp_path / "lines")
        replay = await replayed(saver, face, await two_turns(scene, face), thread("t"))
        assert (replay.same, replay.steps) == (True, 10)
        assert replay.uncompared


@faces
async def test_replay_in_strict_mode(memory: Scene, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strictly(monkeypatch)
    assert (await replayed(memory.saver, face, await two_turns(memory, face), thread("t"))).same


@faces
async def test_on_step_is_called_for_each_step_and_may_raise(memory: Scene, face: str) -> None:
    graph, steps = await two_turns(memory, face), list[int]()
    assert (await replayed(memory.saver, face, graph, thread("t"), on_step=steps.append)).same
    assert steps == list(range(-1, 9))

    def fail(step: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await replayed(memory.saver, face, graph, thread("t"), on_step=fail)
    assert memory.threads == ["t"]


@faces
async def test_replay_with_ignored_channels_and_a_limit(memory: Scene, face: str) -> None:
    await run(graph_of(memory.saver, ("a", noting("a")), ("b", noting("b"))), face, {"items": []}, thread("t"))
    other = graph_of(memory.saver, ("a", noting("x")), ("b", noting("y")))
    assert len((await replayed(memory.saver, face, other, thread("t"))).differences) == 2
    assert len((await replayed(memory.saver, face, other, thread("t"), limit=1)).differences) == 1
    assert (await replayed(memory.saver, face, other, thread("t"), ignore=["items"])).same


@faces
async def test_an_answer_inside_a_cached_tool_is_not_delivered_twice(memory: Scene, face: str) -> None:
    """The node asks before and after its tool; LangGraph has one list of answers."""
    runs: list[str] = []
    kept = memory.cache.tool(asking(runs))

    def node(state: Any, config: RunnableConfig) -> Any:
        return {"items": [interrupt("before"), kept.invoke({"x": 1}, config), interrupt("after")]}

    graph = graph_of(memory.saver, ("node", node), ("end", noting("b")))
    await run(graph, face, {"items": []}, thread("t"))
    for answer in ("first", "second", "third"):
        await resume(graph, face, answer, thread("t"))
    assert runs == ["second"]
    await is_same(memory, face, graph)
    assert runs == ["second"]


@faces
async def test_the_saver_of_the_compiled_graph_is_not_used(memory: Scene, face: str) -> None:
    graph = await two_turns(memory, face)
    with MemorySaver() as other:
        assert (await replayed(memory.saver, face, graph.copy({"checkpointer": other}), thread("t"), keep=True)).same
        assert list(other.threads()) == []
    assert len(memory.threads) == 2


@faces
async def test_replay_of_a_thread_with_drift(face: str, tmp_path: Path) -> None:
    """The replay drifts as the original did, without a warning or an error."""
    with MemorySaver(on_drift="ignore") as saver:
        scene = Scene(saver, ToolCache(saver), tmp_path / "lines")
        model = Model(script=PAYS)
        graph = scene.agent(model=model)
        served = iter(["fake-1", "fake-2"] * 4)
        object.__setattr__(model, "_generate", answering(model, served))
        await run(graph, face, hello(), thread("t"))
        assert len({call.served_model for call in saver.provenance.read(thread("t"))}) == 2
        recorder_of(saver).on_drift = "raise"
        assert (await replayed(saver, face, graph, thread("t"))).same


def answering(model: Model, served: Iterator[str]) -> Any:
    def generate(messages: Any, *args: Any, **options: Any) -> Any:
        object.__setattr__(model, "served", next(served))
        return Model._generate(model, messages)

    return generate


@faces
async def test_replay_compares_only_the_successful_attempt(memory: Scene, face: str) -> None:
    """Which of two attempts fails may vary; only the successful call is compared."""
    fails = iter([True, False])

    class Flaky(Model):
        def _generate(self, *args: Any, **options: Any) -> Any:
            if next(fails):
                raise ConnectionError
            return super()._generate(*args, **options)

    spoken: Any = Flaky().with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    graph = graph_of(memory.saver, ("talk", lambda state: {"items": [spoken.invoke("hello").content]}))
    await run(graph, face, {"items": []}, thread("t"))
    assert [call.error for call in memory.saver.provenance.read(thread("t"))] == ["ConnectionError", None]
    fails = iter([False])
    await is_same(memory, face, graph)
