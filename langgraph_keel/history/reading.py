"""The moments of a thread, from headers, new values and pending writes.

They are read in pages, newest first; no whole state is decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import PendingWrite

from langgraph_keel._langgraph import ERROR, NULL_TASK_ID, RESUME
from langgraph_keel.approvals.asked import read_questions
from langgraph_keel.display.messages import message_text
from langgraph_keel.display.text import one_line
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.entries import REWOUND_TO, Header, is_trigger, next_nodes, pending_writes, unpack_header
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Found, Kind, Query, Ref, Row, Run, record
from langgraph_keel.engine.serde.serializer import Codec, find_unread
from langgraph_keel.engine.serde.unread import Unread
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore
from langgraph_keel.history import changes as steps
from langgraph_keel.history.changes import SHOWN, Sides, count_items, lost_runs, nbytes, new_refs, tools_in
from langgraph_keel.history.labels import read_labels
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.records import Change
from langgraph_keel.provenance.drift import MARK
from langgraph_keel.provenance.records import ModelCall, unpack_calls
from langgraph_keel.upgrades.bulk import UPGRADED

if TYPE_CHECKING:
    from langgraph.types import Interrupt

T = TypeVar("T")

PAGE = 500
"""Headers per page."""
STRETCH = 50
"""Moments whose new values and writes are read together."""
SHORTEST_PART = 4
"""Minimum characters of a shortened id."""
SAMPLES = 100
"""Maximum moments whose state is measured for a plot."""


@dataclass(frozen=True, slots=True)
class _Read:
    entry: Entry
    header: Header
    found: Found
    triggers: Mapping[str, Any]
    writes: Sequence[PendingWrite]
    waits: tuple[Interrupt, ...]
    errors: tuple[str, ...]
    unread: tuple[str, ...]


def moments_of(session: Session, entries: Sequence[Entry], *, is_brief: bool = False) -> Plan[Sequence[Moment]]:
    """Return the moments of entries, without positions and labels.

    One trip, and one for each parent that is not among the entries.
    """
    known = {entry.address: entry for entry in entries}
    parents: dict[Address, Entry] = {}
    for address in {_parent(entry) for entry in entries} - {None, *known}:
        assert address is not None
        page = yield from session.store.scan(
            Query(address.thread_id, address.checkpoint_ns, address.checkpoint_id, limit=1)
        )
        parents.update((entry.address, entry) for entry in page)
    both = {**known, **parents}
    news_of = {} if is_brief else {each.address: new_refs(each.refs, _refs(both, _parent(each))) for each in entries}
    wanted = _narrow(both, news_of)
    found = (yield from session.store.read_values(wanted)) if wanted else ()
    reader = _Reader(session.codec)
    read = {each.entry.address: reader.read(both[each.entry.address], each) for each in found}
    there = [read[entry.address] for entry in entries if entry.address in read]
    return [reader.make(each, read, is_brief=is_brief) for each in there]


def _parent(entry: Entry) -> Address | None:
    return None if entry.parent is None else replace(entry.address, checkpoint_id=entry.parent)


def _refs(known: Mapping[Address, Entry], address: Address | None) -> Mapping[str, Ref]:
    return known[address].refs if address and address in known else {}


def _narrow(known: Mapping[Address, Entry], news_of: Mapping[Address, Mapping[str, Ref]]) -> list[Entry]:
    """Return entries with the refs to read: new and replaced values, and triggers."""
    old: dict[Address, dict[str, Ref]] = {address: {} for address in known}
    for address, new in news_of.items():
        parent = _parent(known[address])
        before = _refs(known, parent)
        wholes = [name for name, ref in new.items() if ref.kind is Kind.WHOLE and name in before]
        if parent and before:
            old[parent].update((name, before[name]) for name in wholes if before[name].kind is Kind.WHOLE)
            gone = {name: lost_runs(before[name], known[address].refs[name]) for name in new if name in before}
            # Also the elements removed from a list, if there are few.
            few = {name: Ref(Kind.LIST, runs) for name, runs in gone.items() if 0 < count_items(runs) <= SHOWN}
            old[parent].update(few)
    return [
        replace(entry, refs={**news_of.get(address, {}), **old[address], **_triggers(entry)})
        for address, entry in known.items()
    ]


def _triggers(entry: Entry) -> dict[str, Any]:
    return {name: ref for name, ref in entry.refs.items() if is_trigger(name) and ref.kind is not Kind.INLINE}


class _Reader(Unpacker):
    """Makes moments of entries, with placeholders for values that may not be revived."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec.with_placeholders(self._note))
        self._has_unread = False
        self._unread: list[str] = []

    def _note(self, unread: Unread) -> Unread:
        self._has_unread = True
        return unread

    def _look(self, value: T) -> T:
        """Record the unread classes of a value: its row may contain those of others, too."""
        if self._has_unread:
            self._unread += [each.type_name for each in find_unread(value)]
        return value

    def items(self, runs: Sequence[Run], rows: Sequence[Row]) -> list[Any]:
        return self._look(super().items(runs, rows))

    def read(self, entry: Entry, found: Found) -> _Read:
        """Read an entry, without its changes."""
        where = entry.address
        self._unread.clear()
        header = unpack_header(entry.header, self._codec, where)
        small = {name: value for name, value in header.inline.items() if is_trigger(name)}
        large = self._look(self.values(_triggers(entry), found.rows, where))
        writes = self._look(pending_writes(found.batches, self._codec, where))
        waits = steps.open_questions(writes)
        failed = writes
        if waits and any(channel in (RESUME, ERROR) for task, channel, _ in writes if task != NULL_TASK_ID):
            asked = read_questions(found.batches, self._codec, where)
            waits = tuple(each for each in waits if each.id not in asked or asked[each.id].is_open)
            again = {each.task_id for each in asked.values() if each.is_open and not each.may_be_inside}
            failed = [write for write in writes if write[0] not in again]  # such a task has asked again since it failed
        errors = steps.task_errors(failed)
        return _Read(entry, header, found, {**small, **large}, writes, waits, errors, tuple(self._unread))

    def make(self, read: _Read, known: Mapping[Address, _Read], *, is_brief: bool) -> Moment:
        entry, header, writes = read.entry, read.header, read.writes
        parent = known.get(at) if (at := _parent(entry)) else None
        self._unread.clear()
        was, before = (parent.header.inline, parent.entry.refs) if parent else ({}, {})
        old_rows, new = parent.found.rows if parent else {}, new_refs(entry.refs, before)
        sides = Sides(read.found.rows, old_rows, header.inline, was, entry.refs, before, new)
        changes: tuple[Change, ...] = ()
        if not is_brief:
            # Also at a snapshot of a delta channel, or at the first checkpoint after one.
            metadata = (header.metadata, parent.header.metadata) if parent else ()
            deltas = dict.fromkeys(channel for each in metadata for channel in steps.delta_channels(each))
            written = steps.delta_changes(parent.writes, deltas) if parent else ()
            changes = (*sides.changes(self, deltas), *written)
        calls = unpack_calls(header.about.get("calls"))
        models = [call.served_model or call.model for call in calls if call.error is None]
        marks = header.metadata.get(MARK)
        try:
            time = datetime.fromisoformat(str(header.checkpoint.get("ts")))
        except ValueError:
            time = None
        return Moment(
            address=entry.address,
            position=0,
            parent=entry.parent,
            step=header.metadata.get("step"),
            source=str(header.metadata.get("source", "")),
            time=time,
            nodes=_nodes(read, parent),
            next=next_nodes(header.checkpoint, read.triggers),
            changes=changes,
            summary="; ".join(f"{change.channel} {change.text}" for change in changes),
            models=tuple(dict.fromkeys(name for name in models if name)),
            tools=tools_in(changes),
            asked=steps.questions(writes),
            interrupts=read.waits,
            errors=read.errors,
            pending=steps.written_channels(writes),
            unread=tuple(dict.fromkeys([*read.unread, *self._unread])),
            drift=tuple(map(str, marks)) if isinstance(marks, list) else (),
            tokens=_tokens(calls),
            cost=_cost(calls),
            bytes=_size(entry, read.found, sides.new),
            metadata=header.metadata,
        )


