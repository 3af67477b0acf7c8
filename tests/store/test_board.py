"""The board: no lost updates, one holder per lock, no missed changes in a watch."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.places import Place
from support.process_children import exit_code, forked
from support.savers import each_face
from support.store.board_children import add_one

from langgraph_keel import (
    InvalidInput,
    ItemChange,
    KeelSaver,
    KeelStore,
    Keyring,
    LocalKey,
    LockLost,
    LockTaken,
    MemorySaver,
    SqliteSaver,
    StoreUnavailable,
)
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.store import watch
from langgraph_keel.store.records import prefix_of

NS = ("board",)
KEY = LocalKey("k", bytes(range(32)))
KEYRING, HIDING = Keyring(KEY), Keyring(KEY, hide_names=True)


@pytest.fixture
def saver() -> Iterator[KeelSaver]:
    with MemorySaver() as saver:
        yield saver


@pytest.fixture
def board(saver: KeelSaver) -> KeelStore:
    return saver.store()


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def store_of(saver: KeelSaver) -> tuple[KeelStore, Clock]:
    """Return a store that acts as another process, with its own clock for leases."""
    board, clock = saver.store(), Clock()
    board._locks.timer = clock  # private: the test sets the time
    return board, clock


def call(face: str, it: Any, name: str, *args: Any) -> Any:
    """Call an operation by its sync or async method."""
    if face == "sync":
        return getattr(it, name)(*args)
    return asyncio.run(getattr(it, f"a{name}")(*args))


def value_of(board: KeelStore, key: str = "x") -> Any:
    found = board.get(NS, key, refresh_ttl=False)
    return found.value if found else None


# -- update ------------------------------------------------------------------------------------------------------------


@each_face
def test_update_creates_changes_and_deletes(place: Place, face: str) -> None:
    seen = []

    def add(value: Any) -> Any:
        seen.append(value)
        return {"n": (value or {"n": 0})["n"] + 1}

    with place.open() as saver:
        board = saver.store()
        assert call(face, board, "update", NS, "x", lambda _: None) is None
        assert call(face, board, "update", NS, "x", add) == {"n": 1}
        created = board.get(NS, "x")
        assert call(face, board, "update", NS, "x", add) == {"n": 2}
        found = board.get(NS, "x")
        assert found
        assert created
        assert (found.value, found.created_at) == ({"n": 2}, created.created_at)
        assert found.updated_at > created.updated_at
        assert seen == [None, {"n": 1}]
        board.put(NS, "x", {"n": 7})  # with the version that the update stored
        assert call(face, board, "update", NS, "x", lambda _: None) is None
        assert board.get(NS, "x") is None


def test_an_update_is_retried_after_a_concurrent_change(saver: KeelSaver, board: KeelStore) -> None:
    other, seen = saver.store(), []

    def add(value: Any) -> Any:
        seen.append(value)
        if len(seen) == 1:
            other.put(NS, "x", {"n": 10})
        elif len(seen) == 2:
            other.delete(NS, "x")
        return {"n": (value or {"n": 0})["n"] + 1}

    board.put(NS, "x", {"n": 1})
    assert board.update(NS, "x", add) == {"n": 1}
    assert seen == [{"n": 1}, {"n": 10}, None]
    assert value_of(board) == {"n": 1}


def test_update_passes_and_returns_copies(board: KeelStore) -> None:
    board.put(NS, "x", {"list": [1]})

    def fail(value: Any) -> Any:
        value["list"].append(2)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        board.update(NS, "x", fail)
    new = board.update(NS, "x", lambda value: {**(value or {}), "more": [3]})
    assert new
    new["list"].append(4)
    assert value_of(board) == {"list": [1], "more": [3]}


@pytest.mark.parametrize("bad", [{"n": float("nan")}, {"n": (1,)}, {1: "n"}, [1], 7])
def test_a_value_that_is_not_json_is_refused(board: KeelStore, bad: Any) -> None:
    board.put(NS, "x", {"n": 1})
    with pytest.raises(InvalidInput, match="'x'"):
        board.update(NS, "x", lambda _: bad)
    with pytest.raises(InvalidInput), board.lock("desk") as lock:
        lock.put(NS, "x", bad)
    with pytest.raises(InvalidInput, match="namespace"):
        board.update(("a.b",), "x", lambda _: {})
    assert value_of(board) == {"n": 1}


def test_an_update_renews_the_ttl_of_the_item(saver: KeelSaver) -> None:
    board = saver.store(ttl={"default_ttl": 10})
    now = [datetime.now(UTC)]
    object.__setattr__(saver.engine.session, "clock", lambda: now[0])
    board.update(NS, "default", lambda _: {"n": 1})
    board.put(NS, "own", {"n": 1}, ttl=30)
    now[0] += timedelta(minutes=9)
    for key in ("default", "own"):
        board.update(NS, key, lambda value: value)
    now[0] += timedelta(minutes=9)
    assert value_of(board, "default") == {"n": 1}
    now[0] += timedelta(minutes=2)
    assert board.update(NS, "default", lambda value: {"was": value}) == {"was": None}
    now[0] += timedelta(minutes=18)
    assert value_of(board, "own") == {"n": 1}


# -- locks -------------------------------------------------------------------------------------------------------------


@each_face
def test_a_lock_has_one_holder_at_a_time(place: Place, face: str) -> None:
    with place.open() as saver, place.open() as another:
        board, other = saver.store(), another.store()

        async def go() -> None:
            async with board.alock("desk") as lock, board.alock("another") as free:
                assert (lock.fence, free.fence) == (1, 1)
                with pytest.raises(LockTaken, match=f"'desk'.*{os.getpid()}"):
                    async with other.alock("desk", timeout=0):
                        pass
                await lock.aput(NS, "x", {"n": 1})
                assert await lock.aupdate(NS, "x", add_one) == {"n": 2}
            async with other.alock("desk", timeout=0) as lock:
                assert lock.fence == 2

        if face == "async":
            asyncio.run(go())
        else:
            with board.lock("desk") as lock, board.lock("another") as free:
                assert (lock.fence, free.fence) == (1, 1)
                with pytest.raises(LockTaken, match=f"'desk'.*{os.getpid()}"), other.lock("desk", timeout=0):
                    pass
                lock.put(NS, "x", {"n": 1})
                assert lock.update(NS, "x", add_one) == {"n": 2}
            with other.lock("desk", timeout=0) as lock:
                assert lock.fence == 2
        assert value_of(board) == {"n": 2}


def test_a_lock_is_released_if_the_block_fails(board: KeelStore) -> None:
    with pytest.raises(LookupError), board.lock("desk"):
        raise LookupError
    with board.lock("desk", timeout=0) as lock:
        assert lock.fence == 2


def test_a_waiting_process_gets_the_lock_when_it_is_released(saver: KeelSaver, board: KeelStore) -> None:
    async def take(ready: asyncio.Event, end: asyncio.Event) -> int:
        async with saver.store().alock("desk", timeout=30) as lock:
            ready.set()
            await end.wait()
            return lock.fence

    async def go() -> list[int]:
        ready, end = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(take(ready, end)) for _ in range(3)]
        await ready.wait()
        end.set()
        return sorted(await asyncio.gather(*tasks))

    assert asyncio.run(go()) == [1, 2, 3]


def taken_over(other: KeelStore, clock: Clock, ttl: float = 30.0) -> Any:
    """Take over a lock whose holder has not renewed it for its time to live."""
    with pytest.raises(LockTaken), other.lock("desk", timeout=0):
        pass
    clock.now += ttl - 1
    with pytest.raises(LockTaken), other.lock("desk", timeout=0):
        pass
    clock.now += 2
    return other.lock("desk", timeout=0)


@each_face
def test_an_item_refuses_an_outdated_fence(place: Place, face: str) -> None:
    """The first holder does not know that time has passed; only the item refuses it."""
    with place.open() as saver, place.open() as another:
        (board, _), (other, clock) = store_of(saver), store_of(another)
        with board.lock("desk") as late:
            late.put(NS, "x", {"by": "late"})
            late.put(NS, "new", {"by": "late"})
            with taken_over(other, clock) as lock:
                lock.put(NS, "x", {"by": "other"})
                for name, given in (("put", {"by": "late"}), ("update", lambda _: {"by": "late"})):
                    with pytest.raises(LockLost, match=r"'desk'.*fence 1.*fence 2") as lost:
                        call(face, late, name, NS, "x", given)
                    assert (lost.value.name, lost.value.fence, lost.value.found) == ("desk", 1, 2)
                assert value_of(other) == {"by": "other"}
            other.put(NS, "x", {"by": "no lock"})  # which keeps the fence
            board.put(NS, "x", {"by": "no lock at all"})
            with pytest.raises(LockLost):
                late.put(NS, "x", {"by": "late"})
        assert value_of(board) == {"by": "no lock at all"}


def test_a_holder_replaced_between_its_read_and_write_is_refused(saver: KeelSaver) -> None:
    (board, _), (other, clock) = store_of(saver), store_of(saver)
    called = []

    def change(value: Any) -> Any:
        called.append(value)
        if len(called) == 1:
            with taken_over(other, clock) as lock:
                lock.put(NS, "x", {"by": "other"})
        return {"by": "late"}

    with pytest.raises(LockLost), board.lock("desk") as late:
        late.update(NS, "x", change)
    assert called == [None, {"by": "other"}]
    assert value_of(board) == {"by": "other"}


def test_a_paused_holder_checks_its_lock_before_it_writes(saver: KeelSaver, caplog: pytest.LogCaptureFixture) -> None:
    """The next holder has written nothing yet, so no item has its fence."""
    (board, time), (other, clock) = store_of(saver), store_of(saver)
    with board.lock("desk") as late:
        time.now += 31
        late.put(NS, "x", {"by": "late"})  # no process has taken the lock, so it is renewed
        with taken_over(other, clock):
            late.put(NS, "x", {"by": "late again"})  # it cannot know: its last renewal is recent
            time.now += 31
            with pytest.raises(LockLost, match="fence 1"):
                late.put(NS, "x", {"by": "too late"})
    assert value_of(board) == {"by": "late again"}
    assert "fence 1, but another holder had taken it" in caplog.text
    with other.lock("desk", timeout=0) as lock:  # the late release had no effect
        assert lock.fence == 3


def test_an_item_keeps_a_fence_for_each_lock(saver: KeelSaver) -> None:
    (board, _), (other, clock) = store_of(saver), store_of(saver)
    with board.lock("desk") as late:
        with taken_over(other, clock) as lock:
            lock.put(NS, "x", {"by": "other"})
        with other.lock("chair") as lock:  # whose fence is lower
            lock.put(NS, "x", {"by": "chair"})
        with pytest.raises(LockLost):
            late.put(NS, "x", {"by": "late"})
    assert value_of(board) == {"by": "chair"}


def test_a_held_lock_is_renewed(board: KeelStore, saver: KeelSaver) -> None:
    with board.lock("desk", ttl=0.3) as lock:
        with pytest.raises(LockTaken), saver.store().lock("desk", timeout=1.0):
            pass
        lock.put(NS, "x", {})


def test_the_lock_of_a_dead_process_is_free_immediately(place: Place) -> None:
    def die() -> None:
        with place.open() as saver, saver.store().lock("desk", ttl=10_000):
            os._exit(7)

    with place.open() as saver:
        saver.setup()
    assert exit_code(forked(die)) == 7
    with place.open() as saver, saver.store().lock("desk", timeout=0) as lock:
        assert lock.fence == 2


def test_a_forked_process_renews_its_own_locks(place: Place) -> None:
    """The child lacks the parent's thread, which renewed locks with the same TTL."""

    def renew() -> None:
        with place.open() as saver:
            parents._saver = saver  # private: a saver must not be used in two processes; there is no other way
            other = saver.store().lock("child", timeout=1.0)
            with parents.lock("child", ttl=0.3), pytest.raises(LockTaken), other:
                pass

    with place.open() as saver:
        parents = saver.store()
        with parents.lock("parent", ttl=0.3):
            assert exit_code(forked(renew)) == 0


