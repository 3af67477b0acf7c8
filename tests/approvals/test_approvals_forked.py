"""A decision is valid for the thread that it was made for: forks and copies of that thread ask again."""

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

from langgraph_keel import KeelSaver

Made = tuple[Any, Any, Callable[[], int]]


def by_request(saver: Any) -> Made:
    """Ask by `request_approval`; count how often the node was told to pay."""
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
    """Ask by the middleware that LangChain has for agents."""
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
    """Decide the one request of a thread; return its id."""
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
