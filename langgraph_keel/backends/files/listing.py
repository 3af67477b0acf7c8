"""Lists threads with the time of their last activity, from the ends of their logs."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

import orjson

from langgraph_keel.backends.files.disk import DirectoryName, directory_of, open_file, thread_of
from langgraph_keel.backends.files.index import Activity, Ends, Index, LogEnd, Place, state_of
from langgraph_keel.backends.files.log import lines_in, parse_line
from langgraph_keel.backends.files.thread import LOG
from langgraph_keel.engine.records import Page
from langgraph_keel.errors import CorruptStore

END = 16384
"""Bytes at the end of a log that usually contain its last checkpoint."""


def names_in(directory: Path) -> Iterator[str]:
    """Return the directories of threads, except those being made or deleted."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from (
            entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        )


def id_of(directory: Path) -> str | None:
    """Return the id of the thread in a directory; `None` if it has another name."""
    try:
        thread_id = thread_of(directory.name)
    except CorruptStore:
        return None
    if thread_id is not None:
        return thread_id
    try:
        with open_file(directory / LOG, "r") as log:
            thread_id = str(orjson.loads(log.readline())["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return thread_id if directory_of(thread_id) == directory.name else None


def any_id_of(directory: Path) -> str | None:
    """As `id_of`; the directory's name for a long id that no log contains."""
    try:
        return id_of(directory) or (DirectoryName(directory.name) if thread_of(directory.name) is None else None)
    except CorruptStore:
        return None


def last_put(log: Path) -> str | None:
    """Return the time of a log's last checkpoint; `None` if its end has none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return _read_end(str(log), os.stat(log).st_size)[0]
    return None


class Listing:
    """Caches facts from the ends of logs, and the listings that callers page through."""

    def __init__(self, directory: Path, writes: bool) -> None:
        self._directory = str(directory)
        self._index = Index(directory, writes)
        self._turn = Lock()
        self._ends = Ends()
        self._pages: dict[bool, Sequence[Place]] = {True: [], False: []}

    def places(self, page: Page, activity: Activity) -> Iterator[Place]:
        """Return (last activity, id) of the threads from the beginning of a page on.

        `activity` is called if the end of a log does not contain it. If the page is tolerant, an index is used, and
        damaged threads come last.
        """
        after, passes, terms = page.after, page.tolerant, page.terms
        # All pages use the listing made for the first page. Reading every log for every page would take time that grows
        # with the square of the number of logs.
        places = self._pages[passes]
        at = bisect_left(places, after) if after else 0
        if after is None or at == len(places) or places[at][:2] != after:
            with self._turn:
                places = self._pages[passes] = self._newest(activity, passes)
        at = bisect_left(places, after) if after else 0
        if page.oldest_first:
            numbers = range(at + (places[at : at + 1] != [] and places[at][:2] == after), len(places))
        else:
            numbers = range((at if after else len(places)) - 1, -1, -1)
        found = map(places.__getitem__, numbers)
        if not (passes and terms):
            return ((at, thread_id) for at, thread_id, _ in found)
        # The first term is tested alone: it excludes most threads, and `all` takes as long as everything else.
        term, *others = terms
        some = (place for place in found if place[2] is None or term in place[2])
        return (place[:2] for place in some if all(each in (place[2] or each) for each in others))

    def _newest(self, activity: Activity, passes: bool) -> Sequence[Place]:
        ends = (self._by_index(activity) if passes else None) or self._look_at_all(activity)
        self._ends = ends
        if len(ends.places) == len(ends.logs):
            return ends.places
        damaged = [thread_id for _, thread_id, at, _ in ends.logs.values() if at is None]
        lost = [("" if passes else activity(thread_id), thread_id, None) for thread_id in damaged]
        return sorted([*ends.places, *lost])

    def _by_index(self, activity: Activity) -> Ends | None:
        """Return the ends of logs from the index; `None` if it cannot be trusted."""
        known = self._index.load(self._ends)
        changes = None if known is None else self._index.changes()
        if known is None or changes is None:
            self._ends = known or self._ends
            return None
        if not self._index.agrees(known, changes):
            self._ends = known
            return None
        ends = known.copy()
        for name in changes.names:
            ends.update(name, self._look_at(name, known, activity))
        self._index.grow(ends, changes)
        return ends

    def _look_at_all(self, activity: Activity) -> Ends:
        names = list(names_in(Path(self._directory)))
        changes = self._index.begin(len(names))
        if changes is not None:
            names = list(names_in(Path(self._directory)))
        ends = Ends()
        for name in names:
            end = self._look_at(name, self._ends, activity)
            if end is not None:
                ends.logs[name] = end
        ends.sort()
        if changes is not None and ends.logs:
            self._index.make(ends, changes)
        return ends

    def _look_at(self, name: str, known: Ends, activity: Activity) -> LogEnd | None:
        """Return the end of a log; `None` if there is none, or it is not a thread's."""
        path = f"{self._directory}/{name}/{LOG}"
        try:
            status = os.stat(path)
            state = state_of(status)
            before = known.logs.get(name)
            if before is not None and before[0] == state:
                return before
            thread_id = id_of(Path(self._directory, name))
            if thread_id is None:
                return None
            with suppress(CorruptStore):
                updated_at, marks = _read_end(path, status.st_size)
                return state, thread_id, activity(thread_id) if updated_at is None else updated_at, marks
            return state, thread_id, None, None
        except (FileNotFoundError, NotADirectoryError):
            return None


def _read_end(path: str, size: int) -> tuple[str | None, str | None]:
    """Return a log's last activity and marks; `None` if its end has none."""
    with open_file(Path(path), "r") as log:
        log.seek(max(0, size - END))
        lines = [*lines_in(log.readall() or b"")]
    updated_at, late = None, defaultdict[str, list[str]](list)
    for line in reversed(lines):
        try:
            fields = parse_line(line)
        except ValueError:  # such as a partial first line
            continue
        kind = fields.get("k")
        if kind == "gone":
            break
        if kind == "ckpt" and not fields.get("ghost"):
            updated_at = updated_at or str(fields.get("at"))
            if not fields.get("ns") and not fields.get("fork"):  # the latest of the thread
                marks = fields.get("marks")
                return updated_at, None if marks is None else " ".join([*marks, *late[fields["id"]]])
        if kind == "writes" and not fields.get("ns"):
            late[fields["id"]] += fields.get("marks", ())
    return updated_at, None
