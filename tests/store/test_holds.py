"""Data of a person on hold is not removed until the release; both are audited."""

from __future__ import annotations

from asyncio import to_thread
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.cli_threads import keel, keel_json
from support.retention.people import config, ids, say, store
from support.savers import each_backend, each_face

from langgraph_keel import (
    Hold,
    InvalidInput,
    Keyring,
    LocalKey,
    MemorySaver,
    NotFound,
    OnHold,
    Retention,
    SqliteSaver,
    open_saver,
)
from langgraph_keel.engine.session import Session
from langgraph_keel.retention.holds import hash_of
from langgraph_keel.testing.faults import Counter, Fault, Injected, with_tap

__all__ = ["store"]
CASE, BOSS = "case 17", "legal"


async def called(room: Any, face: str, verb: str, *args: Any, **options: Any) -> Any:
    if face == "sync":
        return await to_thread(getattr(room, verb), *args, **options)
    return await getattr(room, f"a{verb}")(*args, **options)


def everything(saver: Any) -> tuple[list[Any], list[Any]]:
    return list(saver.list(None)), saver.store().search((), limit=1000)


def runs_of(saver: Any) -> list[str]:
    return [str(found.metadata["run_id"]) for found in saver.list(None) if "run_id" in found.metadata]


def prepare(saver: Any) -> None:
    """Store threads and items of Ann and Bob, with one of each in common."""
    for thread, owner in (("of ann", "ann"), ("of bob", "bob"), ("joint", "ann"), ("joint", "bob"), ("joint", "bob")):
        say(saver, thread, owner)
    notes = saver.store()
    notes.put(("notes", "ann"), "a", {"n": 1})
    notes.put(("notes", "ann"), "joint", {"n": 2}, owner="bob")
    notes.put(("notes",), "b", {"n": 3}, owner="bob")


@each_backend
@each_face
async def test_data_of_a_person_on_hold_is_kept_until_the_release(store: Any, backend: str, face: str) -> None:
    with store.open() as saver:
        await to_thread(prepare, saver)
        keep, run = saver.retention, {"run_id": "run 1", "thread_id": "of ann", "user_id": "ann"}
        await to_thread(saver.put, {"configurable": run}, *_last_of(saver))
        before = await to_thread(everything, saver)
        hold = await called(keep, face, "hold", "ann", reason=CASE, by=BOSS)
        assert (hold.user_id, hold.reason, hold.by) == ("ann", CASE, BOSS)
        assert await called(keep, face, "hold", "ann", reason=CASE, by="someone else") == hold
        for what in ("threads", "data", "all"):
            for dry_run in (True, False):
                with pytest.raises(OnHold, match=f"'ann' is on hold .*{CASE}.*{BOSS}"):
                    await called(keep, face, "erase", "ann", what=what, dry_run=dry_run)
        with pytest.raises(OnHold, match=f"thread 'of ann' is on hold .*{CASE}"):
            await called(saver, face, "prune", ["of bob", "of ann"])
        with pytest.raises(OnHold, match="thread 'joint'"):
            await called(saver, face, "prune", ["joint"], strategy="delete")
        with pytest.raises(OnHold, match="thread 'of ann'"):
            await called(saver, face, "delete_thread", "of ann")
        with pytest.raises(OnHold, match="thread 'of ann'"):
            await called(saver, face, "delete_for_runs", ["run 1"])
        assert await to_thread(everything, saver) == before
        report = await called(keep, face, "sweep", Retention(last=1))
        assert sorted(report.failed) == ["joint", "of ann"]
        assert all(CASE in why for why in report.failed.values())
        assert [each.thread_id for each in report.threads] == ["of bob"]
        await to_thread(say, saver, "of bob", "bob")
        receipt = await called(keep, face, "erase", "bob", what="all", shared="delete")
        assert (receipt.threads, list(receipt.failed), receipt.items, receipt.complete) == (
            ("of bob",),
            ["joint"],
            1,
            False,
        )
        assert receipt.problems == ("an item is left that also belongs to a person on hold",)
        assert await to_thread(ids, saver) == ["joint", "of ann"]
        assert await called(keep, face, "release", "ann", by="judge") == [hold]
        receipt = await called(keep, face, "erase", "ann", what="all", shared="delete")
        assert (receipt.threads, receipt.items, receipt.complete) == (("joint", "of ann"), 2, True)
        assert await to_thread(everything, saver) == ([], [])
        events = await to_thread(saver.approvals.audit)
        held, released = ([event.content for event in events if event.kind == kind] for kind in ("held", "released"))
        person = {"user": hash_of("ann"), "reason": CASE, "thread_id": ""}
        assert (held, released) == ([{**person, "by": BOSS}], [{**person, "by": "judge"}])
        assert (await to_thread(saver.approvals.verify_audit)).ok
        assert b"ann" not in await to_thread(store.raw)


