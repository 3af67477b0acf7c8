"""What the copying verb does inside one transaction.

Rows are copied as they are: refs name channels by slots, which stay. A copy up to an entry reads what stands below its
key, and of the items those below the last that an entry shows: its work does not grow with what was put later.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from langgraph_keel.core.frames import unframe
from langgraph_keel.core.records import BaseGone, Copied, CopyOutcome, Occupied, Stamp
from langgraph_keel.core.serde import KeelSerializer
from langgraph_keel.sqlite.removal import namespaces_of
from langgraph_keel.sqlite.rows import LAST, Execute, Place, insert_namespace, last_seq, span

_PLAIN = KeelSerializer(types=())
ALL_BATCHES = "FROM batches b WHERE b.namespace = ?"
# CROSS JOIN: the entries first, of which there are as many as are copied.
BATCHES_OF = (
    "FROM entries e CROSS JOIN batches b ON b.namespace = e.namespace AND b.mark = e.mark AND b.checkpoint = e.id "
    "WHERE {where}"
)


class Part(NamedTuple):
    """The entries of a namespace with keys from `first` to `last`."""

    place: Place
    first: int
    last: int

    @property
    def where(self) -> str:
        """The condition; the entries of a subgraph stand in an index of their own."""
        return f"{'e.nested AND ' if self.place.nested else ''}e.namespace = ? AND e.key BETWEEN ? AND ?"

    @property
    def parameters(self) -> tuple[int, ...]:
        """What it is about."""
        return self.place.namespace, self.first, self.last


def copy_thread(source: str, target: str, upto: Stamp | None, header: bytes | None, execute: Execute) -> CopyOutcome:
    """See `Store.copy_thread`."""
    if execute("SELECT 1 FROM threads WHERE name = ?", (target,)).fetchone():
        return Occupied()
    old = execute("SELECT id FROM threads WHERE name = ?", (source,)).fetchone()
    if upto is not None and not (old and _is_of(execute, old[0], upto)):
        return BaseGone()
    if old:
        # Numbers that were used are not used again: a parent that was put again after `upto` is known by a later one.
        floor = last_seq(execute, old[0])
        ((new,),) = execute("INSERT INTO threads (name, floor) VALUES (?, ?) RETURNING id", (target, floor)).fetchall()
        for place, name in namespaces_of(execute, source):
            _copy_namespace(execute, Part(place, span(old[0])[0], span(old[0])[1]), new, name, upto)
        _make_head(execute, new, upto, header)
    return Copied()


def _is_of(execute: Execute, thread: int, upto: Stamp) -> bool:
    (first, last) = span(thread)
    row = execute("SELECT 1 FROM entries WHERE key = ? AND key BETWEEN ? AND ? AND state < 2", (upto, first, last))
    return row.fetchone() is not None


def _make_head(execute: Execute, thread: int, upto: Stamp | None, header: bytes | None) -> None:
    if upto is not None:
        key = span(thread)[0] | int(upto) & LAST
        execute("UPDATE entries SET state = 0, header = coalesce(?, header) WHERE key = ?", (header, key))


def _copy_namespace(execute: Execute, part: Part, thread: int, name: str, upto: Stamp | None) -> None:
    if upto is not None:
        part = part._replace(last=int(upto))
        if not execute(f"SELECT 1 FROM entries e WHERE {part.where}", part.parameters).fetchone():
            return
    new = insert_namespace(execute, thread, name)
    execute(
        f"INSERT INTO entries SELECT ? | (e.key & {LAST}), ?, e.nested, e.state, e.id, e.mark, e.parent, e.run, "
        f"e.put_at, e.refs, e.header FROM entries e WHERE {part.where}",
        (span(thread)[0], new, *part.parameters),
    )
    _copy_batches(execute, part, new, upto)
    ends = None if upto is None else _ends_of(execute, part)
    for channel, slot, *rest in execute(
        "SELECT id, slot, name, floor FROM channels WHERE namespace = ?", (part.place.namespace,)
    ).fetchall():
        if ends is None or slot in ends:
            _copy_channel(execute, channel, new, [slot, *rest], LAST if ends is None else ends[slot] - 1)


def _copy_batches(execute: Execute, part: Part, new: int, upto: Stamp | None) -> None:
    if upto is None:
        chosen, parameters = ALL_BATCHES, part.parameters[:1]
    else:
        before = part._replace(last=int(upto) - 1)
        chosen, parameters = BATCHES_OF.format(where=before.where), before.parameters
    execute(
        "INSERT INTO batches (namespace, checkpoint, mark, task, path, body) "
        f"SELECT ?, b.checkpoint, b.mark, b.task, b.path, b.body {chosen} ORDER BY b.key",
        (new, *parameters),
    )


def _ends_of(execute: Execute, part: Part) -> dict[int, int]:
    """Return the slots of the channels that entries show, and the number after the last item that they show of each."""
    ends: dict[int, int] = {}
    for (refs,) in execute(f"SELECT e.refs FROM entries e WHERE {part.where}", part.parameters).fetchall():
        for slot, _, *runs in _PLAIN.unpack(unframe(refs)):
            ends[slot] = max([ends.get(slot, 0), *runs])
    return ends


def _copy_channel(execute: Execute, old: int, namespace: int, rest: list[Any], last: int) -> None:
    ((new,),) = execute(
        "INSERT INTO channels (namespace, slot, name, floor) VALUES (?, ?, ?, ?) RETURNING id",
        (namespace, *rest),
    ).fetchall()
    first = span(old)[0]
    execute(
        f"INSERT INTO items SELECT ? | (key & {LAST}), count, body FROM items WHERE key BETWEEN ? AND ?",
        (span(new)[0], first, first + last),
    )
