"""A hot store before a cold one: trips, faults of the hot store, complete removal."""

from __future__ import annotations

import asyncio
import copy
import gc
import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import servers
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import VOLATILE, PostgresServer, RedisServer
from support.checkpoints import METADATA, aput, checkpoint_of, config_for, put, twin, value_of
from support.moving.old_graphs import SCENES
from support.moving.old_stores import old_store
from support.stores import MemoryUnderTest, SqliteUnderTest
from support.stores.postgres import postgres_store
from support.stores.redis import client_of, redis_store
from support.stores.tiered import TieredUnderTest
from support.tiers import sized

from langgraph_keel import (
    CheckpointConflict,
    FileSaver,
    InvalidInput,
    KeelSaver,
    Keyring,
    LocalKey,
    MemorySaver,
    PostgresSaver,
    RedisSaver,
    SqliteSaver,
    StoreClosed,
    StoreUnavailable,
    TieredSaver,
    open_saver,
)
from langgraph_keel.backends.tiered import chains, driver, store
from langgraph_keel.backends.tiered import saver as saver_module
from langgraph_keel.backends.tiered.chains import LOG
from langgraph_keel.backends.tiered.driver import Hot
from langgraph_keel.backends.tiered.store import TieredStore
from langgraph_keel.engine.records import Found, Row
from langgraph_keel.engine.store import Store
from langgraph_keel.testing import Fault, Injected, Meanwhile, Tap, with_tap
from langgraph_keel.testing.machine import chat
from langgraph_keel.testing.rig import FACES, Face, exact, values_of

SECRET = "the secret of Ada Lovelace"


class Trips(Tap):
    """Records the store of each request, and its reply."""

    def __init__(self) -> None:
        self.names = ""
        self.replies: list[Any] = []

    def sending(self, request: Any) -> None:
        self.names += "h" if isinstance(request, Hot) else "c"

    def taken(self) -> str:
        names, self.names = self.names, ""
        return names


@pytest.fixture
def pair() -> TieredUnderTest:
    return TieredUnderTest(MemoryUnderTest(), MemoryUnderTest())


def follow(saver: KeelSaver, values: Any, thread: str = "t") -> None:
    """Store a checkpoint after the latest one, as a run that has read it does."""
    found = saver.get_tuple(config_for(thread))
    config = found.config if found else {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    number = int(found.checkpoint["id"]) + 1 if found else 1
    saver.put(config, checkpoint_of(f"{number:08}", values), METADATA, {})


def latest(saver: KeelSaver, thread: str = "t") -> Any:
    found = saver.get_tuple(config_for(thread))
    return found and exact(values_of(found))


# -- trips -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FACES)
def test_each_operation_is_sent_to_the_expected_store(pair: TieredUnderTest, kind: str) -> None:
    trips = Trips()
    face: Face = FACES[kind](lambda: ours)
    ours = with_tap(pair.open(), trips)
    config = face.put(config_for("t"), checkpoint_of("1", {"list": chat(40)}))
    face.put_writes(config, [("a", 1)], "task")
    assert trips.taken() == "cc"  # there is no copy before the first read
    face.read(config_for("t"))
    face.read(config)
    assert trips.taken() == "hcc"  # another process could have started a chain, of the latest
    ours, first = with_tap(pair.open(), trips), ours
    face.read(config_for("t"))
    assert trips.taken() == "hchc"  # not found: a chain is started, and the cold store is asked once more
    ours = with_tap(pair.open(), trips)
    assert face.read(config_for("t")).pending_writes == [("task", "a", 1)]
    assert trips.taken() == "hcc"  # checks that it is the latest, and a copy of that very entry
    config = face.put(config, checkpoint_of("2", {"list": chat(41)}))
    assert trips.taken() == "ch"  # a process that knows the chain adds to it
    face.read(config_for("t"))
    assert trips.taken() == "hc"  # it has already compared the header
    ours = first
    config = face.put(face.read(config_for("t")).config, checkpoint_of("3", {"list": chat(42)}))
    assert trips.taken() == "hccch"  # a process that does not know the chain reads it first
    face.delete_thread("t")
    assert trips.taken() == "chch"  # asks whether a person is on hold
    assert face.get_tuple(config_for("t")) is None
    face.close()


@pytest.mark.parametrize("kind", FACES)
def test_light_threads_are_not_copied_to_the_hot_store(kind: str) -> None:
    pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), light=2000)
    trips = Trips()
    face: Face = FACES[kind](lambda: ours)
    ours = with_tap(pair.open(), trips)
    assert face.get_tuple(config_for("t")) is None
    config = face.put(config_for("t"), checkpoint_of("1", {"list": chat(2)}))
    face.read(config_for("t"))
    ours = with_tap(pair.open(), trips)
    face.read(config_for("t"))
    face.put(config, checkpoint_of("2", {"list": chat(3)}))
    face.read(config_for("t"))
    assert trips.taken() == "hcchc" + "hcchc"
    assert not [*pair.copies()]
    config = face.put(face.read(config_for("t")).config, checkpoint_of("3", {"list": chat(100)}))
    face.read(config_for("t"))
    assert trips.taken() == "hcchc"
    ours = with_tap(pair.open(), trips)
    face.read(config_for("t"))
    assert trips.taken() == "hchc"  # it is not light any more
    assert [*pair.copies()]
    face.close()


