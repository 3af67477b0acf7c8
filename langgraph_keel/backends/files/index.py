"""The index of threads: facts from the ends of logs (README, "Large stores").

A writer may still be writing while its log is read. Logs named in the last ten seconds are therefore read again, and an
index is made only when `.changed` is ten seconds old. A writer that takes five seconds or more names its thread again.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import sample
from secrets import token_hex
from time import monotonic  # of the system, not of the process: all processes of one boot share it
from typing import Any, TypeAlias
from zlib import crc32

import orjson

from langgraph_keel.backends.files.disk import MODE, directory_of, is_at, open_file

Place: TypeAlias = tuple[Any, ...]
"""A thread's last activity, id, and marks in one text (`None` if unknown)."""
State: TypeAlias = tuple[int, ...]
"""The state of a log: the inode, size and change time of its file."""
LogEnd: TypeAlias = tuple[State, str, str | None, str | None]
"""A log's state and thread, the time of its last checkpoint, and the marks.

The time is `None` if the log is damaged.
"""

INDEX, CHANGED = ".index", ".changed"
VERSION = 2
LEAST = 2000
"""Minimum number of threads for an index; fewer logs are read in some 10 ms."""
SETTLED = 10.0
"""Seconds within which a writer finishes, or names its thread again."""
BELIEVED = 3600.0
"""Maximum age of an index in seconds; then all logs are read again."""
SAMPLE = 100
"""Number of newest and of random threads that are compared with the index."""
MOST_NEW = 2000
"""Number of threads named since the index was made after which it is made again."""
LARGEST = 4 << 20
"""Maximum bytes of `.changed`; a larger one is deleted, as it was long unused."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_APPEND = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)


# -- writers -----------------------------------------------------------------------------------------------------------


@contextmanager
def changing(changed: str, name: str) -> Iterator[None]:
    """Name a thread that is about to change, if there is an index."""
    handle, since = _name_in(changed, name), monotonic()
    try:
        yield
    finally:
        is_known = handle is not None and is_at(handle, Path(changed)) and monotonic() - since < SETTLED / 2
        again = None if is_known else _name_in(changed, name)
        for each in (handle, again):
            if each is not None:
                os.close(each)


def _name_in(changed: str, name: str) -> int | None:
    """Append a name; return the open file, or `None` if there is no index."""
    try:
        handle = os.open(changed, _APPEND)
    except FileNotFoundError:
        return None
    line = f"{monotonic():.6f} {name}\n".encode()
    try:
        is_whole = os.write(handle, line) == len(line)
    except OSError:
        is_whole = False
    if not is_whole or os.lseek(handle, 0, os.SEEK_CUR) > LARGEST:
        with suppress(FileNotFoundError):
            os.unlink(changed)  # without it, no index is used
    return handle


# -- readers -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ends:
    """Facts from the ends of logs."""

    logs: dict[str, LogEnd] = field(default_factory=dict)  # by name of the directory
    places: list[Place] = field(default_factory=list)  # of the undamaged threads, sorted

    def sort(self) -> Ends:
        """Sort the places."""
        self.places = sorted((at, thread_id, marks) for _, thread_id, at, marks in self.logs.values() if at is not None)
        return self

    def update(self, name: str, end: LogEnd | None) -> None:
        """Record the present end of a log; `None` if it was removed."""
        _, thread_id, at, marks = self.logs.pop(name, (None, "", None, None))
        where = bisect_left(self.places, (at or "", thread_id))
        del self.places[where : where + (self.places[where : where + 1] == [(at, thread_id, marks)])]
        if end is not None:
            self.logs[name] = end
            if end[2] is not None:
                insort(self.places, (end[2], end[1], end[3]))

    def copy(self) -> Ends:
        """Return a copy with its own list of places, for undisturbed paging."""
        return Ends(self.logs, self.places.copy())


@dataclass(slots=True)
class Changes:
    """The content of `.changed`."""

    token: str  # identifies this file
    made: float  # on the system's monotonic clock
    names: dict[str, float]  # the named threads, with the times
    size: int  # offset up to which the file was read
    settled: int  # offset up to which all names are so old that their writers have finished


@cache
def _boot_id() -> str:
    """Return the id of the machine's present boot, cached; empty if it is unknown."""
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


