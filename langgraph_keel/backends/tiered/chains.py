"""The form of a copy in the hot store: a chain of links, one for each write.

The first link holds the entry as it was read from the cold store, with all its rows. Each later link is an entry that
was written since, with its new rows, so a write sends the hot store only new data. In the hot store, a chain is one
entry and a link is an item of its log. A chain is read in one round trip, with exactly the links that its entry shows.
A writer that adds a link names the entry that it extends (`NewEntry.base`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ormsgpack

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import (
    number_rows,
    open_frame,
    raw_frame,
    resolve,
    restore_frame,
    row_index,
    rows_in,
    shrink,
)
from langgraph_keel.engine.records import NEW, Entry, Found, Kind, NewEntry, Ref, Row, Run, Stamp, Stored, record
from langgraph_keel.errors import CorruptStore

LOG = "links"
"""The channel of the hot store that holds the links."""
ID = "latest"
"""The checkpoint id of a chain in the hot store."""
SHORT = 1 << 15
"""Bytes of links that may be added to any chain, however short its first link is."""

HEAVY = 1 << 26
"""Maximum bytes of a first link; larger entries are not copied.

The hot store sends a link in one piece.
"""


@record
class Chain:
    """A chain that a process knows."""

    end: Stamp  # of its last entry, in the cold store
    stamp: Stamp  # of the chain, in the hot store
    runs: tuple[Run, ...]  # its links
    room: int  # bytes that may still be added: in all, as many as the first link has


def link_of(entry: Entry, rows: Mapping[str, Sequence[Row]], after: Stamp | None = None) -> bytes:
    """Return a framed link: an entry, and its rows that no earlier link has."""
    refs = [[name, int(ref.kind), ref.runs] for name, ref in entry.refs.items()]
    kept = [[name, [[row.lo, row.count, shrink(row.body)] for row in each]] for name, each in rows.items()]
    parts = [
        _pack_stamp(after),
        _pack_stamp(entry.stamp),
        entry.address.checkpoint_id,
        entry.parent,
        entry.run_id,
        shrink(entry.header),
        refs,
        kept,
    ]
    return raw_frame(ormsgpack.packb(parts))  # the parts are already compressed where that pays


def link_of_put(new: NewEntry, stored: Stored, after: Stamp) -> bytes:
    """Return the link of a new entry; see `link_of`."""
    first = stored.first
    refs = {name: Ref(ref.kind, resolve(ref.runs, first.get(name, 0))) for name, ref in new.refs.items()}
    rows = {name: number_rows(each, first[name]) for name, each in new.appends.items()}
    return link_of(Entry(new.address, new.parent, stored.stamp, new.header, refs, new.run_id), rows, after)


def begin_chain(address: Address, link: bytes, put_at: str = "") -> NewEntry:
    """Return the hot store's entry for a chain of one link."""
    return _entry(address, (), link, put_at)


def extend_chain(address: Address, chain: Chain, link: bytes, put_at: str) -> NewEntry:
    """Return the entry for a longer chain; refused if the chain has changed."""
    return _entry(address, chain.runs, link, put_at, chain.stamp)


def _entry(address: Address, runs: tuple[Run, ...], link: bytes, put_at: str, base: Stamp | None = None) -> NewEntry:
    refs = {LOG: Ref(Kind.LIST, (*runs, (NEW, NEW + 1)))}
    appends = {LOG: (Row(NEW, 1, link),)}
    return NewEntry(address.at(ID), None, raw_frame(b""), refs, appends, base=base, updated_at=put_at)


def chain_of(new: NewEntry, stored: Stored, end: Stamp, room: int) -> Chain:
    """Return the chain that was stored."""
    return Chain(end, stored.stamp, resolve(new.refs[LOG].runs, stored.first[LOG]), room)


def _pack_stamp(stamp: Stamp | None) -> str | bytes | None:
    """Return a stamp as in a link: PostgreSQL's may be too large for msgpack."""
    return b"%d" % stamp if isinstance(stamp, int) else stamp


def room_after(link: bytes) -> int:
    """Return the bytes that a chain may add: as many as the link, to stay linear."""
    return max(len(link), SHORT)


def read_chain(address: Address, kept: Found) -> tuple[Chain, Found]:
    """Return a chain of the hot store, and its last entry without batches."""
    try:
        runs = kept.entry.refs[LOG].runs
        rows = kept.rows[LOG]
        bodies = [rows[row_index(rows, number)].body for lo, hi in runs for number in range(lo, hi)]
        links = [ormsgpack.unpackb(open_frame(body)) for body in bodies]
        # A hot store that was restored to an earlier time may have accepted a link of another chain.
        if [after for after, *_ in links] != [None, *(end for _, end, *_ in links[:-1])]:
            raise ValueError("a link does not follow the previous one")
        _, end, checkpoint_id, parent, run_id, header, refs, _ = links[-1]
        stamp = int(end) if type(end) is bytes else end
        named = {name: Ref(Kind(kind), tuple((lo, hi) for lo, hi in runs)) for name, kind, runs in refs}
        entry = Entry(address.at(checkpoint_id), parent, stamp, restore_frame(header), named, run_id)
        found = Found(entry, _rows(named, [each for *_, kept in links for each in kept]))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise CorruptStore(f"{address}: the copy in the hot store is not a chain of links: {error}") from error
    room = room_after(bodies[0]) - sum(map(len, bodies[1:]))
    return Chain(stamp, kept.entry.stamp, runs, room), found


def _rows(refs: Mapping[str, Ref], kept: Iterable[Any]) -> dict[str, Sequence[Row]]:
    """Return the rows that an entry shows; raise if one is missing."""
    logs: dict[str, dict[int, Row]] = {}
    for name, rows in kept:
        logs.setdefault(name, {}).update((lo, Row(lo, count, body)) for lo, count, body in rows)
    shown: dict[str, Sequence[Row]] = {}
    for name, ref in refs.items():
        if ref.runs:
            log = logs.get(name, {})
            rows = rows_in([log[lo] for lo in sorted(log)], ref.runs)
            for number, hi in ref.runs:
                while number < hi:  # raises if an item is missing
                    row = rows[row_index(rows, number)]
                    number = row.lo + row.count
            shown[name] = [Row(row.lo, row.count, restore_frame(row.body)) for row in rows]
    return shown
