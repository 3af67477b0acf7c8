"""`keel demo`, and its agent, which runs as `python -m langgraph_keel.cli.demo`.

The claims of the demo are computed from the agent's journal, its files and the store, never from the script.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Annotated, Any

import typer
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolArg, StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.prebuilt.tool_node import ToolCallRequest
from rich.console import Console
from rich.text import Text

from langgraph_keel import ToolCache, ToolPolicy, open_saver, request_approval
from langgraph_keel.cli.options import AsJson, open_to_read
from langgraph_keel.cli.output import console, print_json, without_password
from langgraph_keel.display.text import one_line
from langgraph_keel.errors import KeelError, NotFound
from langgraph_keel.history.moment import Moment

Event = dict[str, Any]
CUSTOMER = "Harbor Foods"
TASK = f"{CUSTOMER} asks for its outage credit for July. Work it out, book it once, and write to them."
JOURNAL, CREDITS, LETTER, SENT = "journal.jsonl", "credits.csv", "letter.md", "sent.md"

_HANGS = "write_letter"
_STALL_SECONDS = 60
_NO_TRACING = {"LANGSMITH_TRACING_V2": "false", "LANGCHAIN_TRACING": "false"}
_FOLDER = "Put the demo's files here instead of a temporary directory."
Url = Annotated[str | None, typer.Option(metavar="URL", help="Use this store instead of a temporary database.")]
Dir = Annotated[Path | None, typer.Option("--dir", metavar="DIR", help=_FOLDER)]
Pace = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, max=5, help="Minimum duration of every call, in seconds.")
]


class DemoError(KeelError):
    """The demo could not be completed."""

    code = "demo"


# -- the agent, in its own process -------------------------------------------------------------------------------------


def answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """Return the next message of the scripted model, made from the messages alone."""
    results = {str(each.name): str(each.content) for each in messages if isinstance(each, ToolMessage)}
    turn = 1 + sum(isinstance(each, AIMessage) for each in messages)
    if turn == 1:
        calls: dict[str, dict[str, Any]] = {"find_outages": {"customer": CUSTOMER}}
    elif turn == 2:
        minutes = [int(word) for word in results["find_outages"].split() if word.isdigit()]
        amount = f"{sum(-(-each // 30) for each in minutes) * 0.02 * 1850:.2f}"  # 2 % of the fee for each half hour
        text = f"Dear {CUSTOMER},\n\nwe credit you {amount} EUR for the outages in July.\n"
        calls = {"book_credit": {"customer": CUSTOMER, "amount": amount}, "write_letter": {"text": text}}
    elif turn == 3:
        calls = {"send_letter": {"to": CUSTOMER}}
    else:
        return AIMessage(f"Done: {results['book_credit']}; {results['send_letter']}.")
    return AIMessage("", tool_calls=[{"name": name, "args": calls[name], "id": f"{name}-{turn}"} for name in calls])


def tools(folder: Path) -> list[StructuredTool]:
    """Return the agent's tools, which write to `folder`."""

    def find_outages(customer: str) -> str:
        """Return the outages of a customer in July."""
        return "outages of 41 and of 95 minutes"

    def book_credit(customer: str, amount: str, key: Annotated[str, InjectedToolArg] = "") -> str:
        """Book a credit, unless one with this key is booked already."""
        with open(folder / CREDITS, "a+", encoding="utf-8") as file:
            file.seek(0)
            if not key or key not in file.read():
                file.write(f"{customer},{amount},{key}\n")
        return f"booked {amount} EUR for {customer}"

    def write_letter(text: str) -> str:
        """Write the letter to the customer."""
        (folder / LETTER).write_text(text, encoding="utf-8")
        return f"wrote {LETTER}, {len(text)} characters"

    def send_letter(to: str) -> str:
        """Send the letter, if a person approves."""
        decision = request_approval("send_letter", {"to": to}, facts={"letter": (folder / LETTER).read_text("utf-8")})
        if decision.approved:
            with open(folder / SENT, "a", encoding="utf-8") as file:
                file.write(f"to {to}, approved by {decision.by}\n")
        return f"sent to {to}, approved by {decision.by}" if decision.approved else f"not sent: {decision.reason}"

    return [StructuredTool.from_function(each) for each in (find_outages, book_credit, write_letter, send_letter)]


