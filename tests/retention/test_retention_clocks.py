"""Hosts whose clocks differ by hours or years: effects on lists and sweeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from support.places import Place

from langgraph_keel import KeelSaver, MemorySaver, Retention
from langgraph_keel.engine.session import Session
from langgraph_keel.retention import sweep as sweeps
from langgraph_keel.testing.faults import Counter, with_tap
from langgraph_keel.testing.rig import at, checkpoint_of

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY, YEAR = timedelta(days=1), timedelta(days=365)
_numbers = count()


def put(saver: KeelSaver, thread: str, when: datetime | str, **metadata: Any) -> None:
    """Store a checkpoint in a thread, by a host whose clock shows `when`."""
    latest = saver.get_tuple(at(thread))
    ts = when if isinstance(when, str) else when.isoformat()
    checkpoint: Any = checkpoint_of(f"{next(_numbers):08}", {"n": 1}, ts=ts)
    kept: Any = {"source": "loop", "step": 1, "parents": {}, **metadata}
    saver.put(latest.config if latest else at(thread), checkpoint, kept, {"n": 1})


def listed(saver: KeelSaver, **asked: Any) -> list[str]:
    return [info.thread_id for info in saver.threads(**asked)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], None]:
    """Sets the clock of the process that sweeps."""
    return lambda now: monkeypatch.setattr(Session, "milliseconds", int(now.timestamp() * 1000))


def test_a_slow_clock_does_not_make_a_thread_look_older(place: Place, clock: Callable[[datetime], None]) -> None:
    with place.open() as right, place.open() as behind:
        for thread in ("t", "other"):
            put(right, thread, NOW)
        put(behind, "t", NOW - 3 * DAY)
        put(behind, "t", NOW - 3 * DAY)
        assert listed(right) == listed(right, since=NOW) == ["t", "other"]
        assert {info.updated_at for info in behind.threads()} == {NOW.isoformat()}
        clock(NOW + timedelta(hours=2))
        assert not right.retention.sweep(Retention(ttl=DAY)).threads  # the thread with the new write is kept
        assert not behind.retention.sweep(Retention(last=1, idle=DAY)).threads
        clock(NOW + 2 * DAY)
        assert behind.retention.sweep(Retention(ttl=DAY)).deleted == 2


@pytest.mark.parametrize("when", [(NOW + YEAR).isoformat(), "no time"], ids=["a year ahead", "no time"])
def test_a_fast_clock_does_not_make_a_thread_live_forever(
    place: Place, clock: Callable[[datetime], None], when: str
) -> None:
    ttl = Retention(ttl=DAY)
    with place.open() as right, place.open() as ahead:
        put(ahead, "t", when)
        put(ahead, "u", when)
        put(right, "old", NOW - 2 * DAY)
        clock(NOW)
        assert right.retention.sweep(ttl, dry_run=True).deleted == 1
        assert [each.thread_id for each in right.retention.sweep(ttl).threads] == ["old"]  # not the other two
        clock(NOW + 0.9 * DAY)
        put(ahead, "u", when)  # it is in use again
        assert not ahead.retention.sweep(ttl).threads
        clock(NOW + 1.1 * DAY)
        assert [each.thread_id for each in asyncio.run(right.retention.asweep(ttl)).threads] == ["t"]
        put(right, "u", NOW + 1.2 * DAY)  # by a host whose clock is right, so its time counts
        clock(NOW + 2.1 * DAY)
        assert not right.retention.sweep(ttl).threads
        clock(NOW + 2.3 * DAY)
        assert [each.thread_id for each in right.retention.sweep(ttl).threads] == ["u"]
        assert listed(right) == []


def test_an_idle_thread_of_a_host_with_a_fast_clock_is_pruned(place: Place, clock: Callable[[datetime], None]) -> None:
    with place.open() as saver:
        for _ in range(3):
            put(saver, "t", NOW + YEAR)
        idle = Retention(last=1, idle=DAY)
        clock(NOW)
        assert not saver.retention.sweep(idle).threads
        clock(NOW + 2 * DAY)
        assert [each.removed for each in saver.retention.sweep(idle).threads] == [2]


def test_a_sweeper_whose_clock_was_corrected_deletes_expired_threads(clock: Callable[[datetime], None]) -> None:
    """A sweeper whose clock was ahead has noted that it saw the thread then."""
    with MemorySaver() as saver:
        put(saver, "t", NOW + 10 * YEAR)
        for now, deleted in ((NOW + YEAR, 0), (NOW, 0), (NOW + 2 * DAY, 1)):
            clock(now)
            assert saver.retention.sweep(Retention(ttl=DAY)).deleted == deleted


def test_a_sweep_over_threads_of_hosts_with_different_clocks(
    clock: Callable[[datetime], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads in use are skipped, even if a page of other threads comes first."""
    monkeypatch.setattr(sweeps, "PAGE", 3)
    clock(NOW)
    with MemorySaver() as saver:
        for number in range(7):
            put(saver, f"ahead {number}", NOW + YEAR)
            put(saver, f"in use {number}", NOW)
            put(saver, f"old {number}", NOW - 2 * DAY)
        counter = Counter()
        swept = with_tap(saver, counter).retention.sweep(Retention(ttl=DAY))
        assert (swept.looked, swept.deleted) == (14, 7)
        assert {thread.partition(" ")[0] for thread in listed(saver)} == {"ahead", "in"}
        clock(NOW + 1.1 * DAY)
        assert saver.retention.sweep(Retention(ttl=DAY)).deleted == 14


def test_time_filters_use_the_latest_time_of_each_thread(place: Place) -> None:
    with place.open() as saver:
        put(saver, "t", NOW, user_id="ada")
        put(saver, "t", NOW - DAY, user_id="ada")
        assert listed(saver, owner="ada", until=NOW - timedelta(hours=1)) == []
        assert listed(saver, owner="ada", since=NOW) == ["t"]
        (info,) = saver.threads()
        assert listed(saver, after=info.cursor) == []
