"""`saver.history.follow`: any process sees all events of threads, in order."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support.feed_children import BEHIND, cursor_of, follow_until, ids_in, is_in_order, put_one, put_until, take
from support.places import ON_SERVERS, Place
from support.process_children import exit_code, forked
from support.recovery.children import write
from support.tiers import sized

from langgraph_keel import (
    InvalidConfig,
    InvalidInput,
    KeelSaver,
    MemorySaver,
    Moment,
    Retention,
    SqliteSaver,
    StatusChange,
    StoreUnavailable,
)
from langgraph_keel.approvals.notices import Notices
from langgraph_keel.engine.engine import with_engine

ON_SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
FACES = pytest.mark.parametrize("face", ["sync", "async"])
LIMIT = 30.0


@pytest.fixture
def saver() -> Iterator[KeelSaver]:
    with MemorySaver() as saver:
        yield saver


def config(thread: str, namespace: str = "") -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}


def look(saver: KeelSaver, after: Any = None, thread: str | None = None, **more: Any) -> tuple[list[Any], str]:
    """Poll once; return the events, and the cursor."""
    feed = saver.history.follow(thread, after, timeout=0, **more)
    return [*feed], feed.cursor


def seen(events: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(each.thread_id, each.step if isinstance(each, Moment) else each.status) for each in events]


def agent(saver: KeelSaver, fails: dict[str, bool]) -> Any:
    def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage(interrupt("go on?"))]}

    def act(state: MessagesState) -> Any:
        if fails["act"]:
            raise TimeoutError("secret")
        return {"messages": [AIMessage("done")]}

    return StateGraph(MessagesState).add_sequence([ask, act]).add_edge(START, "ask").compile(checkpointer=saver)


INPUT: Any = {"messages": [("user", "hi")]}


@FACES
def test_a_feed_yields_checkpoints_and_statuses_of_a_thread(place: Place, face: str) -> None:
    """Checkpoints and statuses, of all threads and of one, on each backend."""
    fails = {"act": True}
    cursors: dict[str | None, Any] = {None: None, "t": None}

    with place.open() as saver:

        def news() -> list[tuple[str, Any]]:
            found = []
            for thread in (None, "t"):
                feed = saver.history.follow(thread, cursors[thread], timeout=0)

                async def every(feed: Any = feed) -> list[Any]:
                    return [each async for each in feed]

                found.append(seen([*feed] if face == "sync" else asyncio.run(every())))
                cursors[thread] = feed.cursor
            assert found[0] == found[1]
            return found[0]

        graph = agent(saver, fails)
        assert news() == []
        graph.invoke(INPUT, {"configurable": {"thread_id": "t", "user_id": "ada"}})
        assert news() == [("t", -1), ("t", 0), ("t", "waiting")]
        assert news() == []
        with pytest.raises(TimeoutError):
            graph.invoke(Command(resume="yes"), config("t"))
        assert news() == [("t", 1), ("t", "failed")]
        fails["act"] = False
        graph.invoke(None, config("t"))
        assert news() == [("t", 2), ("t", "done")]
        saver.timeline("t").rewind(0)
        assert news() == [("t", -1), ("t", "incomplete")]
        saver.prune(["t"], strategy=Retention(last=1))
        assert news() == []
        saver.delete_thread("t")
        assert news() == []
        graph.invoke(INPUT, config("t"))  # another life of the thread
        assert news() == [("t", -1), ("t", 0), ("t", "waiting")]


def test_events_carry_changes_errors_and_status(saver: KeelSaver) -> None:
    fails = {"act": True}
    graph = agent(saver, fails)
    graph.invoke(INPUT, {"configurable": {"thread_id": "t", "user_id": "ada"}})
    with pytest.raises(TimeoutError):
        graph.invoke(Command(resume="yes"), config("t"))
    events, _ = look(saver)
    *moments, status = events
    head = saver.timeline("t")[-1]
    assert status == StatusChange("t", "failed", head.id, ("act",), "TimeoutError", "ada")
    assert moments == list(saver.timeline("t"))
    assert [each.position for each in moments] == [-3, -2, -1]
    assert [each.is_head for each in moments] == [each.is_leaf for each in moments] == [False, False, True]
    assert moments[-1].errors == head.errors
    assert moments[1].interrupts == ()
    assert [each.summary for each in moments] == [each.summary for each in saver.timeline("t")]
    assert moments[1].values["messages"][0].content == "hi"
    bare, _ = look(saver, payload=False)
    assert "secret" not in repr([each.errors for each in bare[:-1]]) + repr([vars_of(each) for each in bare])
    assert "hi" not in repr([vars_of(each) for each in bare])
    assert [each.channel for each in bare[1].changes] == ["messages"]
    assert bare[2].errors == ("TimeoutError",)
    assert bare[-1] == status


def vars_of(event: Any) -> Any:
    return [getattr(event, name) for name in event.__dataclass_fields__ if name != "owner"]


def test_a_feed_can_begin_at_a_time(saver: KeelSaver) -> None:
    """Threads that were idle yield no events, and later only new ones."""
    for hours in (5, 3):
        put_one(saver, config("old"), timedelta(hours=hours))
    put_one(saver, config("recent"), timedelta(minutes=10))
    begin = datetime.now(UTC)
    events, cursor = look(saver, begin)
    assert events == []
    saver.put(*again(saver, "old"))
    put_one(saver, config("new"), BEHIND)  # and its clock is behind
    events, cursor = look(saver, cursor)
    assert [each.thread_id for each in events if isinstance(each, Moment)] == ["new", "old"]
    assert look(saver, cursor)[0] == []
    assert [each.thread_id for each in look(saver, begin - timedelta(minutes=20))[0] if isinstance(each, Moment)] == [
        *("recent", "old")  # a time is compared with those of the checkpoints
    ]


def again(saver: KeelSaver, thread: str) -> Any:
    found = saver.get_tuple(config(thread))
    assert found
    checkpoint = {**found.checkpoint, "id": "ffff", "ts": datetime.now(UTC).isoformat()}
    return found.config, checkpoint, {"source": "loop", "step": 9, "parents": {}}, {}


def test_a_checkpoint_that_is_stored_again_is_yielded_again(saver: KeelSaver) -> None:
    put_one(saver, config("t"))
    saver.put(*again(saver, "t"))
    _, cursor = look(saver)
    found = saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "ffff"}})
    assert found
    assert found.parent_config
    saver.put(found.parent_config, found.checkpoint, found.metadata, {})
    assert [each.id for each in look(saver, cursor)[0]] == ["ffff"]


def test_a_feed_of_one_thread_excludes_others(saver: KeelSaver) -> None:
    for name in ("a", "b"):
        put_one(saver, config(name))
        put_one(saver, config(name, "inner"))
    events, cursor = look(saver, thread="b")
    assert [(each.thread_id, each.namespace) for each in events if isinstance(each, Moment)] == [
        ("b", ""),
        ("b", "inner"),
    ]
    put_one(saver, config("a"))
    assert look(saver, cursor, "b")[0] == []
    with pytest.raises(InvalidInput, match="another feed"):
        look(saver, cursor)
    assert look(saver, thread="none")[0] == []


def test_a_feed_is_limited_to_its_tenant(saver: KeelSaver) -> None:
    put_one(saver.for_tenant("acme"), config("theirs"))
    put_one(saver, config("ours"))
    assert {each.thread_id for each in look(saver)[0]} == {"ours"}
    assert {each.thread_id for each in look(saver.for_tenant("acme"))[0]} == {"theirs"}


@pytest.mark.parametrize("after", ["", "[]", "[1,null,0,0]", '[1,null,0,0,{"t":[1]}]', '[1,null,"x",0,{}]', "{}", 7])
def test_invalid_cursors_are_refused(saver: KeelSaver, after: Any) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        saver.history.follow(after=after)


@pytest.mark.parametrize("stamp", [None, 1.5, "", "1", "x.y", [], "1.2.3"])
def test_a_cursor_of_another_store_hides_nothing(saver: KeelSaver, stamp: Any) -> None:
    put_one(saver, config("t"))
    after = json.dumps([1, None, 0, 0, {"t": [stamp, 0, 1, "done"]}])
    assert any(isinstance(each, Moment) for each in look(saver, after)[0])


def test_arguments_are_checked(saver: KeelSaver) -> None:
    with pytest.raises(InvalidConfig):
        saver.history.follow("")
    with pytest.raises(InvalidInput, match="poll"):
        saver.history.follow(poll=0)


def test_a_damaged_checkpoint_is_skipped_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SqliteSaver(tmp_path / "agent.db") as saver:
        for name in ("a", "b"):
            for step in (1, 2):
                put_one(saver, config(name), step=step)
        (first,) = saver.engine.run(saver.engine.session.store.read_graph("a")).nodes[:1]
        with closing(sqlite3.connect(tmp_path / "agent.db")) as connection, connection:
            connection.execute("UPDATE entries SET header = x'00ff' WHERE key = ?", (first.stamp,))
        events, cursor = look(saver)
    assert [each[1] for each in seen(events) if each[0] == "b"][:2] == [1, 2]
    assert [each[1] for each in seen(events) if each[0] == "a"][:1] == [2]
    assert "skips a checkpoint" in caplog.text
    caplog.clear()
    with SqliteSaver(tmp_path / "agent.db") as saver:
        assert look(saver, cursor)[0] == []
    assert caplog.text == ""


# -- waiting -----------------------------------------------------------------------------------------------------------


class Waits:
    """Notices without a clock: each wait is recorded, and one act runs in it."""

    def __init__(self, *acts: Any) -> None:
        self.seconds: list[float] = []
        self.acts = list(acts)
        self.is_open = False

    def bell(self) -> Any:
        return _Silent(self)

    def wait(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if self.acts and (act := self.acts.pop(0)):
            act()


class _Silent:
    def __init__(self, waits: Waits) -> None:
        self.waits = waits

    def notices(self) -> _Silent:
        return self

    def anotices(self) -> _Silent:
        return self

    def __enter__(self) -> Any:
        self.waits.is_open = True
        return self.waits

    def __exit__(self, *error: object) -> None:
        self.waits.is_open = False

    async def __aenter__(self) -> Any:
        self.waits.is_open = True
        return _Async(self.waits)

    async def __aexit__(self, *error: object) -> None:
        self.waits.is_open = False


class _Async:
    def __init__(self, waits: Waits) -> None:
        self.waits = waits

    async def wait(self, seconds: float) -> None:
        self.waits.wait(seconds)


def waiting(saver: KeelSaver, waits: Waits, after: Any = None, **more: Any) -> Any:
    feed = saver.history.follow(after=after, **more)
    # private: the test replaces the time that a feed waits
    feed._bell = waits.bell()
    return feed


@FACES
async def test_the_polling_interval_grows_while_a_store_is_idle(saver: KeelSaver, face: str) -> None:
    waits = Waits(*[None] * 5, lambda: put_one(saver, config("t")), None, lambda: put_one(saver, config("end")))
    feed = waiting(saver, waits, poll=2.0)
    every: Any = iter(feed) if face == "sync" else aiter(feed)
    while True:
        event = next(every) if face == "sync" else await anext(every)
        if event.thread_id == "end":
            break
    assert waits.seconds == [2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 2.0, 4.0]
    assert waits.is_open
    if face == "sync":
        every.close()
    else:
        await every.aclose()
    assert not waits.is_open


@FACES
async def test_a_feed_waits_for_an_unavailable_store(
    saver: KeelSaver, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Except at the first poll, and at the end of the timeout."""
    away = {"is away": True}

    def check() -> None:
        if away["is away"]:
            raise StoreUnavailable("gone for lunch")

    flaky = with_faults(saver, check)

    async def first(feed: Any) -> Any:
        return next(iter(feed)) if face == "sync" else await anext(aiter(feed))

    with pytest.raises(StoreUnavailable, match="lunch"):
        await first(waiting(flaky, Waits()))
    away["is away"] = False
    put_one(saver, config("before"))
    acts = [lambda: away.update({"is away": True}), None, lambda: away.update({"is away": False})]
    waits = Waits(*acts, lambda: put_one(saver, config("after")))
    feed = waiting(flaky, waits, datetime.now(UTC) + timedelta(seconds=1))
    assert (await first(feed)).thread_id == "after"
    assert caplog.text.count("gone for lunch") == 1
    away["is away"] = True
    with pytest.raises(StoreUnavailable, match="lunch"):
        await first(flaky.history.follow(after=feed.cursor, timeout=0))


