"""A run releases its thread, however it ends, and blocks no other run."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest
from langgraph.types import interrupt
from support.approvals.resuming import ANSWER, CONFIG, FACES, State, asked, book, claim_of, go_on, graph_of, wire

from langgraph_keel import KeelSaver
from langgraph_keel.engine.leases import this_holder
from langgraph_keel.errors import ThreadTaken
from langgraph_keel.runs import claims
from langgraph_keel.testing.faults import Counter, Fault, Injected, with_tap

each_face = pytest.mark.parametrize("face", FACES)


class Unlucky(Exception):
    pass


def failing_at_first() -> Callable[[State], State]:
    answers: list[str] = []

    def pay(state: State) -> State:
        answers.append(interrupt("pay?"))
        if len(answers) == 1:
            raise Unlucky
        return {"answer": answers[-1]}

    return pay


@each_face
async def test_a_finished_run_releases_its_thread(saver: KeelSaver, face: str) -> None:
    graph = await asyncio.to_thread(asked, saver, book, wire)
    for _ in range(2):
        await go_on(face, graph, ANSWER)
        assert await asyncio.to_thread(claim_of, saver) is None
    assert (await asyncio.to_thread(graph.get_state, CONFIG)).values == {"answer": "yes", "second": "yes"}


@each_face
async def test_a_failed_run_releases_its_thread(saver: KeelSaver, face: str) -> None:
    """Also while the caller keeps the error, and with it the frames of the run."""
    graph = await asyncio.to_thread(asked, saver, failing_at_first())
    with pytest.raises(Unlucky) as caught:
        await go_on(face, graph, ANSWER)
    assert await asyncio.to_thread(claim_of, saver) is None
    await go_on(face, graph, None)
    assert (await asyncio.to_thread(graph.get_state, CONFIG)).values == {"answer": "yes"}
    assert caught.value.__traceback__


async def test_a_cancelled_run_releases_its_thread(saver: KeelSaver) -> None:
    entered, answers = asyncio.Event(), list[str]()

    async def pay(state: State) -> State:
        answers.append(interrupt("pay?"))
        entered.set()
        await asyncio.sleep(30 if len(answers) == 1 else 0)
        return {"answer": answers[-1]}

    graph = graph_of(saver, pay)
    await graph.ainvoke({}, CONFIG)
    task = asyncio.create_task(graph.ainvoke(ANSWER, CONFIG))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await graph.ainvoke(None, CONFIG)) == {"answer": "yes"}
    assert await asyncio.to_thread(claim_of, saver) is None


@pytest.mark.parametrize("is_collected", [False, True], ids=["closed", "collected"])
def test_an_abandoned_stream_releases_its_thread(saver: KeelSaver, is_collected: bool) -> None:
    graph = asked(saver, book, wire)
    stream = graph.stream(ANSWER, CONFIG)
    next(stream)
    with pytest.raises(ThreadTaken):
        graph.invoke(None, CONFIG)
    if is_collected:
        del stream
        gc.collect()
    else:
        stream.close()
    assert graph.invoke(None, CONFIG)["__interrupt__"]
    assert claim_of(saver) is None


async def test_a_closed_async_stream_releases_its_thread(saver: KeelSaver) -> None:
    graph = await asyncio.to_thread(asked, saver, book, wire)
    stream = graph.astream(ANSWER, CONFIG)
    await anext(stream)
    with pytest.raises(ThreadTaken):
        await graph.ainvoke(None, CONFIG)
    await stream.aclose()
    assert (await graph.ainvoke(None, CONFIG))["__interrupt__"]
    assert await asyncio.to_thread(claim_of, saver) is None


def test_an_unread_stream_claims_nothing(saver: KeelSaver) -> None:
    graph = asked(saver, book)
    stream = graph.stream(ANSWER, CONFIG)
    assert graph.invoke(ANSWER, CONFIG) == {"answer": "yes"}
    stream.close()


@each_face
@pytest.mark.parametrize("lost_reply", [False, True], ids=["not sent", "reply lost"])
async def test_a_failed_claim_does_not_block_the_thread(saver: KeelSaver, face: str, lost_reply: bool) -> None:
    """The claim may be stored, or its request may still be on its way."""
    await asyncio.to_thread(asked, saver, book)
    with pytest.raises(Injected):
        await go_on(face, graph_of(with_tap(saver, Fault(0, lost_reply=lost_reply)), book), ANSWER)
    left = await asyncio.to_thread(claim_of, saver)
    assert left is None or left.record.until == 0
    graph = graph_of(saver, book)
    await go_on(face, graph, ANSWER)
    assert (await asyncio.to_thread(graph.get_state, CONFIG)).values == {"answer": "yes"}


def test_a_withdrawn_claim_that_arrives_late_is_refused(saver: KeelSaver) -> None:
    engine = saver.engine
    late = claims.Claim("t", "a" * 32, claims.ClaimRecord(this_holder(), "late", 1, ""))
    request = next(claims.take(engine.session, late, lambda *_: False))
    engine.run(claims.release(engine.session, late, "b" * 32))
    engine.driver.send(request)
    left = claim_of(saver)
    assert left
    assert (left.token, left.record.until) == ("b" * 32, 0)
    assert asked(saver, book).invoke(ANSWER, CONFIG) == {"answer": "yes"}
    assert claim_of(saver) is None


def test_a_failed_release_is_logged(caplog: pytest.LogCaptureFixture, saver: KeelSaver) -> None:
    """The release is the last action of a run."""
    counter, fault, other = Counter(), Fault(), {"configurable": {"thread_id": "other"}}
    counted = asked(with_tap(saver, counter), book, config=other)
    counter.taken()
    counted.invoke(ANSWER, other, durability="exit")
    graph = asked(with_tap(saver, fault), book)
    fault.arm(counter.taken() - 1)
    assert graph.invoke(ANSWER, CONFIG, durability="exit") == {"answer": "yes"}
    assert fault.fired
    assert "its claim is not released and expires after 30 s" in caplog.text
    assert claim_of(saver)
    assert graph.invoke(None, CONFIG) == {"answer": "yes"}  # this process knows that the other run has ended
    assert claim_of(saver) is None
