"""Writers and followers of a store, as processes that are killed."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base.id import uuid6

from langgraph_keel import KeelSaver, Moment
from support.checkpoints import METADATA
from support.places import Place
from support.recovery.children import write

BEHIND = timedelta(minutes=40)


def put_one(saver: KeelSaver, config: Any, behind: timedelta = timedelta(0), step: int = 1) -> Any:
    """Store a checkpoint by a clock that is behind by `behind`."""
    checkpoint: Any = {
        **{"v": 4, "id": str(uuid6(clock_seq=step)), "ts": (datetime.now(UTC) - behind).isoformat()},
        **{"channel_values": {"step": step}, "channel_versions": {}, "versions_seen": {}},
    }
    metadata: Any = {**METADATA, "step": step}
    return saver.put(config, checkpoint, metadata, {})


def put_until(place: Place, path: Path, name: str, behind: timedelta, begun: Any, stop: Any) -> None:
    """Write to this process's old and new threads until stopped; log acknowledgements."""
    with place.open() as saver:
        configs: dict[str, Any] = {}
        number = 0
        while not stop.wait(0.02):
            thread = f"{name}/{number % 3 + number // 60}"
            root = configs.get(thread, {"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
            configs[thread] = put_one(saver, root, behind, number)
            lines = [configs[thread]]
            if number % 5 == 0:  # a subgraph in between
                lines.append(put_one(saver, {"configurable": {"thread_id": thread, "checkpoint_ns": "inner"}}, behind))
            for each in lines:
                write(path, f"{thread} {each['configurable']['checkpoint_id']}")
            number += 1
            if number == 10:
                begun.set()


def follow_until(place: Place, log: Path, cursor: Path, ready: Any) -> None:
    """Follow all threads from the stored cursor until killed.

    Each event is logged before the cursor is stored.
    """
    with place.open(read_only=place.kind != "redis") as saver:
        feed = saver.history.follow(after=cursor.read_text() if cursor.exists() else None, poll=0.02)
        write(log, "begin -")
        for number, event in enumerate(feed):
            take(event, log)
            if number % 5 == 0:
                store(feed.cursor, cursor)
                ready.set()


def cursor_of(log: Path) -> Path:
    """Return the file in which the follower with this log stores its cursor."""
    return log.with_suffix(".cursor")


def take(event: Any, log: Path) -> None:
    if isinstance(event, Moment):
        write(log, f"{event.thread_id} {event.id}")


def store(cursor: str, path: Path) -> None:
    """Replace a file atomically."""
    new = path.with_suffix(".new")
    new.write_text(cursor)
    os.replace(new, path)


def ids_in(*paths: Path) -> Mapping[str, Sequence[str]]:
    """Return the ids of each thread, in the order of their first appearance."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for path in paths:
        for line in path.read_text().splitlines():
            thread, checkpoint_id = line.split()
            found[thread][checkpoint_id] = None
    found.pop("begin", None)
    return {thread: list(ids) for thread, ids in found.items()}


def is_in_order(log: Path, put: Mapping[str, Sequence[str]]) -> bool:
    """Return whether each life of a follower has seen each thread in the stored order."""
    places = {(thread, each): number for thread, ids in put.items() for number, each in enumerate(ids)}
    last: dict[str, int] = {}
    for line in log.read_text().splitlines():
        thread, checkpoint_id = line.split()
        if thread == "begin":
            last = {}
        elif (number := places[thread, checkpoint_id]) <= last.get(thread, -1):
            return False
        else:
            last[thread] = number
    return True
