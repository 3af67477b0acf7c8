"""The conditions of a question: reviewers, deadline, facts, and places to ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from support.approvals.children import ARGS, GRAPHS, Outside, State, graph_of
from support.approvals.questions import (
    BOTH,
    Asking,
    Question,
    T,
    by_request,
    decide,
    go_on,
    one,
    paying,
    saver,
    statuses,
)
from support.tool_graphs import ASKED, FACES, calls, hello, run, thread, tool_graph

from langgraph_keel import (
    AlreadyDecided,
    InvalidConfig,
    InvalidInput,
    KeelSaver,
    MemorySaver,
    NotAllowed,
    NotFound,
    ToolCache,
    ToolPolicy,
)
from langgraph_keel.approvals.ask import arequest_approval, request_approval

__all__ = ["saver"]


# -- who and how -------------------------------------------------------------------------------------------------------


async def test_only_approvers_may_decide(saver: KeelSaver) -> None:
    graph = Asking(paying(approvers=["ann", "bob"])).graph(saver)
    await run(graph, "async", {}, T)
    request = await one(saver)
    for name in ("approve", "reject", "claim"):
        with pytest.raises(NotAllowed, match="ann, bob"):
            await getattr(saver.approvals, f"a{name}")(request.id, by="eve")
    for nobody in ("", " ", "keel:expiry", None):
        with pytest.raises(InvalidInput, match="by must name"):
            await saver.approvals.aapprove(request.id, by=nobody)  # type: ignore[arg-type]
    assert statuses(saver) == ["waiting"]
    await decide(saver)
    assert (await go_on(saver, graph, "async"))["said"] == ["approve"]


@pytest.mark.parametrize("face", FACES)
async def test_none_for_approvers_or_allowed_is_the_default(saver: KeelSaver, face: str) -> None:
    graph = Asking(paying(approvers=None, allowed=None)).graph(saver)
    await run(graph, face, {}, T)
    request = await one(saver)
    assert list(request.approvers) == []
    assert list(request.allowed) == ["approve", "reject", "edit"]
    await saver.approvals.aapprove(request.id, by="anybody")
    assert (await go_on(saver, graph, face))["said"] == ["approve"]


@pytest.mark.parametrize("allowed", [["approve"], ["reject", "edit"], ["answer"]])
async def test_only_allowed_decisions_are_accepted(saver: KeelSaver, allowed: list[str]) -> None:
    graph = Asking(paying(allowed=allowed)).graph(saver)
    await run(graph, "async", {}, T)
    details: Mapping[str, Any] = {"edit": {"args": 1}, "answer": {"value": "v"}}
    for kind in {"approve", "reject", "edit", "answer"} - set(allowed):
        with pytest.raises(NotAllowed, match=allowed[0]):
            await decide(saver, kind, **details.get(kind, {}))
    await decide(saver, allowed[0], reason="because", **details.get(allowed[0], {}))
    assert (await go_on(saver, graph, "async"))["said"] == [allowed[0]]


async def test_a_decision_carries_all_its_details(saver: KeelSaver) -> None:
    asking = Asking(paying(allowed=["answer"]), paying(description="For the rent"), paying(7))
    graph = asking.graph(saver)
    await run(graph, "async", {}, T)
    await decide(saver, "answer", value={"n": [1, None]}, reason="r")
    await go_on(saver, graph, "async")
    assert (await one(saver)).description == "For the rent"
    await decide(saver, "edit", args={"amount": 0, "currency": None}, unchecked=True)
    await go_on(saver, graph, "async")
    await decide(saver)
    await go_on(saver, graph, "async")
    ((answer, edit, approval),) = asking.got
    assert (answer.value, answer.reason, answer.by, answer.approved) == ({"n": [1, None]}, "r", "bob", False)
    assert (edit.args, edit.approved) == ({"amount": 0, "currency": None}, True)
    assert (approval.args, approval.approved) == ({"amount": 7}, True)
    assert datetime.fromisoformat(approval.at) > datetime.now(UTC) - timedelta(minutes=1)


# -- until when --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("expires_in", [1.5, timedelta(seconds=1.5)], ids=["seconds", "timedelta"])
async def test_an_expired_request_is_rejected(saver: KeelSaver, face: str, expires_in: Any) -> None:
    asking = Asking(paying(expires_in=expires_in))
    graph = asking.graph(saver)
    assert ASKED in await run(graph, face, {}, T)
    request = await one(saver)
    await asyncio.sleep(1.55)
    for name in ("approve", "reject", "claim"):
        with pytest.raises(AlreadyDecided, match="expired"):
            await getattr(saver.approvals, f"a{name}")(request.id, by="bob")
    assert await saver.approvals.apending("t") == []
    assert (await go_on(saver, graph, face))["said"] == ["reject"]
    ((decision,),) = asking.got
    assert (decision.by, decision.approved) == ("keel:expiry", False)


@pytest.mark.parametrize("face", FACES)
async def test_a_decision_made_in_time_stays_valid_after_the_deadline(saver: KeelSaver, face: str) -> None:
    graph = Asking(paying(expires_in=1.5)).graph(saver)
    await run(graph, face, {}, T)
    await decide(saver)
    await asyncio.sleep(1.55)
    assert (await go_on(saver, graph, face))["said"] == ["approve"]


async def test_an_expired_request_with_on_expiry_wait_keeps_waiting(saver: KeelSaver) -> None:
    asking = Asking(paying(expires_in=0.2, on_expiry="wait"))
    graph = asking.graph(saver)
    await run(graph, "async", {}, T)
    await asyncio.sleep(0.25)
    with pytest.raises(NotFound, match="is expired"):
        await saver.approvals.aresume("t")
    assert ASKED in await run(graph, "async", None, T)
    assert asking.got == []


# -- on which facts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
async def test_an_approval_is_invalid_once_its_facts_change(saver: KeelSaver, face: str) -> None:
    asking = Asking(paying(facts={"price": 1200}))
    graph = asking.graph(saver)
    await run(graph, face, {}, T)
    for price in (1500, 1800):
        await decide(saver)
        asking.questions = [paying(facts={"price": price})]
        (asked,) = (await go_on(saver, graph, face))[ASKED]
        request = await one(saver)
        assert request.facts == asked.value["facts"] == {"price": price}
        assert request.before == asked.value["before"] == {"price": price - 300}
    assert asking.got == []
    await decide(saver)
    assert (await go_on(saver, graph, face))["said"] == ["approve"]
    assert sorted(statuses(saver)) == ["consumed", "superseded", "superseded"]


@pytest.mark.parametrize("face", FACES)
async def test_a_rejection_stays_valid_when_facts_change(saver: KeelSaver, face: str) -> None:
    asking = Asking(paying(facts={"price": 1200}))
    graph = asking.graph(saver)
    await run(graph, face, {}, T)
    await decide(saver, "reject")
    asking.questions = [paying(facts={"price": 1500})]
    assert (await go_on(saver, graph, face))["said"] == ["reject"]


@pytest.mark.parametrize(("price", "holds"), [(1250, True), (1150, True), (1500, False)])
async def test_a_revalidate_function_decides_whether_facts_still_hold(
    saver: KeelSaver, price: int, holds: bool
) -> None:
    def near(approved: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
        return bool(abs(approved["price"] - current["price"]) <= 100)

    asking = Asking(paying(facts={"price": 1200}, revalidate=near))
    graph = asking.graph(saver)
    await run(graph, "async", {}, T)
    await decide(saver)
    asking.questions = [paying(facts={"price": price}, revalidate=near)]
    assert (ASKED not in await go_on(saver, graph, "async")) == holds
    assert len(asking.got) == holds


async def test_a_failed_node_asks_again_when_facts_have_changed(saver: KeelSaver) -> None:
    asking = Asking(paying(facts={"price": 1200}))
    graph = asking.graph(saver)
    await run(graph, "async", {}, T)
    await decide(saver)
    asking.failing = 1
    with pytest.raises(ConnectionError):
        await go_on(saver, graph, "async")
    asking.questions = [paying(facts={"price": 1500})]
    assert ASKED in await run(graph, "async", None, T)
    assert len(asking.got) == 1
    assert (await one(saver)).before == {"price": 1200}


# -- where -------------------------------------------------------------------------------------------------------------

WRONG: dict[str, list[Any]] = {
    "action": ["", 3, None, b"pay"],
    "args": [object(), {"n": float("inf")}, {1: 2}, Asking, b"x", {"x": {1, 2}}],
    "on_expiry": ["", "approve", None],
    "approvers": ["ann", [3], [""], 5, [[]]],
    "allowed": ["approve", [], ["respond"], [[]], 5],
    "expires_in": ["1", float("nan"), -1, True, timedelta(-1)],
    "facts": [5, [1], {"price": float("nan")}, {"price": object()}],
    "revalidate": [3],
    "description": [3, b""],
}
BAD = {f"{name} {nth}": paying() | {name: value} for name, values in WRONG.items() for nth, value in enumerate(values)}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("question", BAD.values(), ids=BAD)
async def test_an_invalid_question_is_refused_and_creates_no_request(
    saver: KeelSaver, face: str, question: Question
) -> None:
    graph = Asking(question).graph(saver)
    with pytest.raises((InvalidInput, InvalidConfig)):
        await run(graph, face, {}, T)
    assert await saver.approvals.apending() == []
    assert await saver.approvals.aaudit() == []


@pytest.mark.parametrize("other", [None, InMemorySaver()], ids=["none", "LangGraph's"])
def test_a_graph_needs_one_of_keels_savers(other: Any) -> None:
    with pytest.raises(InvalidConfig, match="savers"):
        Asking(paying()).graph(other).invoke({}, T)


async def test_a_question_needs_a_graph() -> None:
    with pytest.raises(InvalidConfig, match="outside of a graph"):
        await arequest_approval("pay")


async def test_a_blocking_request_in_a_running_loop_is_refused(saver: KeelSaver) -> None:
    async def ask(state: Any) -> Any:
        return {"said": [request_approval("pay").kind]}

    with pytest.raises(InvalidInput, match="await arequest_approval"):
        await graph_of(saver, ("ask", ask)).ainvoke({}, T)
    assert await saver.approvals.apending() == []


@pytest.fixture
def outside(tmp_path: Any) -> Outside:
    made = Outside(tmp_path / "outside")
    made.path.touch()
    made.path.with_suffix(".price").write_text("1200")
    return made


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("name", ["node", "parallel", "subgraph", "remembering", "called", "tool_node", "agent"])
async def test_approved_actions_run_once_in_every_graph_and_durability(
    saver: KeelSaver, outside: Outside, face: str, durability: str, name: str
) -> None:
    graph = GRAPHS[name](saver, outside)
    result = await run(graph, face, hello() | {"said": []}, T, durability=durability)
    for _ in range(3):
        for request in saver.approvals.pending("t"):
            assert request.args == ARGS[request.action]
            await saver.approvals.aapprove(request.id, by="bob")
        result = await run(graph, face, await saver.approvals.aresume("t"), T, durability=durability)
        if ASKED not in result:
            break
    lines = [json.loads(line) for line in outside.path.read_text().splitlines()]
    assert sorted(action for _, action, _ in lines) == (["pay"] if ASKS_ONE[name] else ["mail", "pay"])
    assert set(statuses(saver)) == {"consumed"}


ASKS_ONE = {name: name in ("node", "subgraph", "remembering", "called") for name in GRAPHS}


@pytest.mark.parametrize("face", FACES)
async def test_a_decision_for_a_stateless_subgraph_raises_an_error(saver: KeelSaver, face: str) -> None:
    """Its tasks have new ids in each run, so LangGraph cannot answer them by id.

    Each resume raises an error.
    """
    asking = Asking(paying())
    graph = graph_of(saver, ("outer", graph_of(False, ("pay", asking.node))))
    await run(graph, face, {}, T)
    await decide(saver)
    for _ in range(2):
        with pytest.raises(InvalidConfig, match="checkpointer=False"):
            await go_on(saver, graph, face)
    assert await saver.approvals.apending() == []


# -- several at once ---------------------------------------------------------------------------------------------------


async def decided_until_done(saver: KeelSaver, graph: Any, face: str, no: Any) -> tuple[Any, int]:
    """Reject requests with the arguments `no`, and approve all others.

    Also return the number of requests.
    """
    asked = 0
    for _ in range(8):
        for request in await saver.approvals.apending("t"):
            name = "areject" if request.args == no else "aapprove"
            await getattr(saver.approvals, name)(request.id, by="bob")
            asked += 1
        result = await go_on(saver, graph, face)
        if ASKED not in result:
            return result, asked
    pytest.fail("it asks for ever")


@pytest.mark.parametrize("face", FACES)
async def test_equal_questions_of_parallel_tasks_need_a_decision_each(saver: KeelSaver, face: str) -> None:
    asking = Asking(paying())
    builder = StateGraph(State)
    builder.add_node("pay", asking.node)
    builder.add_conditional_edges(START, lambda state: [Send("pay", {}) for _ in range(3)], ["pay"])
    graph = builder.compile(checkpointer=saver)
    await run(graph, face, {"said": []}, T)
    first, second, third = await saver.approvals.apending("t")
    await saver.approvals.aapprove(first.id, by="bob")
    assert len((await go_on(saver, graph, face))[ASKED]) == 2
    assert len(asking.got) == 1
    await saver.approvals.areject(second.id, by="bob")
    await saver.approvals.aapprove(third.id, by="bob")
    assert sorted((await go_on(saver, graph, face))["said"]) == ["approve", "approve", "reject"]
    assert len(asking.got) == 3


async def test_concurrent_questions_of_a_node_get_their_own_decisions(saver: KeelSaver) -> None:
    async def at_once(state: Any) -> Any:
        decisions = await asyncio.gather(*[arequest_approval("pay", number) for number in range(4)])
        return {"said": [decision.kind for decision in decisions]}

    graph = graph_of(saver, ("ask", at_once))
    await graph.ainvoke({}, T)
    result, asked = await decided_until_done(saver, graph, "async", 2)
    assert (result["said"], asked) == (["approve", "approve", "reject", "approve"], 4)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("scope", ["thread", "shared"])
async def test_a_cached_result_does_not_replace_an_approval(saver: KeelSaver, face: str, scope: Any) -> None:
    """The tool asks again in the next turn, whichever question interrupted the graph."""
    acted: list[Any] = []
    tools = [by_request("transfer", acted), by_request("email", acted)]
    turns = [*BOTH, calls(("transfer", {"to": "eve"}, "c"), ("email", {"to": "ada"}, "d"))]
    graph = tool_graph(ToolCache(saver, default=ToolPolicy(scope=scope)), tools, turns)
    await run(graph, face, hello(), T)
    _, asked = await decided_until_done(saver, graph, face, {"of": "transfer"})
    assert asked == 4
    assert [name for name, _ in acted] == ["email", "email"]


def test_a_decision_applies_to_one_saver_only() -> None:
    with MemorySaver() as first, MemorySaver() as second:
        for saver in (first, second):
            Asking(paying()).graph(saver).invoke({}, thread("t"))
        (request,) = first.approvals.pending()
        first.approvals.approve(request.id, by="bob")
        assert [each.status for each in second.approvals.pending("t")] == ["waiting"]
