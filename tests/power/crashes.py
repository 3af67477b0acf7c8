"""The disks that a power cut can leave: a sample, or many at every moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

from .disk import Disk, Inode, Tree, set_names
from .events import Acknowledged, Event

NAMES = (0.0, 0.5, 0.9, 1.0)
"""Probabilities that an unsynced name survives."""
DATA = ("none", "sizes", "prefix", "writes", "sectors", "all")
"""Which part of a file's unsynced data may survive."""
WAYS = tuple(product(NAMES, DATA))
REPEATS = 3
"""Draws in each way, if all ways are requested."""


@dataclass(frozen=True, slots=True)
class State:
    """A disk after a power cut.

    Attributes:
        tree: Its files and directories.
        acknowledged: The last step acknowledged before the cut.
        story: A description of the cut.
    """

    tree: Tree
    acknowledged: int
    story: str

    def put_into(self, directory: Path) -> None:
        """Create a directory with the files of this disk."""
        directory.mkdir()
        for path, content in self.tree.items():
            if content is None:
                (directory / path).mkdir()
            else:
                (directory / path).write_bytes(content)


def crashes(events: Sequence[Event], seed: int, count: int | None = None, first: int = 0) -> Iterator[State]:
    """Yield disks after a cut behind any event from `first` on.

    Args:
        events: The events since the disk was empty.
        seed: Determines the disks.
        count: How many to draw; `None`: some in each of `WAYS` behind each event. Duplicates are omitted, so fewer are
            yielded.
        first: The number of the first event to cut behind.
    """
    random = Random(seed)
    disk, step, seen = Disk(), 0, set[int]()
    ways = [*([[]] * first), *_drawn(len(events) - first, count, random)]
    for number, event in enumerate(events):
        disk.do(event)
        if isinstance(event, Acknowledged):
            step = event.step
        for names, data in ways[number]:
            state = _crashed(disk, names, data, random, step, f"cut after event {number}, {event}")
            key = hash((frozenset(state.tree.items()), state.acknowledged))
            if key not in seen:
                seen.add(key)
                yield state


def _drawn(moments: int, count: int | None, random: Random) -> list[list[tuple[float, str]]]:
    """Return the ways to cut at each moment."""
    if count is None:
        return [list(WAYS * REPEATS) for _ in range(moments)]
    ways: list[list[tuple[float, str]]] = [[] for _ in range(moments)]
    for _ in range(count):
        random.choice(ways).append(random.choice(WAYS))
    return ways


def _crashed(disk: Disk, likely: float, data: str, random: Random, step: int, story: str) -> State:
    names = dict(disk.durable)
    lost: set[str] = set()
    for change in disk.changes:
        if random.random() < likely:
            set_names(names, change.slots)
        else:
            lost |= {name for _, name in change.slots}
    tree = disk.shown(names, lambda inode: _content(inode, data, random))
    return State(tree, step, f"{story}; of unsynced data: {data}; lost names: {sorted(lost)}")


def _content(inode: Inode, data: str, random: Random) -> bytes:
    count = len(inode.pending)
    if data in ("none", "sizes"):
        return inode.crashed(count if data == "sizes" else 0, lambda change, sector: False)
    if data == "all":
        return inode.crashed(count, lambda change, sector: True)
    sizes = random.randint(0, count)
    if data == "prefix":
        return inode.crashed(sizes, lambda change, sector: change < sizes)
    if data == "writes":
        written = [random.random() < 0.5 for _ in range(count)]
        return inode.crashed(sizes, lambda change, sector: written[change])
    return inode.crashed(random.choice((sizes, count)), lambda change, sector: random.random() < 0.5)