def moment_of_head(session: Session, head: Found) -> Moment:
    """Return the moment of a checkpoint, without changes since its parent. No trip."""
    reader = _Reader(session.codec)
    return reader.make(reader.read(head.entry, head), {}, is_brief=True)


def read_heads(session: Session, heads: Sequence[Entry]) -> Plan[Mapping[str, Found]]:
    """Read the data for `moment_of_head`, by thread. One trip.

    Checkpoints that are damaged or deleted are left out.
    """
    try:
        wanted = [replace(head, refs=_triggers(head)) for head in heads]
        found = (yield from session.store.read_values(wanted)) if wanted else ()
    except CorruptStore:
        return {}
    entries = {head.address: head for head in heads}
    return {
        each.entry.address.thread_id: replace(each, entry=entries[each.entry.address])
        for each in found
        if each.entry.address in entries
    }


@record
class Doing:
    """The activity of a thread at its latest checkpoint, whose metadata has `source`."""

    source: str
    next: tuple[str, ...]
    asks: bool
    errors: tuple[str, ...]


def read_doing(session: Session, heads: Sequence[Entry]) -> Plan[Mapping[Address, Doing]]:
    """Return the activity of threads at their latest checkpoints. One trip."""
    found = yield from session.store.read_values([replace(head, refs=_triggers(head)) for head in heads])
    reader = _Reader(session.codec)
    by_address = {head.address: head for head in heads}
    doing = {}
    for each in found:
        read = reader.read(by_address[each.entry.address], each)
        source, following = read.header.metadata.get("source", ""), next_nodes(read.header.checkpoint, read.triggers)
        doing[each.entry.address] = Doing(str(source), following, bool(read.waits), read.errors)
    return doing