class Index:
    """The index of the threads of one directory; `writes`: whether it may be made."""

    def __init__(self, directory: Path, writes: bool) -> None:
        self._directory = str(directory)
        self._index, self._changed = f"{directory}/{INDEX}", f"{directory}/{CHANGED}"
        self._writes = writes
        self._head: dict[str, Any] = {}

    def load(self, known: Ends) -> Ends | None:
        """Return the index, trusted or not; `known` if unchanged; `None` if missing."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            with open_file(Path(self._index), "r") as file:
                head = orjson.loads(file.read(4096).partition(b"\n")[0])
                if head == self._head:
                    return known
                if not self._is_ours(head):
                    return None
                file.seek(0)
                body = (file.readall() or b"").partition(b"\n")[2]
            if crc32(body) != head["crc"]:
                return None
            names, *columns = orjson.loads(body)
            states = zip(*columns[:3], strict=True)
            ends = Ends(dict(zip(names, zip(states, *columns[3:], strict=True), strict=True))).sort()
            self._head = head
            return ends
        return None

    def _is_ours(self, head: Any) -> bool:
        return bool(
            head["version"] == VERSION
            and _boot_id()
            and head["boot"] == _boot_id()
            and head["directory"] == self._identity()
            and 0 <= monotonic() - head["made"] < BELIEVED
        )

    def _identity(self) -> list[int]:
        status = os.stat(self._directory)
        return [status.st_dev, status.st_ino]

    def changes(self) -> Changes | None:
        """Return the threads named since; `None` if the index cannot be trusted."""
        found = self._read_changed(self._head.get("from", 0))
        is_ours = found is not None and found.token == self._head.get("token") and self._is_ours(self._head)
        return found if is_ours and not self._is_in_git() else None

    def _read_changed(self, at: int = 0) -> Changes | None:
        with suppress(OSError, ValueError, IndexError):
            with open_file(Path(self._changed), "r") as file:
                first, _, rest = (file.readall() or b"").partition(b"\n")
            made, token = first.decode().split(" ")
            size, young = len(first) + 1 + len(rest), monotonic() - SETTLED
            at = max(at, len(first) + 1)
            lines = rest[at - len(first) - 1 :]
            if lines and not lines.endswith(b"\n"):
                return None
            found, end, is_settled = Changes(token, float(made), {}, size, at), at, True
            for line in lines.splitlines():
                named, name = line.decode().split(" ", 1)
                found.names[name] = float(named)
                end += len(line) + 1
                is_settled = is_settled and float(named) < young
                found.settled = end if is_settled else found.settled
            return found
        return None

    def _is_in_git(self) -> bool:
        directory = os.path.realpath(self._directory)
        while not os.path.lexists(f"{directory}/.git"):
            directory, below = os.path.dirname(directory), directory
            if directory == below:
                return False
        return True

    def agrees(self, ends: Ends, changes: Changes) -> bool:
        """Return whether a sample of logs matches the index, or is named as changed."""
        places = ends.places
        looked_at = [*places[max(0, len(places) - SAMPLE) :], *sample(places, min(SAMPLE, len(places)))]
        names = {directory_of(place[1]) for place in looked_at}.difference(changes.names)
        others = [name for name in names if self._state(name) != (ends.logs[name][0] if name in ends.logs else None)]
        if not others:
            return True
        since = self._read_changed(changes.size)
        return since is not None and since.token == changes.token and {*others} <= {*since.names}

    def _state(self, name: str) -> State | None:
        with suppress(OSError):
            return state_of(os.stat(f"{self._directory}/{name}/log.jsonl"))
        return None

    def begin(self, count: int) -> Changes | None:
        """Return the threads named so far, if an index should be made."""
        if not (self._writes and _boot_id() and count >= LEAST) or self._is_in_git():
            return None
        found = self._read_changed()
        if found is None:
            self._write(self._changed, f"{monotonic():.6f} {token_hex(8)}\n".encode())
            return None
        return found if monotonic() - found.made >= SETTLED else None

    def make(self, ends: Ends, changes: Changes, made: float | None = None) -> None:
        """Write the index from ends that were read after `changes`; ignore errors."""
        # Column by column, which lets 100,000 threads be read in a tenth of a second.
        states, *columns = zip(*ends.logs.values(), strict=True)
        body = orjson.dumps([[*ends.logs], *zip(*states, strict=True), *columns])
        head = {
            **{"version": VERSION, "boot": _boot_id(), "directory": self._identity(), "token": changes.token},
            **{"from": changes.settled, "made": monotonic() if made is None else made, "crc": crc32(body)},
        }
        if self._write(self._index, orjson.dumps(head) + b"\n" + body):
            self._head = head

    def grow(self, ends: Ends, changes: Changes) -> None:
        """Make the index again after many changes; all logs are read when due before."""
        if self._writes and len(changes.names) > MOST_NEW and changes.settled > self._head["from"]:
            self.make(ends, changes, self._head["made"])

    def _write(self, path: str, data: bytes) -> bool:
        """Replace a file as a whole, not durably: after a power cut it is not used."""
        temporary = f"{path}.{token_hex(4)}.tmp"
        try:
            handle = os.open(temporary, _NEW_FILE, MODE)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            return False
        return True


def state_of(status: os.stat_result) -> State:
    """Return the state of a log."""
    return status.st_ino, status.st_size, status.st_ctime_ns


Activity: TypeAlias = Callable[[str], str]