def _last_of(saver: Any) -> tuple[Any, Any, Any]:
    found = saver.get_tuple(config("of ann"))
    checkpoint = {**found.checkpoint, "id": "f" * 8 + found.checkpoint["id"][8:]}
    return checkpoint, {"source": "loop", "step": 9}, {}


@each_backend
def test_expired_items_of_a_person_on_hold_are_kept(store: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as saver:
        notes = saver.store()
        for owner in ("ann", "bob"):
            notes.put(("notes",), owner, {}, ttl=1, owner=owner)
        saver.retention.hold("ann", reason=CASE, by=BOSS)
        later = datetime.now(UTC) + timedelta(hours=1)
        monkeypatch.setattr(Session, "milliseconds", int(later.timestamp() * 1000))
        assert (notes.sweep_ttl(), notes.search(())) == (1, [])
        saver.retention.release("ann", by=BOSS)
        assert notes.sweep_ttl() == 1


@each_backend
def test_holds_add_one_trip_to_a_removal_and_none_to_a_put(store: Any, backend: str) -> None:
    with store.open() as saver:
        say(saver, "t", "ann")
        counter = Counter()
        tapped = with_tap(saver, counter)
        state = tapped.get_tuple(config("t"))
        counter.count = 0
        assert state
        tapped.put(state.config, {**state.checkpoint, "id": "f" * 32}, {"source": "loop", "step": 9}, {})
        tapped.store().put(("notes",), "a", {}, owner="ann")
        assert counter.count == 2
        counter.count = 0
        tapped.delete_thread("t")
        assert counter.count == 2


@pytest.mark.parametrize("hidden", [False, True])
def test_each_hold_has_its_own_reason(tmp_path: Path, hidden: bool) -> None:
    keyring = Keyring(LocalKey("k1", bytes(range(32))), hide_names=True) if hidden else None
    with SqliteSaver(tmp_path / "keel.db", encryption=keyring) as saver:
        keep = saver.retention
        keep.hold("ann", reason="one", by=BOSS)
        keep.hold("ann", reason="two", by=BOSS)
        keep.hold(7, reason="one", by="7")
        assert [(each.user_id, each.reason) for each in keep.holds()] == [("ann", "one"), ("ann", "two"), ("7", "one")]
        assert [each.reason for each in keep.release("ann", by=BOSS, reason="one")] == ["one"]
        with pytest.raises(OnHold, match="two"):
            keep.erase("ann")
        with pytest.raises(NotFound, match="'ann' is not on hold because of 'one'"):
            keep.release("ann", by=BOSS, reason="one")
        assert len(keep.release("ann", by=BOSS)) == 1
        with pytest.raises(NotFound, match="'ann' is not on hold"):
            keep.release("ann", by=BOSS)
        keep.erase("ann")
        assert [(event.content or {})["by"] for event in saver.approvals.audit() if event.kind == "held"][
            -1
        ] == hash_of("7")
        assert [*saver.check()] == []


@pytest.mark.parametrize(
    ("user", "options", "told"),
    [
        ("", {"reason": CASE, "by": BOSS}, "user_id must be"),
        (True, {"reason": CASE, "by": BOSS}, "user_id must be"),
        ("ann", {"reason": " ", "by": BOSS}, "reason= must state"),
        ("ann", {"reason": None, "by": BOSS}, "reason= must state"),
        ("ann", {"reason": CASE, "by": ""}, "by must name"),
        ("ann", {"reason": CASE, "by": None}, "by must name"),
        ("ann", {"reason": CASE, "by": "keel:x"}, "by must name"),
    ],
)
def test_a_hold_without_a_user_reason_or_author_is_refused(user: Any, options: Any, told: str) -> None:
    with MemorySaver() as saver:
        with pytest.raises(InvalidInput, match=told):
            saver.retention.hold(user, **options)
        assert (saver.retention.holds(), saver.approvals.audit()) == ([], [])


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("verb", ["hold", "release"])
def test_a_repeated_hold_or_release_makes_one_event(verb: str, lost: bool) -> None:
    given = {"hold": {"reason": CASE, "by": BOSS}, "release": {"by": BOSS}}
    for at in range(20):
        with MemorySaver() as saver:
            if verb == "release":
                saver.retention.hold("ann", **given["hold"])
            fault = Fault(at, lost_reply=lost)
            try:
                getattr(with_tap(saver, fault).retention, verb)("ann", **given[verb])
                assert not fault.fired
                assert at > 3
                return
            except Injected:
                events = [event.kind for event in saver.approvals.audit()]
                assert ("released" in events) >= (verb == "release" and not saver.retention.holds())
            if verb == "hold" or saver.retention.holds():
                getattr(saver.retention, verb)("ann", **given[verb])
            assert [event.kind for event in saver.approvals.audit()] == ["held", "released"][: 1 + (verb == "release")]
            assert bool(saver.retention.holds()) == (verb == "hold")
            assert saver.approvals.verify_audit().ok


def test_a_tenant_with_a_person_on_hold_cannot_be_deleted() -> None:
    with MemorySaver() as saver:
        theirs = saver.for_tenant("acme")
        say(theirs, "t", "ann")
        say(saver, "t", "ann")
        theirs.retention.hold("ann", reason=CASE, by=BOSS)
        with pytest.raises(OnHold, match="'ann' of tenant acme"):
            saver.tenants.delete("acme")
        assert ids(theirs) == ["t"]
        saver.delete_thread("t")  # of no tenant: another person
        theirs.retention.release("ann", by=BOSS)
        assert saver.tenants.delete("acme").complete


def test_upkeep_keeps_threads_of_a_person_on_hold(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        saver.retention.hold("ann", reason=CASE, by=BOSS)
    with SqliteSaver(tmp_path / "keel.db", keep_last=1, upkeep_every=1000) as saver:
        say(saver, "of ann", "ann")
        say(saver, "of bob", "bob")
    with SqliteSaver(tmp_path / "keel.db") as saver:
        assert [len([*saver.list(config(thread))]) for thread in ("of ann", "of bob")] == [3, 1]


def test_a_hold_is_copied_with_a_store(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "a.db") as source, SqliteSaver(tmp_path / "b.db") as target:
        say(source, "t", "ann")
        hold = source.retention.hold("ann", reason=CASE, by=BOSS)
        source.moving.copy_to(target, shared=True)
        assert target.retention.holds() == [hold]


def test_keel_hold(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(url) as saver:
        say(saver, "t", "ann")
    assert keel_json("hold", "--url", url) == {"holds": []}
    (held,) = keel_json("hold", "--user", "ann", "--reason", CASE, "--by", BOSS, "--url", url)["holds"]
    assert Hold(**held) == Hold("ann", CASE, BOSS, held["at"])
    told = keel("hold", "--url", url).stdout
    assert all(word in told for word in ("ann", CASE, BOSS, "1 hold"))
    assert "is on hold since" in keel("erase", "--user", "ann", "--yes", "--url", url, status=1).stderr
    assert "is on hold since" in keel("prune", "t", "--yes", "--url", url, status=1).stderr
    with open_saver(url) as saver:
        saver.retention.set_policy(Retention(last=1))
    assert "t was not changed: thread 't' is on hold" in " ".join(keel("sweep", "--url", url).stdout.split())
    for words in (["--user", "ann"], ["--release"], ["--user", "ann", "--release"], ["--reason", CASE]):
        assert "a hold needs" in keel("hold", *words, "--url", url, status=2).stderr
    assert "Released 1 hold" in keel("hold", "--user", "ann", "--release", "--by", BOSS, "--url", url).stdout
    shown = keel("audit", "show", "--url", url).stdout
    assert all(word in shown for word in ("held", "released"))
    keel("erase", "--user", "ann", "--yes", "--url", url)
