"""Threads that end in a question or an error: the unfinished step is replayed."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support.provenance.replay_graphs import Items, Model, graph_of, noting, replayed
from support.provenance.replays import Scene, faces, is_same
from support.provenance.replays import memory as memory
from support.provenance.replays import scene as scene
from support.tool_graphs import resume, run, thread

from langgraph_keel import DriftDetected, MemorySaver, Replay


def asking(*questions: Any) -> Any:
    return lambda state: {"items": [str(interrupt(question)) for question in questions]}


def failing(error: type[Exception]) -> Any:
    def fail(state: Any) -> Any:
        raise error("no")

    return fail


def at_once(saver: Any, **nodes: Any) -> Any:
    builder: Any = StateGraph(Items)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


def differences(replay: Replay) -> list[str]:
    assert not replay.same
    return list(map(str, replay.differences))


@faces
async def test_replay_of_a_waiting_question(scene: Scene, face: str) -> None:
    def graph(*questions: Any) -> Any:
        return graph_of(scene.saver, ("a", noting("a")), ("ask", asking(*questions)), ("end", noting("b")))

    await run(graph("pay 10?", "sure?"), face, {"items": []}, thread("t"))
    await is_same(scene, face, graph("pay 10?", "sure?"))
    other = await replayed(scene.saver, face, graph("pay 99?", "sure?"), thread("t"))
    assert differences(other) == ["step 2, node 'ask': question[0]: was 'pay 10?', now 'pay 99?'"]
    await resume(graph("pay 10?", "sure?"), face, "yes", thread("t"))
    await is_same(scene, face, graph("pay 10?", "sure?"))
    other = await replayed(scene.saver, face, graph("pay 10?", "really?"), thread("t"))
    assert differences(other) == ["step 2, node 'ask': question[0]: was 'sure?', now 'really?'"]
    none = await replayed(scene.saver, face, graph("pay 10?"), thread("t"))
    assert differences(none) == ["step 2, node 'ask': question: was ['sure?'], now nothing"]
    await resume(graph("pay 10?", "sure?"), face, "yes", thread("t"))
    await is_same(scene, face, graph("pay 10?", "sure?"))
    other = await replayed(scene.saver, face, graph("pay 10?", "really?"), thread("t"))
    assert differences(other) == ["step 2, node 'ask': question[0]: was 'sure?', now 'really?'"]


@faces
async def test_replay_of_a_thread_that_ended_in_an_error(scene: Scene, face: str) -> None:
    def graph(node: Any) -> Any:
        return graph_of(scene.saver, ("a", noting("a")), ("fail", node))

    with pytest.raises(ValueError, match="no"):
        await run(graph(failing(ValueError)), face, {"items": []}, thread("t"))
    await is_same(scene, face, graph(failing(ValueError)))
    other = await replayed(scene.saver, face, graph(failing(KeyError)), thread("t"))
    assert differences(other) == ["step 2, node 'fail': error: was 'ValueError', now 'KeyError'"]
    assert isinstance(other.error, KeyError)
    asks = "step 2, node 'fail': question: was nothing, now ['why?']"
    for node, more in ((noting("b"), []), (asking("why?"), [asks])):
        replay = await replayed(scene.saver, face, graph(node), thread("t"))
        assert differences(replay) == ["step 2, node 'fail': error: was 'ValueError', now nothing", *more]


@faces
async def test_replay_compares_questions_of_parallel_tasks(memory: Scene, face: str) -> None:
    one = at_once(memory.saver, a=asking("a?"), b=asking("b?"), c=noting("c"))
    await run(one, face, {"items": []}, thread("t"))
    await is_same(memory, face, one)
    other = at_once(memory.saver, a=asking("a?"), b=asking("B?"), c=noting("c"))
    replay = await replayed(memory.saver, face, other, thread("t"))
    assert differences(replay) == ["step 1, node 'b': question[0]: was 'b?', now 'B?'"]


@faces
async def test_replay_of_a_question_in_a_subgraph(memory: Scene, face: str) -> None:
    def graph(question: str) -> Any:
        inner = graph_of(None, ("ask", asking(question)))
        return graph_of(memory.saver, ("team", inner))

    await run(graph("one?"), face, {"items": []}, thread("t"))
    await is_same(memory, face, graph("one?"))
    replay = await replayed(memory.saver, face, graph("two?"), thread("t"))
    assert differences(replay) == ["step 1, node 'team': question[0]: was 'one?', now 'two?'"]


@faces
async def test_replay_of_a_step_that_failed_twice(memory: Scene, face: str) -> None:
    graph = graph_of(memory.saver, ("fail", failing(ValueError)))
    with pytest.raises(ValueError, match="no"):
        await run(graph, face, {"items": []}, thread("t"))
    with pytest.raises(ValueError, match="no"):
        await run(graph, face, None, thread("t"))
    await is_same(memory, face, graph)
    head = next(iter(memory.saver.list(thread("t"))))
    alone = await replayed(memory.saver, face, graph, head.config)
    assert (alone.same, alone.steps, alone.first) == (True, 0, None)


@faces
async def test_replay_of_an_update_before_a_failed_run(memory: Scene, face: str) -> None:
    graph = graph_of(memory.saver, ("a", noting("a")), ("fail", failing(ValueError)))
    graph.update_state(thread("t"), {"items": ["begun"]}, as_node="a")
    with pytest.raises(ValueError, match="no"):
        await run(graph, face, None, thread("t"))
    await is_same(memory, face, graph)
    fine = graph_of(memory.saver, ("a", noting("a")), ("fail", noting("b")))
    replay = await replayed(memory.saver, face, fine, thread("t"))
    assert differences(replay) == ["step 1, node 'fail': error: was 'ValueError', now nothing"]


@faces
async def test_replay_ends_at_a_step_without_a_recorded_outcome(memory: Scene, face: str) -> None:
    """As after a crash, or if the caller did not read the stream to its end."""
    graph = graph_of(memory.saver, ("a", noting("a")), ("b", noting("b")))
    for event in graph.stream({"items": []}, thread("t"), stream_mode="checkpoints", durability="sync"):
        if event["metadata"]["step"] == 1:
            break
    replay = await replayed(memory.saver, face, graph, thread("t"))
    assert (replay.same, replay.differences, replay.steps) == (False, (), 3)
    assert replay.ended == "the outcome of step 2 is not recorded"


@faces
async def test_replay_ends_at_a_step_refused_because_of_drift(face: str) -> None:
    """A refusal because of drift is not an outcome of the graph."""
    with MemorySaver(on_drift="raise") as saver:
        for served in ("fake-1", "fake-2"):
            model = Model(served=served)
            graph = graph_of(saver, ("talk", lambda state, model=model: {"items": [model.invoke("so").text]}))
            if served == "fake-1":
                await run(graph, face, {"items": []}, thread("t"))
        with pytest.raises(DriftDetected):
            await run(graph, face, {"items": []}, thread("t"))
        replay = await replayed(saver, face, graph, thread("t"))
        assert [each.field for each in replay.differences] == ["served_model"]
        assert "the outcome of step" in str(replay.ended)


@faces
async def test_replay_of_a_static_interrupt(memory: Scene, face: str) -> None:
    graph = graph_of(memory.saver, ("a", noting("a")), ("b", noting("b")), interrupt_before=["b"])
    await run(graph, face, {"items": []}, thread("t"))
    await is_same(memory, face, graph)
    failing_then = graph_of(memory.saver, ("a", noting("a")), ("b", failing(ValueError)), interrupt_before=["b"])
    with pytest.raises(ValueError, match="no"):
        await run(failing_then, face, None, thread("t"))
    await is_same(memory, face, failing_then)
    replay = await replayed(memory.saver, face, graph, thread("t"))
    assert differences(replay) == ["step 2, node 'b': error: was 'ValueError', now nothing"]
    shorter = graph_of(memory.saver, ("a", noting("a")))
    replay = await replayed(memory.saver, face, shorter, thread("t"))
    assert differences(replay)[-1] == "step 2, node 'b': error: was 'ValueError', now nothing"


@faces
async def test_replay_exceeds_the_default_recursion_limit(memory: Scene, face: str) -> None:
    graph = graph_of(memory.saver, *[(f"n{number}", noting("n")) for number in range(40)])
    await run(graph, face, {"items": []}, {**thread("t"), "recursion_limit": 100})
    await is_same(memory, face, graph)
