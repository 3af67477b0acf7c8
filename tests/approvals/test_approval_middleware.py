"""Interrupts of real agents and nodes are read, and each decision has its effect."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, StateGraph
from langgraph.types import Interrupt, interrupt
from support.savers import SAVERS
from support.tool_graphs import ASKED, FACES, Killed, Scripted, answers, calls, hello, resume, run, thread, tool_graph

from langgraph_keel import InvalidInput, KeelSaver, ToolCache, ToolPolicy
from langgraph_keel.approvals.interrupts import Ask, answer_of, asks_of
from langgraph_keel.approvals.requests import BY_EXPIRY, Decision
from langgraph_keel.display.jsonable import as_json

ALL = ("approve", "reject", "edit", "answer")
MODES = ("batched", "per_call")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[KeelSaver]:
    """A saver in memory, for tests that do not depend on the backend."""
    with SAVERS["memory"](tmp_path) as saver:
        yield saver  # type: ignore[misc]


def tools(ran: list[Any]) -> list[BaseTool]:
    @tool
    def pay(x: int) -> str:
        """Pay."""
        ran.append(("pay", x))
        return f"paid {x}"

    @tool
    def mail(to: str) -> str:
        """Mail."""
        ran.append(("mail", to))
        return f"mailed {to}"

    return [pay, mail]


def agent(saver: Any, ran: list[Any], mode: Any, **gates: Any) -> Any:
    script = [calls(("pay", {"x": 100}, "a"), ("mail", {"to": "ada"}, "b"))]
    gate = HumanInTheLoopMiddleware(gates or {"pay": True, "mail": True}, interrupt_mode=mode)
    return create_agent(Scripted(script=script), tools(ran), middleware=[gate], checkpointer=saver)


def waiting(saver: Any, config: Any) -> list[Interrupt]:
    """Return a thread's interrupts as a process without the graph reads them."""
    found = saver.get_tuple(config)
    asked = [value for _, channel, value in found.pending_writes if channel == ASKED]
    return [each for values in asked for each in values]


def answered(saver: Any, config: Any, decisions: dict[str, Decision]) -> dict[str, Any]:
    """Return the map to resume with; each action is decided by its name.

    It is made from the stored values.
    """
    resumed = {}
    for each in waiting(saver, config):
        asks = asks_of(each.value, each.response_schema)
        assert asks_of(as_json(each.value), each.response_schema) == asks
        resumed[each.id] = answer_of(as_json(each.value), [decisions[ask.action] for ask in asks], each.response_schema)
    return resumed


YES = Decision("approve", "ada")
# The decision about the payment, the calls that ran then, and the message that the model receives.
DECIDED: dict[str, tuple[Decision, list[Any], str, str]] = {
    "approve": (YES, [("pay", 100)], "success", "paid 100"),
    "edit": (Decision("edit", "ada", args={"x": 7}), [("pay", 7)], "success", "paid 7"),
    "reject": (Decision("reject", "ada"), [], "error", "User rejected the tool call for `pay` with id a."),
    "reject, why": (Decision("reject", "ada", reason="too dear"), [], "error", "with reason: too dear"),
    "expired": (Decision("reject", BY_EXPIRY), [], "error", "with reason: not decided in time"),
    "answer": (Decision("answer", "ada", value="paid by hand"), [], "success", "paid by hand"),
    "answer with data": (Decision("answer", "ada", value={"paid": 5}), [], "success", '{"paid": 5}'),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DECIDED)
async def test_the_middleware_carries_out_each_decision(memory: KeelSaver, face: str, mode: str, name: str) -> None:
    decision, ran_then, status, told = DECIDED[name]
    ran: list[Any] = []
    graph = agent(memory, ran, mode)
    await run(graph, face, hello(), thread("1"))
    assert ran == []
    result = await resume(graph, face, answered(memory, thread("1"), {"pay": decision, "mail": YES}), thread("1"))
    assert ASKED not in result
    assert sorted(ran) == [("mail", "ada"), *ran_then]
    said = answers(result)
    assert (said["a"].status, said["b"].content) == (status, "mailed ada")
    assert told in str(said["a"].content)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("mode", MODES)
