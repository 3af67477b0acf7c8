"""The changes of a process to the files below one directory, in order.

Paths are relative to it; `""` is the directory itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Create:
    """A file was opened, and created if it was missing."""

    path: str


@dataclass(frozen=True, slots=True)
class Mkdir:
    """A directory was created."""

    path: str


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes were written; at the end of the file if `offset` is `None`."""

    path: str
    offset: int | None
    data: bytes

    def __str__(self) -> str:
        return f"Write({self.path!r}, {self.offset}, {len(self.data)} bytes)"


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file was set to a size."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """`fsync` or `fdatasync` returned; if it failed, no pending change was written."""

    path: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Rename:
    """A name was moved, replacing the file with the new name."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Link:
    """A file got a further name."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A file's name or an empty directory was removed."""

    path: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The process reported that a step was done."""

    step: int


Event: TypeAlias = Create | Mkdir | Write | Truncate | Sync | Rename | Link | Remove | Acknowledged