def test_a_lock_that_cannot_be_released_expires(saver: KeelSaver, caplog: pytest.LogCaptureFixture) -> None:
    """The work of the block is done, so its end raises no error."""
    away: list[bool] = []

    class Driver:
        def send(self, request: Any) -> Any:
            if away:
                raise StoreUnavailable("gone for lunch")
            return saver.engine.driver.send(request)

    flaky = with_engine(saver, saver.engine.with_drivers(Driver()))
    (board, _), (other, clock) = store_of(flaky), store_of(saver)
    with board.lock("desk") as lock:
        lock.put(NS, "x", {"n": 1})
        away.append(True)
    assert "could not be released; it is free in 30 s: gone for lunch" in caplog.text
    with taken_over(other, clock) as lock:
        assert lock.fence == 2


@pytest.mark.parametrize("place", ["sqlite", "files"], indirect=True)
async def test_async_board_operations_do_not_block_the_loop(place: Place) -> None:
    """A fixture in `tests/conftest.py` watches asynchronous tests for blocking calls."""
    saver = await asyncio.to_thread(place.open)
    board = saver.store()
    async with board.alock("desk") as lock:
        await lock.aput(NS, "x", {"n": 1})
        with pytest.raises(LockTaken):
            async with board.alock("desk", timeout=0.1):
                pass
    assert [change.value async for change in board.awatch(NS, timeout=0)] == [{"n": 1}]
    await saver.aclose()


