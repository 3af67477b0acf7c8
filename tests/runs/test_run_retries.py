"""`saver.runs.invoke_with_retry` repeats a refused run once its rival has ended."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Callable
from contextvars import Context
from copy import copy
from functools import partial
from threading import Event
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from support.savers import each_face

from langgraph_keel import CheckpointConflict, InvalidConfig, InvalidInput, KeelSaver, MemorySaver
from langgraph_keel.engine.tables import Cells
from langgraph_keel.runs.turns import KEY, LINES

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def said(text: str) -> Any:
    return {"messages": [HumanMessage(text, id=text)]}


def chat(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"to {state['messages'][-1].text}")]}


def graph_of(saver: KeelSaver, node: Callable[..., Any] = chat) -> Any:
    builder = StateGraph(MessagesState).add_node("think", lambda state: None).add_node("chat", node)
    return builder.add_edge(START, "think").add_edge("think", "chat").compile(checkpointer=saver)


async def retry(saver: Any, face: str, graph: Any, given: Any, **options: Any) -> Any:
    if face == "sync":
        return await to_thread(saver.runs.invoke_with_retry, graph, given, CONFIG, **options)
    return await saver.runs.ainvoke_with_retry(graph, given, CONFIG, **options)


def texts(graph: Any) -> list[str]:
    return [message.text for message in graph.get_state(CONFIG).values["messages"]]


@each_face
async def test_each_of_several_concurrent_inputs_is_processed_once(saver: KeelSaver, face: str) -> None:
    graph, names = graph_of(saver), [f"message {number}" for number in range(5)]
    graph.invoke(said("hello"), CONFIG)
    results = await asyncio.gather(*(retry(saver, face, graph, said(name)) for name in names))
    heard = texts(graph)
    assert sorted(text for text in heard if text.startswith("message")) == names
    for name, result in zip(names, results, strict=True):
        assert name in [message.text for message in result["messages"]]


class Gate:
    """Holds back the `number`th `put` of a run, which has read the thread by then."""

    def __init__(self, saver: KeelSaver, number: int = 1) -> None:
        self.is_at, self.may_pass, self._left = Event(), Event(), number
        self.saver = copy(saver)
        self.saver.put = self.put  # type: ignore[assignment, method-assign]

    def put(self, *given: Any) -> Any:
        self._left -= 1
        if not self._left:
            self.is_at.set()
            assert self.may_pass.wait(60)
        return type(self.saver).put(self.saver, *given)


async def test_refused_runs_are_retried_in_order(saver: KeelSaver) -> None:
    started, may_end = Event(), Event()

    def slow(state: MessagesState) -> dict[str, Any]:
        started.set()
        assert may_end.wait(60)
        return chat(state)

    await to_thread(graph_of(saver).invoke, said("hello"), CONFIG)
    gates = {name: Gate(saver) for name in ("second", "third", "fourth")}
    losers = []
    for name, gate in gates.items():
        losers.append(asyncio.ensure_future(retry(saver, "sync", graph_of(gate.saver), said(name))))
        assert await to_thread(gate.is_at.wait, 60)
    run = partial(graph_of(saver, slow).invoke, said("first"), CONFIG, durability="sync")
    winner = asyncio.ensure_future(to_thread(run))
    assert await to_thread(started.wait, 60)
    for number, gate in enumerate(gates.values(), 1):
        gate.may_pass.set()
        while len(await to_thread(line_of, saver)) < number:
            await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(winner, *losers)
    spoken = ["hello", "first", "second", "third", "fourth"]
    assert texts(graph_of(saver)) == [text for name in spoken for text in (name, f"to {name}")]


@pytest.mark.parametrize("number", [2, 3])
async def test_an_input_replaced_before_its_first_step_is_passed_again(saver: KeelSaver, number: int) -> None:
    """The run is overtaken after it stored its input.

    New input replaces that input before its first step.
    """
    gate = Gate(saver, number)
    lost = asyncio.ensure_future(to_thread(graph_of(gate.saver).invoke, said("first"), CONFIG, durability="sync"))
    assert await to_thread(gate.is_at.wait, 60)
    await to_thread(graph_of(saver).invoke, said("second"), CONFIG)
    gate.may_pass.set()
    with pytest.raises(CheckpointConflict) as caught:
        await lost
    has_it = "first" in texts(graph_of(saver))
    assert (caught.value.stored is not None, has_it) == (number == 3, number == 3)
    assert (caught.value.input_again(said("first")) is None) == has_it


def line_of(saver: KeelSaver) -> Any:
    kept = saver.engine.run(Cells(saver.engine.session, LINES, "t").find(KEY))
    return kept.record if kept else ()


def rival_of(saver: KeelSaver, runs: list[int], others: int) -> Callable[..., Any]:
    """Return a node whose run is overtaken by an update, the first `others` times."""

    def overtaken(state: MessagesState) -> dict[str, Any]:
        runs.append(1)
        if len(runs) <= others:
            graph_of(saver).update_state(CONFIG, {"messages": [AIMessage("quicker")]}, as_node="chat")
        return chat(state)

    return overtaken


@each_face
async def test_retries_are_bounded_and_never_repeat_the_input(saver: KeelSaver, face: str) -> None:
    runs: list[int] = []
    graph = graph_of(saver, rival_of(saver, runs, 1))
    result = await retry(saver, face, graph, said("hello"), durability="sync")
    assert [message.text for message in result["messages"]] == ["hello", "quicker"]  # no steps remained
    runs.clear()
    late = graph_of(saver, rival_of(saver, runs, 9))
    with pytest.raises(CheckpointConflict):
        await retry(saver, face, late, said("again"), attempts=3, durability="exit")
    assert len(runs) == 3
    assert texts(graph).count("again") == 0


async def test_a_retry_does_not_replace_a_question() -> None:
    with MemorySaver() as saver:

        def ask(state: MessagesState) -> Any:
            return {"messages": [AIMessage(interrupt("may I?"))]}

        def overtaken(state: MessagesState) -> Any:
            Context().run(graph_of(saver, ask).invoke, said("other"), CONFIG)  # as if it were another process
            return chat(state)

        with pytest.raises(CheckpointConflict) as caught:
            saver.runs.invoke_with_retry(graph_of(saver, overtaken), said("mine"), CONFIG, durability="sync")
        assert "waits for a person" in str(caught.value.__notes__)
        assert graph_of(saver, ask).get_state(CONFIG).interrupts


async def test_a_retry_does_not_wait_forever_for_a_dead_run() -> None:
    with MemorySaver() as saver:

        def fail(state: MessagesState) -> Any:
            raise ValueError("died")

        def overtaken(state: MessagesState) -> Any:
            with pytest.raises(ValueError, match="died"):
                Context().run(graph_of(saver, fail).invoke, said("other"), CONFIG)
            return chat(state)

        with pytest.raises(CheckpointConflict) as caught:
            saver.runs.invoke_with_retry(graph_of(saver, overtaken), said("mine"), CONFIG, timeout=0, durability="sync")
        assert "had not finished" in str(caught.value.__notes__)


def test_invalid_arguments_are_refused() -> None:
    with MemorySaver() as saver, MemorySaver() as other:
        graph = graph_of(saver)
        for bad in ({"attempts": 0}, {"attempts": True}, {"timeout": -1}, {"timeout": "1"}):
            with pytest.raises(InvalidInput):
                saver.runs.invoke_with_retry(graph, said("x"), CONFIG, **bad)
        for strange in (graph_of(other), graph_of(saver).builder, None):
            with pytest.raises(InvalidInput):
                saver.runs.invoke_with_retry(strange, said("x"), CONFIG)
        with pytest.raises(InvalidConfig):
            saver.runs.invoke_with_retry(graph, said("x"), {})
        assert saver.get_tuple(CONFIG) is None
