"""The agent that `keel demo` kills: a LangGraph graph with a scripted model and tools that do real work.

It runs as a process of its own (`python -m langgraph_keel.cli.demo_agent`). With `--task` it starts the
thread; without, it resumes it, and then the thread's id is all it is told. Every model and tool call is a
line in `journal.jsonl` and on standard output, written before and after the call, and so is every answer
that the ledger of tool calls has stored, or has given instead of a tool.

The demo agent's chat model: it decides by script, from nothing but the messages that it is given.

The notes that the demo's agent searches: a month of a small software company, made up.

The demo agent's tools: they search, compute and write real files in the demo's directory.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import operator
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.prebuilt.tool_node import ToolCallRequest

from langgraph_keel import ToolCache, ToolPolicy, open_saver

CUSTOMER = "Harbor Foods"
TASK = (
    f"{CUSTOMER} asks for its outage credit for July. Find the outages, work out the credit by our policy, "
    "book it once and write to them, check the ledger and write the report."
)
Call = tuple[str, dict[str, str]]


def _results(messages: Sequence[BaseMessage], tool: str) -> list[str]:
    return [str(item.content) for item in messages if isinstance(item, ToolMessage) and item.name == tool]


def _find(_: Sequence[BaseMessage]) -> list[Call]:
    queries = (f"outage {CUSTOMER}", "credit policy percent", f"account {CUSTOMER} monthly")
    return [("search_notes", {"query": query}) for query in queries]


def _read(messages: Sequence[BaseMessage]) -> list[Call]:
    names = "\n".join(_results(messages, "search_notes")).split("\n")
    return [("read_note", {"name": name}) for name in dict.fromkeys(names)]


def _work_out(messages: Sequence[BaseMessage]) -> list[Call]:
    notes = "\n".join(_results(messages, "read_note"))
    half_hours = " + ".join(f"ceil({minutes} / 30)" for minutes in re.findall(r"Downtime: (\d+)", notes))
    percent, fee = re.findall(r"(\d+) percent", notes)[0], re.findall(r"fee: ([\d.]+)", notes)[0]
    return [("calculate", {"expression": f"({half_hours}) * {percent} / 100 * {fee}"})]


def _book(messages: Sequence[BaseMessage]) -> list[Call]:
    amount = _results(messages, "calculate")[-1]
    text = f"Dear {CUSTOMER},\n\nwe credit you {amount} EUR for the outages in July.\n"
    return [("book_credit", {"customer": CUSTOMER, "amount": amount}), ("write_letter", {"text": text})]


def _check(_: Sequence[BaseMessage]) -> list[Call]:
    return [("check_ledger", {"customer": CUSTOMER})]


def _report(messages: Sequence[BaseMessage]) -> list[Call]:
    notes = [note.splitlines() for note in _results(messages, "read_note") if "Downtime" in note]
    lines = [f"- {note[0]}: {note[2].lower()}" for note in notes]
    checked = _results(messages, "check_ledger")[-1]
    text = "\n".join([f"# Outage credit for {CUSTOMER}, July", "", *lines, "", f"In the ledger: {checked}.", ""])
    return [("write_report", {"text": text})]


SCRIPT = (_find, _read, _work_out, _book, _check, _report)
KILLABLE_TURNS = len(SCRIPT)


def answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """Return the model's next message: tool calls made from what the messages say, or the final answer."""
    turn = sum(isinstance(message, AIMessage) for message in messages)
    if turn >= len(SCRIPT):
        return AIMessage(f"Done: {_results(messages, 'book_credit')[-1]}; {_results(messages, 'write_report')[-1]}.")
    calls = SCRIPT[turn](messages)
    made = [
        {"name": name, "args": args, "id": f"call-{turn + 1}-{place}", "type": "tool_call"}
        for place, (name, args) in enumerate(calls, 1)
    ]
    return AIMessage("", tool_calls=made)


