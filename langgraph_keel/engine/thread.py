"""A thread in memory: the reference for the verbs, as functions of plain data.

The memory store keeps such threads; the file store builds them from its logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import SEALED, resolve, rows_in
from langgraph_keel.engine.records import (
    BaseGone,
    Batch,
    Entry,
    Found,
    Graph,
    Listed,
    Moved,
    NewEntry,
    Node,
    Query,
    Ref,
    Replacement,
    Row,
    Run,
    Stamp,
    ThreadInfo,
    Writes,
)


@dataclass(slots=True)
class Record:
    """One entry, and its position in the thread."""

    entry: Entry
    trunk: bool
    updated_at: str
    ghost: bool = False


_first_of = attrgetter("lo")


@dataclass(slots=True)
class Log:
    """One item log: rows by first number, and the number of the next item."""

    rows: dict[int, Row] = field(default_factory=dict)
    end: int = 0

    def find_rows(self, runs: Sequence[Run]) -> Sequence[Row]:
        """Return the rows with an item of `runs`, in order."""
        return rows_in(sorted(self.rows.values(), key=_first_of), runs)

    def append(self, rows: Sequence[Row]) -> int:
        """Append rows; return the number of the first item."""
        first = self.end
        for row in rows:
            self.rows[self.end] = Row(self.end, row.count, row.body)
            self.end += row.count
        return first

    def repack(self, rows: Sequence[Row]) -> None:
        """Replace rows by larger ones where they tile them exactly."""
        for row in rows:
            inside = self.find_rows([(row.lo, row.lo + row.count)])
            if row.is_tiled_by(inside):
                for old in inside:
                    del self.rows[old.lo]
                self.rows[row.lo] = row


_epochs = count(1)


@dataclass(slots=True)
class Thread:
    """The data of one thread, with entries in the order they were stored."""

    epoch: Stamp = field(default_factory=_epochs.__next__)  # differs between threads of the same id
    records: dict[Stamp, Record] = field(default_factory=dict)
    ids: dict[tuple[str, str | None], Record] = field(default_factory=dict)  # by namespace and id of the checkpoint
    logs: dict[tuple[str, str], Log] = field(default_factory=dict)  # by namespace and channel
    batches: dict[tuple[str, str], list[Batch]] = field(default_factory=dict)  # of checkpoints that may not exist

    def log(self, namespace: str, channel: str) -> Log:
        """Return the item log of a channel, empty if it is new."""
        return self.logs.setdefault((namespace, channel), Log())

    def named(self, namespace: str, checkpoint_id: str | None) -> Record | None:
        """Return the entry with this id, ghosts included."""
        return self.ids.get((namespace, checkpoint_id))

    def head(self, namespace: str) -> Record | None:
        """Return a namespace's newest entry on the trunk, or of all if the trunk is empty."""
        newest = None
        for record in reversed(self.records.values()):
            if record.entry.address.checkpoint_ns == namespace and not record.ghost:
                if record.trunk:
                    return record
                newest = newest or record
        return newest

    def visible(self, namespace: str, checkpoint_id: str | None) -> Record | None:
        """Return the entry with this id, or the head if it is `None`; never a ghost."""
        record = self.named(namespace, checkpoint_id) if checkpoint_id else self.head(namespace)
        return record if record and not record.ghost else None

    def keep(self, record: Record) -> None:
        """Store an entry as the newest; replace an entry with the same id."""
        address = record.entry.address
        old = self.named(address.checkpoint_ns, address.checkpoint_id)
        if old:
            del self.records[old.entry.stamp]
        self.records[record.entry.stamp] = record
        self.ids[address.checkpoint_ns, address.checkpoint_id] = record

    def forget(self, stamp: Stamp) -> None:
        """Delete an entry, if it exists, and its writes."""
        record = self.records.pop(stamp, None)
        if record:
            address = record.entry.address
            self.ids.pop((address.checkpoint_ns, address.checkpoint_id), None)
            self.batches.pop((address.checkpoint_ns, str(address.checkpoint_id)), None)

    def make_ghost(self, stamp: Stamp, channels: Collection[str]) -> None:
        """Make an entry, if it exists, a ghost that keeps only some channels."""
        record = self.records.get(stamp)
        if record:
            kept = {name: ref for name, ref in record.entry.refs.items() if name in channels}
            record.entry = replace(record.entry, refs=kept)
            record.ghost = True


