"""Concurrent equal calls whose holders die, sleep or lose the store run once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support.places import ON_SERVERS, Place
from support.process_children import exit_code, forked
from support.tools.flight import ELSEWHERE, SECRET, Flight, ask, hold, wait_until

from langgraph_keel import KeelSaver, MemorySaver, StoreError, StoreUnavailable, ToolCache, ToolOutcomeUnknown
from langgraph_keel.testing.faults import Counter, Fault, Injected, Tap, with_tap

FACES = pytest.mark.parametrize("face", ["sync", "async"])
SOON = 5.0
"""Maximum seconds of an operation that waits for no lease, on a busy machine."""


@pytest.fixture
def flight(place: Place, tmp_path: Path) -> Flight:
    return Flight(place, tmp_path / "runs.log")


@pytest.fixture
def saver(place: Place) -> Iterator[KeelSaver]:
    with place.open() as saver:
        saver.setup()
        yield saver


# -- concurrent callers ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_of_sixteen_processes_runs_an_equal_call(flight: Flight) -> None:
    gate, told = get_context("fork").Barrier(16), get_context("fork").SimpleQueue()
    slow = replace(flight, seconds=0.5)
    children = [forked(ask, slow, who, gate, told) for who in range(16)]
    assert [exit_code(child) for child in children] == [0] * 16
    ((_, runner),) = (line.split() for line in flight.lines("begin"))
    assert {told.get() for _ in children} == {f"by {runner}"}
    assert int(runner) in children
    flight.place.check()


@FACES
def test_one_of_sixteen_concurrent_equal_calls_runs(flight: Flight, saver: KeelSaver, face: str) -> None:
    slow = replace(flight, seconds=0.2)
    with flight.cache(saver) as cache:
        if face == "sync":
            with ThreadPoolExecutor(16) as pool:
                results = list(pool.map(lambda _: slow.call(cache), range(16)))
        else:
            results = asyncio.run(gathered(slow, cache))
    assert results == [f"by {os.getpid()}"] * 16
    assert flight.runs == 1
    assert (cache.stats.hits, cache.stats.misses) == (15, 1)


async def gathered(flight: Flight, cache: ToolCache) -> list[str]:
    return await asyncio.gather(*(flight.acall(cache) for _ in range(16)))


# -- holders -----------------------------------------------------------------------------------------------------------


@dataclass
class Holder:
    """A child process in the middle of the call."""

    pid: int
    told: Connection

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


@contextmanager
def holder(flight: Flight) -> Iterator[Holder]:
    reading, writing = get_context("fork").Pipe(duplex=False)
    child = forked(hold, flight, writing)
    writing.close()
    try:
        wait_until(lambda: flight.runs)
        yield Holder(child, reading)
    finally:
        os.kill(child, signal.SIGKILL)
        exit_code(child)
        reading.close()


@contextmanager
def waiting(flight: Flight, saver: KeelSaver, **policy: Any) -> Iterator[Callable[[], str]]:
    """Make the same call in a thread; yield a function that waits for its result."""
    with ThreadPoolExecutor(1) as pool, flight.cache(saver, **policy) as cache:
        found = pool.submit(flight.at_once().call, cache)
        time.sleep(0.3)
        assert not found.done()
        yield lambda: found.result(60)


def test_a_holder_killed_on_this_machine_is_taken_over_immediately(flight: Flight, saver: KeelSaver) -> None:
    """Before its lease of 30 seconds ends."""
    busy = replace(flight, seconds=60)
    with holder(busy) as other, waiting(flight, saver, unknown="retry") as result:
        other.send(signal.SIGKILL)
        since = time.monotonic()
        assert result() == f"by {os.getpid()}"
        assert time.monotonic() - since < SOON
    assert flight.runs == 2


@pytest.mark.slow
def test_a_holder_killed_elsewhere_is_taken_over_after_its_lease(flight: Flight, saver: KeelSaver) -> None:
    away = replace(flight, seconds=60, lease=3.0, holder=ELSEWHERE)
    with holder(away) as other, waiting(flight, saver, unknown="retry") as result:
        (call,) = saver.tools.calls("t")
        assert (call.state, call.holder) == ("claimed", ELSEWHERE)
        other.send(signal.SIGKILL)
        since = time.monotonic()
        assert result() == f"by {os.getpid()}"
        # The claim, renewed every second, may be a little older than that.
        assert 1.0 < time.monotonic() - since < away.lease + SOON
    assert flight.runs == 2


class Late(Tap):
    """Holds back the first reply until a process has ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def replied(self, request: Any, reply: Any) -> None:
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)


