"""`keel demo`: an agent is killed in the middle of its work, and another process finishes it.

The two processes of the demo, and what they left behind: the journal, the ledger and the store.

What the demo proved: claims computed from the journal, the ledger and the store, never from the script.

How the demo looks: the steps as they tick, the kill, what was kept, and the proof.
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
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
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

from langgraph_keel.cli import threads as checkpoints
from langgraph_keel.cli import threads as render
from langgraph_keel.cli.demo_agent import CUSTOMER, JOURNAL, LEDGER, REPORT, SCRIPT, TASK, ledger
from langgraph_keel.cli.options import AsJson, console, print_json, reading, without_password
from langgraph_keel.cli.threads import Row
from langgraph_keel.display.text import one_line
from langgraph_keel.errors import KeelError, NotFound
from langgraph_keel.tools.ledger import KeptCall

Event = dict[str, Any]
_PATIENCE = 60.0
_NO_TRACING = dict.fromkeys(
    ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2"), "false"
)


class DemoError(KeelError):
    """The demo could not be played to its end."""

    code = "demo"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the demo plays: a store, a thread in it, a directory, and how long a call takes."""

    url: str
    thread: str
    folder: Path
    pace: float

    def journal(self) -> list[Event]:
        """Return what the agents wrote down, in order."""
        return [json.loads(line) for line in (self.folder / JOURNAL).read_text(encoding="utf-8").splitlines()]


