"""`keel demo`: an agent process is killed in the middle of its work, and another process finishes it.

What the demo claims is computed from the agent's journal, the files that it wrote and the store, never from the script.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from langchain_core.messages import BaseMessage
from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.status import Status
from rich.table import Table
from rich.text import Text

from langgraph_keel.cli.demo_agent import CUSTOMER, JOURNAL, LEDGER, REPORT, TASK, TURNS, bookings
from langgraph_keel.cli.history import history_table
from langgraph_keel.cli.options import AsJson, open_to_read
from langgraph_keel.cli.output import console, print_json, table_of, without_password
from langgraph_keel.display.text import one_line
from langgraph_keel.errors import KeelError, NotFound
from langgraph_keel.history.moment import Moment
from langgraph_keel.tools.ledger import KeptCall

Event = dict[str, Any]
_SUSPENSE = 0.8
_PATIENCE = 60.0
_NO_TRACING = dict.fromkeys(
    ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2"), "false"
)
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Play in this store instead of a temporary database."),
]
Dir = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Put the demo's files here instead of a temporary directory."),
]
KillAt = Annotated[
    int,
    typer.Option(
        "--kill-at", metavar="N", min=2, max=TURNS, help="Kill while the last tool call of this turn is at work."
    ),
]
Pace = Annotated[
    float, typer.Option("--pace", metavar="SECONDS", min=0.0, max=5.0, help="Seconds that every call takes at least.")
]


class DemoError(KeelError):
    """The demo could not be played to its end."""

    code = "demo"


def demo(url: Url = None, directory: Dir = None, kill_at: KillAt = 4, pace: Pace = 0.25, json: AsJson = False) -> None:
    """Kill an agent in the middle of its work and see another process finish it. No key, no network.

    A LangGraph agent with seven tools and a scripted model works in a child process. One of its tools is made
    to hang, and the process is killed with SIGKILL. A new process resumes the thread by its id; tool calls that
    had finished beside the hanging one are answered from the ledger of tool calls. The demo then counts, from the
    agent's journal and the store, what was restored and what ran twice; it exits with 1 if a claim does not hold.

    Example: `keel demo --dir ./keel-demo`
    """
    began = time.monotonic()
    stage = _set_stage(url, directory, pace)
    screen = Screen(console(quiet=json))
    screen.show_opening(stage)
    with _start_agent(stage, screen, "graph.invoke(task)", "--task", TASK, "--stall-at", str(kill_at)) as first:
        status = _kill_at_work(first, stage, screen, kill_at)
    kept = take_snapshot(stage)
    screen.show_kept(kept)
    call = f'graph.invoke(None, {{"configurable": {{"thread_id": "{stage.thread}"}}}})'
    with _start_agent(stage, screen, call) as second:
        for event in _events(second):
            screen.show_step(event)
        if second.wait() != 0:
            raise _failure(second, stage)
    found = gather(stage, kept, take_snapshot(stage), first.pid, status)
    proven = claims(found)
    seconds = time.monotonic() - began
    screen.show_proof(stage, found, proven, seconds)
    if json:
        pids = first.pid, second.pid
        print_json(_result(stage, found, proven, pids) | {"seconds": round(seconds, 2)})
    if not all(claim.holds for claim in proven):
        raise typer.Exit(1)


# -- the stage and the two processes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the demo plays: a store, a thread in it, a directory, and how long a call takes."""

    url: str
    thread: str
    folder: Path
    pace: float


