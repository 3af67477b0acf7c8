"""Stored policies, `sweep`, and upkeep by a thread of the saver."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from support.places import Place
from support.retention.threads import START, Written, name_of, secrets_in
from support.saver_parts import driver_of
from support.savers import each_backend, each_face

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, Retention, SweepReport
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore
from langgraph_keel.retention import owners
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, Tap, with_tap

FIFTY_YEARS = 24 * 365 * 50


@pytest.fixture
def saver(stores: Any, backend: str) -> Iterator[KeelSaver]:
    with stores[backend].open() as saver:
        yield saver
    stores[backend].wipe()


def sweep(saver: KeelSaver, face: str, *args: Any, **options: Any) -> SweepReport:
    return (
        saver.retention.sweep(*args, **options)
        if face == "sync"
        else asyncio.run(saver.retention.asweep(*args, **options))
    )


def counts(saver: KeelSaver) -> dict[str, int]:
    return {info.thread_id: info.checkpoints for info in saver.threads()}


def four_threads(saver: KeelSaver) -> None:
    """Two chats and a job that ended long ago; a chat that will end in many years."""
    for name, hours in (("chat-1", 1), ("chat-2", 1), ("job", 1), ("chat-live", FIFTY_YEARS)):
        Written(saver, name, hours=hours).follow(4)


@each_backend
@each_face
def test_sweep_applies_stored_policies(saver: KeelSaver, face: str, backend: str) -> None:
    four_threads(saver)
    assert saver.retention.policies() == ()
    assert sweep(saver, face).looked == 0
    kept, long = Retention(threads="chat-*", last=2, idle=60), Retention(threads="job", ttl=timedelta(days=1))
    saver.retention.set_policy([Retention(last=9)])
    saver.retention.set_policy(kept, long, Retention(threads="j*", last=1))
    assert (
        saver.retention.policies()
        == asyncio.run(saver.retention.apolicies())
        == (kept, long, Retention(threads="j*", last=1))
    )
    seen: list[Any] = []
    dry = sweep(saver, face, dry_run=True)
    assert counts(saver) == {"chat-1": 4, "chat-2": 4, "job": 4, "chat-live": 4}
    done = sweep(saver, face, on_progress=lambda *told: seen.append(told))
    assert counts(saver) == {"chat-1": 2, "chat-2": 2, "chat-live": 4}
    assert seen == [(n, None) for n in range(1, done.looked + 1)]
    assert {(each.thread_id, each.removed, each.deleted) for each in dry.threads} == {
        ("chat-1", 2, False),
        ("chat-2", 2, False),
        ("job", None, True),
    }
    assert [(each.thread_id, each.deleted) for each in dry.threads] == [
        (each.thread_id, each.deleted) for each in done.threads
    ]
    assert (dry.deleted, done.deleted, done.failed) == (1, 1, {})
    assert (dry.removed, done.removed) == (4, 4)
    assert dry.bytes
    asyncio.run(saver.retention.aset_policy())
    assert saver.retention.policies() == ()
    assert str(sweep(saver, face)) == "no policies are stored: nothing was pruned (see retention.set_policy)"


@each_backend
def test_a_limited_sweep_continues_after_the_last_one(saver: KeelSaver, backend: str) -> None:
    four_threads(saver)
    assert [len(sweep(saver, "sync", Retention(last=1), limit=3).threads) for _ in range(3)] == [3, 1, 0]
    assert set(counts(saver).values()) == {1}


@each_backend
def test_concurrent_sweeps_do_not_fail(saver: KeelSaver, stores: Any, backend: str) -> None:
    for n in range(6):
        Written(saver, f"t{n}").follow(4)
        Written(saver, f"old{n}").follow(2)
    policies = [Retention(threads="old*", ttl=60), Retention(last=1)]
    with ThreadPoolExecutor(3) as pool:
        sweeps = [pool.submit(stores[backend].open().retention.sweep, policies) for _ in range(3)]
        assert all(not each.result().failed for each in sweeps)
    assert counts(saver) == {f"t{n}": 1 for n in range(6)}


@each_backend
def test_a_thread_that_becomes_active_is_not_deleted(saver: KeelSaver, stores: Any, backend: str) -> None:
    Written(saver, "t").follow(2)

    class Late(Tap):
        """Writes to the thread after it was listed."""

        def replied(self, request: Any, reply: Any) -> None:
            if isinstance(reply, (list, tuple)) and not done:
                done.append(True)
                Written(stores[backend].open(), "t", hours=FIFTY_YEARS, made=2).follow(2)

    done: list[bool] = []
    sweep(saver, "sync", Retention(ttl=60), dry_run=True)
    with_tap(saver, Late()).retention.sweep([Retention(ttl=60)])
    assert done
    assert counts(saver) == {"t": 4}


@each_backend
def test_a_checkpoint_stored_during_a_sweeps_deletion_is_kept(saver: KeelSaver, stores: Any, backend: str) -> None:
    left = []
    for trip in count():
        stores[backend].wipe()
        thread = Written(stores[backend].open(), hours=FIFTY_YEARS)
        thread.put()
        meanwhile = Meanwhile(trip, thread.put)
        report = with_tap(saver, meanwhile).retention.sweep(Retention(ttl=60))
        if not meanwhile.happened:
            break
        left.append((report.deleted, thread.ids()))
    assert (report.deleted, counts(saver)) == (1, {})
    both = [name_of(0), name_of(1)]
    if backend == "redis":  # one trip after the deletion removes shared data: the write starts a new epoch
        assert left.pop() == (1, both[1:])
    assert len(left) > 3
    assert left == [(0, both)] * len(left)


def test_the_age_of_copies_and_forks_counts_from_their_creation(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.open() as saver:
        thread = Written(saver, "old")
        chat = thread.follow(3)
        saver.copy_thread("old", "copied")
        saver.fork(thread.config(chat[1]), "forked")
        policies = [Retention(threads="old", ttl=60), Retention(threads="copied", ttl=60), Retention(idle=60, last=1)]
        assert {each.thread_id for each in saver.retention.sweep(policies, dry_run=True).threads} == {"old"}
        saver.retention.sweep(policies)
        assert counts(saver) == {"copied": 3, "forked": 2}
        monkeypatch.setattr(Session, "milliseconds", saver.engine.session.milliseconds + 90_000)
        saver.retention.sweep(policies)
        assert counts(saver) == {"forked": 1}
        saver.copy_thread("forked", "again")
        saver.delete_thread("again")
        assert saver.engine.run(owners.read_copy_time(saver.engine.session, "again")) is None


def test_recently_active_threads_are_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    with MemorySaver() as saver:
        for n in range(30):
            Written(saver, f"live{n}", hours=1).follow(3)
        Written(saver, "old").follow(1)
        monkeypatch.setattr(Session, "milliseconds", (START + timedelta(hours=2, seconds=30)).timestamp() * 1000)
        report = saver.retention.sweep([Retention(threads="old", ttl=60), Retention(idle=60, last=1)])
        assert (report.looked, report.deleted) == (1, 1)


def test_an_unreadable_thread_is_reported_and_kept() -> None:
    with MemorySaver() as saver:
        four_threads(saver)
        first = next(iter(driver_of(saver).state["job"].records.values()))
        first.entry = replace(first.entry, header=b"\x00broken")
        report = saver.retention.sweep(Retention(last=1))
        assert list(report.failed) == ["job"]
        assert counts(saver) == {"chat-1": 1, "chat-2": 1, "job": 4, "chat-live": 1}
        assert "job: failed" in str(report)
        with pytest.raises(CorruptStore):
            saver.prune(["job"])


def test_invalid_or_damaged_policies_are_refused() -> None:
    with MemorySaver() as saver:
        for wrong in ("keep_latest", [Retention(), 3], 7):
            with pytest.raises(InvalidInput, match="Retention"):
                saver.retention.sweep(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="Retention"):
            saver.retention.set_policy({"last": 3})  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="limit"):
            saver.retention.sweep(Retention(last=1), limit=-1)
        swap = saver.engine.session.store.swap_cell(
            Shelf(None, "retention"), "policies", None, Cell("a", b"\x00broken")
        )
        saver.engine.run(swap)
        with pytest.raises(CorruptStore, match="retention"):
            saver.retention.policies()
        saver.retention.set_policy(Retention(last=1))
        assert saver.retention.policies() == (Retention(last=1),)


@pytest.mark.parametrize(
    ("nothing", "said"),
    [
        (Retention(), "^this does not say what to keep: "),
        (Retention(labelled=False, waiting=False), "^this does not say what to keep: "),
        (Retention(idle=60), "^this says for which threads, but not what to keep: "),
        (Retention(threads="a*"), "^this says for which threads, but not what to keep: "),
    ],
    ids=str,
)
def test_empty_policies_are_refused_everywhere(nothing: Retention, said: str) -> None:
    with MemorySaver() as saver:
        Written(saver).follow(3)
        with pytest.raises(InvalidInput, match=said):
            saver.retention.set_policy(Retention(threads="b", last=1), nothing)
        with pytest.raises(InvalidInput, match=said):
            saver.retention.sweep(nothing)
        with pytest.raises(InvalidInput, match=r"say what to keep|for sweep"):
            saver.prune(["t"], strategy=nothing)
        assert (saver.retention.policies(), counts(saver)) == ((), {"t": 3})


@pytest.mark.parametrize(
    ("first", "later", "is_refused"),
    [
        ("*", "vip-*", True),
        ("*", "[ab]?", True),
        ("a", "a", True),
        ("a*", "ab*", True),
        ("*-*", "a-?", True),
        ("ab*", "a*", False),
        ("a?", "a*", False),
        ("*b*", "[ab]", False),
        ("[ab]*", "a", False),
        ("a", "b", False),
    ],
)
def test_an_unreachable_policy_is_refused(first: str, later: str, is_refused: bool) -> None:
    policies = [Retention(threads=first, last=3), Retention(threads=later, last=100)]
    refused = pytest.raises(InvalidInput, match=re.escape(f"the policy for {later!r} would never count"))
    with MemorySaver() as saver:
        for take in (saver.retention.set_policy, saver.retention.sweep):
            with refused if is_refused else nullcontext():
                take(policies)
        assert bool(saver.retention.policies()) != is_refused


@each_face
@pytest.mark.parametrize("wrong", [{"limit": -1}, {"limit": "3"}, {"policies": Retention()}], ids=str)
def test_sweep_checks_arguments_before_any_request(wrong: dict[str, Any], face: str) -> None:
    with MemorySaver() as saver:
        counter = Counter()
        with pytest.raises(InvalidInput):
            sweep(with_tap(saver, counter), face, **wrong)
        assert counter.taken() == 0


@each_backend
def test_a_sweep_completes_an_interrupted_prune(saver: KeelSaver, stores: Any, backend: str) -> None:
    """Its entries were removed and its rows were not; the sweep completes the prune."""
    thread = Written(saver)
    thread.follow(5, counters_since_delta_snapshot={})  # no delta channel, so no ghosts
    fault = Fault(None)
    tapped = with_tap(saver, fault)
    rows = saver.prune(["t"], strategy=Retention(last=2), dry_run=True).threads[0].rows
    fault.arm(4)  # holds, labels, graph and entries succeed, and the second read for the rows fails
    with pytest.raises(Injected):
        tapped.prune(["t"], strategy=Retention(last=2))
    assert counts(saver) == {"t": 2}
    before = len(stores[backend].raw())
    assert not saver.retention.sweep(Retention(last=2), dry_run=True).threads
    (told,) = saver.retention.sweep(Retention(last=2)).threads
    assert (told.thread_id, told.removed, told.kept) == ("t", 0, 2)
    assert told.rows == rows or backend == "files"
    assert "removed 0 of 2 checkpoints, and" in str(told)
    assert len(stores[backend].raw()) < before
    assert not saver.retention.sweep(Retention(last=2)).threads
    assert secrets_in(stores[backend].raw(), thread.said) <= thread.expected(thread.all())


def test_a_sweep_takes_one_trip_per_small_thread() -> None:
    """One trip per thread, two if it was ever pruned, and the trips that list threads."""
    with MemorySaver() as saver:
        for n in range(300):
            Written(saver, f"t{n}").follow(1)
        Written(saver, "pruned").follow(5)
        saver.prune(["pruned"])
        counter = Counter()
        tapped = with_tap(saver, counter)
        swept = tapped.retention.sweep(Retention(last=2))
        assert (swept.looked, swept.threads) == (301, ())
        about_requests = 10
        assert counter.taken() <= 301 + 1 + 2 + about_requests
