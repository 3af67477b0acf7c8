"""The memo: what a process knows of the threads it served last, so that `put` needs no read.

Bounded by entries and by bytes; the least recently used goes first. Forgetting costs at most a read (see
`checkpoints.put`), never correctness: everything in here is checked against the store by the entry it is based on.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakSet

from langgraph_keel.core.encoding import Known
from langgraph_keel.core.records import Stamp

_memos: WeakSet[Memo] = WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock at that moment; here nobody would give it back.
    for memo in list(_memos):
        memo.lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

DEFAULT_ENTRIES = 100
DEFAULT_BYTES = 64 << 20
OWNERS = 10_000
"""Of so many it is known whose they are: more than of what they hold, as a run that names nobody goes on for them."""


@dataclass(frozen=True, slots=True)
class Base:
    """One entry this process stored or read, and what it knows of its channels.

    Attributes:
        stamp: The entry.
        channels: What stands in items.
        checkpoint_id: Its id.
        owner: Whom it names.
        versions: The versions of its channels.
    """

    stamp: Stamp
    channels: Mapping[str, Known]
    checkpoint_id: str | None = None
    owner: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """Bytes this takes in memory, about."""
        return 500 + 100 * len(self.versions) + sum(len(name) + known.weight for name, known in self.channels.items())


class Memo:
    """The last known entry of each (thread, namespace)."""

    def __init__(self, entries: int = DEFAULT_ENTRIES, nbytes: int = DEFAULT_BYTES) -> None:
        self._entries = entries
        self._room = nbytes
        self._bases: OrderedDict[tuple[str, str], tuple[Base, int]] = OrderedDict()
        self._owners: OrderedDict[tuple[str, str], tuple[str | None, str]] = OrderedDict()
        self.lock = Lock()
        _memos.add(self)

    def get(self, key: tuple[str, str]) -> Base | None:
        """Return what is known of a (thread, namespace)."""
        with self.lock:
            if key not in self._bases:
                return None
            self._bases.move_to_end(key)
            return self._bases[key][0]

    def set(self, key: tuple[str, str], base: Base) -> None:
        """Remember `base`, forgetting others if there is no room."""
        weight = base.weight
        with self.lock:
            self._own(key, base)
            self._remove(key)
            self._bases[key] = base, weight
            self._room -= weight
            while self._bases and (len(self._bases) > self._entries or self._room < 0):
                self._remove(next(iter(self._bases)))

    def owner(self, key: tuple[str, str], checkpoint_id: str | None) -> str:
        """Return whom a checkpoint names, if it is the last one known of its (thread, namespace); empty if not."""
        with self.lock:
            known, owner = self._owners.get(key, (None, ""))
            return owner if known == checkpoint_id else ""

    def _own(self, key: tuple[str, str], base: Base) -> None:
        self._owners.pop(key, None)
        if base.owner:
            self._owners[key] = base.checkpoint_id, base.owner
        while len(self._owners) > OWNERS:
            self._owners.popitem(last=False)

    def forget(self, key: tuple[str, str]) -> None:
        """Forget a (thread, namespace)."""
        with self.lock:
            self._remove(key)

    def forget_thread(self, thread_id: str) -> None:
        """Forget all namespaces of a thread."""
        with self.lock:
            for key in [key for key in self._bases if key[0] == thread_id]:
                self._remove(key)
            for key in [key for key in self._owners if key[0] == thread_id]:
                del self._owners[key]

    def _remove(self, key: tuple[str, str]) -> None:
        if key in self._bases:
            self._room += self._bases.pop(key)[1]
