"""Which threads there are, and which of them had something last: told by the ends of their logs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import orjson

from langgraph_keel.errors import CorruptStore
from langgraph_keel.files.log import tail_records
from langgraph_keel.files.names import directory_of, thread_of
from langgraph_keel.files.threads import LOG

END = 16384
"""Bytes at the end of a log in which its last checkpoint mostly stands."""


class Seen(NamedTuple):
    """What a log was like when its end was read: its file and size, and the time of its last checkpoint.

    That is `None` where the end does not tell it.
    """

    file: tuple[int, int, int, int]
    updated_at: str | None


def names_in(directory: Path) -> Iterator[str]:
    """Name the directories of threads; what begins with a dot is being made, or on its way out."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from (entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def id_of(directory: Path) -> str | None:
    """Return the id of the thread in a directory; `None` if there is none, or this is no name of a thread.

    Raises:
        CorruptStore: The log begins with the id of another thread.
    """
    try:
        thread_id = thread_of(directory.name)
    except CorruptStore:
        return None
    return _long_id(directory) if thread_id is None else thread_id


def _long_id(directory: Path) -> str | None:
    try:
        with open(directory / LOG, "rb") as log:
            thread_id = str(orjson.loads(log.readline())["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    if directory_of(thread_id) != directory.name:
        raise CorruptStore(f"{directory}: its log is that of thread {thread_id!r:.80}")
    return thread_id


class Listing:
    """Remembers the ends of logs that have not changed since.

    Args:
        directory: That of all threads.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, Seen] = {}

    def newest(self) -> list[tuple[str | None, str]]:
        """Return (last activity, name) of every thread's directory, in no order."""
        found: dict[str, Seen] = {}
        for name in names_in(self._directory):
            with suppress(FileNotFoundError, NotADirectoryError):
                found[name] = self._look(name)
        self._seen = found
        return [(seen.updated_at, name) for name, seen in found.items()]

    def _look(self, name: str) -> Seen:
        path = self._directory / name / LOG
        status = os.stat(path)
        file = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        before = self._seen.get(name)
        return before if before and before.file == file else Seen(file, _updated_at(path, status.st_size))


def _updated_at(path: Path, size: int) -> str | None:
    with open(path, "rb") as log:
        log.seek(max(0, size - END))
        records = tail_records(log.read())
    for fields in reversed(records):
        kind = fields.get("k")
        if kind == "gone":
            return None
        if kind == "ckpt" and not fields.get("ghost"):
            return str(fields.get("at"))
    return None
