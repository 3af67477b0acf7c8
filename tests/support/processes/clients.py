"""Clients that append to the list of one thread and read it, to make a history.

They run in threads, loops and processes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig

from langgraph_keel import CheckpointConflict, KeelSaver, StoreBusy, StoreUnavailable
from langgraph_keel.engine.plan import StorePlan, arun, run
from support.checkpoints import METADATA, checkpoint_of
from support.places import Place
from support.process_children import next_checkpoint
from support.processes.histories import Operation, Outcome, Version

SHARED: RunnableConfig = {"configurable": {"thread_id": "shared"}}
# A client is a plan whose requests are calls of a saver, so that it is written once for both faces.
Call: TypeAlias = tuple[str, tuple[Any, ...]]


class Calls:
    """Calls the blocking methods of a saver."""

    def __init__(self, saver: KeelSaver) -> None:
        self._saver = saver

    def send(self, request: Call) -> Any:
        name, arguments = request
        return getattr(self._saver, name)(*arguments)


class AsyncCalls:
    """Calls the async methods of a saver."""

    def __init__(self, saver: KeelSaver) -> None:
        self._saver = saver

    async def send(self, request: Call) -> Any:
        name, arguments = request
        return await getattr(self._saver, f"a{name}")(*arguments)


@dataclass
class Client:
    """One client and its operations.

    Times are of the machine's monotonic clock, which all its processes share.

    Attributes:
        who: Number of the client.
        until: Time to stop.
        chance: Decides when it only reads.
    """

    who: int
    until: float
    chance: random.Random

    def work(self) -> StorePlan[Call, Any, list[Operation]]:
        """Repeatedly read the head and append one mark to it."""
        history: list[Operation] = []
        while time.monotonic() < self.until:
            began = time.monotonic()
            try:
                found = yield "get_tuple", (SHARED,)
            except (StoreUnavailable, StoreBusy):
                continue  # a failed read is no evidence
            seen: Version = tuple(found.checkpoint["channel_values"]["marks"])
            history.append(Operation(self.who, began, time.monotonic(), seen))
            if self.chance.random() < 0.8:
                history.append((yield from self._append(found, seen, f"{self.who}.{len(history)}")))
        return history

    def _append(self, found: Any, seen: Version, mark: str) -> StorePlan[Call, Any, Operation]:
        checkpoint = next_checkpoint(found)
        checkpoint["channel_values"] = {"marks": [*seen, mark]}
        outcome: Outcome = "ok"
        began = time.monotonic()
        try:
            yield "put", (found.config, checkpoint, METADATA, {})
        except CheckpointConflict:
            outcome = "refused"
        except (StoreUnavailable, StoreBusy):
            outcome = "unknown"
        return Operation(self.who, began, time.monotonic(), seen, mark, outcome)


def begin(place: Place) -> None:
    """Create the thread, with an empty list."""
    with place.open() as saver:
        saver.put(SHARED, checkpoint_of("start", {"marks": []}), METADATA, {})


def work_together(place: Place, clients: list[int], seconds: float, seed: int, gate: Any, told: Any) -> None:
    """Run several clients on one saver: half of them threads, half tasks of one loop."""
    with place.open() as saver:
        gate.wait(60)
        until = time.monotonic() + seconds
        working = [Client(who, until, random.Random(f"{seed} {who}")).work() for who in clients]
        half = len(working) // 2
        with ThreadPoolExecutor(half + 1) as pool:
            on_loop = pool.submit(asyncio.run, _work_on_loop(saver, working[half:]))
            histories = [*pool.map(lambda plan: run(plan, Calls(saver)), working[:half]), *on_loop.result()]
    told.put([operation for history in histories for operation in history])


async def _work_on_loop(
    saver: KeelSaver, working: list[StorePlan[Call, Any, list[Operation]]]
) -> list[list[Operation]]:
    return await asyncio.gather(*(arun(plan, AsyncCalls(saver)) for plan in working))


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Run `work` in another thread during the block; raise its error at the end."""
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(work)
        yield
        doing.result()
