"""Processes that use a board.

They count, hold a lock while they are stopped, write items, and follow them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langgraph_keel import LockLost
from support.feed_children import store
from support.places import Place
from support.recovery.children import write

BOARD = ("board",)
TTL = 1.0


def add_one(value: dict[str, Any] | None) -> dict[str, Any]:
    return {"n": (value or {"n": 0})["n"] + 1}


def count(place: Place, rounds: int, is_async: bool) -> None:
    """Count on one item, by one of the faces."""
    with place.open() as saver:
        board = saver.store()

        async def acount() -> None:
            for _ in range(rounds):
                await board.aupdate(BOARD, "n", add_one)

        if is_async:
            asyncio.run(acount())
        else:
            for _ in range(rounds):
                board.update(BOARD, "n", add_one)


def hold(place: Place, rounds: int, told: Connection) -> None:
    """Take a lock, report its fence, wait, and write; report the outcome."""
    with place.open() as saver:
        board = saver.store()
        for number in range(rounds):
            waits = iter([True])

            def late(value: Any, waits: Iterator[bool] = waits, number: int = number) -> dict[str, Any]:
                if next(waits, False):
                    told.send(lock.fence)
                    told.recv()
                return {"late": number}

            try:
                with board.lock("desk", ttl=TTL) as lock:
                    if number % 2:
                        lock.put(BOARD, "x", late(None))
                    else:  # stopped between its read and its write
                        lock.update(BOARD, "x", late)
            except LockLost as error:
                told.send(error.fence)
            else:
                told.send("written")


def write_until(place: Place, name: str, begun: Any, stop: Any) -> None:
    """Put and delete items under this process's name until stopped."""
    with place.open() as saver:
        board, number = saver.store(), 0
        while not stop.wait(0.02):
            key = f"{name}{number % 5}"
            if number % 7 == 3:
                board.delete((*BOARD, name), key)
            else:
                board.put((*BOARD, name), key, {"n": number})
            number += 1
            if number == 10:
                begun.set()
        board.put((*BOARD, name), f"{name}1", {"n": number})
        board.delete((*BOARD, name), f"{name}0")


def follow_until(place: Place, log: Path, cursor: Path, ready: Any) -> None:
    """Follow the board from the stored cursor until killed.

    The cursor of each change is stored before the change is logged.
    """
    with place.open(read_only=place.kind != "redis") as saver:
        feed = saver.store().watch(BOARD, cursor.read_text() if cursor.exists() else None, poll=0.02)
        for change in feed:
            store(feed.cursor, cursor)
            take(change, log)
            ready.set()


def take(change: Any, log: Path) -> None:
    write(log, json.dumps([change.key, change.value]))


def last_in(log: Path) -> dict[str, Any]:
    """Return the last value seen of each item; `None` if it was deleted."""
    return dict(json.loads(line) for line in log.read_text().splitlines())
