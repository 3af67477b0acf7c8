"""Replays on every backend and by both faces; the original is only read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from support.provenance.replay_graphs import PAYS, Model, agent, everything, hello, replayed
from support.provenance.replays import Scene, faces, two_turns
from support.provenance.replays import memory as memory
from support.provenance.replays import scene as scene
from support.tool_graphs import calls, run, thread

from langgraph_keel import InvalidInput, NotFound, Replay, ToolNotReplayed


@faces
async def test_replay_of_a_deterministic_thread_is_the_same(scene: Scene, face: str) -> None:
    graph = await two_turns(scene, face)
    acted, before = scene.acted, everything(scene.saver, "t")
    assert acted == ["pay 1", "pay 2", "search 5"]
    replay = await replayed(scene.saver, face, graph, thread("t"))
    assert replay
    assert replay.same
    assert (replay.steps, len(replay.calls), replay.first, replay.uncompared) == (10, 4, None, ())
    assert str(replay) == "replay of thread 't': the same (10 steps, 4 calls of models)"
    assert (scene.acted, everything(scene.saver, "t"), scene.threads) == (acted, before, ["t"])


@faces
async def test_replay_from_every_checkpoint(scene: Scene, face: str) -> None:
    graph = await two_turns(scene, face)
    acted, before = scene.acted, everything(scene.saver, "t")
    checkpoints = list(scene.saver.list(thread("t")))
    for after, found in enumerate(checkpoints[1:], 1):
        replay = await replayed(scene.saver, face, graph, found.config)
        assert (replay.same, replay.steps, replay.first) == (True, after, None)
    last = await replayed(scene.saver, face, graph, checkpoints[0].config)
    assert (last.same, last.steps, last.ended) == (False, 0, "nothing was recorded after step 8")
    assert (scene.acted, everything(scene.saver, "t"), scene.threads) == (acted, before, ["t"])


@faces
async def test_replay_reports_a_changed_prompt(scene: Scene, face: str) -> None:
    await two_turns(scene, face)
    replay = await replayed(scene.saver, face, scene.agent(system="Be long."), thread("t"))
    assert replay.first is not None
    assert (replay.first.step, replay.first.node, replay.first.field) == (1, "model", "system_hash")
    assert {found.field for found in replay.differences} == {"system_hash", "prompt_hash"}
    assert [found.step for found in replay.differences] == [1, 1, 3, 3, 6, 6, 8, 8]


@faces
async def test_replay_reports_a_changed_answer_and_stops_at_a_new_call(scene: Scene, face: str) -> None:
    await two_turns(scene, face)
    acted = scene.acted
    script = [calls(("pay", {"x": 7}, "one"), ("search", {"x": 5}, "two")), *PAYS[1:]]
    replay = await replayed(scene.saver, face, scene.agent(model=Model(script=script)), thread("t"))
    places = [(found.step, found.field) for found in replay.differences]
    assert places == [(1, "answer_hash"), (1, "messages[1].tool_calls[0].args.x"), (2, "tool pay")]
    assert replay.differences[-1].replayed == "called with {'x': 7}"
    assert isinstance(replay.error, ToolNotReplayed)
    assert (scene.acted, scene.threads) == (acted, ["t"])


@faces
async def test_replay_reports_a_changed_tool_result(scene: Scene, face: str) -> None:
    await two_turns(scene, face)
    graph = scene.agent(says="has done")
    replay = await replayed(scene.saver, face, graph, thread("t"), allow_tools=["search"])
    assert replay.first is not None
    assert str(replay.first) == "step 2: messages[3].content: was 'did 5', now 'has done 5'"
    assert scene.acted.count("search 5") == 2
    assert scene.acted.count("pay 1") == 1


@faces
@pytest.mark.parametrize("handled", [True, False])
async def test_tools_without_a_cache_do_not_run_in_a_replay(scene: Scene, face: str, handled: bool) -> None:
    from langgraph.prebuilt import ToolNode

    node = ToolNode(scene.tools(), handle_tool_errors=handled)
    graph = scene.agent(cached=False, nodes=node)
    await run(graph, face, hello(), thread("t"))
    acted, before = scene.acted, everything(scene.saver, "t")
    replay = await replayed(scene.saver, face, graph, thread("t"))
    assert (replay.same, replay.steps, replay.differences) == (False, 3, ())
    assert replay.ended is not None
    assert "in step 2 tool" in replay.ended
    assert "not kept in a ToolCache" in replay.ended
    assert (scene.acted, everything(scene.saver, "t"), scene.threads) == (acted, before, ["t"])
    assert (await replayed(scene.saver, face, graph, thread("t"), allow_tools=["pay", "search"])).same
    assert len(scene.acted) == 2 * len(acted)


@faces
async def test_a_failed_replay_leaves_nothing(scene: Scene, face: str) -> None:
    await two_turns(scene, face)
    before = everything(scene.saver, "t")

    class Broken(Model):
        def _generate(self, *args: Any, **options: Any) -> Any:
            raise ZeroDivisionError("no")

    replay = await replayed(scene.saver, face, scene.agent(model=Broken()), thread("t"))
    assert replay.first is not None
    assert str(replay.first) == "step 1: error: was none, now 'ZeroDivisionError: no'"
    assert isinstance(replay.error, ZeroDivisionError)
    assert (everything(scene.saver, "t"), scene.threads) == (before, ["t"])


async def test_a_cancelled_replay_leaves_nothing(scene: Scene) -> None:
    graph = await two_turns(scene, "async")
    before, begun = everything(scene.saver, "t"), asyncio.Event()

    async def wait(state: Any) -> Any:
        begun.set()
        await asyncio.sleep(60)

    slow = scene.agent(nodes=wait)
    task = asyncio.create_task(scene.saver.provenance.areplay(slow, thread("t")))
    await begun.wait()
    assert len(scene.threads) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (everything(scene.saver, "t"), scene.threads) == (before, ["t"])
    assert (await scene.saver.provenance.areplay(graph, thread("t"))).same


async def test_concurrent_replays_are_independent(scene: Scene) -> None:
    graph = await two_turns(scene, "async")
    other = agent(scene.saver, scene.tools(), scene.cache, system="Other.")
    await run(other, "async", hello("other"), thread("u"))
    acted = scene.acted
    jobs = [scene.saver.provenance.areplay(graph, thread("t")), scene.saver.provenance.areplay(other, thread("u"))]
    jobs += [
        asyncio.to_thread(scene.saver.provenance.replay, graph, thread("t")),
        scene.saver.provenance.areplay(graph, thread("u")),
    ]
    first, second, third, fourth = await asyncio.gather(*jobs)
    assert [first.same, second.same, third.same, fourth.same] == [True, True, True, False]
    assert (scene.acted, sorted(scene.threads)) == (acted, ["t", "u"])


@faces
async def test_replay_with_keep_keeps_its_fork(scene: Scene, face: str) -> None:
    graph = await two_turns(scene, face)
    replay = await replayed(scene.saver, face, graph, thread("t"), keep=True)
    assert replay.thread_id is not None
    assert sorted(scene.threads) == sorted(["t", replay.thread_id])
    kept = thread(replay.thread_id)
    assert len(list(scene.saver.list(kept))) == 10
    # The kept replay is now an ordinary thread: its tools act.
    more = Model(script=[*PAYS, calls(("pay", {"x": 9}, "new")), AIMessage("so be it")])
    await run(scene.agent(model=more), face, hello(), kept)
    assert "pay 9" in scene.acted
    assert (await replayed(scene.saver, face, graph, thread("t"))).same


@faces
async def test_replay_of_exit_durability_accepts_the_inputs(scene: Scene, face: str) -> None:
    graph = scene.agent()
    given = [hello("one"), hello("two")]
    for each in given:
        await run(graph, face, each, thread("t"), durability="exit")
    assert len(list(scene.saver.list(thread("t")))) == 2
    replay = await replayed(scene.saver, face, graph, thread("t"))
    assert (replay.same, replay.differences) == (False, ())
    assert "durability='exit'" in str(replay.ended)
    whole = await replayed(scene.saver, face, graph, thread("t"), inputs=given)
    assert (whole.same, whole.steps, len(whole.calls)) == (True, 2, 4)
    first = list(scene.saver.list(thread("t")))[-1]
    assert (await replayed(scene.saver, face, graph, first.config, inputs=given[1:])).same
    other = await replayed(scene.saver, face, scene.agent(system="Other."), thread("t"), inputs=given)
    assert (other.first.step, other.first.field) == (3, "system_hash")  # type: ignore[union-attr]


@faces
async def test_missing_threads_and_checkpoints_raise_not_found(scene: Scene, face: str) -> None:
    graph = await two_turns(scene, face)
    with pytest.raises(NotFound, match="'no'"):
        await replayed(scene.saver, face, graph, thread("no"))
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_id": "no"}}
    with pytest.raises(NotFound, match="checkpoint 'no'"):
        await replayed(scene.saver, face, graph, config)
    assert scene.threads == ["t"]


def test_invalid_arguments_are_refused(memory: Scene) -> None:
    saver, graph = memory.saver, memory.agent()
    with pytest.raises(InvalidInput, match="compiled graph"):
        saver.provenance.replay(lambda state: state, thread("t"))
    with pytest.raises(InvalidInput, match="limit=0"):
        saver.provenance.replay(graph, thread("t"), limit=0)
    with pytest.raises(InvalidInput, match="one string"):
        saver.provenance.replay(graph, thread("t"), allow_tools="pay")
    with pytest.raises(InvalidInput, match="root graph"):
        saver.provenance.replay(graph, {"configurable": {"thread_id": "t", "checkpoint_ns": "sub:1"}})


# -- what the models are asked with ------------------------------------------------------------------------------------


def configured(temperature: float, is_configurable: bool = True) -> Any:
    model: Any = Model(script=PAYS, temperature=temperature, seed=7)
    fields = {name: ConfigurableField(name) for name in ("temperature", "seed", "model")}
    return model.configurable_fields(**fields) if is_configurable else model


def talker(scene: Scene, model: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("talk", lambda state: {"messages": [model.invoke(state["messages"]).content]})
    builder.add_edge(START, "talk")
    builder.add_edge("talk", END)
    return builder.compile(checkpointer=scene.saver)


def first_of(replay: Replay) -> str:
    assert replay.first is not None
    return f"{replay.first.step} {replay.first.field} {replay.first.recorded} {replay.first.replayed}"


def plain(scene: Scene, model: Any, depth: int = 0) -> Any:
    """Return a graph whose node exposes its model's configurable fields.

    The node is nested in `depth` subgraphs.
    """
    builder: Any = StateGraph(MessagesState)
    inner: Any = RunnableLambda(lambda state: {"messages": [model.invoke(state["messages"]).content]})
    builder.add_node("talk", plain(scene, model, depth - 1) if depth else inner)
    builder.add_edge(START, "talk")
    return builder.compile(checkpointer=scene.saver)


@faces
@pytest.mark.parametrize("depth", [0, 1])
async def test_recorded_parameters_are_passed_to_configurable_models(memory: Scene, face: str, depth: int) -> None:
    await run(plain(memory, configured(0.1), depth), face, hello(), thread("t"))
    assert (await replayed(memory.saver, face, plain(memory, configured(0.9), depth), thread("t"))).same
    fixed = await replayed(memory.saver, face, plain(memory, configured(0.9, False), depth), thread("t"))
    assert first_of(fixed) == "1 temperature 0.1 0.9"
    for wanted, found in ((0.4, 0.4), (None, 0.9)):
        options: Any = {"configurable": {"temperature": wanted}}
        told = await replayed(memory.saver, face, plain(memory, configured(0.9), depth), thread("t"), **options)
        assert first_of(told) == f"1 temperature 0.1 {found}"


@faces
async def test_bind_passes_parameters_to_models_inside_nodes(memory: Scene, face: str) -> None:
    await run(talker(memory, configured(0.1)), face, hello(), thread("t"))
    graph = talker(memory, configured(0.9))
    assert first_of(await replayed(memory.saver, face, graph, thread("t"))) == "1 temperature 0.1 0.9"
    assert (await replayed(memory.saver, face, graph, thread("t"), bind=True)).same


@faces
async def test_replay_leaves_the_applications_configuration_to_the_caller(memory: Scene, face: str) -> None:
    """Neither model parameters nor metadata become configurable keys."""
    seen: list[Any] = []

    def node(state: Any, config: RunnableConfig) -> Any:
        seen.append([config["configurable"].get(name) for name in ("seed", "model")])
        return {"messages": [Model(script=PAYS, seed=7).invoke("hello").content]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=memory.saver)
    await run(graph, face, hello(), {**thread("t"), "metadata": {"model": "team-blue"}})
    assert (await replayed(memory.saver, face, graph, thread("t"))).same
    assert (await replayed(memory.saver, face, graph, thread("t"), configurable={"model": "mine"})).same
    assert seen == [[None, None], [None, None], [None, "mine"]]


@faces
async def test_replay_reports_another_served_model(memory: Scene, face: str) -> None:
    await two_turns(memory, face)
    other = Model(script=PAYS, served="fake-2")
    replay = await replayed(memory.saver, face, memory.agent(model=other), thread("t"))
    assert first_of(replay) == "1 served_model 'fake-1' 'fake-2'"
    assert replay.differences[1].field == "messages[1].response_metadata.model_name"
