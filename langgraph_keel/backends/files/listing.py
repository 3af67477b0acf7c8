"""Which threads there are, and when each was last put to, as the ends of their logs say."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import orjson

from langgraph_keel.backends.files.disk import DirectoryName, directory_of, open_file, thread_of
from langgraph_keel.backends.files.log import tail_records
from langgraph_keel.backends.files.thread import LOG
from langgraph_keel.errors import CorruptStore

Place: TypeAlias = tuple[str, str]
END = 16384
"""Bytes at the end of a log that mostly contain its last checkpoint."""


class LogEnd(NamedTuple):
    """The end of a log, when it was read.

    Attributes:
        file: Which one it was, its size and when it was changed.
        thread_id: Its thread; `None` if the directory is not that of a thread.
        updated_at: The time of its last checkpoint; `None` where the end does not tell it.
    """

    file: tuple[int, int, int, int]
    thread_id: str | None
    updated_at: str | None


def names_in(directory: Path) -> Iterator[str]:
    """Return the names of directories of threads; those with a dot in front are being made or deleted."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from (
            entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        )


def id_of(directory: Path) -> str | None:
    """Return the id of the thread in a directory; `None` if there is none, or this is not its name."""
    try:
        thread_id = thread_of(directory.name)
    except CorruptStore:
        return None
    return _long_id(directory) if thread_id is None else thread_id


def any_id_of(directory: Path) -> str | None:
    """As `id_of`; for a long id that no log tells any more, the name of its directory."""
    try:
        return id_of(directory) or (DirectoryName(directory.name) if thread_of(directory.name) is None else None)
    except CorruptStore:
        return None


def last_put(log: Path) -> str | None:
    """Return the time of the last checkpoint of a log; `None` if its end does not tell it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return _updated_at(str(log), os.stat(log).st_size)
    return None


def _long_id(directory: Path) -> str | None:
    try:
        with open_file(directory / LOG, "r") as log:
            thread_id = str(orjson.loads(log.readline())["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return thread_id if directory_of(thread_id) == directory.name else None


class Listing:
    """Keeps the ends of logs, until they change, and the listing that somebody is paging through.

    Args:
        directory: That of all threads.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._ends: dict[str, LogEnd] = {}
        self._places: list[Place] = []

    def places(self, after: Place | None, activity: Callable[[str], str]) -> Iterator[Place]:
        """Return (last activity, id) of the threads after a place, the latest first.

        All pages are of the listing that was made for the first: to look at every log for every page would take
        time that grows with the square of the number of logs.

        Args:
            after: The last place of the page before; `None` for the first.
            activity: Returns the last activity of a thread, for those where the end of the log does not tell it.
        """
        places = self._places
        at = bisect_left(places, after) if after else 0
        if after is None or at == len(places) or places[at] != after:
            places = self._places = sorted(self._newest(activity))
            at = len(places) if after is None else bisect_left(places, after)
        return (places[number] for number in range(at - 1, -1, -1))

    def _newest(self, activity: Callable[[str], str]) -> Iterator[Place]:
        seen: dict[str, LogEnd] = {}
        for name in names_in(Path(self._directory)):
            with suppress(FileNotFoundError, NotADirectoryError):
                seen[name] = self._read_end(name)
        self._ends = seen
        for _, thread_id, updated_at in seen.values():
            if thread_id is not None:
                yield updated_at if updated_at is not None else activity(thread_id), thread_id

    def _read_end(self, name: str) -> LogEnd:
        path = f"{self._directory}/{name}/{LOG}"
        status = os.stat(path)
        file = status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns
        before = self._ends.get(name)
        if before and before.file == file:
            return before
        return LogEnd(file, id_of(Path(self._directory, name)), _updated_at(path, status.st_size))


def _updated_at(path: str, size: int) -> str | None:
    with open_file(Path(path), "r") as log:
        log.seek(max(0, size - END))
        records = tail_records(log.readall() or b"")
    for fields in reversed(records):
        kind = fields.get("k")
        if kind == "gone":
            return None
        if kind == "ckpt" and not fields.get("ghost"):
            return str(fields.get("at"))
    return None
