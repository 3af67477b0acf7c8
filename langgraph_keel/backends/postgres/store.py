"""Store operations on the tables of `schema.sql`, each in one round trip."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from secrets import randbits
from typing import Any, TypeAlias

from langgraph_keel.backends.postgres import statements as sql
from langgraph_keel.backends.postgres.rows import (
    Line,
    Request,
    Statement,
    Tables,
    bytes_array,
    content_of,
    entry_of,
    entry_parameters,
    escape,
    first_numbers,
    graph_of,
    is_hashed,
    key,
    long_names,
    mark_of,
    name_of,
    names_by_key,
    number_array,
    parent_of,
    place_of,
    stamp_of,
    text_array,
    unescape,
)
from langgraph_keel.backends.resent import Resent
from langgraph_keel.backends.tenants import TenantStore
from langgraph_keel.engine.cells import BLOCK, Cell, Search, Shelf, Swap, Swapped, ruling
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import RAW, SEALED, restore_frame, shrink
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import (
    BaseGone,
    Batch,
    Copied,
    CopyOutcome,
    Entry,
    Found,
    Graph,
    Listed,
    Moved,
    NewEntry,
    Occupied,
    Outcome,
    Page,
    Query,
    Replacement,
    Run,
    Stamp,
    Stored,
    ThreadInfo,
    Unchanged,
    Writes,
)
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.tenants import MARK, PAST, bounds_of, head_blocks
from langgraph_keel.errors import CorruptStore, StoreBusy

_log = logging.getLogger(__name__)
SHELF = "c.thread_id = %(thread)s AND c.kind = %(kind)s"
HERE = f"{SHELF} AND c.key = %(key)s"
HEAD = "c.token, c.origin, c.name, c.expires_at, c.rank, c.marks, c.header"

# A swap of a cell is one statement, of one of four kinds. It changes the row if that has the expected token, and
# otherwise returns the row. A refused swap only reads: it takes no lock, and its commit writes nothing to disk. If the
# returned row has the expected token and nothing was written, another transaction has committed since the statement
# began, and the statement is sent again. So a swap is correct at every isolation level (above READ COMMITTED the server
# itself requests the retry, by 40001).
# DO NOTHING: an upsert would lock a row that it does not change.
FILL = f"""
    INSERT INTO {{cells}} (thread_id, kind, key, token, origin, name, expires_at, rank, marks, header, body)
    SELECT %(thread)s, %(kind)s, %(key)s, %(token)s, %(origin)s::text, %(name)s::text, %(expires_at)s::bigint,
        %(rank)s::bigint, %(marks)s::text, %(header)s::bytea, %(body)s::bytea
    WHERE NOT EXISTS (SELECT 1 FROM {{cells}} c WHERE {HERE})
    ON CONFLICT (thread_id, kind, key) DO NOTHING
    RETURNING 1
"""
REPLACE = f"""
    UPDATE {{cells}} c SET token = %(token)s, origin = %(origin)s, name = %(name)s, expires_at = %(expires_at)s,
        rank = %(rank)s, marks = %(marks)s, header = %(header)s, body = %(body)s
    WHERE {HERE} AND c.token = %(expected)s
    RETURNING 1
