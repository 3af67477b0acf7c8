"""A repeated decision, as after a lost reply, is not mistaken for a rival's."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from support.approvals.questions import Asking, T, go_on, one, paying
from support.tool_graphs import run

from langgraph_keel import AlreadyDecided, KeelSaver, MemorySaver
from langgraph_keel.approvals.plans import refresh_thread
from langgraph_keel.approvals.requests import ApprovalRequest
from langgraph_keel.engine.plan import Plan

FACES = ("invoke", "ainvoke")
each_face = pytest.mark.parametrize("face", FACES)
DECISIONS: list[tuple[str, dict[str, Any]]] = [
    ("approve", {"by": "bob", "reason": "cheap"}),
    ("reject", {"by": "bob"}),
    ("edit", {"by": "bob", "args": {"amount": 1}}),
]


async def decide(saver: KeelSaver, face: str, kind: str, name: str, **details: Any) -> ApprovalRequest:
    decided: Any = getattr(saver.approvals, kind if face == "invoke" else f"a{kind}")(name, **details)
    request: ApprovalRequest = decided if face == "invoke" else await decided
    return request


@each_face
@pytest.mark.parametrize(("kind", "details"), DECISIONS, ids=[kind for kind, _ in DECISIONS])
async def test_repeating_the_same_decision_returns_it(saver: KeelSaver, face: str, kind: str, details: Any) -> None:
    """Both before and after the agent has used it."""
    asking = Asking(paying())
    graph = asking.graph(saver)
    await run(graph, "ainvoke", {}, T)
    name = (await one(saver)).id
    first = await decide(saver, face, kind, name, **details)
    assert await decide(saver, face, kind, name, **details) == first
    await go_on(saver, graph, "ainvoke")
    taken = await decide(saver, face, kind, name, **details)
    assert (taken.status, taken.decision) == ("consumed", first.decision)
    assert [event["kind"] for event in taken.history] == ["asked", first.status, "consumed"]
    assert len(asking.got) == 1


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("edit", {"by": "ann", "args": {"amount": 1}}),
    ("edit", {"by": "bob", "args": {"amount": 2}}),
    ("edit", {"by": "bob", "args": {"amount": True}}),
    ("edit", {"by": "bob", "args": {"amount": 1}, "reason": "cheap"}),
    ("approve", {"by": "bob"}),
    ("reject", {"by": "bob"}),
]


@each_face
async def test_a_different_second_decision_is_refused(saver: KeelSaver, face: str) -> None:
    await run(Asking(paying()).graph(saver), "ainvoke", {}, T)
    name = (await one(saver)).id
    first = await decide(saver, face, "edit", name, by="bob", args={"amount": 1})
    for kind, details in OTHERS:
        with pytest.raises(AlreadyDecided, match="bob edited this"):
            await decide(saver, face, kind, name, **details)
    assert await saver.approvals.aget(name) == first


@each_face
async def test_rejecting_an_expired_request_is_refused(saver: KeelSaver, face: str) -> None:
    """An expired request was not rejected by a person, so a repetition fails."""
    await run(Asking(paying(expires_in=0, on_expiry="wait")).graph(saver), "ainvoke", {}, T)
    (request,) = await saver.approvals.apending(status="expired")
    for by in ("keel:expiry", ""):
        with pytest.raises(AlreadyDecided, match="expired"):
            await decide(saver, face, "reject", request.id, by=by)


@pytest.mark.parametrize("nth", range(2))
def test_refreshing_a_thread_during_its_resume_asks_nothing_again(nth: int) -> None:
    """This holds whatever the refreshing process has read before the thread resumes."""
    with MemorySaver() as saver:
        graph = Asking(paying()).graph(saver)
        graph.invoke({}, T)

        def look() -> Plan[Any]:
            plan = refresh_thread(saver.engine.session, "t")
            request = next(plan)
            for trip in count():
                reply = yield request
                if trip == nth:
                    saver.approvals.approve(saver.approvals.pending("t")[0].id, by="bob")
                    graph.invoke(saver.approvals.resume("t"), T)
                try:
                    request = plan.send(reply)
                except StopIteration as end:
                    return end.value

        saver.engine.run(look())
        assert [event.kind for event in saver.approvals.audit()] == ["asked", "approved", "consumed"]
        assert saver.approvals.pending("t") == []
