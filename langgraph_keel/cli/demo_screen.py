"""How the demo looks: the steps as they tick, the kill, what was kept, and the proof."""

from __future__ import annotations

import os
import shlex
import time

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.status import Status
from rich.table import Table
from rich.text import Text

from langgraph_keel.cli import show as render
from langgraph_keel.cli.demo_model import TASK
from langgraph_keel.cli.demo_proof import Claim, Evidence, closing, hits, listed
from langgraph_keel.cli.demo_run import Event, Snapshot, Stage
from langgraph_keel.cli.terminal import without_password
from langgraph_keel.timeline.safe import one_line


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
        words = f"{failed} of {len(proven)} claims do NOT hold: the demo failed." if failed else closing(found)
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
