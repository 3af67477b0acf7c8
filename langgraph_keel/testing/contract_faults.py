"""Faults: how often the store is asked, and what is left when a request or its reply gets lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from langgraph_keel.testing.faces import Face, SyncFace
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.histories import TREE, chat
from langgraph_keel.testing.rig import Rig, RigFixtures, at, checkpoint_of, exact, id_of, values_of

STATES: list[dict[str, Any]] = [
    {"n": 0, "list": chat(9, 800), "tree": dict(reversed(TREE.items()))},
    *({"n": n, "list": chat(n), "tree": {**TREE, "n": n}} for n in range(1, 36)),
]
"""Of which the later ones share much with each other, and nothing with the first."""
LAST = f"{len(STATES):08}"

CHANGES: dict[str, Callable[[Face], object]] = {
    "put": lambda face: face.put(at("t", "", LAST), checkpoint_of("new", STATES[3])),
    "put again": lambda face: face.put(at("t", "", "00000035"), checkpoint_of(LAST, STATES[-1])),
    "put_writes": lambda face: face.put_writes(at("t", "", LAST), [("a", "new")], "new task"),
    "delete_thread": lambda face: face.delete_thread("t"),
    "copy_thread": lambda face: face.copy_thread("t", "new"),
    "prune": lambda face: face.prune(["t"]),
    "delete_for_runs": lambda face: face.delete_for_runs(["odd"]),
}
"""Requests that change something; each may be repeated (but a copy: its target then exists)."""


def told(face: Face) -> Any:
    """Return all that can be read."""
    return exact([[found.checkpoint, found.metadata, found.pending_writes, found.config] for found in face.list(None)])


def newest_of(face: Face) -> Any:
    """Return the latest of every thread."""
    latest = [face.get_tuple(at(thread)) for thread in ("t", "new")]
    return exact([found and [found.checkpoint, found.metadata] for found in latest])


def intended_by(change: str, rig: Rig) -> Any:
    """Return what there is to read after a change that nothing disturbed."""
    refill(rig)
    CHANGES[change](rig.open())
    return told(rig.open())


def refill(rig: Rig) -> None:
    """Start again with a new store and one thread in it."""
    rig.backend.wipe()
    author = rig.author(face=rig.open())
    for n, state in enumerate(STATES, 1):
        author.put(state, checkpoint_id=f"{n:08}", metadata={"run_id": "odd" if n % 2 else "even"})
    author.face.put_writes(author.config, [("a", "b")], "task")


def written_on(face: Face) -> None:
    """Go on where the thread is, with items of every kind."""
    run = face.read(at()).config
    for n in (3, 4):
        state = {"list": chat(n, 700), "tree": {**TREE, "meanwhile": n}, "text": f"{n} " * 50}
        run = face.put(run, checkpoint_of(f"meanwhile {n}", state))


def pruned_and_written_on(face: Face) -> None:
    """Leave nothing of the thread's items, then go on."""
    face.put(face.read(at()).config, checkpoint_of("empty", {}))
    face.prune(["t"])
    written_on(face)


def begun_anew(face: Face) -> None:
    """Delete the thread and begin another one of the same name."""
    face.delete_thread("t")
    for n in range(1, 5):
        face.put(at(), checkpoint_of(f"anew {n}", STATES[n]))


MEANWHILE: dict[str, Callable[[Face], object]] = {
    "written on": written_on,
    "pruned and written on": pruned_and_written_on,
    "begun anew": begun_anew,
    "deleted": lambda face: face.delete_thread("t"),
    "copied": lambda face: face.copy_thread("t", "new"),
}
"""What other savers may do while one removes."""


