"""New input for a thread with remaining steps (`on_unfinished="refuse"`).

None of it runs, and nothing is lost.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from support.approvals.resuming import claim_of, runs_of, with_runs
from support.places import Place
from support.process_children import forked
from support.rivals import PATIENCE
from test_turns import CONFIG, Chat, State, kill, line_of, think_for_ever, until

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, ThreadUnfinished
from langgraph_keel.testing.faults import Counter, with_tap

each_face = pytest.mark.parametrize("face", ["invoke", "ainvoke"])
BUSY = ("raise", "wait")


def refusing(saver: KeelSaver, on_busy: Any = "wait") -> KeelSaver:
    return with_runs(saver, on_busy=on_busy, busy_timeout=PATIENCE, on_unfinished="refuse")


async def run(graph: Any, face: str, given: Any, config: Any = CONFIG) -> Any:
    return await graph.ainvoke(given, config) if face == "ainvoke" else graph.invoke(given, config)


def hello(who: str = "a") -> State:
    return {"who": who, "log": [who]}


class Agent:
    """A graph whose second node asks, fails, stops, or is a target of `Send`."""

    def __init__(self, saver: BaseCheckpointSaver[Any], does: str) -> None:
        self.does, self.ran = does, list[str]()
        graph: Any = StateGraph(State).add_node("think", self.think).add_node("act", self.act)
        graph.add_edge(START, "think")
        if does == "is sent to":
            graph.add_conditional_edges("think", lambda state: [Send("act", state)])
        else:
            graph.add_edge("think", "act")
        stops = ["act"] if does in ("is stopped before", "is sent to") else []
        self.graph = graph.compile(checkpointer=saver, interrupt_before=stops)

    def think(self, state: State) -> State:
        self.ran.append("think")
        return {}

    def act(self, state: State) -> State:
        self.ran.append("act")
        if self.does == "asks":
            return {"log": [interrupt("what?")]}
        if self.does == "fails" and self.ran.count("act") == 1:
            raise ZeroDivisionError
        return {"log": ["acted"]}


@each_face
@pytest.mark.parametrize("on_busy", BUSY)
@pytest.mark.parametrize("does", ["asks", "fails", "is stopped before", "is sent to"])
async def test_new_input_for_an_unfinished_thread_is_refused(
    saver: KeelSaver, face: str, does: str, on_busy: str
) -> None:
    saver = refusing(saver, on_busy)
    agent = Agent(saver, does)
    with suppress(ZeroDivisionError):
        await run(agent.graph, face, hello())
    ran, before, status = [*agent.ran], saver.get_tuple(CONFIG), saver.status("t")
    with pytest.raises(ThreadUnfinished, match=r"saver\.status") as refused:
        await run(agent.graph, face, hello("b"))
    assert (refused.value.thread_id, refused.value.next) == ("t", ("act",))
    assert ("has a question and steps left before act" in str(refused.value)) is refused.value.asks is (does == "asks")
    assert (agent.ran, saver.get_tuple(CONFIG), saver.status("t")) == (ran, before, status)
    assert (claim_of(saver), line_of(saver)) == (None, ())
    await run(agent.graph, face, Command(resume="yes") if does == "asks" else None)
    assert saver.status("t").state == "idle"
    agent.does = ""
    await run(agent.graph, face, hello("b"))
    log = saver.get_tuple(CONFIG).checkpoint["channel_values"]["log"]  # type: ignore[union-attr]
    assert log[:3] == ["a", "yes" if does == "asks" else "acted", "b"]


def test_forks_and_updates_of_an_unfinished_thread_are_allowed(saver: KeelSaver) -> None:
    """Input at an older checkpoint forks; `update_state` is the program's decision."""
    saver = refusing(saver)
    agent = Agent(saver, "asks")
    agent.graph.invoke(hello(), CONFIG)
    old = saver.timeline("t")[0]
    assert agent.graph.invoke(hello("b"), old.config)["__interrupt__"]
    agent.graph.update_state(CONFIG, {"log": ["by hand"]}, as_node="act")
    agent.does = ""
    assert agent.graph.invoke(hello("c"), CONFIG)["log"][-2:] == ["c", "acted"]