def test_a_holder_that_finished_and_exited_leaves_no_doubt(flight: Flight, saver: KeelSaver) -> None:
    """After we read its claim, it stores its result and ends, before we look for it."""
    with holder(replace(flight, seconds=0.5)) as other, flight.cache(with_tap(saver, Late(other.pid))) as cache:
        assert flight.call(cache) == f"by {other.pid}"
    assert flight.runs == 1


def test_an_interrupted_call_is_not_repeated_silently(flight: Flight, saver: KeelSaver) -> None:
    with holder(replace(flight, seconds=60)) as other, waiting(flight, saver) as result:
        other.send(signal.SIGKILL)
        with pytest.raises(ToolOutcomeUnknown, match="'make' in thread 't'"):
            result()
    assert flight.runs == 1


@pytest.mark.slow
def test_a_working_holder_is_awaited(flight: Flight, saver: KeelSaver) -> None:
    """Waits for two leases. On a busy machine a lease of 1 s was renewed too late."""
    slow = replace(flight, seconds=6.5, lease=3.0, holder=ELSEWHERE)
    with holder(slow) as other, waiting(flight, saver, unknown="retry") as result:
        assert result() == f"by {other.pid}"
        assert other.told.recv() == (f"by {other.pid}", [])
    assert flight.runs == 1


@pytest.mark.slow
def test_a_holder_paused_beyond_its_lease_does_not_overwrite(flight: Flight, saver: KeelSaver) -> None:
    """The newer result stays; the sleeper warns that its own result is not stored."""
    sleepy = replace(flight, seconds=2.0, lease=1.0)
    with holder(sleepy) as other, flight.cache(saver, unknown="retry") as cache:
        other.send(signal.SIGSTOP)
        assert flight.call(cache) == f"by {os.getpid()}"
        other.send(signal.SIGCONT)
        result, warnings = other.told.recv()
        assert result == f"by {other.pid}"
        assert any("'make' was slow, and its claim was taken over" in warning for warning in warnings)
        assert flight.call(cache) == f"by {os.getpid()}"
    assert flight.runs == 2
    (call,) = saver.tools.calls("t")
    assert (call.state, call.is_kept) == ("done", True)


def test_a_paused_holder_that_was_not_replaced_finishes(flight: Flight, saver: KeelSaver) -> None:
    sleepy = replace(flight, seconds=0.5, lease=1.0)
    with holder(sleepy) as other:
        other.send(signal.SIGSTOP)
        time.sleep(1.5)
        other.send(signal.SIGCONT)
        assert other.told.recv() == (f"by {other.pid}", [])
        with flight.cache(saver) as cache:
            assert flight.call(cache) == f"by {other.pid}"
    assert flight.runs == 1


# -- a store that fails ------------------------------------------------------------------------------------------------


class Cancelling(Tap):
    """Cancels the task that sends request `at`, if it still waits `after` s later."""

    def __init__(self, at: int, after: float) -> None:
        self._left, self._after = at, after
        self._cancelling: asyncio.TimerHandle | None = None

    def sending(self, request: Any) -> None:
        if task := running():
            self._left -= 1
            if self._left == -1:
                self._cancelling = asyncio.get_running_loop().call_later(self._after, task.cancel)

    def replied(self, request: Any, reply: Any) -> None:
        if self._cancelling and running():
            self._cancelling.cancel()


def running() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # the keeper's thread
        return None


@pytest.mark.slow
@FACES
@pytest.mark.parametrize("lost_reply", [False, True], ids=["not sent", "reply lost"])
def test_a_failed_claim_blocks_no_call(flight: Flight, saver: KeelSaver, face: str, lost_reply: bool) -> None:
    fault = Fault(0, lost_reply=lost_reply)
    with flight.cache(with_tap(saver, fault)) as cache, flight.cache(saver) as other:
        with pytest.raises(Injected):
            flight.call(cache, face)
        since = time.monotonic()
        assert flight.call(other, face) == flight.call(cache, face) == f"by {os.getpid()}"
        assert time.monotonic() - since < SOON
    assert flight.runs == 1


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1], ids=["claim", "result"])
def test_a_cancelled_request_blocks_no_call(flight: Flight, saver: KeelSaver, at: int) -> None:
    """Whether it reached the store or not, and at any moment."""
    cancellations: list[int] = []

    async def cancelled(x: int) -> None:
        try:
            await flight.acall(flight.cache(with_tap(saver, Cancelling(at, x * 5e-5))), x)
        except asyncio.CancelledError:
            cancellations.append(x)

    async def many() -> None:
        await flight.acall(other, -1)
        for x in range(30):
            await asyncio.create_task(cancelled(x))
            await asyncio.wait_for(flight.acall(other, x), SOON)

    with flight.cache(saver) as other:
        asyncio.run(many())
    assert flight.runs == 31
    assert {call.state for call in saver.tools.calls("t")} == {"done"}
    assert cancellations


