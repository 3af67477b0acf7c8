"""Copies between stores are complete, also after interruptions and other writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from golden import loaded, seen
from golden.kinds import TYPES
from hypothesis import settings
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from support.moving.copies import told, write_history
from support.moving.old_graphs import SCENES
from support.moving.old_stores import old_store
from support.places import Place, file_place, files_place, postgres_place, redis_place
from support.stores import MemoryUnderTest
from support.tiers import BACKENDS, sized
from test_golden import as_stored, differences

from langgraph_keel import (
    InvalidInput,
    KeelSaver,
    KeyMissing,
    Keyring,
    LocalKey,
    MemorySaver,
    NotFound,
    Retention,
    SqliteSaver,
)
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.testing import SaverMachine
from langgraph_keel.testing.faults import Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.machine import chat
from langgraph_keel.testing.rig import FACES, Rig, at, checkpoint_of

KEYRING = Keyring(LocalKey("k1", bytes(range(32))))


# -- every kind of record, around all backends -------------------------------------------------------------------------


def shown(saver: KeelSaver) -> Any:
    """Return the visible content, without sizes and the order of equal ids."""
    form = as_stored(seen(saver))
    form["listed"] = sorted(map(repr, form["listed"]))
    for thread in form["thread"].values():
        thread.pop("timeline")
        for moment in thread["moments"]:
            moment.pop("bytes")
    return form


def places(tmp_path: Path, postgres_url: str, redis_url: str, redis_prefix: str) -> Mapping[str, Place]:
    (tmp_path / "again").mkdir()
    return {
        "sqlite": file_place(tmp_path / "again"),
        "postgres": postgres_place(postgres_url),
        "redis": redis_place(redis_url, redis_prefix),
        "files": files_place(tmp_path / "again"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", sized([True], [True], [False, True]))
def test_copies_through_all_backends_change_nothing(
    tmp_path: Path, postgres_url: str, redis_url: str, redis_prefix: str, encrypted: bool
) -> None:
    ring = places(tmp_path, postgres_url, redis_url, redis_prefix)
    options: dict[str, Any] = {"types": TYPES}
    source = loaded("v1", "files", tmp_path).open(**options)
    was = shown(source)
    for kind in ("sqlite", "postgres", "redis", "files"):
        options = {"types": TYPES, **({"encryption": KEYRING} if encrypted else {})}
        target = ring[kind].open(**options)
        report = source.moving.copy_to(target, shared=True)
        assert report.is_done, report.to_dict()
        assert list(differences(was, shown(target))) == []
        assert target.moving.copy_to(source, mode="verify", shared=True).is_done
        source.close()
        source = target
    assert source.approvals.verify_audit().ok
    source.close()


@pytest.fixture
def store(stores: Any, backend: str) -> Iterator[Any]:
    stores[backend].wipe()
    yield stores[backend]
    stores[backend].wipe()


@pytest.fixture(scope="module")
def kept() -> Any:
    """A store in memory with every kind of record, which no test changes."""
    backend = MemoryUnderTest()
    write_history(backend)
    return backend


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("to", BACKENDS)
def test_copies_between_all_pairs_of_backends(stores: Any, kept: Any, backend: str, to: str) -> None:
    was = told(kept.open())
    stores[backend].wipe()
    with stores[backend].open() as source:
        assert kept.open().moving.copy_to(source, shared=True).is_done
        assert told(source) == was
        if to != backend:
            stores[to].wipe()
            with stores[to].open() as target:
                report = source.moving.copy_to(target, shared=True)
                assert report.is_done, report.to_dict()
                assert told(target) == was
                assert source.moving.copy_to(target, shared=True).copied == 0
                target.delete_thread("t")
    stores[backend].wipe()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_acopy_to_copies_the_same(store: Any, kept: Any, backend: str) -> None:
    source = kept.open()
    async with store.open() as target:
        assert (await source.moving.acopy_to(target, shared=True)).is_done
        assert (await source.moving.acopy_to(target, mode="verify", shared=True)).is_done
        assert await asyncio.to_thread(told, target) == await asyncio.to_thread(told, source)


def test_a_copy_continues_like_its_source(kept: Any) -> None:
    rigs = [Rig(MemoryUnderTest(), FACES["sync"]) for _ in range(2)]
    for rig in rigs:
        kept.open().moving.copy_to(rig.face.saver, shared=True)
        rig.continuing(at()).put({"list": chat(20), "n": 3}, checkpoint_id="new")
        rig.face.delete_for_runs(["run 0"])
        rig.face.rewind(list(rig.face.list(at()))[-1].config)
        rig.face.prune(["t"])
        rig.close()
    twin = [[found.checkpoint["channel_values"] for found in rig.face.list(at())] for rig in rigs]
    assert twin[0] == twin[1]


def test_copying_a_long_thread_takes_linear_bytes() -> None:
    source, target = MemoryUnderTest(), MemoryUnderTest()
    Rig(source, FACES["sync"]).author().follow([{"list": chat(n)} for n in range(200)])
    report = source.open().moving.copy_to(target.open(), shared=True)
    assert report.nbytes < 2 * len(source.raw())
    assert len(target.raw()) < 1.2 * len(source.raw())


# -- cut off, and done again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("lost_reply", [False, True], ids=["before", "after"])
def test_a_copy_interrupted_at_any_request_is_resumed(side: str, lost_reply: bool) -> None:
    backend = MemoryUnderTest()
    write_history(backend, 5)
    was, step = told(backend.open()), sized(23, 5, 1)
    fault, at_request = None, 0
    while fault is None or fault.fired:
        fault, target = Fault(at_request, lost_reply=lost_reply), MemoryUnderTest()
        pair = {"source": backend.open(), "target": target.open()}
        tapped = pair | {side: with_tap(pair[side], fault)}
        try:
            tapped["source"].moving.copy_to(tapped["target"], shared=True)
        except Injected:
            assert pair["source"].moving.copy_to(pair["target"], shared=True).is_done
        assert told(target.open()) == was
        at_request += step
    assert at_request > 60


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "memory"])
def test_an_interrupted_copy_is_resumed_on_every_backend(store: Any, kept: Any, backend: str) -> None:
    was = told(kept.open())
    for at_request in sized((40, 90), (10, 40, 90), tuple(range(5, 200, 7))):
        store.wipe()
        fault = Fault(at_request)
        with store.open() as target:
            with suppress(Injected):
                kept.open().moving.copy_to(with_tap(target, fault), shared=True)
            assert fault.fired or at_request > 130  # about the last request
            assert kept.open().moving.copy_to(target, shared=True).is_done
            assert told(target) == was


# -- while others write ------------------------------------------------------------------------------------------------


def go_on(rig: Rig) -> None:
    """Change a source: checkpoint, writes, prune, new and deleted threads, label."""
    rig.continuing(at()).put({"list": chat(30), "n": 9})
    rig.face.put_writes(at("stray", "", "none"), [("a", 2)], "task 2")
    rig.author("new").put({"n": 1})
    rig.face.delete_thread("delta")
    rig.face.saver.labels.set(rig.face.read(at()).config, "late")
    rig.face.prune(["t"])


@pytest.mark.parametrize("at_request", sized([20, 60], [0, 5, 20, 40, 60], list(range(0, 66, 2))))
def test_concurrent_changes_are_copied_by_a_later_pass(at_request: int) -> None:
    backend, target = MemoryUnderTest(), MemoryUnderTest()
    write_history(backend, 5)
    rig = Rig(backend, FACES["sync"])
    meanwhile = Meanwhile(at_request, lambda: go_on(rig))
    report = with_tap(backend.open(), meanwhile).moving.copy_to(target.open(), shared=True)
    assert meanwhile.happened
    assert (report.failed, report.exists, report.kept) == ({}, {}, [])
    if not report.is_done or at_request > 40:  # the next copy brings changes made after the last check
        assert backend.open().moving.copy_to(target.open(), shared=True).is_done
    assert backend.open().moving.copy_to(target.open(), mode="verify", shared=True).is_done
    rig.close()


def test_a_later_copy_updates_an_earlier_one() -> None:
    backend, target = MemoryUnderTest(), MemoryUnderTest()
    write_history(backend, 5)
    rig = Rig(backend, FACES["sync"])
    assert backend.open().moving.copy_to(target.open(), shared=True).is_done
    go_on(rig)
    report = backend.open().moving.copy_to(target.open(), shared=True)
    assert report.is_done
    assert report.gone == ["delta"]
    rig.face.delete_thread("new")
    assert backend.open().moving.copy_to(target.open(), shared=True).gone == ["delta", "new"]


def test_a_constantly_changing_thread_is_reported() -> None:
    backend, target = MemoryUnderTest(), MemoryUnderTest()
    rig = Rig(backend, FACES["sync"])
    author = rig.author()
    author.put({"n": 0})

    class Restless(Meanwhile):
        def sending(self, request: Any) -> None:
            author.put({"n": 1})

    report = with_tap(backend.open(), Restless(0, lambda: None)).moving.copy_to(target.open(), shared=True)
    assert report.changing == ["t"]
    assert not report.is_done


class CopyMachine(SaverMachine):
    """Random histories, copied repeatedly to a store that has the previous copy."""

    def make_backend(self) -> MemoryUnderTest:
        self.target = MemoryUnderTest()
        return MemoryUnderTest()

    @rule()
    def copy_store(self) -> None:
        report = self.savers[0].moving.copy_to(self.target.open(), shared=True)
        assert report.is_done, report.to_dict()

    @invariant()
    def _nothing(self) -> None:
        """Hypothesis requires an invariant."""

    def teardown(self) -> None:
        self.copy_store()
        with self.target.open() as target:
            assert self.savers[0].moving.copy_to(target, mode="verify", shared=True).is_done
            for info in self.savers[0].threads():
                theirs = [found.checkpoint for found in self.savers[0].list(at(info.thread_id, None))]
                assert [found.checkpoint for found in target.list(at(info.thread_id, None))] == theirs
        super().teardown()


@pytest.mark.slow
def test_random_histories_are_copied() -> None:
    count = sized(8, 16, 200)
    run_state_machine_as_test(
        CopyMachine, settings=settings(max_examples=count, stateful_step_count=30, deadline=None, derandomize=True)
    )


# -- what is in the way ------------------------------------------------------------------------------------------------


def test_a_different_thread_of_the_target_is_left_alone(kept: Any) -> None:
    target = MemoryUnderTest()
    Rig(target, FACES["sync"]).author().put({"mine": 1})
    report = kept.open().moving.copy_to(target.open(), shared=True)
    assert list(report.exists) == ["t"]
    assert "has a different thread with this id" in report.exists["t"]
    assert not report.is_done
    assert report.copied == 3
    found = target.open().get_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"mine": 1}
    engine = target.open().engine
    assert engine.run(engine.session.store.list_cells(Shelf("t", "later"), "", None, 9)) == []


def test_a_copy_of_another_thread_with_the_same_id_is_left_alone(tmp_path: Path) -> None:
    """Two stores, each with a thread "main", are copied to a third.

    The first copy is still unused.
    """
    first, second, target = (SqliteSaver(tmp_path / name) for name in ("first.db", "second.db", "target.db"))
    with first, second, target:
        for saver, name in ((first, "1"), (second, "2")):
            saver.put(at("main"), checkpoint_of(name, {"text": name}), {}, {"text": name})  # type: ignore[arg-type]
        assert first.moving.copy_to(target, shared=True).is_done
        for mode in ("look", "copy"):
            report = second.moving.copy_to(target, mode=mode)
            assert (report.copied, [*report.exists]) == (0, ["main"])
            assert "first.db" in report.exists["main"]
        assert [found.checkpoint["id"] for found in target.list(at("main"))] == ["1"]
        # A pruned thread is still the same thread.
        first.put(at("main", "", "1"), checkpoint_of("3", {"text": "3"}), {}, {"text": "3"})  # type: ignore[arg-type]
        first.prune(["main"])
        assert first.moving.copy_to(target, shared=True).is_done
        assert [found.checkpoint["id"] for found in target.list(at("main"))] == ["3"]


def test_a_copy_that_was_used_since_is_left_alone() -> None:
    backend, target = MemoryUnderTest(), MemoryUnderTest()
    write_history(backend, 5)
    assert backend.open().moving.copy_to(target.open(), shared=True).is_done
    Rig(target, FACES["sync"]).continuing(at()).put({"mine": 1})
    Rig(backend, FACES["sync"]).continuing(at()).put({"theirs": 1})
    report = backend.open().moving.copy_to(target.open(), shared=True)
    assert "was used since" in report.exists["t"]
    found = target.open().get_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"mine": 1}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_is_not_copied_to_itself(store: Any, backend: str) -> None:
    with store.open() as saver, store.open() as other:
        saver.put(at(), checkpoint_of("1", {}), {}, {})
        for target in (saver, other):
            with pytest.raises(InvalidInput, match="the same store"):
                saver.moving.copy_to(target, shared=True)
        assert [info.thread_id for info in saver.threads()] == ["t"]


def test_invalid_arguments_of_copy_to_are_refused() -> None:
    source, target = MemorySaver(), MemorySaver()
    with pytest.raises(InvalidInput, match="mode must be"):
        source.moving.copy_to(target, mode="all")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not one string"):
        source.moving.copy_to(target, "t")
    with pytest.raises(InvalidInput, match="not a dict"):
        source.moving.copy_to({})  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="'none'"):
        source.moving.copy_to(target, ["none"])


def test_selected_threads_are_copied_with_their_records(kept: Any) -> None:
    for asked in ({"thread_ids": ["t"]}, {"match": "t"}, {"label": "middle"}):
        for shared in (False, True):
            target = MemoryUnderTest()
            report = kept.open().moving.copy_to(target.open(), shared=shared, **asked)
            assert report.is_done
            assert report.left == ([] if shared else ["later", "retention"])
            assert [info.thread_id for info in target.open().threads()] == ["t"]
            engine = target.open().engine
            for owner, key in (("t", "key-"), (None, "key-t")):  # of a kind that no feature declares
                cells = engine.run(engine.session.store.list_cells(Shelf(owner, "later"), "", None, 9))
                assert [found for found, _ in cells] == ([key] if shared else [])
            assert target.open().retention.policies() == ()


def test_look_and_verify_write_nothing(kept: Any) -> None:
    target = MemoryUnderTest()
    report = kept.open().moving.copy_to(target.open(), mode="look")
    assert (report.copied, report.same, report.is_done) == (4, 0, False)
    report = kept.open().moving.copy_to(target.open(), mode="verify", shared=True)
    assert set(report.differs) == {"", "t", "delta", "stray", "a:b%{ü}/#1 \x1b[31m"}  # "" is for shared records
    assert target.raw() == b""


def test_verify_names_a_value_that_differs(tmp_path: Path, kept: Any) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "keel.db")) as target:
        assert kept.open().moving.copy_to(target, shared=True).is_done
        text = "SELECT i.key, i.body FROM items i JOIN channels c ON c.id = i.key >> 32 WHERE c.name = 'list'"
        (first, _), (_, body), *_ = target.engine.driver.send(_sql(f"{text} AND i.count = 1 ORDER BY i.key"))
        target.engine.driver.send(_sql("UPDATE items SET body = ? WHERE key = ?", body, first))
        report = kept.open().moving.copy_to(target, mode="verify", shared=True)
        assert list(report.differs) == ["t"]
        assert "'list'" in report.differs["t"]


def _sql(text: str, *given: Any) -> Any:
    from langgraph_keel.backends.sqlite.entries import Work

    return Work(lambda execute: execute(text, given).fetchall(), writes=True)


def test_claims_of_running_processes_are_not_copied() -> None:
    from langgraph_keel.engine.tables import Cells
    from langgraph_keel.runs.claims import CLAIMS, KEY, ClaimRecord

    source, target = MemorySaver(), MemorySaver()
    source.put(at(), checkpoint_of("1", {}), {}, {})  # type: ignore[arg-type]
    cells = Cells(source.engine.session, CLAIMS, "t")
    source.engine.run(cells.swap(KEY, None, ClaimRecord("host:1", "run", 1 << 50, "2026-01-01")))
    assert source.moving.copy_to(target, shared=True).is_done
    assert target.engine.run(Cells(target.engine.session, CLAIMS, "t").find(KEY)) is None


# -- sealed, and of tenants --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_copies_between_sealed_and_plain_stores(store: Any, kept: Any, backend: str) -> None:
    was = told(kept.open())
    with store.open(encryption=KEYRING) as sealed:
        assert kept.open().moving.copy_to(sealed, shared=True).is_done
        assert told(sealed) == was
        plain = MemoryUnderTest()
        assert sealed.moving.copy_to(plain.open(), shared=True).is_done
        assert told(plain.open()) == was
        other = MemoryUnderTest()
        assert sealed.moving.copy_to(other.open(encryption=Keyring(LocalKey("k2", bytes(range(1, 33)))))).is_done
    with store.open() as keyless:
        target = MemoryUnderTest()
        with pytest.raises(KeyMissing, match="encrypted"):
            keyless.moving.copy_to(target.open(), shared=True)
        assert list(target.open().threads()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_tenants_are_copied_with_the_store_or_one_by_one(store: Any, backend: str) -> None:
    source = MemorySaver()
    for number, saver in enumerate((source, source.for_tenant("acme"), source.for_tenant("zeta"))):
        saver.put(at(), checkpoint_of("1", {"n": number}, channel_versions={"n": 1}), {}, {"n": 1})  # type: ignore[arg-type]
        saver.retention.set_policy(Retention(last=number + 1))
    with store.open() as target:
        report = source.moving.copy_to(target, shared=True)
        assert report.is_done
        assert report.copied == 3
        for number, saver in enumerate((target, target.for_tenant("acme"), target.for_tenant("zeta"))):
            found = saver.get_tuple(at())
            assert found is not None
            assert found.checkpoint["channel_values"] == {"n": number}
            assert saver.retention.policies() == (Retention(last=number + 1),)
        assert source.for_tenant("acme").moving.copy_to(target.for_tenant("other")).is_done
        assert target.tenants.list() == ["acme", "other", "zeta"]


def test_threads_imported_by_both_stores_count_as_equal(tmp_path: Path) -> None:
    """Each store has recorded its own import time, with its own tokens."""
    with old_store("sqlite", tmp_path) as old:
        with old.open() as saver:
            SCENES["chat"][0](saver, "chat")
            SCENES["forks"][0](saver, "forks")
        with SqliteSaver(tmp_path / "a.db") as source, SqliteSaver(tmp_path / "b.db") as target:
            source.moving.import_from(old.url)
            target.moving.import_from(old.url)
            for mode in ("look", "copy", "copy", "verify"):
                report = source.moving.copy_to(target, mode=mode)
                assert (report.is_done, report.copied, report.same) == (True, 0, 2), report.to_dict()
            target.labels.set({"configurable": {"thread_id": "chat"}}, "good")
            report = source.moving.copy_to(target, shared=True)
            assert [*report.exists] == ["chat"]
            assert (
                "a record next to its checkpoints: labels"
                in source.moving.copy_to(target, mode="verify").differs["chat"]
            )
