"""Decisions and threads that were copied to another store.

The target does not act by itself on decisions made in the source.
"""

from __future__ import annotations

from asyncio import to_thread
from typing import Any

import pytest
from support.places import Place
from support.tool_graphs import run, thread
from test_approvals_forked import answer, by_interrupt, by_middleware, by_request

from langgraph_keel import Decision, KeelSaver, MemorySaver, Resumed

each_way = pytest.mark.parametrize("way", [by_request, by_interrupt, by_middleware])


def decision(way: Any) -> Decision:
    return Decision("answer", "ann", value="yes") if way is by_interrupt else Decision("approve", "ann")


def resume_decided(saver: KeelSaver, graph: Any) -> list[Resumed]:
    return list(saver.approvals.run_when_decided(graph, timeout=0))


@each_way
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_decision_copied_with_its_thread_waits_for_an_operator(place: Place, face: str, way: Any) -> None:
    """Otherwise, both stores would act on it."""
    with MemorySaver() as source, place.open(recoverable=True) as saver:
        graph, given, _ = way(source)
        await run(graph, face, given, thread("t"))
        request = await answer(source, face, "t", way)
        source.moving.copy_to(saver)
        graph, _, paid = way(saver)
        found = saver.status("t")
        assert (found.state, found.can_go_on, bool(found.given)) == ("arrived", False, True)
        assert "A decision made there is not used here automatically: graph.invoke(saver.approvals.resume('t')" in str(
            found
        )
        assert [(each.state, each.can_go_on) for each in saver.unfinished()] == [("arrived", False)]
        inbox = saver.approvals
        if face == "sync":
            assert inbox.decide(request, decision(way)) is None
            assert [*inbox.wait(timeout=0), *resume_decided(saver, graph), *saver.recover(graph, timeout=0)] == []
        else:
            assert await inbox.adecide(request, decision(way)) is None
            assert [*(await inbox.await_decided(timeout=0))] == []
            assert [each async for each in inbox.arun_when_decided(graph, timeout=0)] == []
            assert [each async for each in saver.arecover(graph, timeout=0)] == []
        assert paid() == 0
        await run(graph, face, found.given, thread("t"))
        assert (paid(), saver.status("t").state) == (1, "idle")


@each_way
async def test_a_decision_made_in_the_target_store_is_acted_on(place: Place, way: Any) -> None:
    """The reviewer is warned that the original may ask the same question."""
    with MemorySaver() as source, place.open() as saver:
        graph, given, _ = way(source)
        await run(graph, "sync", given, thread("t"))
        source.moving.copy_to(saver)
        graph, _, paid = way(saver)
        (request,) = saver.approvals.pending("t")
        (said,) = request.warnings
        assert said == "Thread 't' is a copy: its original may ask the same and act on it."
        assert said in str(saver.status("t"))
        await answer(saver, "sync", "t", way)
        assert (saver.status("t").state, saver.status("t").can_go_on) == ("decided", True)
        assert [each.error for each in await to_thread(resume_decided, saver, graph)] == [None]
        assert (paid(), saver.status("t").state) == (1, "idle")


async def test_a_copied_decision_revised_in_the_target_store_is_acted_on(place: Place) -> None:
    with MemorySaver() as source, place.open() as saver:
        graph, given, _ = by_request(source)
        await run(graph, "sync", given, thread("t"))
        request = await answer(source, "sync", "t", by_request)
        source.moving.copy_to(saver)
        saver.approvals.revise(request, by="bea")
        assert saver.status("t").state == "waits"
        saver.approvals.approve(request, by="bea")
        assert saver.status("t").can_go_on