async def test_questions_are_read_alike_from_every_store(saver: KeelSaver, face: str, mode: str) -> None:
    ran: list[Any] = []
    graph = agent(saver, ran, mode, pay={"allowed_decisions": ["edit", "reject"]}, mail=True)
    await run(graph, face, hello(), thread("1"))
    asked = waiting(saver, thread("1"))
    asks = [ask for each in asked for ask in asks_of(each.value, each.response_schema)]
    assert len(asked) == {"batched": 1, "per_call": 2}[mode]
    assert sorted((ask.action, ask.args, ask.allowed) for ask in asks) == [
        ("mail", {"to": "ada"}, ALL),
        ("pay", {"x": 100}, ("reject", "edit")),
    ]
    assert all(ask.description.startswith("Tool execution requires approval") for ask in asks)
    no, edit = Decision("reject", "ada"), Decision("edit", "ada", args={"x": 7})
    await resume(graph, face, answered(saver, thread("1"), {"pay": edit, "mail": no}), thread("1"))
    assert ran == [("pay", 7)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("allowed", ["approve", "reject", "edit", "respond"])
async def test_a_tool_that_allows_one_decision_accepts_no_other(memory: KeelSaver, mode: str, allowed: str) -> None:
    """A decision that the middleware would fail on is refused before it is stored."""
    ran: list[Any] = []
    graph = agent(memory, ran, mode, pay={"allowed_decisions": [allowed]})
    await run(graph, "sync", hello(), thread("1"))
    kind = "answer" if allowed == "respond" else allowed
    said: dict[str, Any] = {"args": {"x": 7}, "value": "7"}
    for other in {"approve", "edit", "answer"} - {kind}:
        with pytest.raises(InvalidInput, match=f" allows {kind}, not {other}"):
            answered(memory, thread("1"), {"pay": Decision(other, "ada", **said)})  # type: ignore[arg-type]
    decision = Decision(kind, "ada", **said)  # type: ignore[arg-type]
    result = await resume(graph, "sync", answered(memory, thread("1"), {"pay": decision}), thread("1"))
    assert ASKED not in result
    assert ("pay", {"approve": 100, "edit": 7}.get(allowed)) in [*ran, ("pay", None)]


# -- nodes that ask the Agent Inbox, and nodes that just ask -----------------------------------------------------------


class State(TypedDict):
    said: Any


def human_interrupt(**config: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("allow_ignore", "allow_respond", "allow_edit", "allow_accept"), True)
    action = {"action": "pay", "args": {"x": 100}}
    return {"action_request": action, "config": {**flags, **config}, "description": "Pay?"}


def asking(saver: Any, *questions: Any) -> Any:
    """Return a graph whose node asks one question after another, and logs answers."""
    builder = StateGraph(State)
    builder.add_node("ask", lambda state: {"said": [interrupt(question) for question in questions]})
    builder.add_edge(START, "ask")
    return builder.compile(checkpointer=saver)


NODES: dict[str, tuple[Decision, dict[str, Any]]] = {
    "accept": (YES, {"type": "accept", "args": {"action": "pay", "args": {"x": 100}}}),
    "edit": (Decision("edit", "ada", args={"x": 7}), {"type": "edit", "args": {"action": "pay", "args": {"x": 7}}}),
    "response": (Decision("answer", "ada", value="later"), {"type": "response", "args": "later"}),
    "ignore": (Decision("reject", "ada", reason="no"), {"type": "ignore", "args": None}),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("form", ["alone", "in a list"])
@pytest.mark.parametrize("name", NODES)
async def test_a_node_takes_the_first_answer_of_the_inbox(saver: KeelSaver, face: str, form: str, name: str) -> None:
    decision, told = NODES[name]
    question = human_interrupt()
    graph = asking(saver, question if form == "alone" else [question])
    await run(graph, face, {"said": None}, thread("1"))
    (asked,) = waiting(saver, thread("1"))
    assert list(asks_of(asked.value)) == [Ask("pay", {"x": 100}, "Pay?", ALL)]
    result = await resume(graph, face, answered(saver, thread("1"), {"pay": decision}), thread("1"))
    ((first,),) = result["said"]
    assert first == told


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (YES, True),
        (Decision("reject", "ada"), False),
        (Decision("answer", "ada", value=["tuesday"]), ["tuesday"]),
        (Decision("answer", "ada", value=None), None),
        (Decision("answer", "ada", value={}), {}),
    ],
)
async def test_a_free_question_receives_the_value(saver: KeelSaver, face: str, decision: Decision, told: Any) -> None:
    graph = asking(saver, "Which day?", {"really": True})
    await run(graph, face, {"said": None}, thread("1"))
    for _ in range(2):
        result = await resume(graph, face, answered(saver, thread("1"), {"": decision}), thread("1"))
    assert (ASKED in result, result["said"]) == (False, [told, told])


# -- a tool that was cut off -------------------------------------------------------------------------------------------


def mortal(ran: list[int]) -> BaseTool:
    @tool
    def pay(x: int) -> str:
        """Pay, and die of it the first time."""
        ran.append(x)
        if len(ran) == 1:
            raise Killed
        return f"paid {x}"

    return pay


CUT_OFF: dict[str, tuple[Decision, int, str]] = {
    "retry": (Decision("answer", "ada", value="retry"), 2, "paid 1"),
    "done": (
        Decision("answer", "ada", value={"decision": "done", "result": "paid, says the bank"}),
        1,
        "says the bank",
    ),
    "skip": (Decision("answer", "ada", value="skip"), 1, "decided not to repeat it"),
    "reject": (Decision("reject", "ada"), 1, "decided not to repeat it"),
    "expired": (Decision("reject", BY_EXPIRY), 1, "decided not to repeat it"),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", CUT_OFF)
async def test_an_interrupted_tool_runs_again_only_on_request(memory: KeelSaver, face: str, name: str) -> None:
    decision, count, told = CUT_OFF[name]
    ran: list[int] = []
    with ToolCache(memory, default=ToolPolicy(unknown="ask"), store_arguments=True) as cache:
        graph = tool_graph(cache, [mortal(ran)], [calls(("pay", {"x": 1}, "a"))])
        with pytest.raises(Killed):
            await run(graph, face, hello(), thread("1"))
        await to_thread(cache.close)  # the ledger's writes for the interrupted call
        await run(graph, face, None, thread("1"))
        (asked,) = waiting(memory, thread("1"))
        (ask,) = asks_of(asked.value)
        assert (ask.action, ask.args, ask.allowed) == ("pay", {"x": 1}, ("reject", "answer"))
        result = await resume(graph, face, answered(memory, thread("1"), {"pay": decision}), thread("1"))
    assert (ASKED in result, ran) == (False, [1] * count)
    assert told in str(answers(result)["a"].content)