def read_openings(session: Session, heads: Collection[Entry], channel: str = "messages") -> Plan[Mapping[str, str]]:
    """Return the first message of each thread, on one line. One trip."""
    wanted, texts = [], dict[str, str]()
    codec = session.codec.with_placeholders()
    for head in heads:
        if (ref := head.refs.get(channel)) is not None:
            # Of a list, its first element only: the store reads the row that holds it.
            first = (
                Ref(ref.kind, ((ref.runs[0][0], ref.runs[0][0] + 1),)) if ref.kind is Kind.LIST and ref.runs else ref
            )
            wanted.append(replace(head, refs={channel: first}))
    try:
        found = (yield from session.store.read_values(wanted)) if wanted else ()
    except CorruptStore:
        return {}
    refs, unpacker = {entry.address: entry.refs for entry in wanted}, Unpacker(codec)
    for each in found:
        where = each.entry.address
        try:
            if refs[where][channel].kind is Kind.INLINE:
                value = unpack_header(each.entry.header, codec, where).inline.get(channel)
            else:
                value = unpacker.values(refs[where], each.rows, where)[channel]
        except CorruptStore:
            continue
        first_of = value[0] if isinstance(value, list) and value else None
        if isinstance(first_of, BaseMessage | Unread):
            texts[where.thread_id] = one_line(message_text(first_of))
    return texts


def _nodes(read: _Read, parent: _Read | None) -> tuple[str, ...]:
    if parent is None or read.header.metadata.get("source") != "loop" or UPGRADED in read.header.metadata:
        return ()
    return steps.nodes_run(read.header.checkpoint, parent.header.checkpoint, parent.triggers)


def _tokens(calls: Sequence[ModelCall]) -> tuple[int, int]:
    def total(name: str) -> int:
        return sum(count for call in calls if isinstance(count := call.usage.get(name), int))

    return total("input_tokens"), total("output_tokens")


def _cost(calls: Iterable[ModelCall]) -> float | None:
    known = [call.cost for call in calls if call.cost is not None]
    return sum(known) if known else None


def state_bytes(session: Session, entries: Sequence[Entry]) -> Plan[Mapping[Address, int]]:
    """Return the size of the state at each checkpoint, in bytes. One trip."""
    found = (yield from session.store.read_values(entries)) if entries else ()
    return {each.entry.address: _size(each.entry, each, each.entry.refs) for each in found}


def _size(entry: Entry, found: Found, refs: Mapping[str, Ref]) -> int:
    return len(entry.header) + sum(nbytes(ref.runs, found.rows.get(name, ())) for name, ref in refs.items())


