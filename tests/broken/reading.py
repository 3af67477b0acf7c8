"""Stores that read wrongly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph_keel.backends.memory.store import MemoryStore, Request, State
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import Entry, Found, Query, Stamp, Unchanged


class LastWriteWins(MemoryStore):
    """Returns batches newest first, so that the last regular write counts."""

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Any, Any]:
        found = yield from super().read_entry(address, known)
        return replace(found, batches=found.batches[::-1]) if found else None


class HeadByGreatestId(MemoryStore):
    """Treats the greatest id as the latest."""

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Any, Any]:
        if address.checkpoint_id is None:
            greatest = yield lambda state: _greatest(state, address)
            if greatest is None:
                return None
            address = replace(address, checkpoint_id=greatest)
        return (yield from super().read_entry(address, known))


def _greatest(state: State, address: Address) -> str | None:
    records = state[address.thread_id].records.values() if address.thread_id in state else ()
    addresses = [record.entry.address for record in records]
    return max((str(a.checkpoint_id) for a in addresses if a.checkpoint_ns == address.checkpoint_ns), default=None)


class UnknownIdsMeanTheLatest(MemoryStore):
    """Returns the head if the named entry does not exist."""

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Any, Any]:
        def read(state: State) -> Any:
            (named,) = super(UnknownIdsMeanTheLatest, self).read_entry(address)
            (latest,) = super(UnknownIdsMeanTheLatest, self).read_entry(replace(address, checkpoint_id=None))
            return named(state) or latest(state)

        found: Found | None = yield read
        return found


class WhatIsKnownStaysSo(MemoryStore):
    """Reports every entry that the caller knows as unchanged, without a check."""

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Any, Any]:
        found = yield from super().read_entry(address)
        return Unchanged(found.entry.parent, found.batches) if found and known else found


class WhatIsKnownHasNoNewWrites(MemoryStore):
    """Returns no writes for an entry that the caller knows."""

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Any, Any]:
        found = yield from super().read_entry(address, known)
        return Unchanged(found.parent) if isinstance(found, Unchanged) else found


class WhatIsKnownKeepsItsParent(MemoryStore):
    """Returns the parent of an entry that the caller knows, though it was removed."""

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Any, Any]:
        found = yield from super().read_entry(address, known)
        if isinstance(found, Unchanged) and known is not None:
            parent = yield lambda state: state[address.thread_id].records[known].entry.parent
            return Unchanged(parent, found.batches)
        return found


class LosesTheLastRow(MemoryStore):
    """Returns one row too few if there are many."""

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Any, Any]:
        found = yield from super().read_entry(address, known)
        if not isinstance(found, Found):
            return found
        rows = {channel: rows[:-1] if len(rows) > 9 else rows for channel, rows in found.rows.items()}
        return replace(found, rows=rows)


class KnowsWholeEntriesOnly(MemoryStore):
    """Reads no rows of an entry from which refs were removed."""

    def read_values(self, entries: Sequence[Entry]) -> StorePlan[Request, Any, Sequence[Found]]:
        found = yield from super().read_values(entries)
        whole = {entry.address: len(entry.refs) for entry in entries}
        return [each if len(each.entry.refs) == whole[each.entry.address] else replace(each, rows={}) for each in found]


class ScanStopsAfterAPage(MemoryStore):
    """Drops the last entry of a full page, which then looks like the last page."""

    def scan(self, query: Query) -> StorePlan[Request, Any, Sequence[Entry]]:
        entries = yield from super().scan(query)
        return entries[:-1] if len(entries) == query.limit > 1 else entries


class PagesOverlap(MemoryStore):
    """Begins a page with the last entry of the page before it."""

    def scan(self, query: Query) -> StorePlan[Request, Any, Sequence[Entry]]:
        entries = yield from super().scan(query)
        return [query.after, *entries][: query.limit] if query.after else entries


class BeforeIncludesTheBound(MemoryStore):
    """Lists the entry that `before` names, too."""

    def scan(self, query: Query) -> StorePlan[Request, Any, Sequence[Entry]]:
        everything = yield from super().scan(replace(query, before=None, after=None, limit=10**9))
        below = yield from super().scan(replace(query, after=None, limit=10**9))
        kept = {entry.stamp for entry in below}
        return [e for e in everything if e.stamp in kept or e.address.checkpoint_id == query.before][: query.limit]


class BeforeComparesIds(MemoryStore):
    """Treats "stored before" as "has a smaller id"."""

    def scan(self, query: Query) -> StorePlan[Request, Any, Sequence[Entry]]:
        entries = yield from super().scan(replace(query, before=None))
        return [e for e in entries if query.before is None or str(e.address.checkpoint_id) < query.before]


class ScansInOrderOfIds(MemoryStore):
    """Lists by id instead of by sequence."""

    def scan(self, query: Query) -> StorePlan[Request, Any, Sequence[Entry]]:
        entries = yield from super().scan(query)
        return sorted(entries, key=lambda entry: str(entry.address.checkpoint_id), reverse=True)


class NoNamespaceIsTheRoot(MemoryStore):
    """Lists only the root namespace if all are requested."""

    def scan(self, query: Query) -> StorePlan[Request, Any, Sequence[Entry]]:
        entries = yield from super().scan(replace(query, checkpoint_ns=query.checkpoint_ns or ""))
        return entries


class ListsWithoutWrites(MemoryStore):
    """Omits the writes from listings."""

    def read_values(self, entries: Sequence[Entry]) -> StorePlan[Request, Any, Sequence[Found]]:
        found = yield from super().read_values(entries)
        return [replace(each, batches=()) for each in found]


class HistoryStopsEarly(MemoryStore):
    """Walks to the nearest ancestor that has any of the channels, not all of them."""

    def read_history(self, address: Address, channels: Collection[str]) -> StorePlan[Request, Any, Sequence[Found]]:
        found = yield from super().read_history(address, channels)
        for place, each in enumerate(found):
            if set(channels) & set(each.entry.refs):
                return found[: place + 1]
        return found


class HistoryIsTheListing(MemoryStore):
    """Treats all earlier entries as ancestors, even those of another branch."""

    def read_history(self, address: Address, channels: Collection[str]) -> StorePlan[Request, Any, Sequence[Found]]:
        def read(state: State) -> list[Found]:
            if address.thread_id not in state:
                return []
            thread = state[address.thread_id]
            target = thread.visible(address.checkpoint_ns, address.checkpoint_id)
            if target is None:
                return []
            query = Query(address.thread_id, address.checkpoint_ns, before=target.entry.address.checkpoint_id)
            (scan,) = self.scan(query)
            (read_values,) = self.read_values(scan(state))
            found: list[Found] = read_values(state)
            return found

        found: Sequence[Found] = yield read
        return found


READING: Mapping[str, Callable[[], MemoryStore]] = {
    store.__name__: store
    for store in (
        LastWriteWins,
        HeadByGreatestId,
        UnknownIdsMeanTheLatest,
        WhatIsKnownStaysSo,
        WhatIsKnownHasNoNewWrites,
        WhatIsKnownKeepsItsParent,
        LosesTheLastRow,
        KnowsWholeEntriesOnly,
        ScanStopsAfterAPage,
        PagesOverlap,
        BeforeIncludesTheBound,
        BeforeComparesIds,
        ScansInOrderOfIds,
        NoNamespaceIsTheRoot,
        ListsWithoutWrites,
        HistoryStopsEarly,
        HistoryIsTheListing,
    )
}