class Down(Tap):
    """Fails all requests from number `at`."""

    def __init__(self, at: int) -> None:
        self._left = at

    def sending(self, request: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise Injected("the server is gone")


@pytest.mark.slow
@FACES
def test_a_result_that_cannot_be_stored_is_unknown(flight: Flight, saver: KeelSaver, face: str) -> None:
    brief = replace(flight, lease=1.0)
    with brief.cache(with_tap(saver, Down(1))) as cache, flight.cache(saver) as other:
        with pytest.raises(Injected):
            brief.call(cache, face)
        with pytest.raises(ToolOutcomeUnknown):
            flight.call(other, face)
    assert flight.runs == 1


@FACES
def test_a_result_that_could_not_be_stored_immediately_is_stored_later(
    flight: Flight, saver: KeelSaver, face: str
) -> None:
    with flight.cache(with_tap(saver, Fault(1))) as cache:
        with pytest.raises(Injected):
            flight.call(cache, face)
        since = time.monotonic()
        assert flight.call(cache, face) == f"by {os.getpid()}"
        assert time.monotonic() - since < SOON
    assert flight.runs == 1


@FACES
def test_a_result_whose_reply_was_lost_is_stored(flight: Flight, saver: KeelSaver, face: str) -> None:
    with flight.cache(with_tap(saver, Fault(1, lost_reply=True))) as cache:
        with pytest.raises(Injected):
            flight.call(cache, face)
        assert flight.call(cache, face) == f"by {os.getpid()}"
    assert flight.runs == 1


@ON_SERVERS
@FACES
def test_a_server_lost_during_a_call_leaves_a_doubt(flight: Flight, saver: KeelSaver, face: str) -> None:
    with flight.place.proxy() as proxy, flight.place.through(proxy).open() as far:
        away = Going(flight.place, flight.log, lease=1.0, proxy=proxy)
        with away.cache(far) as cache, pytest.raises(StoreUnavailable):
            away.call(cache, face)
    with flight.cache(saver) as cache, pytest.raises(ToolOutcomeUnknown):
        flight.call(cache, face)
    assert flight.runs == 1


@dataclass(frozen=True)
class Going(Flight):
    """A tool during which the server goes away."""

    proxy: Any = None

    def make(self, x: int = 0) -> str:
        """Make."""
        self.proxy.refuse()
        return super().make(x)

    async def amake(self, x: int = 0) -> str:
        """Make."""
        self.proxy.refuse()
        return await super().amake(x)


@ON_SERVERS
@FACES
@pytest.mark.parametrize("side", ["request", "reply"])
def test_a_connection_that_breaks_during_a_claim_blocks_no_call(flight: Flight, face: str, side: str) -> None:
    with flight.place.proxy() as proxy, flight.place.through(proxy).open() as far, flight.cache(far) as cache:
        flight.call(cache, face, 1)
        (proxy.cut_before_request if side == "request" else proxy.cut_before_reply)()
        since = time.monotonic()
        try:
            flight.call(cache, face, 2)
        except StoreError:
            flight.call(cache, face, 2)
        assert time.monotonic() - since < SOON
    assert flight.runs == 2


# -- round trips -------------------------------------------------------------------------------------------------------


def trips(flight: Flight, saver: KeelSaver, face: str) -> list[int]:
    """Round trips of a call, hit, miss, and of another cache, which reads the secret."""
    counter, counts = Counter(), []
    one, other = (ToolCache(with_tap(saver, counter)) for _ in range(2))
    for cache, x in ((one, 1), (one, 1), (one, 2), (other, 1), (other, 1), (other, 3)):
        flight.call(cache, face, x)
        counts.append(counter.taken())
    return counts


@FACES
def test_a_hit_takes_one_trip_and_a_miss_takes_two(flight: Flight, saver: KeelSaver, face: str) -> None:
    assert trips(flight, saver, face) == [3, 1, 2, 2, 1, 2]
    assert flight.runs == 3


@FACES
def test_a_hit_takes_one_trip_in_memory(tmp_path: Path, face: str) -> None:
    assert trips(Flight(Place("memory", ""), tmp_path / "runs.log"), MemorySaver(), face) == [3, 1, 2, 2, 1, 2]


@ON_SERVERS
def test_each_trip_is_one_round_trip_on_the_wire(flight: Flight) -> None:
    with flight.place.proxy() as proxy, flight.place.through(proxy).open() as far, flight.cache(far) as cache:
        flight.call(cache, x=0)
        counts = []
        for x in (1, 1, 2, 2):
            before = proxy.round_trips
            flight.call(cache, x=x)
            counts.append(proxy.round_trips - before)
    assert counts == [2, 1, 2, 1]
    assert SECRET not in flight.log.read_bytes()