def with_faults(saver: KeelSaver, check: Any) -> KeelSaver:
    class Sync:
        def send(self, request: Any) -> Any:
            check()
            return saver.engine.driver.send(request)

    class Async:
        async def send(self, request: Any) -> Any:
            check()
            return await saver.engine.async_driver.send(request)

    return with_engine(saver, saver.engine.with_drivers(Sync(), Async()))


async def test_a_cancelled_feed_stops_listening() -> None:
    with MemorySaver() as saver:
        put_one(saver, config("t"))
        waits = Waits()
        feed = saver.history.afollow()
        # private: the test replaces the time that a feed waits
        feed._bell = waits.bell()
        reached = asyncio.Event()

        class Never(_Async):
            async def wait(self, seconds: float) -> None:
                reached.set()
                await asyncio.Event().wait()

        async def enter(self: Any) -> Any:
            waits.is_open = True
            return Never(waits)

        # private: the test replaces the time that a feed waits
        feed._bell = type("B", (_Silent,), {"__aenter__": enter})(waits)

        async def read(every: AsyncIterator[Any]) -> None:
            async for _ in every:
                pass

        task = asyncio.create_task(read(aiter(feed)))
        await asyncio.wait_for(reached.wait(), LIMIT)
        assert waits.is_open
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.get_running_loop().shutdown_asyncgens()
        assert not waits.is_open