class Pages:
    """A snapshot of a thread's entries read so far, newest first, and their moments."""

    def __init__(self, session: Session, thread_id: str, *, is_brief: bool = False) -> None:
        self._session = session
        self._is_brief = is_brief  # without changes, so no values are read
        self.thread_id = thread_id
        self.entries: list[Entry] = []
        self.is_whole = False
        self.places: dict[Address, int] = {}  # place of each entry, counted from the newest
        self._continued: set[Address] = set()
        self.heads: dict[str, Address] = {}  # the latest checkpoint of each namespace
        self._labels: Mapping[Address, tuple[str, ...]] = {}
        self._moments: dict[Address, Moment] = {}
        self._sizes: dict[Address, int] = {}

    def upto(self, count: int | None) -> Plan[None]:
        """Read headers until there are `count`, or all (`None`)."""
        while not self.is_whole and (count is None or len(self.entries) < count):
            last = self.entries[-1] if self.entries else None
            page = yield from self._session.store.scan(Query(self.thread_id, limit=PAGE, after=last))
            if last is None:
                yield from self._open(page)
            if last is (self.entries[-1] if self.entries else None):  # else another task has read it concurrently
                self._take(page)
                self.is_whole = len(page) < PAGE

    def _open(self, page: Sequence[Entry]) -> Plan[None]:
        labels: dict[Address, tuple[str, ...]] = {}
        for label in (yield from read_labels(self._session, self.thread_id)):
            labels[label.address] = (*labels.get(label.address, ()), label.name)
        self._labels = labels
        # The latest is not always the entry that was stored last, which may be on a branch.
        head = yield from self._session.store.read_entry(Address(self.thread_id))
        if head and head.entry.address in {entry.address for entry in page}:  # else it was stored in between
            self.heads[""] = head.entry.address

    def _take(self, page: Sequence[Entry]) -> None:
        for entry in page:
            self.places[entry.address] = len(self.entries)
            self.entries.append(entry)
            self.heads.setdefault(entry.address.checkpoint_ns, entry.address)
            if entry.parent:
                self._continued.add(replace(entry.address, checkpoint_id=entry.parent))

    def moments(self, places: range) -> Plan[Sequence[Moment]]:
        """Return the moments at places counted from the newest, except deleted ones."""
        yield from self.upto(places.stop)
        # Also read their neighbours, which are likely to be needed next.
        start, stop = places.start // STRETCH * STRETCH, -(-places.stop // STRETCH) * STRETCH
        wanted = [entry for entry in self.entries[start:stop] if entry.address not in self._moments]
        for first in range(0, len(wanted), STRETCH):
            read = yield from moments_of(self._session, wanted[first : first + STRETCH], is_brief=self._is_brief)
            self._moments.update((moment.address, moment) for moment in read)
        shown = []
        for entry in self.entries[places.start : places.stop]:
            if (moment := self._moments.get(entry.address)) is None:
                continue
            place, is_leaf = self.places[entry.address], entry.address not in self._continued
            position = len(self.entries) - 1 - place if self.is_whole else -1 - place
            is_head = self.heads.get(entry.address.checkpoint_ns) == entry.address
            # If the run continued, the writes of its tasks are part of the next checkpoint.
            over: dict[str, Any] = {} if is_leaf else {"pending": (), "errors": (), "interrupts": ()}
            labels = self._labels_of(moment)
            shown.append(replace(moment, position=position, labels=labels, is_head=is_head, is_leaf=is_leaf, **over))
        return shown

    def _labels_of(self, moment: Moment) -> tuple[str, ...]:
        """Return the labels of a moment, and of the moments of which it is a twin."""
        names = list(self._labels.get(moment.address, ()))
        seen, each = {moment.id}, moment
        while (original := each.metadata.get(REWOUND_TO)) and original not in seen:
            seen.add(original)
            address = replace(each.address, checkpoint_id=original)
            names += self._labels.get(address, ())
            each = self._moments.get(address, each)
        return tuple(names)

    def way_to(self, address: Address) -> Sequence[Address]:
        """Return the ancestors of a checkpoint and itself, last, as far as read."""
        way: list[Address] = []
        place = self.places.get(address)
        while place is not None:
            entry = self.entries[place]
            way.append(entry.address)
            place = self.places.get(replace(entry.address, checkpoint_id=entry.parent)) if entry.parent else None
        return way[::-1]

    def nearest(self, address: Address, shown: Collection[Address]) -> str | None:
        """Return the id of a checkpoint's nearest ancestor among those shown."""
        entry = self.entries[self.places[address]]
        while entry.parent is not None:
            before = replace(entry.address, checkpoint_id=entry.parent)
            if before in shown or before not in self.places:
                return entry.parent if before in shown else None
            entry = self.entries[self.places[before]]
        return None

    def named(self, name: str) -> list[int]:
        """Return the places of entries with this id, else of those whose id it shortens."""
        ids = [(str(address.checkpoint_id), place) for address, place in self.places.items()]
        same = [place for each, place in ids if each == name]
        if same or len(name) < SHORTEST_PART:
            return same
        return [place for each, place in ids if each.startswith(name) or each.endswith(name)]

    def labelled(self, name: str) -> Address | None:
        """Return the checkpoint that has a label."""
        return next((address for address, names in self._labels.items() if name in names), None)

    def measured(self, places: Sequence[int]) -> Plan[Mapping[Address, int]]:
        """Return the size of the state at up to `SAMPLES` places, evenly spread."""
        spread = [places[round(n * (len(places) - 1) / (SAMPLES - 1))] for n in range(SAMPLES)] if places else ()
        chosen = places if len(places) <= SAMPLES else spread
        entries = (self.entries[each] for each in dict.fromkeys(chosen))
        unknown = [entry for entry in entries if entry.address not in self._sizes]
        self._sizes.update((yield from state_bytes(self._session, unknown)))
        return self._sizes
