"""Hazards of resuming that LangGraph's own savers have, and Keel's do not.

Each hazard is one function that runs on both: it must occur on LangGraph's savers, and must not on Keel's. The numbers
are those of the study of the extension points, section C.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSqliteSaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from support.approvals.resuming import CONFIG, FACES, State, answer_to, book, go_on, graph_of, wire, with_runs

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver
from langgraph_keel.errors import ThreadTaken
from langgraph_keel.testing.faults import Counter, with_tap

THEIRS: dict[str, Callable[[Path], AbstractContextManager[BaseCheckpointSaver[Any]]]] = {
    "langgraph-memory": lambda _: nullcontext(InMemorySaver()),
    "langgraph-sqlite": lambda path: LangGraphSqliteSaver.from_conn_string(str(path / "theirs.db")),
}
NULL_TASK = "00000000-0000-0000-0000-000000000000"

each_face = pytest.mark.parametrize("face", FACES)
each_way = pytest.mark.parametrize("by_id", [False, True], ids=["plain", "by-id"])


@pytest.fixture(params=THEIRS)
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseCheckpointSaver[Any]]:
    with THEIRS[request.param](tmp_path) as saver:
        yield saver


# -- two clicks at the same time (C10) ---------------------------------------------------------------------------------


@dataclass
class Payment:
    """A node that asks, and pays; the first payment waits until the test releases it."""

    paid: list[str] = field(default_factory=list)
    is_paying: Event = field(default_factory=Event)
    may_go_on: Event = field(default_factory=Event)

    def pay(self, state: State) -> State:
        answer = interrupt("pay?")
        self.paid.append(answer)
        if len(self.paid) == 1:
            self.is_paying.set()
            assert self.may_go_on.wait(30)
        return {"answer": answer}


async def two_clicks(saver: Any, face: str, by_id: bool) -> tuple[Payment, Any, BaseException | None]:
    """Resume twice, the second time during a payment; return the second outcome."""
    payment = Payment()
    graph = graph_of(saver, payment.pay)
    await asyncio.to_thread(graph.invoke, {}, CONFIG)
    command = await asyncio.to_thread(answer_to, graph, "yes", by_id)
    first = asyncio.create_task(go_on(face, graph, command))
    assert await asyncio.to_thread(payment.is_paying.wait, 30)
    (second,) = await asyncio.gather(go_on(face, graph, command), return_exceptions=True)
    payment.may_go_on.set()
    await first
    return payment, graph, second


@each_way
@pytest.mark.parametrize("face", ["invoke", "stream"])
async def test_two_clicks_pay_twice_with_langgraphs_savers(theirs: Any, face: str, by_id: bool) -> None:
    payment, _, second = await two_clicks(theirs, face, by_id)
    assert (payment.paid, second) == (["yes", "yes"], None)


@each_way
@pytest.mark.parametrize("face", ["ainvoke", "astream"])
async def test_two_clicks_pay_twice_with_langgraphs_savers_async(face: str, by_id: bool) -> None:
    payment, _, second = await two_clicks(InMemorySaver(), face, by_id)
    assert (payment.paid, second) == (["yes", "yes"], None)


@each_way
@each_face
async def test_two_clicks_pay_once(saver: KeelSaver, face: str, by_id: bool) -> None:
    payment, graph, second = await two_clicks(saver, face, by_id)
    assert isinstance(second, ThreadTaken)
    assert payment.paid == ["yes"]
    state = await asyncio.to_thread(graph.get_state, CONFIG)
    assert (state.values["answer"], state.next) == ("yes", ())


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_resume_with_none_is_refused_during_a_run(saver: KeelSaver, is_first: bool) -> None:
    """`invoke(None)` asks again if there is no answer.

    During a run with an answer, it would run the step again.
    """
    payment = Payment()
    graph = graph_of(saver, payment.pay)
    await asyncio.to_thread(graph.invoke, {}, CONFIG)
    if is_first:
        await go_on("invoke", graph, None)
        assert (await asyncio.to_thread(graph.get_state, CONFIG)).interrupts
    first = asyncio.create_task(go_on("ainvoke", graph, Command(resume="yes")))
    assert await asyncio.to_thread(payment.is_paying.wait, 30)
    with pytest.raises(ThreadTaken, match="'t'"):
        await go_on("invoke", graph, None)
    payment.may_go_on.set()
    await first
    assert payment.paid == ["yes"]


# -- two clicks, one after the other (C8) ------------------------------------------------------------------------------


def refusing(saver: KeelSaver) -> KeelSaver:
    """The same saver, opened with `plain_resume="refuse"`."""

    return with_runs(saver, plain_resume="refuse")


@each_face
async def test_a_second_click_answers_the_next_question_with_langgraphs_saver(face: str) -> None:
    graph = graph_of(InMemorySaver(), book, wire)
    graph.invoke({}, CONFIG)
    await go_on(face, graph, Command(resume="yes"))
    await go_on(face, graph, Command(resume="yes"))
    assert graph.get_state(CONFIG).values == {"answer": "yes", "second": "yes"}


def test_a_second_click_answers_the_next_question_with_langgraphs_sqlite(theirs: Any) -> None:
    graph = graph_of(theirs, book, wire)
    graph.invoke({}, CONFIG)
    for _ in range(2):
        graph.invoke(Command(resume="yes"), CONFIG)
    assert graph.get_state(CONFIG).values["second"] == "yes"


@each_face
async def test_a_second_click_by_interrupt_id_answers_nothing(saver: KeelSaver, face: str) -> None:
    graph = graph_of(refusing(saver), book, wire)
    await asyncio.to_thread(graph.invoke, {}, CONFIG)
    click = await asyncio.to_thread(answer_to, graph, "yes", True)
    await go_on(face, graph, click)
    await go_on(face, graph, click)
    state = await asyncio.to_thread(graph.get_state, CONFIG)
    assert (state.values, [each.value for each in state.interrupts]) == ({"answer": "yes"}, ["wire a million?"])


@each_face
@pytest.mark.parametrize("value", ["yes", {"decision": "yes"}, {"0" * 31: "short"}, ["yes"], False])
async def test_a_resume_without_an_interrupt_id_is_refused(face: str, value: Any) -> None:
    saver = MemorySaver(plain_resume="refuse")
    graph = graph_of(saver, book, wire)
    graph.invoke({}, CONFIG)
    before = saver.get_tuple(CONFIG)
    with pytest.raises(InvalidInput, match="name the interrupt"):
        await go_on(face, graph, Command(resume=value))
    assert saver.get_tuple(CONFIG) == before
    await go_on(face, graph, None)
    await go_on(face, graph, answer_to(graph, value, True))
    assert graph.get_state(CONFIG).values == {"answer": value}


def test_invalid_values_of_plain_resume_are_refused() -> None:
    with pytest.raises(InvalidInput, match="plain_resume"):
        MemorySaver(plain_resume="ask")  # type: ignore[arg-type]


# -- a run without an answer, where a subgraph asks its next question --------------------------------------------------


def ask_inside(saver: BaseCheckpointSaver[Any], depth: int) -> Any:
    """Return a graph that asks twice at this depth of subgraphs, once answered."""

    def ask(state: State) -> State:
        return {"answer": interrupt("book?"), "second": interrupt("wire a million?")}

    graph: Any = ask
    for _ in range(depth):
        graph = StateGraph(State).add_node("inside", graph).add_edge(START, "inside").compile()
    graph = StateGraph(State).add_node("inside", graph).add_edge(START, "inside").compile(checkpointer=saver)
    graph.invoke({}, CONFIG)
    graph.invoke(Command(resume="yes"), CONFIG)
    return graph


@each_face
async def test_a_restart_answers_a_subgraphs_next_question_with_langgraphs_saver(face: str) -> None:
    graph = ask_inside(InMemorySaver(), 1)
    await go_on(face, graph, None)
    assert graph.get_state(CONFIG).values == {"answer": "yes", "second": "yes"}


@each_face
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_a_restart_does_not_answer_a_subgraphs_question(saver: KeelSaver, face: str, depth: int) -> None:
    graph = await asyncio.to_thread(ask_inside, saver, depth)
    for _ in range(2):
        await go_on(face, graph, None)
        state = await asyncio.to_thread(graph.get_state, CONFIG)
        assert (state.values, [each.value for each in state.interrupts]) == ({}, ["wire a million?"])
    click = await asyncio.to_thread(answer_to, graph, "no", True)
    await go_on(face, graph, click)
    assert (await asyncio.to_thread(graph.get_state, CONFIG)).values == {"answer": "yes", "second": "no"}


# -- a click after the end (C9) ----------------------------------------------------------------------------------------


def late_click(saver: Any) -> Any:
    """Approve a payment of 100, click again, and let the thread ask again."""

    @entrypoint(checkpointer=saver)
    def pay(amount: int) -> str:
        return f"paid {amount}: {interrupt(f'pay {amount}?')}"

    pay.invoke(100, CONFIG)
    assert pay.invoke(Command(resume="yes"), CONFIG) == "paid 100: yes"
    pay.invoke(Command(resume="yes"), CONFIG)
    return pay.invoke(1_000_000, CONFIG)


async def late_click_async(saver: Any) -> Any:
    @entrypoint(checkpointer=saver)
    async def pay(amount: int) -> str:
        return f"paid {amount}: {interrupt(f'pay {amount}?')}"

    await pay.ainvoke(100, CONFIG)
    for _ in range(2):
        await pay.ainvoke(Command(resume="yes"), CONFIG)
    return await pay.ainvoke(1_000_000, CONFIG)


def strays(saver: Any) -> list[Any]:
    return [write for found in saver.list(CONFIG) for write in found.pending_writes if write[0] == NULL_TASK]


def test_a_late_click_approves_the_next_request_with_langgraphs_savers(theirs: Any) -> None:
    assert late_click(theirs) == "paid 1000000: yes"


def test_a_late_click_approves_nothing(saver: KeelSaver) -> None:
    (asked,) = late_click(saver)["__interrupt__"]
    assert asked.value == "pay 1000000?"


async def test_a_late_click_approves_nothing_async(saver: KeelSaver) -> None:
    assert await late_click_async(InMemorySaver()) == "paid 1000000: yes"
    (asked,) = (await late_click_async(saver))["__interrupt__"]
    assert asked.value == "pay 1000000?"


def test_an_answer_to_nothing_is_not_stored(saver: KeelSaver) -> None:
    """If the command contains anything else, that part is stored."""
    for each in (saver, InMemorySaver()):
        graph = graph_of(each, book)
        graph.invoke({}, CONFIG)
        graph.invoke(Command(resume="yes"), CONFIG)
        graph.invoke(Command(resume="late"), CONFIG)
        graph.invoke(Command(resume="late", update={"second": "x"}), CONFIG)
        assert graph.get_state(CONFIG).values["answer"] == "yes"
        assert ("late" in [value for _, _, value in strays(each)]) == (each is not saver)
        assert "x" in [value for _, _, value in strays(each)]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_an_answer_survives_a_failed_node(saver: KeelSaver, durability: Any) -> None:
    """A question is answered only once: the failed run is resumed with `None`."""
    ran: list[str] = []

    def book(state: State) -> State:
        ran.append(interrupt("book?"))
        if len(ran) == 1:
            raise OSError("the line is busy")
        return {"answer": ran[-1]}

    graph = graph_of(saver, book)
    graph.invoke({}, CONFIG, durability=durability)
    with pytest.raises(OSError, match="busy"):
        graph.invoke(Command(resume="yes"), CONFIG, durability=durability)
    assert graph.invoke(None, CONFIG, durability=durability) == {"answer": "yes"}
    assert ran == ["yes", "yes"]


def test_storing_an_answer_takes_one_extra_trip(saver: KeelSaver) -> None:
    counter = Counter()
    graph = graph_of(saver, book)
    graph.invoke({}, CONFIG)
    head = saver.get_tuple(CONFIG)
    assert head
    assert head.pending_writes
    asking = head.pending_writes[0][0]
    tapped = with_tap(saver, counter)
    tapped.put_writes(head.config, [("__resume__", "yes")], NULL_TASK)
    assert (counter.taken(), len(strays(saver))) == (2, 1)
    tapped.put_writes(head.config, [("answer", "yes")], NULL_TASK)
    tapped.put_writes(head.config, [("__resume__", ["yes"])], asking)
    assert counter.taken() == 2


# -- an answer at an older checkpoint (E3) -----------------------------------------------------------------------------


def answered_again(saver: Any) -> tuple[list[str], list[str], Any]:
    """Answer a question again, by the config of the checkpoint where it was asked."""
    ran: list[str] = []

    def book(state: State) -> State:
        ran.append(interrupt("book?"))
        return {"answer": ran[-1]}

    graph = graph_of(saver, book)
    graph.invoke({}, CONFIG)
    old = graph.get_state(CONFIG).config
    graph.invoke(Command(resume="no"), CONFIG)
    graph.invoke(Command(resume="yes"), old)
    sources = [each.metadata["source"] for each in graph.get_state_history(CONFIG)]
    return ran, sources, graph.get_state(CONFIG).values


def test_a_new_answer_at_an_older_checkpoint_is_ignored(saver: KeelSaver, theirs: Any) -> None:
    """On both, the node runs again with its earlier answer; the new one is ignored.

    To be asked again, fork first.
    """
    again = ["no", "no"], ["loop", "loop", "loop", "input"], {"answer": "no"}
    assert answered_again(saver) == answered_again(theirs) == again


def test_a_fork_of_an_older_checkpoint_asks_again(saver: KeelSaver) -> None:
    graph = graph_of(saver, book)
    graph.invoke({}, CONFIG)
    old = graph.get_state(CONFIG).config
    graph.invoke(Command(resume="no"), CONFIG)
    assert graph.invoke(None, old)["__interrupt__"]
    assert graph.invoke(answer_to(graph, "yes", True), CONFIG) == {"answer": "yes"}
