"""Upkeep by a thread of the saver: prunes, deletions and failures of the store."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from support.places import Place
from support.retention.threads import Written

from langgraph_keel import (
    FileSaver,
    InvalidInput,
    KeelSaver,
    MemorySaver,
    PostgresSaver,
    RedisSaver,
    Retention,
    SqliteSaver,
)
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.errors import CorruptStore, StoreBusy, StoreUnavailable
from langgraph_keel.provenance.methods import engine_apart
from langgraph_keel.retention import background as upkeep_thread
from langgraph_keel.retention.background import UpkeepThread
from langgraph_keel.testing.faults import Counter, Tap, with_tap

FIFTY_YEARS = 24 * 365 * 50


def counts(saver: KeelSaver) -> dict[str, int]:
    return {info.thread_id: info.checkpoints for info in saver.threads()}


def four_threads(saver: KeelSaver) -> None:
    """Two chats and a job that ended long ago; a chat that will end in many years."""
    for name, hours in (("chat-1", 1), ("chat-2", 1), ("job", 1), ("chat-live", FIFTY_YEARS)):
        Written(saver, name, hours=hours).follow(4)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(params=[False, True], ids=["plain", "strict"])
def written(place: Place, request: pytest.FixtureRequest) -> Iterator[tuple[KeelSaver, Callable[..., Written]]]:
    """A saver that keeps two checkpoints, and a writer on it or on LangGraph's copy."""
    with place.open(keep_last=2, upkeep_every=0.05) as saver:
        clone = saver.with_allowlist([("a", "b")]) if request.param else saver
        yield saver, lambda name: Written(clone, name)


def test_a_saver_prunes_threads_that_it_wrote(written: Any) -> None:
    saver, writes = written
    four_threads(saver)
    writes("t").follow(5)
    until(lambda: set(counts(saver).values()) == {2})


def test_a_saver_deletes_expired_threads(tmp_path: Any) -> None:
    with SqliteSaver(tmp_path / "keel.db") as other:
        four_threads(other)
    with SqliteSaver(tmp_path / "keel.db", ttl=timedelta(days=1), upkeep_every=0.05) as saver:
        assert len(counts(saver)) == 4
        Written(saver, "new", hours=FIFTY_YEARS).follow(2)
        until(lambda: set(counts(saver)) == {"chat-live", "new"})


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_saver_prunes_when_it_is_closed(tmp_path: Any, face: str) -> None:
    async def write() -> None:
        async with SqliteSaver(tmp_path / "keel.db", keep_last=1) as saver:
            Written(saver).follow(3)

    if face == "async":
        asyncio.run(write())
    else:
        with SqliteSaver(tmp_path / "keel.db", keep_last=1) as saver:
            Written(saver).follow(3)
            saver.close()
    with SqliteSaver(tmp_path / "keel.db", keep_last=1) as saver:
        assert counts(saver) == {"t": 1}
    assert not [thread for thread in threading.enumerate() if thread.name == "keel-upkeep"]


def test_upkeep_adds_no_trip_to_a_put() -> None:
    with MemorySaver(keep_last=1, upkeep_every=1000) as saver:
        counter = Counter()
        thread = Written(with_tap(saver, counter))
        thread.put()
        assert counter.taken() == 2  # the checkpoint and its writes
        assert upkeep_in(with_tap(saver, counter)) is upkeep_in(saver)


def test_errors_in_upkeep_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    saver = MemorySaver(keep_last=1, upkeep_every=1000)
    Written(saver).follow(2)
    upkeep_in(saver).saver = None
    with caplog.at_level(logging.WARNING):
        saver.close()
    assert "upkeep of the last threads: AttributeError" in caplog.text