def test_writes_under_a_lock_require_that_it_is_held(board: KeelStore) -> None:
    lock = board.lock("desk")
    with pytest.raises(InvalidInput, match="not held"):
        lock.put(NS, "x", {})
    with lock, pytest.raises(InvalidInput, match="this object"), lock:
        pass
    with pytest.raises(InvalidInput, match="not held"):
        lock.update(NS, "x", lambda _: {})
    with lock:
        assert lock.fence == 2
    assert value_of(board) is None


@pytest.mark.parametrize("given", [{"name": ""}, {"name": 7}, {"ttl": 0}, {"ttl": "1"}, {"ttl": True}, {"timeout": -1}])
def test_arguments_of_a_lock_are_checked(board: KeelStore, given: Any) -> None:
    with pytest.raises(InvalidInput):
        board.lock(**{"name": "desk", **given})


@pytest.mark.parametrize("name", ["a.b", "%", "x" * 10_000, "\0", "\ud800", "Desk", "desk "])
def test_locks_with_different_names_are_independent(saver: KeelSaver, name: str) -> None:
    with MemorySaver(encryption=HIDING) as sealed:
        for board in (saver.store(), sealed.store()):
            with board.lock("desk"), board.lock(name, timeout=0) as lock:
                lock.put(NS, "x", {"n": 1})
                with pytest.raises(LockTaken), board.lock(name, timeout=0):
                    pass
            assert value_of(board) == {"n": 1}