def _set_stage(url: str | None, directory: Path | None, pace: float) -> Stage:
    folder = directory.absolute() if directory else Path(tempfile.mkdtemp(prefix="keel-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    where = url or f"sqlite:///{folder / 'agent.db'}"
    try:
        with open_to_read(where) as saver:
            known = {info.thread_id for info in saver.threads()}
    except NotFound:
        known = set()
    names = ("demo", *(f"demo-{number}" for number in range(2, len(known) + 3)))
    if (folder / JOURNAL).exists():
        raise DemoError(f"{folder} holds the journal of an earlier demo: choose another --dir")
    return Stage(where, next(name for name in names if name not in known), folder, pace)


@contextmanager
def _start_agent(stage: Stage, screen: Screen, call: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start an agent process; it does not outlive the block, and not the time that the demo can take."""
    command = [sys.executable, "-m", "langgraph_keel.cli.demo_agent", "--url", stage.url, "--thread", stage.thread]
    command += ["--dir", str(stage.folder), "--pace", str(stage.pace), *arguments]
    with (
        open(stage.folder / "stderr.txt", "w", encoding="utf-8") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | _NO_TRACING
        ) as process,
    ):
        watchdog = threading.Timer(_PATIENCE + 30 * stage.pace, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            screen.show_process(process.pid, call)
            yield process
        finally:
            process.kill()
            watchdog.cancel()
            screen.rest()


def _events(process: subprocess.Popen[str]) -> Iterator[Event]:
    """Yield what a process reports, until it ends."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def _failure(process: subprocess.Popen[str], stage: Stage) -> DemoError:
    lines = (stage.folder / "stderr.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else "it wrote no error"
    return DemoError(f"agent process {process.pid} ended with {process.returncode}: {last}")


def _kill_at_work(process: subprocess.Popen[str], stage: Stage, screen: Screen, turn: int) -> int:
    """Kill a process as soon as it hangs in a turn; return its exit status."""
    events, seen = _events(process), list[Event]()
    for event in events:
        screen.show_step(event)
        seen.append(event)
        if hangs(seen, turn):
            break
    else:
        process.wait()
        raise _failure(process, stage)
    time.sleep(_SUSPENSE)
    process.kill()
    status = process.wait()
    for event in events:
        screen.show_step(event)
    screen.show_kill(process.pid, status)
    return status


def hangs(seen: Sequence[Event], turn: int) -> bool:
    """Return whether only the call that hangs is left of a turn: the ledger has the results of all others."""
    events = [event for event in seen if event["turn"] == turn]
    asked = sum(len(event["asks"]) for event in events if event["event"] == "model_answered")
    count = Counter(event["event"] for event in events)
    return 0 < count["tool_began"] == asked == count["tool_kept"] + 1


# -- the evidence ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the store holds of the thread; the newest moment comes first."""

    moments: Sequence[Moment]
    messages: Sequence[BaseMessage]
    calls: Sequence[KeptCall]

    @property
    def hits(self) -> dict[str, int]:
        """The tool calls that were answered from the ledger, by id, and how often."""
        return {call.tool_call_id: call.hits for call in self.calls if call.hits}

    @property
    def hit_rate(self) -> float:
        """Answers from the ledger among all answers, 0 to 1, as `keel cache stats` counts them."""
        hits = sum(self.hits.values())
        return hits / (hits + len(self.calls)) if hits else 0.0


def take_snapshot(stage: Stage) -> Snapshot:
    """Read the thread as any other process would."""
    with open_to_read(stage.url) as saver:
        moments = list(saver.timeline(stage.thread)[:])[::-1]
        if not moments:
            raise NotFound(f"the store kept nothing of thread {stage.thread!r}: can two processes share it?")
        return Snapshot(moments, moments[0].values.get("messages", []), list(saver.tools.calls(stage.thread)))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the claims are computed from.

    Attributes:
        before: What the killed process wrote in the journal.
        after: What the process that resumed wrote there.
        kept: The store right after the kill.
        final: The store at the end.
        booked: The amounts in the ledger.
        report: The text of the report; empty if there is none.
        status: The exit status of the killed process.
    """

    before: Sequence[Event]
    after: Sequence[Event]
    kept: Snapshot
    final: Snapshot
    booked: Sequence[str]
    report: str
    status: int

    @property
    def paid(self) -> tuple[list[int], list[int]]:
        """The turns of the model calls that were begun, hence paid, before the kill and after it."""
        before, after = (
            [event["turn"] for event in events if event["event"] == "model_paid"]
            for events in (self.before, self.after)
        )
        return before, after

    @property
    def finished(self) -> dict[str, str]:
        """The tool calls that had ended before the kill: ids and names of tools."""
        return calls_in(self.before, "ended")

    @property
    def cut(self) -> dict[str, str]:
        """The tool calls that were at work when the kill came."""
        return {call: name for call, name in calls_in(self.before, "began").items() if call not in self.finished}

    @property
    def interrupted(self) -> dict[str, str]:
        """The tool calls that had ended before the kill, in the step that had not."""
        turns = {event["turn"] for event in self.before if event.get("call") in self.cut}
        return calls_in((event for event in self.before if event["turn"] in turns), "ended")

    @property
    def replayed(self) -> dict[str, str]:
        """The tool calls that were answered from the ledger after the kill."""
        return calls_in(self.after, "replayed")

    @property
    def repeated(self) -> dict[str, str]:
        """The tool calls that began more than once."""
        both = [*self.before, *self.after]
        times = Counter(event["call"] for event in both if event["event"] == "tool_began")
        return {call: name for call, name in calls_in(both, "began").items() if times[call] > 1}


def calls_in(events: Iterable[Event], what: str) -> dict[str, str]:
    """Return the tool calls that `began`, `ended` or were `replayed`: ids and names of tools."""
    return {event["call"]: event["name"] for event in events if event["event"] == f"tool_{what}"}


def gather(stage: Stage, kept: Snapshot, final: Snapshot, killed: int, status: int) -> Evidence:
    """Read the journal and the files; `killed` is the id of the process that was killed."""
    events = [json.loads(line) for line in (stage.folder / JOURNAL).read_text(encoding="utf-8").splitlines()]
    report = stage.folder / REPORT
    return Evidence(
        before=[event for event in events if event["pid"] == killed],
        after=[event for event in events if event["pid"] != killed],
        kept=kept,
        final=final,
        booked=[amount for customer, amount, _ in bookings(stage.folder) if customer == CUSTOMER],
        report=report.read_text(encoding="utf-8") if report.exists() else "",
        status=status,
    )


# -- the claims ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence, and whether it is true."""

    text: str
    holds: bool


def claims(found: Evidence) -> list[Claim]:
    """Return what the demo set out to show, each sentence with its truth."""
    return [*_claims_about_messages(found), *_claims_about_tools(found), *_claims_about_the_end(found)]


def _claims_about_messages(found: Evidence) -> Iterator[Claim]:
    was_killed = found.status != 0 if os.name == "nt" else found.status == -signal.SIGKILL
    yield Claim(f"The first process was killed at work: exit status {found.status}.", was_killed)
    count = len(found.kept.messages)
    is_same = count > 0 and found.final.messages[:count] == found.kept.messages
    read = next((event["read"] for event in found.after if event["event"] == "model_paid"), 0)
    yield Claim(
        "The second process was given the thread id and no task; "
        f"it went on from #{found.kept.moments[0].position} with all {count} messages.",
        is_same and read == count + len(found.cut) + len(found.replayed),
    )
    before, after = found.paid
    yield Claim(
        f"No model call was paid twice: {len(before)} before the kill, {len(after)} after.",
        bool(before) and sorted(before + after) == list(range(1, len(before + after) + 1)),
    )


def _claims_about_tools(found: Evidence) -> Iterator[Claim]:
    again = found.finished.keys() & calls_in(found.after, "began").keys()
    yield Claim(
        f"No finished tool call ran again: {len(found.finished)} were finished, {len(again)} ran twice.",
        not again and bool(found.finished),
    )
    replayed, once = found.replayed, dict.fromkeys(found.replayed, 1)
    calls = "call of the interrupted step was" if len(replayed) == 1 else "calls of the interrupted step were"
    which = f": {tally(replayed.values())}" if found.interrupted else "; it had none"
    yield Claim(
        f"{len(replayed)} finished tool {calls} answered from the ledger, not run again{which}.",
        replayed == found.interrupted and found.final.hits == once and not replayed.keys() & found.repeated.keys(),
    )
    ended = Counter(event["call"] for event in [*found.before, *found.after] if event["event"] == "tool_ended")
    yield Claim(
        f"Only what was cut in the middle began again: {tally(found.cut.values())}.",
        found.repeated == found.cut and bool(found.cut) and set(ended.values()) == {1},
    )
    times = {0: "not there", 1: "there once"}.get(len(found.booked), f"there {len(found.booked)} times")
    amount = found.booked[0] if found.booked else "0.00"
    yield Claim(f"The credit of {amount} EUR is in {LEDGER}: {times}.", len(found.booked) == 1)


def _claims_about_the_end(found: Evidence) -> Iterator[Claim]:
    kept, final = found.kept.moments, found.final.moments
    is_chain = all(newer.parent == older.id for newer, older in pairwise(final))
    yield Claim(
        f"The history is one chain of {len(final)} checkpoints; the {len(kept)} from before the kill are all in it.",
        is_chain and len(final) > len(kept) and final[-len(kept) :] == kept,
    )
    is_named = bool(found.booked) and f"{found.booked[0]} EUR" in found.report
    yield Claim(
        "The task is finished: nothing runs next, and the report names the booked amount.",
        is_named and not final[0].next,
    )


def tally(names: Iterable[str]) -> str:
    """Return tool names with how often each occurs."""
    counts = Counter(names)
    return ", ".join(name if times == 1 else f"{name} ×{times}" for name, times in counts.items()) or "nothing"


def _conclusion(found: Evidence) -> str:
    """Return the paragraph that says what all this means, if every claim holds."""
    paid, finished = len(found.paid[0]), found.finished
    twice = " and booked the credit a second time" if "book_credit" in finished.values() else ""
    alone = tally(found.replayed.values())
    again = f", and without the ledger of tool calls {alone} would have run again" if found.replayed else ""
    return (
        "A process died without warning, and nothing that was paid for was lost or repeated. The price of the crash "
        f"was {tally(found.cut.values())}, which began again. Starting over would have paid {paid} model calls "
        f"again{twice}{again}."
    )


def _result(stage: Stage, found: Evidence, proven: Sequence[Claim], pids: tuple[int, int]) -> dict[str, Any]:
    before, after = found.paid
    kept, final = found.kept, found.final
    return {
        "url": stage.url,
        "thread_id": stage.thread,
        "dir": str(stage.folder),
        "killed": {"pid": pids[0], "returncode": found.status, "at_work": list(found.cut.values())},
        "resumed": {"pid": pids[1], "step": kept.moments[0].step, "messages": len(kept.messages)},
        "model_calls": {"before": len(before), "after": len(after), "twice": len({*before} & {*after})},
        "tool_calls": {
            "finished_before": len(found.finished),
            "finished_after": len(calls_in(found.after, "ended")),
            "cut": len(found.cut),
            "began_twice": sorted(found.repeated.values()),
            "from_ledger": list(found.replayed.values()),
        },
        "ledger": {
            "calls": len(final.calls),
            "hits": sum(final.hits.values()),
            "hit_rate": round(final.hit_rate, 4),
        },
        "booked": found.booked,
        "checkpoints": {"kept": len(kept.moments), "final": len(final.moments)},
        "claims": [{"claim": claim.text, "holds": claim.holds} for claim in proven],
        "proved": all(claim.holds for claim in proven),
    }


# -- how it looks ----------------------------------------------------------------------------------------------


class Screen:
    """The demo's terminal; on a quiet console it shows nothing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status: Status | None = None
        self._began: dict[str, Event] = {}

    def show_opening(self, stage: Stage) -> None:
        """Say what is going to happen."""
        grid = Table.grid(padding=(0, 2))
        store = f"{without_password(stage.url)}, thread {stage.thread!r}"
        plan = "run the agent; make a tool hang and kill -9 the process; finish in a new one"
        for name, words in (("task", TASK), ("store", store), ("plan", plan)):
            grid.add_row(Text(name, "dim"), Text(words, overflow="fold"))
        self.console.print(Panel(grid, title=Text("keel demo", "bold"), title_align="left", box=box.ROUNDED))

    def show_process(self, pid: int, call: str) -> None:
        """Announce an agent process."""
        self.console.print(Text.assemble("\n", (f"process {pid}", "bold"), ("  " + call, "dim")))
        self._began.clear()
        self._wait("starting")

    def show_step(self, event: Event) -> None:
        """Show one fact from the journal: a call that began is at work, one that ended gets its tick."""
        what = event["event"].rpartition("_")[2]
        key = str(event.get("call", event["turn"]))
        if what in ("paid", "began"):
            self._began[key] = event
        elif what != "kept":
            began = self._began.pop(key, event)
            seconds = f"{event['at'] - began['at']:4.1f} s  "
            self._print_line(("  ✓", "bold green"), (seconds, "dim"), _call_text(began), _outcome(event))
        self._wait(", ".join(_call_text(began).plain for began in self._began.values()))

    def show_kill(self, pid: int, status: int) -> None:
        """Show the moment of the kill."""
        self.rest()
        for began in self._began.values():
            seconds = f"{time.time() - began['at']:3.1f} s  "
            cut = (" ← cut here", "bold red")
            self._print_line(("  ✗ ", "bold red"), (seconds, "dim"), _call_text(began), cut)
        gone = Text(f"SIGKILL · process {pid} is gone, exit status {status}", "bold red")
        self.console.print(Rule(gone, style="red"))

    def show_kept(self, found: Snapshot) -> None:
        """Show what the store holds after the kill."""
        latest = found.moments[0]
        count = (f"{len(found.moments)} checkpoints, the latest is #{latest.position}", "bold")
        rest = f": {len(found.messages)} messages; next: {', '.join(latest.next)}"
        self.console.print(Text.assemble(("  the store holds ", "dim"), count, rest))

    def show_proof(self, stage: Stage, found: Evidence, proven: Sequence[Claim], seconds: float) -> None:
        """Show the history, who ran what, each claim with its truth, what it means, and where to look further."""
        moments = found.final.moments
        marks = {found.kept.moments[0].id: "← killed here"}
        self.console.print("", history_table(stage.thread, moments, len(moments), marks=marks), sep="\n")
        self.console.print("", _counts(found), "", sep="\n")
        grid = Table.grid(padding=(0, 1))
        for claim in proven:
            grid.add_row(Text("✓", "bold green") if claim.holds else Text("✗", "bold red"), claim.text)
        failed = sum(not claim.holds for claim in proven)
        words = f"{failed} of {len(proven)} claims do NOT hold: the demo failed." if failed else _conclusion(found)
        style = "red" if failed else "green"
        title = Text("what it did not prove" if failed else "what it proved", f"bold {style}")
        body = Group(grid, "", Text(words, "bold red" if failed else ""))
        self.console.print(Panel(body, title=title, title_align="left", border_style=style))
        files = f"{seconds:.1f} s. Report, letter, bookings and journal: {stage.folder}"
        self.console.print(Text(files, "dim"), soft_wrap=True)
        self.console.print("Look around:")
        url = without_password(stage.url)
        setting = f"set KEEL_URL={url}" if os.name == "nt" else f"export KEEL_URL={shlex.quote(url)}"
        for command in (setting, "keel threads", *(f"keel {each} {stage.thread}" for each in _LOOK)):
            self.console.print(Text("  " + command, "cyan"), soft_wrap=True)

    def _print_line(self, *parts: tuple[str, str] | Text) -> None:
        line = Text.assemble(*parts)
        line.truncate(self.console.width, overflow="ellipsis")
        self.console.print(line, no_wrap=True)

    def _wait(self, what: str) -> None:
        """Turn the spinner for what is at work; on anything but a terminal there is none."""
        if self._status is None:
            self._status = self.console.status("")
            self._status.start()
        self._status.update(Text(what or "thinking", "yellow"))

    def rest(self) -> None:
        """Stop the spinner."""
        if self._status is not None:
            self._status.stop()
        self._status = None


_LOOK = ("history", "show", "tools")
"""Commands that show the thread."""


def _call_text(event: Event) -> Text:
    if "name" not in event:
        return Text(f"model call {event['turn']}", "bold cyan")
    args = ", ".join(map(repr, event["args"].values()))
    return Text.assemble("  ", (event["name"], "bold"), one_line(f"({args})", 34))


def _outcome(event: Event) -> Text:
    if "result" in event:
        source = "from the ledger: " if event["event"] == "tool_replayed" else ""
        words = source + one_line(", ".join(event["result"].splitlines()), 100)
    else:
        words = f"asks for {tally(event['asks'])}" if event["asks"] else one_line(event["text"])
    return Text.assemble((" → ", "dim"), words)


def _counts(found: Evidence) -> Table:
    """Return a table of what ran before the kill, after it, and twice."""
    paid, more = found.paid
    finished, after = found.finished, calls_in(found.after, "ended")
    from_ledger = sum(found.kept.hits.values())
    table = table_of("what ran", "before the kill", "after it", "ran twice")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, *counts in (
        ("model calls, paid", len(paid), len(more), len({*paid} & {*more})),
        ("tool calls, finished", len(finished), len(after), len(finished.keys() & after.keys())),
        ("tool calls, from the ledger", from_ledger, len(found.replayed), len({*found.repeated} & {*found.replayed})),
        ("tool calls, cut in the middle", len(found.cut), 0, len({*found.repeated} & {*found.cut})),
    ):
        table.add_row(name, *map(str, counts))
    return table
