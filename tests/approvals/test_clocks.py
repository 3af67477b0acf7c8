"""With any clock skew, live runs act once, and dead runs release their thread."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from langgraph.types import interrupt
from support.approvals.resuming import ANSWER, Held, State, asked, book, claim_of, graph_of, runs_of, with_runs
from support.places import Place
from support.process_children import exit_code, forked

from langgraph_keel import AlreadyDecided, KeelSaver, MemorySaver, ThreadTaken
from langgraph_keel.engine.events import Put
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.errors import StoreUnavailable
from langgraph_keel.runs import claims
from langgraph_keel.runs import hook as claims_hook

SKEWS = [sign * seconds for seconds in (40, 3600, 31_536_000) for sign in (1, -1)]
"""Seconds by which the clock of one host is ahead of the other host's."""
ELSEWHERE = "elsewhere/boot.1/17/4711"
LEASE = 3000


def config_of(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def now(skew: int = 0) -> int:
    return time.time_ns() // 1_000_000 + 1000 * skew


@contextmanager
def opened(place: Place, skew: int = 0, lease: int = LEASE, **options: Any) -> Iterator[KeelSaver]:
    """Open a saver whose runs have a clock that is ahead."""
    with place.open(**options) as whole:
        saver = with_runs(whole, lease=lease)
        runs_of(saver).clock = lambda: now(skew)
        yield saver


def plant(saver: KeelSaver, thread_id: str, until: int) -> None:
    """Plant the claim of a dead run on another machine."""
    record = claims.ClaimRecord(ELSEWHERE, "another run", until, "2026-01-01T00:00:00+00:00")
    claim = claims.Claim(thread_id, f"f{thread_id.encode().hex()}"[:32], record)
    saver.engine.run(claims.take(saver.engine.session, claim, lambda *_: False))


# -- a run that lives --------------------------------------------------------------------------------------------------


def pay_until_told(place: Place, entered: int, told: int) -> None:
    def pay(state: State) -> State:
        answer = interrupt("pay?")
        os.write(entered, b"in")
        os.read(told, 2)
        return {"answer": answer}

    with opened(place) as saver:
        graph_of(saver, pay).invoke(ANSWER, config_of("t"))


@contextmanager
def live_run(place: Place) -> Iterator[None]:
    """A run in another process, inside the node that has received its answer."""
    (entered, entering), (told, telling) = os.pipe(), os.pipe()
    child = forked(pay_until_told, place, entering, told)
    assert os.read(entered, 2) == b"in"
    try:
        yield
    finally:
        os.write(telling, b"go")
        assert exit_code(child) == 0
        for each in (entered, entering, told, telling):
            os.close(each)


def test_a_live_run_acts_once_under_any_clock_skew(place: Place) -> None:
    """Neither single runs nor a worker that polls once can resume the thread."""
    ran: list[Any] = []

    def pay(state: State) -> State:
        ran.append(interrupt("pay?"))
        return {"answer": "again"}

    with place.open() as saver:
        asked(saver, pay, config=config_of("t"))
        (request,) = saver.approvals.pending("t")
        saver.approvals.answer(request.id, by="ada", value="yes")

    def resume(skew: int) -> None:
        with opened(place, skew) as saver:
            graph = graph_of(saver, pay)
            with pytest.raises(ThreadTaken):
                graph.invoke(ANSWER, config_of("t"))
            assert list(saver.approvals.run_when_decided(graph, timeout=0)) == []

    with live_run(place), ThreadPoolExecutor(len(SKEWS)) as pool:
        list(pool.map(resume, SKEWS))
    assert ran == []
    with place.open() as saver:
        assert graph_of(saver, pay).get_state(config_of("t")).values == {"answer": "yes"}
        assert claim_of(saver) is None


def test_a_renewal_always_changes_the_claim() -> None:
    """Also on a host whose clock goes back or stops."""
    saver = with_runs(MemorySaver(), lease=LEASE)
    graph, held = graph_of(saver, (node := Held()).pay), node
    graph.invoke({}, config_of("t"))
    thread = held.resumed(graph, config_of("t"))
    (mine,) = [each for each in claims_hook.held_threads.values() if each.runs is runs_of(saver)]
    marks = [mine.claim.record.until]
    for at in (now(-3600), now(-3600), 0, 0, now(3600)):
        runs_of(saver).clock = lambda at=at: at  # type: ignore[misc]
        assert mine.renew()
        claim = claim_of(saver)
        assert claim
        marks.append(claim.record.until)
    assert marks == sorted(set(marks))
    held.may_go_on.set()
    thread.join()


# -- a run that is dead ------------------------------------------------------------------------------------------------


def test_a_dead_run_holds_its_thread_for_one_lease_under_any_clock_skew(place: Place) -> None:
    """A single run measures that lease on its own clock.

    It waits no less, and at most a few polls of one second more.
    """
    with place.open() as saver:
        for skew in SKEWS:
            asked(saver, book, config=config_of(str(skew)))
            plant(saver, str(skew), until=now(skew) + LEASE)

    def resume(skew: int) -> int:
        with opened(place) as saver:
            ticks = itertools.count()
            runs_of(saver).timer = lambda: next(ticks)
            assert graph_of(saver, book).invoke(ANSWER, config_of(str(skew))) == {"answer": "yes"}
            return next(ticks)

    with ThreadPoolExecutor(len(SKEWS)) as pool:
        waited = list(pool.map(resume, SKEWS))
    assert all(LEASE / 1000 <= seconds <= LEASE / 1000 + 5 for seconds in waited), waited


def test_a_process_remembers_how_long_it_has_observed_a_claim(place: Place) -> None:
    with opened(place) as saver:
        graph, seconds = asked(saver, book, config=config_of("t")), [0.0]
        runs_of(saver).timer = lambda: seconds[0]
        plant(saver, "t", until=now() + LEASE)
        with pytest.raises(ThreadTaken):  # by the clocks, it is alive
            graph.invoke(ANSWER, config_of("t"))
        seconds[0] = 3.0
        assert graph.invoke(ANSWER, config_of("t")) == {"answer": "yes"}


def test_a_worker_that_polls_once_resumes_threads_of_dead_runs(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    names = [str(skew) for skew in SKEWS]
    with opened(place, lease=600) as saver:
        for name, skew in zip(names, SKEWS, strict=True):
            graph = asked(saver, book, config=config_of(name))
            plant(saver, name, until=now(skew))
        for request in saver.approvals.pending():
            saver.approvals.answer(request.id, by="ada", value="yes")
        resumed = list(saver.approvals.run_when_decided(graph, timeout=0))
    assert sorted(each.thread_id for each in resumed) == sorted(names)
    assert {each.error for each in resumed} == {None}
    (told,) = [record.getMessage() for record in caplog.records if "watching" in record.getMessage()]
    assert "a run on elsewhere claimed it at 2026-01-01" in told  # and the others were observed concurrently


def test_a_run_that_asks_takes_over_the_claim_of_a_dead_run(place: Place) -> None:
    """Otherwise a later resume would take over, and run other tasks of its step again."""
    with opened(place, lease=600) as saver:
        graph = asked(saver, book, config=config_of("t"))
        plant(saver, "t", until=now(3600))
        graph.invoke({"second": "new input"}, config_of("t"))
        assert claim_of(saver) is None


class Away(Hook):
    """Make storing the checkpoint of the asking step fail."""

    is_on = True

    def before_put(self, session: Any, put: Put) -> None:
        if self.is_on and put.metadata["step"] == 1:
            raise StoreUnavailable("the server is away")


@pytest.mark.parametrize("skew", [3600, -3600])
def test_deciding_closes_an_unstored_question_of_a_dead_run(place: Place, skew: int) -> None:
    def think(state: State) -> State:
        return {}

    away = Away()
    with opened(place, lease=600, extra_hooks=[away]) as saver:
        with pytest.raises(StoreUnavailable):
            graph_of(saver, think, book).invoke({}, config_of("t"))
        claim_of(saver)
        plant(saver, "t", until=now(skew))
    with opened(place, lease=600) as saver:
        (request,) = saver.engine.run(saver.approvals.plans.of_thread("t"))
        assert saver.approvals.pending() == []
        assert saver.approvals.sweep(remind_after=0.0) == []
        with pytest.raises(AlreadyDecided, match="superseded"):
            saver.approvals.answer(request.request.id, by="bob", value="yes")
        assert saver.engine.run(saver.approvals.plans.of_thread("t")) == []
