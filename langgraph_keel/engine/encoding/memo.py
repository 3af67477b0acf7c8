"""The memo: what a process knows of the threads it served last, so that `put` needs no read.

Bounded by entries and by bytes; the least recently used goes first. Forgetting costs at most a read (see
`checkpoints.put`), never correctness: everything in here is checked against the store by the entry it is based on.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any
from weakref import WeakSet

from langgraph_keel.engine.encoding.bodies import RAW, WORTHWHILE, unframe
from langgraph_keel.engine.encoding.values import Known
from langgraph_keel.engine.records import Entry, Found, Stamp, Unchanged

_memos: WeakSet[Memo] = WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock at that moment; here nobody would give it back.
    for memo in list(_memos):
        memo.lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

DEFAULT_ENTRIES = 100
DEFAULT_BYTES = 64 << 20
CONTENTS = 16 << 20
"""Bytes of what compressed frames hold. Of reading a text of 200 KB again, decompressing it took 250 of 340 µs."""


class Base:
    """One entry this process stored or read, and what it knows of its channels.

    Attributes:
        entry: The entry.
        channels: What stands in items.
        versions: The versions of its channels.
        weight: Bytes this takes in memory, about.
    """

    __slots__ = ("channels", "entry", "versions", "weight")

    def __init__(self, entry: Entry, channels: Mapping[str, Known], versions: Mapping[str, Any]) -> None:
        self.entry, self.channels, self.versions = entry, channels, versions
        self.weight = (
            1000 + 200 * len(entry.refs) + len(entry.header) + sum([each.weight for each in channels.values()])
        )

    @property
    def stamp(self) -> Stamp:
        """What the store calls the entry."""
        return self.entry.stamp

    @property
    def checkpoint_id(self) -> str | None:
        """The id of the entry."""
        return self.entry.address.checkpoint_id

    def refresh(self, now: Unchanged) -> Found:
        """Return the entry as the store would, with what may have changed beside it."""
        entry = self.entry
        if entry.parent != now.parent:
            entry = Entry(entry.address, now.parent, entry.stamp, entry.header, entry.refs, entry.run_id)
        return Found(entry, {name: known.rows for name, known in self.channels.items()}, now.batches)


class Memo:
    """The last known entry of each (thread, namespace)."""

    def __init__(self, entries: int = DEFAULT_ENTRIES, nbytes: int = DEFAULT_BYTES) -> None:
        self._entries = entries
        self._room = nbytes
        self._bases: OrderedDict[tuple[str, str], tuple[Base, int]] = OrderedDict()
        self._contents: OrderedDict[bytes, bytes] = OrderedDict()
        self._contents_room = CONTENTS
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
            self._remove(key)
            self._bases[key] = base, weight
            self._room -= weight
            while self._bases and (len(self._bases) > self._entries or self._room < 0):
                self._remove(next(iter(self._bases)))

    def forget(self, key: tuple[str, str]) -> None:
        """Forget a (thread, namespace)."""
        with self.lock:
            self._remove(key)

    def forget_thread(self, thread_id: str) -> None:
        """Forget all namespaces of a thread."""
        with self.lock:
            for key in [key for key in self._bases if key[0] == thread_id]:
                self._remove(key)
            self._contents.clear()
            self._contents_room = CONTENTS

    def unframe(self, body: bytes, opener: Callable[[bytes], bytes] = unframe) -> bytes:
        """Return what `opener` does, opening no large frame again that was opened a moment ago.

        Raises:
            CorruptStore: As the opener.
        """
        if type(body) is not bytes or len(body) < WORTHWHILE // 8 or body.startswith(RAW):
            return opener(body)
        with self.lock:
            content = self._contents.pop(body, None)
            if content is not None:
                self._contents[body] = content  # the last one used goes last
                return content
        content = opener(body)
        with self.lock:
            if self._contents.setdefault(body, content) is content:
                self._contents_room -= len(content)
            while self._contents_room < 0:
                self._contents_room += len(self._contents.popitem(last=False)[1])
        return content

    def _remove(self, key: tuple[str, str]) -> None:
        if key in self._bases:
            self._room += self._bases.pop(key)[1]
