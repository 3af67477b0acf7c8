"""A prune carries only the records of calls that led to a remaining checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from support.provenance.models import Failed, Fake
from support.provenance.runs import Scene, calling, graph_of, ns_of, thread_config
from support.savers import each_backend, each_face

from langgraph_keel import KeelSaver, ModelCall, StoreError
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.provenance.carryover import CARRYOVERS
from langgraph_keel.testing.faults import Counter, with_tap


@pytest.fixture
def saver(stores: Any, backend: str) -> Iterator[KeelSaver]:
    with stores[backend].open() as saver:
        yield saver
    stores[backend].wipe()


def run_id(scene: Scene, name: str) -> Any:
    return {**scene.config, "metadata": {"run_id": name}}


async def runs(scene: Scene, *names: str, served: str = "fake-1.0") -> Scene:
    """Run a node that calls a model, and a subgraph that does."""
    sub = graph_of(("x", calling(scene.model(served=served)))).compile()
    graph = scene.compiled(("a", calling(scene.model(served=served))), ("sub", sub))
    for name in names:
        await scene.run(graph, config=run_id(scene, name))
    return scene


async def prune(scene: Scene) -> None:
    if scene.face == "sync":
        scene.saver.prune([scene.thread])
    else:
        await scene.saver.aprune([scene.thread])


def told(records: Sequence[ModelCall]) -> list[Any]:
    # If a subgraph's last checkpoint and its node's are stored concurrently, either may be the first.
    ordered = sorted(records, key=lambda call: call.id)
    return [(call.id, call.step, call.path, call.usage, call.checkpoint_ns, call.checkpoint_id) for call in ordered]


def cells(saver: KeelSaver, thread: str) -> list[Any]:
    return list(saver.engine.run(saver.engine.session.store.list_cells(Shelf(thread, CARRYOVERS.kind), "", None, 100)))


@each_face
@each_backend
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_pruned_thread_keeps_its_records(saver: KeelSaver, face: str, durability: str) -> None:
    scene = await runs(Scene(saver, face, durability, "t"), "one", "two")
    before = await scene.check()
    assert len(before) == 4
    await prune(scene)
    assert len(await scene.listed()) == 1
    assert told(await scene.records()) == told(before)
    await runs(scene, "three")
    for _ in range(2):
        await prune(scene)
        after = await scene.records()
        assert told(after)[:4] == told(before)
        assert [each[0] for each in told(after)] == sorted(scene.told.ids)
    assert len(cells(saver, "t")) == 2


@each_face
@each_backend
async def test_a_prune_keeps_only_records_of_the_remaining_path(saver: KeelSaver, face: str) -> None:
    scene = await runs(Scene(saver, face, "sync", "t"), "one")
    head = (await scene.listed(thread_config("t", "")))[0].config
    kept = [call.id for call in await scene.records()]
    await runs(scene, "left")
    graph = scene.compiled(("a", calling(Fake())), ("b", lambda state: {}))
    await scene.run(graph, None, config=graph.update_state(head, {"said": ["again"]}, as_node="b"))
    assert len(await scene.records()) == 4
    await prune(scene)
    assert [call.id for call in await scene.records()] == kept


@each_face
@each_backend
async def test_a_prune_keeps_records_of_a_repaired_step(saver: KeelSaver, face: str) -> None:
    """If a failed task is repaired by hand, its record is stored only with its writes."""
    scene = Scene(saver, face, "sync", "t")

    def fail(state: Any) -> Any:
        scene.model().invoke("what?")
        raise Failed

    graph = scene.compiled(("a", fail), ("b", calling(scene.model())))
    await scene.fails(graph)
    graph.update_state(scene.config, {"said": ["so"]}, as_node="a")
    await scene.run(graph, None)
    before = await scene.records()
    assert len(before) == 2
    await prune(scene)
    assert told(await scene.records()) == told(before)


@each_face
@each_backend
async def test_a_prune_keeps_records_of_a_waiting_subgraph(saver: KeelSaver, face: str) -> None:
    scene = Scene(saver, face, "sync", "t")
    inner = graph_of(("x", calling(scene.model())), ("y", calling(scene.model()))).compile(interrupt_before=["y"])
    await scene.run(scene.compiled(("sub", inner)))
    before = await scene.records()
    assert [call.path for call in before] == ["sub|x"]
    await prune(scene)
    assert told(await scene.records()) == told(before)
    assert len([each for each in await scene.listed() if ns_of(each)]) == 1


@each_face
@each_backend
async def test_a_copy_of_a_pruned_thread_has_its_records(saver: KeelSaver, face: str) -> None:
    scene = await runs(Scene(saver, face, "sync", "t"), "one", "two")
    before = told(await scene.check())
    await prune(scene)
    if face == "sync":
        saver.copy_thread("t", "copy")
    else:
        await saver.acopy_thread("t", "copy")
    saver.delete_thread("t")
    copied = await scene.records(thread_config("copy"))
    assert (told(copied), {call.thread_id for call in copied}) == (before, {"copy"})
    assert await scene.records() == []
    assert cells(saver, "t") == []


@each_backend
@pytest.mark.filterwarnings("ignore::langgraph_keel.errors.DriftWarning")
async def test_deleted_runs_of_a_pruned_thread_leave_no_records(stores: Any, saver: KeelSaver, backend: str) -> None:
    scene = await runs(Scene(saver, "sync", "sync", "t"), "one", served="served-by-one")
    await prune(scene)
    await runs(scene, "two", served="served-by-two")
    saver.delete_for_runs(["one"])
    assert [call.served_model for call in await scene.records()] == ["served-by-two"] * 2
    assert cells(saver, "t") == []
    await prune(scene)
    assert [call.served_model for call in await scene.records()] == ["served-by-two"] * 2
    saver.delete_for_runs(["two"])
    assert (await scene.records(), cells(saver, "t"), await scene.listed()) == ([], [], [])
    if backend != "files":  # old bytes of a log remain in the file system
        assert b"served-by" not in stores[backend].raw()


@each_backend
async def test_deleting_a_run_keeps_records_of_other_runs(saver: KeelSaver) -> None:
    scene = await runs(Scene(saver, "sync", "sync", "t"), "one", "two")
    await prune(scene)
    await runs(scene, "three")
    saver.delete_for_runs(["two"])
    assert [each[0] for each in told(await scene.records())] == sorted([*scene.told.ids[:2], *scene.told.ids[4:]])


@each_backend
@pytest.mark.parametrize("verb", ["swap_cell", "remove_entries", "remove_rows"])
async def test_an_interrupted_prune_keeps_all_records(
    saver: KeelSaver, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await runs(Scene(saver, "sync", "sync", "t"), "one", "two")
    before = told(await scene.check())

    def cut_off(*_: Any) -> Any:
        raise StoreError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(type(saver.engine.session.store), verb, cut_off)
        with pytest.raises(StoreError, match="cut off"):
            saver.prune(["t"])
    assert told(await scene.records()) == before
    await prune(scene)
    assert told(await scene.records()) == before
    assert len(cells(saver, "t")) == 1


@each_backend
async def test_concurrent_prunes_keep_all_records(saver: KeelSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second prune and a run come just before the first removes entries."""
    scene = await runs(Scene(saver, "sync", "sync", "t"), "one", "two")
    store = type(saver.engine.session.store)
    remove = store.remove_entries
    others = ["other"]

    def removing(*given: Any) -> Any:
        if others:
            others.clear()
            graph = scene.compiled(("b", calling(scene.model())))
            graph.invoke({"said": ["hello"]}, scene.config)
            saver.prune(["t"])
        return (yield from remove(*given))

    monkeypatch.setattr(store, "remove_entries", removing)
    saver.prune(["t"])
    assert [each[0] for each in told(await scene.records())] == sorted(scene.told.ids)
    assert len(await scene.listed()) == 1


@each_backend
async def test_carrying_records_takes_two_extra_trips(stores: Any, backend: str) -> None:
    taken = []
    for provenance in (False, True):
        counter = Counter()
        with stores[backend].open(provenance=provenance) as saver:
            scene = await runs(Scene(with_tap(saver, counter), "sync", "sync", f"trips {provenance}"), "one", "two")
            counter.taken()
            scene.saver.prune([scene.thread])
            taken.append(counter.taken())
    assert taken[1] - taken[0] == 2


@each_backend
async def test_carried_records_take_little_space(saver: KeelSaver) -> None:
    scene = Scene(saver, "sync", "async", "t")
    model = scene.model(served="gpt-4o-2024-08-06", fingerprint="fp_50cad350e4")
    await scene.run(scene.compiled(*((f"n{number}", calling(model)) for number in range(24))))
    await prune(scene)
    [(_, cell)] = cells(saver, "t")
    assert len(await scene.records()) == 24
    assert len(cell.header) < 24 * 300