def test_names_of_locks_are_hidden(tmp_path: Path) -> None:
    options: Any
    for options, is_shown in (({}, True), ({"encryption": KEYRING}, True), ({"encryption": HIDING}, False)):
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.db"
        with SqliteSaver(path, **options) as saver, saver.store().lock("desk"):
            pass
        data = path.read_bytes()
        assert (prefix_of(("desk",)).encode() in data) is is_shown
        assert b"desk" not in data


def test_tenants_have_separate_locks(saver: KeelSaver) -> None:
    with saver.store().lock("desk"), saver.for_tenant("acme").store().lock("desk", timeout=0) as lock:
        assert lock.fence == 1


def test_a_copy_of_the_store_has_the_fences(saver: KeelSaver) -> None:
    """Otherwise the items would refuse all locks there, whose fences start again."""
    board = saver.store()
    for _ in range(3):
        with board.lock("desk") as lock:
            lock.put(NS, "x", {"fence": lock.fence})
    with MemorySaver() as target:
        saver.moving.copy_to(target, shared=True)
        with target.store().lock("desk") as lock:
            lock.put(NS, "x", {"fence": lock.fence})
        assert value_of(target.store()) == {"fence": 4}


def test_lock_errors_can_be_pickled() -> None:
    for error in (LockLost("desk", 3, 4), LockTaken("desk", "host/machine/7/1", "now")):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))