def as_of(thread: Thread, upto: Entry) -> Thread | None:
    """Return the copy of a thread up to an entry; `None` if the entry does not exist."""
    last = thread.records.get(upto.stamp)
    if last is None or last.ghost:
        return None
    order = list(thread.records)
    records = {stamp: thread.records[stamp] for stamp in order[: order.index(upto.stamp)]}
    batches = {key: thread.batches[key] for key in map(_place_of, records.values()) if key in thread.batches}
    entry, at = replace(last.entry, header=upto.header), max(last.updated_at, upto.updated_at)
    records[upto.stamp] = replace(last, entry=entry, updated_at=at, trunk=True)
    ids: dict[tuple[str, str | None], Record] = {_place_of(record): record for record in records.values()}
    # Copy each log up to the last row that an entry refers to.
    ends: dict[tuple[str, str], int] = {}
    for entry in (record.entry for record in records.values()):
        for channel, ref in entry.refs.items():
            key = entry.address.checkpoint_ns, channel
            ends[key] = max([ends.get(key, 0), *(hi for _, hi in ref.runs)])
    rows = {key: thread.logs[key].find_rows([(0, end)]) for key, end in ends.items() if end}
    logs = {key: Log({row.lo: row for row in found}, thread.logs[key].end) for key, found in rows.items()}
    return Thread(thread.epoch, records, ids, logs, batches)


def _place_of(record: Record) -> tuple[str, str]:
    return record.entry.address.checkpoint_ns, str(record.entry.address.checkpoint_id)


def touches(row: Row, runs: Sequence[Run]) -> bool:
    """Return whether a row contains an item of `runs`."""
    return any(row.lo < hi and lo < row.lo + row.count for lo, hi in runs)


def sequence_of(stamp: Stamp) -> int:
    """Return the sequence number in a stamp: the whole stamp or its second part."""
    return stamp if isinstance(stamp, int) else int(stamp.split(".")[1])


def verdict(thread: Thread, new: NewEntry) -> BaseGone | Moved | bool:
    """Return why an entry is refused, or whether it belongs on the trunk."""
    base = thread.records.get(new.base) if new.base is not None else None
    if new.base is not None and (base is None or base.ghost):
        return BaseGone()
    if new.checked and new.on_conflict == "beside":
        return False
    head = thread.head(new.address.checkpoint_ns)
    head_id = head.entry.address.checkpoint_id if head else None
    follows = not new.checked or head_id in (new.parent, new.address.checkpoint_id)
    if not follows and new.on_conflict == "raise":
        return Moved(head_id)
    return follows or head is None


def put_time(thread: Thread, new: NewEntry) -> str:
    """Return a new entry's time, not before the last entry's: hosts' clocks differ."""
    last = next(reversed(thread.records.values()), None)
    return max(new.updated_at, last.updated_at) if last else new.updated_at


def entry_of(new: NewEntry, stamp: Stamp, first: Mapping[str, int]) -> Entry:
    """Return the stored form of an entry, with new items numbered from `first`."""
    refs = {**new.refs}
    for name, number in first.items():
        refs[name] = Ref(refs[name].kind, resolve(refs[name].runs, number))
    return Entry(new.address, new.parent, stamp, new.header, refs, new.run_id)


def read_entry(thread: Thread, record: Record) -> Entry:
    """Return an entry as readers see it: without a parent that they cannot see."""
    entry = record.entry
    seen = entry.parent and thread.visible(entry.address.checkpoint_ns, entry.parent)
    return entry if seen or not entry.parent else replace(entry, parent=None)


def read_record(thread: Thread, record: Record, channels: Collection[str] | None = None) -> Found:
    """Return an entry with its writes and its rows (of `channels`, or of all)."""
    address, refs = record.entry.address, record.entry.refs
    rows = {
        channel: thread.log(address.checkpoint_ns, channel).find_rows(ref.runs)
        for channel, ref in refs.items()
        if ref.runs and (channels is None or channel in channels)
    }
    batches = thread.batches.get((address.checkpoint_ns, str(address.checkpoint_id)), ())
    return Found(read_entry(thread, record), rows, tuple(batches))


def ancestors(thread: Thread, address: Address, channels: Collection[str]) -> Iterator[Found]:
    """Yield the ancestors of a checkpoint until each of `channels` occurred."""
    missing, seen = set(channels), set[Stamp]()
    record = thread.visible(address.checkpoint_ns, address.checkpoint_id)
    while record and missing:
        seen.add(record.entry.stamp)
        record = thread.named(address.checkpoint_ns, record.entry.parent) if record.entry.parent else None
        if record is None or record.entry.stamp in seen:
            return
        yield read_record(thread, record, channels)
        missing -= set(record.entry.refs)


