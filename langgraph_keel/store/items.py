"""The plans of a store: reading, searching, writing and sweeping items.

Every write is a compare-and-set against the version that this process saw last. If another process was faster, the
reply contains its version, and the write is retried on it: no version is overwritten unnoticed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from langgraph_keel.engine.cells import BLOCK, Cell, Search, Swap
from langgraph_keel.engine.entries import marks_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, Kept
from langgraph_keel.errors import CorruptStore
from langgraph_keel.retention.erase import ROUNDS
from langgraph_keel.retention.holds import read_holds
from langgraph_keel.store.filters import fits, terms_of_filter
from langgraph_keel.store.records import (
    EXPIRES,
    ITEMS,
    Fences,
    StoredItem,
    below,
    cell_key,
    marks_of_item,
    owner_term,
    owners_of,
    prefix_of,
)

_log = logging.getLogger(__name__)
NARROWED = 16
"""Maximum number of terms in a search, because SQL has a limit."""
PAGE = 1000
"""Maximum number of items or namespaces that are read in one trip."""
MOST_SEEN = 10_000
"""Maximum number of items whose last version a process remembers."""
MINUTE = 60_000  # milliseconds
FRESH = 0.9
"""A read renews an item only if less than this part of its time to live remains."""

_HASHED: dict[str, tuple[str, ...]] = {}
"""Recent namespaces by hash: the first three blocks of a key, in any store."""


class Seen(NamedTuple):
    """The version of an item that this process saw last."""

    token: str
    created: int
    rank: int
    expires_at: int | None
    owner: str
    fences: Fences = ()


class Write(NamedTuple):
    """A write of an item, or its removal if `value` is `None`.

    `fields` are embedded, and `body` has the vectors.
    """

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any] | None
    ttl: float | None
    owner: str | None = None  # `None` keeps the current owner
    fields: Literal[False] | Sequence[str] | None = None
    body: bytes = b""


Change: TypeAlias = Callable[[dict[str, Any] | None], dict[str, Any] | None]
"""Returns the new value of an item, given the current one; `None` means no item."""
Guard: TypeAlias = Callable[[Fences], Plan[Fences]]
"""Returns the fences to write to an item with these fences, or refuses it."""


class Items:
    """The items of one store, as plans on a session.

    `seen` has the versions that this process saw last.
    """

    def __init__(self, session: Session, seen: OrderedDict[str, Seen]) -> None:
        self._session = session
        self._cells = Cells(session, ITEMS, None)
        self._seen = seen

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, places: Collection[tuple[tuple[str, ...], str]]) -> Plan[Mapping[str, Kept[StoredItem]]]:
        """Return the items that exist and have not expired, by cell key. One trip."""
        keys = dict.fromkeys(cell_key(*place) for place in places)
        found = yield from self._cells.read([*keys])
        return {key: kept for key, kept in found.items() if self._see(key, kept)}

    def search(
        self, namespace: tuple[str, ...], wanted: Mapping[str, Any], limit: int, offset: int
    ) -> Plan[list[tuple[str, Kept[StoredItem]]]]:
        """Return matching items below a namespace, most recently changed first.

        One trip if the filter only compares fields with a text or a number for equality, else one per page read.
        """
        most, size = offset + limit, len(namespace)
        marks = marks_of([*below(namespace), *terms_of_filter(wanted)][:NARROWED])
        found: list[tuple[str, Kept[StoredItem]]] = []
        after, ask = None, min(most, PAGE)
        while len(found) < most:
            page = yield from self._cells.search_raw(Search(prefix_of(namespace), marks, after, ask))
            for key, kept in self.decode(page):
                item = kept.record
                if item.namespace[:size] == namespace and fits(item.value, wanted) and self._see(key, kept):
                    found.append((key, kept))
            if len(page) < ask:
                break
            after = page[-1][1].rank or 0, page[-1][0]
            ask = min(PAGE, 4 * ask + 60)  # few items match: the next page is larger
        return found[offset:most]

    def decode(self, cells: Iterable[tuple[str, Cell]]) -> Iterator[tuple[str, Kept[StoredItem]]]:
        """Yield the items of a search. A damaged one is skipped with a warning, so that the others are found."""
        for key, cell in cells:
            try:
                yield key, self._cells.keep(key, cell)
            except CorruptStore as error:
                _log.warning("a search skips an item: %s", error)

    def find(
        self, namespace: tuple[str, ...], wanted: Mapping[str, Any], query: str | None, limit: int, offset: int
    ) -> Plan[list[tuple[str, Kept[StoredItem], float | None]]]:
        """As `search`, with the score `None`: only an indexed store uses the query."""
        found = yield from self.search(namespace, wanted, limit, offset)
        return [(key, kept, None) for key, kept in found]

    def namespaces(self, prefix: tuple[str, ...]) -> Plan[set[tuple[str, ...]]]:
        """Return the namespaces with a prefix that have items.

        One trip per 1,000; two if some are not known yet.
        """
        found: set[tuple[str, ...]] = set()
        after = None
        while True:
            search = Search(prefix_of(prefix), after=after, limit=PAGE, is_bare=True, is_grouped=True)
            page = yield from self._cells.search_raw(search)
            if new := [key for key, _ in page if key[:-BLOCK] not in _HASHED]:
                if len(_HASHED) > MOST_SEEN:
                    _HASHED.clear()
                for key, kept in self.decode((yield from self._cells.read_raw(new)).items()):
                    if cell_key(kept.record.namespace, "")[:-BLOCK] != key[:-BLOCK]:
                        raise CorruptStore(f"an item of the store ({key}) has another namespace than its key")
                    _HASHED[key[:-BLOCK]] = kept.record.namespace
            for key, cell in page:
                namespace = _HASHED.get(key[:-BLOCK])
                if namespace is None or not self._lives(cell):  # its item was deleted in the meantime, or has expired
                    namespace = yield from self._find_namespace(key[:-BLOCK])
                if namespace:
                    found.add(namespace)
            if len(page) < PAGE:
                return found
            after = page[-1][1].rank or 0, page[-1][0]

    def _find_namespace(self, prefix: str) -> Plan[tuple[str, ...] | None]:
        """Return the namespace of the keys with a prefix, if it has an item that has not expired."""
        after = None
        while True:
            page = yield from self._cells.search_raw(Search(prefix[: 2 * BLOCK], after=after, limit=PAGE))
            for _, kept in self.decode((key, cell) for key, cell in page if key.startswith(prefix)):
                if self._lives(kept.cell):
                    return kept.record.namespace
            if len(page) < PAGE:
                return None
            after = page[-1][1].rank or 0, page[-1][0]

    def _lives(self, cell: Cell) -> bool:
        return cell.is_live(self._session.milliseconds)

    def _see(self, key: str, kept: Kept[StoredItem]) -> bool:
        """Remember the version of an item; return whether it has not expired."""
        self._remember(key, self._seen_of(kept))
        return self._lives(kept.cell)

    def _remember(self, key: str, seen: Seen | None) -> None:
        # Each step is atomic in the interpreter, so that no lock is needed.
        self._seen.pop(key, None)
        if seen is not None:
            self._seen[key] = seen
        while len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, writes: Mapping[str, Write]) -> Plan[None]:
        """Write and remove items, by cell key.

        One trip; one more for existing items that were not read before, and for each change by another process.
        """
        writes = yield from self.add_vectors(writes)
        held = {key: self._seen.get(key) for key in writes}
        left, now = dict(writes), int(self._session.clock().timestamp() * 1_000_000)
        ranks = {key: now + n for n, key in enumerate(writes)}
        while left:
            new = {key: self._draft(write, held[key], ranks[key]) for key, write in left.items()}
            swaps: list[Swap] = [(key, seen and seen.token, new[key][0]) for key in left for seen in [held[key]]]
            for (key, _, _), reply in zip(swaps, (yield from self._cells.swap_each_raw(swaps)), strict=True):
                if reply.done:
                    self._remember(key, new[key][1])
                    del left[key]
                else:
                    held[key] = self._seen_in(key, reply.cell, is_removed=left[key].value is None)

    def add_vectors(self, writes: Mapping[str, Write]) -> Plan[Mapping[str, Write]]:
        """Return the writes with the vectors of their texts; without an index, unchanged."""
        yield from ()
        return writes

    def _draft(self, write: Write, held: Seen | None, now: int, fences: Fences = ()) -> tuple[Cell | None, Seen | None]:
        """Return the new cell of a write, and its version to remember.

        Both are `None` if the write removes the item.
        """
        if write.value is None:
            return None, None
        is_live = held is not None and (held.expires_at is None or held.expires_at > now // 1000)
        created = held.created if held is not None and is_live else now
        # A change never moves an item back in the order, even if the previous writer's clock was ahead.
        rank = now if held is None else max(now, held.rank + 1)
        owner = write.owner if write.owner is not None else held.owner if held is not None and is_live else ""
        fences = fences or (held.fences if held else ())
        item = StoredItem(write.namespace, write.key, write.value, created, write.ttl, owner, fences)
        cell = self._cell(item, rank, write.body)
        return cell, Seen(cell.token, created, rank, cell.expires_at, owner, fences)

    def _cell(self, item: StoredItem, rank: int, body: bytes = b"") -> Cell:
        expires_at = None if item.ttl is None else self._session.milliseconds + int(item.ttl * MINUTE)
        return self._cells.cell(item, body=body, expires_at=expires_at, rank=rank, marks=marks_of_item(item))

    def _seen_in(self, key: str, cell: Cell | None, is_removed: bool) -> Seen | None:
        """Return the version in a cell. To remove an item it need not decode."""
        if cell is None:
            return None
        return Seen(cell.token, 0, 0, None, "") if is_removed else self._seen_of(self._cells.keep(key, cell))

    def _seen_of(self, kept: Kept[StoredItem]) -> Seen:
        item, cell = kept.record, kept.cell
        return Seen(cell.token, item.created, cell.rank or 0, cell.expires_at, item.owner, item.fences)

    def update(self, like: Write, change: Change, guard: Guard | None) -> Plan[dict[str, Any] | None]:
        """Change an item, retrying if another writer was faster; return the value.

        `like` lacks the value.

        Two trips, and one for each retry. An existing item keeps its time to live.
        """
        where = cell_key(like.namespace, like.key)
        cell = (yield from self._cells.read_raw([where])).get(where)
        while True:
            kept = None if cell is None else self._cells.keep(where, cell)
            seen = None if kept is None else self._seen_of(kept)
            item = kept.record if kept is not None and self._lives(kept.cell) else None
            write = like._replace(value=change(item.value if item else None), ttl=item.ttl if item else like.ttl)
            write = (yield from self.add_vectors({where: write}))[where]
            fences = (yield from guard(seen.fences if seen else ())) if guard else ()
            new, mine = self._draft(write, seen, int(self._session.clock().timestamp() * 1_000_000), fences)
            if new is None and seen is None:
                return None
            reply = yield from self._cells.swap_raw(where, seen and seen.token, new)
            if reply.done:
                self._remember(where, mine)
                return write.value
            cell = reply.cell

    def refresh(self, keys: Collection[str]) -> Plan[None]:
        """Restart the time to live of items, except those that changed. Two trips."""
        found = yield from self._cells.read(list(keys))
        swaps: list[Swap] = [
            (key, kept.token, self._cell(kept.record, kept.cell.rank or 0, kept.cell.body))
            for key, kept in found.items()
        ]
        for (key, _, new), reply in zip(swaps, (yield from self._cells.swap_each_raw(swaps)), strict=True):
            if reply.done and new is not None:
                self._remember(key, self._seen_of(self._cells.keep(key, new)))

    def fading(self, found: Iterator[tuple[str, Kept[StoredItem]]]) -> list[str]:
        """Return the keys of items whose time to live a read should restart."""
        now = self._session.milliseconds
        return [
            key
            for key, kept in found
            if kept.record.ttl is not None
            and kept.cell.expires_at is not None
            and kept.cell.expires_at - now < FRESH * kept.record.ttl * MINUTE
        ]

    def sweep(self) -> Plan[int]:
        """Remove expired items; return their number.

        One trip per 1,000 items with an expiry, and one for removals.

        Items that are changed or renewed concurrently are kept, and so are items of persons on hold.
        """
        removed, after = 0, None
        while True:
            search = Search(marks=marks_of([EXPIRES]), after=after, limit=PAGE, is_bare=True)
            page: Sequence[tuple[str, Cell]] = yield from self._cells.search_raw(search)
            over = {key: cell.token for key, cell in page if not self._lives(cell)}
            if over and (held := (yield from read_holds(self._session))):
                found = yield from self._cells.read([*over])
                for key in [key for key, kept in found.items() if owners_of(kept.record) & held.keys()]:
                    del over[key]
            if over:
                removed += yield from self._cells.remove(over)
            if len(page) < PAGE:
                return removed
            after = page[-1][1].rank or 0, page[-1][0]

    def erase(self, person: str, held: Collection[str], acts: bool) -> Plan[tuple[int, Sequence[str]]]:
        """Remove or count a person's items; return their number, and problems.

        Two trips per 1,000 items and one at the end; with `acts=False`, one per 1,000.
        """
        removed, problems, marks = 0, dict[str, str](), marks_of([owner_term(person)])
        for _ in range(ROUNDS):
            count, after, size = 0, None, PAGE
            while size == PAGE:
                page = yield from self._cells.search_raw(Search(marks=marks, after=after, limit=PAGE))
                tokens = {}
                for key, cell in page:
                    try:
                        owners = owners_of(self._cells.keep(key, cell).record)
                        if person in owners and owners & {*held}:
                            problems[key] = "an item is left that also belongs to a person on hold"
                        elif person in owners:
                            tokens[key] = cell.token
                    except CorruptStore as error:
                        problems[key] = f"an item is left that may be theirs: {error}"
                count += len(tokens)
                removed += (yield from self._cells.remove(tokens)) if acts and tokens else 0
                size, after = len(page), (page[-1][1].rank or 0, page[-1][0]) if page else None
            if not (acts and count):
                return removed or count, [*problems.values()]
        return removed, [*problems.values(), "items are still being written: stop the person's runs, and erase again"]
