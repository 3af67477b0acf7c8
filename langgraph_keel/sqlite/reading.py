"""What the reading verbs do inside one transaction, which sees one moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_keel.core.records import (
    Address,
    Batch,
    Entry,
    Found,
    Query,
    Ref,
    Row,
    Run,
    ThreadInfo,
)
from langgraph_keel.sqlite.rows import (
    LAST,
    Execute,
    Slots,
    find_namespace,
    head_of,
    known_slots,
    rows_for,
    span,
    unpack_refs,
)

COLUMNS = "e.key, e.id, e.parent, e.state, e.run, e.refs, e.header"
# A parent that was removed, or is only there for delta channels, is not shown.
SHOWN = (
    "e.key, e.id, (SELECT p.id FROM entries p WHERE p.id = e.parent AND p.state < 2 "
    "AND p.key BETWEEN (e.key >> 32) << 32 AND (e.key >> 32 << 32 | 4294967295)), e.state, e.run, e.refs, e.header"
)


def entry_of(row: Any, thread_id: str, namespace: str, slots: Slots) -> Entry:
    """Return the entry in a row of `COLUMNS` or `SHOWN`."""
    key, checkpoint_id, parent, _, run, refs, header = row
    address = Address(thread_id, namespace, checkpoint_id)
    return Entry(address, parent, key, header, unpack_refs(refs, slots), run)


def read_entry(address: Address, execute: Execute) -> Found | None:
    """See `Store.read_entry`."""
    ids = find_namespace(execute, address)
    row = ids and _row_of(execute, ids[1], address.checkpoint_id)
    if not ids or not row:
        return None
    slots = known_slots(execute, ids[1])
    entry = entry_of(row, address.thread_id, address.checkpoint_ns, slots)
    return _found(execute, entry, _rows(execute, slots, [entry.refs]))


def _row_of(execute: Execute, namespace: int, checkpoint_id: str | None) -> Any:
    if checkpoint_id is None:
        head = head_of(execute, namespace)
        return head and execute(f"SELECT {SHOWN} FROM entries e WHERE e.key = ?", head[:1]).fetchone()
    return execute(
        f"SELECT {SHOWN} FROM entries e WHERE e.id = ? AND e.key BETWEEN ? AND ? AND e.state < 2",
        (checkpoint_id, *span(namespace)),
    ).fetchone()


def _rows(execute: Execute, slots: Slots, versions: Sequence[dict[str, Ref] | Any]) -> dict[str, list[Row]]:
    """Return per channel the rows that any of these versions needs."""
    runs: dict[str, set[Run]] = {}
    for refs in versions:
        for name, ref in refs.items():
            if ref.runs:
                runs.setdefault(name, set()).update(ref.runs)
    return {name: rows_for(execute, slots[name].id, wanted) for name, wanted in runs.items()}


def _found(execute: Execute, entry: Entry, rows: dict[str, list[Row]]) -> Found:
    assert isinstance(entry.stamp, int)
    batches = execute(
        "SELECT task, path, body FROM batches WHERE checkpoint = ? AND namespace = ? ORDER BY key",
        (entry.address.checkpoint_id, entry.stamp >> 32),
    ).fetchall()
    return Found(entry, rows, [Batch(task, path, body) for task, path, body in batches])


def read_values(entries: Sequence[Entry], execute: Execute) -> list[Found]:
    """See `Store.read_values`. Entries of one namespace share one set of rows."""
    by_namespace: dict[int, list[Entry]] = {}
    for entry in entries:
        assert isinstance(entry.stamp, int)
        if execute("SELECT 1 FROM entries WHERE key = ?", (entry.stamp,)).fetchone():
            by_namespace.setdefault(entry.stamp >> 32, []).append(entry)
    found = {}
    for namespace, group in by_namespace.items():
        rows = _rows(execute, known_slots(execute, namespace), [entry.refs for entry in group])
        found.update({entry.stamp: _found(execute, entry, rows) for entry in group})
    return [found[entry.stamp] for entry in entries if entry.stamp in found]


def read_history(address: Address, channels: set[str], execute: Execute) -> list[Found]:
    """See `Store.read_history`."""
    ids = find_namespace(execute, address)
    row = ids and _row_of(execute, ids[1], address.checkpoint_id)
    if not ids or not row:
        return []
    slots = known_slots(execute, ids[1])
    ancestors = _ancestors(execute, ids[1], row[0], address, set(channels), slots)
    wanted = [{name: ref for name, ref in e.refs.items() if name in channels} for e in ancestors]
    rows = _rows(execute, slots, wanted)
    return [_found(execute, entry, rows) for entry in ancestors]


def _ancestors(
    execute: Execute, namespace: int, key: int, address: Address, missing: set[str], slots: Slots
) -> list[Entry]:
    sql = (
        f"SELECT {COLUMNS} FROM entries e JOIN entries c ON e.id = c.parent "
        "WHERE c.key = ? AND e.key BETWEEN ? AND ?"
    )
    ancestors: list[Entry] = []
    while missing and (row := execute(sql, (key, *span(namespace))).fetchone()):
        ancestors.append(entry_of(row, address.thread_id, address.checkpoint_ns, slots))
        missing -= set(ancestors[-1].refs)
        key = row[0]
    return ancestors


def scan(query: Query, execute: Execute) -> list[Entry]:
    """See `Store.scan`."""
    clauses, parameters = _conditions(query)
    # Keys first: the bodies of a long thread must not go through the sorter.
    order = "e.id DESC, e.key DESC" if query.thread_id is None else f"e.key & {LAST} DESC"
    sql = (
        f"WITH page AS (SELECT e.key FROM threads t JOIN namespaces n ON n.thread = t.id JOIN entries e "
        f"ON e.key BETWEEN n.id << 32 AND (n.id << 32 | {LAST}) WHERE {' AND '.join(clauses)} "
        f"ORDER BY {order} LIMIT ?) "
        f"SELECT t.name, n.name, {SHOWN} FROM page JOIN entries e ON e.key = page.key "
        f"JOIN namespaces n ON n.id = e.key >> 32 JOIN threads t ON t.id = n.thread ORDER BY {order}"
    )
    slots: dict[int, Slots] = {}
    entries = []
    for thread, namespace, *row in execute(sql, (*parameters, query.limit)).fetchall():
        owner = row[0] >> 32
        if owner not in slots:
            slots[owner] = known_slots(execute, owner)
        entries.append(entry_of(row, thread, namespace, slots[owner]))
    return entries


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    clauses, parameters = ["e.state < 2"], []
    for column, value in (
        ("t.name", query.thread_id),
        ("n.name", query.checkpoint_ns),
        ("e.id", query.checkpoint_id),
    ):
        if value is not None:
            clauses.append(f"{column} = ?")
            parameters.append(value)
    if query.before is not None:
        bound = f"(SELECT b.key FROM entries b WHERE b.id = ? AND b.key BETWEEN n.id << 32 AND (n.id << 32 | {LAST}))"
        clauses.append(f"coalesce(e.key < {bound}, e.id < ?)")
        parameters += [query.before, query.before]
    if query.after is not None and query.thread_id is not None:
        clauses.append(f"e.key & {LAST} < ? & {LAST}")
        parameters.append(query.after)
    elif query.after is not None:
        clauses.append("(e.id, e.key) < ((SELECT a.id FROM entries a WHERE a.key = ?), ?)")
        parameters += [query.after, query.after]
    return clauses, parameters


def find_runs(run_ids: list[str], execute: Execute) -> list[str]:
    """See `Store.find_runs`."""
    names: dict[str, None] = {}
    for run_id in run_ids:
        for (name,) in execute(
            "SELECT DISTINCT t.name FROM entries e JOIN namespaces n ON n.id = e.key >> 32 "
            "JOIN threads t ON t.id = n.thread WHERE e.run = ?",
            (run_id,),
        ).fetchall():
            names[name] = None
    return list(names)


def read_threads(
    after: tuple[str, str] | None, limit: int, execute: Execute
) -> list[tuple[ThreadInfo, bytes]]:
    """See `Store.read_threads`."""
    bound = "WHERE (updated_at, name) < (?, ?)" if after else ""
    rows = execute(
        f"SELECT id, name, updated_at FROM threads {bound} {'AND' if after else 'WHERE'} EXISTS "
        f"(SELECT 1 FROM namespaces n JOIN entries e ON e.key BETWEEN n.id << 32 AND (n.id << 32 | {LAST}) "
        "WHERE n.thread = threads.id AND e.state < 2) ORDER BY updated_at DESC, name DESC LIMIT ?",
        (*(after or ()), limit),
    ).fetchall()
    return [_info(execute, *row) for row in rows]


def _info(execute: Execute, thread: int, name: str, updated_at: str) -> tuple[ThreadInfo, bytes]:
    ((checkpoints,),) = execute(
        f"SELECT count(*) FROM namespaces n JOIN entries e ON e.key BETWEEN n.id << 32 AND (n.id << 32 | {LAST}) "
        "WHERE n.thread = ? AND e.state < 2",
        (thread,),
    ).fetchall()
    ids = find_namespace(execute, Address(name))
    head = head_of(execute, ids[1]) if ids else None
    if not head:
        return ThreadInfo(name, checkpoints, updated_at, None, None), b""
    (header,) = execute("SELECT header FROM entries WHERE key = ?", head[:1]).fetchone()
    return ThreadInfo(name, checkpoints, updated_at, head[1], None), header
