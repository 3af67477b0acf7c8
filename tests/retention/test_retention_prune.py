"""`prune` by a policy on every backend: removals, the report, and interruptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.retention.threads import MEMORY, START, Written, call_of, name_of, prune, secret, secrets_in
from support.savers import each_backend, each_face

from langgraph_keel import InvalidInput, KeelSaver, Retention
from langgraph_keel.engine import removal as removing
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.rig import at


@pytest.fixture
def saver(stores: Any, backend: str) -> Iterator[KeelSaver]:
    with stores[backend].open() as saver:
        yield saver
    stores[backend].wipe()


@each_backend
@each_face
def test_a_policy_on_a_chat_with_branches_and_subgraphs(saver: KeelSaver, stores: Any, backend: str, face: str) -> None:
    thread = Written(saver)
    chat = thread.follow(6)
    branch = thread.put(chat[2])
    thread.ask(branch)
    thread.call(1, branch)
    lost = thread.put(chat[1])
    saver.labels.set(thread.config(chat[3]), "keep")
    thread.heads[""] = chat[-1]
    chat += thread.follow(4)
    before = thread.all()
    report = prune(saver, face, ["t"], Retention(last=2))
    after = thread.all()
    assert {address.checkpoint_id for address in after if not address.checkpoint_ns} == {
        chat[3],
        branch,
        *chat[-2:],
    }
    assert [address.checkpoint_ns for address in after if address.checkpoint_ns] == [call_of(1)]
    assert all(before[address] == told for address, told in after.items())
    assert saver.get_tuple(thread.config(lost)) is None
    assert secrets_in(stores[backend].raw(), thread.said) <= thread.expected(after)
    (told,) = report.threads
    assert (told.removed, told.kept, told.deleted, told.bytes) == (len(before) - 5, 5, False, None)
    assert str(report) == f"t: removed {len(before) - 5} of {len(before)} checkpoints\n" + (
        f"removed {len(before) - 5} checkpoints; 5 checkpoints stay"
    )
    assert not prune(saver, face, ["t"], Retention(last=2)).threads[0].is_changed


@each_backend
def test_memories_of_subgraphs_are_kept_for_each_kept_moment(saver: KeelSaver, backend: str) -> None:
    thread, ends, remembered = Written(saver), [], []
    for _ in range(4):
        thread.put(source="input")
        remembered.append([thread.remember() for _ in range(2)][-1])
        ends.append(thread.put())
    for _ in range(2):
        saver.prune(["t"], strategy=Retention(per="run"))
        assert thread.ids() == ends
        assert thread.ids(MEMORY) == remembered
    for end, memory in [(ends[1], remembered[1]), (ends[2], remembered[2]), (ends[0], remembered[0])]:
        saver.rewind(thread.config(end))
        found = saver.get_tuple(at("t", MEMORY))
        original = saver.get_tuple(at("t", MEMORY, memory))
        assert found
        assert original
        assert found.checkpoint["channel_values"] == original.checkpoint["channel_values"]


@each_backend
@each_face
@pytest.mark.parametrize("strategy", ["keep_latest", "delete", Retention(last=2, branch_points=True)], ids=str)
def test_a_dry_run_reports_the_same_removals_as_the_prune(
    saver: KeelSaver, stores: Any, backend: str, face: str, strategy: Any
) -> None:
    thread = Written(saver)
    chat = thread.follow(5)
    thread.put(chat[2])
    thread.remember(chat[1])
    thread.heads[""] = chat[-1]
    thread.put(snapshot=True)
    thread.follow(30)
    raw, before = stores[backend].raw(), thread.all()
    seen: list[Any] = []
    report = prune(saver, face, ["t", "nobody"], strategy, dry_run=True, on_progress=lambda *told: seen.append(told))
    dry, nobody = report.threads
    assert (str(nobody), nobody.is_changed, seen) == ("nobody: no such thread", False, [(1, 2), (2, 2)])
    assert stores[backend].raw() == raw
    assert thread.all() == before
    (done,) = prune(saver, face, ["t"], strategy).threads
    assert len(thread.all()) == dry.kept == done.kept
    assert dry.removed == done.removed == (None if strategy == "delete" else len(before) - dry.kept)
    assert dry.deleted == done.deleted == (strategy == "delete")
    assert dry.bytes is not None
    left = stores[backend].raw()
    gone = secrets_in(raw, thread.said) - secrets_in(left, thread.said)
    assert 0 < dry.bytes < len(raw) - len(left)
    assert len(gone) * len(secret(1)) < dry.bytes or backend == "files"  # files read many items as one row
    assert dry.rows == done.rows or backend == "files"


@each_backend
@pytest.mark.parametrize("lost_reply", [False, True], ids=["not sent", "reply lost"])
def test_a_prune_interrupted_anywhere_loses_nothing_and_can_be_completed(
    saver: KeelSaver, stores: Any, backend: str, lost_reply: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removing, "BATCH", 3)
    policy = Retention(last=3, per="run")
    thread = Written(saver)
    for turn in range(4):
        thread.put(source="input", snapshot=turn == 1)
        thread.remember()
        thread.follow(2)
    before = thread.all()
    whole = Written(saver, "whole")
    saver.copy_thread("t", "whole")
    saver.prune(["whole"], strategy=policy)
    expected = whole.ids(None)
    for trip in range(30):
        fault = Fault(trip, lost_reply=lost_reply)
        try:
            with_tap(saver, fault).prune(["t"], strategy=policy)
        except Injected:
            left = thread.all()
            assert all(before[address] == told for address, told in left.items())
            assert set(expected) <= set(thread.ids(None))
        if not fault.fired:
            break
    assert not fault.fired
    assert thread.ids(None) == expected
    assert {address: before[address] for address in thread.all()} == thread.all()
    saver.delete_thread("whole")
    assert secrets_in(stores[backend].raw(), thread.said) <= thread.expected(thread.all())


@each_backend
def test_checkpoints_stored_during_a_prune_are_kept(saver: KeelSaver, stores: Any, backend: str) -> None:
    for trip in range(6):
        stores[backend].wipe()
        thread = Written(stores[backend].open())
        thread.follow(5)
        with_tap(saver, Meanwhile(trip, lambda: thread.follow(2))).prune(["t"], strategy=Retention(last=2))  # noqa: B023
        assert thread.ids()[-2:] == [name_of(5), name_of(6)]
        shown = saver.get_tuple(at())
        assert shown
        assert shown.checkpoint["channel_values"]["list"] == thread.shown[name_of(6)]


@each_backend
def test_a_prune_takes_few_trips(saver: KeelSaver, backend: str) -> None:
    Written(saver).follow(5)
    counter = Counter()
    tapped = with_tap(saver, counter)
    tapped.prune(["t"])
    assert counter.taken() <= 7  # holds, labels, graph, entries, graph, rows, tool calls
    tapped.prune(["t"], strategy=Retention(last=1, labelled=False))
    assert counter.taken() <= 4  # holds, graph, rows that an interrupted prune may have left, tool calls


def test_within_counts_from_the_current_time() -> None:
    from langgraph_keel import MemorySaver

    with MemorySaver() as saver:
        thread = Written(saver)
        thread.follow(3)
        saver.prune(["t"], strategy=Retention(within=3600))
        assert thread.ids() == [name_of(2)]
        assert START.year == 2026
        again = Written(saver, "later", hours=24 * 365 * 50)
        again.follow(3)
        saver.prune(["later"], strategy=Retention(within=3600))
        assert again.ids() == [name_of(1), name_of(2)]


@each_backend
@each_face
def test_missing_threads_are_reported_as_not_deleted(saver: KeelSaver, backend: str, face: str) -> None:
    Written(saver).follow(2)
    saver.put_writes(at("late", "", name_of(7)), [("whole", secret(7))], "a task")
    threads, counter = ["nobody", "t", "late"], Counter()
    dry = prune(saver, face, threads, "delete", dry_run=True)
    done = prune(with_tap(saver, counter), face, (name for name in threads), "delete")
    assert counter.taken() <= 1 + 2 * len(threads) + (backend == "redis")
    for report in (dry, done):
        assert (report.deleted, report.removed, [each.deleted for each in report.threads]) == (
            1,
            0,
            [False, True, False],
        )
        assert str(report.threads[0]) == "nobody: no such thread"
    assert str(done).splitlines()[1] == "t: deleted"
    assert str(dry).splitlines()[1].startswith("t: would be deleted, ")
    assert not list(saver.threads())


def test_a_report_is_text_without_control_characters() -> None:
    from langgraph_keel import MemorySaver

    with MemorySaver() as saver:
        Written(saver, "\x1b[2Jt\u202e").follow(3)
        for report in (saver.prune(["\x1b[2Jt\u202e"], dry_run=True), saver.retention.sweep(Retention(last=1))):
            assert repr(report) == str(report)
            assert "\\x1b[2Jt\\u202e: " in str(report)
            assert "\x1b" not in str(report)
            assert "remove" in str(report).splitlines()[0]
        assert "dry_run" in report.to_dict()


def test_invalid_arguments_of_prune_are_refused() -> None:
    from langgraph_keel import MemorySaver

    with MemorySaver() as saver:
        Written(saver).follow(3)
        for threads, strategy, said in (
            (None, "keep_latest", "sweep"),
            ("t", Retention(), "one string"),
            (["t"], "latest", "Retention"),
            (["t"], {"last": 3}, "Retention"),
            (["t"], Retention(ttl=60), "for sweep"),
            (["t"], Retention(threads="t", last=1), "for sweep"),
            (["t"], Retention(), "say what to keep"),
            ({"configurable": {"thread_id": "t"}}, "keep_latest", "not a config"),
        ):
            with pytest.raises(InvalidInput, match=said):
                saver.prune(threads, strategy=strategy)  # type: ignore[arg-type]
        assert len(Written(saver).ids()) == 3