def test_only_listed_verbs_are_inherited() -> None:
    """Inherited verbs neither remove data of the hot store nor read a latest entry."""
    verbs = {name for name in vars(Store) if not name.startswith("_")}
    assert verbs - vars(TieredStore).keys() == {
        *("copy_thread", "find_cells", "find_runs", "list_cells", "list_kinds", "list_strays", "list_tenants"),
        *("list_writes", "read_cells", "read_graph", "read_history", "read_stored", "read_threads"),
        *("read_values", "remove_cells", "scan", "swap_cell", "swap_cells", "write_batch"),
    }


@pytest.mark.parametrize("cold", ["postgres", "redis"])
def test_rows_of_a_copy_are_not_read_from_the_cold_store(cold: str, stores: Any) -> None:
    class Replies(Tap):
        def replied(self, request: Any, reply: Any) -> None:
            seen.append((isinstance(request, Hot), SECRET in repr(reply)))

    seen: list[tuple[bool, bool]] = []
    stores[cold].wipe()
    pair = TieredUnderTest(MemoryUnderTest(), stores[cold])
    follow(pair.open(), {"list": [SECRET, *chat(100)]})
    before = latest(with_tap(pair.open(), Replies()))
    assert [is_hot for is_hot, _ in seen] == [True, False, True, False]
    seen.clear()
    assert latest(with_tap(pair.open(), Replies())) == before
    assert seen == [(True, True), (False, False), (False, False)]
    stores[cold].wipe()


def test_a_chain_of_mostly_outdated_data_is_replaced(pair: TieredUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_keel.backends.tiered.chains.SHORT", 2000)
    saver, weights = pair.open(), []
    for number in range(60):
        saver = saver if number % 7 else pair.open()
        follow(saver, {"text": f"{number}" * 300, "list": [number]})
        assert latest(pair.open()) == latest(saver)
        weights.append(sum(map(len, pair.copies())))
    assert max(weights) < 12_000


def test_heavy_threads_are_not_copied(pair: TieredUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "HEAVY", 2000)
    follow(pair.open(), {"text": "".join(map(str, range(2000)))}, "heavy")
    follow(pair.open(), {"text": "light"}, "light")
    for thread in ("heavy", "light"):
        assert latest(pair.open(), thread) == latest(pair.open(), thread) == latest(pair.cold.open(), thread)
    assert 0 < sum(map(len, pair.copies())) < 2000


# -- a faulty hot store ------------------------------------------------------------------------------------------------


def test_a_hot_store_may_be_flushed_at_any_time(pair: TieredUnderTest) -> None:
    savers = [pair.open(), pair.open()]
    for number in range(40):
        follow(savers[number % 2], {"list": chat(number), "n": number})
        if number % 3 == 0:
            pair.hot.wipe()
        assert latest(savers[(number // 2) % 2]) == latest(pair.open()) == exact({"list": chat(number), "n": number})


def test_a_hot_store_may_be_restored_to_an_earlier_state(redis_server: RedisServer, tmp_path: Path) -> None:
    """As by a failover to a replica that was behind."""
    client = client_of(redis_server.url)
    with redis_store(redis_server.url) as hot, closing(SqliteUnderTest(str(tmp_path / "cold.db"))) as cold:
        pair = TieredUnderTest(hot, cold)
        saver, old = pair.open(), {}
        for number in range(30):
            follow(saver, {"list": chat(number)})
            assert latest(pair.open()) == exact({"list": chat(number)})
            if number % 10 == 4:
                old = {key: client.dump(key) for key in hot.stored_keys()}
            elif number % 5 == 3 and old:
                hot.wipe()
                for key, value in old.items():
                    client.restore(key, 0, value)
                # One that knows the chain as it was, and one that knows nothing.
                assert latest(saver) == latest(pair.open()) == exact({"list": chat(number)})


def restored(store: type[TieredStore], directory: Path) -> bool:
    """Return whether entries are ignored that a restored cold store has lost.

    The cold store continues its numbers from the backup.
    """
    pair = TieredUnderTest(MemoryUnderTest(), SqliteUnderTest(str(directory / "cold.db")), store)
    put(pair.open(), "other", "of another thread", "1")
    pair.cold.close()
    shutil.copy(directory / "cold.db", directory / "backup.db")
    pair.cold = SqliteUnderTest(str(directory / "cold.db"))
    put(pair.open(), "t", "lost", "2")
    assert value_of(pair.open()) == value_of(pair.open()) == "lost"
    pair.cold.close()
    shutil.copy(directory / "backup.db", directory / "cold.db")
    pair.cold = SqliteUnderTest(str(directory / "cold.db"))
    put(pair.open(), "t", "put since", "3")
    values = value_of(pair.open()), value_of(pair.open()), value_of(pair.open(), "other")
    pair.close()
    return values == ("put since", "put since", "of another thread")


def falls_back(store: type[TieredStore], directory: Path) -> bool:
    """Return whether a chain is ignored whose end the cold store has lost.

    A process that knows the end lives on.
    """
    pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), store)
    saver = pair.open()

    def add(parent: str | None, name: str, said: list[str]) -> None:
        saver.put(config_for("t", parent), checkpoint_of(name, {"list": said}), METADATA, {})

    add(None, "4", ["a" * 300])
    driver_of_cold = pair.cold._driver  # private: its state is reset, as by a failover to a lagging replica
    kept = copy.deepcopy(driver_of_cold.state)
    saver = pair.open()
    latest(saver)
    add("4", "5", ["a" * 300, "lost 5" * 50])
    add("5", "6", ["a" * 300, "lost 5" * 50, "lost 6" * 50])
    driver_of_cold.state = kept
    saver.get_tuple(config_for("t", "4"))
    new = [f"new {number}" * 50 for number in range(4)]
    add("4", "7", new)
    add("7", "8", [new[1]])
    return bool(latest(pair.open()) == exact({"list": [new[1]]}))


def links_of(pair: TieredUnderTest, thread: str) -> dict[int, Row]:
    """Return the links of a chain in a hot store in memory, to be changed."""
    links: dict[int, Row] = pair.hot.open().engine.driver.send(
        lambda state: state.tenants[store.TENANT][thread].logs["", LOG].rows
    )
    return links


def damaged(store: type[TieredStore], directory: Path) -> bool:
    """Return whether a chain is ignored whose links do not belong together."""
    pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), store)
    saver = pair.open()
    for thread in ("t", "u"):
        follow(saver, {"list": chat(5), "n": thread}, thread)
        latest(saver := pair.open(), thread)
        follow(saver, {"list": chat(6), "n": thread}, thread)
    one, other = links_of(pair, "t"), links_of(pair, "u")
    one[0], other[0] = other[0], one[0]
    return bool(latest(pair.open()) == exact({"list": chat(6), "n": "t"}))