"""
EMPTY = f"DELETE FROM {{cells}} c WHERE {HERE} AND c.token = %(expected)s RETURNING 1"
LEAVE = f"SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM {{cells}} c WHERE {HERE})"
SWAPPED = f"""
WITH done AS ({{change}})
SELECT d.done, {HEAD}, c.body
FROM (SELECT EXISTS (SELECT 1 FROM done) AS done) AS d
LEFT JOIN {{cells}} c ON {HERE} AND NOT d.done
"""
# Keys: whether a token is expected, and whether there is a new cell.
SWAPS = {
    (False, True): SWAPPED.replace("{change}", FILL),
    (True, True): SWAPPED.replace("{change}", REPLACE),
    (True, False): SWAPPED.replace("{change}", EMPTY),
    (False, False): SWAPPED.replace("{change}", LEAVE),
}

# One index look-up per key. Without statistics, the planner read all cells of the shelf for `= ANY` and for a plain
# join; it cannot reorder this one.
EACH = f"CROSS JOIN LATERAL (SELECT * FROM {{cells}} c WHERE {SHELF} AND c.key = k.key OFFSET 0) c"
READ = f"SELECT c.key, {HEAD}, c.body FROM unnest(%(keys)s::text[]) k(key) {EACH}"
# No character of a key sorts after the tilde.
LIST = f"""
SELECT c.key, {HEAD} FROM {{cells}} c
WHERE {SHELF} AND c.key > %(after)s AND c.key >= %(prefix)s AND c.key < %(prefix)s || '~'
ORDER BY c.key LIMIT %(limit)s
"""
BARE = "c.token, NULL, NULL, c.expires_at, c.rank, NULL, ''::bytea"
# BY_RANK has no range of keys, so the planner cannot use the index of keys for it.
BY_RANK = f"{SHELF} AND left(c.key, -{2 * BLOCK}) = %(head)s AND c.rank IS NOT NULL AND starts_with(c.key, %(prefix)s)"
BY_KEY = f"{SHELF} AND c.key >= %(prefix)s AND c.key < %(prefix)s || '~' AND c.key > %(past)s AND c.rank IS NOT NULL"
# Within a head, in the order of the index; otherwise all are sorted.
FIND = "SELECT c.key, {columns} FROM {cells} c WHERE {where} ORDER BY c.rank DESC, {key} LIMIT %(limit)s"
AFTER = " AND c.rank <= %(rank)s::bigint AND (c.rank < %(rank)s::bigint OR c.key > %(after)s)"
# One index look-up per group, however many cells it has.
GROUPS = f"""
WITH RECURSIVE firsts(key, n) AS (
    (SELECT c.key, 1 FROM {{cells}} c WHERE {BY_KEY} ORDER BY c.key LIMIT 1)
    UNION ALL
    SELECT (
        SELECT c.key FROM {{cells}} c WHERE {BY_KEY} AND c.key > left(f.key, -{BLOCK}) || '~' ORDER BY c.key LIMIT 1
    ), f.n + 1 FROM firsts f WHERE f.key IS NOT NULL AND f.n < %(limit)s::int
)
SELECT c.key, {{columns}} FROM firsts k {EACH} ORDER BY c.key
"""
KINDS = "SELECT DISTINCT c.kind FROM {cells} c WHERE c.thread_id = %(thread)s"
# By the location of the row (ctid), which leaves the planner no other way. A concurrently changed row has a new
# location and another token.
REMOVE = f"""
WITH found AS (
    SELECT c.place, c.part, k.token FROM unnest(%(keys)s::text[], %(tokens)s::text[]) k(key, token)
    {EACH.replace("*", "c.ctid AS place, c.tableoid AS part")}
), gone AS (
    DELETE FROM {{cells}} c USING found f
    WHERE c.ctid = f.place AND c.tableoid = f.part AND c.token = f.token
    RETURNING 1
)
SELECT count(*) FROM gone
"""
# Part of the deletion of a thread: one search in each of two indexes, however many cells are shared. All cells are
# deleted, because they do not name the epoch of their thread.
DELETE_OF_THREAD = """
DELETE FROM {cells} c WHERE (c.thread_id = %(thread)s OR c.thread_id = '' AND c.origin = %(thread)s)
"""
# The names of all threads with any rows, except those with a visible checkpoint.
STRAYS = """
SELECT s.thread_id, max(s.name) FROM (
    SELECT t.thread_id, t.name FROM {threads} t
    UNION ALL SELECT DISTINCT b.thread_id, NULL FROM {batches} b
    UNION ALL SELECT DISTINCT c.thread_id, NULL FROM {cells} c WHERE c.thread_id <> ''
    UNION ALL SELECT DISTINCT c.origin, c.name FROM {cells} c WHERE c.thread_id = '' AND c.origin IS NOT NULL
) AS s
WHERE s.thread_id > %(after)s AND {of_tenant} AND NOT EXISTS (
    SELECT 1 FROM {entries} e JOIN {threads} t ON t.thread_id = e.thread_id
    WHERE e.thread_id = s.thread_id AND e.put_at >= '' AND e.state < 2
)
GROUP BY s.thread_id ORDER BY s.thread_id LIMIT %(limit)s
"""
TENANTS = """
SELECT DISTINCT split_part(n.name, %(mark)s, 2) COLLATE "C" AS tenant FROM (
    SELECT t.thread_id AS name FROM {threads} t WHERE t.thread_id >= %(mark)s AND t.thread_id < %(past)s
    UNION ALL SELECT c.thread_id FROM {cells} c WHERE c.thread_id >= %(mark)s AND c.thread_id < %(past)s
    UNION ALL SELECT c.key FROM {cells} c WHERE c.thread_id = '' AND c.key >= %(mark)s AND c.key < %(past)s
) AS n
WHERE split_part(n.name, %(mark)s, 2) COLLATE "C" > %(after)s
ORDER BY tenant LIMIT %(limit)s
"""

RACES = 1000
"""Maximum retries of a request that loses races against stored ones."""


def shelf_parameters(shelf: Shelf) -> dict[str, Any]:
    """Return the parameters for a shelf."""
    return {"thread": "" if shelf.thread_id is None else key(shelf.thread_id), "kind": shelf.kind}


def cell_parameters(cell: Cell) -> dict[str, Any]:
    """Return the parameters of a cell's content."""
    origin = key(cell.origin)
    return {
        "token": cell.token,
        "origin": origin or None,
        "name": escape(cell.origin) if is_hashed(origin) else None,
        "expires_at": cell.expires_at,
        "rank": cell.rank,
        "marks": " ".join(cell.marks) or None,
        "header": _shrink_raw(cell.header),
        "body": _shrink_raw(cell.body),
    }