# -- watch -------------------------------------------------------------------------------------------------------------


def look(board: KeelStore, since: str | None = None, namespace: Any = NS, face: str = "sync") -> tuple[list[Any], str]:
    """Poll once; return the changes and the cursor."""
    feed = board.watch(namespace, since, timeout=0)

    async def every() -> list[ItemChange]:
        return [change async for change in feed]

    return ([*feed] if face == "sync" else asyncio.run(every())), feed.cursor


def seen(changes: Sequence[ItemChange]) -> list[tuple[Any, ...]]:
    return [(*change.namespace[1:], change.key, change.value and change.value["n"]) for change in changes]


@each_face
def test_a_watch_yields_changes_and_deletions(place: Place, face: str) -> None:
    with place.open() as saver:
        board = saver.store()
        board.put(("elsewhere",), "x", {"n": 0})
        for number, key in enumerate("abc"):
            board.put(NS, key, {"n": number})
        board.put((*NS, "below", "it"), "d", {"n": 3})
        changes, cursor = look(board, face=face)
        assert seen(changes) == [("a", 0), ("b", 1), ("c", 2), ("below", "it", "d", 3)]
        assert changes[0] == ItemChange(NS, "a", {"n": 0})
        assert look(board, cursor, face=face) == ([], cursor)
        for number in (4, 5):  # only the last change is reported
            board.put(NS, "a", {"n": number})
        board.delete(NS, "b")
        board.delete((*NS, "below", "it"), "d")
        board.put(NS, "e", {"n": 6})
        board.delete(NS, "e")  # never reported
        changes, cursor = look(board, cursor, face=face)
        assert seen(changes[:1]) == [("a", 5)]
        assert sorted(seen(changes[1:])) == [("b", None), ("below", "it", "d", None)]
        board.put(NS, "b", {"n": 7})
        assert seen(look(board, cursor, face=face)[0]) == [("b", 7)]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_watch_covers_exactly_its_namespace_and_those_below(depth: int) -> None:
    """Also in a store without narrowing, because it may contain plain text."""
    place, keys = ("a", "b", "c", "d"), Keyring(KEY, migrate=True)
    for bare in (MemorySaver(), MemorySaver(encryption=keys)):
        saver, trips = counting(bare)
        board = saver.store()
        for size in (1, 2, 3, 4):
            board.put(place[:size], "x", {"n": size})
            board.put((*place[: size - 1], "other"), "x", {"n": -size})
        feed = board.watch(place[:depth], timeout=0)
        changes = [*feed]
        inside = [(*place[: n - 1], "other") for n in range(depth + 1, 5)] + [place[:n] for n in range(depth, 5)]
        assert sorted(change.namespace for change in changes) == sorted(inside)
        trips()
        board.search(place[:depth], limit=100)
        one = trips()
        assert ([*feed], trips()) == ([], one)  # items in other namespaces are read once
        assert look(board, feed.cursor, place[:depth])[0] == []
        bare.close()


