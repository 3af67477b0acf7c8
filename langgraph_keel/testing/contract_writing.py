"""Pending writes, two savers on one store, round trips, and faults."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel._langgraph import ERROR, ERROR_SOURCE_NODE, INTERRUPT, RESUME, SCHEDULED
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Header, pack_header
from langgraph_keel.engine.records import Graph, NewEntry, Stored, Writes
from langgraph_keel.errors import CheckpointConflict, InvalidConfig, InvalidInput
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.machine import TREE, chat
from langgraph_keel.testing.rig import Face, Rig, RigFixtures, SyncFace, at, checkpoint_of, exact, id_of, values_of

STATES: list[dict[str, Any]] = [
    {"n": 0, "list": chat(9, 800), "tree": dict(reversed(TREE.items()))},
    *({"n": n, "list": chat(n), "tree": {**TREE, "n": n}} for n in range(1, 36)),
]
"""States. All except the first have much in common."""
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
"""Changing requests. Each may be repeated, except a copy, whose target then exists."""


def writes_of(found: CheckpointTuple) -> list[tuple[str, str, Any]]:
    """Return the pending writes of a tuple."""
    return list(found.pending_writes or ())


class WritesContract(RigFixtures):
    """`put_writes`."""

    def test_writes_are_returned_in_the_order_langgraph_applies_them(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("b", 1), ("a", 2)], "task 2", "~1")
        rig.face.put_writes(config, [("c", 3)], "task 9", "~0")
        rig.face.put_writes(config, [("d", 4), ("e", 5), ("f", 6)], "task 1", "~1")
        rig.face.put_writes(config, [("g", 7)], "task 0", "~2")
        assert writes_of(rig.face.read(config)) == [
            ("task 9", "c", 3),
            ("task 1", "d", 4),
            ("task 1", "e", 5),
            ("task 1", "f", 6),
            ("task 2", "b", 1),
            ("task 2", "a", 2),
            ("task 0", "g", 7),
        ]

    def test_ten_writes_of_a_task_keep_their_order(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("list", n) for n in range(12)], "task")
        assert [value for _, _, value in writes_of(rig.face.read(config))] == list(range(12))

    def test_written_values_are_read_back_exactly(self, rig: Rig) -> None:
        config = rig.author().put({})
        values = [None, (1, 2), {"a": b"x"}, AIMessage("hello", id="m"), "z" * 5000, [True, 1, 1.0]]
        rig.face.put_writes(config, [("channel", value) for value in values], "task")
        assert exact([value for _, _, value in writes_of(rig.face.read(config))]) == exact(values)

    def test_put_writes_without_writes_stores_nothing(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [], "task")
        assert writes_of(rig.face.read(config)) == []

    def test_a_repeated_regular_write_keeps_the_first_value(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("a", "first")], "task")
        rig.face.put_writes(config, [("a", "second"), ("b", "more")], "task")
        assert writes_of(rig.face.read(config)) == [("task", "a", "first"), ("task", "b", "more")]

    @pytest.mark.parametrize("channel", [ERROR, SCHEDULED, INTERRUPT, RESUME])
    def test_a_repeated_special_write_is_replaced(self, rig: Rig, channel: str) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [(channel, "first")], "task")
        rig.face.put_writes(config, [("a", 1)], "task")
        rig.face.put_writes(config, [(channel, "second")], "task")
        assert writes_of(rig.face.read(config)) == [("task", channel, "second"), ("task", "a", 1)]

    def test_the_last_of_several_resumes_in_one_call_counts(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [(RESUME, "one"), (RESUME, "two")], "task")
        assert writes_of(rig.face.read(config)) == [("task", RESUME, "two")]

    def test_one_call_may_mix_special_and_regular_writes(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("a", 1), (INTERRUPT, "ask"), ("b", 2)], "task")
        rig.face.put_writes(config, [("a", 9), (INTERRUPT, "ask again"), ("b", 9)], "task")
        expected = [("task", INTERRUPT, "ask again"), ("task", "a", 1), ("task", "b", 2)]
        assert writes_of(rig.face.read(config)) == expected

    def test_special_channels_without_a_fixed_index_are_regular(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [(ERROR_SOURCE_NODE, "node"), (ERROR, "boom")], "task")
        rig.face.put_writes(config, [(ERROR_SOURCE_NODE, "other")], "task")
        found = writes_of(rig.face.read(config))
        assert found == [("task", ERROR, "boom"), ("task", ERROR_SOURCE_NODE, "node")]

    def test_writes_may_come_before_their_checkpoint(self, rig: Rig) -> None:
        rig.face.put_writes(at("t", "", "c1"), [("a", 1)], "task 2", "~2")
        assert rig.face.get_tuple(at("t", "", "c1")) is None
        assert rig.face.get_tuple(at()) is None
        assert list(rig.face.list(at())) == []
        rig.face.put_writes(at("t", "", "c1"), [("a", 2)], "task 1", "~1")
        rig.face.put(at(), checkpoint_of("c1", {"a": 0}))
        assert writes_of(rig.face.read(at())) == [("task 1", "a", 2), ("task 2", "a", 1)]

    def test_writes_may_come_long_after_their_checkpoint(self, rig: Rig) -> None:
        first, second, _ = rig.author().follow([{"a": 1}, {"a": 2}, {"a": 3}])
        rig.face.put_writes(first, [("a", "late")], "task")
        assert writes_of(rig.face.read(first)) == [("task", "a", "late")]
        assert writes_of(rig.face.read(second)) == []
        assert [writes_of(found) for found in rig.face.list(at())] == [[], [], [("task", "a", "late")]]

    def test_storing_a_checkpoint_again_keeps_its_writes(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"a": [1]})
        config = author.put({"a": [1, 2]})
        rig.face.put_writes(config, [("a", 1)], "task")
        rig.face.put(rig.face.read(config).parent_config or at(), checkpoint_of("00000002", {"a": [1, 2]}))
        assert writes_of(rig.face.read(config)) == [("task", "a", 1)]
        assert writes_of(rig.face.read(at())) == [("task", "a", 1)]

    def test_writes_belong_to_one_checkpoint_of_one_namespace(self, rig: Rig) -> None:
        for thread, ns in [("t", ""), ("t", "sub"), ("u", "")]:
            rig.author(thread, ns).put({}, checkpoint_id="same")
            rig.face.put_writes(at(thread, ns, "same"), [("where", [thread, ns])], "task")
        assert writes_of(rig.face.read(at("t", "sub"))) == [("task", "where", ["t", "sub"])]
        assert writes_of(rig.face.read(at("u"))) == [("task", "where", ["u", ""])]

    def test_writes_require_a_checkpoint_id(self, rig: Rig) -> None:
        with pytest.raises(InvalidConfig, match="checkpoint_id"):
            rig.face.put_writes(at(), [("a", 1)], "task")

    def test_modifying_a_written_value_later_does_not_change_the_store(self, rig: Rig) -> None:
        config = rig.author().put({})
        value = {"parts": [1]}
        rig.face.put_writes(config, [("a", value)], "task")
        value["parts"].append(2)
        assert writes_of(rig.face.read(config)) == [("task", "a", {"parts": [1]})]


class ConflictContract(RigFixtures):
    """Lost updates, branches, and memos while other savers change the store."""

    def test_the_second_of_two_concurrent_runs_is_refused(self, warm: Rig) -> None:
        base = warm.author().put({"list": chat(3)})
        winner, loser = warm.continuing(at(), warm.open()), warm.continuing(at(), warm.open())
        won = winner.put({"list": chat(4)})
        before = warm.backend.raw()
        with pytest.raises(CheckpointConflict) as refused:
            loser.put({"list": [*chat(3), *chat(1, 40)]}, checkpoint_id="lost")
        error = refused.value
        assert (error.expected, error.found, error.rejected) == (id_of(base), id_of(won), "lost")
        assert all(str(name) in str(error) for name in ("'t'", id_of(base), id_of(won), "lost"))
        assert warm.backend.raw() == before
        found = [values_of(found) for found in warm.face.list(at())]
        assert exact(found) == exact([{"list": chat(4)}, {"list": chat(3)}])

    def test_a_refused_run_may_read_and_run_again(self, warm: Rig) -> None:
        warm.author().put({"list": chat(3)})
        winner, loser = warm.continuing(at(), warm.open()), warm.continuing(at(), warm.open())
        winner.put({"list": chat(4)})
        with pytest.raises(CheckpointConflict):
            loser.put({"list": [*chat(3), *chat(1, 40)]})
        again = warm.continuing(at(), loser.face)
        again.put({"list": [*chat(4), *chat(1, 40)]})
        assert exact(values_of(warm.face.read(at()))) == exact({"list": [*chat(4), *chat(1, 40)]})

    def test_two_runs_on_an_empty_thread_conflict(self, warm: Rig) -> None:
        start = at()
        start["recursion_limit"] = 25  # as LangGraph configures every run
        warm.face.put(start, checkpoint_of("first", {"a": 1}))
        with pytest.raises(CheckpointConflict) as refused:
            warm.face.put(start, checkpoint_of("second", {"a": 2}))
        assert (refused.value.expected, refused.value.found) == (None, "first")
        assert values_of(warm.face.read(at())) == {"a": 1}

    def test_a_put_to_a_concurrently_deleted_thread_conflicts(self, warm: Rig) -> None:
        warm.author().put({"list": chat(3)})
        run = warm.continuing(at())
        warm.open().delete_thread("t")
        with pytest.raises(CheckpointConflict) as refused:
            run.put({"list": chat(4)})
        assert refused.value.found is None
        assert warm.face.get_tuple(at()) is None

    def test_namespaces_do_not_conflict(self, warm: Rig) -> None:
        for ns in ("", "sub", "other"):
            warm.author("t", ns).put({"ns": ns})
        runs = [warm.continuing(at("t", ns), warm.open()) for ns in ("", "sub", "other")]
        for _ in range(2):
            for run in runs:
                run.put({"ns": "next"})
        assert [len(list(warm.face.list(at("t", ns)))) for ns in ("", "sub", "other")] == [3, 3, 3]

    def test_a_conflict_names_the_namespace(self, warm: Rig) -> None:
        warm.author("t", "sub").put({})
        winner, loser = warm.continuing(at("t", "sub")), warm.continuing(at("t", "sub"))
        winner.put({})
        with pytest.raises(CheckpointConflict) as refused:
            loser.put({})
        assert refused.value.checkpoint_ns == "sub"
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)

    def test_a_run_of_many_steps_never_conflicts_with_itself(self, rig: Rig) -> None:
        rig.author().put({"n": 0})
        run = rig.continuing(at())
        run.follow([{"n": n} for n in range(5)])
        assert values_of(rig.face.read(at())) == {"n": 4}

    def test_the_losing_run_is_kept_as_a_branch(self, warm: Rig) -> None:
        base = warm.author().put({"list": chat(3)})
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        won = winner.put({"list": chat(4)})
        lost = loser.put({"list": [*chat(3), *chat(1, 40)]})
        assert warm.face.read(at()).config == won
        assert warm.face.read(lost).parent_config == base
        further = loser.put({"list": [*chat(3), *chat(2, 40)]})
        assert warm.face.read(at()).config == won
        assert warm.face.read(further).parent_config == lost
        won = winner.put({"list": chat(5)})
        assert warm.face.read(at()).config == won
        assert exact(values_of(warm.face.read(further))) == exact({"list": [*chat(3), *chat(2, 40)]})
        assert [id_of(found) for found in warm.face.list(at())] == [f"0000000{n}" for n in (5, 4, 3, 2, 1)]

    def test_entries_stored_off_the_trunk_stay_off_the_trunk(self, warm: Rig) -> None:
        def write(checkpoint_id: str, parent: str | None, *, is_beside: bool) -> None:
            address = Address("t", "", checkpoint_id)
            codec = warm.face.saver.engine.session.codec
            header = pack_header(Header({"v": 4, "ts": checkpoint_id}, {}, {}), codec, address)
            checks: dict[str, Any] = {"checked": True, "on_conflict": "beside"} if is_beside else {}
            new = NewEntry(address, parent, header, {}, updated_at=f"2026-01-0{checkpoint_id}", run_id="r", **checks)
            assert isinstance(warm.face.verb("write_entry", new), Stored)

        def latest() -> str | None:
            return id_of(warm.face.get_tuple(at()))

        write("1", None, is_beside=True)
        write("2", None, is_beside=True)
        assert latest() == "2"  # no trunk is left, so the newest of all
        write("3", "1", is_beside=False)
        write("4", "3", is_beside=True)
        assert latest() == "3"
        graph: Graph = warm.face.verb("read_graph", "t")
        assert [(node.address.checkpoint_id, node.parent, node.is_beside, node.updated_at) for node in graph.nodes] == [
            ("1", None, True, "2026-01-01"),
            ("2", None, True, "2026-01-02"),
            ("3", "1", False, "2026-01-03"),
            ("4", "3", True, "2026-01-04"),
        ]
        assert [node.address.checkpoint_id for node in graph.nodes if node.is_head] == ["3"]
        assert [info.updated_at for info in warm.face.saver.threads()] == ["2026-01-04"]

    def test_writes_are_listed_in_the_order_of_their_arrival(self, warm: Rig) -> None:
        for n in range(12):
            for thread, ns in (("t", ""), ("t", "sub"), ("other", "")):
                warm.face.put_writes(at(thread, ns, "1"), [("n", n)], f"task {11 - n}", f"~{n % 3}")
        found: list[Writes] = []
        while page := warm.face.verb("list_writes", "t", found[-1] if found else None, 5):
            found += page
        for ns in ("", "sub"):
            tasks = [each.batch.task_id for each in found if each.address == Address("t", ns, "1")]
            assert tasks == [f"task {11 - n}" for n in range(12)]
        assert len(found) == 24

    def test_a_branch_can_be_continued_on_purpose(self, warm: Rig) -> None:
        warm.author().put({"n": 0})
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        winner.put({"n": "won"})
        lost = loser.put({"n": "lost"})
        adopted = warm.continuing(lost).put({"n": "adopted"})
        assert warm.face.read(at()).config == adopted

    def test_intended_forks_never_conflict(self, rig: Rig) -> None:
        first, second = rig.author().follow([{"n": 1}, {"n": 2}])
        named, made = rig.continuing(first), rig.author()
        made.config = at("t", "", id_of(first))
        for author in (named, made, named):
            stored = author.put({"n": "fork"})
            assert rig.face.read(at()).config == stored
        assert rig.face.read(second).parent_config == first

    def test_a_listed_checkpoint_may_be_forked(self, rig: Rig) -> None:
        rig.author().follow([{"n": n} for n in range(3)])
        author = rig.author()
        for found in list(rig.face.list(at())):
            author.config = found.config
            author.put({"n": "fork"})
        assert len(list(rig.face.list(at()))) == 6

    def test_a_put_repeated_after_a_lost_acknowledgement_is_accepted(self, rig: Rig) -> None:
        rig.author().put({"list": chat(3)})
        run = rig.continuing(at())
        before = run.config
        for _ in range(3):
            run.config = before
            run.put({"list": chat(4)}, checkpoint_id="again")
        run.put({"list": chat(5)})
        found = list(rig.face.list(at()))
        assert [id_of(each) for each in found] == ["00000002", "again", "00000001"]
        assert exact(values_of(found[1])) == exact({"list": chat(4)})

    def test_values_pruned_by_another_saver_are_stored_again(self, warm: Rig) -> None:
        author = warm.author()
        for n in (3, 4):
            author.put({"list": chat(n), "tree": {**TREE, "n": n}})
        other = warm.open()
        warm.continuing(at(), other).put({"list": [], "tree": {}})
        other.prune(["t"])
        author.config = at("t", "", id_of(other.read(at())))
        author.put({"list": chat(5), "tree": {**TREE, "n": 5}})
        found = warm.open().read(at())
        assert exact(values_of(found)) == exact({"list": chat(5), "tree": {**TREE, "n": 5}})
        author.put({"list": chat(6), "tree": {**TREE, "n": 6}})
        found = warm.open().read(at())
        assert exact(values_of(found)) == exact({"list": chat(6), "tree": {**TREE, "n": 6}})

    def test_a_recreated_thread_does_not_reuse_values_of_the_deleted_one(self, warm: Rig) -> None:
        stale = warm.author()
        stale.follow([{"list": chat(n), "tree": {**TREE, "n": n}} for n in range(40)])
        other = warm.open()
        other.delete_thread("t")
        warm.author(face=other).follow([{"list": chat(n, 500), "tree": {"n": n}} for n in range(40)])
        stale.config = at("t", "", id_of(other.read(at())))
        stale.put({"list": chat(41), "tree": {**TREE, "n": 41}})
        listed = [values_of(found) for found in warm.open().list(at())]
        assert exact(listed[0]) == exact({"list": chat(41), "tree": {**TREE, "n": 41}})
        assert exact(listed[1:]) == exact([{"list": chat(n, 500), "tree": {"n": n}} for n in range(39, -1, -1)])

    def test_an_unknown_conflict_policy_is_refused(self, warm: Rig) -> None:
        with pytest.raises(InvalidInput, match="on_conflict"):
            warm.open(on_conflict="last write wins")


def told(face: Face) -> Any:
    """Return all readable data."""
    return exact([[found.checkpoint, found.metadata, found.pending_writes, found.config] for found in face.list(None)])


def newest_of(face: Face) -> Any:
    """Return the latest checkpoint of every thread."""
    latest = [face.get_tuple(at(thread)) for thread in ("t", "new")]
    return exact([found and [found.checkpoint, found.metadata] for found in latest])


def intended_by(change: str, rig: Rig) -> Any:
    """Return all readable data after an undisturbed change."""
    refill(rig)
    CHANGES[change](rig.open())
    return told(rig.open())


def refill(rig: Rig) -> None:
    """Start again with an empty store and one thread."""
    rig.backend.wipe()
    author = rig.author(face=rig.open())
    for n, state in enumerate(STATES, 1):
        author.put(state, checkpoint_id=f"{n:08}", metadata={"run_id": "odd" if n % 2 else "even"})
    author.face.put_writes(author.config, [("a", "b")], "task")


def written_on(face: Face) -> None:
    """Continue the thread, with items of every kind."""
    run = face.read(at()).config
    for n in (3, 4):
        state = {"list": chat(n, 700), "tree": {**TREE, "meanwhile": n}, "text": f"{n} " * 50}
        run = face.put(run, checkpoint_of(f"meanwhile {n}", state))


def pruned_and_written_on(face: Face) -> None:
    """Remove all items of the thread, then continue it."""
    face.put(face.read(at()).config, checkpoint_of("empty", {}))
    face.prune(["t"])
    written_on(face)


def begun_anew(face: Face) -> None:
    """Delete the thread and create another with the same name."""
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
"""Actions of other savers during a removal."""


class FaultContract(RigFixtures):
    """Round trips, and errors between a saver and its store."""

    most_trips = 12
    """Maximum number of round trips of a removal."""

    def test_each_operation_takes_one_round_trip(self, warm: Rig) -> None:
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

    def test_each_operation_takes_one_round_trip_without_a_memo(self, warm: Rig) -> None:
        config = warm.author().put(STATES[3])
        calls: list[Callable[[Face], object]] = [
            lambda face: face.get_tuple(at()),
            lambda face: face.get_tuple(config),
            lambda face: face.put(config, checkpoint_of("new", STATES[5])),
            lambda face: face.put_writes(config, [("a", 1)], "task"),
        ]
        counter = Counter()
        for call in calls:
            call(warm.on(with_tap(warm.backend.open(), counter)))
            assert counter.taken() == 1
        warm.on(with_tap(warm.backend.open(), counter)).delete_thread("t")
        assert counter.taken() == 2  # one more trip checks for holds

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
        for trip in range(1, self.most_trips):
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
        raise AssertionError("a removal takes too many round trips")

    @pytest.mark.parametrize("action", MEANWHILE)
    @pytest.mark.parametrize("change", ["prune", "delete_for_runs"])
    def test_others_may_write_during_a_removal(self, warm: Rig, change: str, action: str) -> None:
        refill(warm)
        MEANWHILE[action](warm.open())
        intended = newest_of(warm.open())  # as if the other saver had acted before
        for trip in range(1, self.most_trips):
            refill(warm)
            meanwhile = Meanwhile(trip, partial(MEANWHILE[action], SyncFace(warm.backend.open)))
            CHANGES[change](warm.on(with_tap(warm.backend.open(), meanwhile)))
            if not meanwhile.happened:
                return
            assert newest_of(warm.open()) == intended
            told(warm.open())  # all remaining data can be read
            CHANGES[change](warm.open())
            assert newest_of(warm.open()) == intended
        raise AssertionError("a removal takes too many round trips")

    @pytest.mark.parametrize("lost_reply", [False, True])
    def test_a_failed_put_leaves_the_memo_correct(self, warm: Rig, lost_reply: bool) -> None:
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
    def test_a_failed_read_leaves_the_memo_correct(self, warm: Rig, lost_reply: bool) -> None:
        warm.author().put(STATES[0])
        fault = Fault(lost_reply=lost_reply)
        face = warm.on(with_tap(warm.backend.open(), fault))
        for state in STATES[1:]:
            fault.arm()
            with pytest.raises(Injected):
                face.get_tuple(at())
            warm.continuing(at(), face).put(state)
        assert exact([values_of(found) for found in warm.open().list(at())]) == exact(STATES[::-1])

    def test_a_failed_delete_leaves_the_memo_correct(self, warm: Rig) -> None:
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

    def test_a_lost_reply_of_a_put_is_not_a_conflict(self, warm: Rig) -> None:
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