def bits(store: type[TieredStore], directory: Path) -> bool:
    """Return whether a link with a flipped bit is ignored."""
    pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), store)
    follow(pair.open(), {"list": chat(5)})
    latest(pair.open())
    rows = links_of(pair, "t")
    body = bytearray(rows[0].body)
    body[len(body) // 2] ^= 4
    rows[0] = Row(0, 1, bytes(body))
    return bool(latest(pair.open()) == latest(pair.open()) == exact({"list": chat(5)}))


# -- removal ---------------------------------------------------------------------------------------------------------


def remnants(store: type[TieredStore], directory: Path) -> bool:
    """Return whether removed data leaves the hot store, for each kind of removal."""
    removals: list[Callable[[KeelSaver], object]] = [
        lambda saver: saver.delete_thread("t"),
        lambda saver: saver.delete_for_runs(["run"]),
        lambda saver: saver.prune(["t"], strategy="delete"),
        lambda saver: saver.retention.erase("ada"),
    ]
    for remove in removals:
        pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), store)
        saver = pair.open()
        metadata: Any = {**METADATA, "run_id": "run", "user_id": "ada"}
        saver.put(config_for("t"), checkpoint_of("1", {"list": [SECRET]}), metadata, {})
        latest(pair.open())
        assert holds(pair)
        remove(pair.open())
        if holds(pair) or latest(pair.open()) is not None:
            return False
    return True


def holds(pair: TieredUnderTest) -> bool:
    """Return whether the hot store contains the secret, in any of its entries."""
    return any(SECRET.encode() in part for part in pair.copies())


def races(store: type[TieredStore], directory: Path) -> bool:
    """Return whether deletions that race with reads or writes empty the hot store."""

    def read(pair: TieredUnderTest) -> Callable[[KeelSaver], object]:
        return lambda saver: saver.get_tuple(config_for("t"))

    def go_on(pair: TieredUnderTest) -> Callable[[KeelSaver], object]:
        return step

    def step(saver: KeelSaver) -> None:
        with suppress(CheckpointConflict):  # the thread was deleted
            saver.put(config_for("t", "1"), checkpoint_of("2", {"list": [SECRET, f"again {SECRET}"]}), METADATA, {})

    def delete(pair: TieredUnderTest) -> Callable[[KeelSaver], object]:
        return lambda saver: saver.delete_thread("t")

    for first, second, is_known in product((read, go_on, delete), (read, go_on, delete), (False, True)):
        if delete not in (first, second):
            continue
        for trip in range(8):
            pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), store)
            pair.open().put(config_for("t"), checkpoint_of("1", {"list": [SECRET]}), METADATA, {})
            one, other = pair.open(), pair.open()
            if is_known:
                latest(one), latest(other)
            act, meanwhile = first(pair), Meanwhile(trip, partial(second(pair), other))
            act(with_tap(one, meanwhile))
            is_there = latest_behind(pair) is not None
            if not is_there and holds(pair):
                return False
            if latest(pair.open()) != latest_behind(pair):
                return False
    return True


