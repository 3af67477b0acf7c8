"""The plans of a store: reading, searching, writing and sweeping items.

Every write is a compare-and-set against the version that this process saw last. If another process was quicker, the
reply brings its version, and the write is made again on that: no version is overwritten unseen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph_keel.engine.cells import BLOCK, Cell, Search, Swap
from langgraph_keel.engine.entries import marks_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, Kept
from langgraph_keel.errors import CorruptStore
from langgraph_keel.store.filters import fits, terms_of_filter
from langgraph_keel.store.records import (
    EXPIRES,
    ITEMS,
    StoredItem,
    below,
    cell_key,
    marks_of_item,
    prefix_of,
)

PAGE = 1000
"""Items, or namespaces, that are read in one trip at most."""
MOST_SEEN = 10_000
"""Items whose last version a process remembers."""
MINUTE = 60_000  # milliseconds
FRESH = 0.9
"""A read renews an item if less than this part of its time to live is left: not at each read."""

_HASHED: dict[str, tuple[str, ...]] = {}
"""Namespaces by their hash, the first three blocks of a key: of the last ones, and the same in all stores."""


class Seen(NamedTuple):
    """The version of an item that this process saw last."""

    token: str
    created: int
    rank: int
    expires_at: int | None


class Write(NamedTuple):
    """A put of an item, or with the value `None`, its removal."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any] | None
    ttl: float | None


