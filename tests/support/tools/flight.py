"""Calls of a tool that logs its runs, for the tests of single flight."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool

from langgraph_keel import KeelSaver, ToolCache, ToolPolicy
from support.places import Place

SECRET = b"s" * 32
ELSEWHERE = "another-host/another-boot.1/1/1"
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


@dataclass(frozen=True, slots=True)
class Flight:
    """Calls of one tool, from many processes.

    Attributes:
        place: The store of the ledger.
        log: A file that gets a line at the start of a run, with the process's id, and one at its end.
        seconds: Duration of the tool.
        lease: Lease of the cache.
        holder: Name under which the process claims calls; its own by default.
        skew: Seconds by which its clock is ahead.
    """

    place: Place
    log: Path
    seconds: float = 0.0
    lease: float = 30.0
    holder: str | None = None
    skew: int = 0

    def note(self, line: str) -> None:
        file = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def lines(self, word: str) -> list[str]:
        text = self.log.read_text() if self.log.exists() else ""
        return [line for line in text.splitlines() if line.startswith(word)]

    @property
    def runs(self) -> int:
        return len(self.lines("begin"))

    def make(self, x: int = 0) -> str:
        """Make."""
        self.note(f"begin {os.getpid()}")
        time.sleep(self.seconds)
        self.note(f"end {os.getpid()}")
        return f"by {os.getpid()}"

    async def amake(self, x: int = 0) -> str:
        """Make."""
        self.note(f"begin {os.getpid()}")
        await asyncio.sleep(self.seconds)
        self.note(f"end {os.getpid()}")
        return f"by {os.getpid()}"

    def cache(self, saver: KeelSaver, **policy: Any) -> ToolCache:
        return ToolCache(saver, default=ToolPolicy(version="1", **policy), lease=self.lease, secret=SECRET)

    def call(self, cache: ToolCache, face: str = "sync", x: int = 0) -> str:
        if face == "async":
            return asyncio.run(self.acall(cache, x))
        return str(self.tool(cache).invoke({"x": x}, CONFIG))

    async def acall(self, cache: ToolCache, x: int = 0) -> str:
        return str(await self.tool(cache).ainvoke({"x": x}, CONFIG))

    def tool(self, cache: ToolCache) -> Any:
        return cache.tool(StructuredTool.from_function(self.make, self.amake, name="make"))

    def at_once(self) -> Flight:
        """Return the same tool without its delay."""
        return replace(self, seconds=0.0)


def ask(flight: Flight, who: int, gate: Any, told: Any) -> None:
    """Make the call concurrently with the others."""
    with flight.place.open() as saver, flight.cache(saver, scope="shared") as cache:
        saver.setup()
        gate.wait(60)
        told.put(flight.call(cache, "async" if who % 2 else "sync"))


def hold(flight: Flight, told: Any) -> None:
    """Make the call, and send its result and the logged warnings."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("langgraph_keel").addHandler(handler)
    if flight.holder is not None:
        pytest.MonkeyPatch().setattr("langgraph_keel.tools.call.this_holder", lambda: flight.holder)
    set_clock(flight.skew)
    with flight.place.open() as saver, flight.cache(saver) as cache:
        result = flight.call(cache)
    told.send((result, warnings))


def set_clock(skew: int) -> None:
    """Set the clock of this process's caches ahead by `skew` seconds."""
    pytest.MonkeyPatch().setattr("langgraph_keel.tools.cache._now", lambda: time.time_ns() // 1_000_000 + 1000 * skew)


def wait_until(is_so: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
