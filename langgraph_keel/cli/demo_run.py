"""The two processes of the demo, and what they left behind: the journal, the ledger and the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_keel.cli import checkpoints
from langgraph_keel.cli.checkpoints import Row
from langgraph_keel.cli.demo_agent import JOURNAL
from langgraph_keel.cli.options import reading
from langgraph_keel.core.calls import KeptCall
from langgraph_keel.errors import KeelError, NotFound

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