def test_new_input_for_an_unfinished_entrypoint_is_refused() -> None:
    saver = MemorySaver(on_unfinished="refuse")

    @entrypoint(checkpointer=saver)
    def pay(order: str) -> str:
        return str(interrupt(order)) if order == "17" else order

    assert [pay.invoke(order, CONFIG) for order in ("1", "2")] == ["1", "2"]
    pay.invoke("17", CONFIG)
    with pytest.raises(ThreadUnfinished):
        pay.invoke("18", CONFIG)
    assert pay.invoke(Command(resume="yes"), CONFIG) == "yes"
    assert pay.invoke("18", CONFIG) == "18"


@each_face
async def test_a_queued_message_is_refused_if_the_turn_before_it_asks(saver: KeelSaver, face: str) -> None:
    saver = refusing(saver)
    chat = Chat(saver)
    graph: Any = (
        StateGraph(State).add_node("think", chat.think).add_node("ask", lambda state: {"log": [interrupt("refund?")]})
    )
    chat.graph = graph.add_edge(START, "think").add_edge("think", "ask").compile(checkpointer=saver)
    first = chat.begin("a", face)
    assert chat.is_in.wait(PATIENCE)
    second = chat.begin("b", face)
    until(lambda: len(line_of(saver)) == 1)
    chat.may_go_on.set()
    first.join()
    second.join()
    assert [type(error) for error in chat.errors] == [ThreadUnfinished]
    assert chat.acts == ["think a"]
    (request,) = saver.approvals.pending("t")
    assert request.status == "waiting"
    saver.approvals.answer(request.id, value="yes", by="ann")
    chat.graph.invoke(saver.approvals.resume("t"), CONFIG)
    assert saver.status("t").state == "idle"


@each_face
def test_a_queued_message_is_refused_if_the_turn_before_it_is_killed(place: Place, face: str) -> None:
    """The thread stays unfinished; the message may come after its remaining steps."""
    reading, writing = os.pipe()
    holder = forked(think_for_ever, place, writing)
    assert os.read(reading, 2) == b"in"
    with place.open(on_busy="wait", busy_timeout=PATIENCE, on_unfinished="refuse") as saver:
        chat = Chat(saver, is_held=False)
        waiting = chat.begin("a", face)
        until(lambda: len(line_of(saver)) == 1)
        kill(holder)
        waiting.join()
        assert [type(error) for error in chat.errors] == [ThreadUnfinished]
        assert chat.acts == []
        for _ in range(2):
            status = saver.status("t")
            assert (status.state, status.can_go_on, status.next) == ("cut off", True, ("think",))
            with pytest.raises(ThreadUnfinished):
                chat.graph.invoke(hello("a"), CONFIG)
        runs_of(saver).close()
        assert line_of(saver) == ()
        graph: Any = StateGraph(State).add_node("think", lambda state: {"log": ["thought"]}).add_edge(START, "think")
        graph.compile(checkpointer=saver).invoke(status.given, CONFIG)
        chat.errors.clear()
        chat.say("a", face)
        assert (chat.errors, chat.log) == ([], ["killed", "thought", "a", "to a"])
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("on_busy", BUSY)
def test_refusing_new_input_takes_no_extra_trip(saver: KeelSaver, on_busy: str) -> None:
    trips = []
    for number, on_unfinished in enumerate(("drop", "refuse")):
        counter = Counter()
        counted = with_tap(with_runs(saver, on_busy=on_busy, on_unfinished=on_unfinished), counter)
        agent, config = Agent(counted, ""), {"configurable": {"thread_id": f"t{number}"}}
        agent.graph.invoke(hello(), config)
        before = counter.count
        agent.graph.invoke(hello("b"), config)
        trips.append(counter.count - before)
    assert trips[0] == trips[1]


def test_a_replay_may_repeat_input_that_dropped_a_question() -> None:
    """In the original, new input had dropped a question, while this was still allowed."""
    saver = MemorySaver()
    agent = Agent(saver, "asks")
    for who in "ab":
        agent.graph.invoke(hello(who), CONFIG)
    assert refusing(saver).provenance.replay(agent.graph, CONFIG)


@pytest.mark.parametrize("value", ["no", None, True])
def test_invalid_values_of_on_unfinished_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        MemorySaver(on_unfinished=value)
