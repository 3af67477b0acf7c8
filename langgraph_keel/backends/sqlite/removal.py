"""The verbs that remove or copy, each inside one transaction.

Rows are copied as they are: refs name channels by slots, which stay the same. A copy up to an entry reads the entries
below its key, and the items up to the last that one of them shows, so its work does not grow with later puts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph_keel.backends.sqlite.cells import delete_cells
from langgraph_keel.backends.sqlite.reading import COLUMNS, entry_of
from langgraph_keel.backends.sqlite.rows import (
    LAST,
    Execute,
    Place,
    Slots,
    head_of,
    insert_namespace,
    last_seq,
    read_slots,
    span,
)
from langgraph_keel.engine.encoding.bodies import frame, unframe
from langgraph_keel.engine.records import BaseGone, Copied, CopyOutcome, Graph, Node, Occupied, Run, Stamp
from langgraph_keel.engine.serde.serializer import KeelSerializer

_PLAIN = KeelSerializer(types=())


def namespaces_of(execute: Execute, thread_id: str) -> list[tuple[Place, str]]:
    """Return the namespaces of a thread: the place and the name of each."""
    rows = execute(
        "SELECT t.id, n.id, n.name FROM threads t JOIN namespaces n ON n.thread = t.id WHERE t.name = ? ORDER BY n.id",
        (thread_id,),
    ).fetchall()
    return [(Place(thread, namespace, bool(name)), name) for thread, namespace, name in rows]


def read_graph(thread_id: str, execute: Execute) -> Graph:
    """See `Store.read_graph`."""
    nodes: list[Node] = []
    ends: dict[tuple[str, str], int] = {}
    for place, name in namespaces_of(execute, thread_id):
        names = read_slots(execute, place.namespace)
        slots = read_slots(execute, place.namespace, names)
        nodes += _nodes(execute, place, thread_id, name, slots)
        ends |= {(name, channel): slot.end for channel, slot in slots.items()}
    nodes.sort(key=lambda node: int(node.stamp))
    return Graph(nodes, ends, _epoch(execute, thread_id))


def _epoch(execute: Execute, thread_id: str) -> int | None:
    row = execute("SELECT id FROM threads WHERE name = ?", (thread_id,)).fetchone()
    return int(row[0]) if row else None


def _nodes(execute: Execute, place: Place, thread_id: str, name: str, slots: Slots) -> Iterator[Node]:
    head = head_of(execute, place)
    where = "e.nested" if place.nested else "e.key BETWEEN ? AND ?"
    rows = execute(
        f"SELECT {COLUMNS} FROM entries e WHERE {where} AND e.namespace = ?",
        (place.namespace,) if place.nested else (*span(place.thread), place.namespace),
    ).fetchall()
    for row in rows:
        e = entry_of(row, thread_id, name, slots)
        is_head = bool(head) and head[0] == e.stamp
        yield Node(e.address, e.parent, e.stamp, e.header, e.refs, e.run_id, is_head, row[3] == 2)


def remove_entries(
    thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]], execute: Execute
) -> None:
    """See `Store.remove_entries`."""
    _raise_floor(execute, thread_id)
    for stamp in gone:
        row = execute("SELECT mark, id, namespace FROM entries WHERE key = ?", (stamp,)).fetchone()
        if row:
            execute("DELETE FROM batches WHERE mark = ? AND checkpoint = ? AND namespace = ?", row)
            execute("DELETE FROM entries WHERE key = ?", (stamp,))
    for stamp, channels in ghosts.items():
        row = execute("SELECT namespace, refs FROM entries WHERE key = ?", (stamp,)).fetchone()
        if row:
            slots = read_slots(execute, row[0])
            kept = {slots[name].slot for name in channels if name in slots}
            refs = [ref for ref in _PLAIN.unpack(unframe(row[1])) if ref[0] in kept]
            execute("UPDATE entries SET state = 2, refs = ? WHERE key = ?", (frame(_PLAIN.pack(refs)), stamp))


def _raise_floor(execute: Execute, thread_id: str) -> None:
    # Before entries are deleted, as their sequence numbers must never be used again.
    thread = _epoch(execute, thread_id)
    if thread is not None:
        execute("UPDATE threads SET floor = ? WHERE id = ?", (last_seq(execute, thread), thread))


def remove_rows(thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph, execute: Execute) -> int:
    """See `Store.remove_rows`."""
    if _epoch(execute, thread_id) != graph.epoch:
        return 0
    removed = 0
    for place, name in namespaces_of(execute, thread_id):
        for channel, slot in read_slots(execute, place.namespace).items():
            end = graph.ends.get((name, channel), 0)
            # Before rows are deleted, as the numbers of their items must never be used again.
            execute("UPDATE channels SET floor = max(floor, ?) WHERE id = ?", (end, slot.id))
            removed += _remove_dead(execute, slot.id, live.get((name, channel), ()), end)
    return removed


def _remove_dead(execute: Execute, channel: int, live: Sequence[Run], end: int) -> int:
    base = span(channel)[0]
    rows = execute("SELECT key, count FROM items WHERE key >= ? AND key < ?", (base, base + end)).fetchall()
    dead = [key for key, count in rows if not any(key - base < hi and lo < key - base + count for lo, hi in live)]
    for key in dead:
        execute("DELETE FROM items WHERE key = ?", (key,))
    return len(dead)


def delete_thread(thread_id: str, execute: Execute) -> None:
    """See `Store.delete_thread`."""
    for place, _ in namespaces_of(execute, thread_id):
        for channel in read_slots(execute, place.namespace).values():
            execute("DELETE FROM items WHERE key BETWEEN ? AND ?", span(channel.id))
        execute("DELETE FROM channels WHERE namespace = ?", (place.namespace,))
        execute("DELETE FROM batches WHERE namespace = ?", (place.namespace,))
        execute("DELETE FROM namespaces WHERE id = ?", (place.namespace,))
        execute("DELETE FROM entries WHERE key BETWEEN ? AND ?", span(place.thread))
    execute("DELETE FROM threads WHERE name = ?", (thread_id,))
    delete_cells(thread_id, execute)


ALL_BATCHES = "FROM batches b WHERE b.namespace = ?"
# CROSS JOIN makes SQLite begin with the entries: there are only as many as are copied.
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
        """The condition that selects them; entries of subgraphs have an index of their own."""
        return f"{'e.nested AND ' if self.place.nested else ''}e.namespace = ? AND e.key BETWEEN ? AND ?"

    @property
    def parameters(self) -> tuple[int, ...]:
        """The parameters of `where`."""
        return self.place.namespace, self.first, self.last


def copy_thread(source: str, target: str, upto: Stamp | None, header: bytes | None, execute: Execute) -> CopyOutcome:
    """See `Store.copy_thread`."""
    if execute("SELECT 1 FROM threads WHERE name = ?", (target,)).fetchone():
        return Occupied()
    old = execute("SELECT id FROM threads WHERE name = ?", (source,)).fetchone()
    if upto is not None and not (old and _is_of(execute, old[0], upto)):
        return BaseGone()
    if old:
        # No number is used twice: an entry that was put again after `upto` has a later number, by which its children
        # know it.
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
    """Return, by the slots of the channels that entries show, the number after the last item that they show."""
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
