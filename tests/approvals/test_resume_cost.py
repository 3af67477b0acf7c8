"""Which runs claim their thread, and the cost of the claim.

Each such run claims it once, whatever is nested in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support.approvals.resuming import (
    ANSWER,
    BACKENDS,
    CONFIG,
    FACES,
    State,
    answer_to,
    book,
    go_on,
    graph_of,
    runs_of,
    with_runs,
)
from support.places import Place
from support.savers import SAVERS, needing

from langgraph_keel import FileSaver, KeelSaver, MemorySaver
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.plan import Plan
from langgraph_keel.errors import ReadOnlyStore, StoreError, ThreadTaken
from langgraph_keel.runs import claims
from langgraph_keel.runs import hook as claims_hook
from langgraph_keel.testing.faults import Counter, with_tap

each_face = pytest.mark.parametrize("face", FACES)


@pytest.fixture(params=BACKENDS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeelSaver]:
    if "claimed" in request.fixturenames:
        request.getfixturevalue("claimed")  # before a saver takes its hooks
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver:
        assert isinstance(saver, KeelSaver)
        yield saver


@pytest.fixture
def claimed(all_claimed: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The claimed threads, in order, without the claims of runs that ask."""
    hold = claims_hook.RunClaims.before_writes

    def not_noting(self: claims_hook.RunClaims, session: Any, writes: Any) -> Plan[None]:
        before = len(all_claimed)
        yield from hold(self, session, writes)
        del all_claimed[before:]

    monkeypatch.setattr(claims_hook.RunClaims, "before_writes", not_noting)
    return all_claimed


