"""The reading verbs, each inside one transaction, which sees the database at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_keel.backends.sqlite.rows import (
    LAST,
    Execute,
    Place,
    Slots,
    find_place,
    head_of,
    key_of,
    mark_of,
    read_slots,
    rows_for,
    single_rows,
    span,
    unpack_refs,
)
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.records import Batch, Entry, Found, Query, Ref, Row, Run, Stamp, ThreadInfo, Unchanged
from langgraph_keel.errors import CorruptStore

# For read_history and read_graph: the parent, also if it is a ghost.
PARENT = (
    "CASE typeof(e.parent) WHEN 'integer' "
    "THEN (SELECT p.id FROM entries p WHERE p.key = (e.key >> 32 << 32 | e.parent)) ELSE e.parent END"
)
COLUMNS = f"e.key, e.id, {PARENT}, e.state, e.run, e.refs, e.header"
# For users: no parent that was removed, or is only there for delta channels (a ghost).
SHOWN_PARENT = (
    "CASE typeof(e.parent) WHEN 'integer' "
    "THEN (SELECT p.id FROM entries p WHERE p.key = (e.key >> 32 << 32 | e.parent) AND p.state < 2) "
    "WHEN 'text' THEN (SELECT p.id FROM entries p WHERE p.id = e.parent AND p.namespace = e.namespace AND p.state < 2 "
    "AND p.key BETWEEN (e.key >> 32 << 32) AND (e.key >> 32 << 32 | 4294967295)) END"
)
SHOWN = f"e.key, e.id, {SHOWN_PARENT}, e.state, e.run, e.refs, e.header"


# CROSS JOIN keeps SQLite from another order: one thread by its keys, all threads by the index on marks.
IN_THREAD = f"threads t CROSS JOIN entries e ON e.key BETWEEN t.id << 32 AND (t.id << 32 | {LAST})"
EVERYWHERE = "entries e CROSS JOIN threads t ON t.id = e.key >> 32"


def entry_of(row: Any, thread_id: str, namespace: str, slots: Slots) -> Entry:
    """Return the entry in a row of `COLUMNS` or `SHOWN`."""
    key, checkpoint_id, parent, _, run, refs, header = row
    address = Address(thread_id, namespace, checkpoint_id)
    try:
        return Entry(address, parent, key, header, unpack_refs(refs, slots), run)
    except CorruptStore as error:
        raise CorruptStore(f"thread {thread_id!r}, checkpoint {checkpoint_id}: {error}") from error


def read_entry(address: Address, execute: Execute) -> Found | None:
    """See `Store.read_entry`."""
    place = find_place(execute, address)
    row = place and _find_row(execute, place, address.checkpoint_id)
    if not place or not row:
        return None
    slots = read_slots(execute, place.namespace)
    entry = entry_of(row, address.thread_id, address.checkpoint_ns, slots)
    return _entry_with_rows(execute, entry, place.namespace, _rows(execute, slots, [entry.refs]))


# The head, if it is on the trunk; if it is not, the whole of it is read.
_NEWER = "n.namespace = e.namespace AND n.state = 0 AND n.key > e.key"
_IS_HEAD = f"e.state = 0 AND NOT EXISTS (SELECT 1 FROM entries n WHERE {_NEWER} AND {{where}})"
_KNOWN = f"SELECT e.namespace, e.id, {SHOWN_PARENT} FROM entries e WHERE e.key = ? AND "
KNOWN_NAMED = _KNOWN + "e.state < 2"
KNOWN_HEAD = _KNOWN + _IS_HEAD.replace("{where}", f"n.key <= e.key | {LAST}")
KNOWN_NESTED_HEAD = _KNOWN + _IS_HEAD.replace("{where}", "n.nested")


def read_known(address: Address, known: Stamp, execute: Execute) -> Found | Unchanged | None:
    """See `Store.read_known`. The key of an entry is its own for ever, so nothing else need be compared."""
    head = KNOWN_NESTED_HEAD if address.checkpoint_ns else KNOWN_HEAD
    row = execute(KNOWN_NAMED if address.checkpoint_id else head, (known,)).fetchone()
    if row is None or address.checkpoint_id not in (None, row[1]):
        return read_entry(address, execute)
    namespace, checkpoint_id, parent = row
    return Unchanged(parent, _batches(execute, namespace, checkpoint_id))


def _find_row(execute: Execute, place: Place, checkpoint_id: str | None) -> Any:
    head = head_of(execute, place) if checkpoint_id is None else None
    key = head[0] if head else checkpoint_id and key_of(execute, place.namespace, checkpoint_id)
    return execute(f"SELECT {SHOWN} FROM entries e WHERE e.key = ? AND e.state < 2", (key,)).fetchone()


def _rows(execute: Execute, slots: Slots, versions: Sequence[Mapping[str, Ref]]) -> dict[str, list[Row]]:
    """Return, for each channel, the rows that any of these versions needs."""
    runs: dict[str, set[Run]] = {}
    for refs in versions:
        for name, ref in refs.items():
            if ref.runs:
                runs.setdefault(name, set()).update(ref.runs)
    single = single_rows(execute, {slots[name].id: wanted for name, wanted in runs.items() if len(wanted) == 1})
    return {
        name: single[slots[name].id] if slots[name].id in single else rows_for(execute, slots[name].id, wanted)
        for name, wanted in runs.items()
    }


def _entry_with_rows(execute: Execute, entry: Entry, namespace: int, rows: Mapping[str, list[Row]]) -> Found:
    return Found(entry, rows, _batches(execute, namespace, str(entry.address.checkpoint_id)))


def _batches(execute: Execute, namespace: int, checkpoint_id: str) -> list[Batch]:
    rows = execute(
        "SELECT task, path, body FROM batches WHERE mark = ? AND checkpoint = ? AND namespace = ? ORDER BY key",
        (mark_of(checkpoint_id), checkpoint_id, namespace),
    ).fetchall()
    return [Batch(task, path, body) for task, path, body in rows]


def read_values(entries: Sequence[Entry], execute: Execute) -> list[Found]:
    """See `Store.read_values`. Entries of one namespace share one set of rows."""
    groups: dict[int, list[Entry]] = {}
    for entry in entries:
        row = execute("SELECT namespace FROM entries WHERE key = ?", (entry.stamp,)).fetchone()
        if row:
            groups.setdefault(row[0], []).append(entry)
    found = {}
    for namespace, group in groups.items():
        rows = _rows(execute, read_slots(execute, namespace), [entry.refs for entry in group])
        found.update({entry.stamp: _entry_with_rows(execute, entry, namespace, rows) for entry in group})
    return [found[entry.stamp] for entry in entries if entry.stamp in found]


def read_history(address: Address, channels: set[str], execute: Execute) -> list[Found]:
    """See `Store.read_history`."""
    place = find_place(execute, address)
    row = place and _find_row(execute, place, address.checkpoint_id)
    if not place or not row:
        return []
    slots = read_slots(execute, place.namespace)
    ancestors = _ancestors(execute, place, row[0], address, set(channels), slots)
    wanted = [{name: ref for name, ref in e.refs.items() if name in channels} for e in ancestors]
    rows = _rows(execute, slots, wanted)
    return [_entry_with_rows(execute, entry, place.namespace, rows) for entry in ancestors]


def _ancestors(
    execute: Execute, place: Place, key: int | None, address: Address, missing: set[str], slots: Slots
) -> list[Entry]:
    ancestors: list[Entry] = []
    while missing and (key := _parent_key(execute, place, key)):
        row = execute(f"SELECT {COLUMNS} FROM entries e WHERE e.key = ?", (key,)).fetchone()
        if row is None:
            break
        ancestors.append(entry_of(row, address.thread_id, address.checkpoint_ns, slots))
        missing -= set(ancestors[-1].refs)
    return ancestors


def _parent_key(execute: Execute, place: Place, key: int | None) -> int | None:
    (parent,) = execute("SELECT parent FROM entries WHERE key = ?", (key,)).fetchone()
    if isinstance(parent, str):
        return key_of(execute, place.namespace, parent)
    return span(place.thread)[0] + int(parent) if parent else None


def scan(query: Query, execute: Execute) -> list[Entry]:
    """See `Store.scan`."""
    clauses, parameters = _conditions(query)
    order = "e.mark DESC, e.id DESC, e.key DESC" if query.thread_id is None else "e.key DESC"
    rows = execute(
        f"SELECT t.name, n.name, n.id, {SHOWN} FROM {EVERYWHERE if query.thread_id is None else IN_THREAD} "
        f"CROSS JOIN namespaces n ON n.id = e.namespace WHERE {' AND '.join(clauses)} ORDER BY {order} LIMIT ?",
        (*parameters, query.limit),
    ).fetchall()
    slots: dict[int, Slots] = {}
    entries = []
    for thread, namespace, owner, *row in rows:
        if owner not in slots:
            slots[owner] = read_slots(execute, owner)
        entries.append(entry_of(row, thread, namespace, slots[owner]))
    return entries


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    clauses = ["e.state < 2"]
    parameters: list[Any] = []
    for column, value in (("t.name", query.thread_id), ("n.name", query.checkpoint_ns)):
        if value is not None:
            clauses.append(f"{column} = ?")
            parameters.append(value)
    if query.checkpoint_id is not None:
        clauses.append("e.mark = ? AND e.id = ?")
        parameters += [mark_of(query.checkpoint_id), query.checkpoint_id]
    if query.before is not None:
        bound = "(SELECT b.key FROM entries b WHERE b.mark = ? AND b.id = ? AND b.namespace = e.namespace)"
        clauses.append(f"coalesce(e.key < {bound}, e.id < ?)")
        parameters += [mark_of(query.before), query.before, query.before]
    if query.after is not None and query.thread_id is not None:
        clauses.append("e.key < ?")
        parameters.append(query.after.stamp)
    elif query.after is not None:
        last = str(query.after.address.checkpoint_id)
        clauses.append("(e.mark, e.id, e.key) < (?, ?, ?)")
        parameters += [mark_of(last), last, query.after.stamp]
    return clauses, parameters


def find_runs(run_ids: list[str], execute: Execute) -> list[str]:
    """See `Store.find_runs`."""
    names: dict[str, None] = {}
    for run_id in run_ids:
        for (name,) in execute(
            "SELECT DISTINCT t.name FROM entries e JOIN threads t ON t.id = e.key >> 32 WHERE e.run = ?",
            (run_id,),
        ).fetchall():
            names[name] = None
    return list(names)


def read_threads(after: tuple[str, str] | None, limit: int, execute: Execute) -> list[tuple[ThreadInfo, bytes]]:
    """See `Store.read_threads`."""
    rows = execute(
        "SELECT t.id, t.name, (SELECT e.put_at FROM entries e "
        f"WHERE e.key BETWEEN t.id << 32 AND (t.id << 32 | {LAST}) AND e.state < 2 ORDER BY e.key DESC LIMIT 1) AS at "
        f"FROM threads t WHERE at IS NOT NULL {'AND (at, t.name) < (?, ?)' if after else ''} "
        "ORDER BY at DESC, t.name DESC LIMIT ?",
        (*(after or ()), limit),
    ).fetchall()
    return [_info(execute, *row) for row in rows]


def _info(execute: Execute, thread: int, name: str, updated_at: str) -> tuple[ThreadInfo, bytes]:
    ((checkpoints,),) = execute(
        "SELECT count(*) FROM entries WHERE key BETWEEN ? AND ? AND state < 2", span(thread)
    ).fetchall()
    place = find_place(execute, Address(name))
    head = head_of(execute, place) if place else None
    if not head:
        return ThreadInfo(name, checkpoints, updated_at, None, None), b""
    (header,) = execute("SELECT header FROM entries WHERE key = ?", head[:1]).fetchone()
    return ThreadInfo(name, checkpoints, updated_at, head[1], None), header