class Items:
    """The items of one store, as plans on a session. `seen` are the versions that this process saw last."""

    def __init__(self, session: Session, seen: OrderedDict[str, Seen]) -> None:
        self._session = session
        self._cells = Cells(session, ITEMS, None)
        self._seen = seen

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, places: Collection[tuple[tuple[str, ...], str]]) -> Plan[Mapping[str, Kept[StoredItem]]]:
        """Return items that are there and have not expired, by the keys of their cells. One trip."""
        keys = dict.fromkeys(cell_key(*place) for place in places)
        found = yield from self._cells.read([*keys])
        return {key: kept for key, kept in found.items() if self._see(key, kept)}

    def search(
        self, namespace: tuple[str, ...], wanted: Mapping[str, Any], limit: int, offset: int
    ) -> Plan[list[tuple[str, Kept[StoredItem]]]]:
        """Return items below a namespace whose values fit a filter, the last changed first.

        One trip, if stores can narrow it: fields that equal a text or a number. Else one for each page that is read.
        """
        most, size = offset + limit, len(namespace)
        marks = marks_of([*terms_of_filter(wanted), *below(namespace)])
        found: list[tuple[str, Kept[StoredItem]]] = []
        after, ask = None, min(most, PAGE)
        while len(found) < most:
            page = yield from self._cells.search(Search(prefix_of(namespace), marks, after, ask))
            for key, kept in page:
                item = kept.record
                if item.namespace[:size] == namespace and fits(item.value, wanted) and self._see(key, kept):
                    found.append((key, kept))
            if len(page) < ask:
                break
            after = page[-1][1].cell.rank or 0, page[-1][0]
            ask = min(PAGE, 4 * ask + 60)  # few of them fit: the next page is larger
        return found[offset:most]

    def namespaces(self, prefix: tuple[str, ...]) -> Plan[set[tuple[str, ...]]]:
        """Return the namespaces that begin so and have items. A trip for each 1,000; two, if some are seen first."""
        found: set[tuple[str, ...]] = set()
        after = None
        while True:
            search = Search(prefix_of(prefix), after=after, limit=PAGE, is_bare=True, is_grouped=True)
            page = yield from self._cells.search_raw(search)
            if new := [key for key, _ in page if key[:-BLOCK] not in _HASHED]:
                if len(_HASHED) > MOST_SEEN:
                    _HASHED.clear()
                for key, kept in (yield from self._cells.read(new)).items():
                    if cell_key(kept.record.namespace, "")[:-BLOCK] != key[:-BLOCK]:
                        raise CorruptStore(f"an item of the store ({key}) is of another namespace than its key")
                    _HASHED[key[:-BLOCK]] = kept.record.namespace
            for key, cell in page:
                namespace = _HASHED.get(key[:-BLOCK])  # `None` if its item was deleted meanwhile
                if namespace and (self._lives(cell) or (yield from self._has_live(key[:-BLOCK]))):
                    found.add(namespace)
            if len(page) < PAGE:
                return found
            after = page[-1][1].rank or 0, page[-1][0]

    def _has_live(self, prefix: str) -> Plan[bool]:
        """Return whether a namespace has an item that has not expired."""
        after = None
        while True:
            page = yield from self._cells.search_raw(Search(prefix[: 2 * BLOCK], after=after, limit=PAGE, is_bare=True))
            if any(key.startswith(prefix) and self._lives(cell) for key, cell in page):
                return True
            if len(page) < PAGE:
                return False
            after = page[-1][1].rank or 0, page[-1][0]

    def _lives(self, cell: Cell) -> bool:
        return cell.is_live(self._session.milliseconds)

    def _see(self, key: str, kept: Kept[StoredItem]) -> bool:
        """Remember the version of an item; return whether it has not expired."""
        self._remember(key, self._seen_of(kept))
        return self._lives(kept.cell)

    def _remember(self, key: str, seen: Seen | None) -> None:
        # Each step is one of the interpreter's, so that threads need no lock.
        self._seen.pop(key, None)
        if seen is not None:
            self._seen[key] = seen
        while len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, writes: Mapping[str, Write]) -> Plan[None]:
        """Put and remove items, by the keys of their cells.

        One trip, and one more for items that are there and were not read before, and for each change by another.
        """
        held = {key: self._seen.get(key) for key in writes}
        left = dict(writes)
        while left:
            now = int(self._session.clock().timestamp() * 1_000_000)
            new = {key: self._draft(write, held[key], now + n) for n, (key, write) in enumerate(left.items())}
            swaps: list[Swap] = [(key, seen and seen.token, new[key][0]) for key in left for seen in [held[key]]]
            for (key, _, _), reply in zip(swaps, (yield from self._cells.swap_each_raw(swaps)), strict=True):
                if reply.done:
                    self._remember(key, new[key][1])
                    del left[key]
                else:
                    held[key] = None if reply.cell is None else self._seen_of(self._cells.keep(key, reply.cell))

    def _draft(self, write: Write, held: Seen | None, now: int) -> tuple[Cell | None, Seen | None]:
        """Return the cell that a write makes, and what is to be remembered of it; `None` for both if it removes."""
        if write.value is None:
            return None, None
        is_live = held is not None and (held.expires_at is None or held.expires_at > now // 1000)
        created = held.created if held is not None and is_live else now
        # No change moves an item back in the order, also if the clock of the process before was ahead.
        rank = now if held is None else max(now, held.rank + 1)
        cell = self._cell(StoredItem(write.namespace, write.key, write.value, created, write.ttl), rank)
        return cell, Seen(cell.token, created, rank, cell.expires_at)

    def _cell(self, item: StoredItem, rank: int, body: bytes = b"") -> Cell:
        expires_at = None if item.ttl is None else self._session.milliseconds + int(item.ttl * MINUTE)
        return self._cells.cell(item, body=body, expires_at=expires_at, rank=rank, marks=marks_of_item(item))

    def _seen_of(self, kept: Kept[StoredItem]) -> Seen:
        return Seen(kept.token, kept.record.created, kept.cell.rank or 0, kept.cell.expires_at)

    def refresh(self, keys: Collection[str]) -> Plan[None]:
        """Give items their whole time to live again, if a tenth of it is over; not those that others have changed.

        Two trips, if there are such.
        """
        found = yield from self._cells.read(list(keys))
        swaps: list[Swap] = [
            (key, kept.token, self._cell(kept.record, kept.cell.rank or 0, kept.cell.body))
            for key, kept in found.items()
        ]
        for (key, _, new), reply in zip(swaps, (yield from self._cells.swap_each_raw(swaps)), strict=True):
            if reply.done and new is not None:
                self._remember(key, self._seen_of(self._cells.keep(key, new)))

    def fading(self, found: Iterator[tuple[str, Kept[StoredItem]]]) -> list[str]:
        """Return the keys of items that a read is to refresh."""
        now = self._session.milliseconds
        return [
            key
            for key, kept in found
            if kept.record.ttl is not None
            and kept.cell.expires_at is not None
            and kept.cell.expires_at - now < FRESH * kept.record.ttl * MINUTE
        ]

    def sweep(self) -> Plan[int]:
        """Remove items that have expired; return how many. A trip for each 1,000 that may expire, and one for removals.

        An item that is changed or read in the same moment stays.
        """
        removed, after = 0, None
        while True:
            search = Search(marks=marks_of([EXPIRES]), after=after, limit=PAGE, is_bare=True)
            page: Sequence[tuple[str, Cell]] = yield from self._cells.search_raw(search)
            if over := {key: cell.token for key, cell in page if not self._lives(cell)}:
                removed += yield from self._cells.remove(over)
            if len(page) < PAGE:
                return removed
            after = page[-1][1].rank or 0, page[-1][0]
