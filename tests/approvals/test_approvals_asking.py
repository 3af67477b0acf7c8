"""An approval is valid only for the question that was asked.

It does not cover other questions of the step, the thread or its past.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt
from support.approvals.children import State, graph_of
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
    statuses,
    tool_named,
)
from support.approvals.questions import saver as saver
from support.tiers import examples
from support.tool_graphs import ASKED, FACES, hello, loop_of, resume, run, thread, tool_graph

from langgraph_keel import (
    KeelSaver,
    NotFound,
    ToolCache,
)
from langgraph_keel.approvals.ask import request_approval
from langgraph_keel.approvals.requests import CONSUMED, SUPERSEDED, ApprovalRequest, Approvals

# -- two tools of one step ---------------------------------------------------------------------------------------------


def plainly(name: str, acted: list[Any]) -> StructuredTool:
    def work() -> str:
        acted.append((name, interrupt(name)))
        return f"{name} done"

    return tool_named(name, work, lambda: to_thread(work))


@contextmanager
def langgraph_saver(kind: str) -> Iterator[Any]:
    if kind == "memory":
        yield InMemorySaver()
    else:
        with LangGraphSqliteSaver.from_conn_string(":memory:") as saver:
            yield saver


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_langgraph_delivers_an_answer_to_the_wrong_tool(kind: str) -> None:
    """The hazard (langgraph#6533): the answer to one tool reaches the other.

    The answer is for one question, by id.
    """
    acted: list[Any] = []
    with langgraph_saver(kind) as saver:
        graph = loop_of(ToolNode([plainly("transfer", acted), plainly("email", acted)]), BOTH, saver)
        for number in range(300):
            (asked,) = graph.invoke(hello(), thread(str(number)))[ASKED]
            graph.invoke(Command(resume={asked.id: asked.value}), thread(str(number)))
            if any(name != meant for name, meant in acted):
                return
    pytest.fail("every answer went to the tool that had asked")


def two_tools(saver: KeelSaver, is_cached: bool, acted: list[Any]) -> Any:
    tools = [by_request("transfer", acted), by_request("email", acted)]
    return tool_graph(ToolCache(saver), tools, BOTH) if is_cached else loop_of(ToolNode(tools), BOTH, saver)


async def decide_both(saver: KeelSaver, name: str, *, backwards: bool) -> None:
    waiting = await saver.approvals.apending(name)
    for request in waiting[::-1] if backwards else waiting:
        if request.action == "transfer":
            await saver.approvals.areject(request.id, by="bob")
        else:
            await saver.approvals.aedit(request.id, by="bob", args={"of": "bob"})


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("is_cached", [True, False], ids=["cached", "not cached"])
async def test_a_decision_never_reaches_another_tool(saver: KeelSaver, face: str, is_cached: bool) -> None:
    acted: list[Any] = []
    graph = two_tools(saver, is_cached, acted)
    for number in range(examples(100)):
        name = str(number)
        result = await run(graph, face, hello(), thread(name))
        if number % 3 == 0:  # the step starts again, and the other tool may ask first
            result = await run(graph, face, None, thread(name))
        for _ in range(4):
            assert not acted or ASKED in result
            await decide_both(saver, name, backwards=number % 2 == 0)
            result = await run(graph, face, await saver.approvals.aresume(name), thread(name))
            if ASKED not in result:
                break
        assert ASKED not in result
        assert set(map(str, acted)) == {str(("email", {"of": "bob"}))}
        assert len(acted) == 1 or not is_cached  # a `ToolNode` runs all its tools again if one asks
        acted.clear()


@pytest.mark.parametrize("face", FACES)
async def test_a_task_resumes_when_all_its_questions_are_decided(saver: KeelSaver, face: str) -> None:
    acted: list[Any] = []
    graph = two_tools(saver, True, acted)
    await run(graph, face, hello(), T)
    while len(waiting := await saver.approvals.apending("t")) < 2:
        await run(graph, face, None, T)
    await saver.approvals.aapprove(waiting[1].id, by="bob")
    with pytest.raises(NotFound, match=f"{waiting[0].id} is waiting"):
        await saver.approvals.aresume("t")
    await saver.approvals.aapprove(waiting[0].id, by="bob")
    assert ASKED not in await go_on(saver, graph, face)
    assert sorted(name for name, _ in acted) == ["email", "transfer"]


# -- what an approval is bound to --------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "other", [paying(1000), paying("100"), {"action": "pay"}, {"action": "steal", "args": {"amount": 100}}]
)
async def test_an_approval_is_valid_only_for_the_same_action_and_arguments(
    saver: KeelSaver, face: str, other: Question
) -> None:
    asking = Asking(paying(100))
    graph = asking.graph(saver)
    await run(graph, face, {}, T)
    first = await decide(saver)
    asking.questions = [other]
    assert ASKED in await go_on(saver, graph, face)
    assert asking.got == []
    second = await one(saver)
    assert (second.action, second.args) == (other["action"], other.get("args"))
    assert second.id != first.id
    await decide(saver, "reject")
    await go_on(saver, graph, face)
    assert [[decision.kind for decision in each] for each in asking.got] == [["reject"]]
    assert (await saver.approvals.aget(first.id)).status == "superseded"


async def test_a_superseded_question_does_not_block_a_resume(saver: KeelSaver) -> None:
    asking = Asking(paying(100))
    graph = asking.graph(saver)
    await run(graph, "sync", {}, T)
    asking.questions = [paying(1000)]
    await run(graph, "sync", None, T)
    assert (await decide(saver)).args == {"amount": 1000}
    assert (await go_on(saver, graph, "sync"))["said"] == ["approve"]
    assert sorted(statuses(saver)) == ["consumed", "superseded"]


@pytest.mark.parametrize("face", FACES)
async def test_two_equal_questions_need_two_decisions(saver: KeelSaver, face: str) -> None:
    asking = Asking(paying(), paying())
    graph = asking.graph(saver)
    await run(graph, face, {}, T)
    await decide(saver)
    assert ASKED in await go_on(saver, graph, face)
    assert asking.got == []
    await decide(saver, "reject")
    assert (await go_on(saver, graph, face))["said"] == ["approve", "reject"]


@pytest.mark.parametrize(
    "question", [{"action": "pay"}, paying({}), {"action": "pay", "args": []}, {"action": "p", "args": 0}]
)
def test_a_question_creates_one_request(saver: KeelSaver, question: Question) -> None:
    graph = Asking(question).graph(saver)
    graph.invoke({}, T)
    (request,) = saver.approvals.pending()
    assert (request.action, request.args) == (question["action"], question.get("args"))
    saver.approvals.approve(request.id, by="bob")
    assert graph.invoke(saver.approvals.resume("t"), T) == {"said": ["approve"]}


@pytest.mark.parametrize("face", FACES)
async def test_a_plain_resume_approves_nothing(saver: KeelSaver, face: str) -> None:
    asking = Asking(paying())
    graph = asking.graph(saver)
    asked = (await run(graph, face, {}, T))[ASKED]
    approve = {"type": "approve"}
    for answer in ("yes", True, approve, {"decisions": [approve]}, [approve], asked[0].value, {asked[0].id: approve}):
        asked = (await resume(graph, face, answer, T))[ASKED]
        assert (await one(saver)).status == "waiting"
    asked = (await resume(graph, face, {asked[0].id: approve}, T))[ASKED]
    await decide(saver, "reject")
    assert (await go_on(saver, graph, face))["said"] == ["reject"]
    assert len(asking.got) == 1


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("how", ["rewind", "fork", "replay"])
async def test_a_question_is_asked_again_after_a_rewind_fork_or_replay(saver: KeelSaver, face: str, how: str) -> None:
    asking = Asking(paying())
    graph = asking.graph(saver)
    await run(graph, face, {}, T)
    first = await decide(saver)
    await go_on(saver, graph, face)
    (moment,) = [moment for moment in saver.timeline("t") if moment.next == ("pay",)]
    config = T if how == "rewind" else moment.config
    if how == "rewind":
        saver.rewind(moment.config)
    if how == "fork":
        config = saver.fork(moment.config, "f")
    assert ASKED in await run(graph, face, None, config)
    (again,) = saver.approvals.pending()
    assert (again.thread_id, again.id == first.id) == ("f" if how == "fork" else "t", False)
    assert len(asking.got) == 1
    saver.approvals.reject(again.id, by="bob")
    await run(graph, face, saver.approvals.resume(again.thread_id), thread(again.thread_id))
    assert [each.kind for (each,) in asking.got] == ["approve", "reject"]


# -- again and again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
async def test_a_retried_node_receives_the_same_decisions(saver: KeelSaver, face: str) -> None:
    asking = Asking(paying(), paying(), paying(7))
    policy = RetryPolicy(initial_interval=0.001, max_attempts=4, retry_on=ConnectionError)
    builder = StateGraph(State)
    builder.add_node("pay", asking.node, retry_policy=policy)
    builder.add_edge(START, "pay")
    graph = builder.compile(checkpointer=saver)
    await run(graph, face, {}, T)
    asking.failing = 2
    for kind in ("approve", "reject", "approve"):
        await decide(saver, kind)
        result = await go_on(saver, graph, face)
    assert ASKED not in result
    assert [[decision.kind for decision in each] for each in asking.got] == [["approve", "reject", "approve"]] * 3
    assert statuses(saver) == ["consumed"] * 3


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("how", ["by its answers", "by nothing"])
async def test_a_node_that_failed_after_its_approval_receives_it_again(saver: KeelSaver, face: str, how: str) -> None:
    asking = Asking(paying(), paying(7))
    graph = asking.graph(saver)
    await run(graph, face, {}, T)
    asking.failing = 1
    await decide(saver)
    await go_on(saver, graph, face)
    await decide(saver, "reject")
    with pytest.raises(ConnectionError):
        await go_on(saver, graph, face)
    assert statuses(saver) == ["consumed", "consumed"]
    given = None if how == "by nothing" else await saver.approvals.aresume("t")
    assert (await run(graph, face, given, T))["said"] == ["approve", "reject"]
    assert asking.got[0] == asking.got[1]
    with pytest.raises(NotFound):
        saver.approvals.resume("t")


@pytest.mark.parametrize("face", FACES)
async def test_approvals_mixed_with_plain_interrupts_get_their_own_answers(saver: KeelSaver, face: str) -> None:
    """Each question takes its own answer from LangGraph's list."""

    def mixed(state: Any) -> Any:
        first = interrupt("first?")
        decision = request_approval("pay", first)
        return {"said": [first, decision.kind, interrupt("last?")]}

    graph = graph_of(saver, ("mixed", mixed))
    await run(graph, face, {}, T)
    await decide(saver, "answer", value="a")
    assert ASKED in await go_on(saver, graph, face)
    assert (await one(saver)).action == "pay"
    await resume(graph, face, "stray", T)
    await decide(saver)
    assert ASKED in await go_on(saver, graph, face)
    assert (await one(saver)).value == "last?"
    await decide(saver, "answer", value="z")
    assert (await go_on(saver, graph, face))["said"] == ["a", "approve", "z"]


@pytest.mark.parametrize("face", FACES)
async def test_a_plain_answer_is_given_once(saver: KeelSaver, face: str) -> None:
    """LangGraph stores it with the checkpoint, and would use it for a later question."""
    graph = graph_of(saver, ("ask", lambda state: {"said": [interrupt("1?"), interrupt("2?"), interrupt("3?")]}))
    await run(graph, face, {}, T)
    (second,) = (await resume(graph, face, "one", T))[ASKED]
    (third,) = (await resume(graph, face, {second.id: "two"}, T))[ASKED]
    assert third.value == "3?"
    assert (await resume(graph, face, {third.id: "three"}, T))["said"] == ["one", "two", "three"]


def test_langgraph_uses_a_plain_answer_twice() -> None:
    graph = graph_of(
        InMemorySaver(), ("ask", lambda state: {"said": [interrupt("1?"), interrupt("2?"), interrupt("3?")]})
    )
    graph.invoke({}, T)
    (second,) = graph.invoke(Command(resume="one"), T)[ASKED]
    assert graph.invoke(Command(resume={second.id: "two"}), T)["said"] == ["one", "two", "one"]


def test_a_closed_request_that_is_asked_again_takes_the_later_status(saver: KeelSaver) -> None:
    """Of two concurrent questions of a node, the first request may be closed early.

    Its run is not yet known to be alive then.
    """
    approvals, engine = Approvals(saver.engine.session), saver.engine
    asked = ApprovalRequest("a" * 24, "t", "1", "task", action="pay", args={}, asked_at="2026-11-24T10:00:00.000+00:00")
    for status in (SUPERSEDED, CONSUMED):
        held = engine.run(approvals.ask(asked))
        assert held is not None
        for _ in range(2):  # after a process dies in between, another one does it again
            engine.run(approvals.end(held, status, asked.asked_at))
        (found,) = saver.approvals.pending("t", status=[SUPERSEDED, CONSUMED], limit=None)
        assert found.status == status
