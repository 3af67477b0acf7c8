"""A decision is valid only for its own thread: forks and copies ask again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.types import interrupt
from support.approvals.children import graph_of
from support.approvals.questions import Asking, paying
from support.savers import SAVERS, each_backend, each_face, needing
from support.tool_graphs import ASKED, Scripted, calls, hello, run, thread

from langgraph_keel import KeelSaver, ToolCache

Made = tuple[Any, Any, Callable[[], int]]


def by_request(saver: Any) -> Made:
    """Ask by `request_approval`; count how often the node paid."""
    asking = Asking(paying())
    return asking.graph(saver), {"said": []}, lambda: sum(each.approved for (each,) in asking.got)


def by_interrupt(saver: Any) -> Made:
    """Ask by a plain `interrupt()`."""
    paid: list[Any] = []

    def pay(state: Any) -> Any:
        paid.append(interrupt({"question": "pay?"}))
        return {"said": ["paid"]}

    return graph_of(saver, ("pay", pay)), {"said": []}, lambda: len(paid)


def by_middleware(saver: Any) -> Made:
    """Ask by LangChain's middleware for agents."""
    paid: list[int] = []

    @tool
    def pay(x: int) -> str:
        """Pay."""
        paid.append(x)
        return "paid"

    gate = HumanInTheLoopMiddleware({"pay": True})
    script = Scripted(script=[calls(("pay", {"x": 1}, "a"))])
    return create_agent(script, [pay], middleware=[gate], checkpointer=saver), hello(), lambda: len(paid)


async def forked(saver: KeelSaver, face: str) -> None:
    await saver.afork(thread("t"), "other") if face == "async" else saver.fork(thread("t"), "other")


async def forked_at_a_moment(saver: KeelSaver, face: str) -> None:
    moment = saver.timeline("t")[-1] if face == "sync" else (await saver.atimeline("t"))[-1]
    await saver.afork(moment, "other") if face == "async" else saver.fork(moment, "other")


async def copied(saver: KeelSaver, face: str) -> None:
    await saver.acopy_thread("t", "other") if face == "async" else saver.copy_thread("t", "other")


async def answer(saver: KeelSaver, face: str, thread_id: str, way: Any) -> str:
    """Decide the only request of a thread; return its id."""
    inbox = saver.approvals
    (request,) = inbox.pending(thread_id) if face == "sync" else await inbox.apending(thread_id)
    if way is by_interrupt:
        decide: Any = inbox.answer if face == "sync" else inbox.aanswer
        decided = decide(request.id, value="yes", by="ann")
    else:
        decided = (inbox.approve if face == "sync" else inbox.aapprove)(request.id, by="ann")
    return str((decided if face == "sync" else await decided).id)


async def resumed(saver: KeelSaver, face: str, graph: Any, thread_id: str) -> Any:
    given = saver.approvals.resume(thread_id) if face == "sync" else await saver.approvals.aresume(thread_id)
    return await run(graph, face, given, thread(thread_id))


@pytest.fixture
def saver(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeelSaver]:
    needing(backend, request)
    with SAVERS[backend](tmp_path) as saver:
        yield saver  # type: ignore[misc]


@pytest.mark.parametrize("verb", [forked, forked_at_a_moment, copied])
@pytest.mark.parametrize("way", [by_request, by_interrupt, by_middleware])
@each_face
@each_backend
async def test_a_decision_is_not_valid_in_another_thread(
    saver: KeelSaver, backend: str, face: str, way: Any, verb: Any
) -> None:
    graph, given, paid = way(saver)
    await run(graph, face, given, thread("t"))
    original = await answer(saver, face, "t", way)
    await verb(saver, face)

    again = await run(graph, face, None, thread("other"))
    assert (ASKED in again, paid()) == (True, 0)
    (request,) = saver.approvals.pending("other")
    assert (request.id != original, request.status, request.decision) == (True, "waiting", None)
    assert saver.status("other").state == "waits"

    await resumed(saver, face, graph, "t")
    assert (paid(), [each.id for each in saver.approvals.pending("other")]) == (1, [request.id])
    assert await answer(saver, face, "other", way) == request.id
    await resumed(saver, face, graph, "other")
    assert paid() == 2
    assert [saver.status(name).state for name in ("t", "other")] == ["idle", "idle"]


# -- what other threads of the same history have done -----------------------------------------------------------------


def refunding(saver: Any) -> tuple[Any, list[int]]:
    """Return an agent that asks before each refund, and the list of its refunds."""
    paid: list[int] = []

    @tool
    def refund(x: int) -> str:
        """Refund."""
        paid.append(x)
        return "refunded"

    middleware: list[Any] = [HumanInTheLoopMiddleware({"refund": True}), ToolCache(saver).middleware()]
    script = Scripted(script=[calls(("refund", {"x": 1}, "a"))])
    return create_agent(script, [refund], middleware=middleware, checkpointer=saver), paid