def test_the_upkeep_thread_ends_with_a_collected_saver() -> None:
    Written(MemorySaver(keep_last=1, upkeep_every=0.05)).put()
    until(lambda: gc.collect() >= 0 and "keel-upkeep" not in {thread.name for thread in threading.enumerate()})


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep_last": 0},
        {"keep_last": True},
        {"ttl": 0},
        {"ttl": -1},
        {"upkeep_every": 0},
        {"upkeep_every": None},
        {"ttl": "1d"},
        {"owner": "ann"},
    ],
    ids=str,
)
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        MemorySaver(**wrong)


# -- when the store fails --------------------------------------------------------------------------------------


class Failing(Tap):
    """Raises an error at each of the first `times` requests; counts all requests."""

    def __init__(self, error: Exception, times: int = 10**6) -> None:
        self.error = error
        self.left = times
        self.asked = 0

    def sending(self, request: Any) -> None:
        self.asked += 1
        if self.left > 0:
            self.left -= 1
            raise self.error


def upkeep_in(saver: KeelSaver) -> Any:
    """Return the upkeep thread, which has no public interface."""
    return saver.engine.session.hooks.find(UpkeepThread)


def upkeep_with(saver: KeelSaver, tap: Tap) -> Any:
    """Return the upkeep of a saver, which uses a tap from now on; it is idle."""
    upkeep = upkeep_in(saver)
    upkeep.saver = with_tap(saver, tap)
    return upkeep


def three_threads(**options: Any) -> KeelSaver:
    saver = MemorySaver(keep_last=1, upkeep_every=1000, **options)
    for name in ("a", "b", "c"):
        Written(saver, name).follow(3)
    return saver


def test_a_busy_thread_is_pruned_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = three_threads()
    upkeep = upkeep_with(saver, Failing(StoreBusy("locked"), times=1))
    monkeypatch.setattr(upkeep_thread, "_read_policies", lambda engine: ())
    upkeep.round()
    assert sorted(counts(saver).values()) == [1, 1, 3]
    upkeep.round()
    assert set(counts(saver).values()) == {1}
    saver.close()


def test_an_unreadable_thread_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = three_threads()
    upkeep = upkeep_with(saver, tap := Failing(CorruptStore("broken"), times=3))
    monkeypatch.setattr(upkeep_thread, "_read_policies", lambda engine: ())
    upkeep.round()
    upkeep.round()
    assert tap.asked == 3
    saver.close()


def test_unreadable_policies_prune_nothing(caplog: pytest.LogCaptureFixture) -> None:
    saver = three_threads()
    upkeep = upkeep_with(saver, Failing(CorruptStore("broken policies"), times=1))
    upkeep.round()
    assert set(counts(saver).values()) == {3}
    assert "broken policies" in caplog.text
    upkeep.round()
    assert set(counts(saver).values()) == {1}
    saver.close()


def test_an_unavailable_server_is_asked_once_per_round(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = three_threads()
    upkeep = upkeep_with(saver, tap := Failing(StoreUnavailable("away")))
    monkeypatch.setattr(upkeep_thread, "_read_policies", lambda engine: ())
    upkeep.round()
    assert tap.asked == 1
    saver.close()
    assert tap.asked == 2
    assert len(upkeep.put_to) == 3


def test_closing_gives_up_on_a_slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Tap):
        """A slow store."""

        def sending(self, request: Any) -> None:
            time.sleep(0.1)

    monkeypatch.setattr(upkeep_thread, "_CLOSE_TIMEOUT", 0.05)
    saver = three_threads()
    upkeep = upkeep_with(saver, Slow())
    saver.close()
    assert len(upkeep.put_to) == 3


