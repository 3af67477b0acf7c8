"""The agent that `keel demo` kills: a LangGraph graph with a scripted model and tools that do real work.

It runs as a process of its own (`python -m langgraph_keel.cli.demo_agent`). With `--task` it starts the thread;
without, it resumes it, and the thread's id is all that it is given. Before and after every call of a model or a tool it
writes a line to `journal.jsonl` and to standard output, and so it does for every answer of the ledger of tool calls.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
TURNS = 6
"""Turns in which the model calls tools; in the one after them it says that it is done."""
JOURNAL, LEDGER, LETTER, REPORT = "journal.jsonl", "ledger.csv", "letter.md", "report.md"
_STALL_SECONDS = 60.0
_LEASE = 2.0
"""Seconds for which a dead process holds its claims, on systems that cannot tell that it is dead (not Linux)."""
# All tools but one can simply run again: they read, or write the same file anew. That one knows an attempt by its key.
POLICIES = {"book_credit": ToolPolicy(unknown="retry", idempotency_argument="key")}
OTHERS = ToolPolicy(unknown="retry")

NOTES = {
    "incident-0703": "Checkout outage, 3 July\nCustomers hit: Harbor Foods, Alder Clinic\nDowntime: 41 minutes",
    "incident-0711": "Slow search, 11 July\nCustomers hit: Alder Clinic\nDowntime: 0 minutes",
    "incident-0719": "Checkout outage, 19 July\nCustomers hit: Harbor Foods\nDowntime: 95 minutes",
    "incident-0728": "Export outage, 28 July\nCustomers hit: Juniper Press\nDowntime: 130 minutes",
    "policy-credits": "Credit policy: 2 percent of the monthly fee for every started half hour of downtime.\n"
    "A credit is booked once per customer and month. Booking it twice is our loss: nobody sends it back.",
    "account-harbor": "Account of Harbor Foods\nMonthly fee: 1850.00 EUR",
    "account-alder": "Account of Alder Clinic\nMonthly fee: 990.00 EUR",
}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


# -- the model -------------------------------------------------------------------------------------------------


def answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """Return the model's next message: tool calls made from what the messages say, or the final answer."""
    turn = sum(isinstance(message, AIMessage) for message in messages)
    results: dict[str, list[str]] = {}
    for message in messages:
        if isinstance(message, ToolMessage):
            results.setdefault(str(message.name), []).append(str(message.content))
    if turn >= TURNS:
        return AIMessage(f"Done: {results['book_credit'][-1]}; {results['write_report'][-1]}.")
    calls = [
        {"name": name, "args": args, "id": f"call-{turn + 1}-{place}", "type": "tool_call"}
        for place, (name, args) in enumerate(_calls_of(turn, results), 1)
    ]
    return AIMessage("", tool_calls=calls)