@pytest.mark.parametrize("is_decided", [False, True])
@each_face
@each_backend
async def test_a_reviewer_is_warned_of_actions_by_a_fork(
    saver: KeelSaver, backend: str, face: str, is_decided: bool
) -> None:
    """The fork's reviewer is warned of refunds by the original or another fork.

    No worker acts on earlier decisions.
    """
    graph, paid = refunding(saver)
    await run(graph, face, hello(), thread("t"))
    for name in ("fork", "other"):
        saver.fork(thread("t"), name)
    (request,) = saver.approvals.pending("t")
    assert (request.warnings, saver.status("t").can_go_on) == ((), False)
    if is_decided:
        await answer(saver, face, "t", by_middleware)
        assert saver.status("t").can_go_on
    await run(graph, face, None, thread("fork"))
    await answer(saver, face, "fork", by_middleware)
    await resumed(saver, face, graph, "fork")
    assert paid == [1]
    warned = await saver.approvals.aget(request.id)
    said, at = warned.warnings[0], warned.warned_at
    assert said.startswith(f"Thread 'fork', of the same history, called refund at {at} (done): with an approval")
    assert list(saver.approvals.run_when_decided(graph, timeout=0)) == []
    found = saver.status("t")
    assert (found.state, found.can_go_on, said in str(found)) == ("decided" if is_decided else "waits", False, True)
    assert "that 'fork' called after this point: refund" in str(saver.status("other"))
    await run(graph, face, None, thread("other"))
    asks = "Thread {!r}, of the same history, also asks for refund: if both are approved, it is called twice."
    assert [[*each.warnings] for each in saver.approvals.pending("other")] == [[said, asks.format("t")]]
    assert saver.approvals.get(request.id).warnings == (said, asks.format("other"))
    if not is_decided:  # with the warning
        await answer(saver, face, "t", by_middleware)
        assert saver.status("t").can_go_on
    await resumed(saver, face, graph, "t")
    assert (paid, len(saver.approvals.pending("other")[0].warnings)) == ([1, 1], 2)


@each_backend
async def test_a_reused_thread_id_is_independent_of_forks_of_the_deleted_thread(saver: KeelSaver, backend: str) -> None:
    """A fork of the deleted thread and the new thread are independent."""
    graph, paid = refunding(saver)
    graph.invoke(hello(), thread("t"))
    saver.fork(thread("t"), "fork")
    saver.fork(thread("fork"), "again")
    saver.delete_thread("t")
    graph.invoke(hello(), thread("t"))
    await answer(saver, "sync", "t", by_middleware)
    await resumed(saver, "sync", graph, "t")
    assert paid == [1]
    gone = "'t' was deleted, so its tool calls after this point are unknown"
    assert gone in str(saver.status("fork"))
    graph.invoke(None, thread("fork"))
    assert [each.warnings for each in saver.approvals.pending("fork")] == [()]
    saver.delete_thread("fork")
    graph.invoke(hello(), thread("fork"))
    await answer(saver, "sync", "fork", by_middleware)
    await resumed(saver, "sync", graph, "fork")
    assert "'fork' was deleted, so" in str(saver.status("again"))
    graph.invoke(None, thread("again"))
    assert [each.warnings for each in saver.approvals.pending("again")] == [()]


@pytest.mark.parametrize("way", ["edit", "approve"])
@each_face
async def test_a_rewind_after_an_edit_asks_again(tmp_path: Path, face: str, way: Any) -> None:
    """The model's question is asked again.

    The ledger has the edited call; the model's own call is a different one.
    """
    with SAVERS["sqlite"](tmp_path) as saver:
        assert isinstance(saver, KeelSaver)
        graph, paid = refunding(saver)
        await run(graph, face, hello(), thread("t"))
        asks = saver.timeline("t")[-1].config
        (request,) = saver.approvals.pending("t")
        saver.approvals.edit(request.id, args={"x": 7}, by="ann")
        await resumed(saver, face, graph, "t")
        saver.rewind(asks)
        await run(graph, face, None, thread("t"))
        (again,) = saver.approvals.pending("t")
        assert (again.args, again.id != request.id, paid) == ({"x": 1}, True, [7])
        if way == "edit":
            saver.approvals.edit(again.id, args={"x": 7}, by="ann")
        else:
            saver.approvals.approve(again.id, by="ann")
        await resumed(saver, face, graph, "t")
        assert paid == ([7] if way == "edit" else [7, 1])
