"""Runs that wait their turn (`on_busy="wait"`): each input is answered in order."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from support.approvals.resuming import claim_of, runs_of, with_runs
from support.places import Place
from support.process_children import exit_code, forked
from support.rivals import PATIENCE

from langgraph_keel import CheckpointConflict, InvalidInput, KeelSaver, MemorySaver, ThreadTaken
from langgraph_keel.engine.leases import this_holder
from langgraph_keel.engine.tables import Cells
from langgraph_keel.runs import turns

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def saver(saver: KeelSaver) -> KeelSaver:
    return with_runs(saver, on_busy="wait", busy_timeout=PATIENCE)


class State(TypedDict, total=False):
    who: str
    log: Annotated[list[str], operator.add]


class Chat:
    """A graph of two nodes, whose first run is held until the test releases it."""

    def __init__(self, saver: Any, is_held: bool = True) -> None:
        self.saver = saver
        self.acts: list[str] = []
        self.is_in, self.may_go_on = Event(), Event()
        self.errors: list[BaseException] = []
        if not is_held:
            self.may_go_on.set()
        graph: Any = StateGraph(State).add_node("think", self.think).add_node("answer", self.answer)
        self.graph = graph.add_edge(START, "think").add_edge("think", "answer").compile(checkpointer=saver)

    def think(self, state: State) -> State:
        self.acts.append("think " + state["who"])
        self.is_in.set()
        assert self.may_go_on.wait(PATIENCE)
        return {}

    def answer(self, state: State) -> State:
        self.acts.append("answer " + state["who"])
        return {"log": ["to " + state["who"]]}

    def say(self, who: str, face: str = "invoke") -> None:
        given = {"who": who, "log": [who]}
        try:
            if face == "invoke":
                self.graph.invoke(given, CONFIG)
            else:
                asyncio.run(self.graph.ainvoke(given, CONFIG))
        except BaseException as error:
            self.errors.append(error)

    def begin(self, who: str, face: str = "invoke") -> Thread:
        thread = Thread(target=self.say, args=(who, face))
        thread.start()
        return thread

    @property
    def log(self) -> list[str]:
        log: list[str] = self.graph.get_state(CONFIG).values["log"]
        return log


def line_of(saver: KeelSaver) -> turns.Line:
    engine = saver.engine
    kept = engine.run(Cells(engine.session, turns.LINES, "t").find(turns.KEY))
    return kept.record if kept else ()


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def answers_to(names: str) -> list[str]:
    return [text for who in names for text in (who, f"to {who}")]


@pytest.mark.parametrize("face", ["invoke", "ainvoke"])
def test_eight_inputs_are_answered_in_order_of_arrival(saver: KeelSaver, face: str) -> None:
    chat, names = Chat(saver), "abcdefgh"
    threads = []
    for number, who in enumerate(names):
        threads.append(chat.begin(who, face))
        if number == 0:
            assert chat.is_in.wait(PATIENCE)
        else:
            until(lambda number=number: len(line_of(saver)) == number)  # type: ignore[misc]
    assert chat.acts == ["think a"]
    chat.may_go_on.set()
    for thread in threads:
        thread.join()
    assert chat.errors == []
    assert chat.log == answers_to(names)
    assert chat.acts == [f"{act} {who}" for who in names for act in ("think", "answer")]
    assert claim_of(saver) is None
    assert line_of(saver) == ()


async def test_queued_runs_of_one_loop_do_not_block_it(saver: KeelSaver) -> None:
    chat, names = Chat(saver, is_held=False), "abcdefgh"
    await asyncio.gather(*(chat.graph.ainvoke({"who": who, "log": [who]}, CONFIG) for who in names))
    log = (await chat.graph.aget_state(CONFIG)).values["log"]
    assert sorted(log[::2]) == list(names)
    assert log[1::2] == [f"to {who}" for who in log[::2]]


def test_a_queued_run_raises_thread_taken_after_its_timeout(saver: KeelSaver) -> None:
    chat = Chat(saver)
    thread = chat.begin("a")
    assert chat.is_in.wait(PATIENCE)
    impatient = Chat(with_runs(saver, on_busy="wait", busy_timeout=0.05))
    impatient.say("b")
    (error,) = impatient.errors
    assert isinstance(error, ThreadTaken)
    assert (error.thread_id, error.holder, error.waited) == ("t", this_holder(), 0.05)
    assert impatient.acts == []
    chat.may_go_on.set()
    thread.join()
    runs_of(impatient.saver).close()
    assert (chat.log, line_of(saver)) == (["a", "to a"], ())


async def test_a_cancelled_queued_run_lets_the_next_run_in(saver: KeelSaver) -> None:
    chat = Chat(saver)
    first = chat.begin("a")
    await asyncio.to_thread(chat.is_in.wait, PATIENCE)
    given: list[State] = [{"who": who, "log": [who]} for who in "bc"]
    second, third = None, None
    for number, each in enumerate(given, 1):
        second, third = third, asyncio.create_task(chat.graph.ainvoke(each, CONFIG))
        await asyncio.to_thread(until, lambda number=number: len(line_of(saver)) == number)  # type: ignore[misc]
    assert second
    assert third
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    chat.may_go_on.set()
    assert (await third)["log"] == answers_to("ac")
    await asyncio.to_thread(first.join)
    assert await asyncio.to_thread(claim_of, saver) is None
    assert await asyncio.to_thread(line_of, saver) == ()


def ask(state: State) -> State:
    return {"log": [interrupt("what?")]}


def test_an_answer_does_not_wait_its_turn(saver: KeelSaver) -> None:
    """If it waited its turn, a second click would be given to the next question."""
    graph: Any = StateGraph(State).add_node(ask).add_edge(START, "ask").compile(checkpointer=saver)
    graph.invoke({}, CONFIG)
    chat = Chat(saver)
    thread = chat.begin("a")
    assert chat.is_in.wait(PATIENCE)
    with pytest.raises(ThreadTaken):
        graph.invoke(Command(resume="yes"), CONFIG)
    chat.may_go_on.set()
    thread.join()
    assert chat.errors == []


def test_a_nested_run_on_the_same_thread_does_not_wait() -> None:
    saver = with_runs(MemorySaver(), on_busy="wait", busy_timeout=0.0)
    inner: Any = StateGraph(State).add_node("in", lambda state: {"log": ["in"]}).add_edge(START, "in")
    inner = inner.compile(checkpointer=saver)

    def around(state: State) -> State:
        inner.invoke({"log": ["given"]}, CONFIG)
        return {}

    outer: Any = StateGraph(State).add_node(around).add_edge(START, "around").compile(checkpointer=saver)
    with pytest.raises(CheckpointConflict):  # two concurrent runs of one thread conflict, as always
        outer.invoke({"log": ["a"]}, CONFIG)


@pytest.mark.parametrize("options", [{"on_busy": "queue"}, {"busy_timeout": -1}, {"busy_timeout": "long"}])
def test_invalid_turn_options_are_refused(options: Any) -> None:
    with pytest.raises(InvalidInput):
        MemorySaver(**options)


def test_a_ticket_of_another_host_counts_while_it_is_renewed() -> None:
    """The waiting run measures on its own clock, not on the other host's."""
    saver, now = MemorySaver(), [0.0]
    session = saver.engine.session
    theirs = turns.Place(session, "t", turns.Ticket("x", "elsewhere/boot.1/17/4711", ""), 30.0, lambda: now[0])
    mine = turns.Place(session, "t", turns.Ticket("y", this_holder(), ""), 30.0, lambda: now[0])
    run = saver.engine.run
    run(theirs.stay())
    for seconds in (0.0, 20.0, 40.0, 60.0):  # it renews its ticket
        now[0] = seconds
        run(theirs.stay())
        ahead = run(mine.look())
        assert [ticket.token for ticket in ahead] == ["x"]
        run(mine.stay())
    now[0] = 91.0  # it no longer does
    assert run(mine.look()) == []
    run(mine.stay())
    assert [ticket.token for ticket in line_of(saver)] == ["y"]
    assert [ticket.token for ticket in run(theirs.look())] == ["y"]  # it was only slow, and joins again at the end
    run(theirs.stay())
    assert [ticket.token for ticket in line_of(saver)] == ["y", "x"]