def test_closing_does_not_wait_forever_for_a_running_prune(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Hanging(Tap):
        """A store that does not answer."""

        def sending(self, request: Any) -> None:
            begun.set()
            may_end.wait(30)

    monkeypatch.setattr(upkeep_thread, "_CLOSE_TIMEOUT", 0.05)
    saver = MemorySaver(keep_last=1, upkeep_every=0.01)
    upkeep = upkeep_with(saver, Hanging())
    Written(saver).follow(2)
    assert begun.wait(30)
    saver.close()
    assert "does not answer" in caplog.text
    may_end.set()
    upkeep.thread.join(30)
    assert not upkeep.thread.is_alive()


# -- next to stored policies -----------------------------------------------------------------------------------


def test_a_stored_policy_overrides_the_savers_options() -> None:
    saver = MemorySaver(keep_last=2, upkeep_every=1000)
    saver.retention.set_policy(
        Retention(threads="vip-*", last=4),
        Retention(threads="all-*", ttl=9**9),
        Retention(threads="idle", idle=9, last=1),
    )
    for name in ("vip-1", "all-1", "idle", "chat"):
        Written(saver, name).follow(6)
    counter = Counter()
    upkeep = upkeep_with(saver, counter)
    upkeep.round()
    assert counts(saver) == {"vip-1": 4, "all-1": 6, "idle": 6, "chat": 2}
    assert counter.taken() <= 1 + 2 * 7  # the policies once, and the two threads that are pruned
    upkeep.round()
    assert counter.taken() == 0
    saver.close()


def test_a_stored_policy_sets_the_ttl_of_its_threads() -> None:
    with MemorySaver() as other, MemorySaver(ttl=60, upkeep_every=1000) as saver:
        upkeep_in(saver).saver = other
        four_threads(other)
        other.retention.set_policy(Retention(threads="chat-1", last=9), Retention(threads="chat-2", ttl=60))
        upkeep_in(saver).round()
        assert set(counts(other)) == {"chat-1", "chat-live"}


# -- savers without upkeep -------------------------------------------------------------------------------------


def test_a_replay_is_not_pruned_and_has_an_owner(tmp_path: Any) -> None:
    with SqliteSaver(tmp_path / "keel.db", keep_last=1, owner=lambda config: "ann") as saver:
        apart = with_engine(saver, engine_apart(saver.engine))
        Written(apart, "replay").follow(3)
        Written(saver, "chat").follow(3)
    with SqliteSaver(tmp_path / "keel.db") as saver:
        assert counts(saver) == {"replay": 3, "chat": 1}
        found = saver.get_tuple({"configurable": {"thread_id": "replay"}})
        assert found
        assert found.metadata["user_id"] == "ann"  # type: ignore[typeddict-item]


@pytest.mark.parametrize("wanted", [{"keep_last": 3}, {"ttl": 60}], ids=str)
def test_a_read_only_saver_refuses_upkeep_options(tmp_path: Any, wanted: dict[str, Any]) -> None:
    for make in (SqliteSaver, FileSaver):
        with pytest.raises(InvalidInput, match="read_only"):
            make(tmp_path / "keel", read_only=True, **wanted)
    with pytest.raises(InvalidInput, match="read_only"):
        PostgresSaver("postgresql://nobody@localhost/none", read_only=True, **wanted)
    with pytest.raises(InvalidInput, match="read_only"):
        RedisSaver("redis://localhost/0", read_only=True, keep_last=3)


def test_a_saver_with_only_an_async_client_refuses_upkeep_options() -> None:
    """The upkeep thread has no event loop, so the saver is refused when it is made."""

    class Pool:
        """An async pool of psycopg, as far as a saver inspects it before its first use."""

        async def close(self) -> None:
            """Close it."""

    client = AsyncRedis()
    for wanted in ({"keep_last": 3}, {"keep_last": 3, "upkeep_every": 5.0}):
        with pytest.raises(InvalidInput, match="asweep"):
            RedisSaver(async_client=client, **wanted)
        with pytest.raises(InvalidInput, match="asweep"):
            PostgresSaver(Pool(), **wanted)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="asweep"):
        PostgresSaver(Pool(), ttl=60)  # type: ignore[arg-type]
    RedisSaver(async_client=client)
    PostgresSaver(Pool())  # type: ignore[arg-type]
    RedisSaver(client=Redis(), async_client=client, keep_last=3).close()