@pytest.fixture
def all_claimed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The claimed threads, in order."""
    threads: list[str] = []
    take = claims.take

    def noting(session: Any, claim: Any, *others: Any) -> Plan[None]:
        threads.append(claim.thread_id)
        return take(session, claim, *others)

    monkeypatch.setattr(claims_hook, "take", noting)
    return threads


# -- what it costs -----------------------------------------------------------------------------------------------------


class Trips:
    """A graph of one node that records the round trips until it runs.

    With `durability="exit"`, these are only reads.
    """

    def __init__(self, saver: KeelSaver) -> None:
        self.counter, self.before, self.runs = Counter(), list[int](), runs_of(saver)
        graph = StateGraph(State)
        graph.add_node("pay", self.pay)
        graph.add_edge(START, "pay")
        self.graph = graph.compile(checkpointer=with_tap(saver, self.counter))

    def pay(self, state: State) -> State:
        self.before.append(self.counter.taken())
        return {"answer": interrupt("pay?")}

    async def run(self, face: str, given: Any, config: Any = CONFIG) -> int:
        await asyncio.to_thread(self.runs.close)  # the claim that the previous run still has to release
        self.counter.taken()
        self.before.clear()
        if face == "ainvoke":
            await self.graph.ainvoke(given, config, durability="exit")
        else:
            await asyncio.to_thread(self.graph.invoke, given, config, durability="exit")
        return self.before[-1]


@pytest.mark.parametrize("face", ["invoke", "ainvoke"])
async def test_a_claim_takes_one_extra_trip(saver: KeelSaver, face: str) -> None:
    trips = Trips(saver)
    assert await trips.run(face, {}) == 1
    assert await trips.run(face, {"second": "new input"}) == 1
    assert await trips.run(face, None) == 2
    by_id = await asyncio.to_thread(answer_to, trips.graph, "yes", True)
    assert await trips.run(face, by_id) == 2


@pytest.mark.parametrize("face", ["invoke", "ainvoke"])
async def test_waiting_for_a_turn_takes_two_extra_trips_on_a_free_thread(saver: KeelSaver, face: str) -> None:
    trips = Trips(with_runs(saver, on_busy="wait"))
    assert await trips.run(face, {}) == 3
    assert await trips.run(face, {"second": "new input"}) == 3


@pytest.mark.parametrize("face", ["invoke", "ainvoke"])
async def test_a_fork_does_not_claim(saver: KeelSaver, claimed: list[str], face: str) -> None:
    trips = Trips(saver)
    await trips.run(face, {})
    old = (await asyncio.to_thread(trips.graph.get_state, CONFIG)).config
    assert await trips.run(face, None, old) == 2  # LangGraph reads twice
    assert claimed == []
    await trips.run(face, ANSWER, (await asyncio.to_thread(trips.graph.get_state, CONFIG)).config)
    assert claimed == ["t"]


def test_a_run_with_new_input_claims_when_it_asks(saver: KeelSaver, all_claimed: list[str]) -> None:
    seen: list[list[str]] = []

    def wait(state: State) -> State:
        seen.append(list(all_claimed))
        return {}

    graph = StateGraph(State)
    graph.add_node("wait", wait)
    graph.add_node("pay", book)
    graph.add_edge(START, "wait")
    graph.add_edge("wait", "pay")
    graph.compile(checkpointer=saver).invoke({}, CONFIG)
    assert (seen, all_claimed) == ([[]], ["t"])


def test_a_saver_that_forks_on_conflict_claims_only_for_answers(claimed: list[str]) -> None:
    graph = graph_of(MemorySaver(on_conflict="fork"), book)
    graph.invoke({}, CONFIG)
    graph.invoke(None, CONFIG)
    graph.invoke(ANSWER, CONFIG)
    assert claimed == ["t"]


async def by_batch(graph: Any) -> None:
    graph.batch([ANSWER], [CONFIG])


async def by_abatch(graph: Any) -> None:
    await graph.abatch([ANSWER], [CONFIG])


async def by_events(graph: Any) -> None:
    [_ async for _ in graph.astream_events(ANSWER, CONFIG, version="v2")]


async def without_callbacks(graph: Any) -> None:
    graph.invoke(ANSWER, {**CONFIG, "callbacks": []})


@pytest.mark.parametrize("way", [by_batch, by_abatch, by_events, without_callbacks])
async def test_batch_events_and_runs_without_callbacks_claim_too(
    claimed: list[str], way: Callable[[Any], Awaitable[None]]
) -> None:
    graph = graph_of(MemorySaver(), book)
    graph.invoke({}, CONFIG)
    await way(graph)
    assert claimed == ["t"]
    assert graph.get_state(CONFIG).values == {"answer": "yes"}


def test_reading_a_thread_claims_nothing(saver: KeelSaver, claimed: list[str]) -> None:
    """Not even after a run in the same context on another saver, or without one."""
    graph, counter = graph_of(saver, book), Counter()
    graph.invoke({}, CONFIG)
    theirs = graph_of(InMemorySaver(), book)
    theirs.invoke({}, CONFIG)
    theirs.invoke(ANSWER, CONFIG)
    RunnableLambda(lambda given: given).invoke(None)
    tapped = with_tap(saver, counter)
    reading = graph_of(tapped, book)
    assert reading.get_state(CONFIG).interrupts
    assert tapped.get_tuple(CONFIG)
    assert counter.taken() == 2
    reading.update_state(CONFIG, {"second": "x"})
    assert claimed == []


# -- what is nested in a run -------------------------------------------------------------------------------------------


@each_face
async def test_a_subgraph_claims_nothing(saver: KeelSaver, claimed: list[str], face: str) -> None:
    inner = StateGraph(State)
    inner.add_node("book", book)
    inner.add_edge(START, "book")

    def outer(state: State) -> State:
        return {"answer": inner.compile().invoke(state)["answer"]}

    def remembering(state: State) -> State:
        return {"second": inner.compile(checkpointer=True).invoke(state)["answer"]}

    graph = graph_of(saver, outer, remembering)
    await asyncio.to_thread(graph.invoke, {}, CONFIG)
    for _ in range(2):
        await go_on(face, graph, ANSWER)
    assert claimed == ["t", "t"]
    assert (await asyncio.to_thread(graph.get_state, CONFIG)).values == {"answer": "yes", "second": "yes"}


@each_face
async def test_a_graph_in_a_sequence_claims_once(saver: KeelSaver, claimed: list[str], face: str) -> None:
    graph = graph_of(saver, book)
    await asyncio.to_thread(graph.invoke, {}, CONFIG)
    await go_on(face, RunnableLambda(lambda given: given) | graph | RunnableLambda(lambda given: given), ANSWER)
    assert claimed == ["t"]
    assert (await asyncio.to_thread(graph.get_state, CONFIG)).values == {"answer": "yes"}


@pytest.mark.parametrize("face", ["invoke", "ainvoke"])
async def test_an_entrypoint_claims_its_thread_once_per_resume(saver: KeelSaver, claimed: list[str], face: str) -> None:
    @task
    def ask(what: str) -> str:
        answer: str = interrupt(what)
        return answer

    @entrypoint(checkpointer=saver)
    def flow(given: str) -> list[str]:
        return [ask("one?").result(), ask("two?").result()]

    await asyncio.to_thread(flow.invoke, "go", CONFIG)
    for _ in range(2):
        await go_on(face, flow, ANSWER)
    assert claimed == ["t", "t"]
    assert flow.get_state(CONFIG).values == ["yes", "yes"]


def test_a_node_can_answer_another_thread_but_not_its_own(saver: KeelSaver, claimed: list[str]) -> None:
    """Answering its own thread is refused immediately."""
    other: Any = {"configurable": {"thread_id": "other"}}
    graph = graph_of(saver, book)
    graph.invoke({}, other)

    def answering(state: State) -> State:
        answer: str = interrupt("answer the other?")
        with pytest.raises(ThreadTaken):
            outer.invoke(ANSWER, CONFIG)
        return {"answer": graph.invoke(ANSWER, other)["answer"] + answer}

    outer = graph_of(saver, answering)
    outer.invoke({}, CONFIG)
    assert outer.invoke(ANSWER, CONFIG) == {"answer": "yesyes"}
    assert claimed == ["t", "t", "other"]


# -- where nothing can be written --------------------------------------------------------------------------------------


def test_a_read_only_saver_claims_nothing(place: Place) -> None:
    with place.open() as saver:
        graph_of(saver, book).invoke({}, CONFIG)
    with place.open(read_only=True) as saver:
        graph = graph_of(saver, book)
        assert graph.get_state(CONFIG).interrupts
        with pytest.raises(ReadOnlyStore):
            graph.invoke(ANSWER, CONFIG)
        assert claims_hook.held_threads == {}


def test_a_resume_on_a_closed_saver_raises_an_error(tmp_path: Path) -> None:
    with FileSaver(tmp_path) as saver:
        graph = graph_of(saver, book)
        graph.invoke({}, CONFIG)
    with pytest.raises(StoreError, match="closed"):
        graph.invoke(ANSWER, CONFIG)
    assert claims_hook.held_threads == {}


async def test_closing_releases_the_claims_of_async_runs(place: Place, claimed: list[str]) -> None:
    async with place.open() as saver:
        graph = graph_of(saver, book)
        await graph.ainvoke({}, CONFIG)
        runs_of(saver).keeper.defer(lambda: time.sleep(0.2))  # a close without waiting would come first
        await graph.ainvoke(ANSWER, CONFIG)
    assert claimed == ["t"]
    with place.open() as saver:
        engine = saver.engine
        assert engine.run(engine.session.store.list_cells(Shelf("t", "resume"), "", None, 9)) == []
