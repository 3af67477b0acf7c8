"""What the removing verbs do inside one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from langgraph_keel.core.frames import frame, unframe
from langgraph_keel.core.records import Graph, Node, Run, Stamp
from langgraph_keel.core.serde import KeelSerializer
from langgraph_keel.sqlite.cells import delete_cells
from langgraph_keel.sqlite.reading import COLUMNS, entry_of
from langgraph_keel.sqlite.rows import (
    Execute,
    Place,
    Slots,
    head_of,
    known_slots,
    last_seq,
    span,
)

_PLAIN = KeelSerializer(types=())


def namespaces_of(execute: Execute, thread_id: str) -> list[tuple[Place, str]]:
    """Return the namespaces of a thread, and where each stands."""
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
        names = known_slots(execute, place.namespace)
        slots = known_slots(execute, place.namespace, names)
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
            slots = known_slots(execute, row[0])
            kept = {slots[name].slot for name in channels if name in slots}
            refs = [ref for ref in _PLAIN.unpack(unframe(row[1])) if ref[0] in kept]
            execute("UPDATE entries SET state = 2, refs = ? WHERE key = ?", (frame(_PLAIN.pack(refs)), stamp))


def _raise_floor(execute: Execute, thread_id: str) -> None:
    # Before entries go: the sequence numbers they used must never be given out again.
    thread = _epoch(execute, thread_id)
    if thread is not None:
        execute("UPDATE threads SET floor = ? WHERE id = ?", (last_seq(execute, thread), thread))


def remove_rows(thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph, execute: Execute) -> int:
    """See `Store.remove_rows`."""
    if _epoch(execute, thread_id) != graph.epoch:
        return 0
    removed = 0
    for place, name in namespaces_of(execute, thread_id):
        for channel, slot in known_slots(execute, place.namespace).items():
            end = graph.ends.get((name, channel), 0)
            # Before rows go: the numbers they used must never be given out again.
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
        for channel in known_slots(execute, place.namespace).values():
            execute("DELETE FROM items WHERE key BETWEEN ? AND ?", span(channel.id))
        execute("DELETE FROM channels WHERE namespace = ?", (place.namespace,))
        execute("DELETE FROM batches WHERE namespace = ?", (place.namespace,))
        execute("DELETE FROM namespaces WHERE id = ?", (place.namespace,))
        execute("DELETE FROM entries WHERE key BETWEEN ? AND ?", span(place.thread))
    execute("DELETE FROM threads WHERE name = ?", (thread_id,))
    delete_cells(thread_id, execute)
