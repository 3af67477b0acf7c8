"""The verbs beside those of entries: what is listed, what is removed or copied, and cells. Each is one transaction.

Rows are copied as they are: refs name channels by slots, which stay the same. A copy up to an entry reads the entries
below its key, and the items up to the last that one of them shows, so its work does not grow with later puts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from langgraph_keel.backends.sqlite.entries import (
    COLUMNS,
    LAST,
    PLAIN,
    PUT_AT,
    SHOWN,
    TENS,
    Execute,
    Place,
    RefTable,
    Slots,
    SqliteEntries,
    Work,
    batch_of,
    entry_of,
    find_place,
    find_row,
    head_of,
    insert_namespace,
    last_seq,
    mark_of,
    plan_of,
    read_slots,
    span,
    text_of,
)
from langgraph_keel.backends.tenants import TenantStore
from langgraph_keel.engine.cells import Cell, Shelf, Swapped, ruling
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
from langgraph_keel.engine.tenants import MARK, PAST, bounds_of
from langgraph_keel.errors import CorruptStore

_log = logging.getLogger(__name__)

# CROSS JOIN keeps SQLite from another order: one thread by its keys, all threads by the index on marks.
IN_THREAD = f"threads t CROSS JOIN entries e ON e.key BETWEEN t.id << 32 AND (t.id << 32 | {LAST})"
EVERYWHERE = "entries e CROSS JOIN threads t ON t.id = e.key >> 32"

_NO_INDEX = (
    f"(SELECT t.id AS thread, t.name, NULL AS marks, NULL AS late, ({PUT_AT.replace('{thread}', 't.id')}) AS put_at "
    "FROM threads t)"
)
_FOUND_BY = "AND (coalesce(i.marks, '') = '' OR instr(i.marks, ?) OR instr(i.late, ?)) "
_PAST = "\U0010ffff"
_PUT_AT = PUT_AT.replace("{thread}", "?")
FEW = 2000
"""Threads that are read before what is asked for counts as frequent."""
_RELIST = (
    f"UPDATE thread_index SET put_at = ({PUT_AT.replace('{thread}', 'thread')}), marks = iif(?, marks, NULL) "
    "WHERE thread = ?"
)

ALL_BATCHES = "FROM batches b WHERE b.namespace = ?"
# CROSS JOIN makes SQLite begin with the entries: there are only as many as are copied.
BATCHES_OF = (
    "FROM entries e CROSS JOIN batches b ON b.namespace = e.namespace AND b.mark = e.mark AND b.checkpoint = e.id "
    "WHERE {where}"
)

_IS_PLAIN = f"substr({{body}}, 1, 1) <> x'{SEALED.hex()}'"

# In the order of the attributes of `Cell`.
OF_CELL = "c.token, c.header, c.body, coalesce(c.origin, ''), c.expires_at"
OF_CELL_WITHOUT_BODY = OF_CELL.replace("c.body", "x''")
ON_SHELF = "shelves s CROSS JOIN cells c ON c.shelf = s.id WHERE s.thread = ? AND s.kind = ?"
EVERYBODY = ""
"""The thread of what all threads share: no thread has this name."""
PAST_KEYS = "\x7f"
"""Sorts after every character that a key may hold."""

NAMES = (
    "SELECT name FROM threads UNION SELECT thread FROM shelves WHERE thread <> ? "
    "UNION SELECT origin FROM cells WHERE origin IS NOT NULL "
    "AND shelf IN (SELECT id FROM shelves WHERE thread = ?)"
)
SHOWN_ENTRIES = (
    f"threads t CROSS JOIN entries e ON e.key BETWEEN t.id << 32 AND (t.id << 32 | {LAST}) AND e.state < 2 "
    "WHERE t.name = n.name"
)

NAMES_OF_TENANTS = (
    "SELECT name FROM threads WHERE name >= :mark AND name < :past "
    "UNION ALL SELECT thread FROM shelves WHERE thread >= :mark AND thread < :past "
    "UNION ALL SELECT c.key FROM shelves s CROSS JOIN cells c ON c.shelf = s.id AND c.key >= :mark AND c.key < :past "
    "WHERE s.thread = :everybody"
)


class SqliteStore(SqliteEntries):
    """One database file.

    Args:
        tenant: Whose threads verbs over all threads are about; the empty name is for those of none.
    """

    def __init__(self, tenant: str = "") -> None:
        self._tenant = tenant

    def of_tenant(self, tenant: str) -> TenantStore:
        """See `Store.of_tenant`."""
        return TenantStore(SqliteStore(tenant), tenant)

    def list_tenants(self, after: str | None, limit: int) -> StorePlan[Work, Any, Sequence[str]]:
        """See `Store.list_tenants`. Looks at the names of all that tenants have."""
        return plan_of(partial(_list_tenants, after, limit))

    def scan(self, query: Query) -> StorePlan[Work, Any, Sequence[Entry]]:
        """See `Store.scan`."""
        return plan_of(partial(_scan, query, self._tenant))

    def read_graph(self, thread_id: str) -> StorePlan[Work, Any, Graph]:
        """See `Store.read_graph`."""
        return plan_of(partial(_read_graph, thread_id))

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Work, Any, None]:
        """See `Store.remove_entries`."""
        return plan_of(partial(_remove_entries, thread_id, gone, ghosts), writes=True)

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Work, Any, int]:
        """See `Store.remove_rows`."""
        if graph.epoch is None:
            return 0
        return (yield from plan_of(partial(_remove_rows, thread_id, live, graph), writes=True))

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Work, Any, bool]:
        """See `Store.delete_thread`."""
        return plan_of(partial(_delete_thread, thread_id, last), writes=True)

    def delete_all(self, limit: int) -> StorePlan[Work, Any, int]:
        """See `Store.delete_all`."""
        if not self._tenant:
            return (yield from super().delete_all(limit))
        return (yield from plan_of(partial(_delete_all, self._tenant, limit), writes=True))

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> StorePlan[Work, Any, CopyOutcome]:
        """See `Store.copy_thread`."""
        return plan_of(partial(_copy_thread, source, target, upto), writes=True)

    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> StorePlan[Work, Any, Sequence[Writes]]:
        """See `Store.list_writes`."""
        return plan_of(partial(_list_writes, thread_id, after, limit))

    def list_kinds(self, thread_id: str | None) -> StorePlan[Work, Any, Sequence[str]]:
        """See `Store.list_kinds`."""
        return plan_of(partial(_list_kinds, thread_id or EVERYBODY))

    def replace_plain(self, thread_id: str, new: Replacement) -> StorePlan[Work, Any, None]:
        """See `Store.replace_plain`."""
        return plan_of(partial(_replace_plain, thread_id, new), writes=True)

    def find_runs(self, run_ids: Collection[str]) -> StorePlan[Work, Any, Sequence[str]]:
        """See `Store.find_runs`."""
        return plan_of(partial(_find_runs, list(run_ids), self._tenant))

    def read_threads(self, page: Page) -> StorePlan[Work, Any, Sequence[Listed]]:
        """See `Store.read_threads`.

        Unless the page is tolerant, by the entries themselves: an index that is damaged must not hide a thread.
        """
        found: Sequence[Listed] = yield Work(partial(_read_threads, page, self._tenant), takes_bytes=page.tolerant)
        return found

    def swap_cell(
        self, shelf: Shelf, key: str, expected: str | None, new: Cell | None
    ) -> StorePlan[Work, Any, Swapped]:
        """See `Store.swap_cell`.

        A caller that expects an empty cell is often wrong, and a read, which waits for nobody, is enough to refuse it.
        One that brings a token has seen it there, and goes to the writer at once.
        """
        swap = partial(_swap_cell, shelf, key, expected, new)
        reply = partial(_reply_if_settled, shelf, key, expected, new) if expected is None else None
        return plan_of(swap, writes=True, unless=reply)

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Work, Any, Mapping[str, Cell]]:
        """See `Store.read_cells`."""
        return plan_of(partial(_read_cells, shelf, keys))

    def list_cells(
        self, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> StorePlan[Work, Any, Sequence[tuple[str, Cell]]]:
        """See `Store.list_cells`."""
        return plan_of(partial(_list_cells, shelf, prefix, after if after or prefix[:1] == MARK else PAST, limit))

    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> StorePlan[Work, Any, int]:
        """See `Store.remove_cells`."""
        return plan_of(partial(_remove_cells, shelf, tokens), writes=True)

    def list_strays(self, after: str | None, limit: int) -> StorePlan[Work, Any, Sequence[str]]:
        """See `Store.list_strays`. Looks for an entry of each thread."""
        return plan_of(partial(_list_strays, after, limit, self._tenant))


# -- what is listed ----------------------------------------------------------------------------------------------------


def _of_tenant(column: str, tenant: str) -> tuple[str, Sequence[str]]:
    """Return the condition that a name is of a tenant's, and its parameters."""
    if tenant:
        return f"{column} >= ? AND {column} < ?", bounds_of(tenant)
    return f"({column} < ? OR {column} >= ?)", (MARK, PAST)


