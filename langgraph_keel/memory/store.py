"""The store in dictionaries: the reference model of every verb, and a usable backend for tests and short-lived work.

A request is a function of the state; the driver calls it under the store's lock, so each is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

from langgraph_keel.core.plan import Plan
from langgraph_keel.core.records import (
    Address,
    BaseGone,
    Batch,
    Entry,
    Found,
    Graph,
    Moved,
    NewEntry,
    Node,
    Outcome,
    Query,
    Ref,
    Row,
    Run,
    Stamp,
    Stored,
    ThreadInfo,
    resolve,
)
from langgraph_keel.core.store import Store


@dataclass(slots=True)
class Record:
    """One entry as this store keeps it."""

    entry: Entry
    trunk: bool
    updated_at: str
    ghost: bool = False


@dataclass(slots=True)
class Log:
    """One item log: rows by first number, and the number the next item gets."""

    rows: dict[int, Row] = field(default_factory=dict)
    end: int = 0

    def overlapping(self, runs: Sequence[Run]) -> list[Row]:
        """Return the rows that hold an item of `runs`, in order."""
        return [row for _, row in sorted(self.rows.items()) if _touches(row, runs)]


_epochs = count(1)


@dataclass(slots=True)
class Thread:
    """All of one thread, entries in the order they were put."""

    epoch: int = field(default_factory=_epochs.__next__)
    records: dict[Stamp, Record] = field(default_factory=dict)
    logs: dict[tuple[str, str], Log] = field(default_factory=dict)
    batches: dict[tuple[str, str], list[Batch]] = field(default_factory=dict)

    def log(self, namespace: str, channel: str) -> Log:
        """Return the item log of a channel, empty if it is new."""
        return self.logs.setdefault((namespace, channel), Log())

    def named(self, namespace: str, checkpoint_id: str | None) -> Record | None:
        """Return the entry with this id, ghosts included."""
        for record in self.records.values():
            address = record.entry.address
            if (address.checkpoint_ns, address.checkpoint_id) == (namespace, checkpoint_id):
                return record
        return None

    def head(self, namespace: str) -> Record | None:
        """Return the newest entry on the trunk of a namespace, or of all its entries if no trunk is left."""
        seen = [
            record
            for record in reversed(self.records.values())
            if record.entry.address.checkpoint_ns == namespace and not record.ghost
        ]
        return next((record for record in seen if record.trunk), seen[0] if seen else None)

    def visible(self, namespace: str, checkpoint_id: str | None) -> Record | None:
        """Return the entry with this id, or the head if it is `None`; never a ghost."""
        record = self.named(namespace, checkpoint_id) if checkpoint_id else self.head(namespace)
        return record if record and not record.ghost else None


State: TypeAlias = dict[str, Thread]
Request: TypeAlias = Callable[[State], Any]


def _touches(row: Row, runs: Sequence[Run]) -> bool:
    return any(row.lo < hi and lo < row.lo + row.count for lo, hi in runs)


class MemoryStore(Store[Request, Any]):
    """Keeps threads in a dictionary. Stamps are counted, so none is ever used twice."""

    def __init__(self) -> None:
        self._stamps = count(1)

    def write_entry(self, new: NewEntry) -> Plan[Request, Any, Outcome]:
        """See `Store.write_entry`."""
        outcome: Outcome = yield lambda state: self._write(state, new)
        return outcome

    def _write(self, state: State, new: NewEntry) -> Outcome:
        address = new.address
        thread = state.get(address.thread_id) or Thread()
        base = thread.records.get(new.base) if new.base is not None else None
        if new.base is not None and (base is None or base.ghost):
            return BaseGone()
        head = thread.head(address.checkpoint_ns)
        head_id = head.entry.address.checkpoint_id if head else None
        follows = not new.checked or head_id in (new.parent, address.checkpoint_id)
        if not follows and new.on_conflict == "raise":
            return Moved(head_id)
        state[address.thread_id] = thread
        first = {channel: self._append(thread, address, channel, rows) for channel, rows in new.appends.items()}
        for channel, rows in new.repacks.items():
            _repack(thread.log(address.checkpoint_ns, channel), rows)
        return self._keep(thread, new, first, follows or head is None)

    def _append(self, thread: Thread, address: Address, channel: str, rows: Sequence[Row]) -> int:
        log = thread.log(address.checkpoint_ns, channel)
        first = log.end
        for row in rows:
            log.rows[log.end] = replace(row, lo=log.end)
            log.end += row.count
        return first

    def _keep(self, thread: Thread, new: NewEntry, first: Mapping[str, int], trunk: bool) -> Stored:
        old = thread.named(new.address.checkpoint_ns, new.address.checkpoint_id)
        if old:
            del thread.records[old.entry.stamp]
        refs = {name: replace(ref, runs=resolve(ref.runs, first.get(name, 0))) for name, ref in new.refs.items()}
        stamp = next(self._stamps)
        entry = Entry(new.address, new.parent, stamp, new.header, refs, new.run_id)
        thread.records[stamp] = Record(entry, trunk, new.updated_at)
        return Stored(stamp, first)

    def write_batch(self, address: Address, batch: Batch) -> Plan[Request, Any, None]:
        """See `Store.write_batch`."""

        def write(state: State) -> None:
            thread = state.setdefault(address.thread_id, Thread())
            key = address.checkpoint_ns, str(address.checkpoint_id)
            thread.batches.setdefault(key, []).append(batch)

        yield write

    def read_entry(self, address: Address) -> Plan[Request, Any, Found | None]:
        """See `Store.read_entry`."""

        def read(state: State) -> Found | None:
            thread = state.get(address.thread_id)
            record = thread and thread.visible(address.checkpoint_ns, address.checkpoint_id)
            return _found(thread, record) if thread and record else None

        found: Found | None = yield read
        return found

    def scan(self, query: Query) -> Plan[Request, Any, Sequence[Entry]]:
        """See `Store.scan`."""
        entries: Sequence[Entry] = yield lambda state: _page(state, query)
        return entries

    def read_values(self, entries: Sequence[Entry]) -> Plan[Request, Any, Sequence[Found]]:
        """See `Store.read_values`."""

        def read(state: State) -> list[Found]:
            threads = [(state.get(entry.address.thread_id), entry.stamp) for entry in entries]
            return [_found(t, t.records[stamp]) for t, stamp in threads if t and stamp in t.records]

        found: Sequence[Found] = yield read
        return found

    def read_history(self, address: Address, channels: Collection[str]) -> Plan[Request, Any, Sequence[Found]]:
        """See `Store.read_history`."""

        def read(state: State) -> list[Found]:
            thread = state.get(address.thread_id)
            return list(_ancestors(thread, address, set(channels))) if thread else []

        found: Sequence[Found] = yield read
        return found

    def read_graph(self, thread_id: str) -> Plan[Request, Any, Graph]:
        """See `Store.read_graph`."""
        graph: Graph = yield lambda state: _graph(state.get(thread_id) or Thread())
        return graph

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> Plan[Request, Any, None]:
        """See `Store.remove_entries`."""

        def remove(state: State) -> None:
            thread = state.get(thread_id) or Thread()
            for stamp in gone:
                record = thread.records.pop(stamp, None)
                if record:
                    address = record.entry.address
                    thread.batches.pop((address.checkpoint_ns, str(address.checkpoint_id)), None)
            for stamp, channels in ghosts.items():
                if stamp in thread.records:
                    _make_ghost(thread.records[stamp], channels)

        yield remove

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> Plan[Request, Any, int]:
        """See `Store.remove_rows`."""

        def remove(state: State) -> int:
            thread = state.get(thread_id)
            if thread is None or thread.epoch != graph.epoch:
                return 0
            dead = [
                (thread.logs[key], row.lo)
                for key, end in graph.ends.items()
                for row in thread.logs[key].rows.values()
                if row.lo < end and not _touches(row, live.get(key, ()))
            ]
            for log, lo in dead:
                del log.rows[lo]
            return len(dead)

        removed: int = yield remove
        return removed

    def delete_thread(self, thread_id: str) -> Plan[Request, Any, None]:
        """See `Store.delete_thread`."""
        yield lambda state: state.pop(thread_id, None)

    def copy_thread(self, source: str, target: str) -> Plan[Request, Any, bool]:
        """See `Store.copy_thread`."""

        def copy(state: State) -> bool:
            if target in state:
                return False
            if source in state:
                state[target] = self._copied(state[source], target)
            return True

        copied: bool = yield copy
        return copied

    def _copied(self, source: Thread, target: str) -> Thread:
        thread = Thread()
        thread.logs = {key: Log(dict(log.rows), log.end) for key, log in source.logs.items()}
        thread.batches = {key: list(batches) for key, batches in source.batches.items()}
        for record in source.records.values():
            address = replace(record.entry.address, thread_id=target)
            entry = replace(record.entry, address=address, stamp=next(self._stamps))
            thread.records[entry.stamp] = replace(record, entry=entry)
        return thread

    def find_runs(self, run_ids: Collection[str]) -> Plan[Request, Any, Sequence[str]]:
        """See `Store.find_runs`."""

        def find(state: State) -> list[str]:
            return [
                name
                for name, thread in state.items()
                if any(record.entry.run_id in run_ids for record in thread.records.values())
            ]

        names: Sequence[str] = yield find
        return names

    def read_threads(
        self, after: tuple[str, str] | None, limit: int
    ) -> Plan[Request, Any, Sequence[tuple[ThreadInfo, bytes]]]:
        """See `Store.read_threads`."""

        def read(state: State) -> list[tuple[ThreadInfo, bytes]]:
            infos = [pair for name, thread in state.items() if (pair := _info(name, thread))[0].checkpoints]
            infos.sort(key=lambda pair: (pair[0].updated_at, pair[0].thread_id), reverse=True)
            return [pair for pair in infos if after is None or (pair[0].updated_at, pair[0].thread_id) < after][:limit]

        page: Sequence[tuple[ThreadInfo, bytes]] = yield read
        return page


def _repack(log: Log, rows: Sequence[Row]) -> None:
    for row in rows:
        inside = log.overlapping([(row.lo, row.lo + row.count)])
        if row.is_tiled_by(inside):
            for old in inside:
                del log.rows[old.lo]
            log.rows[row.lo] = row


def _shown(thread: Thread, record: Record) -> Entry:
    """Return the entry as it is read: without a parent that is not there to be read."""
    entry = record.entry
    seen = entry.parent and thread.visible(entry.address.checkpoint_ns, entry.parent)
    return entry if seen or not entry.parent else replace(entry, parent=None)


def _found(thread: Thread, record: Record) -> Found:
    address, refs = record.entry.address, record.entry.refs
    rows = {
        channel: thread.log(address.checkpoint_ns, channel).overlapping(ref.runs)
        for channel, ref in refs.items()
        if ref.runs
    }
    batches = thread.batches.get((address.checkpoint_ns, str(address.checkpoint_id)), ())
    return Found(_shown(thread, record), rows, tuple(batches))


def _ancestors(thread: Thread, address: Address, missing: set[str]) -> Iterator[Found]:
    record = thread.visible(address.checkpoint_ns, address.checkpoint_id)
    while record and missing:
        record = thread.named(address.checkpoint_ns, record.entry.parent) if record.entry.parent else None
        if record:
            yield _found(thread, record)
            missing -= set(record.entry.refs)


def _graph(thread: Thread) -> Graph:
    heads = {
        head.entry.stamp
        for namespace in {record.entry.address.checkpoint_ns for record in thread.records.values()}
        if (head := thread.head(namespace))
    }
    nodes = [
        Node(e.address, e.parent, e.stamp, e.header, e.refs, e.run_id, e.stamp in heads, record.ghost)
        for record in thread.records.values()
        for e in [record.entry]
    ]
    return Graph(nodes, {key: log.end for key, log in thread.logs.items()}, thread.epoch)


def _make_ghost(record: Record, channels: Collection[str]) -> None:
    refs: dict[str, Ref] = {name: ref for name, ref in record.entry.refs.items() if name in channels}
    record.entry = replace(record.entry, refs=refs)
    record.ghost = True


def _info(name: str, thread: Thread) -> tuple[ThreadInfo, bytes]:
    visible = [record for record in thread.records.values() if not record.ghost]
    head = thread.head("")
    latest = head.entry.address.checkpoint_id if head else None
    updated_at = visible[-1].updated_at if visible else ""
    return ThreadInfo(name, len(visible), updated_at, latest, None), head.entry.header if head else b""


def _page(state: State, query: Query) -> list[Entry]:
    names = [query.thread_id] if query.thread_id is not None else list(state)
    pairs = [
        (thread, record)
        for name in names
        if (thread := state.get(name))
        for record in reversed(thread.records.values())
        if _selected(record, thread, query)
    ]
    place = _place_in_thread if query.thread_id is not None else _place_in_store
    pairs.sort(key=lambda pair: place(pair[1].entry), reverse=True)
    if query.after is not None:
        pairs = [pair for pair in pairs if place(pair[1].entry) < place(query.after)]
    return [_shown(thread, record) for thread, record in pairs[: query.limit]]


def _place_in_thread(entry: Entry) -> tuple[str, int]:
    return "", int(entry.stamp)


def _place_in_store(entry: Entry) -> tuple[str, int]:
    return str(entry.address.checkpoint_id), int(entry.stamp)


def _selected(record: Record, thread: Thread, query: Query) -> bool:
    address = record.entry.address
    if record.ghost or query.checkpoint_ns not in (None, address.checkpoint_ns):
        return False
    if query.checkpoint_id not in (None, address.checkpoint_id):
        return False
    return query.before is None or _precedes(record, thread, query.before)


def _precedes(record: Record, thread: Thread, before: str) -> bool:
    address = record.entry.address
    bound = thread.named(address.checkpoint_ns, before)
    if bound is None:
        return str(address.checkpoint_id) < before
    order = list(thread.records)
    return order.index(record.entry.stamp) < order.index(bound.entry.stamp)