def _calls_of(turn: int, results: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the tool calls of a turn, from the results of those before it."""
    notes = results.get("read_note", ())
    if turn == 0:
        for query in (f"outage {CUSTOMER}", "credit policy percent", f"account {CUSTOMER} monthly"):
            yield "search_notes", {"query": query}
    elif turn == 1:
        for name in dict.fromkeys("\n".join(results["search_notes"]).split("\n")):
            yield "read_note", {"name": name}
    elif turn == 2:
        text = "\n".join(notes)
        half_hours = " + ".join(f"ceil({minutes} / 30)" for minutes in re.findall(r"Downtime: (\d+)", text))
        percent, fee = re.findall(r"(\d+) percent", text)[0], re.findall(r"fee: ([\d.]+)", text)[0]
        yield "calculate", {"expression": f"({half_hours}) * {percent} / 100 * {fee}"}
    elif turn == 3:
        amount = results["calculate"][-1]
        text = f"Dear {CUSTOMER},\n\nwe credit you {amount} EUR for the outages in July.\n"
        yield "book_credit", {"customer": CUSTOMER, "amount": amount}
        yield "write_letter", {"text": text}
    elif turn == 4:
        yield "check_ledger", {"customer": CUSTOMER}
    else:
        outages = [note.splitlines() for note in notes if "Downtime" in note]
        lines = [f"- {note[0]}: {note[2].lower()}" for note in outages]
        checked = f"In the ledger: {results['check_ledger'][-1]}."
        text = "\n".join([f"# Outage credit for {CUSTOMER}, July", "", *lines, "", checked, ""])
        yield "write_report", {"text": text}


class ScriptedModel(BaseChatModel):
    """A chat model that decides by script; each call counts as paid for the moment it begins."""

    journal: Any
    pace: float

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> ScriptedModel:
        """Return the model itself, since the script knows the tools."""
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


# -- the tools -------------------------------------------------------------------------------------------------


def search_notes(query: str) -> str:
    """Return the names of the notes that share a word with the query, best first."""
    words = {word for word in re.findall(r"\w+", query.lower()) if len(word) > 3}
    scores = {name: sum(word in text.lower() for word in words) for name, text in NOTES.items()}
    best = max(scores.values())
    return "\n".join(name for name, score in scores.items() if score == best and best)


def read_note(name: str) -> str:
    """Return a note."""
    return NOTES[name]


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


def bookings(folder: Path) -> list[list[str]]:
    """Return what the ledger holds: customer, amount and key of each credit."""
    path = folder / LEDGER
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def tools(folder: Path) -> list[BaseTool]:
    """Return the agent's tools; what they write goes to `folder`."""

    def book_credit(customer: str, amount: str, key: Annotated[str, InjectedToolArg] = "") -> str:
        """Book a credit: append a line to the ledger, which is money given away, unless one with this key is there."""
        if not key or key not in [known for _, _, known in bookings(folder)]:
            with open(folder / LEDGER, "a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow([customer, amount, key])
        return f"booked {amount} EUR for {customer}"

    def write_letter(text: str) -> str:
        """Write the letter to the customer."""
        (folder / LETTER).write_text(text, encoding="utf-8")
        return f"wrote {LETTER}, {len(text)} characters"

    def check_ledger(customer: str) -> str:
        """Return how often and how much was booked for a customer."""
        amounts = [float(amount) for name, amount, _ in bookings(folder) if name == customer]
        return f"{len(amounts)} booking, {sum(amounts):.2f} EUR"

    def write_report(text: str) -> str:
        """Write the report."""
        (folder / REPORT).write_text(text, encoding="utf-8")
        return f"wrote {REPORT}, {len(text)} characters"

    functions = (search_notes, read_note, calculate, book_credit, write_letter, check_ledger, write_report)
    return [StructuredTool.from_function(function) for function in functions]


# -- the agent -------------------------------------------------------------------------------------------------


class Journal:
    """An append-only file of what the agent did, one fact a line, which is also written to standard output."""

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

    def use_tool(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        call = request.tool_call
        turn = int(str(call["id"]).split("-")[1])
        facts = {"turn": turn, "call": call["id"], "name": call["name"], "args": call["args"]}
        is_last = call["id"] == request.state["messages"][-1].tool_calls[-1]["id"]

        def run(asked: ToolCallRequest) -> Any:
            journal.write("tool_began", **facts)
            time.sleep(_STALL_SECONDS if turn == stall_at and is_last else pace)
            result = execute(asked)
            journal.write("tool_ended", **facts, result=str(result.content))
            return result

        result = cache.wrap_tool_call(request, run)
        is_replayed = "keel_replay" in result.response_metadata
        journal.write("tool_replayed" if is_replayed else "tool_kept", **facts, result=str(result.content))
        return result

    builder = StateGraph(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", ToolNode(known, wrap_tool_call=use_tool, handle_tool_errors=False))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=cache.saver)


def main() -> None:
    """Start the thread, or resume it."""
    parser = argparse.ArgumentParser(description="The agent of `keel demo`.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--thread", required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--task", help="start the thread with this; without it, resume")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds that every call takes at least")
    parser.add_argument("--stall-at", type=int, help="the last tool call of this turn hangs")
    given = parser.parse_args()
    start: Any = None if given.task is None else {"messages": [HumanMessage(given.task)]}
    with (
        open_saver(given.url) as saver,
        ToolCache(saver, POLICIES, default=OTHERS, lease=_LEASE, store_arguments=True) as cache,
    ):
        graph = build(cache, given.dir, given.pace, given.stall_at)
        graph.invoke(start, {"configurable": {"thread_id": given.thread}}, durability="sync")


if __name__ == "__main__":
    main()