class FaultContract(RigFixtures):
    """Round trips, and errors between a saver and its store."""

    def test_one_round_trip_each(self, warm: Rig) -> None:
        counter = Counter()
        face = warm.on(with_tap(warm.face.saver, counter))
        author = warm.author(face=face)
        for state in STATES:
            author.put(state)
            assert counter.taken() == 1
            face.put_writes(author.config, [("a", 1), ("b", 2)], "task")
            assert counter.taken() == 1
        for config in (at(), at("t", "", "00000003"), at("unknown")):
            face.get_tuple(config)
            assert counter.taken() == 1
        face.delta_history(at(), ["list", "a"])
        assert counter.taken() == 1

    def test_one_round_trip_each_without_a_memo(self, warm: Rig) -> None:
        config = warm.author().put(STATES[3])
        calls: list[Callable[[Face], object]] = [
            lambda face: face.get_tuple(at()),
            lambda face: face.get_tuple(config),
            lambda face: face.put(config, checkpoint_of("new", STATES[5])),
            lambda face: face.put_writes(config, [("a", 1)], "task"),
            lambda face: face.delete_thread("t"),
        ]
        for call in calls:
            counter = Counter()
            call(warm.on(with_tap(warm.backend.open(), counter)))
            assert counter.taken() == 1

    def test_a_listing_is_read_page_by_page(self, warm: Rig) -> None:
        warm.author().follow([{"n": n} for n in range(120)])
        counter = Counter()
        face = warm.on(with_tap(warm.face.saver, counter))
        assert len(list(face.list(at(), limit=10))) == 10
        assert counter.taken() <= 2
        listing = face.list(at())
        next(listing)
        assert counter.taken() <= 2
        assert len(list(listing)) == 119
        assert counter.taken() <= 6

    @pytest.mark.parametrize("change", CHANGES)
    def test_an_error_before_sending_changes_nothing(self, warm: Rig, change: str) -> None:
        refill(warm)
        before, raw = told(warm.open()), warm.backend.raw()
        face = warm.on(with_tap(warm.backend.open(), Fault(0)))
        with pytest.raises(Injected):
            CHANGES[change](face)
        assert (told(warm.open()), warm.backend.raw()) == (before, raw)
        CHANGES[change](face)
        assert told(face) == told(warm.open()) == intended_by(change, warm)

    @pytest.mark.parametrize("change", [name for name in CHANGES if name != "copy_thread"])
    def test_a_lost_reply_leaves_all_or_nothing(self, warm: Rig, change: str) -> None:
        intended = intended_by(change, warm)
        refill(warm)
        face = warm.on(with_tap(warm.backend.open(), Fault(0, lost_reply=True)))
        before = told(warm.open())
        with pytest.raises(Injected):
            CHANGES[change](face)
        assert told(warm.open()) in (before, intended)
        CHANGES[change](face)
        assert told(face) == told(warm.open()) == intended

    @pytest.mark.parametrize("lost_reply", [False, True])
    @pytest.mark.parametrize("change", ["prune", "delete_for_runs"])
    def test_removal_may_break_anywhere(self, warm: Rig, change: str, lost_reply: bool) -> None:
        intended = intended_by(change, warm)
        for trip in range(1, 12):
            refill(warm)
            before = told(warm.open())
            fault = Fault(trip, lost_reply=lost_reply)
            try:
                CHANGES[change](warm.on(with_tap(warm.backend.open(), fault)))
            except Injected:
                assert told(warm.open()) in (before, intended)
            CHANGES[change](warm.open())
            assert told(warm.open()) == intended
            if not fault.fired:
                return
        raise AssertionError("a removal takes more than a dozen round trips")

    @pytest.mark.parametrize("action", MEANWHILE)
    @pytest.mark.parametrize("change", ["prune", "delete_for_runs"])
    def test_others_may_write_while_one_removes(self, warm: Rig, change: str, action: str) -> None:
        refill(warm)
        MEANWHILE[action](warm.open())
        intended = newest_of(warm.open())  # as if the others had acted before
        for trip in range(1, 12):
            refill(warm)
            meanwhile = Meanwhile(trip, partial(MEANWHILE[action], SyncFace(warm.backend.open)))
            CHANGES[change](warm.on(with_tap(warm.backend.open(), meanwhile)))
            if not meanwhile.happened:
                return
            assert newest_of(warm.open()) == intended
            told(warm.open())  # all that is left can be read
            CHANGES[change](warm.open())
            assert newest_of(warm.open()) == intended
        raise AssertionError("a removal takes more than a dozen round trips")

    @pytest.mark.parametrize("lost_reply", [False, True])
    def test_a_failed_put_teaches_the_memo_nothing_wrong(self, warm: Rig, lost_reply: bool) -> None:
        warm.author().put(STATES[0])
        fault = Fault(lost_reply=lost_reply)
        face = warm.on(with_tap(warm.backend.open(), fault))
        run = warm.continuing(at(), face)
        for n, state in enumerate(STATES[1:]):
            if n % 3 == 0:
                fault.arm()
                with pytest.raises(Injected):
                    run.put({**state, "list": [*state["list"], "never acknowledged"]}, checkpoint_id=f"next {n}")
            run.put(state, checkpoint_id=f"next {n}")
            assert exact(values_of(face.read(at()))) == exact(state)
        assert exact([values_of(found) for found in warm.open().list(at())]) == exact(STATES[::-1])

    @pytest.mark.parametrize("lost_reply", [False, True])
    def test_a_failed_read_teaches_the_memo_nothing_wrong(self, warm: Rig, lost_reply: bool) -> None:
        warm.author().put(STATES[0])
        fault = Fault(lost_reply=lost_reply)
        face = warm.on(with_tap(warm.backend.open(), fault))
        for state in STATES[1:]:
            fault.arm()
            with pytest.raises(Injected):
                face.get_tuple(at())
            warm.continuing(at(), face).put(state)
        assert exact([values_of(found) for found in warm.open().list(at())]) == exact(STATES[::-1])

    def test_a_failed_delete_teaches_the_memo_nothing_wrong(self, warm: Rig) -> None:
        for lost_reply in (False, True):
            author = warm.author(face=warm.on(with_tap(warm.backend.open(), fault := Fault(lost_reply=lost_reply))))
            author.follow(STATES[:20])
            fault.arm()
            with pytest.raises(Injected):
                author.face.delete_thread("t")
            author.put(STATES[20])
            assert exact(values_of(warm.open().read(at()))) == exact(STATES[20])
            author.face.delete_thread("t")
            assert told(warm.open()) == exact([])

    def test_a_lost_reply_of_a_run_is_no_conflict(self, warm: Rig) -> None:
        warm.author().put({"list": chat(2)})
        fault = Fault(lost_reply=True)
        run = warm.continuing(at(), warm.on(with_tap(warm.backend.open(), fault)))
        base = run.config
        fault.arm()
        with pytest.raises(Injected):
            run.put({"list": chat(3)}, checkpoint_id="again")
        assert run.config == base
        run.put({"list": chat(3)}, checkpoint_id="again")
        run.put({"list": chat(4)}, checkpoint_id="next")
        assert [id_of(found) for found in warm.face.list(at())] == ["next", "again", "00000001"]
