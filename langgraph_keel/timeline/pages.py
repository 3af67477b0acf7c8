"""A thread's entries and moments, read as far as somebody has looked: newest first, headers in pages, no state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph_keel.core.checkpoints import Checkpoints
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.labels import labels_of
from langgraph_keel.core.plan import Plan
from langgraph_keel.core.records import Address, Entry, Query
from langgraph_keel.timeline.moment import Moment
from langgraph_keel.timeline.reading import moments_of, state_bytes

PAGE = 500
"""Headers to a page."""
STRETCH = 50
"""Moments that are read together: of these, what is new in them, and their writes."""
SHORTEST_END = 4
"""Characters of the end of an id that name it at least: fewer are a slip rather than a name."""
SAMPLES = 100
"""Moments whose whole state is measured for a picture of a long thread."""


class Pages:
    """What is known of a thread: it as it was when it was first looked at, and no newer.

    Args:
        core: The saver's plans.
        codec: How values are read.
        thread_id: The thread.

    Attributes:
        entries: Those read so far, newest first.
        is_whole: Whether there are no older ones.
    """

    def __init__(self, core: Checkpoints[Any, Any], codec: Codec, thread_id: str) -> None:
        self._core = core
        self._codec = codec
        self.thread_id = thread_id
        self.entries: list[Entry] = []
        self.is_whole = False
        self._places: dict[Address, int] = {}
        self._continued: set[Address] = set()
        self._heads: dict[str, Address] = {}
        self._labels: Mapping[Address, tuple[str, ...]] = {}
        self._moments: dict[Address, Moment] = {}
        self._sizes: dict[Address, int] = {}

    def upto(self, count: int | None) -> Plan[Any, Any, None]:
        """Read headers until there are `count`, or all (`None`)."""
        while not self.is_whole and (count is None or len(self.entries) < count):
            last = self.entries[-1] if self.entries else None
            page = yield from self._core.store.scan(Query(self.thread_id, limit=PAGE, after=last))
            if last is None:
                yield from self._open(page)
            self._take(page)
            self.is_whole = len(page) < PAGE

    def _open(self, page: Sequence[Entry]) -> Plan[Any, Any, None]:
        labels: dict[Address, tuple[str, ...]] = {}
        for label in (yield from labels_of(self._core.store, self._codec, self.thread_id)):
            labels[label.address] = (*labels.get(label.address, ()), label.name)
        self._labels = labels
        # The latest is not always what was put last: a branch is put beside the trunk.
        head = yield from self._core.store.read_entry(Address(self.thread_id))
        if head and head.entry.address in {entry.address for entry in page}:  # else it was put in between
            self._heads[""] = head.entry.address

    def _take(self, page: Sequence[Entry]) -> None:
        for entry in page:
            self._places[entry.address] = len(self.entries)
            self.entries.append(entry)
            self._heads.setdefault(entry.address.checkpoint_ns, entry.address)
            if entry.parent:
                self._continued.add(replace(entry.address, checkpoint_id=entry.parent))

    def moments(self, places: range) -> Plan[Any, Any, Sequence[Moment]]:
        """Return the moments at places counted from the newest, without those gone meanwhile."""
        yield from self.upto(places.stop)
        # Read with their neighbours, which are likely to be asked for next.
        start, stop = places.start // STRETCH * STRETCH, -(-places.stop // STRETCH) * STRETCH
        wanted = [entry for entry in self.entries[start:stop] if entry.address not in self._moments]
        for first in range(0, len(wanted), STRETCH):
            read = yield from moments_of(self._core, self._codec, wanted[first : first + STRETCH])
            self._moments.update((moment.address, moment) for moment in read)
        shown = self.entries[places.start : places.stop]
        return [self._placed(entry.address) for entry in shown if entry.address in self._moments]

    def _placed(self, address: Address) -> Moment:
        place, moment = self._places[address], self._moments[address]
        is_leaf = address not in self._continued
        return replace(
            moment,
            position=len(self.entries) - 1 - place if self.is_whole else -1 - place,
            labels=self._labels.get(address, ()),
            is_head=self._heads.get(address.checkpoint_ns) == address,
            is_leaf=is_leaf,
            # Where the run went on, what its tasks had written is in the next checkpoint.
            pending=moment.pending if is_leaf else (),
            errors=moment.errors if is_leaf else (),
            interrupts=moment.interrupts if is_leaf else (),
        )

    def head(self, namespace: str) -> Address | None:
        """Return the latest checkpoint of a namespace."""
        return self._heads.get(namespace)

    def place_of(self, address: Address) -> int | None:
        """Return where an entry that was read stands, counted from the newest."""
        return self._places.get(address)

    def way_to(self, address: Address) -> Sequence[Address]:
        """Return the checkpoints that lead to one, itself last, of those read."""
        way: list[Address] = []
        place = self._places.get(address)
        while place is not None:
            entry = self.entries[place]
            way.append(entry.address)
            place = self._places.get(replace(entry.address, checkpoint_id=entry.parent)) if entry.parent else None
        return way[::-1]

    def nearest(self, address: Address, shown: Collection[Address]) -> str | None:
        """Return the id of the nearest checkpoint before one that is among those shown."""
        entry = self.entries[self._places[address]]
        while entry.parent is not None:
            before = replace(entry.address, checkpoint_id=entry.parent)
            if before in shown or before not in self._places:
                return entry.parent if before in shown else None
            entry = self.entries[self._places[before]]
        return None

    def named(self, name: str) -> list[int]:
        """Return where the entries stand, of those read, that have this id; if none has, those whose ids end so."""
        ids = [(str(address.checkpoint_id), place) for address, place in self._places.items()]
        same = [place for each, place in ids if each == name]
        return same or [place for each, place in ids if len(name) >= SHORTEST_END and each.endswith(name)]

    def labelled(self, name: str) -> Address | None:
        """Return the checkpoint that has a label."""
        return next((address for address, names in self._labels.items() if name in names), None)

    def measured(self, places: Sequence[int]) -> Plan[Any, Any, Mapping[Address, int]]:
        """Return how large the state is at some places: at most at `SAMPLES` of them, evenly spread."""
        spread = [places[round(n * (len(places) - 1) / (SAMPLES - 1))] for n in range(SAMPLES)] if places else ()
        chosen = places if len(places) <= SAMPLES else spread
        unknown = [
            self.entries[each] for each in dict.fromkeys(chosen) if self.entries[each].address not in self._sizes
        ]
        self._sizes.update((yield from state_bytes(self._core, unknown)))
        return self._sizes
