"""Cells in PostgreSQL: the statements, their parameters, and cells out of rows.

A swap is one statement, of one of four kinds, that changes the row of the cell if the token in it is the one expected,
and else says what it saw. A refused swap finds that out by reading: it takes no lock, waits for nobody and writes
nothing, so a commit has nothing to bring to disk. What it saw may be out of date, where somebody else has committed
since the statement began: if that would have let it write, and it wrote nothing, it is sent again. So it is right at
every isolation level (above READ COMMITTED the server itself asks for that, by 40001).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph_keel.core.bodies import restored, shrunk
from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.frames import RAW
from langgraph_keel.postgres.keys import escape, is_hashed, key, unescape

SHELF = "c.thread_id = %(thread)s AND c.kind = %(kind)s"
HERE = f"{SHELF} AND c.key = %(key)s"
HEAD = "c.token, c.origin, c.name, c.expires_at, c.header"

# DO NOTHING: an upsert would lock the row that it leaves as it is.
FILL = f"""
    INSERT INTO {{cells}} (thread_id, kind, key, token, origin, name, expires_at, header, body)
    SELECT %(thread)s, %(kind)s, %(key)s, %(token)s, %(origin)s::text, %(name)s::text, %(expires_at)s::bigint,
        %(header)s::bytea, %(body)s::bytea
    WHERE NOT EXISTS (SELECT 1 FROM {{cells}} c WHERE {HERE})
    ON CONFLICT (thread_id, kind, key) DO NOTHING
    RETURNING 1
"""
REPLACE = f"""
    UPDATE {{cells}} c SET token = %(token)s, origin = %(origin)s, name = %(name)s, expires_at = %(expires_at)s,
        header = %(header)s, body = %(body)s
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
# By whether something is expected, and whether something new is brought.
SWAPS = {
    (False, True): SWAPPED.replace("{change}", FILL),
    (True, True): SWAPPED.replace("{change}", REPLACE),
    (True, False): SWAPPED.replace("{change}", EMPTY),
    (False, False): SWAPPED.replace("{change}", LEAVE),
}

READ = f"SELECT c.key, {HEAD}, c.body FROM {{cells}} c WHERE {SHELF} AND c.key = ANY (%(keys)s::text[])"
# Of the characters of a key, none comes after the tilde.
LIST = f"""
SELECT c.key, {HEAD} FROM {{cells}} c
WHERE {SHELF} AND c.key > %(after)s AND c.key >= %(prefix)s AND c.key < %(prefix)s || '~'
ORDER BY c.key LIMIT %(limit)s
"""
REMOVE = f"""
WITH gone AS (
    DELETE FROM {{cells}} c USING unnest(%(keys)s::text[], %(tokens)s::text[]) AS g(key, token)
    WHERE {SHELF} AND c.key = g.key AND c.token = g.token
    RETURNING 1
)
SELECT count(*) FROM gone
"""
# Part of the deletion of a thread: one look into each of two indexes, however much is shared. A cell knows no life of
# its thread, so all go that are there.
DELETE_OF_THREAD = """
DELETE FROM {cells} c WHERE c.thread_id = %(thread)s OR c.thread_id = '' AND c.origin = %(thread)s
"""
# The names of threads that have anything, without those that show a checkpoint.
STRAYS = """
SELECT s.thread_id, max(s.name) FROM (
    SELECT t.thread_id, t.name FROM {threads} t
    UNION ALL SELECT DISTINCT b.thread_id, NULL FROM {batches} b
    UNION ALL SELECT DISTINCT c.thread_id, NULL FROM {cells} c WHERE c.thread_id <> ''
    UNION ALL SELECT DISTINCT c.origin, c.name FROM {cells} c WHERE c.thread_id = '' AND c.origin IS NOT NULL
) AS s
WHERE s.thread_id > %(after)s AND NOT EXISTS (
    SELECT 1 FROM {entries} e JOIN {threads} t ON t.thread_id = e.thread_id
    WHERE e.thread_id = s.thread_id AND e.state < 2
)
GROUP BY s.thread_id ORDER BY s.thread_id LIMIT %(limit)s
"""


def shelf_parameters(shelf: Shelf) -> dict[str, Any]:
    """Return the parameters that name a shelf."""
    return {"thread": "" if shelf.thread_id is None else key(shelf.thread_id), "kind": shelf.kind}


def cell_parameters(cell: Cell) -> dict[str, Any]:
    """Return the parameters of what a cell is to hold."""
    origin = key(cell.origin)
    return {
        "token": cell.token,
        "origin": origin or None,
        "name": escape(cell.origin) if is_hashed(origin) else None,
        "expires_at": cell.expires_at,
        "header": _shrunk(cell.header),
        "body": _shrunk(cell.body),
    }


def _shrunk(frame: bytes) -> bytes:
    # Of another kind, it would not come back as the very bytes it was.
    return shrunk(frame) if frame[:1] == RAW else frame


def cell_of(
    token: str, origin: str | None, name: str | None, expires_at: int | None, header: bytes, body: bytes = b""
) -> Cell:
    """Return a cell from the columns of a row."""
    return Cell(token, restored(header), restored(body), unescape(name or origin or ""), expires_at)


def cells_of(reply: list[list[Any]]) -> Mapping[str, Cell]:
    """Return the cells of a reply by their keys, in its order."""
    return {name: cell_of(*columns) for name, *columns in reply}
