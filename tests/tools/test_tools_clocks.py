"""Hosts whose clocks differ: a running call is made once; one cut off is found."""

from __future__ import annotations

import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from support.tools.caches import Clock
from support.tools.flight import ELSEWHERE, Flight, wait_until
from test_tools_flight import flight, holder, saver

from langgraph_keel import KeelSaver, MemorySaver, NotFound, ToolOutcomeUnknown
from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.leases import Watch
from langgraph_keel.engine.tables import Cells
from langgraph_keel.errors import CorruptStore
from langgraph_keel.tools import ledger
from langgraph_keel.tools.ledger import CALLS, COUNTS, CallRecord, Ledger, shelf_of

__all__ = ["flight", "saver"]

SKEWS = [sign * seconds for seconds in (40, 3600, 31_536_000) for sign in (1, -1)]
"""Seconds by which the clock of one host is ahead of that of the other."""


def state_of(saver: KeelSaver) -> str:
    """Return the stored state of the only call, whatever the clocks say."""
    ((_, kept),) = saver.engine.run(Cells(saver.engine.session, CALLS, "t").every())
    return kept.record.state


@pytest.mark.parametrize("name", [None, ELSEWHERE])
def test_a_running_call_is_made_once_under_any_clock_skew(
    flight: Flight, saver: KeelSaver, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """Each of many callers has its own clock."""
    slow = replace(flight, seconds=1.0, holder=name)
    skews = iter(SKEWS * 1000)
    monkeypatch.setattr("langgraph_keel.tools.cache._now", lambda: Clock().now + 1000 * next(skews))
    with holder(slow) as other, ThreadPoolExecutor(len(SKEWS)) as pool:
        with flight.cache(saver, unknown="retry") as cache:
            results = list(pool.map(lambda _: flight.at_once().call(cache), SKEWS))
        assert results == [f"by {other.pid}"] * len(SKEWS)
    assert flight.runs == 1


@pytest.mark.parametrize("skew", [3600, -3600])
def test_an_interrupted_call_is_in_doubt_after_a_lease(
    flight: Flight, saver: KeelSaver, skew: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The doubt is stored, so no other process has to watch the claim."""
    away = replace(flight, seconds=60, lease=1.0, holder=ELSEWHERE, skew=skew)
    with holder(away) as other:
        other.send(signal.SIGKILL)
        with flight.cache(saver) as cache, pytest.raises(ToolOutcomeUnknown):
            flight.at_once().call(cache)
    assert (flight.runs, state_of(saver)) == (1, "unknown")
    assert "watching for up to 1 s" in caplog.text
    with replace(flight, lease=600.0).cache(saver) as cache:
        ((key, _),) = saver.engine.run(Cells(saver.engine.session, CALLS, "t").every())
        cache.settle("t", key, "retry")
        assert flight.at_once().call(cache) == f"by {os.getpid()}"


@pytest.mark.parametrize("skew", [3600, -3600])
def test_a_person_can_settle_dead_calls_but_not_live_ones(
    flight: Flight, saver: KeelSaver, skew: int, caplog: pytest.LogCaptureFixture
) -> None:
    away = replace(flight, seconds=60, lease=1.5, holder=ELSEWHERE, skew=skew)
    with holder(away) as other, flight.cache(saver) as cache:
        ((key, _),) = saver.engine.run(Cells(saver.engine.session, CALLS, "t").every())
        with pytest.raises(NotFound, match="is claimed: there is nothing to settle"):
            cache.settle("t", key, "retry")
        assert state_of(saver) == "claimed"
        other.send(signal.SIGKILL)
        with flight.cache(saver) as another:  # this cache has not observed a recent renewal
            another.settle("t", key, "done", "made")
        assert flight.at_once().call(cache) == "made"
    assert flight.runs == 1
    assert "of tool 'make' was started on another-host and may still run: watching for up to 1.5 s" in caplog.text


def test_a_renewal_always_changes_the_claim() -> None:
    """Also if the host's clock goes back or stops; the claim keeps its own lease."""
    saver = MemorySaver()
    engine = saver.engine
    calls = Ledger(engine.session, Watch(30.0))
    mine = CallRecord("make", "1", ledger.CLAIMED, 1, until=1000, holder=ELSEWHERE, lineage="l", lease=90_000)
    claim: Any = engine.run(calls.claim(calls.draft(shelf_of("t"), "k" * 20, mine)))
    marks = []
    for until in (1000, 0, 0, 5000, 4000):
        assert engine.run(calls.renew(claim, until))
        ((_, kept),) = engine.run(Cells(engine.session, CALLS, "t").every())
        marks.append(kept.record.until)
        assert kept.record.lease == 90_000
    assert all(later > before for before, later in pairwise([1000, *marks]))


def test_a_claim_is_observed_for_the_lease_of_its_holder() -> None:
    saver, seconds = MemorySaver(), [0.0]
    engine = saver.engine
    impatient = Ledger(engine.session, Watch(1.0, lambda: seconds[0]))
    theirs = CallRecord("make", "1", ledger.CLAIMED, 1, until=1000, holder=ELSEWHERE, lineage="l", lease=90_000)
    engine.run(impatient.claim(impatient.draft(shelf_of("t"), "a" * 20, theirs)))
    for at, expected in ((0.0, "Busy"), (1.0, "Busy"), (90.0, "Doubtful")):
        seconds[0] = at
        found = engine.run(impatient.claim(impatient.draft(shelf_of("t"), "a" * 20, theirs)))
        assert type(found).__name__ == expected


@pytest.mark.parametrize("wrong", [{"lease": "long"}, {"lineage": []}, {"answers": [b""]}, {"untold": 5}])
def test_call_fields_of_wrong_types_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CALLS.unpack([{"tool": "look", "state": "claimed", **wrong}])


def test_a_claimed_call_is_listed_as_unknown_after_its_lease(flight: Flight, saver: KeelSaver) -> None:
    with holder(replace(flight, seconds=60, lease=1.0, holder=ELSEWHERE)):
        assert [call.state for call in saver.tools.calls("t")] == ["claimed"]
    wait_until(lambda: [call.state for call in saver.tools.calls("t")] == ["unknown"])
    assert state_of(saver) == "claimed"


@pytest.mark.parametrize("parts", [[], [math.inf], [None]])
def test_malformed_hit_counts_are_damage(parts: Any) -> None:
    session = MemorySaver().engine.session
    with pytest.raises(CorruptStore, match="the count of hits of tool call"):
        Cells(session, COUNTS, "t").keep("k", Cell("token", session.codec.encode(parts)))