# -- processes ---------------------------------------------------------------------------------------------------------


def think_for_ever(place: Place, pipe: int) -> None:
    def think(state: State) -> State:
        os.write(pipe, b"in")
        time.sleep(600)
        return {}

    graph: Any = StateGraph(State).add_node(think).add_edge(START, "think")
    graph = graph.compile(checkpointer=place.open(on_busy="wait", busy_timeout=PATIENCE))
    graph.invoke({"who": "killed", "log": ["killed"]}, CONFIG, durability="sync")


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL


def test_the_next_run_proceeds_when_a_process_is_killed(place: Place) -> None:
    """A killed run, whether it holds the thread or waits for it, delays no other run."""
    reading, writing = os.pipe()
    holder = forked(think_for_ever, place, writing)
    assert os.read(reading, 2) == b"in"
    waiter = forked(think_for_ever, place, writing)
    with place.open(on_busy="wait", busy_timeout=PATIENCE) as saver:
        until(lambda: len(line_of(saver)) == 1)
        chat = Chat(saver, is_held=False)
        thread = chat.begin("a")
        until(lambda: len(line_of(saver)) == 2)
        kill(waiter)
        kill(holder)
        thread.join()
        assert chat.errors == []
        assert chat.log == ["killed", "a", "to a"]
        runs_of(saver).close()
        assert line_of(saver) == ()
    os.close(reading)
    os.close(writing)
