"""A stream that is abandoned at a question does not block the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from langgraph.config import get_config
from langgraph.types import Command, interrupt
from support.approvals.resuming import ANSWER, CONFIG, Held, State, book, claim_of, graph_of, wire, with_runs
from support.places import Place
from support.process_children import exit_code, forked

from langgraph_keel import KeelSaver, ThreadTaken
from langgraph_keel.engine.runs import check_run
from langgraph_keel.runs.hook import held_threads

# -- ways to leave a stream --------------------------------------------------------------------------------------------


async def left_by_break(stream: AsyncIterator[Any]) -> None:
    async for chunk in stream:
        if "__interrupt__" in chunk:
            break


async def left_by_return(stream: AsyncIterator[Any]) -> Any:
    async for chunk in stream:
        if "__interrupt__" in chunk:
            return chunk


async def left_by_anext(stream: AsyncIterator[Any]) -> None:
    while "__interrupt__" not in await anext(stream):
        pass


async def left_by_cancel(stream: AsyncIterator[Any]) -> None:
    """Cancel like a server after a disconnect: the stream waits, or is closed."""
    has_asked = asyncio.Event()

    async def send() -> None:
        async for chunk in stream:
            if "__interrupt__" in chunk:
                has_asked.set()
                await asyncio.sleep(60)

    task = asyncio.create_task(send())
    await has_asked.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


Way = Callable[[AsyncIterator[Any]], Awaitable[Any]]
each_way = pytest.mark.parametrize("leave", [left_by_break, left_by_return, left_by_anext, left_by_cancel])


@each_way
@pytest.mark.parametrize("is_kept", [False, True], ids=["dropped", "kept"])
async def test_an_async_stream_abandoned_at_a_question_can_be_answered(
    saver: KeelSaver, leave: Way, is_kept: bool
) -> None:
    """The answer may come by a stream that is itself abandoned.

    Each turn of a conversation is like that.
    """
    graph = graph_of(saver, book, wire)
    kept: list[Any] = []
    given: Any
    for given in ({}, Command(resume="booked")):
        stream = graph.astream(given, CONFIG, stream_mode="updates")
        kept += [stream] if is_kept else []
        await leave(stream)
        del stream
    assert await graph.ainvoke(Command(resume="wired"), CONFIG) == {"answer": "booked", "second": "wired"}
    for stream in kept:
        await stream.aclose()
    assert await asyncio.to_thread(claim_of, saver) is None
    assert held_threads == {}


@pytest.mark.parametrize("is_kept", [False, True], ids=["dropped", "kept"])
def test_a_blocking_stream_abandoned_at_a_question_can_be_answered(saver: KeelSaver, is_kept: bool) -> None:
    graph = graph_of(saver, book, wire)
    kept: list[Any] = []
    given: Any
    for given in ({}, Command(resume="booked")):
        stream = graph.stream(given, CONFIG, stream_mode="updates")
        kept += [stream] if is_kept else []
        while "__interrupt__" not in next(stream):
            pass
        del stream
    assert graph.invoke(Command(resume="wired"), CONFIG) == {"answer": "booked", "second": "wired"}
    for stream in kept:
        stream.close()
    assert claim_of(saver) is None
    assert held_threads == {}


async def test_an_answered_stream_yields_nothing_more(saver: KeelSaver) -> None:
    ran: list[str] = []

    def pay(state: State) -> State:
        ran.append(interrupt("pay?"))
        return {"answer": ran[-1]}

    graph = graph_of(saver, pay)
    stream = graph.astream({}, CONFIG, stream_mode="updates")
    await left_by_anext(stream)
    await graph.ainvoke(ANSWER, CONFIG)
    assert [chunk async for chunk in stream] == []
    assert ran == ["yes"]
    assert (await asyncio.to_thread(graph.get_state, CONFIG)).values == {"answer": "yes"}


def test_a_task_that_an_abandoned_stream_starts_late_is_refused(saver: KeelSaver) -> None:
    """Another task of its step may not have started (`max_concurrency`).

    The run that resumed the thread runs it.
    """
    configs: list[Any] = []

    def pay(state: State) -> State:
        configs.append(get_config())
        return {"answer": interrupt("pay?")}

    graph = graph_of(saver, pay)
    stream = graph.stream({}, CONFIG, stream_mode="updates")
    assert "__interrupt__" in next(stream)
    check_run(configs[0])
    graph.invoke(ANSWER, CONFIG)
    with pytest.raises(ThreadTaken):
        check_run(configs[0])
    stream.close()
    check_run(configs[0])


# -- of two answers, one is taken --------------------------------------------------------------------------------------


def test_a_second_answer_during_the_resume_is_refused(saver: KeelSaver) -> None:
    held = Held()
    graph = graph_of(saver, held.pay)
    stream = graph.stream({}, CONFIG, stream_mode="updates")
    assert "__interrupt__" in next(stream)
    first = held.resumed(graph)
    with pytest.raises(ThreadTaken):
        graph.invoke(ANSWER, CONFIG)
    held.may_go_on.set()
    first.join()
    assert held.ran == ["yes"]
    stream.close()


def test_one_of_two_concurrent_answers_is_refused(saver: KeelSaver) -> None:
    held = Held()
    graph = graph_of(saver, held.pay)
    stream = graph.stream({}, CONFIG, stream_mode="updates")
    assert "__interrupt__" in next(stream)
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(graph.invoke, ANSWER, CONFIG) for _ in range(2)]
        assert held.is_in.wait(30)
        began = time.monotonic()
        while not any(each.done() for each in answers) and time.monotonic() - began < 30:
            time.sleep(0.01)
        held.may_go_on.set()
    assert [type(each.exception()) for each in answers if each.exception()] == [ThreadTaken]
    assert held.ran == ["yes"]
    stream.close()


# -- another process ---------------------------------------------------------------------------------------------------


def answer_elsewhere(place: Place) -> None:
    with place.open() as saver:
        assert graph_of(saver, book).invoke(ANSWER, CONFIG) == {"answer": "yes"}


def test_another_process_can_answer_an_abandoned_stream(place: Place) -> None:
    """The claim would have been renewed twice by then, while the run only asks."""
    with place.open() as opened:
        saver = with_runs(opened, lease=600)
        stream = graph_of(saver, book).stream({}, CONFIG, stream_mode="updates")
        assert "__interrupt__" in next(stream)
        began = time.monotonic()
        while not opened.approvals.pending() or claim_of(saver):
            assert time.monotonic() - began < 60
            time.sleep(0.05)
        assert exit_code(forked(answer_elsewhere, place)) == 0
        stream.close()
    assert held_threads == {}


# -- one id for several runs -------------------------------------------------------------------------------------------


async def test_runs_of_two_threads_may_share_a_run_id(saver: KeelSaver) -> None:
    """The end of one run releases only its own thread."""
    may_go_on = asyncio.Event()

    async def pay(state: State) -> State:
        answer: str = interrupt("pay?")
        if answer == "slowly":
            await may_go_on.wait()
        return {"answer": answer}

    graph = graph_of(saver, pay)
    one, two = ({"configurable": {"thread_id": name}, "run_id": UUID(int=7)} for name in ("one", "two"))
    for config in (one, two):
        await graph.ainvoke({}, config)
    slow = asyncio.create_task(graph.ainvoke(Command(resume="slowly"), one))
    while not any(held.claim.thread_id == "one" for held in held_threads.values()):
        await asyncio.sleep(0.01)
    assert await graph.ainvoke(ANSWER, two) == {"answer": "yes"}
    with pytest.raises(ThreadTaken, match="'one'"):
        await graph.ainvoke(ANSWER, one)
    assert await graph.ainvoke(None, two) == {"answer": "yes"}
    may_go_on.set()
    assert await slow == {"answer": "slowly"}
    assert await graph.ainvoke(None, one) == {"answer": "slowly"}
    assert held_threads == {}