def build(cache: ToolCache, folder: Path, pace: float, hangs: bool) -> CompiledStateGraph[MessagesState]:
    """Return the agent, a loop of model and tools, which writes a journal."""

    def note(event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "pid": os.getpid(), **facts}) + "\n"
        with open(folder / JOURNAL, "ab", buffering=0) as file:
            file.write(line.encode())
        print(line, end="", flush=True)

    def think(state: MessagesState) -> dict[str, list[BaseMessage]]:
        turn = 1 + sum(isinstance(each, AIMessage) for each in state["messages"])
        note("model_paid", turn=turn, read=len(state["messages"]))
        time.sleep(pace)
        message = answer(state["messages"])
        note("model_answered", turn=turn, text=message.text, asks=[call["name"] for call in message.tool_calls])
        return {"messages": [message]}

    def use_tool(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        name, args = request.tool_call["name"], request.tool_call["args"]

        def act(asked: ToolCallRequest) -> Any:
            note("tool_began", name=name, args=args)
            time.sleep(_STALL_SECONDS if hangs and name == _HANGS else pace)
            result = execute(asked)
            note("tool_ended", name=name, args=args, result=str(result.content))
            return result

        result = cache.wrap_tool_call(request, act)
        is_replayed = "keel_replay" in result.response_metadata
        note("tool_replayed" if is_replayed else "tool_kept", name=name, args=args, result=str(result.content))
        return result

    builder = StateGraph(MessagesState).add_node("model", think)
    builder.add_node("tools", ToolNode(tools(folder), wrap_tool_call=use_tool, handle_tool_errors=False))
    builder.add_edge(START, "model").add_edge("tools", "model").add_conditional_edges("model", tools_condition)
    return builder.compile(checkpointer=cache.saver)


def work(url: str, thread: str, folder: str, pace: str, due: str) -> None:
    """Run the agent; `due` is `start`, `resume` or `decided`."""
    signal.alarm(int(60 + 30 * float(pace)))  # the agent does not outlive the demo
    # All tools can safely run again: they only read, rewrite the same file, or detect a repetition by its key.
    booking, others = ToolPolicy(unknown="retry", idempotency_argument="key"), ToolPolicy(unknown="retry")
    with open_saver(url) as saver, ToolCache(saver, {"book_credit": booking}, default=others, lease=2.0) as cache:
        given: Any = {"messages": [HumanMessage(TASK)]} if due == "start" else None
        if due == "decided":
            given = saver.approvals.resume(thread)
        graph = build(cache, Path(folder), float(pace), hangs=due == "start")
        graph.invoke(given, {"configurable": {"thread_id": thread}}, durability="sync")


# -- the demo ----------------------------------------------------------------------------------------------------------


def demo(url: Url = None, directory: Dir = None, pace: Pace = 0.25, json: AsJson = False) -> None:
    """Kill an agent mid-run and watch another process finish it.

    It needs no API key and no network.

    A LangGraph agent with a scripted model works in a child process. One of two parallel tool calls hangs, and the
    process is killed with SIGKILL. A second process resumes the thread by its id. The call that had finished does not
    run again, because its result was stored. The agent then asks a person and its process ends; the demo approves, and
    a third process finishes. The demo checks the agent's journal and the store for repeated calls. The exit status is 1
    if a check fails.

    Example: `keel demo --dir ./keel-demo`
    """
    began, out = time.monotonic(), console(quiet=json)
    stage = _set_stage(url, directory, pace)
    out.print(Text(f"task   {TASK}\nstore  {without_password(stage.url)}, thread {stage.thread!r}"), soft_wrap=True)
    first = _run_agent(stage, out, "start", "graph.invoke(task)")
    kept = take_snapshot(stage)
    out.print(Text(f"  the store holds {len(kept.messages)} messages; next: {', '.join(kept.moments[-1].next)}", "dim"))
    second = _run_agent(stage, out, "resume", "graph.invoke(None, config)")
    with open_saver(stage.url) as saver:
        (request,) = saver.approvals.pending(stage.thread)
        saver.approvals.approve(request.id, by="maria")
    out.print(Text(f"  ? {request.action}({CUSTOMER!r}) waits for a person; maria approves", "yellow"))
    third = _run_agent(stage, out, "decided", "graph.invoke(saver.approvals.resume(thread_id), config)")
    pids = (first.pid, second.pid, third.pid)
    proven = claims(gather(stage, pids, first.returncode, kept))
    _show_proof(out, stage, proven, time.monotonic() - began)
    if json:
        where = {"url": stage.url, "thread_id": stage.thread, "dir": str(stage.folder), "pids": list(pids)}
        print_json(where | {"claims": [{"claim": claim, "holds": holds} for claim, holds in proven]})
    raise typer.Exit(not all(holds for _, holds in proven))


@dataclass(frozen=True, slots=True)
class Stage:
    """The setting: a store, a thread, a directory, and the duration of a call."""

    url: str
    thread: str
    folder: Path
    pace: float


def _set_stage(url: str | None, directory: Path | None, pace: float) -> Stage:
    folder = directory or Path(tempfile.mkdtemp(prefix="keel-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / JOURNAL).exists():
        raise DemoError(f"{folder} contains the journal of an earlier demo: choose another --dir")
    where = url or f"sqlite:///{folder / 'agent.db'}"
    try:
        with open_to_read(where) as saver:
            known = {info.thread_id for info in saver.threads()}
    except NotFound:
        known = set()
    names = ("demo", *(f"demo-{number}" for number in range(2, len(known) + 3)))
    return Stage(where, next(name for name in names if name not in known), folder, pace)


def _run_agent(stage: Stage, out: Console, due: str, call: str) -> Popen[str]:
    """Run an agent process to its end, or kill it when the hanging call is left."""
    command = [sys.executable, "-m", "langgraph_keel.cli.demo", stage.url, stage.thread, str(stage.folder)]
    errors, env, seen = stage.folder / "stderr.txt", os.environ | _NO_TRACING, set[tuple[str, str]]()
    command += [str(stage.pace), due]
    with open(errors, "wb") as log, Popen(command, stdout=PIPE, stderr=log, text=True, env=env) as process:
        out.print(Text.assemble("\n", (f"process {process.pid}", "bold"), (f"  {call}", "dim")), soft_wrap=True)
        for event in map(json.loads, process.stdout or ()):
            args = one_line(", ".join(map(repr, event.get("args", {}).values())), 40)
            what = Text(f"  {event['name']}({args})" if "name" in event else f"model call {event['turn']}", "cyan")
            result = None
            if event["event"] == "model_answered":
                result = f"asks for {', '.join(event['asks'])}" if event["asks"] else event["text"]
            elif event["event"] in ("tool_ended", "tool_replayed"):
                result = ("from the ledger: " if event["event"] == "tool_replayed" else "") + event["result"]
            if result is not None:
                out.print(Text.assemble(("  ✓ ", "green"), what, f" → {result}"), soft_wrap=True)
            seen.add((event["event"], event.get("name", "")))
            if due == "start" and {("tool_began", _HANGS), ("tool_kept", "book_credit")} <= seen:
                process.kill()
    status = process.returncode
    if status == -signal.SIGKILL:
        out.print(Text(f"  ✗   {_HANGS}(...) hangs", "red"))
        out.print(Text(f"SIGKILL · process {process.pid} is gone, exit status {status}", "bold red"))
    elif status:
        last = (errors.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it wrote no error"])[-1]
        raise DemoError(f"agent process {process.pid} ended with {status}: {last}")
    return process


# -- the proof ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stored thread: its checkpoints, oldest first, and its latest messages."""

    moments: Sequence[Moment]
    messages: Sequence[BaseMessage]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of the claims: journal by process, stored states, and files."""

    events: Mapping[int, Sequence[Event]]
    status: int
    kept: Snapshot
    final: Snapshot
    booked: Sequence[str]
    sent: Sequence[str]


def take_snapshot(stage: Stage) -> Snapshot:
    """Read the thread as any other process would."""
    with open_to_read(stage.url) as saver:
        moments = list(saver.timeline(stage.thread)[:])
        if not moments:
            raise NotFound(f"the store has no thread {stage.thread!r}: can two processes share this store?")
        return Snapshot(moments, moments[-1].values.get("messages", []))


def gather(stage: Stage, pids: Sequence[int], status: int, kept: Snapshot) -> Evidence:
    """Read the journal, the files and the store."""
    journal, booked, sent = ((stage.folder / name).read_text("utf-8").splitlines() for name in (JOURNAL, CREDITS, SENT))
    events = {pid: [event for event in map(json.loads, journal) if event["pid"] == pid] for pid in pids}
    return Evidence(events, status, kept, take_snapshot(stage), booked, sent)


def claims(found: Evidence) -> list[tuple[str, bool]]:
    """Return the claims of the demo, and for each whether it holds."""
    first, second, third = found.events.values()

    def names(events: Sequence[Event], what: str) -> list[str]:
        return [str(event.get("name") or event["turn"]) for event in events if event["event"] == what]

    paid, more = names(first, "model_paid"), names([*second, *third], "model_paid")
    ended, cut = names(first, "tool_ended"), {*names(first, "tool_began")} - {*names(first, "tool_ended")}
    began, replayed = names(second, "tool_began"), names(second, "tool_replayed")
    kept, final, count = found.kept, found.final, len(found.kept.messages)
    again = Counter([*ended, *names([*second, *third], "tool_ended")])
    read = next((event["read"] for event in second if event["event"] == "model_paid"), 0)
    is_chain = all(newer.parent == older.id for older, newer in pairwise(final.moments))
    return [
        (f"The first process was killed at work: exit status {found.status}.", found.status == -signal.SIGKILL),
        (
            f"The second one was given the thread id, and continued with all {count} messages.",
            0 < count == read - len(cut) - len(replayed) and final.messages[:count] == kept.messages,
        ),
        (
            f"No model call was paid twice: {len(paid)} before the kill, {len(more)} after.",
            bool(paid) and [*paid, *more] == [str(turn + 1) for turn in range(len([*paid, *more]))],
        ),
        (
            f"No finished tool call ran again: {', '.join(replayed)} was answered from the ledger.",
            replayed == ["book_credit"] and set(again.values()) == {1} and not {*ended} & {*began},
        ),
        (f"Only the interrupted call ran again: {', '.join(cut)}.", {_HANGS} == cut and _HANGS in began),
        ("The credit was booked once.", len(found.booked) == 1),
        (
            "The letter was sent once, after a person had approved.",
            found.sent == [f"to {CUSTOMER}, approved by maria"] and "send_letter" in names(third, "tool_ended"),
        ),
        (
            f"The history is one chain of {len(final.moments)} checkpoints, and nothing is left to do.",
            is_chain and list(final.moments[: len(kept.moments)]) == list(kept.moments) and not final.moments[-1].next,
        ),
    ]


def _show_proof(out: Console, stage: Stage, proven: Sequence[tuple[str, bool]], seconds: float) -> None:
    failed = sum(not holds for _, holds in proven)
    out.print(Text(f"\n{failed} of {len(proven)} claims do NOT hold" if failed else "\nWhat it proved", "bold"))
    for claim, holds in proven:
        out.print(Text.assemble(("  ✓ ", "green") if holds else ("  ✗ ", "bold red"), claim))
    out.print(Text(f"\n{seconds:.1f} s. Letter, credits and journal: {stage.folder}", "dim"), soft_wrap=True)
    look = [f"keel {name} {stage.thread}" for name in ("timeline", "show", "tools")]
    setting = f"export KEEL_URL={shlex.quote(without_password(stage.url))}"
    out.print(Text("\n  ".join(["Look around:", setting, *look, "keel audit show"]), "cyan"), soft_wrap=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
