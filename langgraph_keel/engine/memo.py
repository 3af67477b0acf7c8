"""The memo: a bounded LRU cache of each namespace's last known entry.

It saves `put` a read. A forgotten entry costs at most a read, never correctness: the store checks each base entry.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Literal
from weakref import WeakSet

from langgraph_keel.engine.encoding.bodies import RAW, WORTHWHILE, open_frame
from langgraph_keel.engine.encoding.values import Known, Version, without_bodies
from langgraph_keel.engine.records import Entry, Found, Stamp, Unchanged
from langgraph_keel.engine.serde.copies import Copies

DEFAULT_ENTRIES = 100
DEFAULT_BYTES = 64 << 20
CONTENTS = 16 << 20
"""Bytes of cached frames. Decompression took 250 of 340 µs to read 200 KB again."""

_memos: WeakSet[Memo] = WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock at the fork. In the child it would never be released.
    for memo in list(_memos):
        memo.lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class KnownEntry:
    """An entry that this process stored or read, with its memory of the channels."""

    __slots__ = ("channels", "entry", "header", "is_whole", "version", "versions", "weight")

    def __init__(
        self, entry: Entry, channels: Mapping[str, Known], versions: Mapping[str, Any], version: Version | None = None
    ) -> None:
        self.entry, self.channels, self.versions = entry, channels, versions
        self.is_whole = True  # whether it has the bodies of all rows, so that values can be decoded from it
        # Makes copies of its values, or of those of the previous entry; `False` if they do not fit in memory.
        self.version: Version | Literal[False] | None = version
        # Makes copies of its header after a second read; `False` if the header is decoded each time.
        self.header: Copies | Literal[False] | None = None
        self.weigh()

    def weigh(self) -> None:
        """Set `weight`: approximate bytes of memory."""
        entry, known = self.entry, self.channels.values()
        self.weight = 1000 + 200 * len(entry.refs) + len(entry.header) + sum([each.weight for each in known])
        self.weight += (self.version.nbytes if self.version else 0) + (self.header.nbytes if self.header else 0)

    @property
    def stamp(self) -> Stamp:
        """The stamp of the entry."""
        return self.entry.stamp

    @property
    def checkpoint_id(self) -> str | None:
        """The id of the entry."""
        return self.entry.address.checkpoint_id

    def drop_copies(self, most: int) -> None:
        """Drop the copies if the entry exceeds `most` bytes, so that the entry can stay."""
        if self.weight > most and self.version:
            self.version, self.header = False, None
            self.weigh()

    def within(self, most: int) -> KnownEntry | None:
        """Return itself, without the bodies of its rows if it exceeds `most` bytes.

        The next `put` needs no bodies. Returns `None` if a value has not been fingerprinted yet.
        """
        if self.weight <= most:
            return self
        light = {name: without_bodies(known) for name, known in self.channels.items()}
        kept = {name: known for name, known in light.items() if known is not None}
        if len(kept) < len(light):
            return None
        found = KnownEntry(self.entry, kept, self.versions)
        found.is_whole = all(row.body for known in kept.values() for row in known.rows)
        return found

    def refresh(self, now: Unchanged, rows: bool) -> Found:
        """Return the entry as the store would now, with rows if requested."""
        entry = self.entry
        if entry.parent != now.parent:
            entry = Entry(entry.address, now.parent, entry.stamp, entry.header, entry.refs, entry.run_id)
        return Found(entry, {name: known.rows for name, known in self.channels.items()} if rows else {}, now.batches)


class Memo:
    """The last known entries by (thread, namespace), limited in number and bytes."""

    def __init__(self, entries: int = DEFAULT_ENTRIES, nbytes: int = DEFAULT_BYTES) -> None:
        self._entries = entries
        self._room = self._most = nbytes
        self._bases: OrderedDict[tuple[str, str], tuple[KnownEntry, int]] = OrderedDict()
        self._contents: OrderedDict[bytes, bytes] = OrderedDict()
        self._contents_room = CONTENTS
        self.lock = Lock()
        _memos.add(self)

    def empty(self) -> Memo:
        """Return an empty memo of the same size."""
        return Memo(self._entries, self._most)

    def get(self, key: tuple[str, str]) -> KnownEntry | None:
        """Return the last known entry of a (thread, namespace)."""
        with self.lock:
            if (found := self._bases.get(key)) is None:
                return None
            self._bases.move_to_end(key)
            return found[0]

    def set(self, key: tuple[str, str], base: KnownEntry) -> None:
        """Remember `base`; evict other entries if necessary."""
        base.drop_copies(self._most)
        kept = base.within(self._most)
        with self.lock:
            if kept is not None:
                self._set(key, kept)
            elif key in self._bases and self._bases[key][0].stamp != base.stamp:
                self._remove(key)

    def _set(self, key: tuple[str, str], base: KnownEntry) -> None:
        self._remove(key)
        self._bases[key] = base, base.weight
        self._room -= base.weight
        while self._bases and (len(self._bases) > self._entries or self._room < 0):
            self._remove(next(iter(self._bases)))

    def weigh(self, key: tuple[str, str], base: KnownEntry) -> None:
        """Update the weight of an entry unless it was replaced; evict others if necessary."""
        with self.lock:
            if key in self._bases and self._bases[key][0] is base:
                base.weigh()
                base.drop_copies(self._most)
                self._set(key, base)

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

    def open_frame(self, body: bytes, opener: Callable[[bytes], bytes] = open_frame) -> bytes:
        """Return the result of `opener`, from a cache of recently opened large frames."""
        if type(body) is not bytes or len(body) < WORTHWHILE // 8 or body.startswith(RAW):
            return opener(body)
        with self.lock:
            content = self._contents.pop(body, None)
            if content is not None:
                self._contents[body] = content  # move to the end, as the most recently used
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