def graph_of(thread: Thread) -> Graph:
    """Return a thread as retention sees it."""
    namespaces = {record.entry.address.checkpoint_ns for record in thread.records.values()}
    heads = {head.entry.stamp for namespace in namespaces if (head := thread.head(namespace))}
    nodes = [
        Node(
            *(e.address, e.parent, e.stamp, e.header, e.refs, e.run_id),
            *(e.stamp in heads, record.ghost, record.updated_at, not record.trunk),
        )
        for record in thread.records.values()
        for e in [record.entry]
    ]
    return Graph(nodes, {key: log.end for key, log in thread.logs.items()}, thread.epoch)


def info_of(name: str, thread: Thread) -> Listed:
    """Return a thread's entry in a listing, and its root head."""
    visible = [record for record in thread.records.values() if not record.ghost]
    head = thread.head("")
    latest = head.entry.address.checkpoint_id if head else None
    updated_at = visible[-1].updated_at if visible else ""
    return ThreadInfo(name, len(visible), updated_at, latest, None), read_entry(thread, head) if head else None


def selected(thread: Thread, query: Query) -> Iterator[Entry]:
    """Yield all entries of a thread that match a query, newest first, ignoring pages."""
    for record in reversed(thread.records.values()):
        address = record.entry.address
        if record.ghost or query.checkpoint_ns not in (None, address.checkpoint_ns):
            continue
        if query.checkpoint_id not in (None, address.checkpoint_id):
            continue
        if query.before is not None:
            bound = thread.named(address.checkpoint_ns, query.before)
            if bound is None:
                precedes = str(address.checkpoint_id) < query.before
            else:
                precedes = sequence_of(record.entry.stamp) < sequence_of(bound.entry.stamp)
            if not precedes:
                continue
        yield read_entry(thread, record)


def list_writes(thread_id: str, thread: Thread, after: Writes | None, limit: int) -> list[Writes]:
    """Return a page of a thread's writes, with numbers in the checkpoint as stamps."""
    found = [
        Writes(number, Address(thread_id, *place), batch)
        for place, batches in sorted(thread.batches.items())
        for number, batch in enumerate(batches)
    ]
    return [each for each in found if after is None or place_of_writes(each) > place_of_writes(after)][:limit]


def place_of_writes(writes: Writes) -> tuple[str, str, int]:
    """Return the key of writes within their thread."""
    return writes.address.checkpoint_ns, str(writes.address.checkpoint_id), sequence_of(writes.stamp)


def replace_plain(thread: Thread, new: Replacement) -> None:
    """Replace plain-text records by encrypted ones."""
    for stamp, header in new.headers.items():
        record = thread.records.get(stamp)
        if record is not None and not record.entry.header.startswith(SEALED):
            record.entry = replace(record.entry, header=header)
    for key, rows in new.rows.items():
        log = thread.log(*key)
        for row in rows:
            old = log.rows.get(row.lo)
            if old is not None and old.count == row.count and not old.body.startswith(SEALED):
                log.rows[row.lo] = row
    for writes in new.writes:
        batches = thread.batches.get((writes.address.checkpoint_ns, str(writes.address.checkpoint_id)), [])
        number = sequence_of(writes.stamp)
        if number < len(batches) and not batches[number].body.startswith(SEALED):
            batches[number] = writes.batch


def is_last(thread: Thread | None, stamp: Stamp) -> bool:
    """Return whether this is the stamp of a thread's newest entry, ghosts excluded."""
    records = thread.records.values() if thread else ()
    shown = [record.entry.stamp for record in records if not record.ghost]
    return stamp == max(shown, key=sequence_of, default=None)


def page(entries: Iterable[Entry], query: Query) -> list[Entry]:
    """Return one page of entries, in the order of the query."""

    def place(entry: Entry) -> tuple[str, str, int]:
        names = ("", "") if query.thread_id is not None else (str(entry.address.checkpoint_id), entry.address.thread_id)
        return *names, sequence_of(entry.stamp)

    ordered = sorted(entries, key=place, reverse=True)
    if query.after is not None:
        ordered = [entry for entry in ordered if place(entry) < place(query.after)]
    return ordered[: query.limit]
