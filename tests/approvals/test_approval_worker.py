"""Workers resume threads once for each decision, without delay."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support.approvals.workers import State, approve_all, ask, asking_graph, die_in_the_act, lines, working, written
from support.places import ON_SERVERS, Place
from support.process_children import exit_code, forked
from support.savers import SAVERS, needing

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, PostgresSaver, StoreUnavailable
from langgraph_keel.approvals import notices
from langgraph_keel.approvals.ask import request_approval
from langgraph_keel.engine.engine import with_engine

LATE = 20.0
"""Polling interval of a worker that should be notified earlier, in seconds."""


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(SAVERS))
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as opened:
        yield opened
    assert not notices.listening


def approve(saver: KeelSaver, *threads: str) -> None:
    for request in saver.approvals.pending():
        if request.thread_id in threads or not threads:
            saver.approvals.approve(request.id, by="bob")


def waited(saver: KeelSaver, face: str, timeout: float | None, poll: float = 0.05) -> list[str]:
    if face == "sync":
        return list(saver.approvals.wait(timeout, poll=poll))
    return list(asyncio.run(saver.approvals.await_decided(timeout, poll=poll)))


def test_wait_returns_threads_that_can_resume(saver: KeelSaver, face: str) -> None:
    ask(asking_graph(saver, lambda *_: None), "abc")
    assert waited(saver, face, 0.2) == []
    timer = Timer(0.3, approve, (saver, "b"))
    timer.start()
    began = time.monotonic()
    assert waited(saver, face, LATE, poll=LATE) == ["b"]
    assert time.monotonic() - began < LATE / 2  # it was notified
    timer.join()
    approve(saver, "a")
    assert waited(saver, face, 0) == ["b", "a"]


def test_a_worker_resumes_decided_threads(saver: KeelSaver, face: str, tmp_path: Path) -> None:
    path = tmp_path / "acts"
    graph = asking_graph(saver, written(path))
    ask(graph, "abc", user_id="ann")
    approve(saver, "a")
    saver.approvals.reject(saver.approvals.pending("c")[0].id, by="eve")
    found = working(saver, graph, face, 0.3)
    assert [(each.thread_id, each.result, each.error) for each in found] == [
        ("a", {"said": "approve"}, None),
        ("c", {"said": "reject"}, None),
    ]
    assert lines(path) == [["a", "approve", "bob"], ["c", "reject", "eve"]]
    assert working(saver, graph, face, 0) == []
    assert [each.thread_id for each in saver.approvals.pending()] == ["b"]


def test_a_worker_resumes_a_thread_whose_request_expired(face: str) -> None:
    def node(state: State) -> State:
        return {"said": request_approval("pay", {}, expires_in=0.3).by}

    with MemorySaver() as saver:
        graph = StateGraph(State).add_node("pay", node).add_edge(START, "pay").compile(checkpointer=saver)
        ask(graph, "a")
        assert [each.result for each in working(saver, graph, face, 1.0)] == [{"said": "keel:expiry"}]


# -- two at once, errors, deaths ---------------------------------------------------------------------------------------


def two_asking(saver: KeelSaver, ran: list[str]) -> Any:
    def asks(name: str) -> Any:
        def node(state: State) -> State:
            ran.append(name)
            interrupt(name)
            ran.append(f"{name} acts")
            return {}

        return node

    graph = StateGraph(State)
    for name in ("left", "right"):
        graph.add_node(name, asks(name))
        graph.add_edge(START, name)
    return graph.compile(checkpointer=saver)


def test_a_task_that_still_waits_is_run_once_per_resume(face: str) -> None:
    ran: list[str] = []
    with MemorySaver() as saver:
        graph = two_asking(saver, ran)
        ask(graph, "a")
        left, right = sorted(saver.approvals.pending(), key=lambda each: str(each.value))
        saver.approvals.answer(left.id, value=1, by="bob")
        assert len(working(saver, graph, face, 0.5)) == 1
        assert waited(saver, face, 0.2) == []
        assert working(saver, graph, face, 0.2) == []  # another worker, which has no memory of the first
        assert sorted(ran) == ["left", "left", "left acts", "right", "right"]
        saver.approvals.answer(right.id, value=1, by="bob")
        assert len(working(saver, graph, face, 0.2)) == 1
        assert sorted(ran) == ["left", "left", "left acts", "right", "right", "right", "right acts"]


def test_a_worker_reports_a_failed_thread_and_does_not_retry_it(face: str) -> None:
    tries: list[str] = []

    def fails(thread: str, decision: Any) -> None:
        tries.append(thread)
        if len(tries) == 1:
            raise ValueError("no money")

    with MemorySaver() as saver:
        graph = asking_graph(saver, fails)
        ask(graph, "a")
        approve(saver)
        (failed,) = working(saver, graph, face, 0.5)
        assert (failed.thread_id, str(failed.error), failed.result) == ("a", "no money", None)
        assert tries == ["a"]
        (done,) = working(saver, graph, face, 0.2)  # a worker that was started again
        assert done.result == {"said": "approve"}


def test_a_worker_retries_after_a_store_was_unavailable(face: str) -> None:
    tries: list[str] = []

    def fails(thread: str, decision: Any) -> None:
        tries.append(thread)
        if len(tries) == 1:
            raise StoreUnavailable("gone for a moment")

    with MemorySaver() as saver:
        graph = asking_graph(saver, fails)
        ask(graph, "a")
        approve(saver)
        failed, done = working(saver, graph, face, 0.5)
        assert isinstance(failed.error, StoreUnavailable)
        assert done.result == {"said": "approve"}


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_worker_takes_over_from_a_dead_worker(place: Place, face: str, tmp_path: Path) -> None:
    path = tmp_path / "acts"
    with place.open() as saver:
        ask(asking_graph(saver, written(path)), "a")
        approve(saver)
    assert exit_code(forked(die_in_the_act, place, path)) == 9
    with place.open() as saver:
        graph = asking_graph(saver, written(path))
        assert [each.status for each in saver.approvals.pending(status="consumed")] == ["consumed"]
        assert [each.result for each in working(saver, graph, face, 0.3)] == [{"said": "approve"}]
        assert lines(path) == [["a", "approve", "bob"]]


def test_a_thread_that_another_run_resumes_is_left_alone(saver: KeelSaver, face: str) -> None:
    begun, hold, acts = Event(), Event(), list[str]()

    def act(thread: str, decision: Any) -> None:
        begun.set()
        hold.wait(30)
        acts.append(thread)

    graph = asking_graph(saver, act)
    ask(graph, "a")
    approve(saver)
    other = Thread(
        target=graph.invoke, args=(saver.approvals.resume("a"), {"configurable": {"thread_id": "a"}}), daemon=True
    )
    other.start()
    assert begun.wait(30)
    assert waited(saver, face, 0.2) == []
    assert working(saver, graph, face, 0.2) == []
    hold.set()
    other.join(30)
    assert acts == ["a"]


def test_threads_of_other_graphs_are_left_alone(face: str) -> None:
    acts: list[str] = []
    with MemorySaver() as saver:
        mine = asking_graph(saver, lambda thread, _: acts.append(thread))
        theirs = asking_graph(saver, lambda thread, _: acts.append(thread), name="mail")
        ask(mine, "a")
        ask(theirs, "b")
        approve(saver)
        assert [each.thread_id for each in working(saver, mine, face, 0.2)] == ["a"]
        assert acts == ["a"]
        assert [each.thread_id for each in working(saver, theirs, face, 0.2)] == ["b"]


# -- how it ends -------------------------------------------------------------------------------------------------------


def test_a_closed_worker_loop_stops_listening(saver: KeelSaver) -> None:
    graph = asking_graph(saver, lambda *_: None)
    ask(graph, "ab")
    approve(saver)
    found = saver.approvals.run_when_decided(graph)
    assert next(found).thread_id == "a"
    assert len(notices.listening) == 1
    found.close()  # type: ignore[attr-defined]
    assert not notices.listening
    assert [each.thread_id for each in working(saver, graph, "sync", 0)] == ["b"]


async def test_another_worker_continues_after_a_cancelled_worker(saver: KeelSaver) -> None:
    """Whether it waits or runs the graph, another worker continues the thread."""
    begun, hold = asyncio.Event(), asyncio.Event()

    async def node(state: State) -> State:
        interrupt("may I?")
        begun.set()
        await hold.wait()
        return {"said": "done"}

    graph = StateGraph(State).add_node("pay", node).add_edge(START, "pay").compile(checkpointer=saver)
    await graph.ainvoke({"said": ""}, {"configurable": {"thread_id": "a"}})

    async def worker() -> list[Any]:
        found = saver.approvals.arun_when_decided(graph, poll=LATE, timeout=0.2 if hold.is_set() else None)
        return [each async for each in found]

    for decided in (False, True):
        task = asyncio.create_task(worker())
        if decided:
            (request,) = await saver.approvals.apending()
            await saver.approvals.aanswer(request.id, value="yes", by="bob")
            await asyncio.wait_for(begun.wait(), LATE / 2)
        else:
            await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not notices.listening
    hold.set()
    assert [each.result for each in await worker()] == [{"said": "done"}]


@pytest.mark.parametrize(("name", "value"), [("poll", 0), ("poll", "1"), ("timeout", -1), ("timeout", float("nan"))])
def test_invalid_times_are_refused(name: str, value: Any) -> None:
    with MemorySaver() as saver:
        for call in (saver.approvals.wait, lambda **given: saver.approvals.run_when_decided(None, **given)):
            with pytest.raises(InvalidInput, match=name):
                call(**{"timeout": 1, name: value})


class Counting:
    """A driver that counts requests."""

    def __init__(self, driver: Any) -> None:
        self.sent = 0
        self._driver = driver

    def send(self, request: Any) -> Any:
        self.sent += 1
        return self._driver.send(request)


@pytest.mark.slow
def test_each_poll_is_one_listing_for_any_number_of_requests() -> None:
    with MemorySaver() as saver:
        graph = asking_graph(saver, lambda *_: None)
        ask(graph, [f"t{number}" for number in range(300)])
        counting = Counting(saver.engine.driver)
        saver = with_engine(saver, saver.engine.with_drivers(driver=counting))
        assert saver.approvals.wait(0) == ()
        assert counting.sent == 1
        assert list(saver.approvals.run_when_decided(graph, timeout=0)) == []
        assert counting.sent == 2


# -- notices of servers ------------------------------------------------------------------------------------------------


@ON_SERVERS
def test_a_decision_of_another_process_wakes_a_worker(place: Place, face: str, tmp_path: Path) -> None:
    path = tmp_path / "acts"
    with place.open() as saver:
        graph = asking_graph(saver, written(path))
        ask(graph, "a")
        child = forked(approve_all, place, 1.0)
        began = time.monotonic()
        found = (
            next(saver.approvals.run_when_decided(graph, poll=LATE))
            if face == "sync"
            else asyncio.run(anext_of(saver.approvals.arun_when_decided(graph, poll=LATE)))
        )
        assert time.monotonic() - began < LATE / 2
        assert exit_code(child) == 0
        assert (found.thread_id, lines(path)) == ("a", [["a", "approve", "elsewhere"]])


async def anext_of(found: Any) -> Any:
    try:
        return await anext(found)
    finally:
        await found.aclose()


@ON_SERVERS
def test_a_decision_succeeds_if_its_notice_cannot_be_sent(
    place: Place, face: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "langgraph_keel")
    with place.open() as saver:
        ask(asking_graph(saver, lambda *_: None), "a")
        (request,) = saver.approvals.pending()

        def fails(*_: Any) -> None:
            raise OSError("no way out")

        for name in ("_notify", "_anotify"):
            monkeypatch.setattr(saver, name, fails)
        if face == "sync":
            assert saver.approvals.approve(request.id, by="bob").status == "approved"
        else:
            assert asyncio.run(saver.approvals.aapprove(request.id, by="bob")).status == "approved"
        assert "no way out" in caplog.text
        assert saver.approvals.get(request.id).status == "approved"


def test_a_listener_reconnects_after_its_connection_was_cut(postgres_url: str) -> None:
    with PostgresSaver(postgres_url) as saver, saver.approvals.bell.notices() as heard:
        source: Any = heard._source  # private: the source of notices has no public name; a test cuts it here
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            # private: the connection that the server should terminate
            connection.execute("SELECT pg_terminate_backend(%s)", (source._connection.info.backend_pid,))
        heard.wait(0.2)
        assert heard._source is None  # private: no public name shows whether a listener listens
        heard.wait(LATE)  # it listens again, and there may be something to read
        saver.approvals.bell.ring()
        began = time.monotonic()
        heard.wait(LATE)
        assert time.monotonic() - began < LATE / 2


def test_workers_poll_behind_a_connection_pooler(pgbouncer_url: str, postgres_url: str, face: str) -> None:
    schema = postgres_url.rpartition("search_path%3D")[2]
    with PostgresSaver(pgbouncer_url, schema=schema, prepare_threshold=None) as saver:
        graph = asking_graph(saver, lambda *_: None)
        ask(graph, "a")
        with saver.approvals.bell.notices() as heard:
            # private: no public name shows whether a listener listens
            assert (heard._source, heard._listen) == (None, None)
        approve(saver)
        assert [each.thread_id for each in working(saver, graph, face, 0.3)] == ["a"]


def test_a_connection_passed_by_the_caller_is_not_used_to_listen(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection, PostgresSaver(connection) as saver:
        graph = asking_graph(saver, lambda *_: None)
        ask(graph, "a")
        approve(saver)
        with saver.approvals.bell.notices() as heard:
            assert heard._source is None  # private: no public name shows whether a listener listens
        assert [each.thread_id for each in working(saver, graph, "sync", 0)] == ["a"]


def test_a_redis_cluster_delivers_notices(redis_cluster_url: str, redis_prefix: str, face: str) -> None:
    place = Place("redis", redis_cluster_url, {"prefix": redis_prefix, "durability": "any"})
    with place.open() as saver:
        ask(asking_graph(saver, lambda *_: None), "a")
        child = forked(approve_all, place, 1.0)
        began = time.monotonic()
        assert waited(saver, face, LATE, poll=LATE) == ["a"]
        assert time.monotonic() - began < LATE / 2
        assert exit_code(child) == 0