class Agent:
    """One agent process."""

    def __init__(self, stage: Stage, *arguments: str) -> None:
        command = [sys.executable, "-m", "langgraph_keel.cli.demo_agent", "--url", stage.url]
        command += [
            "--thread",
            stage.thread,
            "--dir",
            str(stage.folder),
            "--pace",
            str(stage.pace),
            *arguments,
        ]
        self._errors = stage.folder / "stderr.txt"
        with open(self._errors, "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | _NO_TRACING
            )
        self._watchdog = threading.Timer(_PATIENCE + 30 * stage.pace, self.process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def events(self) -> Iterator[Event]:
        """Yield what the process reports, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def end(self, *, kill: bool = False) -> int:
        """Kill the process if asked to, and return its exit status once it is gone."""
        if kill:
            self.process.kill()
        status = self.process.wait()
        self._watchdog.cancel()
        return status

    def close(self) -> None:
        """Leave no process behind."""
        self.end(kill=self.process.poll() is None)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def failure(self) -> DemoError:
        """Return the error of a process that ended when it should not have."""
        said = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = said[-1] if said else "it said nothing"
        return DemoError(f"agent process {self.process.pid} ended with {self.process.returncode}: {last}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the store holds of the thread."""

    rows: list[Row]
    messages: list[BaseMessage]
    calls: list[KeptCall]

    @property
    def step(self) -> int:
        """The step of the latest checkpoint."""
        return self.rows[0].step or 0

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes that run next."""
        return self.rows[0].next

    @property
    def hits(self) -> dict[str, int]:
        """The tool calls that were answered from the ledger, by id, and how often."""
        return {call.tool_call_id: call.hits for call in self.calls if call.hits}

    @property
    def hit_rate(self) -> float:
        """Answers from the ledger among all answers, 0 to 1, as `keel cache stats` counts them."""
        hits = sum(self.hits.values())
        return hits / (hits + len(self.calls)) if hits else 0.0


def snapshot(stage: Stage) -> Snapshot:
    """Read the thread as any other process would."""
    config: Any = {"configurable": {"thread_id": stage.thread, "checkpoint_ns": ""}}
    with reading(stage.url) as saver:
        found = list(saver.list(config))
        if not found:
            raise NotFound(f"the store kept nothing of thread {stage.thread!r}: can two processes share it?")
        messages = found[0].checkpoint["channel_values"].get("messages", [])
        return Snapshot(checkpoints.rows(found, saver), messages, list(saver.tools(stage.thread)))


def free_thread(url: str) -> str:
    """Return a thread id that the store does not hold yet."""
    try:
        with reading(url) as saver:
            known = {info.thread_id for info in saver.threads()}
    except NotFound:
        known = set()
    names = ("demo", *(f"demo-{number}" for number in range(2, len(known) + 3)))
    return next(name for name in names if name not in known)


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence, and whether it is true."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything the claims are computed from.

    Attributes:
        before: What the killed process wrote in the journal.
        after: What the process that resumed wrote.
        kept: The store right after the kill.
        final: The store at the end.
        booked: The amounts in the ledger.
        report: The text of the report; empty if there is none.
        status: The exit status of the killed process.
    """

    before: list[Event]
    after: list[Event]
    kept: Snapshot
    final: Snapshot
    booked: list[str]
    report: str
    status: int

    def paid(self, events: Iterable[Event]) -> list[int]:
        """Return the turns of the model calls that were begun, hence paid."""
        return [event["turn"] for event in events if event["event"] == "model_paid"]

    def calls(self, events: Iterable[Event], moment: str) -> dict[str, str]:
        """Return the tool calls that `began`, `ended` or were `replayed`: id and tool name."""
        return {event["call"]: event["name"] for event in events if event["event"] == f"tool_{moment}"}

    @property
    def finished(self) -> dict[str, str]:
        """The tool calls that had ended before the kill."""
        return self.calls(self.before, "ended")

    @property
    def cut(self) -> dict[str, str]:
        """The tool calls that were at work when the kill came."""
        return {call: name for call, name in self.calls(self.before, "began").items() if call not in self.finished}

    @property
    def interrupted(self) -> dict[str, str]:
        """The tool calls that had ended before the kill, beside the one that was at work: their step had not."""
        turns = {event["turn"] for event in self.before if event.get("call") in self.cut}
        return self.calls((event for event in self.before if event["turn"] in turns), "ended")

    @property
    def answered(self) -> dict[str, str]:
        """The tool calls that were answered from the ledger after the kill."""
        return self.calls(self.after, "replayed")

    @property
    def repeated(self) -> dict[str, str]:
        """The tool calls that began more than once."""
        both = [*self.before, *self.after]
        times = Counter(event["call"] for event in both if event["event"] == "tool_began")
        return {call: name for call, name in self.calls(both, "began").items() if times[call] > 1}


def gather(stage: Stage, kept: Snapshot, final: Snapshot, killed: int, status: int) -> Evidence:
    """Read the journal and the files; `killed` is the process id of the one that was killed."""
    events = stage.journal()
    report = stage.folder / REPORT
    return Evidence(
        before=[event for event in events if event["pid"] == killed],
        after=[event for event in events if event["pid"] != killed],
        kept=kept,
        final=final,
        booked=ledger(stage.folder, CUSTOMER),
        report=report.read_text(encoding="utf-8") if report.exists() else "",
        status=status,
    )


def claims(found: Evidence) -> list[Claim]:
    """Return what the demo set out to show, each sentence with its truth."""
    return [_killed(found), _restored(found), _models(found), _finished(found), _answered(found),
            _cut(found), _money(found), _history(found), _done(found)]  # fmt: skip


def _killed(found: Evidence) -> Claim:
    really = found.status != 0 if os.name == "nt" else found.status == -signal.SIGKILL
    return Claim(f"The first process was killed at work: exit status {found.status}.", really)


def _restored(found: Evidence) -> Claim:
    count = len(found.kept.messages)
    same = bool(count) and found.final.messages[:count] == found.kept.messages
    read = next((event["read"] for event in found.after if event["event"] == "model_paid"), 0)
    return Claim(
        "The second process was given the thread id and no task; "
        f"it went on from step {found.kept.step} with all {count} messages.",
        same and read == count + len(found.cut) + len(found.answered),
    )


def _models(found: Evidence) -> Claim:
    before, after = found.paid(found.before), found.paid(found.after)
    once = sorted(before + after) == list(range(1, len(before + after) + 1))
    return Claim(
        f"No model call was paid twice: {len(before)} before the kill, {len(after)} after.",
        once and bool(before),
    )


def _finished(found: Evidence) -> Claim:
    again = found.finished.keys() & found.calls(found.after, "began").keys()
    return Claim(
        f"No finished tool call ran again: {len(found.finished)} were finished, {len(again)} ran twice.",
        not again and bool(found.finished),
    )


def _answered(found: Evidence) -> Claim:
    answered, once = found.answered, dict.fromkeys(found.answered, 1)
    calls = "call of the interrupted step was" if len(answered) == 1 else "calls of the interrupted step were"
    which = f": {listed(answered.values())}" if found.interrupted else "; it had none"
    return Claim(
        f"{len(answered)} finished tool {calls} answered from the ledger, not run again{which}.",
        answered == found.interrupted and found.final.hits == once and not answered.keys() & found.repeated.keys(),
    )


def _cut(found: Evidence) -> Claim:
    ended = Counter(event["call"] for event in [*found.before, *found.after] if event["event"] == "tool_ended")
    names = listed(found.cut.values())
    return Claim(
        f"Only what was cut in the middle began again: {names}.",
        found.repeated == found.cut and bool(found.cut) and set(ended.values()) == {1},
    )


def _money(found: Evidence) -> Claim:
    times = {0: "not there", 1: "there once"}.get(len(found.booked), f"there {len(found.booked)} times")
    amount = found.booked[0] if found.booked else "0.00"
    return Claim(f"The credit of {amount} EUR is in {LEDGER}: {times}.", len(found.booked) == 1)


def _history(found: Evidence) -> Claim:
    kept, final = [row.id for row in found.kept.rows], [row.id for row in found.final.rows]
    whole = len(final) > len(kept) and final[-len(kept) :] == kept and all(row.follows for row in found.final.rows)
    return Claim(
        f"The history is one chain of {len(final)} checkpoints; the {len(kept)} from before the kill are all in it.",
        whole,
    )


def _done(found: Evidence) -> Claim:
    told = bool(found.booked) and f"{found.booked[0]} EUR" in found.report
    return Claim("The task is finished: nothing runs next, and the report names the booked amount.",
                 told and not found.final.next)  # fmt: skip


def last_words(found: Evidence) -> str:
    """Return the paragraph that says what all this means, given that every claim holds."""
    paid, done = len(found.paid(found.before)), found.finished
    saved = f"{paid} paid model calls and {len(done)} finished tool calls"
    twice = " and booked the credit a second time" if "book_credit" in done.values() else ""
    alone = listed(found.answered.values())
    again = f" Resumed without the ledger of tool calls, it would have run {alone} again." if found.answered else ""
    return (
        f"A process died without warning after {saved}, and none of them was lost or repeated. "
        "Another process took the thread up by its id alone and finished it; the price of the crash was "
        f"{listed(found.cut.values())}, which began again. "
        f"Starting over would have paid {paid} model calls again{twice}.{again} "
        "(A tool cut after its effect but before its result is stored runs again. Here this does no harm: book_credit "
        "gets the same idempotency key again and books nothing twice; the others only read, or write a file anew.)"
    )


def hits(found: Evidence) -> str:
    """Return the line that says how many answers came from the ledger of tool calls."""
    count = sum(found.final.hits.values())
    every, rate = count + len(found.final.calls), found.final.hit_rate
    return f"{count} of {every} answers to tool calls came from the ledger of tool calls: hit rate {rate:.0%}."


def listed(names: Iterable[str]) -> str:
    """Return tool names with how often each occurs."""
    counts = Counter(names)
    return ", ".join(name if times == 1 else f"{name} ×{times}" for name, times in counts.items()) or "nothing"


class Screen:
    """The demo's terminal; on a quiet console it shows nothing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status: Status | None = None
        self._began: dict[str, Event] = {}

    def opening(self, stage: Stage) -> None:
        """Say what is going to happen."""
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text("task", "dim"), TASK)
        grid.add_row(
            Text("store", "dim"),
            Text(f"{without_password(stage.url)}, thread {stage.thread!r}", overflow="fold"),
        )
        grid.add_row(
            Text("plan", "dim"),
            "run the agent; make a tool hang and kill -9 the process; finish in a new one",
        )
        self.console.print(Panel(grid, title=Text("keel demo", "bold"), title_align="left", box=box.ROUNDED))

    def process(self, pid: int, call: str) -> None:
        """Announce an agent process."""
        self.console.print(Text.assemble("\n", (f"process {pid}", "bold"), ("  " + call, "dim")))
        self._began.clear()
        self._wait("starting")

    def step(self, event: Event) -> None:
        """Show one fact from the journal: a call that began is at work, one that ended gets its tick."""
        moment = event["event"].rpartition("_")[2]
        key = str(event.get("call", event["turn"]))
        if moment in ("paid", "began"):
            self._began[key] = event
        elif moment != "kept":
            self._tick(event, self._began.pop(key, event))
        self._wait(", ".join(_what(open_).plain for open_ in self._began.values()))

    def _tick(self, event: Event, began: Event) -> None:
        seconds = f"{event['at'] - began['at']:4.1f} s  "
        self._line(Text.assemble(("  ✓", "bold green"), (seconds, "dim"), _what(began), _outcome(event)))

    def _line(self, line: Text) -> None:
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

    def killed(self, pid: int, status: int) -> None:
        """Show the moment of the kill."""
        self.rest()
        for began in self._began.values():
            seconds = time.time() - began["at"]
            self._line(
                Text.assemble(
                    ("  ✗ ", "bold red"),
                    (f"{seconds:3.1f} s  ", "dim"),
                    _what(began),
                    (" ← cut here", "bold red"),
                )
            )
        self.console.print(
            Rule(Text(f"SIGKILL · process {pid} is gone, exit status {status}", "bold red"), style="red")
        )

    def kept(self, found: Snapshot) -> None:
        """Show what the store holds after the kill."""
        text = Text.assemble(
            (f"{len(found.rows)} checkpoints, the latest at step {found.step}", "bold"),
            f": {len(found.messages)} messages; next: {', '.join(found.next)}",
        )
        self.console.print(Text.assemble(("  the store holds ", "dim"), text))

    def history(self, stage: Stage, found: Snapshot, kept: Snapshot) -> None:
        """Show the thread's history, as `keel history` does."""
        marks = {kept.rows[0].id: "← killed here"}
        self.rest()
        self.console.print()
        self.console.print(render.history_table(stage.thread, found.rows, marks=marks))

    def proof(self, found: Evidence, proven: list[Claim]) -> None:
        """Show who ran what, each claim with its truth, and what it all means."""
        self.console.print("", _counts(found), "", sep="\n")
        marks = Table.grid(padding=(0, 1))
        for claim in proven:
            marks.add_row(Text("✓", "bold green") if claim.holds else Text("✗", "bold red"), claim.text)
        failed = sum(not claim.holds for claim in proven)
        words = f"{failed} of {len(proven)} claims do NOT hold: the demo failed." if failed else last_words(found)
        style = "red" if failed else "green"
        body = Group(marks, "", Text(words, "bold red" if failed else ""))
        title = Text("what it proved" if not failed else "what it did not prove", f"bold {style}")
        self.console.print(Panel(body, title=title, title_align="left", border_style=style))

    def next_steps(self, stage: Stage, found: Evidence, seconds: float) -> None:
        """Name the hit rate, the files and the commands to go on with."""
        self.console.print(Text(hits(found), "dim"), soft_wrap=True)
        self.console.print(
            Text(f"{seconds:.1f} s. Report, letter, bookings and journal: {stage.folder}", "dim"), soft_wrap=True
        )
        self.console.print("Look around:")
        for command in (
            _assignment(without_password(stage.url)),
            "keel threads",
            f"keel history {stage.thread}",
            f"keel show {stage.thread}",
            f"keel tools {stage.thread}",
        ):
            self.console.print(Text("  " + command, "cyan"), soft_wrap=True)


def _assignment(url: str) -> str:
    return f"set KEEL_URL={url}" if os.name == "nt" else f"export KEEL_URL={shlex.quote(url)}"


def _what(event: Event) -> Text:
    if "name" not in event:
        return Text(f"model call {event['turn']}", "bold cyan")
    given = ", ".join(map(repr, event["args"].values()))
    return Text.assemble("  ", (event["name"], "bold"), one_line(f"({given})", 34))


def _outcome(event: Event) -> Text:
    if "result" in event:
        source = "from the ledger: " if event["event"] == "tool_replayed" else ""
        told = source + one_line(", ".join(event["result"].splitlines()), 100)
    else:
        told = f"asks for {listed(event['asks'])}" if event["asks"] else one_line(event["text"])
    return Text.assemble((" → ", "dim"), told)


def _counts(found: Evidence) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in ("what ran", "before the kill", "after it", "ran twice"):
        table.add_column(column, justify="left" if column == "what ran" else "right")
    paid, more = found.paid(found.before), found.paid(found.after)
    table.add_row("model calls, paid", str(len(paid)), str(len(more)), str(len({*paid} & {*more})))
    after = found.calls(found.after, "ended")
    table.add_row(
        "tool calls, finished",
        str(len(found.finished)),
        str(len(after)),
        str(len(found.finished.keys() & after.keys())),
    )
    before, answered = sum(found.kept.hits.values()), found.answered.keys()
    table.add_row(
        "tool calls, from the ledger", str(before), str(len(answered)), str(len(found.repeated.keys() & answered))
    )
    table.add_row(
        "tool calls, cut in the middle", str(len(found.cut)), "0", str(len(found.repeated.keys() & found.cut))
    )
    return table


_SUSPENSE = 0.8
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
    typer.Option("--kill-at", min=2, max=len(SCRIPT), help="Kill while the last tool call of this turn is at work."),
]
Pace = Annotated[float, typer.Option("--pace", min=0.0, max=5.0, help="Seconds that every call takes at least.")]