def latest_behind(pair: TieredUnderTest) -> Any:
    """Return the latest value in the cold store, read without the hot one."""
    return latest(pair.cold.open())


def dies(store: type[TieredStore], directory: Path) -> bool:
    """Return whether an interrupted deletion leaves no deleted data in the hot store."""
    for trip, lost_reply in product(range(4), (False, True)):
        pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), store)
        put(pair.open(), "t", SECRET, "1")
        latest(pair.open())
        fault = Fault(trip, lost_reply=lost_reply)
        with suppress(Injected):
            with_tap(pair.open(), fault).delete_thread("t")
        if latest_behind(pair) is None and holds(pair):
            return False
    return True


def breaks(store: type[TieredStore], directory: Path) -> bool:
    """Return whether an interrupted read during a deletion leaves no data behind."""
    for meanwhile, trip, lost_reply in product(range(4), range(1, 4), (False, True)):
        pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), store)
        put(pair.open(), "t", SECRET, "1")
        deletes = Meanwhile(meanwhile, partial(pair.open().delete_thread, "t"))
        with suppress(Injected):
            latest(with_tap(with_tap(pair.open(), Fault(trip, lost_reply=lost_reply)), deletes))
        if latest_behind(pair) is None and holds(pair):
            return False
    return True


class LeavesWhatBreaks(TieredStore):
    """Leaves a chain if the check of it failed."""

    def _begin(self, address: Any, found: Any, *, replaces: bool) -> Any:
        begun = super()._begin(address, found, replaces=replaces)
        reply = None
        with suppress(StopIteration):
            while True:
                reply = yield begun.send(reply)


def stale(store: type[TieredStore], directory: Path) -> bool:
    """Return whether writes by a task, or by a process that knows no chain, are read."""
    pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), store)
    put(pair.open(), "t", "old", "1")
    latest(pair.open())
    config = put(pair.open(), "t", "new", "2")
    pair.open().put_writes(config, [("a", 1)], "task")
    seen = [pair.open().get_tuple(config_for("t")) for _ in range(3)]
    pair.open().put_writes(config, [("a", 2)], "other")
    seen.append(pair.open().get_tuple(config_for("t")))
    return [each and len(each.pending_writes or ()) for each in seen] == [1, 1, 1, 2]


def rivals(store: type[TieredStore], directory: Path) -> bool:
    """Return whether two processes that write in turn are read correctly.

    Each writes by its own knowledge of the chain.
    """
    pair = TieredUnderTest(MemoryUnderTest(), MemoryUnderTest(), store)
    one, other, third = pair.open(), pair.open(), pair.open()
    follow(one, {"list": chat(1)})
    for number in range(2, 12):
        latest(one), latest(other)
        follow(one if number % 3 else other, {"list": chat(number)})
        follow(other, {"list": [*chat(number), "of the other"]})
        if latest(third) != exact({"list": [*chat(number), "of the other"]}) or latest(pair.open()) != latest(third):
            return False
    return True


class BelievesTheHot(TieredStore):
    """Treats the hot store's entry as the latest."""

    def read_entry(self, address: Any, known: Any = None) -> Any:
        kept = yield from self._try(self.hot.read_entry(address.at(chains.ID)))
        if isinstance(kept, Found):
            return chains.read_chain(address, kept)[1]
        return (yield from super().read_entry(address, known))


class BelievesStamps(TieredStore):
    """Treats entries with equal stamps as the same one."""

    def _is_copy(self, copied: Any) -> Any:
        yield from ()
        return True


class ForgetsNothing(TieredStore):
    """Leaves removed data in the hot store."""

    def _remove(self, thread_id: str, removal: Any) -> Any:
        return removal


class ForgetsBefore(TieredStore):
    """Removes a thread from the hot store only before the cold one."""

    def _remove(self, thread_id: str, removal: Any) -> Any:
        yield from self._forget(thread_id, "")
        return (yield from removal)


class ForgetsAfterwards(TieredStore):
    """Removes a thread from the hot store only after the cold one."""

    def _remove(self, thread_id: str, removal: Any) -> Any:
        result = yield from removal
        yield from self._forget(thread_id, "")
        return result


class NeverLooksAgain(TieredStore):
    """Starts a chain without checking the cold store afterwards."""

    def _begin(self, address: Any, found: Any, *, replaces: bool) -> Any:
        for request in (begun := super()._begin(address, found, replaces=replaces)):
            reply = yield request
            while True:
                try:
                    request = begun.send(reply)
                except StopIteration:
                    return
                if not isinstance(request, Hot):
                    return
                reply = yield request


