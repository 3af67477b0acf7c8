"""A disk under a running system: its durable content, and its pending changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from .events import Create, Event, Link, Mkdir, Remove, Rename, Sync, Truncate, Write

SECTOR = 512
"""Bytes that a disk writes atomically."""
PAGE = 4096
"""Bytes that a system caches and writes to the disk as one."""

Slot: TypeAlias = tuple[int, str]
"""A name in a directory."""
Tree: TypeAlias = dict[str, bytes | None]
"""The files below a directory, and (`None`) the directories."""
Kept: TypeAlias = Callable[[int, int], bool]
"""Whether the k-th block of a file's n-th pending change reached the disk."""


@dataclass(slots=True)
class Inode:
    """A file.

    Attributes:
        durable: The content that is certainly on the disk.
        cached: The content that programs read, at the time of the last sync. It differs from `durable` only if that
            sync failed: the system then considers its cache written, and no later sync writes it again.
        pending: The changes since then.
    """

    durable: bytes = b""
    cached: bytes = b""
    pending: list[Write | Truncate] = field(default_factory=list)

    def content(self) -> bytes:
        """Return the content that programs read."""
        image = bytearray(self.cached)
        for change in self.pending:
            apply(image, change)
        return bytes(image)

    def sync(self, failed: bool) -> None:
        content = self.content()
        if not failed:
            written = self.crashed(len(self.pending), lambda change, block: True, PAGE)
            self.durable = written.ljust(len(content), b"\0")
        self.cached, self.pending = content, []

    def crashed(self, sizes: int, kept: Kept, block: int = SECTOR) -> bytes:
        """Return the content after a cut.

        It has the first `sizes` changes of size, and the blocks that are `kept`. A block is written as it was in memory
        after some change; an unwritten one reads as before, or as zeros.
        """
        image, disk = bytearray(self.cached), bytearray(self.durable)
        size, end = len(self.durable), inf
        for number, change in enumerate(self.pending):
            touched = apply(image, change)
            size = len(image) if number < sizes else size
            if isinstance(change, Truncate) and number < sizes:
                del disk[_up(change.size) :]
            elif isinstance(change, Truncate):
                # Later data has other places on the disk, to which this size does not refer.
                end = min(end, _up(change.size))
            for start in range(touched.start // block * block, touched.stop, block):
                if start < end and kept(number, start // block):
                    _put(disk, start, bytes(image[start : start + block]).ljust(block, b"\0"))
        return bytes(disk[:size]).ljust(size, b"\0")


def apply(image: bytearray, change: Write | Truncate) -> range:
    """Apply a change as programs see it; return the changed bytes.

    The rest of a truncated page becomes zeros.
    """
    if isinstance(change, Write):
        offset = len(image) if change.offset is None else change.offset
        _put(image, offset, change.data)
        return range(offset, offset + len(change.data))
    old = len(image)
    _put(image, change.size, b"")
    del image[change.size :]
    low = min(change.size, old)
    return range(low, min(_up(low), max(change.size, old)))


def _put(image: bytearray, offset: int, data: bytes) -> None:
    image.extend(bytes(max(0, offset - len(image))))
    image[offset : offset + len(data)] = data


def _up(size: int) -> int:
    return -(-size // PAGE) * PAGE


@dataclass(slots=True)
class Change:
    """Names that change together.

    Attributes:
        slots: The file of each name now, if any.
        unsure: The directories of these names that were not synced since.
    """

    slots: dict[Slot, int | None]
    unsure: set[int]


class Disk:
    """Files and directories below one directory, which was empty and durable at first."""

    def __init__(self) -> None:
        # Number 0 is the directory itself; `None` marks directories.
        self.inodes: list[Inode | None] = [None]
        self.names: dict[Slot, int] = {}
        self.durable: dict[Slot, int] = {}
        self.changes: list[Change] = []

    def tree(self) -> Tree:
        """Return the files that programs see."""
        return self.shown(self.names, lambda inode: inode.content())

    def shown(self, names: dict[Slot, int], content: Callable[[Inode], bytes]) -> Tree:
        """Return the files that `names` refer to."""
        tree: Tree = {}
        found = [("", 0)]
        for path, directory in found:
            for (parent, name), number in names.items():
                if parent != directory:
                    continue
                inode, below = self.inodes[number], f"{path}/{name}".lstrip("/")
                tree[below] = None if inode is None else content(inode)
                if inode is None:
                    found.append((below, number))
        return tree

    def do(self, event: Event) -> None:
        """Apply one event."""
        match event:
            case Create(path):
                if self._slot(path) not in self.names:
                    self._change({self._slot(path): self._made(Inode())})
            case Mkdir(path):
                self._change({self._slot(path): self._made(None)})
            case Write(path) | Truncate(path):
                self._file(path).pending.append(event)
            case Sync(path, failed):
                self._sync(self._number(path), failed)
            case Rename(old, new):
                self._change({self._slot(old): None, self._slot(new): self._number(old)})
            case Link(old, new):
                self._change({self._slot(new): self._number(old)})
            case Remove(path):
                self._change({self._slot(path): None})

    def _made(self, inode: Inode | None) -> int:
        self.inodes.append(inode)
        return len(self.inodes) - 1

    def _slot(self, path: str) -> Slot:
        directory, _, name = path.rpartition("/")
        return self._number(directory), name

    def _number(self, path: str) -> int:
        return self.names[self._slot(path)] if path else 0

    def _file(self, path: str) -> Inode:
        inode = self.inodes[self._number(path)]
        assert inode is not None
        return inode

    def _change(self, slots: dict[Slot, int | None]) -> None:
        set_names(self.names, slots)
        self.changes.append(Change(slots, {directory for directory, _ in slots}))

    def _sync(self, number: int, failed: bool) -> None:
        inode = self.inodes[number]
        if inode is not None:
            inode.sync(failed)
        elif not failed:
            for change in self.changes:
                change.unsure.discard(number)
                if not change.unsure:
                    set_names(self.durable, change.slots)
            self.changes = [change for change in self.changes if change.unsure]


def set_names(names: dict[Slot, int], slots: dict[Slot, int | None]) -> None:
    for slot, number in slots.items():
        if number is None:
            names.pop(slot, None)
        else:
            names[slot] = number