def test_a_watch_repeats_the_change_that_was_being_handled(board: KeelStore) -> None:
    for number in range(20):
        board.put(NS, f"k{number}", {"n": number})
    feed, cursors = board.watch(NS, timeout=0), []
    for _ in feed:
        cursors.append(feed.cursor)
    for number, cursor in enumerate(cursors):
        assert {n for _, n in seen(look(board, cursor)[0])} == {*range(number, 20)}
    assert look(board, feed.cursor)[0] == []
    for number in range(20):
        board.delete(NS, f"k{number}")
    # A follower may have handled a change before it was killed. The next one reports that the item was deleted.
    assert look(board, cursors[7])[0] == [ItemChange(NS, f"k{number}", None) for number in range(8)]


def test_an_expired_item_is_yielded_as_deleted(saver: KeelSaver) -> None:
    now, board = [datetime.now(UTC)], saver.store()
    object.__setattr__(saver.engine.session, "clock", lambda: now[0])
    board.put(NS, "x", {"n": 1}, ttl=1)
    changes, cursor = look(board)
    assert seen(changes) == [("x", 1)]
    now[0] += timedelta(minutes=2)
    changes, cursor = look(board, cursor)
    assert seen(changes) == [("x", None)]
    board.sweep_ttl()
    assert look(board, cursor)[0] == []
    assert look(board)[0] == []


def test_a_watch_of_too_many_items_is_refused(board: KeelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST", 3)
    for number in range(3):
        board.put((*NS, str(number)), "x", {"n": number})
    assert len(look(board)[0]) == 3
    board.put(NS, "x", {"n": 4})
    with pytest.raises(InvalidInput, match=r"\('board',\) has more than 3 items"):
        look(board)
    assert len(look(board, namespace=(*NS, "1"))[0]) == 1


@pytest.mark.parametrize(
    "since", ["", "7", "null", "{}", "[]", '[1,["board"]]', '[1,["board"],[[[],7,"t"]]]', '[1,["board"],[["",[],"t"]]]']
)
def test_invalid_cursors_are_refused(board: KeelStore, since: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        board.watch(NS, since)


def test_arguments_of_a_watch_are_checked(board: KeelStore) -> None:
    with pytest.raises(InvalidInput, match="another namespace"):
        board.watch(("other",), look(board)[1])
    with pytest.raises(InvalidInput, match="another namespace"):
        board.watch(NS, json.dumps([2, ["board"], []]))
    with pytest.raises(InvalidInput, match="namespace"):
        board.watch(("a.b",))
    with pytest.raises(InvalidInput, match="poll"):
        board.watch(NS, poll=0)


def counting(saver: KeelSaver) -> tuple[KeelSaver, Callable[[], int]]:
    """Return a saver, and a function that counts its requests since the last call."""
    requests: list[Any] = []

    class Driver:
        def send(self, request: Any) -> Any:
            requests.append(request)
            return saver.engine.driver.send(request)

    def count() -> int:
        number = len(requests)
        requests.clear()
        return number

    return with_engine(saver, saver.engine.with_drivers(Driver())), count


def test_round_trips_of_board_operations(place: Place) -> None:
    with place.open() as bare:
        saver, count = counting(bare)
        board = saver.store()
        board.put(NS, "x", {"n": 0})
        count()
        board.update(NS, "x", lambda _: {"n": 1})
        assert count() == 2
        with board.lock("desk") as lock:
            assert count() == 2
            lock.put(NS, "x", {"n": 2})
            assert count() == 2
        assert count() == 1
        # With a prefix of one label, Redis lists the cells in pages.
        changes, cursor = look(board)
        assert (len(changes), count()) == (1, 2)
        assert (look(board, cursor), count()) == (([], cursor), 1)
