"""Each model call is recorded once, at the checkpoint that it led to.

This holds for every kind of call and every backend. A call outside of a graph is not recorded.
"""

from __future__ import annotations

from asyncio import gather
from collections.abc import Iterator
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from secrets import token_hex
from threading import Thread
from typing import Any

import pytest
from support.approvals.resuming import runs_of
from support.provenance import graphs as provenance_graphs  # noqa: F401 - it fills RUNS
from support.provenance.graphs import piped
from support.provenance.runs import ASK, RUNS, START_WITH, Scene, both, calling, graph_of
from support.savers import BACKENDS, SAVERS, needing

from langgraph_keel import CheckpointConflict, KeelSaver, MemorySaver


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One saver of each kind for all tests; each test has its own threads."""
    savers: dict[str, Any] = {}
    with ExitStack() as stack:

        def open_saver(kind: str) -> KeelSaver:
            if kind not in savers:
                needing(kind, request)
                savers[kind] = stack.enter_context(SAVERS[kind](tmp_path_factory.mktemp(kind)))
            saver: KeelSaver = savers[kind]
            return saver

        yield open_saver


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("run", list(RUNS))
async def test_each_call_is_recorded_once_at_its_checkpoint(
    opened: Any, run: str, backend: str, face: str, durability: str
) -> None:
    scene = Scene(opened(backend), face, durability, f"{run} {token_hex(6)}")
    await RUNS[run](scene)
    assert await scene.check()


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_two_savers_in_one_process_record_their_own_calls(face: str) -> None:
    """Each saver records the calls of its own graphs, although both use one thread id."""
    with MemorySaver() as one, MemorySaver(provenance=False) as silent, MemorySaver() as other:
        scenes = [Scene(saver, face, "sync", "t") for saver in (one, other)]
        graphs = [scene.compiled(("a", calling(scene.model(), 2))) for scene in scenes]
        unseen = Scene(silent, face, "sync", "t")
        for _ in range(2):
            await gather(*[scene.run(graph) for scene, graph in zip(scenes, graphs, strict=True)])
            await unseen.run(unseen.compiled(("a", calling(unseen.model()))))
        assert [len(await scene.check()) for scene in scenes] == [4, 4]
        assert await unseen.records() == []


@pytest.mark.parametrize("is_named", [True, False], ids=["own thread", "same thread"])
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_an_inner_graph_with_its_own_saver_is_recorded_once(face: str, is_named: bool) -> None:
    """LangGraph uses the inner saver only if the call names a thread."""
    with MemorySaver() as outer, MemorySaver() as inner:
        around, within = Scene(outer, face, "sync", "t"), Scene(inner, face, "sync", "inner")
        sub = graph_of(("x", calling(within.model()))).compile(checkpointer=inner)
        named: Any = (within.config,) if is_named else ()

        def node(state: Any) -> Any:
            return {"said": [str(len(sub.invoke(state, *named)))]}

        async def anode(state: Any) -> Any:
            return {"said": [str(len(await sub.ainvoke(state, *named)))]}

        await around.run(around.compiled(("a", calling(around.model())), ("b", both(node, anode))))
        if not is_named:
            around.told.calls += within.told.calls
            within.told.calls.clear()
        assert len(await around.check()) == (1 if is_named else 2)
        assert len(await within.check()) == (1 if is_named else 0)


async def test_calls_of_two_runs_from_one_checkpoint_are_all_recorded() -> None:
    """The refused run's writes stay at the checkpoint where it started."""
    with MemorySaver() as saver:
        scene = Scene(saver, "async", "sync", "t")
        graph = scene.compiled(("a", calling(scene.model())))
        await scene.run(graph)
        runs_of(saver).patience = 0  # as runs of two processes, which do not wait for each other
        ends = await gather(scene.run(graph), scene.run(graph), return_exceptions=True)
        assert [type(end) for end in ends].count(CheckpointConflict) == 1
        records = await scene.records()
        assert sorted(call.id for call in records) == sorted(scene.told.ids)
        assert all(call.checkpoint_id for call in records)


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_sequence_in_a_graph_without_a_saver_is_not_recorded(face: str) -> None:
    """The call has only a thread name, which a graph with a saver may have, too."""
    with MemorySaver() as saver:
        scene, unseen = Scene(saver, face, "sync", "t"), Scene(saver, face, "sync", "t")
        graph = scene.compiled(("a", piped(scene)))
        await scene.run(graph)
        await unseen.run(graph_of(("a", piped(unseen))).compile(), durability=None)
        await scene.run(graph)
        assert len(await scene.check()) == 2


async def test_calls_of_sequences_in_two_concurrent_runs_are_recorded() -> None:
    """A sequence knows its task but not its run.

    So the call belongs to the run that stores the task's writes.
    """
    with MemorySaver() as saver:
        scene = Scene(saver, "async", "sync", "t")
        graph = scene.compiled(("a", piped(scene)))
        await scene.run(graph)
        runs_of(saver).patience = 0  # as runs of two processes, which do not wait for each other
        await gather(scene.run(graph), scene.run(graph), return_exceptions=True)
        records = await scene.records()
        assert sorted(call.id for call in records) == sorted(scene.told.ids)


def test_a_call_in_a_thread_without_the_context_is_not_recorded() -> None:
    """Only a copy of the context identifies its graph (see `provenance.capture`)."""
    with MemorySaver() as saver:
        scene = Scene(saver, "sync", "sync", "t")
        model = scene.model()

        def node(state: Any) -> Any:
            for work in (lambda: model.invoke(ASK), partial(copy_context().run, model.invoke, ASK)):
                thread = Thread(target=work)
                thread.start()
                thread.join()
            return {"said": ["two"]}

        scene.compiled(("a", node)).invoke(START_WITH, scene.config)
        assert [call.id for call in saver.provenance.read(scene.config)] == scene.told.ids[1:]