class AddsToAnyChain(TieredStore):
    """Adds a link to any existing chain."""

    def _extend(self, chain: Any, new: Any, stored: Any) -> Any:
        kept = yield from self._try(self.hot.read_entry(new.address.at(chains.ID)))
        begun = chains.read_chain(new.address, kept)[0] if isinstance(kept, Found) else None
        if begun is None:
            link = chains.link_of_put(new, stored, chain.end)
            yield from self._try(self.hot.write_entry(chains.begin_chain(new.address, link)))
        else:
            yield from super()._extend(begun, new, stored)


class AddsWhatHasNoBase(TieredStore):
    """Adds an entry without a base to a chain, even if the chain's end has changed."""

    def write_entry(self, new: Any) -> Any:
        chain = self._chains.get((new.address.thread_id, new.address.checkpoint_ns))
        outcome: Any = yield from super().write_entry(new)
        if new.base is None and chain is not None:
            yield from self._extend(chain, new, outcome)
        return outcome


RIGHT = [restored, falls_back, damaged, bits, remnants, races, dies, breaks, stale, rivals]
WRONG: list[tuple[type[TieredStore], Callable[[type[TieredStore], Path], bool]]] = [
    (BelievesTheHot, stale),
    (BelievesStamps, restored),
    (ForgetsNothing, remnants),
    (ForgetsBefore, races),
    (ForgetsAfterwards, dies),
    (NeverLooksAgain, races),
    (LeavesWhatBreaks, breaks),
    (AddsToAnyChain, races),
    (AddsWhatHasNoBase, falls_back),
]


@pytest.mark.parametrize("scene", RIGHT, ids=lambda scene: scene.__name__)
def test_faults_of_a_hot_store_are_tolerated(scene: Callable[[type[TieredStore], Path], bool], tmp_path: Path) -> None:
    assert scene(TieredStore, tmp_path)


@pytest.mark.parametrize(("wrong", "scene"), WRONG, ids=lambda each: each.__name__)
def test_deliberately_broken_stores_are_detected(
    wrong: type[TieredStore], scene: Callable[[type[TieredStore], Path], bool], tmp_path: Path
) -> None:
    assert not scene(wrong, tmp_path)


def test_a_prune_removes_data_from_the_hot_store(pair: TieredUnderTest) -> None:
    saver = pair.open()
    follow(saver, {"list": [SECRET, *chat(3)]})
    latest(saver := pair.open())
    follow(saver, {"list": chat(3)})
    assert holds(pair)  # a link of the chain contains the previous entry's value
    saver.prune(["t"])
    assert not holds(pair)
    assert latest(pair.open()) == latest(saver) == exact({"list": chat(3)})
    follow(saver, {"list": [SECRET]}, "u")
    latest(pair.open(), "u")
    pair.open().retention.reclaim_space(full=True)
    assert latest(pair.open(), "u") == exact({"list": [SECRET]})


# -- an absent hot store ---------------------------------------------------------------------------------------------


def test_an_unreachable_hot_store_fails_no_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers.or_skip(servers.redis(own=True)) as server:
        hot = RedisSaver(server.url, timeout=1)
        with TieredSaver(hot=hot, cold=SqliteSaver(tmp_path / "cold.db"), copies_over=0) as saver:
            other = twin(saver, 0, 0)
            put(saver, "t", 1, "1")
            assert value_of(other) == 1
            server.kill()
            for number in range(2, 6):
                put(saver, "t", number, str(number))
                assert value_of(other) == value_of(saver) == number
            assert asyncio.run(other.aget_tuple(config_for("t"))) == other.get_tuple(config_for("t"))
            said = [record.getMessage() for record in caplog.records if "hot store fails" in record.getMessage()]
            assert len(said) == 1
            with pytest.raises(StoreUnavailable, match=r"thread 't': nothing was removed.*remove again"):
                saver.delete_thread("t")
            assert value_of(other) == 5
            monkeypatch.setattr(driver, "PAUSE", 0.0)
            server.restart()
            saver.setup()
            put(saver, "t", 6, "6")
            assert value_of(other) == value_of(saver) == 6
            saver.delete_thread("t")
            assert value_of(other) is None
            assert [record.getMessage() for record in caplog.records if "answers again" in record.getMessage()]


def test_an_unreachable_cold_store_is_named(pair: TieredUnderTest, tmp_path: Path) -> None:
    with servers.or_skip(servers.redis(own=True)) as server:
        cold = RedisSaver(server.url, timeout=1)
        with TieredSaver(hot=MemorySaver(), cold=cold, copies_over=0) as saver:
            put(saver, "t", 1, "1")
            assert value_of(saver) == 1
            server.kill()
            for act in (lambda: put(saver, "t", 2, "2"), lambda: value_of(saver), lambda: value_of(twin(saver, 0, 0))):
                with pytest.raises(StoreUnavailable, match=str(server.port)):
                    act()


