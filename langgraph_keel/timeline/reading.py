"""Entries made moments: headers, what is new since the parent, and pending writes. No state is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from langgraph.checkpoint.base import PendingWrite

from langgraph_keel.core.checkpoints import Checkpoints, where_is
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.drift import MARK
from langgraph_keel.core.encoding import Unpacker
from langgraph_keel.core.headers import Header, unpack_header
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.provenance import ModelCall, unpacked_all
from langgraph_keel.core.records import Address, Batch, Entry, Found, Kind, Query, Ref
from langgraph_keel.core.writes import pending_writes
from langgraph_keel.errors import ValueRefused
from langgraph_keel.timeline import steps
from langgraph_keel.timeline.changes import SHOWN, Sides, count, nbytes, news, replaced, tools_in
from langgraph_keel.timeline.moment import Change, Moment


@dataclass(frozen=True, slots=True)
class _Read:
    """An entry with what was read of it."""

    entry: Entry
    header: Header
    found: Found
    triggers: Mapping[str, Any]
    writes: Sequence[PendingWrite]
    unread: tuple[str, ...]


def moments_of(core: Checkpoints[Q, R], codec: Codec, entries: Sequence[Entry]) -> Plan[Q, R, Sequence[Moment]]:
    """Return the moments of entries, without those gone meanwhile. A trip, and one for each parent not among them.

    Their positions, labels and whether something continues them are not known here.
    """
    known = {entry.address: entry for entry in entries}
    parents: dict[Address, Entry] = {}
    for address in {_parent(entry) for entry in entries} - {None, *known}:
        assert address is not None
        page = yield from core.store.scan(
            Query(address.thread_id, address.checkpoint_ns, address.checkpoint_id, limit=1)
        )
        parents.update((entry.address, entry) for entry in page)
    both = {**known, **parents}
    news_of = {entry.address: news(entry.refs, _refs(both, _parent(entry))) for entry in entries}
    wanted = _narrowed(both, news_of)
    found = (yield from core.store.read_values(wanted)) if wanted else ()
    unpacker = Unpacker(codec)
    read = {each.entry.address: _read(both[each.entry.address], each, codec, unpacker) for each in found}
    return [_moment(read[entry.address], read, codec, unpacker) for entry in entries if entry.address in read]


def _parent(entry: Entry) -> Address | None:
    return None if entry.parent is None else replace(entry.address, checkpoint_id=entry.parent)


def _refs(known: Mapping[Address, Entry], address: Address | None) -> Mapping[str, Ref]:
    return known[address].refs if address and address in known else {}


def _narrowed(known: Mapping[Address, Entry], news_of: Mapping[Address, Mapping[str, Ref]]) -> list[Entry]:
    """Return entries that name only what is to be read: what is new in them, and what tells the nodes that run next.

    Of what the next one writes anew as a whole, also what it was before: only both together say what changed.
    """
    old: dict[Address, dict[str, Ref]] = {address: {} for address in known}
    for address, new in news_of.items():
        parent = _parent(known[address])
        before = _refs(known, parent)
        wholes = [name for name, ref in new.items() if ref.kind is Kind.WHOLE and name in before]
        if parent and before:
            old[parent].update((name, before[name]) for name in wholes if before[name].kind is Kind.WHOLE)
            old[parent].update(_few_replaced(known[address], before, new))
    return [
        replace(entry, refs={**news_of.get(address, {}), **old[address], **_triggers(entry)})
        for address, entry in known.items()
    ]


def _few_replaced(entry: Entry, before: Mapping[str, Ref], new: Mapping[str, Ref]) -> dict[str, Ref]:
    """Return per list that lost a few elements and got others, those that it lost."""
    gone = {name: replaced(before[name], entry.refs[name]) for name in new if name in before}
    return {name: Ref(Kind.LIST, runs) for name, runs in gone.items() if 0 < count(runs) <= SHOWN}


def _triggers(entry: Entry) -> dict[str, Any]:
    return {name: ref for name, ref in entry.refs.items() if steps.is_trigger(name) and ref.kind is not Kind.INLINE}


def _read(entry: Entry, found: Found, codec: Codec, unpacker: Unpacker) -> _Read:
    where = where_is(entry.address)
    header = unpack_header(entry.header, codec, where)
    small = {name: value for name, value in header.inline.items() if steps.is_trigger(name)}
    unread: list[str] = []
    large: dict[str, Any] = {}
    for name, ref in _triggers(entry).items():
        try:
            large |= unpacker.values({name: ref}, found.rows, where)
        except ValueRefused as error:  # a Send may carry anything
            unread.append(error.type_name)
    batches = [batch for batch in found.batches if _is_readable(batch, codec, where, unread)]
    writes = pending_writes(batches, codec, where)
    return _Read(entry, header, found, {**small, **large}, writes, tuple(dict.fromkeys(unread)))


def _is_readable(batch: Batch, codec: Codec, where: str, unread: list[str]) -> bool:
    try:
        pending_writes([batch], codec, where)
    except ValueRefused as error:
        unread.append(error.type_name)
        return False
    return True


def _moment(read: _Read, known: Mapping[Address, _Read], codec: Codec, unpacker: Unpacker) -> Moment:
    entry, header = read.entry, read.header
    parent = known.get(at) if (at := _parent(entry)) else None
    sides = _sides(read, parent)
    changes = tuple(sides.changes(unpacker))
    writes = read.writes
    calls = unpacked_all(header.about.get("calls"))
    return Moment(
        address=entry.address,
        position=0,
        parent=entry.parent,
        step=header.metadata.get("step"),
        source=str(header.metadata.get("source", "")),
        time=_time(header.checkpoint.get("ts")),
        nodes=_nodes(read, parent),
        next=steps.next_nodes(header.checkpoint, read.triggers),
        changes=changes,
        summary=_summary(changes),
        models=_models(calls),
        tools=tools_in(changes),
        asked=steps.asked(writes),
        interrupts=steps.interrupts(writes),
        errors=steps.errors(writes),
        pending=steps.written(writes),
        unread=read.unread,
        drift=_drift(header.metadata),
        tokens=_tokens(calls),
        cost=_cost(calls),
        bytes=len(entry.header)
        + sum(nbytes(ref.runs, read.found.rows.get(name, ())) for name, ref in sides.new.items()),
        metadata=header.metadata,
    )


def _sides(read: _Read, parent: _Read | None) -> Sides:
    was, before = (parent.header.inline, parent.entry.refs) if parent else ({}, {})
    rows = parent.found.rows if parent else {}
    new = news(read.entry.refs, before)
    return Sides(read.found.rows, rows, read.header.inline, was, read.entry.refs, before, new)


def _nodes(read: _Read, parent: _Read | None) -> tuple[str, ...]:
    if parent is None or read.header.metadata.get("source") != "loop":
        return ()
    return steps.nodes_run(read.header.checkpoint, parent.header.checkpoint, parent.triggers)


def _time(ts: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(ts))
    except ValueError:
        return None


def _summary(changes: Iterable[Change]) -> str:
    return "; ".join(f"{change.channel} {change.text}" for change in changes)


def _models(calls: Iterable[ModelCall]) -> tuple[str, ...]:
    names = (call.served_model or call.model for call in calls if call.error is None)
    return tuple(dict.fromkeys(name for name in names if name))


def _drift(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    marks = metadata.get(MARK)
    return tuple(map(str, marks)) if isinstance(marks, list) else ()


def _tokens(calls: Sequence[ModelCall]) -> tuple[int, int]:
    def total(name: str) -> int:
        return sum(count for call in calls if isinstance(count := call.usage.get(name), int))

    return total("input_tokens"), total("output_tokens")


def _cost(calls: Iterable[ModelCall]) -> float | None:
    known = [call.cost for call in calls if call.cost is not None]
    return sum(known) if known else None


def state_bytes(core: Checkpoints[Q, R], entries: Sequence[Entry]) -> Plan[Q, R, Mapping[Address, int]]:
    """Return the bytes of all values that each checkpoint shows. One trip; rows that they share are read once."""
    found = (yield from core.store.read_values(entries)) if entries else ()
    return {each.entry.address: _shown(each) for each in found}


def _shown(found: Found) -> int:
    parts = (nbytes(ref.runs, found.rows.get(name, ())) for name, ref in found.entry.refs.items())
    return len(found.entry.header) + sum(parts)