@ON_SERVERS
@pytest.mark.timeout(120)
def test_a_notice_of_another_process_wakes_a_feed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed would poll again only after 100 seconds."""
    waits, wait = threading.Event(), Notices.wait

    def say(self: Notices, seconds: float) -> None:
        waits.set()
        wait(self, seconds)

    monkeypatch.setattr(Notices, "wait", say)
    with place.open() as saver, place.open() as other:
        put_one(saver, config("t"))

        def wake() -> None:
            waits.wait(LIMIT)
            put_one(other, config("new"))
            while not done.wait(0.05):  # a notice may come before the wait
                # private: no decision is made here
                other._bell.notify()

        done = threading.Event()
        helper = threading.Thread(target=wake, daemon=True)
        helper.start()
        for event in saver.history.follow(poll=100.0):
            if event.thread_id == "new":
                break
        done.set()
        helper.join(LIMIT)


# -- clocks ------------------------------------------------------------------------------------------------------------


def test_checkpoints_of_a_slow_clock_are_yielded_late(place: Place) -> None:
    with place.open() as saver:
        put_one(saver, config("now"))
        feed = saver.history.follow(poll=1.0)
        waits = Waits(lambda: put_one(saver, config("late"), BEHIND))
        # private: the test replaces the time that a feed waits
        feed._bell = waits.bell()
        for event in feed:
            if event.thread_id == "late":
                break
    assert len(waits.seconds) <= 10


def test_a_fast_clock_hides_no_checkpoints(place: Place) -> None:
    with place.open() as saver:
        put_one(saver, config("ahead"), -timedelta(days=2))
        _, cursor = look(saver)
        put_one(saver, config("right"))
        events, cursor = look(saver, cursor)
        assert {each.thread_id for each in events} == {"right"}
        put_one(saver, config("ahead"), -timedelta(days=2))
        assert {each.thread_id for each in look(saver, cursor)[0]} == {"ahead"}


def clock_off_by(delta: timedelta) -> datetime:
    return datetime.now(UTC) + delta


def test_a_follower_with_a_wrong_clock_misses_nothing(saver: KeelSaver) -> None:
    for hours in (-5, 5):
        session = saver.engine.session
        wrong = replace(session, clock=partial(clock_off_by, timedelta(hours=hours)))
        other = with_engine(saver, replace(saver.engine, session=wrong))
        for number in range(3):
            put_one(saver, config(f"{hours}/{number}"))
        _, cursor = look(other)
        put_one(saver, config(f"{hours}/new"))
        assert {each.thread_id for each in look(other, cursor)[0]} == {f"{hours}/new"}


def test_a_feed_of_more_threads_than_a_page_resumes_at_any_cursor(
    saver: KeelSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_keel.history.feed._PAGE", 7)
    monkeypatch.setattr("langgraph_keel.history.feed._FEW", 2)
    put = [(f"t{number}", step) for number in range(20) for step in range(number)]
    for thread, step in put:
        put_one(saver, config(thread), timedelta(hours=30 - int(thread[1:])), step)
    feed = saver.history.follow(timeout=0)
    found: list[tuple[str, int | None]] = []
    cursors: list[str | None] = [None]
    for event in feed:
        if isinstance(event, Moment):
            found.append((event.thread_id, event.step))
            cursors.append(feed.cursor)
    assert found == put
    for number in range(0, len(put), 13):  # from each cursor, all later events come
        rest = [each for each in seen(look(saver, cursors[number])[0]) if isinstance(each[1], int)]
        assert rest[-len(put) + number :] == put[number:]
    assert len(json.loads(feed.cursor)[4]) < 5


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_followers_resume_and_see_everything(place: Place, tmp_path: Path) -> None:
    """Eight writers, one 40 minutes behind; four followers that resume by cursor."""
    kills, random, ctx = sized(4, 20, 200), Random(7), multiprocessing.get_context("fork")
    with place.open() as saver:
        saver.setup()
    stop, begun = ctx.Event(), [ctx.Event() for _ in range(8)]
    puts = [tmp_path / f"put{number}" for number in range(8)]
    logs = [tmp_path / f"log{number}" for number in range(4)]
    writers = [
        forked(put_until, place, path, f"w{number}", BEHIND if number == 0 else timedelta(0), begun[number], stop)
        for number, path in enumerate(puts)
    ]
    following: dict[int, tuple[int, Any]] = {}

    def begin(number: int) -> None:
        ready = ctx.Event()
        following[number] = forked(follow_until, place, logs[number], cursor_of(logs[number]), ready), ready

    try:
        for number in range(4):
            begin(number)
        for kill in range(kills):
            child, ready = following[kill % 4]
            assert ready.wait(LIMIT)  # it has seen an event since its start
            stop.wait(random.random() / 20)  # at any point of its work
            os.kill(child, signal.SIGKILL)
            assert exit_code(child) == -signal.SIGKILL
            begin(kill % 4)
        assert all(each.wait(LIMIT) for each in begun)
    finally:
        stop.set()
        for child, _ in following.values():
            os.kill(child, signal.SIGKILL)
            exit_code(child)
    assert [exit_code(child) for child in writers] == [0] * 8
    put = ids_in(*puts)
    assert sum(map(len, put.values())) > 100
    with place.open() as saver:
        for log in logs:
            write(log, "begin -")
            feed = saver.history.follow(after=cursor_of(log).read_text(), timeout=0)
            for event in feed:
                take(event, log)
            assert {thread: sorted(ids) for thread, ids in ids_in(log).items()} == {
                thread: sorted(ids) for thread, ids in put.items()
            }
            assert is_in_order(log, put)
            assert look(saver, feed.cursor)[0] == []