@pytest.mark.slow
def test_a_hot_store_flushed_killed_and_restored_at_random_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two savers write and read in turn.

    No acknowledged write is lost, and each read returns the head.
    """
    monkeypatch.setattr(driver, "PAUSE", 0.01)
    chance = random.Random(sized(1, 1, None))
    moments, ended = sized(3, 12, 500), threading.Event()
    with servers.or_skip(servers.redis(VOLATILE, own=True)) as server, ThreadPoolExecutor(1) as pool:
        cold = f"sqlite:///{tmp_path}/cold.db"
        hot = partial(RedisSaver, server.url, durability="any", timeout=1)
        one, other = (TieredSaver(hot=hot(), cold=open_saver(cold), copies_over=0) for _ in "ab")
        with one, other:
            chaos = pool.submit(disturb, server, chance, moments, ended)
            acknowledged: dict[str, int] = {}
            number, hits, trips = 0, 0, Trips()
            while not chaos.done() or number < 50:
                number += 1
                thread, saver = f"thread {chance.randrange(4)}", chance.choice((one, other))
                assert latest(saver, thread) == said(acknowledged.get(thread))
                follow(saver, {"list": chat(number % 40), "n": number}, thread)
                acknowledged[thread] = number
                for each in (one, other, twin(one, 0, 0)):
                    assert latest(each, thread) == said(number)
                trips.taken()
                assert latest(with_tap(twin(one, 0, 0), trips), thread) == said(number)
                hits += trips.taken() == "hcc"
            assert chaos.result() == moments
            assert hits


def said(number: int | None) -> Any:
    return None if number is None else exact({"list": chat(number % 40), "n": number})


def disturb(server: RedisServer, chance: random.Random, moments: int, ended: threading.Event) -> int:
    """Flush, kill, or reset the server to an earlier snapshot, `moments` times."""
    saved = server.directory / "dump.rdb"
    kept = server.directory / "kept.rdb"
    for _ in range(moments):
        ended.wait(chance.random() / 10)
        with Redis.from_url(server.url, retry=Retry(NoBackoff(), 3)) as client:
            what = chance.choice(("flush", "kill", "keep", "put back") if kept.exists() else ("flush", "keep"))
            if what == "flush":
                client.flushall()
            elif what == "keep":
                client.save()
                saved.replace(kept)
            else:
                server.kill()
                if what == "put back":
                    shutil.copy(kept, saved)
                server.restart()
                saved.unlink(missing_ok=True)
    return moments


# -- with other features -----------------------------------------------------------------------------------------------


def test_existing_threads_of_the_hot_store_are_left_alone(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_store(redis_server.url) as hot, closing(SqliteUnderTest(str(tmp_path / "cold.db"))) as cold:
        put(hot.open(), "t", "of the store itself", "1")
        pair = TieredUnderTest(hot, cold)
        put(pair.open(), "t", "of the pair", "1")
        assert [value_of(pair.open()), value_of(hot.open())] == ["of the pair", "of the store itself"]
        assert [info.thread_id for info in hot.open().threads()] == ["t"]
        pair.open().delete_thread("t")
        assert [value_of(pair.open()), value_of(hot.open())] == [None, "of the store itself"]


def test_copies_expire_with_the_ttl_of_the_hot_store(redis_server: RedisServer, tmp_path: Path) -> None:
    prefix = f"keel-ttl-{tmp_path.name}"
    hot = RedisSaver(redis_server.url, prefix=prefix, durability="any", ttl=60)
    with (
        TieredSaver(hot=hot, cold=SqliteSaver(tmp_path / "cold.db"), copies_over=0) as saver,
        client_of(redis_server.url) as client,
    ):
        put(saver, "t")
        assert value_of(twin(saver, 0, 0)) == 1
        keys = [key for key in client.scan_iter(f"*{prefix}:*") if client.type(key) == b"hash"]
        assert any(0 < client.ttl(key) <= 60 for key in keys)
        client.delete(*client.scan_iter(f"*{prefix}:*"))


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_both_stores_are_sealed_rotated_and_migrated(pair: TieredUnderTest, tenant: str) -> None:
    key, next_key = LocalKey("k1", bytes(range(32))), LocalKey("k2", bytes(range(1, 33)))

    def opened(*keys: LocalKey, **options: Any) -> KeelSaver:
        saver = pair.open(encryption=Keyring(*keys, **options)) if keys else pair.open()
        return saver.for_tenant(tenant) if tenant else saver

    follow(opened(), {"list": [SECRET]}, "plain")
    latest(opened(), "plain")
    assert SECRET.encode() in pair.hot.raw()
    opened(key, migrate=True).keys.migrate()
    assert SECRET.encode() not in pair.hot.raw() + pair.cold.raw()
    follow(opened(key), {"list": [SECRET, *chat(3)]})
    saver = opened(key)
    assert latest(saver) == exact({"list": [SECRET, *chat(3)]})
    follow(saver, {"list": [SECRET, *chat(4)]})
    assert [*pair.copies()]
    opened(next_key, key).keys.rotate()
    for thread, values in (("t", [SECRET, *chat(4)]), ("plain", [SECRET])):
        assert latest(opened(next_key), thread) == latest(opened(next_key), thread) == exact({"list": values})
    assert SECRET.encode() not in pair.hot.raw() + pair.cold.raw()


def test_deleting_a_tenant_removes_its_copies(pair: TieredUnderTest) -> None:
    for name in ("acme", "other"):
        follow(pair.open().for_tenant(name), {"list": [f"{SECRET} of {name}"]})
        latest(pair.open().for_tenant(name))
    assert latest(pair.open()) is None
    pair.open().tenants.delete("acme")
    assert f"{SECRET} of acme".encode() not in pair.hot.raw()
    assert latest(pair.open().for_tenant("other")) == exact({"list": [f"{SECRET} of other"]})


def test_threads_move_in_from_another_saver(tmp_path: Path) -> None:
    with old_store("sqlite", tmp_path) as old:
        with old.open() as saver:
            SCENES["chat"][0](saver, "chat")
        hot, cold = MemorySaver(), SqliteSaver(tmp_path / "cold.db")
        with TieredSaver(hot=hot, cold=cold, moving_from=old.url) as saver:
            found = SCENES["chat"][1](saver, "chat")
            assert [info.thread_id for info in saver.threads()] == ["chat"]
        with old.open() as other:
            assert SCENES["chat"][1](other, "chat") == found
        with pytest.raises(InvalidInput, match="moving_from= to TieredSaver"):
            TieredSaver(hot=MemorySaver(), cold=SqliteSaver(tmp_path / "cold.db", moving_from=old.url))


# -- opening it --------------------------------------------------------------------------------------------------------


def test_a_tiered_saver_is_opened_by_url(redis_server: RedisServer, tmp_path: Path) -> None:
    url = f"tiered:{redis_server.url},sqlite:///{tmp_path}/cold.db"
    with open_saver(url, keep_last=3) as saver:
        assert isinstance(saver, TieredSaver)
        put(saver, "by url")
        assert value_of(twin(saver, 0, 0), "by url") == 1
        assert saver.info().threads == 1
        assert (saver.info().backend, saver.info().durability) == ("tiered", open_saver_facts(tmp_path))
        assert list(saver.check()) == []
        assert saver.migrations() == []
        assert "RedisSaver" in repr(saver)
        assert "SqliteSaver" in repr(saver)
        saver.delete_thread("by url")
        assert saver.retention.reclaim_space(full=True).before
    with open_saver(url, read_only=True) as looking:
        assert type(looking) is SqliteSaver
    with open_saver(f"tiered:memory:,files:{tmp_path}/files") as saver:
        put(saver, "t")
    with FileSaver(tmp_path / "files") as alone:
        assert value_of(alone) == 1


def open_saver_facts(directory: Path) -> str:
    with open_saver(f"sqlite:///{directory}/cold.db") as cold:
        return cold.info().durability


@pytest.mark.parametrize(
    "url",
    [
        "tiered:",
        "tiered:redis://user:hunter2@localhost/0",
        "tiered:redis://user:hunter2@localhost/0,nowhere://user:hunter2@host",
        "tiered:nowhere://user:hunter2@host,sqlite:///:memory:",
        "tiered:tiered:memory:,memory:,memory:",
        "tiered:redis://user:hunter2@localhost/0;postgresql://user:hunter2@localhost/agents",
    ],
)
def test_an_invalid_tiered_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        open_saver(url)
    assert "hunter2" not in str(refused.value)


def test_a_postgres_url_may_have_several_hosts() -> None:
    hot, cold = saver_module.split_url("tiered:redis://a/0,postgresql://b:1,c:2/agents?target_session_attrs=any")
    assert (hot, cold) == ("redis://a/0", "postgresql://b:1,c:2/agents?target_session_attrs=any")


def test_two_savers_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    key = Keyring(LocalKey("k1", bytes(range(32))))
    path = tmp_path / "agent.db"
    put(SqliteSaver(path), "t")
    same = MemorySaver()
    wrong: list[tuple[str, Any, Any]] = [
        ("the same store", same, same),
        ("the same store", SqliteSaver(path), SqliteSaver(path)),
        ("hot must be a saver", "redis://localhost", MemorySaver()),
        ("cold must be a saver", MemorySaver(), None),
        ("cold has its own keys", MemorySaver(), SqliteSaver(path, encryption=key)),
        ("hot has its own keys", MemorySaver(encryption=key), SqliteSaver(path)),
        ("hot is a tenant's", MemorySaver().for_tenant("acme"), SqliteSaver(path)),
        ("cold is read-only", MemorySaver(), SqliteSaver(path, read_only=True)),
    ]
    for message, hot, cold in wrong:
        with pytest.raises(InvalidInput, match=message):
            TieredSaver(hot=hot, cold=cold)
    for wrong_size in (-1, 1.5, True):
        with pytest.raises(InvalidInput, match="copies_over="):
            TieredSaver(hot=MemorySaver(), cold=MemorySaver(), copies_over=wrong_size)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="on_conflict"):
        TieredSaver(hot=MemorySaver(), cold=MemorySaver(), on_conflit="fork")  # type: ignore[call-arg]


@pytest.mark.slow
async def test_a_tiered_saver_is_closed_in_its_loop(redis_server: RedisServer, postgres_server: PostgresServer) -> None:
    with redis_store(redis_server.url) as hot, postgres_store(postgres_server.url) as cold:
        async with TieredSaver(
            copies_over=0,
            hot=RedisSaver(redis_server.url, prefix=hot.prefix, durability="any"),
            cold=PostgresSaver(postgres_server.url, schema=cold.schema),
        ) as saver:
            await aput(saver, "t")
            for _ in range(2):
                assert (found := await twin(saver, 0, 0).aget_tuple(config_for("t")))
                assert found.checkpoint["channel_values"] == {"v": 1}
            await asyncio.gather(*(aput(saver, f"thread {number}") for number in range(20)))
            assert len([info async for info in saver.athreads()]) == 21
            await saver.adelete_thread("t")
            async with saver.for_tenant("acme") as view:
                await aput(view, "t")
            assert await view.aget_tuple(config_for("t"))  # a view is closed with its saver
        with pytest.raises(StoreClosed):
            await saver.aget_tuple(config_for("t"))
        gc.collect()


class TwoColdStores:
    """Cold stores on SQLite, each with stamps from 1, before one hot store.

    The state is in items.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, cold: str) -> TieredSaver:
        savers = [SqliteSaver(self._directory / name) for name in ("hot", cold)]
        return TieredSaver(hot=savers[0], cold=savers[1], copies_over=0)

    def put(self, cold: str, text: str, number: int) -> None:
        before = config_for("t", f"{number - 1}" if number > 1 else None)
        # Only the items distinguish one from the other, not even the time.
        values: Any = {"v": [f"{text} {nth} ".ljust(500, "x") for nth in range(30)]}
        with self.open(cold) as saver:
            saver.put(before, checkpoint_of(f"{number}", values), METADATA, {"v": number})

    def read(self, cold: str) -> set[str]:
        """Return the values that two savers read: the second has the first one's copy."""
        found = set()
        for _ in range(2):
            with self.open(cold) as saver:
                found.add(value_of(saver)[0].split()[0])
                assert asyncio.run(saver.aget_tuple(config_for("t"))) is not None
        return found