def demo(url: Url = None, directory: Dir = None, kill_at: KillAt = 4, pace: Pace = 0.25, json: AsJson = False) -> None:
    """Kill an agent in the middle of its work and see another process finish it. No key, no network.

    A LangGraph agent with seven tools and a scripted model works in a child process. One of its tools is made
    to hang, and the process is killed with SIGKILL. A new process resumes the thread by its id; tool calls that
    had finished beside the hanging one are answered from the ledger of tool calls. The demo then counts, from the
    agent's journal and the store, what was restored and what ran twice; it exits with 1 if a claim does not hold.

    Example: `keel demo --dir ./keel-demo`
    """
    began = time.monotonic()
    stage = _stage(url, directory, pace)
    screen = Screen(console(quiet=json))
    found, pids = _play(stage, screen, kill_at)
    proven = claims(found)
    screen.history(stage, found.final, found.kept)
    screen.proof(found, proven)
    seconds = time.monotonic() - began
    screen.next_steps(stage, found, seconds)
    if json:
        print_json(_result(stage, found, proven, pids) | {"seconds": round(seconds, 2)})
    if not all(claim.holds for claim in proven):
        raise typer.Exit(1)


def _stage(url: str | None, directory: Path | None, pace: float) -> Stage:
    folder = directory.absolute() if directory else Path(tempfile.mkdtemp(prefix="keel-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    where = url or f"sqlite:///{folder / 'agent.db'}"
    thread = free_thread(where)
    if (folder / JOURNAL).exists():
        raise DemoError(f"{folder} holds the journal of an earlier demo: choose another --dir")
    return Stage(where, thread, folder, pace)


def _play(stage: Stage, screen: Screen, kill_at: int) -> tuple[Evidence, tuple[int, int]]:
    screen.opening(stage)
    with _agent(stage, screen, "--task", TASK, "--stall-at", str(kill_at)) as first:
        screen.process(first.process.pid, "graph.invoke(task)")
        status = _run_until_killed(first, screen, kill_at)
    kept = snapshot(stage)
    screen.kept(kept)
    with _agent(stage, screen) as second:
        screen.process(second.process.pid, f'graph.invoke(None, {{"configurable": {{"thread_id": "{stage.thread}"}}}})')
        _run_to_the_end(second, screen)
    pids = first.process.pid, second.process.pid
    return gather(stage, kept, snapshot(stage), pids[0], status), pids


@contextmanager
def _agent(stage: Stage, screen: Screen, *arguments: str) -> Iterator[Agent]:
    with closing(Agent(stage, *arguments)) as agent:
        try:
            yield agent
        finally:
            screen.rest()


def _run_until_killed(agent: Agent, screen: Screen, kill_at: int) -> int:
    events, seen = agent.events(), list[Event]()
    for event in events:
        screen.step(event)
        seen.append(event)
        if hangs(seen, kill_at):
            break
    else:
        agent.end()
        raise agent.failure()
    time.sleep(_SUSPENSE)
    status = agent.end(kill=True)
    for event in events:
        screen.step(event)
    screen.killed(agent.process.pid, status)
    return status


def hangs(seen: list[Event], turn: int) -> bool:
    """Return whether all that is left of a turn is the call that hangs: the ledger has the results of the others."""
    events = [event for event in seen if event["turn"] == turn]
    asked = sum(len(event["asks"]) for event in events if event["event"] == "model_answered")
    count = Counter(event["event"] for event in events)
    return 0 < count["tool_began"] == asked == count["tool_kept"] + 1


def _run_to_the_end(agent: Agent, screen: Screen) -> None:
    for event in agent.events():
        screen.step(event)
    if agent.end() != 0:
        raise agent.failure()


def _result(stage: Stage, found: Evidence, proven: list[Claim], pids: tuple[int, int]) -> dict[str, Any]:
    before, after = found.paid(found.before), found.paid(found.after)
    return {
        "url": stage.url,
        "thread_id": stage.thread,
        "dir": str(stage.folder),
        "killed": {"pid": pids[0], "returncode": found.status, "at_work": list(found.cut.values())},
        "resumed": {"pid": pids[1], "step": found.kept.step, "messages": len(found.kept.messages)},
        "model_calls": {"before": len(before), "after": len(after), "twice": len({*before} & {*after})},
        "tool_calls": {
            "finished_before": len(found.finished),
            "finished_after": len(found.calls(found.after, "ended")),
            "cut": len(found.cut),
            "began_twice": sorted(found.repeated.values()),
            "from_ledger": list(found.answered.values()),
        },
        "ledger": {
            "calls": len(found.final.calls),
            "hits": sum(found.final.hits.values()),
            "hit_rate": round(found.final.hit_rate, 4),
        },
        "booked": found.booked,
        "checkpoints": {"kept": len(found.kept.rows), "final": len(found.final.rows)},
        "claims": [{"claim": claim.text, "holds": claim.holds} for claim in proven],
        "proved": all(claim.holds for claim in proven),
    }
