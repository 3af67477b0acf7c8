"""Open requests are those that wait for an answer.

Decisions are checked, repeated and revised.
"""

from __future__ import annotations

from asyncio import to_thread
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.types import Command, interrupt
from support.approvals.children import graph_of
from support.approvals.questions import Asking, T, paying
from support.history.conversations import saver
from support.tool_graphs import FACES, run

from langgraph_keel import AlreadyDecided, Decision, InvalidInput, KeelSaver, NotFound
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.leases import this_holder
from langgraph_keel.runs import hook as claims_hook
from langgraph_keel.runs.claims import Claim, ClaimRecord, take

__all__ = ["saver"]

each_face = pytest.mark.parametrize("face", FACES)


def two_questions(state: Any) -> Any:
    return {"said": [interrupt("q1"), interrupt("q2")]}


class Paying:
    """A node that fails at its first attempt after the answer."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def __call__(self, state: Any) -> Any:
        self.got.append(interrupt("pay?"))
        if len(self.got) == 1:
            raise ConnectionError
        return {"said": [str(self.got[-1])]}


def seen(saver: KeelSaver) -> list[list[Any]]:
    return [[each.value for each in found] for found in (saver.approvals.pending(), saver.approvals.pending("t"))]


@each_face
async def test_an_answered_question_is_not_open(saver: KeelSaver, face: str) -> None:
    graph = graph_of(saver, ("ask", two_questions))
    await run(graph, face, {}, T)
    await run(graph, face, Command(resume="A"), T)
    assert await to_thread(seen, saver) == [["q2"], ["q2"]]
    (request,) = saver.status("t").requests
    assert request.value == "q2"
    await saver.approvals.aanswer(request.id, value="B", by="ann")
    result = await run(graph, face, await saver.approvals.aresume("t"), T)
    assert result["said"] == ["A", "B"]


@each_face
@pytest.mark.parametrize("is_nested", [False, True])
async def test_a_question_whose_answer_is_stored_is_not_open(saver: KeelSaver, face: str, is_nested: bool) -> None:
    node = Paying()
    graph: Any = graph_of(saver, ("pay", node))
    if is_nested:
        inner = graph_of(None, ("pay", node))
        graph = graph_of(saver, ("inside", inner))
    await run(graph, face, {}, T)
    with pytest.raises(ConnectionError):
        await run(graph, face, Command(resume="yes"), T)
    assert await to_thread(seen, saver) == [[], []]
    with pytest.raises(NotFound):
        await saver.approvals.aresume("t")
    found = saver.status("t")
    assert (found.state, found.questions, found.errors) == ("failed", 0, ("ConnectionError()",))
    assert [each.state for each in saver.unfinished()] == ["failed"]
    await run(graph, face, None, T)
    assert node.got == ["yes", "yes"]


@each_face
async def test_a_decision_is_superseded_by_a_plain_answer_of_the_program(saver: KeelSaver, face: str) -> None:
    graph = graph_of(saver, ("ask", lambda state: {"said": [interrupt("sure?")]}))
    await run(graph, face, {}, T)
    (request,) = await saver.approvals.apending("t")
    await saver.approvals.areject(request.id, by="ann")
    await run(graph, face, Command(resume="yes"), T)
    assert (await saver.approvals.aget(request.id)).status == "superseded"


@each_face
async def test_an_answer_given_twice_answers_one_question(saver: KeelSaver, face: str) -> None:
    graph = graph_of(saver, ("ask", two_questions))
    (first,) = (await run(graph, face, {}, T))["__interrupt__"]
    for _ in range(2):
        (second,) = (await run(graph, face, Command(resume={first.id: "A"}), T))["__interrupt__"]
        assert second.value == "q2"


@each_face
@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({}, "missing: amount"),
        ({"amount": 1, "hotel": 1}, "unknown: hotel"),
        ({"amount": "forty"}, "amount is string, and must be number"),
    ],
)
async def test_an_edit_must_fit_the_request(saver: KeelSaver, face: str, args: Any, told: str) -> None:
    await run(Asking(paying()).graph(saver), face, {}, T)
    (request,) = await saver.approvals.apending("t")
    with pytest.raises(InvalidInput, match=told):
        await saver.approvals.aedit(request.id, args=args, by="ann")
    assert (await saver.approvals.aget(request.id)).status == "waiting"
    edited = await saver.approvals.aedit(request.id, args=args, by="ann", unchecked=True)
    assert edited.history[-1]["unchecked"] is True


@each_face
@pytest.mark.parametrize("is_keel", [True, False])
async def test_a_decision_whose_task_failed_can_be_revised(saver: KeelSaver, face: str, is_keel: bool) -> None:
    got: list[Any] = []

    def act(state: Any) -> Any:
        asking = Asking(paying())
        got.append(asking.func(state)["said"] if is_keel else interrupt("how much?"))
        if got[-1] in (["edit"], "wrong"):
            raise ConnectionError
        return {"said": [str(got[-1])]}

    graph = graph_of(saver, ("act", act))
    await to_thread(graph.invoke, {}, T)
    (request,) = await saver.approvals.apending("t")
    wrong = Decision("edit", "ann", args={"amount": 1}) if is_keel else Decision("answer", "ann", value="wrong")
    command = await saver.approvals.adecide(request.id, wrong)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await to_thread(graph.invoke, command, T)
    right = Decision("approve", "bob") if is_keel else Decision("answer", "bob", value="right")
    with pytest.raises(AlreadyDecided, match=r"approvals\.revise"):
        await saver.approvals.adecide(request.id, right)
    assert (await saver.approvals.arevise(request.id, by="bob", reason="wrong")).status == "waiting"
    command = await saver.approvals.adecide(request.id, right)
    await to_thread(graph.invoke, command, T)
    assert got[-1] == (["approve"] if is_keel else "right")
    over = await saver.approvals.aget(request.id)
    assert [(event["kind"], event["by"]) for event in over.history if event["by"]][-2:] == [
        ("reopened", "bob"),
        ("approved" if is_keel else "answered", "bob"),
    ]
    with pytest.raises(AlreadyDecided, match=r"Your earlier revision on .* was recorded, this one was not"):
        await saver.approvals.arevise(request.id, by="bob")


@each_face
async def test_a_second_equal_click_returns_none(saver: KeelSaver, face: str) -> None:
    graph = Asking(paying()).graph(saver)
    await run(graph, "ainvoke", {}, T)
    (request,) = await saver.approvals.apending("t")
    decision = Decision("approve", "ann")
    command = await saver.approvals.adecide(request.id, decision)
    assert command is not None
    await run(graph, "ainvoke", command, T)
    assert await saver.approvals.adecide(request.id, decision) is None
    with pytest.raises(AlreadyDecided, match=r"ann approved this on .*already acted on it\. Your rejection was not"):
        await saver.approvals.adecide(request.id, Decision("reject", "bob"))


def test_an_answer_used_before_it_is_stored_is_not_reported_as_dropped(saver: KeelSaver, caplog: Any) -> None:
    """The writes of a task may be stored before the answer that it has received."""
    graph = graph_of(saver, ("ask", lambda state: {"said": [interrupt("name?")]}))
    graph.invoke({}, T)
    head = saver.get_tuple(T)
    assert head
    assert head.pending_writes
    asking = head.pending_writes[0][0]
    saver.put_writes(head.config, [("__resume__", ["Ann"]), ("said", ["Ann"])], asking)
    saver.put_writes(head.config, [("__resume__", "Ann")], "00000000-0000-0000-0000-000000000000")
    assert not [record for record in caplog.records if "dropped" in record.getMessage()]


class Failing:
    """A node that asks three questions, and fails after a given number of answers."""

    def __init__(self) -> None:
        self.fails_after = 0

    def __call__(self, state: Any) -> Any:
        answers: list[Any] = []
        for question in ("q1", "q2", "q3"):
            answers.append(interrupt(question))
            if len(answers) == self.fails_after:
                raise ConnectionError
        return {"said": answers}


@each_face
async def test_a_decision_not_reached_by_a_failed_task_is_not_consumed(saver: KeelSaver, face: str) -> None:
    node = Failing()
    graph = graph_of(saver, ("ask", node))
    await run(graph, face, {}, T)
    await run(graph, face, Command(resume="A"), T)
    await run(graph, face, Command(resume="B"), T)
    (request,) = await saver.approvals.apending("t")
    await saver.approvals.aanswer(request.id, value="C", by="ann")
    node.fails_after = 1
    with pytest.raises(ConnectionError):
        await run(graph, face, await saver.approvals.aresume("t"), T)
    for each in (await saver.approvals.aget(request.id), *saver.status("t").requests):
        assert each.status == "answered"


@each_face
async def test_a_failed_task_that_asked_again_is_reported_as_decided(saver: KeelSaver, face: str) -> None:
    node = Failing()
    graph = graph_of(saver, ("ask", node))
    await run(graph, face, {}, T)
    node.fails_after = 1
    with pytest.raises(ConnectionError):
        await run(graph, face, Command(resume="A"), T)
    node.fails_after = 0
    await run(graph, face, None, T)
    (request,) = await saver.approvals.apending("t")
    await saver.approvals.aanswer(request.id, value="B", by="ann")
    assert saver.status("t").state == "decided"


@each_face
async def test_a_decision_of_a_finished_task_in_a_subgraph_is_not_delivered_again(saver: KeelSaver, face: str) -> None:
    one, two = (Asking({"action": name}).node for name in ("one", "two"))
    graph = graph_of(saver, ("inside", graph_of(None, ("one", one), ("two", two))))
    await run(graph, face, {}, T)
    first, second = sorted(await saver.approvals.apending("t"), key=lambda each: each.action)
    await saver.approvals.aapprove(first.id, by="ann")
    await run(graph, face, await saver.approvals.aresume("t"), T)
    assert saver.status("t").state == "waits"
    with pytest.raises(NotFound):
        await saver.approvals.aresume("t")
    await saver.approvals.areject(second.id, by="ann")
    command = await saver.approvals.aresume("t")
    assert set(command.resume) == {second.interrupt_id}  # type: ignore[arg-type]


@each_face
async def test_a_decision_revised_after_its_deadline_is_expired(saver: KeelSaver, face: str) -> None:
    passed = timedelta()
    session = replace(saver.engine.session, clock=lambda: datetime.now(UTC) + passed)
    saver = with_engine(saver, replace(saver.engine, session=session))
    await run(Asking(paying(expires_in=3600)).graph(saver), face, {}, T)
    (request,) = await saver.approvals.apending("t")
    await saver.approvals.aapprove(request.id, by="ann")
    passed = timedelta(hours=2)
    assert (await saver.approvals.arevise(request.id, by="ann")).status == "expired"
    assert await saver.approvals.apending("t") == []


def test_a_run_whose_claim_is_not_released_yet_has_ended(saver: KeelSaver) -> None:
    """A separate thread releases the claim of an asynchronous run, perhaps late."""
    graph_of(saver, ("ask", two_questions)).invoke({}, T)
    (request,) = saver.approvals.pending("t")
    saver.approvals.answer(request.id, value="A", by="ann")
    since = datetime.now(UTC)
    record = ClaimRecord(this_holder(), "ended", int(since.timestamp() * 1000) + 30_000, since.isoformat())
    # private: a claim whose run has ended, and whose release is still pending
    saver.engine.run(take(saver.engine.session, Claim("t", claims_hook._ours.ljust(32, "0"), record), lambda *_: False))
    assert saver.status("t").state == "decided"
