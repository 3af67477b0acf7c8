"""The recorded run: two growing threads, writes, a copy, prunes, a delete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from support.checkpoints import checkpoint_of
from support.places import Place, file_place, files_place

from langgraph_keel import KeelSaver, MemorySaver, StoreError, ThreadExists
from langgraph_keel.backends.files import log

from .builds import BUILDS

Step: TypeAlias = Callable[[KeelSaver], object]
Contents: TypeAlias = Mapping[str, list[CheckpointTuple]]
"""The checkpoints of each thread, newest first."""
PLACES: Mapping[str, Callable[[Path], Place]] = {
    "sqlite": file_place,
    "files": files_place,
}
"""A store below a directory, by kind."""
IGNORED = (".db-shm", ".db.lock")
"""Endings of files that need not survive a power cut.

The first is memory that processes share, and the second a lock. The content of the lock is never read: it is space that
is reserved for a full disk.
"""
ATTEMPTS = 5
INDEXES = 300, 1, 4
"""Small `EACH`, `SHARE` and `NEWEST` of logs, so that short logs have indexes and reads use them."""


def values_at(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "messages": [HumanMessage(f"{n} {n * 7919**9}", id=str(n)) for n in range(number * 2)],
        "notes": {f"note {n}": {"text": "n" * 40, "n": n} for n in range(number + 3)},
    }


def config_of(thread: str, number: int, namespace: str = "") -> RunnableConfig:
    parent = f"{number:08}" if number else None
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": parent}}


def put(thread: str, number: int, namespace: str = "", **more: Any) -> Step:
    """Store a checkpoint with this number after the previous one."""
    config = config_of(thread, number - 1, namespace)
    checkpoint = checkpoint_of(f"{number:08}", values_at(number) | more)
    return lambda saver: saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, {})


def put_writes(thread: str, number: int) -> Step:
    writes = [("messages", [HumanMessage(f"written {number}", id="w")]), ("number", number + 1)]
    return lambda saver: saver.put_writes(config_of(thread, number), writes, f"task {number}")


# Over 64 KB in any form, since it does not compress.
LARGE = bytes((n * n * 7919 + n // 7 * n) % 251 for n in range(66_000))
SESSIONS: tuple[tuple[Step, ...], ...] = (
    (
        *(put("a", number) for number in (1, 2, 3)),
        put_writes("a", 3),
        put("b", 1),
        put("a", 4, large=LARGE),
        put("a", 1, "inner"),
        put("b", 2),
        put_writes("b", 2),
    ),
    (
        put("a", 5),
        lambda saver: saver.copy_thread("a", "c"),
        put("c", 6),
        lambda saver: saver.prune(["a"]),
        put("a", 6),
        put_writes("a", 6),
        lambda saver: saver.delete_thread("b"),
        put("b", 1),
        put("a", 7),
        lambda saver: saver.prune(["c"]),
        put("c", 7),
    ),
)
"""The steps between opening and closing the store, session by session."""
STEPS = range(1, sum(map(len, SESSIONS)) + 1)
"""The numbers of the steps."""


def run(place: Place, build: str, numbers: range, pipe: Connection) -> None:
    """Do the steps with these numbers, and write acknowledgements for strace."""
    BUILDS[build]()
    log.EACH, log.SHARE, log.NEWEST = INDEXES
    pipe.send("ready")
    assert pipe.recv() == "go"
    number = 0
    for steps in SESSIONS:
        numbered = [(number := number + 1, step) for step in steps]
        with place.open() as saver:
            _do([(number, step) for number, step in numbered if number in numbers], saver, pipe)
    pipe.send("done")
    assert pipe.recv() == "end"


def _do(todo: list[tuple[int, Step]], saver: KeelSaver, pipe: Connection) -> None:
    nobody = os.open(os.devnull, os.O_WRONLY)
    for number, step in todo:
        if _is_done(step, saver, pipe):
            os.write(nobody, f"ack {number}\n".encode())
    os.close(nobody)


def _is_done(step: Step, saver: KeelSaver, pipe: Connection) -> bool:
    """Retry a step until it succeeds, reporting each failure.

    Returns `False` for a copy that another process has already made.
    """
    for _ in range(ATTEMPTS):
        try:
            step(saver)
        except StoreError as error:
            pipe.send((type(error).__name__, str(error)))
        except ThreadExists:
            return False
        else:
            return True
    raise AssertionError("it does not get better")


def contents(saver: KeelSaver) -> dict[str, list[CheckpointTuple]]:
    """Return all checkpoints of a store."""
    threads = [thread.thread_id for thread in saver.threads()]
    return {thread: list(saver.list({"configurable": {"thread_id": thread}})) for thread in sorted(threads)}


@cache
def expected() -> list[Contents]:
    """Return the store's contents before the first step, and after each."""
    return list(_each())


def _each() -> Iterator[Contents]:
    with MemorySaver() as saver:
        yield contents(saver)
        for step in (step for steps in SESSIONS for step in steps):
            step(saver)
            yield contents(saver)