def test_a_copy_belongs_to_its_own_cold_store(tmp_path: Path) -> None:
    stores = TwoColdStores(tmp_path)
    for cold in ("x", "y"):
        stores.put(cold, cold, 1)
    for _ in range(2):
        assert (stores.read("x"), stores.read("y")) == ({"x"}, {"y"})
    for cold in ("x", "y"):  # links are added to no chain of the other
        stores.put(cold, f"{cold}{cold}", 2)
    assert (stores.read("x"), stores.read("y")) == ({"xx"}, {"yy"})


def test_a_copy_of_data_undone_by_a_backup_is_not_read(tmp_path: Path) -> None:
    stores = TwoColdStores(tmp_path)
    stores.put("cold", "one", 1)
    shutil.copy(tmp_path / "cold", tmp_path / "backup")
    stores.put("cold", "undone", 2)
    assert stores.read("cold") == {"undone"}
    (hot := tmp_path / "hot.backup").write_bytes((tmp_path / "hot").read_bytes())
    shutil.copy(tmp_path / "backup", tmp_path / "cold")
    assert stores.read("cold") == {"one"}
    stores.put("cold", "again", 2)
    shutil.copy(hot, tmp_path / "hot")
    assert stores.read("cold") == {"again"}


def test_a_process_extends_no_chain_of_another_cold_store(tmp_path: Path) -> None:
    stores = TwoColdStores(tmp_path)
    with stores.open("x") as saver:
        first = saver.put(config_for("t"), checkpoint_of("1", {"v": ["x " + "x" * 500] * 30}), METADATA, {"v": 1})
        stores.put("y", "y", 1)
        assert stores.read("y") == {"y"}
        saver.get_tuple(config_for("t"))  # it checks whether there is a chain
        saver.put(first, checkpoint_of("2", {"v": ["x " + "x" * 500] * 31}), METADATA, {"v": 2})
    assert stores.read("x") == {"x"}
    assert stores.read("y") == {"y"}
