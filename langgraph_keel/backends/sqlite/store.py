"""The other operations of the store: lists, removal, copies and cells.

Rows are copied unchanged: refs name channels by slot, and a copy keeps the slots.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langgraph_keel.backends.sqlite.entries import (
    COLUMNS,
    LAST,
    PLAIN,
    PUT_AT,
    SHOWN,
    TENS,
    Execute,
    Hint,
    Place,
    RefTable,
    Slots,
    SqliteEntries,
    Work,
    batch_of,
    entry_of,
    find_entry,
    find_place,
    head_of,
    in_transaction,
    insert_namespace,
    last_seq,
    mark_of,
    read_slots,
    span,
    text_of,
)
from langgraph_keel.backends.tenants import TenantStore
from langgraph_keel.engine.cells import BLOCK, Cell, Search, Shelf, Swap, Swapped, ruling
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import SEALED, frame, open_frame
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import (
    BaseGone,
    Copied,
    CopyOutcome,
    Entry,
    Graph,
    Listed,
    Node,
    Occupied,
    Page,
    Query,
    Replacement,
    Run,
    Stamp,
    ThreadInfo,
    Writes,
)
from langgraph_keel.engine.tenants import MARK, PAST, bounds_of, head_blocks
from langgraph_keel.errors import CorruptStore

_log = logging.getLogger(__name__)

# CROSS JOIN fixes SQLite's join order: one thread by its keys, all threads by the index on marks.
IN_THREAD = f"threads t CROSS JOIN entries e ON e.key BETWEEN t.id << 32 AND (t.id << 32 | {LAST})"
EVERYWHERE = "entries e CROSS JOIN threads t ON t.id = e.key >> 32"

_NO_INDEX = (
    f"(SELECT t.id AS thread, t.name, NULL AS marks, NULL AS late, ({PUT_AT.replace('{thread}', 't.id')}) AS put_at "
    "FROM threads t)"
)
_FOUND_BY = "AND (coalesce(i.marks, '') = '' OR instr(i.marks, ?) OR instr(i.late, ?)) "
_PAST = "\U0010ffff"
FEW = 2000
"""Threads that are read before the requested terms count as frequent."""
_RELIST = (
    f"UPDATE thread_index SET put_at = ({PUT_AT.replace('{thread}', 'thread')}), marks = iif(?, marks, NULL) "
    "WHERE thread = ?"
)

# CROSS JOIN makes SQLite begin with the entries: only the copied ones are read.
BATCHES_OF = (
    "entries e CROSS JOIN batches b ON b.namespace = e.namespace AND b.mark = e.mark AND b.checkpoint = e.id WHERE "
)

_IS_PLAIN = f"substr({{body}}, 1, 1) <> x'{SEALED.hex()}'"

# In the order of the attributes of `Cell`.
OF_CELL = "c.token, c.header, c.body, coalesce(c.origin, ''), c.expires_at, c.rank, c.marks"
OF_CELL_WITHOUT_BODY = OF_CELL.replace("c.body", "x''")
ON_SHELF = "shelves s CROSS JOIN cells c ON c.shelf = s.id WHERE s.thread = ? AND s.kind = ?"
# Keys: whether a token is expected, and whether there is a new cell. An existing row is updated in place, as a new
# row would also change the index of keys.
SWAPS = {
    (False, True): (
        "INSERT INTO cells (token, origin, expires_at, rank, marks, header, body, shelf, key) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (shelf, key) DO NOTHING RETURNING 1"
    ),
    (True, True): (
        "UPDATE cells SET token = ?, origin = ?, expires_at = ?, rank = ?, marks = ?, header = ?, body = ? "
        "WHERE token = ? AND shelf = ? AND key = ? RETURNING 1"
    ),
    (True, False): "DELETE FROM cells WHERE token = ? AND shelf = ? AND key = ? RETURNING 1",
}
EVERYBODY = ""
"""Thread name for cells that all threads share; no thread has this name."""
PAST_KEYS = "\x7f"
"""Sorts after every character that a key may contain."""

BARE = "c.token, c.expires_at, c.rank"
# `+key` prevents SQLite from choosing the index of keys, which took 26 ms for 10,000 cells instead of 0.02.
BY_RANK = (
    "cells c INDEXED BY cells_by_rank WHERE c.shelf = :shelf AND c.rank IS NOT NULL "
    "AND substr(c.key, 1, length(c.key) - 64) = :head AND +c.key >= :from AND +c.key < :to"
)
BY_KEY = "cells c WHERE c.shelf = :shelf AND c.key >= :from AND c.key < :to AND c.rank IS NOT NULL"
# One lower bound: with two, SQLite seeks by the first and reads all groups before.
IN_GROUP = BY_KEY.replace(":from", f"substr(f.key, 1, length(f.key) - {BLOCK}) || '{PAST_KEYS}'")
# One index look-up per group, however many cells it has.
GROUPS = f"""
WITH RECURSIVE firsts(key) AS (
    SELECT (SELECT c.key FROM {BY_KEY} ORDER BY c.key LIMIT 1)
    UNION ALL
    SELECT (
        SELECT c.key FROM {IN_GROUP} ORDER BY c.key LIMIT 1
    ) FROM firsts f WHERE f.key IS NOT NULL LIMIT :limit
)
SELECT c.key, {{columns}} FROM firsts f CROSS JOIN cells c ON c.shelf = :shelf AND c.key = f.key ORDER BY c.key
"""

NAMES = (
    "SELECT name FROM threads UNION SELECT thread FROM shelves WHERE thread <> ? "
    "UNION SELECT origin FROM cells WHERE origin IS NOT NULL "
    "AND shelf IN (SELECT id FROM shelves WHERE thread = ?)"
)
NAMES_OF_TENANTS = (
    "SELECT name FROM threads WHERE name >= :mark AND name < :past "
    "UNION ALL SELECT thread FROM shelves WHERE thread >= :mark AND thread < :past "
    "UNION ALL SELECT c.key FROM shelves s CROSS JOIN cells c ON c.shelf = s.id AND c.key >= :mark AND c.key < :past "
    "WHERE s.thread = :everybody"
)


class SqliteStore(SqliteEntries):
    """One database file, restricted to one tenant, or to threads without a tenant."""

    def __init__(self, tenant: str = "", hints: dict[tuple[str, str], Hint] | None = None) -> None:
        super().__init__(hints)
        self._tenant = tenant

    def of_tenant(self, tenant: str) -> TenantStore:
        return TenantStore(SqliteStore(tenant, self._hints), tenant)

    @in_transaction()
    def list_tenants(self, execute: Execute, after: str | None, limit: int) -> list[str]:
        # Reads the names of all threads and cells of tenants.
        parameters = {"mark": MARK, "past": PAST, "everybody": EVERYBODY, "after": after or "", "limit": limit}
        rows = execute(
            f"SELECT DISTINCT substr(name, 2, instr(substr(name, 2), :mark) - 1) AS tenant FROM ({NAMES_OF_TENANTS}) "
            "WHERE tenant > :after ORDER BY tenant LIMIT :limit",
            parameters,
        ).fetchall()
        return [tenant for (tenant,) in rows]

    @in_transaction()
    def scan(self, execute: Execute, query: Query) -> list[Entry]:
        clauses, parameters = _conditions(query)
        table, order = IN_THREAD, "e.key DESC"
        if query.thread_id is None:
            table, order = EVERYWHERE, "e.mark DESC, e.id DESC, e.key DESC"
            of_tenant, names = _of_tenant("t.name", self._tenant)
            clauses.append(of_tenant)
            parameters += names
        rows = execute(
            f"SELECT t.name, n.name, n.id, {SHOWN} FROM {table} "
            f"CROSS JOIN namespaces n ON n.id = e.namespace WHERE {' AND '.join(clauses)} ORDER BY {order} LIMIT ?",
            (*parameters, query.limit),
        ).fetchall()
        refs: dict[int, RefTable] = {}
        entries = []
        for thread, namespace, owner, *row in rows:
            if owner not in refs:
                refs[owner] = RefTable(read_slots(execute, owner))
            entries.append(entry_of(row, text_of(thread), text_of(namespace), refs[owner]))
        return entries

    @in_transaction()
    def find_runs(self, execute: Execute, run_ids: Collection[str]) -> list[str]:
        names: dict[str, None] = {}
        of_tenant, bounds = _of_tenant("t.name", self._tenant)
        for run_id in run_ids:
            for (name,) in execute(
                "SELECT DISTINCT t.name FROM entries e JOIN threads t ON t.id = e.key >> 32 "
                f"WHERE e.run = ? AND {of_tenant}",
                (run_id, *bounds),
            ).fetchall():
                names[name] = None
        return list(names)

    def read_threads(self, page: Page) -> StorePlan[Work, Any, Sequence[Listed]]:
        # Unless the page is tolerant, entries are read directly: a damaged index must not hide a thread.
        found: Sequence[Listed] = yield Work(partial(_read_threads, page, self._tenant), takes_bytes=page.tolerant)
        return found

    @in_transaction()
    def list_strays(self, execute: Execute, after: str | None, limit: int) -> list[str]:
        # Looks up an entry of each thread.
        of_tenant, bounds = _of_tenant("n.name", self._tenant)
        rows = execute(
            f"SELECT n.name FROM ({NAMES}) n WHERE n.name > ? AND {of_tenant} AND NOT EXISTS "
            f"(SELECT 1 FROM {IN_THREAD} AND e.state < 2 WHERE t.name = n.name) ORDER BY n.name LIMIT ?",
            (EVERYBODY, EVERYBODY, after or "", *bounds, limit),
        ).fetchall()
        return [name for (name,) in rows]

    @in_transaction()
    def read_graph(self, execute: Execute, thread_id: str) -> Graph:
        nodes: list[Node] = []
        ends: dict[tuple[str, str], int] = {}
        for place, name in _namespaces_of(execute, thread_id):
            text_of(name)
            names = read_slots(execute, place.namespace)
            slots = read_slots(execute, place.namespace, names)
            nodes += _nodes(execute, place, thread_id, name, slots)
            ends |= {(name, channel): slot.end for channel, slot in slots.items()}
        nodes.sort(key=lambda node: int(node.stamp))
        return Graph(nodes, ends, _epoch(execute, thread_id))

    @in_transaction(writes=True)
    def remove_entries(
        self, execute: Execute, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> None:
        thread, place = _epoch(execute, thread_id), find_place(execute, Address(thread_id))
        if thread is not None:  # before entries are deleted: their sequence numbers must never be reused
            execute("UPDATE threads SET floor = ? WHERE id = ?", (last_seq(execute, thread), thread))
        head = head_of(execute, place) if place else None
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
                refs = [ref for ref in PLAIN.unpack(open_frame(row[1])) if ref[0] in kept]
                execute("UPDATE entries SET state = 2, refs = ? WHERE key = ?", (frame(PLAIN.pack(refs)), stamp))
        if place is not None:
            execute(_RELIST, (head == head_of(execute, place), place.thread))

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Work, Any, int]:
        if graph.epoch is None:
            return 0
        removed: int = yield Work(partial(_remove_rows, thread_id, live, graph), writes=True, removes=True)
        return removed

    @in_transaction(removes=True)
    def delete_thread(self, execute: Execute, thread_id: str, last: Stamp | None = None) -> bool:
        if last is not None:
            newest = execute(
                f"SELECT e.key FROM {IN_THREAD} WHERE t.name = ? AND e.state <> 2 ORDER BY e.key DESC LIMIT 1",
                (thread_id,),
            ).fetchone()
            if newest != (last,):
                return False
        _delete_thread(execute, thread_id)
        return True

    def delete_all(self, limit: int) -> StorePlan[Work, Any, int]:
        if not self._tenant:
            return (yield from super().delete_all(limit))
        deleted: int = yield Work(partial(_delete_all, self._tenant, limit), writes=True, removes=True)
        return deleted

    @in_transaction(writes=True)
    def copy_thread(self, execute: Execute, source: str, target: str, upto: Entry | None = None) -> CopyOutcome:
        if execute("SELECT 1 FROM threads WHERE name = ?", (target,)).fetchone():
            return Occupied()
        old = _epoch(execute, source)
        if upto is not None:
            shown = "SELECT 1 FROM entries WHERE key = ? AND key >> 32 = ? AND state < 2"
            if not execute(shown, (upto.stamp, old)).fetchone():
                return BaseGone()
        if old is None:
            return Copied()
        # Numbers are never reused: an entry stored again after `upto` has a later number, which its children refer to.
        floor = last_seq(execute, old)
        ((new,),) = execute("INSERT INTO threads (name, floor) VALUES (?, ?) RETURNING id", (target, floor)).fetchall()
        for place, name in _namespaces_of(execute, source):
            _copy_namespace(execute, place, name, new, None if upto is None else int(upto.stamp))
        if upto is not None:
            execute(
                "UPDATE entries SET state = 0, header = ?, put_at = max(put_at, ?) WHERE key = ?",
                (upto.header, upto.updated_at, span(new)[0] | int(upto.stamp) & LAST),
            )
        execute("INSERT INTO thread_index (thread, name) VALUES (?, ?)", (new, target))
        execute(_RELIST, (False, new))
        return Copied()

    @in_transaction()
    def list_writes(self, execute: Execute, thread_id: str, after: Writes | None, limit: int) -> list[Writes]:
        rows = execute(
            "SELECT b.key, n.name, b.checkpoint, b.task, b.path, b.body FROM threads t "
            "JOIN namespaces n ON n.thread = t.id JOIN batches b ON b.namespace = n.id "
            "WHERE t.name = ? AND b.key > ? ORDER BY b.key LIMIT ?",
            (thread_id, after.stamp if after else 0, limit),
        ).fetchall()
        return [
            Writes(key, Address(thread_id, text_of(namespace), text_of(checkpoint_id)), batch_of(*batch))
            for key, namespace, checkpoint_id, *batch in rows
        ]

    @in_transaction()
    def list_kinds(self, execute: Execute, thread_id: str | None) -> list[str]:
        rows = execute("SELECT kind FROM shelves WHERE thread = ?", (thread_id or EVERYBODY,)).fetchall()
        return [text_of(kind) for (kind,) in rows]

    @in_transaction(writes=True)
    def replace_plain(self, execute: Execute, thread_id: str, new: Replacement) -> None:
        if (thread := _epoch(execute, thread_id)) is None or thread != new.epoch:
            return
        for stamp, header in new.headers.items():
            is_plain = _IS_PLAIN.format(body="header")
            execute(f"UPDATE entries SET header = ? WHERE key = ? AND {is_plain}", (header, stamp))
        is_plain = _IS_PLAIN.format(body="body")
        for place, name in _namespaces_of(execute, thread_id):
            for channel, slot in read_slots(execute, place.namespace).items():
                for row in new.rows.get((name, channel), ()):
                    execute(
                        f"UPDATE items SET body = ? WHERE key = ? AND count = ? AND {is_plain}",
                        (row.body, span(slot.id)[0] + row.lo, row.count),
                    )
        for writes in new.writes:
            execute(f"UPDATE batches SET body = ? WHERE key = ? AND {is_plain}", (writes.batch.body, writes.stamp))
        execute("UPDATE thread_index SET marks = NULL, late_of = NULL, late = NULL WHERE thread = ?", (thread,))

    def swap_cell(
        self, shelf: Shelf, key: str, expected: str | None, new: Cell | None
    ) -> StorePlan[Work, Any, Swapped]:
        # A caller that expects no cell is often wrong, and a read, which never waits, is enough to refuse it. A caller
        # with a token has seen the cell, so its request goes directly to the writer.
        reply = partial(_reply_if_settled, shelf, key, expected, new)
        swapped: Swapped = yield Work(
            lambda execute: _swap_cells(shelf, [(key, expected, new)], execute)[0],
            writes=True,
            unless=reply if expected is None else None,
        )
        return swapped

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Work, Any, Mapping[str, Cell]]:
        read = partial(_read_cells, shelf, keys)
        # Reading one cell is one statement, which needs no transaction.
        cells: Mapping[str, Cell] = yield Work(read, unless=read if len(keys) == 1 else None)
        return cells

    @in_transaction()
    def list_cells(
        self, execute: Execute, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> list[tuple[str, Cell]]:
        if not after and prefix[:1] != MARK:
            after = PAST  # the shared cells of tenants sort first
        rows = execute(
            f"SELECT c.key, {OF_CELL_WITHOUT_BODY} FROM {ON_SHELF} AND c.key >= ? AND c.key < ? AND c.key IS NOT ? "
            "ORDER BY c.key LIMIT ?",
            (*_names(shelf), max(prefix, after or ""), prefix + PAST_KEYS, after, limit),
        ).fetchall()
        return [(key, _cell_of(*row)) for key, *row in rows]

    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> StorePlan[Work, Any, Sequence[Swapped]]:
        replies: Sequence[Swapped] = yield Work(partial(_swap_cells, shelf, swaps), writes=True)
        return replies

    @in_transaction()
    def find_cells(self, execute: Execute, shelf: Shelf, search: Search) -> list[tuple[str, Cell]]:
        rows = execute(*find_statement(_find_shelf(execute, shelf), search)).fetchall()
        if search.is_bare:
            return [(key, Cell(token, b"", b"", "", until, rank)) for key, token, until, rank in rows]
        return [(key, _cell_of(*row)) for key, *row in rows]

    @in_transaction(writes=True)
    def remove_cells(self, execute: Execute, shelf: Shelf, tokens: Mapping[str, str]) -> int:
        number = _find_shelf(execute, shelf)
        sql = "DELETE FROM cells WHERE shelf = ? AND key = ? AND token = ? RETURNING 1"
        return sum(len(execute(sql, (number, key, token)).fetchall()) for key, token in tokens.items())


# -- lists -------------------------------------------------------------------------------------------------------------


def _of_tenant(column: str, tenant: str) -> tuple[str, Sequence[str]]:
    """Return the SQL condition for names of a tenant, and its parameters."""
    if tenant:
        return f"{column} >= ? AND {column} < ?", bounds_of(tenant)
    return f"({column} < ? OR {column} >= ?)", (MARK, PAST)


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


def _read_threads(page: Page, tenant: str, execute: Execute) -> list[Listed]:
    after, oldest_first = page.after, page.oldest_first
    found: list[tuple[str, str, int]] = []
    tens = ""
    for thread, name, rough in _threads_from(page, tenant, page.tolerant and has_index(execute), execute):
        (at,) = execute(PUT_AT.replace("{thread}", "?"), (thread, thread)).fetchone() or (None,)
        if not (isinstance(name, str) and isinstance(at, str) and isinstance(rough, str)):
            if not page.tolerant:
                raise CorruptStore(f"the name or the time of a thread is damaged: {name!r:.300}, {at!r:.100}")
            _log.warning("a thread is not listed because its name or time is damaged: %r, %r", name, at)
            continue
        if len(found) >= page.limit and rough[:TENS] != tens:
            break  # all threads of the last ten seconds are read; the index does not order them
        if after is None or ((at, name) > after if oldest_first else (at, name) < after):
            found.append((at, name, thread))
            tens = rough[:TENS]
    found.sort(reverse=not oldest_first)
    return [_info(execute, thread, name, at) for at, name, thread in found[: page.limit]]


def has_index(execute: Execute) -> bool:
    """Return whether there is an index of threads; old read-only stores have none."""
    return bool(execute("SELECT 1 FROM sqlite_master WHERE name = 'thread_index'").fetchone())


def _threads_from(page: Page, tenant: str, by_index: bool, execute: Execute) -> Iterator[tuple[int, Any, Any]]:
    """Yield the id, name and rough time of threads, newest or oldest first.

    Times are exact to ten seconds. With `page.after`, start with the ten seconds of that place.
    """
    after, terms, oldest_first = page.after, page.terms, page.oldest_first
    of_tenant, bounds = _of_tenant("i.name", tenant)
    way, past, beyond = ("ASC", ">=", "") if oldest_first else ("DESC", "<", _PAST)
    table = "thread_index AS i {indexed}" if by_index else f"{_NO_INDEX} i"
    query = (
        f"SELECT i.thread, i.name, i.put_at FROM {table} WHERE {of_tenant} AND i.put_at IS NOT NULL "
        f"{_FOUND_BY * len(terms)}{f'AND i.put_at {past} ? ' if after else ''}"
    )
    place = [after[0][:TENS] + beyond] if after else ()
    parameters = (*bounds, *(term for term in terms for _ in "12"), *place)
    if terms:
        # Frequent terms are found quickly by the index on times, rare ones by reading all: the reverse takes 150 ms.
        limited = f"{query.replace('{indexed}', 'NOT INDEXED')} LIMIT ?"
        found = execute(limited, (*parameters, FEW + 1)).fetchall()
        if len(found) <= FEW:
            yield from sorted(found, key=lambda row: str(row[2]), reverse=not oldest_first)
            return
    rows = execute(f"{query.replace('{indexed}', '')} ORDER BY i.put_at {way}", parameters)
    while row := rows.fetchone():
        yield row


def _info(execute: Execute, thread: int, name: str, updated_at: str) -> Listed:
    sql = "SELECT count(*) FROM entries WHERE key BETWEEN ? AND ? AND state < 2"
    info = ThreadInfo(name, execute(sql, span(thread)).fetchone()[0], updated_at, None, None)
    found = find_entry(execute, Address(name))
    if found is None:
        return info, None
    place, row = found
    if not isinstance(row[1], str):
        _log.warning("thread %r is listed without its latest checkpoint: its id is damaged", name)
        return info, None
    info = replace(info, latest=row[1])
    try:
        return info, entry_of(row, name, "", RefTable(read_slots(execute, place.namespace)))
    except CorruptStore as error:  # only a read of the thread itself raises
        _log.warning("a thread is listed without its latest checkpoint: %s", error)
        return info, None


# -- removing and copying ----------------------------------------------------------------------------------------------


def _namespaces_of(execute: Execute, thread_id: str) -> list[tuple[Place, str]]:
    """Return the place and name of each namespace of a thread."""
    rows = execute(
        "SELECT t.id, n.id, n.name FROM threads t JOIN namespaces n ON n.thread = t.id WHERE t.name = ? ORDER BY n.id",
        (thread_id,),
    ).fetchall()
    return [(Place(thread, namespace, bool(name)), name) for thread, namespace, name in rows]


def _epoch(execute: Execute, thread_id: str) -> int | None:
    row = execute("SELECT id FROM threads WHERE name = ?", (thread_id,)).fetchone()
    return int(row[0]) if row else None


def _nodes(execute: Execute, place: Place, thread_id: str, name: str, slots: Slots) -> Iterator[Node]:
    head = head_of(execute, place)
    where = "e.nested" if place.nested else "e.key BETWEEN ? AND ?"
    rows = execute(
        f"SELECT {COLUMNS}, e.put_at FROM entries e WHERE {where} AND e.namespace = ?",
        (place.namespace,) if place.nested else (*span(place.thread), place.namespace),
    ).fetchall()
    refs = RefTable(slots)
    for *row, put_at in rows:
        e, state = entry_of(row, thread_id, name, refs), row[3]
        is_head = head == e.stamp
        yield Node(*(e.address, e.parent, e.stamp, e.header, e.refs, e.run_id), is_head, state == 2, put_at, state == 1)


def _remove_rows(thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph, execute: Execute) -> int:
    if _epoch(execute, thread_id) != graph.epoch:
        return 0
    removed = 0
    for place, name in _namespaces_of(execute, thread_id):
        for channel, slot in read_slots(execute, place.namespace).items():
            base, end = span(slot.id)[0], graph.ends.get((name, channel), 0)
            shown = live.get((name, channel), ())
            # Before rows are deleted: the numbers of their items must never be reused.
            execute("UPDATE channels SET floor = max(floor, ?) WHERE id = ?", (end, slot.id))
            rows = execute("SELECT key, count FROM items WHERE key >= ? AND key < ?", (base, base + end)).fetchall()
            for key, count in rows:
                if not any(key - base < hi and lo < key - base + count for lo, hi in shown):
                    execute("DELETE FROM items WHERE key = ?", (key,))
                    removed += 1
    return removed


def _delete_thread(execute: Execute, thread_id: str) -> None:
    for place, _ in _namespaces_of(execute, thread_id):
        for channel in read_slots(execute, place.namespace).values():
            execute("DELETE FROM items WHERE key BETWEEN ? AND ?", span(channel.id))
        execute("DELETE FROM channels WHERE namespace = ?", (place.namespace,))
        execute("DELETE FROM batches WHERE namespace = ?", (place.namespace,))
        execute("DELETE FROM namespaces WHERE id = ?", (place.namespace,))
        execute("DELETE FROM entries WHERE key BETWEEN ? AND ?", span(place.thread))
    execute("DELETE FROM thread_index WHERE thread = (SELECT id FROM threads WHERE name = ?)", (thread_id,))
    execute("DELETE FROM threads WHERE name = ?", (thread_id,))
    _delete_cells(execute, thread_id)


def _delete_cells(execute: Execute, thread_id: str) -> None:
    """Delete the cells of a thread, and the shared cells that it wrote."""
    on_shelves = "shelf IN (SELECT id FROM shelves WHERE thread = ?)"
    execute(f"DELETE FROM cells WHERE {on_shelves}", (thread_id,))
    execute(f"DELETE FROM cells WHERE origin = ? AND {on_shelves}", (thread_id, EVERYBODY))
    execute("DELETE FROM shelves WHERE thread = ?", (thread_id,))


def _delete_all(tenant: str, limit: int, execute: Execute) -> int:
    bounds = bounds_of(tenant)
    names = execute("SELECT name FROM threads WHERE name >= ? AND name < ? LIMIT ?", (*bounds, limit)).fetchall()
    for (name,) in names:
        _delete_thread(execute, name)
    if not names:
        shelves = execute("SELECT DISTINCT thread FROM shelves WHERE thread >= ? AND thread < ?", bounds).fetchall()
        for (name,) in shelves:
            _delete_cells(execute, name)
        execute(
            "DELETE FROM cells WHERE key >= ? AND key < ? AND shelf IN (SELECT id FROM shelves WHERE thread = ?)",
            (*bounds, EVERYBODY),
        )
    return len(names)


def _copy_namespace(execute: Execute, place: Place, name: str, thread: int, upto: int | None) -> None:
    """Copy a namespace to another thread: all of it, or its entries up to a key."""
    first, last = span(place.thread)
    # Entries of subgraphs have their own index.
    chosen = f"{'e.nested AND ' if place.nested else ''}e.namespace = ? AND e.key BETWEEN ? AND ?"
    part = (place.namespace, first, last if upto is None else upto)
    if upto is not None and not execute(f"SELECT 1 FROM entries e WHERE {chosen}", part).fetchone():
        return
    new = insert_namespace(execute, thread, name)
    execute(
        f"INSERT INTO entries SELECT ? | (e.key & {LAST}), ?, e.nested, e.state, e.id, e.mark, e.parent, e.run, "
        f"e.put_at, e.refs, e.header FROM entries e WHERE {chosen}",
        (span(thread)[0], new, *part),
    )
    batches, of_batches = "batches b WHERE b.namespace = ?", [place.namespace]
    if upto is not None:
        batches, of_batches = BATCHES_OF + chosen, [place.namespace, first, upto - 1]
    execute(
        "INSERT INTO batches (namespace, checkpoint, mark, task, path, body) "
        f"SELECT ?, b.checkpoint, b.mark, b.task, b.path, b.body FROM {batches} ORDER BY b.key",
        (new, *of_batches),
    )
    shown: dict[int, int] = {}  # by slot, the number after the last item that the entries use
    if upto is not None:
        for (refs,) in execute(f"SELECT e.refs FROM entries e WHERE {chosen}", part).fetchall():
            for slot, _, *runs in PLAIN.unpack(open_frame(refs)):
                shown[slot] = max([shown.get(slot, 0), *runs])
    _copy_channels(execute, place.namespace, new, None if upto is None else shown)


def _copy_channels(execute: Execute, source: int, target: int, ends: Mapping[int, int] | None) -> None:
    """Copy channels with their items: all, or those in `ends`, up to that number."""
    channels = execute("SELECT id, slot, name, floor FROM channels WHERE namespace = ?", (source,)).fetchall()
    for old, slot, name, floor in channels:
        if ends is not None and slot not in ends:
            continue
        sql = "INSERT INTO channels (namespace, slot, name, floor) VALUES (?, ?, ?, ?) RETURNING id"
        ((new,),) = execute(sql, (target, slot, name, floor)).fetchall()
        first, last = span(old)
        execute(
            f"INSERT INTO items SELECT ? | (key & {LAST}), count, body FROM items WHERE key BETWEEN ? AND ?",
            (span(new)[0], first, last if ends is None else first + ends[slot] - 1),
        )


# -- cells -------------------------------------------------------------------------------------------------------------


def _read_cells(shelf: Shelf, keys: Collection[str], execute: Execute) -> dict[str, Cell]:
    found = {key: _read_cell(execute, shelf, key) for key in keys}
    return {key: cell for key, cell in found.items() if cell}


def _read_cell(execute: Execute, shelf: Shelf, key: str) -> Cell | None:
    row = execute(f"SELECT {OF_CELL} FROM {ON_SHELF} AND c.key = ?", (*_names(shelf), key)).fetchone()
    return _cell_of(*row) if row else None


def _cell_of(token: str, header: bytes, body: bytes, origin: str, expires: Any, rank: Any, marks: str | None) -> Cell:
    return Cell(token, header, body, origin, expires, rank, tuple(marks.split()) if marks else ())


def find_statement(shelf: int | None, search: Search) -> tuple[str, dict[str, Any]]:
    """Return the SQL of a search, and its parameters."""
    prefix, after = search.prefix, search.after
    head = head_blocks(prefix)
    values: dict[str, Any] = {"shelf": shelf, "head": head, "limit": search.limit}
    values |= {"from": prefix if prefix[:1] == MARK else max(prefix, PAST), "to": prefix + PAST_KEYS}
    columns = BARE if search.is_bare else OF_CELL_WITHOUT_BODY
    if search.is_grouped:
        if after:
            values["from"] = after[1][:-BLOCK] + PAST_KEYS
        return GROUPS.replace("{columns}", columns), values
    where = BY_KEY if head is None else BY_RANK
    if after:
        values |= {"rank": after[0], "key": after[1]}
        where += " AND c.rank <= :rank AND (c.rank < :rank OR +c.key > :key)"
    for n, mark in enumerate(search.marks):
        values[f"mark{n}"] = mark
        where += f" AND instr(c.marks, :mark{n})"
    return f"SELECT c.key, {columns} FROM {where} ORDER BY c.rank DESC, c.key LIMIT :limit", values


def _reply_if_settled(
    shelf: Shelf, key: str, expected: str | None, new: Cell | None, execute: Execute
) -> Swapped | None:
    """Return the reply to a swap that changes nothing; `None` if the swap must write."""
    current = _read_cell(execute, shelf, key)
    decision = ruling(current, expected, new)
    if decision == "write":
        return None
    return Swapped(True) if decision == "again" else Swapped(False, current)


def _swap_cells(shelf: Shelf, swaps: Sequence[Swap], execute: Execute) -> list[Swapped]:
    number = _find_shelf(execute, shelf)
    if number is None and any(expected is None and new for _, expected, new in swaps):
        sql = "INSERT INTO shelves (thread, kind) VALUES (?, ?) RETURNING id"
        ((number,),) = execute(sql, _names(shelf)).fetchall()
    return [_swap_cell(shelf, number, *swap, execute) for swap in swaps]


def _swap_cell(
    shelf: Shelf, number: int | None, key: str, expected: str | None, new: Cell | None, execute: Execute
) -> Swapped:
    """Swap a cell in one statement, and read it if that changed nothing."""
    parameters: tuple[Any, ...] = (expected, number, key)
    if new is not None:
        content = new.token, new.origin or None, new.expires_at, new.rank, " ".join(new.marks) or None
        parameters = (*content, new.header, new.body, *parameters[expected is None :])
    if (expected or new) and execute(SWAPS[expected is not None, new is not None], parameters).fetchall():
        return Swapped(True)
    current = _read_cell(execute, shelf, key)
    is_done = (current is None and expected is None) or ruling(current, expected, new) == "again"
    return Swapped(True) if is_done else Swapped(False, current)


def _names(shelf: Shelf) -> tuple[str, str]:
    return shelf.thread_id or EVERYBODY, shelf.kind


def _find_shelf(execute: Execute, shelf: Shelf) -> int | None:
    row = execute("SELECT id FROM shelves WHERE thread = ? AND kind = ?", _names(shelf)).fetchone()
    return int(row[0]) if row else None
