"""Runs whose workers meet faults, and an external bank that sees their effects.

The workers are killed, stopped and disconnected.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from langchain_core.tools import tool
from servers import Proxy

from langgraph_keel import KeelSaver, ToolCache, ToolPolicy
from langgraph_keel.runs.marks import write_stop
from langgraph_keel.runs.records import Stop
from support.log_graphs import State, graph
from support.places import Place
from support.races import context
from support.recovery.children import INPUT, LONG, STEPS, config_of, write

POLICY = ToolPolicy(unknown="retry", idempotency_argument="key")


def paying_graph(saver: KeelSaver, directory: Path) -> Any:
    """Return a graph of five steps, each of which pays.

    The bank recognizes a payment by its key.
    """

    @tool
    def pay(thread: str, step: str, key: str = "") -> str:
        """Pay."""
        write(directory / "calls", f"{thread} {step} {os.getpid()} begins")
        with suppress(FileExistsError):
            os.close(os.open(directory / f"{thread} {step} {key}", os.O_CREAT | os.O_EXCL))
        write(directory / "calls", f"{thread} {step} {os.getpid()} ends")
        return "paid"

    paid = ToolCache(saver, {"pay": POLICY}).tool(pay)

    def step(name: str) -> Any:
        def node(state: State, config: Any) -> State:
            args = {"thread": config["configurable"]["thread_id"], "step": name}
            paid.invoke({"type": "tool_call", "name": "pay", "args": args, "id": name}, config)
            return {"log": [name]}

        node.__annotations__["config"] = "RunnableConfig"
        return node

    return graph(saver, *((name, step(name)) for name in STEPS))


def accept(saver: KeelSaver, made: Any, thread_id: str) -> None:
    """Store the input of a thread for any worker."""
    at = made.update_state(config_of(thread_id), INPUT, as_node="__input__")["configurable"]["checkpoint_id"]
    saver.engine.run(write_stop(saver.engine.session, thread_id, Stop((at,), "accepted")))


def work(place: Place, directory: Path) -> None:
    """Continue threads until killed."""
    with place.open(recoverable=True) as saver:
        for _ in saver.recover(paying_graph(saver, directory), attempts=1000, poll=0.05):
            pass


class Workers:
    """Three workers that meet repeated faults."""

    def __init__(self, place: Place, directory: Path, chance: random.Random, proxy: Proxy | None) -> None:
        self.place, self.directory, self.chance = place, directory, chance
        self.proxy = proxy  # between the workers and their store, if that is a server
        self.killed: set[int] = set()
        self.all = [self.begin() for _ in range(3)]

    def begin(self) -> Any:
        worker = context().Process(target=work, args=(self.place, self.directory))
        worker.start()
        return worker

    def fail(self) -> None:
        """Kill and replace a worker, stop one for a while, or cut connections.

        The first fault is always a kill.
        """
        if self.killed and self.proxy and self.chance.random() < 0.3:
            self.proxy.cut()
            return
        nth, worker = self.chance.choice(list(enumerate(self.all)))
        if not self.killed or self.chance.random() < 0.6:
            self.killed.add(worker.pid)
            worker.kill()
            worker.join(LONG)
            self.all[nth] = self.begin()
            return
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(self.chance.random() * 0.5)
        os.kill(worker.pid, signal.SIGCONT)

    def end(self) -> None:
        for worker in self.all:
            worker.kill()
            worker.join(LONG)


def effects(directory: Path) -> list[str]:
    """Return the payments: thread and step, once for each key."""
    return sorted(path.name.rpartition(" ")[0] for path in directory.iterdir() if " " in path.name)


def overlaps(directory: Path, killed: set[int]) -> list[str]:
    """Return calls that began or ended with another, living process in the thread."""
    inside: dict[str, int] = {}
    found = []
    for line in (directory / "calls").read_text().splitlines():
        thread, _, process, what = line.split()
        other = inside.get(thread)
        if other not in (None, int(process)) and other not in killed:
            found.append(line)
        inside.pop(thread, None)
        if what == "begins":
            inside[thread] = int(process)
    return found