class ScriptedModel(BaseChatModel):
    """A chat model that decides by script; each call counts as paid for the moment it begins."""

    journal: Any
    pace: float

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> ScriptedModel:
        """Return the model itself: the script knows the tools."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        turn = 1 + sum(isinstance(message, AIMessage) for message in messages)
        self.journal.write("model_paid", turn=turn, read=len(messages))
        time.sleep(self.pace)
        message = answer(messages)
        asks = [call["name"] for call in message.tool_calls]
        self.journal.write("model_answered", turn=turn, asks=asks, text=message.text)
        return ChatResult(generations=[ChatGeneration(message=message)])


NOTES = {
    "incident-0703": """\
Checkout outage, 3 July
Customers hit: Harbor Foods, Alder Clinic
Downtime: 41 minutes
A schema migration held a lock on the orders table; writes queued until the pool was empty. Rolled back.""",
    "incident-0711": """\
Slow search, 11 July
Customers hit: Alder Clinic
Downtime: 0 minutes
Answers took up to nine seconds after an index rebuild. Nobody was locked out, so no credit is owed.""",
    "incident-0719": """\
Checkout outage, 19 July
Customers hit: Harbor Foods
Downtime: 95 minutes
A certificate on the payment gateway had run out on a Saturday. Renewed by hand, renewal job repaired.""",
    "incident-0728": """\
Export outage, 28 July
Customers hit: Alder Clinic, Juniper Press
Downtime: 130 minutes
The export workers were out of disk space. Old exports are now deleted after a week.""",
    "policy-credits": """\
Service credits
Credit policy: 2 percent of the monthly fee for every started half hour of downtime
A credit is booked once per customer and month. Booking it twice is our loss: nobody sends it back.""",
    "account-harbor": """\
Account of Harbor Foods
Monthly fee: 1850.00 EUR
Uses checkout in four shops. Contact: the operations desk.""",
    "account-alder": """\
Account of Alder Clinic
Monthly fee: 990.00 EUR
Uses search and exports for appointment letters.""",
    "runbook-oncall": """\
