"""What the removing and copying verbs do inside one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langgraph_keel.core.frames import frame, unframe
from langgraph_keel.core.records import Graph, Node, Run, Stamp
from langgraph_keel.core.serde import KeelSerializer
from langgraph_keel.sqlite.reading import COLUMNS, entry_of
from langgraph_keel.sqlite.rows import LAST, Execute, end_of, head_of, known_slots, span

_PLAIN = KeelSerializer(types=())


def _namespaces(execute: Execute, thread_id: str) -> list[tuple[int, str]]:
    return execute(
        "SELECT n.id, n.name FROM threads t JOIN namespaces n ON n.thread = t.id WHERE t.name = ? ORDER BY n.id",
        (thread_id,),
    ).fetchall()


def read_graph(thread_id: str, execute: Execute) -> Graph:
    """See `Store.read_graph`."""
    nodes: list[Node] = []
    ends: dict[tuple[str, str], int] = {}
    for namespace, name in _namespaces(execute, thread_id):
        slots = known_slots(execute, namespace)
        head = head_of(execute, namespace)
        for row in execute(
            f"SELECT {COLUMNS} FROM entries e WHERE e.key BETWEEN ? AND ?", span(namespace)
        ).fetchall():
            e = entry_of(row, thread_id, name, slots)
            is_head = bool(head) and head[0] == e.stamp
            nodes.append(Node(e.address, e.parent, e.stamp, e.header, e.refs, e.run_id, is_head, row[3] == 2))
        ends |= {(name, channel): end_of(execute, slot.id) for channel, slot in slots.items()}
    nodes.sort(key=lambda node: int(node.stamp) & LAST)
    return Graph(nodes, ends)


def remove_entries(
    gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]], execute: Execute
) -> None:
    """See `Store.remove_entries`."""
    for stamp in gone:
        execute(
            "DELETE FROM batches WHERE namespace = ? AND checkpoint = (SELECT id FROM entries WHERE key = ?)",
            (int(stamp) >> 32, stamp),
        )
        execute("DELETE FROM entries WHERE key = ?", (stamp,))
    for stamp, channels in ghosts.items():
        row = execute("SELECT refs FROM entries WHERE key = ?", (stamp,)).fetchone()
        if row:
            slots = known_slots(execute, int(stamp) >> 32)
            kept = {slots[name].slot for name in channels if name in slots}
            refs = [ref for ref in _PLAIN.unpack(unframe(row[0])) if ref[0] in kept]
            execute("UPDATE entries SET state = 2, refs = ? WHERE key = ?", (frame(_PLAIN.pack(refs)), stamp))


def remove_rows(
    thread_id: str,
    live: Mapping[tuple[str, str], Sequence[Run]],
    ends: Mapping[tuple[str, str], int],
    execute: Execute,
) -> int:
    """See `Store.remove_rows`."""
    removed = 0
    for namespace, name in _namespaces(execute, thread_id):
        for channel, slot in known_slots(execute, namespace).items():
            end = ends.get((name, channel), 0)
            # Before rows go: the numbers they used must never be given out again.
            execute("UPDATE channels SET floor = max(floor, ?) WHERE id = ?", (end, slot.id))
            removed += _remove_dead(execute, slot.id, live.get((name, channel), ()), end)
    return removed


def _remove_dead(execute: Execute, channel: int, live: Sequence[Run], end: int) -> int:
    base = span(channel)[0]
    rows = execute("SELECT key, count FROM items WHERE key >= ? AND key < ?", (base, base + end)).fetchall()
    dead = [
        key for key, count in rows if not any(key - base < hi and lo < key - base + count for lo, hi in live)
    ]
    for key in dead:
        execute("DELETE FROM items WHERE key = ?", (key,))
    return len(dead)


def delete_thread(thread_id: str, execute: Execute) -> None:
    """See `Store.delete_thread`."""
    for namespace, _ in _namespaces(execute, thread_id):
        for channel in known_slots(execute, namespace).values():
            execute("DELETE FROM items WHERE key BETWEEN ? AND ?", span(channel.id))
        execute("DELETE FROM channels WHERE namespace = ?", (namespace,))
        execute("DELETE FROM entries WHERE key BETWEEN ? AND ?", span(namespace))
        execute("DELETE FROM batches WHERE namespace = ?", (namespace,))
        execute("DELETE FROM namespaces WHERE id = ?", (namespace,))
    execute("DELETE FROM threads WHERE name = ?", (thread_id,))


def copy_thread(source: str, target: str, execute: Execute) -> bool:
    """See `Store.copy_thread`. Entries and items are copied as they are: refs name channels by slots, which are kept."""
    if execute("SELECT 1 FROM threads WHERE name = ?", (target,)).fetchone():
        return False
    execute(
        "INSERT INTO threads (name, seq, updated_at) SELECT ?, seq, updated_at FROM threads WHERE name = ?",
        (target, source),
    )
    thread = execute("SELECT id FROM threads WHERE name = ?", (target,)).fetchone()
    for namespace, name in _namespaces(execute, source):
        _copy_namespace(execute, namespace, _insert_namespace(execute, thread[0], name))
    return True


def _insert_namespace(execute: Execute, thread: int, name: str) -> int:
    ((namespace,),) = execute(
        "INSERT INTO namespaces (thread, name) VALUES (?, ?) RETURNING id", (thread, name)
    ).fetchall()
    return int(namespace)


def _copy_namespace(execute: Execute, old: int, new: int) -> None:
    execute(
        f"INSERT INTO entries SELECT ? | (key & {LAST}), id, parent, state, run, refs, header "
        "FROM entries WHERE key BETWEEN ? AND ?",
        (span(new)[0], *span(old)),
    )
    execute(
        "INSERT INTO batches (namespace, checkpoint, task, path, body) "
        "SELECT ?, checkpoint, task, path, body FROM batches WHERE namespace = ? ORDER BY key",
        (new, old),
    )
    for channel, *rest in execute(
        "SELECT id, slot, name, floor FROM channels WHERE namespace = ?", (old,)
    ).fetchall():
        _copy_channel(execute, channel, new, rest)


def _copy_channel(execute: Execute, old: int, namespace: int, rest: list[Any]) -> None:
    ((new,),) = execute(
        "INSERT INTO channels (namespace, slot, name, floor) VALUES (?, ?, ?, ?) RETURNING id",
        (namespace, *rest),
    ).fetchall()
    execute(
        f"INSERT INTO items SELECT ? | (key & {LAST}), count, body FROM items WHERE key BETWEEN ? AND ?",
        (span(new)[0], *span(old)),
    )
