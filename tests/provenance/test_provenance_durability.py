"""Records live as long as their checkpoints: after crashes, in copies and forks."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command
from support.places import Place
from support.process_children import exit_code, forked
from support.provenance.graphs import asking, failing
from support.provenance.models import Fake
from support.provenance.runs import START_WITH, Scene, calling, graph_of, ns_of, recorder_of, thread_config
from support.savers import each_backend, each_face

from langgraph_keel import KeelSaver


@pytest.fixture(autouse=True)
def _no_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed data cannot be searched."""
    monkeypatch.setattr("langgraph_keel.engine.encoding.bodies.WORTHWHILE", 1 << 40)


# -- a crash -----------------------------------------------------------------------------------------------------------


def two_steps(saver: KeelSaver, path: Path | None = None) -> Any:
    def note() -> None:
        if path:
            path.write_text(path.read_text() + "a" if path.exists() else "a")

    return graph_of(("a", calling(Fake(hook=note))), ("b", calling(Fake()))).compile(checkpointer=saver)


def die_before(saver: KeelSaver, step: int) -> None:
    """Kill this process between the writes of the step's task and its checkpoint."""
    written, put, put_writes = threading.Event(), saver.put, saver.put_writes

    def noting(config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        put_writes(config, writes, task_id, task_path)
        if task_path.endswith(", a"):
            written.set()

    def dying(config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if metadata["step"] == step:
            assert written.wait(20)
            os.kill(os.getpid(), signal.SIGKILL)
        return put(config, checkpoint, metadata, new_versions)

    async def anoting(config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        await asyncio.to_thread(noting, config, writes, task_id, task_path)

    async def adying(*args: Any) -> Any:
        return await asyncio.to_thread(dying, *args)

    replaced: Any = {"put": dying, "put_writes": noting, "aput": adying, "aput_writes": anoting}
    vars(saver).update(replaced)


def live_and_die(place: Place, face: str, durability: str, path: Path) -> None:
    with place.open() as saver:
        die_before(saver, 1)
        scene = Scene(saver, face, durability, "t")
        asyncio.run(scene.run(two_steps(saver, path)))


@each_face
@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_records_survive_a_kill_between_writes_and_checkpoint(
    place: Place, tmp_path: Path, face: str, durability: str
) -> None:
    assert exit_code(forked(live_and_die, place, face, durability, tmp_path / "calls")) == -signal.SIGKILL
    with place.open() as saver:
        scene = Scene(saver, face, durability, "t")
        (head, *_) = await scene.listed()
        (record,) = await scene.records()
        assert (record.node, record.step, record.checkpoint_id) == ("a", 1, head.checkpoint["id"])
        assert head.metadata["step"] == 0
        await scene.run(two_steps(saver, tmp_path / "calls"), None)
        first, second = await scene.records()
        steps = {each.checkpoint["id"]: each.metadata["step"] for each in await scene.listed()}
        assert first.id == record.id
        assert (first.node, steps[str(first.checkpoint_id)]) == ("a", 1)
        assert (second.node, steps[str(second.checkpoint_id)]) == ("b", 2)
        assert [info.models for info in saver.threads()] == [("fake", "fake-1.0")]
    assert (tmp_path / "calls").read_text() == "a"  # and the model was called once


@each_face
@each_backend
async def test_records_survive_a_resume_in_another_process(stores: Any, backend: str, face: str) -> None:
    """Another saver on the same store knows no more than another process does."""
    with stores[backend].open() as one, stores[backend].open() as other:
        scene = Scene(one, face, "sync", f"two {face}")
        nodes = ("ask", asking(scene, "?")), ("luck", calling(failing(scene, times=1)))
        await scene.run(scene.compiled(*nodes))
        scene.saver, scene.unfinished = other, {scene.told.calls[0].id}
        await scene.check()
        await scene.fails(scene.compiled(*nodes), Command(resume="yes"))
        scene.saver, scene.unfinished = one, {scene.told.calls[2].id}
        await scene.check()
        scene.unfinished.clear()
        await scene.run(scene.compiled(*nodes), None)
        records = await scene.check()
    assert [(call.node, call.error) for call in records] == [("ask", None)] * 2 + [("luck", "Failed"), ("luck", None)]


def told_in_a_child(place: Place) -> None:
    with place.open() as saver:
        two_steps(saver).invoke(START_WITH, thread_config("child"))
        assert len(saver.provenance.read(thread_config("child"))) == 2


def test_a_forked_child_has_its_own_records_in_memory(place: Place) -> None:
    with place.open() as saver:
        recorder = recorder_of(saver)
        waiting = threading.Event()
        stop = threading.Event()

        def hold() -> None:
            with recorder.known._lock:  # private: held, as by a thread that is just recording something
                waiting.set()
                stop.wait(20)

        thread = threading.Thread(target=hold)
        thread.start()
        waiting.wait(20)
        child = forked(told_in_a_child, place)
        assert exit_code(child) == 0
        stop.set()
        thread.join()
        two_steps(saver).invoke(START_WITH, thread_config("parent"))
        assert len(saver.provenance.read(thread_config("parent"))) == 2
        assert len(saver.provenance.read(thread_config("child"))) == 2


# -- as long as the checkpoints ----------------------------------------------------------------------------------------


async def two_runs(saver: KeelSaver, face: str, thread: str, served: str = "fake-1.0") -> Scene:
    scene = Scene(saver, face, "sync", thread)
    sub = graph_of(("x", calling(scene.model(served=served)))).compile()
    graph = scene.compiled(("a", calling(scene.model(served=served))), ("sub", sub))
    for number in range(2):
        config = thread_config(thread)
        config["metadata"] = {"run_id": f"{thread} {number}"}
        await scene.run(graph, config=config)
    return scene


@each_face
@each_backend
async def test_a_copy_has_the_records(stores: Any, backend: str, face: str) -> None:
    with stores[backend].open() as saver:
        scene = await two_runs(saver, face, f"copy {face}")
        records = await scene.check()
        target = f"a copy {face}"
        await saver.acopy_thread(scene.thread, target)
        copied = await scene.records(thread_config(target))
        assert {call.thread_id for call in copied} == {target}
        assert [(call.id, call.checkpoint_ns, call.checkpoint_id) for call in copied] == [
            (call.id, call.checkpoint_ns, call.checkpoint_id) for call in records
        ]


@each_face
@each_backend
async def test_a_pruned_thread_is_found_by_its_models(stores: Any, backend: str, face: str) -> None:
    with stores[backend].open() as saver:
        scene = await two_runs(saver, face, f"prune {face}")
        last = (await scene.listed(thread_config(scene.thread, "")))[0]
        led = [call.id for call in await scene.records(last.config)]
        saver.prune([scene.thread])
        kept = {(ns_of(each), each.checkpoint["id"]) for each in await scene.listed()}
        left = [call for call in await scene.records() if (call.checkpoint_ns, call.checkpoint_id) in kept]
        assert [call.id for call in left if call.checkpoint_ns == ""] == led
        assert next(iter(saver.list(last.config, filter={"model": "fake-1.0"})))


@each_backend
async def test_a_deleted_thread_leaves_no_records(stores: Any, backend: str) -> None:
    store = stores[backend]
    with store.open() as saver:
        scene = Scene(saver, "sync", "sync", "deleted")
        graph = scene.compiled(("a", calling(scene.model(served="served-to-be-deleted"))), ("ask", asking(scene, "?")))
        await scene.run(graph)
        assert b"served-to-be-deleted" in store.raw()
        saver.delete_thread("deleted")
        assert await scene.records() == []
        if backend != "files":  # old bytes of a log remain in the file system
            assert b"served-to-be-deleted" not in store.raw()
        scene.told.calls.clear()
        await scene.run(scene.compiled(("a", calling(scene.model()))))  # another thread of the same name
        assert len(await scene.check()) == 1


@each_face
@each_backend
async def test_records_of_a_deleted_run_are_deleted(stores: Any, backend: str, face: str) -> None:
    with stores[backend].open() as saver:
        scene = await two_runs(saver, face, f"run {face}")
        before = await scene.records()
        saver.delete_for_runs([f"{scene.thread} 1"])
        left = await scene.records()
        kept = {(ns_of(each), each.checkpoint["id"]) for each in await scene.listed()}
        assert [call.id for call in left] == [
            call.id for call in before if (call.checkpoint_ns, call.checkpoint_id) in kept
        ]
        assert len(left) == 2
        gone = {call.id for call in before} - {call.id for call in left}
        await scene.run(scene.compiled(("a", calling(scene.model()))))
        assert gone.isdisjoint(call.id for call in await scene.records())


async def test_unstored_records_of_a_deleted_run_are_discarded(stores: Any) -> None:
    with stores["memory"].open() as saver:
        scene = Scene(saver, "sync", "sync", "waiting")
        graph = scene.compiled(("a", calling(failing(scene, times=1))))
        config = {**scene.config, "metadata": {"run_id": "bad"}}
        with pytest.raises(Exception, match="SECRET"):
            await scene.run(graph, config=config)
        saver.delete_for_runs(["bad"])
        assert await scene.listed() == []
        await scene.run(graph)
        assert [call.error for call in await scene.records()] == [None]
