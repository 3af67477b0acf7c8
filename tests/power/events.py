"""What a process did to the files below one directory, in order. Paths are relative to it; `""` is itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Create:
    """A file was opened that is made if it is missing."""

    path: str


@dataclass(frozen=True, slots=True)
class Mkdir:
    """A directory was made."""

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
    """A file was given a size."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """`fsync` or `fdatasync` of a file or directory came back; if it failed, nothing pending reached the disk."""

    path: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Rename:
    """A name was moved, over what had the new one."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Link:
    """A file got a further name."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A file's name or an empty directory went."""

    path: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The process said that a step was done."""

    step: int


Event: TypeAlias = Create | Mkdir | Write | Truncate | Sync | Rename | Link | Remove | Acknowledged