def _scan(query: Query, tenant: str, execute: Execute) -> list[Entry]:
    """See `Store.scan`."""
    clauses, parameters = _conditions(query)
    if query.thread_id is None:
        of_tenant, names = _of_tenant("t.name", tenant)
        clauses.append(of_tenant)
        parameters += names
    order = "e.mark DESC, e.id DESC, e.key DESC" if query.thread_id is None else "e.key DESC"
    rows = execute(
        f"SELECT t.name, n.name, n.id, {SHOWN} FROM {EVERYWHERE if query.thread_id is None else IN_THREAD} "
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


def _find_runs(run_ids: list[str], tenant: str, execute: Execute) -> list[str]:
    """See `Store.find_runs`."""
    names: dict[str, None] = {}
    of_tenant, bounds = _of_tenant("t.name", tenant)
    for run_id in run_ids:
        for (name,) in execute(
            "SELECT DISTINCT t.name FROM entries e JOIN threads t ON t.id = e.key >> 32 "
            f"WHERE e.run = ? AND {of_tenant}",
            (run_id, *bounds),
        ).fetchall():
            names[name] = None
    return list(names)


def _read_threads(page: Page, tenant: str, execute: Execute) -> list[Listed]:
    """See `Store.read_threads`. If the page is tolerant, a text that is none comes as bytes."""
    after, oldest_first = page.after, page.oldest_first
    found: list[tuple[str, str, int]] = []
    tens = ""
    for thread, name, rough in _threads_from(page, tenant, page.tolerant and has_index(execute), execute):
        (at,) = execute(_PUT_AT, (thread, thread)).fetchone() or (None,)
        if not (isinstance(name, str) and isinstance(at, str) and isinstance(rough, str)):
            if not page.tolerant:
                raise CorruptStore(f"the name or the time of a thread is damaged: {name!r:.300}, {at!r:.100}")
            _log.warning("a thread is not listed, as its name or time is damaged: %r, %r", name, at)
            continue
        if len(found) >= page.limit and rough[:TENS] != tens:
            break  # those of the last ten seconds are all there, in whichever order the index has them
        if after is None or ((at, name) > after if oldest_first else (at, name) < after):
            found.append((at, name, thread))
            tens = rough[:TENS]
    found.sort(reverse=not oldest_first)
    return [_info(execute, thread, name, at) for at, name, thread in found[: page.limit]]


def has_index(execute: Execute) -> bool:
    """Return whether there is an index of threads: not in a store of an earlier Keel that is only read."""
    return bool(execute("SELECT 1 FROM sqlite_master WHERE name = 'thread_index'").fetchone())


def _threads_from(page: Page, tenant: str, by_index: bool, execute: Execute) -> Iterator[tuple[int, Any, Any]]:
    """Yield threads, those of the last ten seconds first: id, name, and the time of a put in the same ten seconds.

    With a place, those of its ten seconds and before; or the oldest first, and those after.
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
        # Most are found at once by the index on times, and few by reading all: the other way it would take 150 ms.
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
    place = find_place(execute, Address(name))
    row = find_row(execute, place, None) if place else None
    if not place or not row:
        return info, None
    if not isinstance(row[1], str):
        _log.warning("thread %r is listed without its latest checkpoint: its id is damaged", name)
        return info, None
    info = replace(info, latest=row[1])
    try:
        return info, entry_of(row, name, "", RefTable(read_slots(execute, place.namespace)))
    except CorruptStore as error:  # whoever reads the thread is told, and nobody else
        _log.warning("a thread is listed without its latest checkpoint: %s", error)
        return info, None


# -- what is removed or copied -----------------------------------------------------------------------------------------


def _namespaces_of(execute: Execute, thread_id: str) -> list[tuple[Place, str]]:
    """Return the namespaces of a thread: the place and the name of each."""
    rows = execute(
        "SELECT t.id, n.id, n.name FROM threads t JOIN namespaces n ON n.thread = t.id WHERE t.name = ? ORDER BY n.id",
        (thread_id,),
    ).fetchall()
    return [(Place(thread, namespace, bool(name)), name) for thread, namespace, name in rows]


def _read_graph(thread_id: str, execute: Execute) -> Graph:
    """See `Store.read_graph`."""
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
        is_head = bool(head) and head[0] == e.stamp
        yield Node(*(e.address, e.parent, e.stamp, e.header, e.refs, e.run_id), is_head, state == 2, put_at, state == 1)


def _remove_entries(
    thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]], execute: Execute
) -> None:
    """See `Store.remove_entries`."""
    _raise_floor(execute, thread_id)
    place = find_place(execute, Address(thread_id))
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


def _raise_floor(execute: Execute, thread_id: str) -> None:
    # Before entries are deleted, as their sequence numbers must never be used again.
    thread = _epoch(execute, thread_id)
    if thread is not None:
        execute("UPDATE threads SET floor = ? WHERE id = ?", (last_seq(execute, thread), thread))


def _remove_rows(thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph, execute: Execute) -> int:
    """See `Store.remove_rows`."""
    if _epoch(execute, thread_id) != graph.epoch:
        return 0
    removed = 0
    for place, name in _namespaces_of(execute, thread_id):
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


def _delete_thread(thread_id: str, last: Stamp | None, execute: Execute) -> bool:
    """See `Store.delete_thread`."""
    if last is not None and _last_stamp(execute, thread_id) != last:
        return False
    for place, _ in _namespaces_of(execute, thread_id):
        for channel in read_slots(execute, place.namespace).values():
            execute("DELETE FROM items WHERE key BETWEEN ? AND ?", span(channel.id))
        execute("DELETE FROM channels WHERE namespace = ?", (place.namespace,))
        execute("DELETE FROM batches WHERE namespace = ?", (place.namespace,))
        execute("DELETE FROM namespaces WHERE id = ?", (place.namespace,))
        execute("DELETE FROM entries WHERE key BETWEEN ? AND ?", span(place.thread))
    execute("DELETE FROM thread_index WHERE thread = (SELECT id FROM threads WHERE name = ?)", (thread_id,))
    execute("DELETE FROM threads WHERE name = ?", (thread_id,))
    _delete_cells(thread_id, execute)
    return True


def _delete_all(tenant: str, limit: int, execute: Execute) -> int:
    """See `Store.delete_all`."""
    bounds = bounds_of(tenant)
    names = execute("SELECT name FROM threads WHERE name >= ? AND name < ? LIMIT ?", (*bounds, limit)).fetchall()
    for (name,) in names:
        _delete_thread(name, None, execute)
    if not names:
        shelves = execute("SELECT DISTINCT thread FROM shelves WHERE thread >= ? AND thread < ?", bounds).fetchall()
        for (name,) in shelves:
            _delete_cells(name, execute)
        execute(
            "DELETE FROM cells WHERE key >= ? AND key < ? AND shelf IN (SELECT id FROM shelves WHERE thread = ?)",
            (*bounds, EVERYBODY),
        )
    return len(names)


def _last_stamp(execute: Execute, thread_id: str) -> Stamp | None:
    """Return the stamp of the entry that was put last and is no ghost."""
    thread = _epoch(execute, thread_id)
    if thread is None:
        return None
    row = execute(
        "SELECT key FROM entries WHERE key BETWEEN ? AND ? AND state <> 2 ORDER BY key DESC LIMIT 1", span(thread)
    ).fetchone()
    return int(row[0]) if row else None


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


def _copy_thread(source: str, target: str, upto: Entry | None, execute: Execute) -> CopyOutcome:
    """See `Store.copy_thread`."""
    if execute("SELECT 1 FROM threads WHERE name = ?", (target,)).fetchone():
        return Occupied()
    old = execute("SELECT id FROM threads WHERE name = ?", (source,)).fetchone()
    if upto is not None and not (old and _is_of(execute, old[0], upto.stamp)):
        return BaseGone()
    if old:
        # No number is used twice: an entry that was put again after `upto` has a later number, by which its children
        # know it.
        floor = last_seq(execute, old[0])
        ((new,),) = execute("INSERT INTO threads (name, floor) VALUES (?, ?) RETURNING id", (target, floor)).fetchall()
        stamp = upto.stamp if upto else None
        for place, name in _namespaces_of(execute, source):
            _copy_namespace(execute, Part(place, span(old[0])[0], span(old[0])[1]), new, name, stamp)
        _make_head(execute, new, upto)
        execute("INSERT INTO thread_index (thread, name) VALUES (?, ?)", (new, target))
        execute(_RELIST, (False, new))
    return Copied()


def _is_of(execute: Execute, thread: int, upto: Stamp) -> bool:
    (first, last) = span(thread)
    row = execute("SELECT 1 FROM entries WHERE key = ? AND key BETWEEN ? AND ? AND state < 2", (upto, first, last))
    return row.fetchone() is not None


def _make_head(execute: Execute, thread: int, upto: Entry | None) -> None:
    if upto is not None:
        key = span(thread)[0] | int(upto.stamp) & LAST
        execute(
            "UPDATE entries SET state = 0, header = ?, put_at = max(put_at, ?) WHERE key = ?",
            (upto.header, upto.updated_at, key),
        )


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
        for slot, _, *runs in PLAIN.unpack(open_frame(refs)):
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


# -- what is sealed later ----------------------------------------------------------------------------------------------


def _list_writes(thread_id: str, after: Writes | None, limit: int, execute: Execute) -> list[Writes]:
    """See `Store.list_writes`."""
    rows = execute(
        "SELECT b.key, n.name, b.checkpoint, b.task, b.path, b.body FROM threads t "
        "JOIN namespaces n ON n.thread = t.id JOIN batches b ON b.namespace = n.id "
        "WHERE t.name = ? AND b.key > ? ORDER BY b.key LIMIT ?",
        (thread_id, after.stamp if after else 0, limit),
    ).fetchall()
    return [Writes(key, Address(thread_id, text_of(ns), text_of(of)), batch_of(*batch)) for key, ns, of, *batch in rows]


def _list_kinds(name: str, execute: Execute) -> list[str]:
    """See `Store.list_kinds`."""
    return [text_of(kind) for (kind,) in execute("SELECT kind FROM shelves WHERE thread = ?", (name,)).fetchall()]


def _replace_plain(thread_id: str, new: Replacement, execute: Execute) -> None:
    """See `Store.replace_plain`."""
    if (thread := _epoch(execute, thread_id)) is None or thread != new.epoch:
        return
    for stamp, header in new.headers.items():
        execute(f"UPDATE entries SET header = ? WHERE key = ? AND {_IS_PLAIN.format(body='header')}", (header, stamp))
    for place, name in _namespaces_of(execute, thread_id):
        for channel, slot in read_slots(execute, place.namespace).items():
            for row in new.rows.get((name, channel), ()):
                execute(
                    f"UPDATE items SET body = ? WHERE key = ? AND count = ? AND {_IS_PLAIN.format(body='body')}",
                    (row.body, span(slot.id)[0] + row.lo, row.count),
                )
    for writes in new.writes:
        execute(
            f"UPDATE batches SET body = ? WHERE key = ? AND {_IS_PLAIN.format(body='body')}",
            (writes.batch.body, writes.stamp),
        )
    execute("UPDATE thread_index SET marks = NULL, late_of = NULL, late = NULL WHERE thread = ?", (thread,))


# -- cells -------------------------------------------------------------------------------------------------------------


def _reply_if_settled(
    shelf: Shelf, key: str, expected: str | None, new: Cell | None, execute: Execute
) -> Swapped | None:
    """Return the reply to a swap that changes nothing; `None` for one that has to write."""
    current = _read_cells(shelf, [key], execute).get(key)
    decision = ruling(current, expected, new)
    if decision == "write":
        return None
    return Swapped(True) if decision == "again" else Swapped(False, current)


def _swap_cell(shelf: Shelf, key: str, expected: str | None, new: Cell | None, execute: Execute) -> Swapped:
    """See `Store.swap_cell`."""
    reply = _reply_if_settled(shelf, key, expected, new, execute)
    if reply is not None:
        return reply
    if new is None:
        execute("DELETE FROM cells WHERE shelf = ? AND key = ?", (_find_shelf(execute, shelf), key))
    else:
        _fill(execute, shelf, key, new)
    return Swapped(True)


def _fill(execute: Execute, shelf: Shelf, key: str, new: Cell) -> None:
    # A row that is there is changed in place: a new one would change the index of keys as well.
    execute(
        "INSERT INTO cells (shelf, key, token, origin, expires_at, header, body) VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (shelf, key) DO UPDATE SET token = excluded.token, origin = excluded.origin, "
        "expires_at = excluded.expires_at, header = excluded.header, body = excluded.body",
        (
            _find_shelf(execute, shelf) or _create_shelf(execute, shelf),
            key,
            new.token,
            new.origin or None,
            new.expires_at,
            new.header,
            new.body,
        ),
    )


def _names(shelf: Shelf) -> tuple[str, str]:
    return shelf.thread_id or EVERYBODY, shelf.kind


def _find_shelf(execute: Execute, shelf: Shelf) -> int | None:
    row = execute("SELECT id FROM shelves WHERE thread = ? AND kind = ?", _names(shelf)).fetchone()
    return int(row[0]) if row else None


def _create_shelf(execute: Execute, shelf: Shelf) -> int:
    ((number,),) = execute("INSERT INTO shelves (thread, kind) VALUES (?, ?) RETURNING id", _names(shelf)).fetchall()
    return int(number)


def _read_cells(shelf: Shelf, keys: Collection[str], execute: Execute) -> dict[str, Cell]:
    """See `Store.read_cells`."""
    names = _names(shelf)
    rows = ((key, execute(f"SELECT {OF_CELL} FROM {ON_SHELF} AND c.key = ?", (*names, key)).fetchone()) for key in keys)
    return {key: Cell(*row) for key, row in rows if row}


def _list_cells(shelf: Shelf, prefix: str, after: str | None, limit: int, execute: Execute) -> list[tuple[str, Cell]]:
    """See `Store.list_cells`."""
    rows: list[Any] = execute(
        f"SELECT c.key, {OF_CELL_WITHOUT_BODY} FROM {ON_SHELF} AND c.key >= ? AND c.key < ? AND c.key IS NOT ? "
        "ORDER BY c.key LIMIT ?",
        (*_names(shelf), max(prefix, after or ""), prefix + PAST_KEYS, after, limit),
    ).fetchall()
    return [(key, Cell(*row)) for key, *row in rows]


def _remove_cells(shelf: Shelf, tokens: Mapping[str, str], execute: Execute) -> int:
    """See `Store.remove_cells`."""
    number = _find_shelf(execute, shelf)
    sql = "DELETE FROM cells WHERE shelf = ? AND key = ? AND token = ? RETURNING 1"
    return sum(len(execute(sql, (number, key, token)).fetchall()) for key, token in tokens.items())


def _list_strays(after: str | None, limit: int, tenant: str, execute: Execute) -> list[str]:
    """See `Store.list_strays`."""
    of_tenant, bounds = _of_tenant("n.name", tenant)
    rows: list[Any] = execute(
        f"SELECT n.name FROM ({NAMES}) n WHERE n.name > ? AND {of_tenant} "
        f"AND NOT EXISTS (SELECT 1 FROM {SHOWN_ENTRIES}) ORDER BY n.name LIMIT ?",
        (EVERYBODY, EVERYBODY, after or "", *bounds, limit),
    ).fetchall()
    return [name for (name,) in rows]


def _list_tenants(after: str | None, limit: int, execute: Execute) -> list[str]:
    """See `Store.list_tenants`."""
    parameters = {"mark": MARK, "past": PAST, "everybody": EVERYBODY, "after": after or "", "limit": limit}
    rows: list[Any] = execute(
        f"SELECT DISTINCT substr(name, 2, instr(substr(name, 2), :mark) - 1) AS tenant FROM ({NAMES_OF_TENANTS}) "
        "WHERE tenant > :after ORDER BY tenant LIMIT :limit",
        parameters,
    ).fetchall()
    return [tenant for (tenant,) in rows]


def _delete_cells(thread_id: str, execute: Execute) -> None:
    """Delete the cells of a thread, and of the shared ones those that it wrote."""
    on_shelves = "shelf IN (SELECT id FROM shelves WHERE thread = ?)"
    execute(f"DELETE FROM cells WHERE {on_shelves}", (thread_id,))
    execute(f"DELETE FROM cells WHERE origin = ? AND {on_shelves}", (thread_id, EVERYBODY))
    execute("DELETE FROM shelves WHERE thread = ?", (thread_id,))