On call
Page the second line after ten minutes. Write the incident note before going back to bed.""",
}


LEDGER, LETTER, REPORT = "ledger.csv", "letter.md", "report.md"


def search_notes(query: str) -> str:
    """Return the names of the notes that share a word with the query, best first."""
    words = {word for word in re.findall(r"\w+", query.lower()) if len(word) > 3}
    scores = {name: sum(word in text.lower() for word in words) for name, text in NOTES.items()}
    best = max(scores.values())
    return "\n".join(name for name, score in scores.items() if score == best and best)


def read_note(name: str) -> str:
    """Return a note."""
    return NOTES[name]


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(expression: str) -> str:
    """Return the value of an arithmetic expression with `+`, `*`, `/` and `ceil`."""
    return f"{_value(ast.parse(expression, mode='eval').body):.2f}"


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp):
        return float(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ceil":
        return ceil(_value(node.args[0]))
    raise ValueError(f"not arithmetic: {ast.dump(node)}")


def ledger(folder: Path, customer: str) -> list[str]:
    """Return the amounts booked for a customer."""
    return [amount for name, amount, _ in _bookings(folder) if name == customer]


def _bookings(folder: Path) -> list[list[str]]:
    path = folder / LEDGER
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


class Desk:
    """The tools that leave marks: a ledger, a letter and a report in a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def book_credit(self, customer: str, amount: str, key: Annotated[str, InjectedToolArg] = "") -> str:
        """Book a credit: append a line to the ledger, which is money given away, unless one with this key is there."""
        if not key or key not in [known for _, _, known in _bookings(self._folder)]:
            with open(self._folder / LEDGER, "a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow([customer, amount, key])
        return f"booked {amount} EUR for {customer}"

    def write_letter(self, text: str) -> str:
        """Write the letter to the customer."""
        (self._folder / LETTER).write_text(text, encoding="utf-8")
        return f"wrote {LETTER}, {len(text)} characters"

    def check_ledger(self, customer: str) -> str:
        """Return how often and how much was booked for a customer."""
        booked = ledger(self._folder, customer)
        return f"{len(booked)} booking, {sum(map(float, booked)):.2f} EUR"

    def write_report(self, text: str) -> str:
        """Write the report."""
        (self._folder / REPORT).write_text(text, encoding="utf-8")
        return f"wrote {REPORT}, {len(text)} characters"


def tools(folder: Path) -> list[BaseTool]:
    """Return the agent's tools, which leave their marks in `folder`."""
    desk = Desk(folder)
    reading = (search_notes, read_note, calculate, desk.check_ledger)
    writing = (desk.book_credit, desk.write_letter, desk.write_report)
    return [StructuredTool.from_function(function) for function in (*reading, *writing)]


JOURNAL = "journal.jsonl"
_STALL_SECONDS = 60.0
_LEASE = 2.0
"""Seconds for which the dead hold a claim where it cannot be seen that they are dead (other systems than Linux)."""
# Run again, the others read, or write the same file anew; this one acts, and knows an attempt by its key.
POLICIES = {"book_credit": ToolPolicy(unknown="retry", idempotency_argument="key")}
OTHERS = ToolPolicy(unknown="retry")


class Journal:
    """An append-only file of what the agent did: a line a fact, written at once, also to standard output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def write(self, event: str, **facts: Any) -> None:
        """Append one fact."""
        record = {"event": event, "pid": os.getpid(), "at": time.time(), **facts}
        line = json.dumps(record) + "\n"
        with self._lock, open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())
            print(line, end="", flush=True)


def build(cache: ToolCache, folder: Path, pace: float, stall_at: int | None) -> CompiledStateGraph[MessagesState]:
    """Return the agent: a model and its tools in a loop."""
    journal = Journal(folder / JOURNAL)
    known = tools(folder)
    model = ScriptedModel(journal=journal, pace=pace).bind_tools(known)

    def think(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    def at_work(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        facts = _facts(request)
        journal.write("tool_began", **facts)
        time.sleep(_STALL_SECONDS if facts["turn"] == stall_at and _is_last(request) else pace)
        result = execute(request)
        journal.write("tool_ended", **facts, result=str(result.content))
        return result

    def once(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        result = cache.wrap_tool_call(request, lambda asked: at_work(asked, execute))
        event = "tool_replayed" if "keel_replay" in result.response_metadata else "tool_kept"
        journal.write(event, **_facts(request), result=str(result.content))
        return result

    builder = StateGraph(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", ToolNode(known, wrap_tool_call=once, handle_tool_errors=False))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=cache.saver)


def _facts(request: ToolCallRequest) -> dict[str, Any]:
    call = request.tool_call
    turn = int(str(call["id"]).split("-")[1])
    return {"turn": turn, "call": call["id"], "name": call["name"], "args": call["args"]}


def _is_last(request: ToolCallRequest) -> bool:
    calls = request.state["messages"][-1].tool_calls
    return bool(calls[-1]["id"] == request.tool_call["id"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The agent of `keel demo`.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--thread", required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--task", help="start the thread with this; without it, resume")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds that every call takes at least")
    parser.add_argument("--stall-at", type=int, help="the last tool call of this turn hangs")
    return parser.parse_args()


def main() -> None:
    """Start the thread, or resume it."""
    given = _arguments()
    start: Any = None if given.task is None else {"messages": [HumanMessage(given.task)]}
    with (
        open_saver(given.url) as saver,
        ToolCache(saver, POLICIES, default=OTHERS, lease=_LEASE, store_arguments=True) as cache,
    ):
        graph = build(cache, given.dir, given.pace, given.stall_at)
        graph.invoke(start, {"configurable": {"thread_id": given.thread}}, durability="sync")


if __name__ == "__main__":
    main()