def _shrink_raw(frame: bytes) -> bytes:
    # A compressed frame would become other bytes of the same content.
    return shrink(frame) if frame[:1] == RAW else frame


def cell_of(
    token: str,
    origin: str | None,
    name: str | None,
    expires_at: int | None,
    rank: int | None,
    marks: str | None,
    header: bytes,
    body: bytes = b"",
) -> Cell:
    """Return a cell from the columns of a row."""
    found_by = tuple(marks.split()) if marks else ()
    whose = unescape(name or origin or "")
    return Cell(token, restore_frame(header), restore_frame(body), whose, expires_at, rank, found_by)


def cells_of(reply: list[list[Any]]) -> Mapping[str, Cell]:
    """Return the cells of a reply by their keys, in its order."""
    return {name: cell_of(*columns) for name, *columns in reply}


Reply: TypeAlias = list[list[Any]]


def _random_number() -> int:
    return randbits(62) + 1


class PostgresStore(Store[Request, Reply]):
    """One set of tables, restricted to one tenant, or to threads without a tenant."""

    def __init__(self, tables: Tables, tenant: str = "") -> None:
        self._tables = tables
        low, high = bounds_of(tenant) if tenant else (PAST, MARK)
        self._bounds = {"low": low, "high": high}
        self._junction = "AND" if tenant else "OR"

    def of_tenant(self, tenant: str) -> TenantStore:
        return TenantStore(PostgresStore(self._tables, tenant), tenant)

    def list_tenants(self, after: str | None, limit: int) -> StorePlan[Request, Reply, Sequence[str]]:
        # Reads the part of each table's index that belongs to tenants.
        parameters = {"mark": MARK, "past": PAST, "after": after or "", "limit": limit}
        reply = yield self._request(parameters, TENANTS)
        return [tenant for (tenant,) in reply[0]]

    def _of_tenant(self, text: str, column: str) -> str:
        """Return a statement restricted to the rows of the tenant."""
        return text.replace("{of_tenant}", f"({column} >= %(low)s {self._junction} {column} < %(high)s)")

    def _request(
        self, parameters: Mapping[str, Any], *texts: str, writes: bool = False, joins: bool = False
    ) -> Request:
        prepared = [self._tables.prepare(text) for text in texts]
        statements = (Statement(each.text, [parameters[name] for name in each.names]) for each in prepared)
        return Request(tuple(statements), writes, joins)

    def write_entry(self, new: NewEntry) -> StorePlan[Request, Reply, Outcome]:
        # One statement, sent again for each concurrent write of another process.
        parameters = {**entry_parameters(new), "token": _random_number(), "epoch": _random_number(), "all": sql.ALL}
        texts = (sql.PUT_PACKED, sql.UNPACK) if new.repacks else (sql.PUT,)
        request = self._request(parameters, *texts, writes=True, joins=True)
        is_resent = False
        for _ in range(RACES):
            reply = yield request
            is_resent = is_resent or isinstance(reply, Resent)
            ((answer, head, epoch, seq, los),) = reply[0]
            if answer == "gone":
                return BaseGone(is_resent)
            if answer == "moved":
                return Moved(head and name_of(head, names_by_key(long_names([new.parent]))), is_resent)
            if seq is not None:
                return Stored(stamp_of(epoch, seq, parameters["token"]), first_numbers(new, los))
        raise StoreBusy(f"thread {new.address.thread_id!r}: this write lost {RACES} times in a row against others")

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Request, Reply, None]:
        parameters = {
            **place_of(address),
            "token": _random_number(),
            "task": escape(batch.task_id),
            "path": escape(batch.task_path),
            "body": shrink(batch.body),
        }
        texts = (sql.WRITE_BATCH, sql.FIND_LATE) if batch.terms else (sql.WRITE_BATCH,)
        if batch.terms:
            parameters["late"] = " ".join(batch.terms)
        yield self._request(parameters, *texts, writes=True, joins=True)

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Reply, Any]:
        parameters = place_of(address)
        if known is None:
            text = sql.READ_LATEST if address.checkpoint_id is None else sql.READ_NAMED
        else:
            text = sql.READ_KNOWN_LATEST if address.checkpoint_id is None else sql.READ_KNOWN_NAMED
            epoch, seq, token = mark_of(known)
            parameters |= {"epoch": epoch, "seq": seq, "token": token}
        reply = yield self._request(parameters, text, joins=True)
        content = content_of(reply[0])
        if not content.entries:
            return None
        line = content.entries[0]
        if stamp_of(line.epoch, line.seq, line.token) == known:
            return Unchanged(parent_of(line), content.batches_of(line))
        return content.entry_with_rows(line)

    def scan(self, query: Query) -> StorePlan[Request, Reply, Sequence[Entry]]:
        # Entries of all threads are read by an index of their ids.
        text, parameters = _scan_query(query)
        if query.thread_id is None:
            parameters |= self._bounds
        reply = yield self._request(parameters, self._of_tenant(text, "e.thread_id"))
        return [entry_of(Line._make(line)) for line in reply[0]]

    def read_values(self, entries: Sequence[Entry]) -> StorePlan[Request, Reply, Sequence[Found]]:
        marks = [mark_of(entry.stamp) for entry in entries]
        parameters = {
            "threads": [key(entry.address.thread_id) for entry in entries],
            "nss": [key(entry.address.checkpoint_ns) for entry in entries],
            "epochs": [mark.epoch for mark in marks],
            "seqs": [mark.seq for mark in marks],
        }
        text = sql.READ_LISTED if any(entry.refs for entry in entries) else sql.READ_BARE
        reply = yield self._request(parameters, text)
        content = content_of(reply[0])
        lines = {stamp_of(line.epoch, line.seq, line.token): line for line in content.entries}
        return [content.with_rows(entry, lines[entry.stamp]) for entry in entries if entry.stamp in lines]

    def read_history(self, address: Address, channels: Collection[str]) -> StorePlan[Request, Reply, Sequence[Found]]:
        text = sql.WALK_LATEST if address.checkpoint_id is None else sql.WALK_NAMED
        parameters = {**place_of(address), "channels": [key(name) for name in channels]}
        reply = yield self._request(parameters, text)
        content = content_of(reply[0])
        lines = {line.id: line for line in content.entries}
        # Nearest first: each is the parent of the one before it; the first is not a parent of any.
        parents = {line.parent for line in content.entries}
        line = next((line for line in content.entries if line.id not in parents), None)
        found = []
        while line is not None:
            found.append(content.entry_with_rows(line))
            line = lines.pop(line.parent or "", None)
        return found

    def read_graph(self, thread_id: str) -> StorePlan[Request, Reply, Graph]:
        reply = yield self._request({"thread": key(thread_id)}, sql.GRAPH)
        return graph_of([(Line._make(line), put_at) for *line, put_at in reply[0]])

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Request, Reply, None]:
        marks = [mark_of(stamp) for stamp in (*gone, *ghosts)]
        seqs = ",".join(str(mark.seq) for mark in marks[: len(gone)])
        pairs = [(mark_of(stamp).seq, name) for stamp, names in ghosts.items() for name in (None, *names)]
        parameters = {
            "thread": key(thread_id),
            "epoch": marks[0].epoch if marks else 0,
            "gone": f"{{{seqs}}}",  # as text: psycopg takes a millisecond for a list of 1000
            "seqs": [seq for seq, _ in pairs],
            "channels": [name if name is None else key(name) for _, name in pairs],
        }
        texts = (sql.HOLD, sql.REMOVE_ENTRIES, *([sql.MAKE_GHOSTS] if ghosts else []), sql.REDATE)
        yield self._request(parameters, *texts, writes=True)

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Request, Reply, int]:
        if graph.epoch is None:
            return 0
        ends = [(key(ns), key(channel), end) for (ns, channel), end in graph.ends.items()]
        runs = [(key(ns), key(channel), lo, hi) for (ns, channel), shown in live.items() for lo, hi in shown]
        parameters = {
            "thread": key(thread_id),
            "epoch": graph.epoch,
            "nss": [ns for ns, _, _ in ends],
            "channels": [channel for _, channel, _ in ends],
            "ends": [end for _, _, end in ends],
            "live_nss": [ns for ns, _, _, _ in runs],
            "live_channels": [channel for _, channel, _, _ in runs],
            "los": [lo for _, _, lo, _ in runs],
            "his": [hi for _, _, _, hi in runs],
        }
        reply = yield self._request(parameters, sql.HOLD, sql.KEEP_FLOORS, sql.REMOVE_ROWS, writes=True)
        return int(reply[-1][0][0])

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Reply, bool]:
        if last is None:
            yield self._request(
                {"thread": key(thread_id)}, sql.DELETE_THREAD, sql.DELETE_CONTENT, DELETE_OF_THREAD, writes=True
            )
            return True
        mark = mark_of(last)
        parameters = {"thread": key(thread_id), "epoch": mark.epoch, "last": mark.seq}
        texts = (sql.HOLD, sql.DELETE_UNCHANGED, sql.DELETE_CONTENT, DELETE_OF_THREAD + f"AND {sql.NO_THREAD}")
        reply = yield self._request(parameters, *texts, writes=True)
        return bool(reply[1])

    def delete_all(self, limit: int) -> StorePlan[Request, Reply, int]:
        # One statement for some threads, and one transaction of statements for the rest.
        if self._junction != "AND":
            return (yield from super().delete_all(limit))
        parameters = {"limit": limit, **self._bounds}
        reply = yield self._request(parameters, self._of_tenant(sql.DELETE_SOME, "s.thread_id"), writes=True)
        ((deleted,),) = reply[0]
        if not deleted:
            texts = [self._of_tenant(text, "x.thread_id") for text in sql.DELETE_ALL]
            shared = self._of_tenant(sql.DELETE_ALL_SHARED, "x.key")
            yield self._request(parameters, *texts, shared, writes=True)
        return int(deleted)

    def copy_thread(
        self, source: str, target: str, upto: Entry | None = None
    ) -> StorePlan[Request, Reply, CopyOutcome]:
        # When sent again after a lost reply, it recognizes its own copy by the epoch.
        parameters: dict[str, Any] = {
            "thread": key(source),
            "target": key(target),
            "name": next(iter(long_names([target]) or ()), None),
            "epoch": _random_number(),
        }
        text = sql.COPY_THREAD
        if upto is not None:
            mark, text = mark_of(upto.stamp), sql.COPY_UPTO
            parameters |= {"life": mark.epoch, "upto": mark.seq, "token": mark.token}
            parameters |= {"header": shrink(upto.header), "put_at": escape(upto.updated_at)}
        request = self._request(parameters, text, writes=True)
        for _ in range(RACES):
            reply = yield request
            ((begun, is_ours, occupied, exists),) = reply[0]
            if begun or is_ours:
                return Copied()
            if occupied or not exists:
                return Occupied() if occupied else Copied() if upto is None else BaseGone()
        raise StoreBusy(f"thread {target!r}: this copy lost {RACES} times in a row against writes")

    def list_writes(
        self, thread_id: str, after: Writes | None, limit: int
    ) -> StorePlan[Request, Reply, Sequence[Writes]]:
        # For a long id without a checkpoint in the thread, this returns the key.
        parameters = {"thread": key(thread_id), "limit": limit, "ns": "", "id": "", "n": -1, "token": 0}
        if after is not None:
            n, token = _numbers(after)
            parameters |= {**place_of(after.address), "n": n, "token": token}
        found, stored = yield self._request(parameters, sql.LIST_WRITES, sql.NAMES_IN)
        names = names_by_key(name for (name,) in stored)
        return [
            Writes(
                f"{n}.{token}",
                Address(thread_id, name_of(ns, names), name_of(checkpoint_id, names)),
                Batch(unescape(task), unescape(path), restore_frame(body)),
            )
            for ns, checkpoint_id, n, token, task, path, body in found
        ]

    def list_kinds(self, thread_id: str | None) -> StorePlan[Request, Reply, Sequence[str]]:
        # Reads an index of the cells of the thread.
        reply = yield self._request({"thread": "" if thread_id is None else key(thread_id)}, KINDS)
        return [kind for (kind,) in reply[0]]

    def replace_plain(self, thread_id: str, new: Replacement) -> StorePlan[Request, Reply, None]:
        marks = [mark_of(stamp) for stamp in new.headers]
        rows = [(*place, row) for place, rows in new.rows.items() for row in rows]
        places, numbers = [place_of(each.address) for each in new.writes], [_numbers(each) for each in new.writes]
        parameters = {
            "thread": key(thread_id),
            "epoch": new.epoch or 0,
            "sealed": SEALED,
            "seqs": number_array(mark.seq for mark in marks),
            "tokens": number_array(mark.token for mark in marks),
            "headers": bytes_array(new.headers.values()),
            "row_nss": text_array(key(ns) for ns, _, _ in rows),
            "row_channels": text_array(key(channel) for _, channel, _ in rows),
            "row_los": number_array(row.lo for _, _, row in rows),
            "row_counts": number_array(row.count for _, _, row in rows),
            "row_bodies": bytes_array(row.body for _, _, row in rows),
            "nss": text_array(place["ns"] for place in places),
            "ids": text_array(place["id"] for place in places),
            "ns_of": number_array(n for n, _ in numbers),
            "batch_tokens": number_array(token for _, token in numbers),
            "bodies": bytes_array(each.batch.body for each in new.writes),
        }
        texts = (sql.FORGET_MARKS, sql.SEAL_ENTRIES, sql.SEAL_ROWS, sql.SEAL_WRITES)
        yield self._request(parameters, *texts, writes=True)

    def find_runs(self, run_ids: Collection[str]) -> StorePlan[Request, Reply, Sequence[str]]:
        parameters = {"runs": [key(run_id) for run_id in run_ids], **self._bounds}
        reply = yield self._request(parameters, self._of_tenant(sql.FIND_RUNS, "e.thread_id"))
        return [unescape(name or thread) for thread, name in reply[0]]

    def read_threads(self, page: Page) -> StorePlan[Request, Reply, Sequence[Listed]]:
        # Reads the short row of every thread. PostgreSQL guarantees that text is valid.
        parameters = {"limit": page.limit, "terms": [f"%{term}%" for term in page.terms], **self._bounds}
        way, past = sql.WAYS[page.oldest_first]
        text = self._of_tenant(sql.THREADS, "t.thread_id").replace("{way}", way)
        found_by = sql.FOUND_BY if page.terms else ""
        listed: list[Listed] = []
        place, found = page.after and (escape(page.after[0]), key(page.after[1])), page.limit
        while found == page.limit and len(listed) < page.limit:
            later = ""
            if place:
                later = sql.AFTER.replace("{past}", past)
                parameters |= {"put_at": place[0], "after": place[1]}
            (lines,) = yield self._request(parameters, text.replace("{only}", later + found_by))
            found, place = len(lines), (lines[-1][2], lines[-1][0]) if lines else None
            listed += [_info(*line) for line in lines if line[3]]
        return listed[: page.limit]

    def swap_cell(
        self, shelf: Shelf, key: str, expected: str | None, new: Cell | None
    ) -> StorePlan[Request, Reply, Swapped]:
        (swapped,) = yield from self.swap_cells(shelf, [(key, expected, new)])
        return swapped

    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> StorePlan[Request, Reply, Sequence[Swapped]]:
        # One statement each, in one transaction, sent again for each concurrent change. In the order of the keys: two
        # such transactions in different orders would deadlock.
        left, replies = {swap[0]: swap for swap in sorted(swaps, key=lambda swap: swap[0])}, dict[str, Swapped]()
        for _ in range(RACES):
            statements = [self._swap_request(shelf, *swap).statements[0] for swap in left.values()]
            reply = yield Request(tuple(statements), writes=True)
            for (name, expected, new), ((done, token, *columns),) in zip([*left.values()], reply, strict=True):
                current = None if token is None else cell_of(token, *columns)
                decision = ruling(current, expected, new)
                if done or decision != "write":
                    del left[name]
                    replies[name] = Swapped(True) if done or decision == "again" else Swapped(False, current)
            if not left:
                return [replies[name] for name, _, _ in swaps]
        raise StoreBusy(f"cell {next(iter(left))!r}: this swap lost {RACES} times in a row against other changes")

    def _swap_request(self, shelf: Shelf, name: str, expected: str | None, new: Cell | None) -> Request:
        parameters = {**shelf_parameters(shelf), "key": name, "expected": expected}
        parameters |= cell_parameters(new) if new else {}
        return self._request(parameters, SWAPS[expected is not None, new is not None], writes=True)

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Request, Reply, Mapping[str, Cell]]:
        reply = yield self._request({**shelf_parameters(shelf), "keys": list(keys)}, READ)
        return cells_of(reply[0])

    def list_cells(
        self, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> StorePlan[Request, Reply, Sequence[tuple[str, Cell]]]:
        after = after or ("" if prefix[:1] == MARK else PAST)  # the shared cells of tenants sort first
        parameters = {**shelf_parameters(shelf), "prefix": prefix, "after": after, "limit": limit}
        reply = yield self._request(parameters, LIST)
        return list(cells_of(reply[0]).items())

    def find_cells(self, shelf: Shelf, search: Search) -> StorePlan[Request, Reply, Sequence[tuple[str, Cell]]]:
        reply = yield self.find_request(shelf, search)
        return list(cells_of(reply[0]).items())

    def find_request(self, shelf: Shelf, search: Search) -> Request:
        """Return the request of a search."""
        prefix, after, head = search.prefix, search.after, head_blocks(search.prefix)
        parameters = {**shelf_parameters(shelf), "prefix": prefix, "head": head, "limit": search.limit}
        parameters["past"] = "" if prefix[:1] == MARK else PAST  # the shared cells of tenants sort first
        if search.is_grouped:
            text = GROUPS
            if after:
                parameters["past"] = after[1][:-BLOCK] + "~"
        else:
            where, last = (BY_KEY, "c.key") if head is None else (BY_RANK, f"right(c.key, {2 * BLOCK})")
            text = FIND.replace("{where}", where).replace("{key}", last)
            wheres = [f" AND position(%(mark{n})s in c.marks) > 0" for n, _ in enumerate(search.marks)]
            parameters |= {f"mark{n}": mark for n, mark in enumerate(search.marks)}
            if after:
                wheres.append(AFTER)
                parameters |= {"rank": after[0], "after": after[1]}
            text = text.replace(" ORDER BY", "".join(wheres) + " ORDER BY")
        return self._request(parameters, text.replace("{columns}", BARE if search.is_bare else HEAD))

    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> StorePlan[Request, Reply, int]:
        parameters = {**shelf_parameters(shelf), "keys": list(tokens), "tokens": list(tokens.values())}
        reply = yield self._request(parameters, REMOVE, writes=True)
        return int(reply[0][0][0])

    def list_strays(self, after: str | None, limit: int) -> StorePlan[Request, Reply, Sequence[str]]:
        # Reads an index of each table. For a long name that only cells have, this returns the key.
        parameters = {"after": key(after) if after else "", "limit": limit, **self._bounds}
        reply = yield self._request(parameters, self._of_tenant(STRAYS, "s.thread_id"))
        return [unescape(name) if name else name_of(thread, {}) for thread, name in reply[0]]


def _numbers(writes: Writes) -> tuple[int, int]:
    """Return the number and token of writes."""
    n, token = str(writes.stamp).split(".")
    return int(n), int(token)


def _info(thread: str, name: str | None, put_at: str, count: int, *columns: Any) -> Listed:
    line = Line(*columns)
    latest = None if line.thread_id is None else name_of(line.id, names_by_key(line.names))
    head = None
    if latest:
        try:
            head = entry_of(line)
        except CorruptStore as error:  # only a read of the thread itself raises
            _log.warning("a thread is listed without its latest checkpoint: %s", error)
    return ThreadInfo(unescape(name or thread), count, unescape(put_at), latest, None), head


def _scan_query(query: Query) -> tuple[str, dict[str, Any]]:
    """Return the statement and parameters of a scan."""
    conditions: list[str] = []
    parameters: dict[str, Any] = {"limit": query.limit}
    named = {"thread_id": query.thread_id, "ns": query.checkpoint_ns, "id": query.checkpoint_id}
    for column, value in named.items():
        if value is not None:
            conditions.append(f" AND e.{column} = %({column})s")
            parameters[column] = key(value)
    is_one_log = query.thread_id is not None and query.checkpoint_ns is not None
    if query.before is not None:
        thread, ns = ("%(thread_id)s", "%(ns)s") if is_one_log else ("e.thread_id", "e.ns")
        conditions.append(sql.PRECEDES.replace("{thread}", thread).replace("{ns}", ns))
        parameters["before"] = key(query.before)
    if query.thread_id is not None and query.checkpoint_id is None:
        conditions.append(" AND e.kinds >= ''" if is_one_log else " AND e.put_at >= ''")
    if query.after is not None:
        conditions.append(sql.FROM_ID if query.thread_id is None else sql.FROM_SEQ)
        mark = mark_of(query.after.stamp)
        last = {**place_of(query.after.address), "epoch": mark.epoch, "seq": mark.seq}
        parameters |= {f"last_{name}": value for name, value in last.items()}
    text = sql.SCAN_ALL if query.thread_id is None else sql.SCAN_THREAD
    return text.replace("{conditions}", "".join(conditions)), parameters
