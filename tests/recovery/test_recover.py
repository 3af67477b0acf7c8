"""`saver.recover`: one worker continues each interrupted thread, up to its gates."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import signal
from asyncio import to_thread
from collections.abc import Iterator
from contextlib import AsyncExitStack
from multiprocessing import Pipe
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from langgraph.errors import GraphDrained
from langgraph.types import interrupt
from support.log_graphs import CONFIG, State, graph, say
from support.places import Place
from support.process_children import exit_code, forked
from support.races import context
from support.recovery.children import (
    INPUT,
    LONG,
    STEPS,
    Paying,
    config_of,
    five,
    killed,
    killed_in_tool,
    killed_worker,
    paused,
    recovered,
    steps_in,
    work,
)
from support.savers import each_face
from support.situations import CONTINUES, PAGE, SITUATIONS, Stage, graph_of

from langgraph_keel import (
    InvalidInput,
    KeelSaver,
    MemorySaver,
    NewerState,
    NotFound,
    ReadOnlyStore,
    SqliteSaver,
    StoreUnavailable,
    ThreadTaken,
    upgrade,
)
from langgraph_keel.engine.runs import find_runs_of
from langgraph_keel.engine.tables import Cells
from langgraph_keel.recovery.recover import Look, Recovery
from langgraph_keel.runs.hook import RunClaims, begins_at
from langgraph_keel.runs.records import LAST, TRIES, Tries
from langgraph_keel.runs.worker import RetryList
from langgraph_keel.testing.faults import Tap, with_tap

ON_SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps"


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[KeelSaver]:
    with SqliteSaver(tmp_path / "one.db", recoverable=True) as saver:
        yield saver


def tries_in(saver: KeelSaver, thread_id: str = "t") -> Tries | None:
    found = saver.engine.run(Cells(saver.engine.session, TRIES, thread_id).find(LAST))
    return found.record if found else None


def drained(saver: KeelSaver, thread_id: str = "t", made: Any = None) -> None:
    """Leave a thread that any worker may continue, before its step 2."""

    def stop(state: State) -> State:
        for each in find_runs_of(saver.engine.session.store):
            each.control.request_drain("sigterm")
        return {"log": ["1"]}

    with pytest.raises(GraphDrained):
        graph(saver, ("1", stop), *map(say, STEPS[1:])).invoke(INPUT, config_of(thread_id), durability="sync")


def recovery_of(saver: KeelSaver, graph: Any) -> Recovery:
    return Recovery(saver.engine.session, graph, {}, 3, None, RetryList(1.0))


def looks_of(saver: KeelSaver, graph: Any) -> list[Look]:
    found, recovery = list[Look](), recovery_of(saver, graph)
    while (page := saver.engine.run(recovery.look())) is not None:
        found += page
    return found


# -- a process dies ----------------------------------------------------------------------------------------------------


class Dying(Tap):
    """Ends the process before its nth request."""

    def __init__(self, at: int) -> None:
        self.left = at

    def sending(self, request: Any) -> None:
        self.left -= 1
        if self.left < 0:
            os._exit(9)


@pytest.mark.slow
@each_face
def test_a_decision_on_a_question_that_a_killed_run_has_not_stored_is_carried_out(tmp_path: Path, face: str) -> None:
    """The request for approval is stored before its question, and may be decided before a worker asks again."""

    def pay(state: State) -> State:
        return {"log": [f"paid: {interrupt('pay?')}"]}

    def ask(name: str, at: int) -> None:
        with SqliteSaver(tmp_path / "one.db", recoverable=True) as saver:
            asking = graph(with_tap(saver, Dying(at)), ("pay", pay))
            asking.invoke(INPUT, config_of(name), durability="sync")

    decided = 0
    for at in itertools.count():
        code = exit_code(forked(ask, f"t{at}", at))
        with SqliteSaver(tmp_path / "one.db", recoverable=True) as saver:
            asking, status = graph(saver, ("pay", pay)), saver.status(f"t{at}")
            pending = saver.approvals.pending(f"t{at}")
            if status.state == "cut off" and pending:
                decided += 1
                saver.approvals.approve(pending[0].id, by="maria")
                assert (saver.status(f"t{at}").state, saver.status(f"t{at}").given) == ("cut off", None), at
                with pytest.raises(NotFound, match="not stored: the run that asks it is still active or has died"):
                    saver.approvals.resume(f"t{at}")
                recovered(saver, asking, face)
                (resumed,) = saver.approvals.run_when_decided(asking, timeout=0.1, poll=0.1)
                assert resumed.result["log"][-1] == "paid: True", at
        if code == 0:
            break
    assert decided


@pytest.mark.slow
@each_face
def test_a_resumed_run_that_was_killed_anywhere_is_continued(tmp_path: Path, face: str) -> None:
    """Its answer and its output are stored before the next checkpoint."""

    def ask(state: State) -> State:
        return {"log": [f"said: {interrupt('pay?')}"]}

    nodes = ("ask", ask), say("pay")

    def resume(name: str, at: int) -> None:
        with SqliteSaver(tmp_path / "one.db", recoverable=True) as saver:
            command = saver.approvals.resume(name)
            graph(with_tap(saver, Dying(at)), *nodes).invoke(command, config_of(name), durability="sync")

    for at in itertools.count():
        name = f"t{at}"
        with SqliteSaver(tmp_path / "one.db", recoverable=True) as saver:
            graph(saver, *nodes).invoke(INPUT, config_of(name), durability="sync")
            (request,) = saver.approvals.pending(name)
            saver.approvals.approve(request.id, by="maria")
        code = exit_code(forked(resume, name, at))
        with SqliteSaver(tmp_path / "one.db", recoverable=True) as saver:
            asking = graph(saver, *nodes)
            for _ in range(2):
                recovered(saver, asking, face)
                list(saver.approvals.run_when_decided(asking, timeout=0.1, poll=0.05))
            assert saver.status(name).state == "idle", (at, str(saver.status(name)))
            assert asking.get_state(config_of(name)).values["log"].count("said: True") == 1
        if code == 0:
            break


@each_face
def test_a_run_killed_in_step_3_is_continued_from_there(place: Place, face: str, path: Path) -> None:
    killed(place, path)
    with place.open(recoverable=True) as saver:
        (resumed,) = recovered(saver, five(saver, path), face)
        assert (resumed.thread_id, resumed.result["log"], resumed.error, resumed.attempts) == ("t", [*STEPS], None, 1)
        assert steps_in(path) == "123345"
        assert saver.status("t").state == "idle"
        assert tries_in(saver) is None
        assert recovered(saver, five(saver, path), face) == []


def test_one_of_two_workers_continues_each_thread(place: Place, path: Path) -> None:
    threads = "abcd"
    killed(place, path, threads)
    gate, pipes = context().Barrier(2), [Pipe() for _ in range(2)]
    workers = [context().Process(target=work, args=(place, path, "", gate, theirs)) for _, theirs in pipes]
    for each in workers:
        each.start()
    found = []
    for ours, _ in pipes:
        assert ours.poll(LONG)
        found += ours.recv()
    for each in workers:
        each.join(LONG)
    assert sorted(found) == [(name, "None") for name in threads]
    assert [steps_in(path, name) for name in threads] == ["123345"] * 4


@pytest.mark.slow
@each_face
async def test_recover_follows_the_page_in_every_situation(place: Place, face: Any) -> None:
    async with AsyncExitStack() as stack:
        saver = await stack.enter_async_context(place.open(recoverable=True))
        stage = Stage(place, await stack.enter_async_context(place.open()), face, stack)
        for name, make in SITUATIONS.items():
            await make(stage, name)
        before = {name: (await saver.astatus(name)).checkpoint_id for name in SITUATIONS}
        found = await to_thread(recovered, saver, graph_of(saver), face)
        assert [each.error for each in found] == [None] * len(found)
        taken = {each.thread_id for each in found}
        assert taken == set(re.findall(rf"^\| (.+?) \| `[a-z ]+` \| [^|]+ \| {CONTINUES} \|", PAGE.read_text(), re.M))
        for name in SITUATIONS:
            status = await saver.astatus(name)
            assert status.state == "idle" if name in taken else status.checkpoint_id == before[name], name


@ON_SQLITE
def test_a_worker_resumes_with_the_decision_of_a_dead_run(place: Place, path: Path) -> None:
    def asks(saver: KeelSaver, deadly: bool) -> Any:
        def ask(state: State) -> State:
            answer = interrupt("pay?")
            if deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"log": [answer]}

        return graph(saver, ("ask", ask))

    def die() -> None:
        with place.open(recoverable=True) as saver:
            asks(saver, deadly=True).invoke(saver.approvals.resume("t"), CONFIG)

    with place.open(recoverable=True) as saver:
        asks(saver, deadly=False).invoke(INPUT, CONFIG)
        (request,) = saver.approvals.pending()
        saver.approvals.answer(request.id, value="yes", by="ann")
        assert recovered(saver, asks(saver, deadly=False), "sync") == []  # it was decided, and not cut off
    for attempts in (1, 2):
        assert exit_code(forked(die)) == -signal.SIGKILL
        with place.open(recoverable=True) as saver:
            assert saver.status("t").state == "cut off", attempts
    with place.open(recoverable=True) as saver:
        (resumed,) = recovered(saver, asks(saver, deadly=False), "sync")
        assert resumed.result["log"] == ["yes"]


@ON_SQLITE
def test_a_forked_process_recovers_and_is_recovered(place: Place, path: Path) -> None:
    """A child does not have the marks, claims and heartbeats of its parent."""
    with place.open(recoverable=True) as saver:
        drained(saver, "parent")
        drained(saver, "child")

        def child() -> None:
            made = five(saver, path, deadly="4")
            recovered(saver, made, "sync", match="child")

        assert exit_code(forked(child)) == -signal.SIGKILL
        found = recovered(saver, five(saver, path), "sync")
        assert sorted((each.thread_id, each.error, each.attempts) for each in found) == [
            ("child", None, 1),
            ("parent", None, 1),
        ]
        assert steps_in(path, "child") == "23445"


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_process_paused_beyond_its_lease_is_taken_over_and_then_refused(place: Place, path: Path) -> None:
    ours, theirs = Pipe()
    child = context().Process(target=paused, args=(place, path, theirs))
    child.start()
    assert child.pid
    assert ours.poll(LONG)
    os.kill(child.pid, signal.SIGSTOP)
    with place.open(recoverable=True) as saver:
        claims, now = saver.engine.session.hooks.find(RunClaims), [0.0]
        assert claims
        claims.timer = lambda: now[0]
        for now[0], count in ((0.0, 0), (29.0, 0), (31.0, 1)):
            found = recovered(saver, five(saver, path), "sync")
            assert [each.thread_id for each in found] == ["t"] * count
        os.kill(child.pid, signal.SIGCONT)
        ours.send("go on")
        child.join(LONG)
        assert (child.exitcode, steps_in(path)) == (7, "345")
        assert saver.status("t").state == "idle"


# -- gates -------------------------------------------------------------------------------------------------------------


@each_face
def test_a_breakpoint_reached_by_another_worker_is_not_passed(saver: KeelSaver, face: str, path: Path) -> None:
    """A slow worker has read the thread, which another one continues to a gate."""
    drained(saver)
    slow = recovery_of(saver, five(saver, path))
    (due,) = saver.engine.run(slow.next()) or ()
    (resumed,) = recovered(saver, five(saver, path, interrupt_before_nodes=["4"]), face)
    assert resumed.result["log"] == ["1", "2", "3"]
    assert saver.engine.run_patiently(slow.resume(due)) is None
    assert recovered(saver, five(saver, path), face) == []
    assert (saver.status("t").stopped, steps_in(path)) == ("breakpoint", "23")


@each_face
async def test_a_run_from_a_stale_checkpoint_is_refused_and_leaves_no_claim(
    saver: KeelSaver, face: str, path: Path
) -> None:
    made = five(saver, path, interrupt_before_nodes=["2"])
    old = made.invoke(INPUT, CONFIG) and saver.status("t").checkpoint_id
    five(saver, path, interrupt_before_nodes=["4"]).invoke(None, CONFIG)
    begins_at.set(("t", old))
    with pytest.raises(ThreadTaken):
        await (made.ainvoke(None, CONFIG) if face == "async" else to_thread(made.invoke, None, CONFIG))
    begins_at.set(None)
    assert (saver.status("t").state, steps_in(path)) == ("stopped", "123")
    assert five(saver, path).invoke(None, CONFIG)["log"] == [*STEPS]


@ON_SQLITE
def test_a_thread_with_a_call_in_doubt_is_recovered_after_it_is_settled(place: Place) -> None:
    killed_in_tool(place)
    with place.open(recoverable=True) as saver:
        made = Paying(saver, deadly=False)
        assert recovered(saver, made.graph, "sync") == []
        status = saver.status("t")
        assert (status.state, len(status.doubts)) == ("cut off", 1)
        made.cache.settle("t", status.doubts[0].key, "done", result="paid by hand")
        (resumed,) = recovered(saver, made.graph, "sync")
        assert [each.content for each in resumed.result["log"]][-1] == "paid by hand"


# -- attempts ----------------------------------------------------------------------------------------------------------


@ON_SQLITE
def test_attempts_of_killed_workers_are_counted_and_limited(
    place: Place, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed(place, path, "t")
    killed(place, path, "u", deadly="5")
    for count in (1, 2, 3):
        killed_worker(place, path, deadly="3")
        with place.open(recoverable=True) as saver:
            found = tries_in(saver)
            assert found is not None
            assert found.count == count
    with place.open(recoverable=True) as saver:
        # "u" was next in the line, and is not blocked.
        assert [each.thread_id for each in recovered(saver, five(saver, path), "sync")] == ["u"]
        (look,) = looks_of(saver, five(saver, path))
        assert look.why == "given up after 3 attempts"
        assert steps_in(path) == "123333"
        (resumed,) = recovered(saver, five(saver, path), "sync", attempts=4)
        assert (resumed.attempts, steps_in(path)) == (4, "123333345")


@each_face
def test_a_failing_step_is_retried_without_delaying_other_threads(saver: KeelSaver, face: str) -> None:
    tried: list[str] = []

    def fail(state: State, config: Any) -> State:
        tried.append(config["configurable"]["thread_id"])
        if tried[-1] == "bad":
            raise ValueError("no such order")
        return {"log": ["3"]}

    fail.__annotations__["config"] = "RunnableConfig"
    made = graph(saver, say("1"), say("2"), ("3", fail), say("4"), say("5"))
    for name in ("bad", "good"):
        drained(saver, name)
    found = recovered(saver, made, face, count=4, timeout=LONG, poll=0.01)
    errors = [(each.thread_id, repr(each.error), each.attempts) for each in found]
    # It was continued at step 2 and failed in step 3, from which it is tried twice more.
    assert sorted(errors) == [
        ("bad", "ValueError('no such order')", 1),
        ("bad", "ValueError('no such order')", 2),
        ("bad", "ValueError('no such order')", 3),
        ("good", "None", 1),
    ]
    assert recovered(saver, made, face) == []
    assert tried.count("bad") == 3
    found_tries = tries_in(saver, "bad")
    assert found_tries is not None
    assert (found_tries.count, found_tries.error) == (3, "ValueError('no such order')")
    (look,) = looks_of(saver, made)
    assert look.why == "given up after 3 attempts: ValueError('no such order')"


def test_attempts_are_counted_per_checkpoint(saver: KeelSaver) -> None:
    def made(*bad: str) -> Any:
        def fail(state: State) -> State:
            raise ValueError("no")

        return graph(saver, *(((name, fail) if name in bad else say(name)) for name in STEPS))

    drained(saver)
    for bad, count in (("3", 1), ("3", 2), ("4", 1), ("4", 2)):
        (resumed,) = recovered(saver, made(bad), "sync")
        found = tries_in(saver)
        assert found is not None
        assert (str(resumed.error), found.count) == ("no", count)
    (resumed,) = recovered(saver, made(), "sync")
    assert (resumed.result["log"], resumed.attempts, tries_in(saver)) == ([*STEPS], 3, None)


def test_a_thread_that_failed_outside_a_worker_is_not_recovered(saver: KeelSaver) -> None:
    def fail(state: State) -> State:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        graph(saver, ("1", fail)).invoke(INPUT, CONFIG)
    assert recovered(saver, graph(saver, say("1")), "sync") == []


@each_face
def test_errors_of_the_store_or_another_run_are_not_attempts(saver: KeelSaver, face: str) -> None:
    errors: list[Exception] = [
        StoreUnavailable("away"),
        NewerState("thread 't'", 2, 1),
        ThreadTaken("t", "h/m/1/1", ""),
    ]

    def fail(state: State) -> State:
        if errors:
            raise errors.pop()
        return {"log": ["2"]}

    drained(saver)
    made = graph(saver, say("1"), ("2", fail), *map(say, STEPS[2:]))
    seen = []
    while errors:
        seen += recovered(saver, made, face)
        # An error in a node leaves a failed thread; no attempt was counted, so only its program may try it again.
        assert tries_in(saver) is None
        made.update_state(CONFIG, None, as_node="1")
        assert recovered(saver, made, face) == []
        with pytest.raises(GraphDrained):
            graph(saver, ("1", drain_of(saver)), *map(say, STEPS[1:])).invoke(INPUT, CONFIG)
    assert [type(each.error) for each in seen] == [StoreUnavailable]


def drain_of(saver: KeelSaver) -> Any:
    def stop(state: State) -> State:
        for each in find_runs_of(saver.engine.session.store):
            each.control.request_drain("sigterm")
        return {"log": ["1"]}

    return stop


def test_a_worker_skips_threads_with_a_newer_state(tmp_path: Path) -> None:
    newer = [upgrade(1, 2, lambda state: None)]
    with SqliteSaver(tmp_path / "keel.db", recoverable=True, upgrades=newer) as saver:
        drained(saver)
    with SqliteSaver(tmp_path / "keel.db", recoverable=True) as saver:
        made = graph(saver, *map(say, STEPS))
        assert recovered(saver, made, "sync") == []
        (look,) = looks_of(saver, made)
        assert look.why == "its state was written by a newer version of the application"
        assert tries_in(saver) is None
    with SqliteSaver(tmp_path / "keel.db", recoverable=True, upgrades=newer) as saver:
        assert len(recovered(saver, graph(saver, *map(say, STEPS)), "sync")) == 1


def test_only_one_worker_counts_an_attempt(saver: KeelSaver, path: Path) -> None:
    drained(saver)
    workers = [recovery_of(saver, five(saver, path)) for _ in range(2)]
    found = [saver.engine.run(each.next()) for each in workers]
    (first,), (second,) = (each or () for each in found)
    assert saver.engine.run(workers[0]._count(first)) is not None  # private: the moment between counting and running
    assert saver.engine.run(workers[1]._count(second)) is None  # private: as above


# -- which threads -----------------------------------------------------------------------------------------------------


@each_face
def test_threads_of_other_graphs_and_names_are_skipped(saver: KeelSaver, face: str, path: Path) -> None:
    for name in ("orders/1", "orders/2", "mail/1"):
        drained(saver, name)
    other = five(saver, path, names="abcde")
    assert recovered(saver, other, face) == []
    assert {look.why for look in looks_of(saver, other)} == {"it belongs to another graph"}
    found = recovered(saver, five(saver, path), face, match="orders/*")
    assert [each.thread_id for each in found] == ["orders/1", "orders/2"]  # least recently active first
    assert [each.thread_id for each in recovered(saver, five(saver, path), face)] == ["mail/1"]


@each_face
def test_unprocessed_input_is_recovered_only_by_its_graph(saver: KeelSaver, face: str, path: Path) -> None:
    """It is next at `__start__`, a node of every graph."""
    saver.accept(five(saver, path), INPUT, config_of("new"))
    five(saver, path).invoke(INPUT, config_of("old"))
    saver.accept(five(saver, path), INPUT, config_of("old"))
    for name in ("new", "old"):
        assert saver.status(name).next == ("__start__",)
    other = five(saver, path, names="abc")
    assert recovered(saver, other, face) == []
    assert {look.why for look in looks_of(saver, other)} == {"it belongs to another graph"}
    newer = five(saver, path, names="1678")  # another version of the program
    found = recovered(saver, newer, face)
    assert sorted((each.thread_id, each.error) for each in found) == [("new", None), ("old", None)]
    assert steps_in(path, "new") == "1678"


@ON_SQLITE
@pytest.mark.parametrize("is_own", [False, True], ids=["saver of the root", "own saver"])
def test_a_subgraph_is_continued_with_its_root(place: Place, path: Path, tmp_path: Path, is_own: bool) -> None:
    def nested(saver: KeelSaver, own: KeelSaver, deadly: str = "") -> Any:
        inner = five(own if is_own else None, path, deadly, names="abc")
        return graph(saver, say("1"), ("2", inner), say("3"))

    def die() -> None:
        with place.open(recoverable=True) as saver, SqliteSaver(tmp_path / "own.db", recoverable=True) as own:
            nested(saver, own, deadly="b").invoke(INPUT, CONFIG, durability="sync")

    assert exit_code(forked(die)) == -signal.SIGKILL
    with place.open(recoverable=True) as saver, SqliteSaver(tmp_path / "own.db", recoverable=True) as own:
        (resumed,) = recovered(saver, nested(saver, own), "sync")
        assert (resumed.error, steps_in(path)) == (None, "abbc")


def test_a_recovered_run_receives_its_own_and_additional_config(saver: KeelSaver) -> None:
    seen: list[Any] = []

    def look(state: State, config: Any) -> None:
        seen.append(config["configurable"])

    look.__annotations__["config"] = "RunnableConfig"
    given: Any = {"configurable": {"thread_id": "t", "user_id": "ann"}}
    with pytest.raises(GraphDrained):
        graph(saver, ("1", drain_of(saver)), *map(say, STEPS[1:])).invoke(INPUT, given)
    made = graph(saver, say("1"), ("2", look), *map(say, STEPS[2:]))
    recovered(saver, made, "sync", config={"configurable": {"shop": 7}})
    assert [(each["user_id"], each["shop"], each["thread_id"]) for each in seen] == [("ann", 7, "t")]


# -- how it ends -------------------------------------------------------------------------------------------------------


@each_face
def test_a_stopped_worker_ends_after_its_current_run(saver: KeelSaver, face: str) -> None:
    stop = Event()

    def last(state: State) -> State:
        stop.set()
        return {"log": ["5"]}

    for name in "ab":
        drained(saver, name)
    made = graph(saver, *map(say, STEPS[:4]), ("5", last))
    found = recovered(saver, made, face, timeout=None, poll=0.01, stop=stop)
    assert [(each.thread_id, each.result["log"]) for each in found] == [("a", [*STEPS])]
    assert saver.status("b").stopped == "drained"


@each_face
def test_a_waiting_worker_ends_when_it_is_stopped(saver: KeelSaver, face: str) -> None:
    stop = Event()

    async def work() -> None:
        worker = asyncio.create_task(to_thread(recovered, saver, graph(saver, say("1")), face, timeout=None, stop=stop))
        stop.set()
        await asyncio.wait_for(worker, LONG)

    asyncio.run(work())


@each_face
def test_a_drained_run_of_a_worker_is_not_an_error(saver: KeelSaver, face: str) -> None:
    drained(saver)
    made = graph(saver, say("1"), ("2", drain_of(saver)), *map(say, STEPS[2:]))
    assert recovered(saver, made, face) == []
    assert (saver.status("t").stopped, saver.status("t").next, tries_in(saver)) == ("drained", ("3",), None)


def test_a_worker_survives_an_unavailable_store(
    saver: KeelSaver, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drained(saver)
    looks, real = [0], Recovery.look

    def look(self: Recovery) -> Any:
        looks[0] += 1
        if looks[0] == 1:
            raise StoreUnavailable("gone for a moment")
        return real(self)

    monkeypatch.setattr(Recovery, "look", look)
    with pytest.raises(StoreUnavailable):
        recovered(saver, five(saver, path), "sync")
    looks[0] = 0
    worker = saver.recover(five(saver, path), poll=0.01)
    assert next(worker).thread_id == "t"
    assert "no threads are continued before the next poll: gone for a moment" in caplog.text


def test_log_records_name_the_thread_and_the_attempt(saver: KeelSaver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "langgraph_keel.recovery")
    drained(saver)
    recovered(saver, graph(saver, *map(say, STEPS)), "sync")
    said = [(each.__dict__["thread_id"], each.__dict__["attempt"]) for each in caplog.records]
    assert said == [("t", 1), ("t", 1)]


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_invalid_arguments_of_recover_are_refused_immediately(saver: KeelSaver, tmp_path: Path) -> None:
    made = graph(saver, say("1"))
    with MemorySaver() as plain, MemorySaver(recoverable=True) as other:
        cases: list[tuple[KeelSaver, Any, dict[str, Any], str]] = [
            (plain, graph(plain, say("1")), {}, "recoverable=True"),
            (saver, graph(other, say("1")), {}, "compiled with this saver"),
            (saver, made.copy({"checkpointer": None}), {}, "compiled with this saver"),
            (saver, "shop:graph", {}, "a compiled graph, not a str"),
            (saver, made, {"attempts": 0}, "attempts"),
            (saver, made, {"attempts": True}, "attempts"),
            (saver, made, {"match": 3}, "match"),
            (saver, made, {"poll": 0}, "poll"),
            (saver, made, {"timeout": -1}, "timeout"),
        ]
        for which, given, options, words in cases:
            for face in (which.recover, which.arecover):
                with pytest.raises(InvalidInput, match=words):
                    face(given, **options)
    made.invoke(INPUT, CONFIG)
    reading = SqliteSaver(tmp_path / "one.db", recoverable=True, read_only=True)
    with reading as reader, pytest.raises(ReadOnlyStore, match="a worker writes"):
        reader.recover(graph(reader, say("1")))


def test_a_tenant_view_recovers_only_its_threads(saver: KeelSaver) -> None:
    shop = saver.for_tenant("shop")
    drained(saver, "a")
    drained(shop, "b")
    assert [each.thread_id for each in recovered(shop, graph(shop, *map(say, STEPS)), "sync")] == ["b"]
    with pytest.raises(InvalidInput, match="compiled with this saver"):
        shop.recover(graph(saver, say("1")))
