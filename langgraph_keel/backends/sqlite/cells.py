"""The verbs of cells, each inside one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langgraph_keel.backends.sqlite.rows import LAST, Execute
from langgraph_keel.engine.cells import Cell, Shelf, Swapped, ruling

# In the order of the attributes of `Cell`.
COLUMNS = "c.token, c.header, c.body, coalesce(c.origin, ''), c.expires_at"
COLUMNS_WITHOUT_BODY = COLUMNS.replace("c.body", "x''")
ON_SHELF = "shelves s CROSS JOIN cells c ON c.shelf = s.id WHERE s.thread = ? AND s.kind = ?"
EVERYBODY = ""
"""The thread of what all threads share: no thread has this name."""
PAST_KEYS = "\x7f"
"""Sorts after every character that a key may hold."""


def reply_if_settled(
    shelf: Shelf, key: str, expected: str | None, new: Cell | None, execute: Execute
) -> Swapped | None:
    """Return the reply to a swap that changes nothing; `None` for one that has to write."""
    current = read_cells(shelf, [key], execute).get(key)
    decision = ruling(current, expected, new)
    if decision == "write":
        return None
    return Swapped(True) if decision == "again" else Swapped(False, current)


def swap_cell(shelf: Shelf, key: str, expected: str | None, new: Cell | None, execute: Execute) -> Swapped:
    """See `Store.swap_cell`."""
    reply = reply_if_settled(shelf, key, expected, new, execute)
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


def read_cells(shelf: Shelf, keys: Collection[str], execute: Execute) -> dict[str, Cell]:
    """See `Store.read_cells`."""
    names = _names(shelf)
    rows = ((key, execute(f"SELECT {COLUMNS} FROM {ON_SHELF} AND c.key = ?", (*names, key)).fetchone()) for key in keys)
    return {key: Cell(*row) for key, row in rows if row}


def list_cells(shelf: Shelf, prefix: str, after: str | None, limit: int, execute: Execute) -> list[tuple[str, Cell]]:
    """See `Store.list_cells`."""
    rows: list[Any] = execute(
        f"SELECT c.key, {COLUMNS_WITHOUT_BODY} FROM {ON_SHELF} AND c.key >= ? AND c.key < ? AND c.key IS NOT ? "
        "ORDER BY c.key LIMIT ?",
        (*_names(shelf), max(prefix, after or ""), prefix + PAST_KEYS, after, limit),
    ).fetchall()
    return [(key, Cell(*row)) for key, *row in rows]


def remove_cells(shelf: Shelf, tokens: Mapping[str, str], execute: Execute) -> int:
    """See `Store.remove_cells`."""
    number = _find_shelf(execute, shelf)
    sql = "DELETE FROM cells WHERE shelf = ? AND key = ? AND token = ? RETURNING 1"
    return sum(len(execute(sql, (number, key, token)).fetchall()) for key, token in tokens.items())


NAMES = (
    "SELECT name FROM threads UNION SELECT thread FROM shelves WHERE thread <> ? "
    "UNION SELECT origin FROM cells WHERE origin IS NOT NULL "
    "AND shelf IN (SELECT id FROM shelves WHERE thread = ?)"
)
SHOWN_ENTRIES = (
    f"threads t CROSS JOIN entries e ON e.key BETWEEN t.id << 32 AND (t.id << 32 | {LAST}) AND e.state < 2 "
    "WHERE t.name = n.name"
)


def list_strays(after: str | None, limit: int, execute: Execute) -> list[str]:
    """See `Store.list_strays`."""
    rows: list[Any] = execute(
        f"SELECT n.name FROM ({NAMES}) n WHERE n.name > ? AND NOT EXISTS (SELECT 1 FROM {SHOWN_ENTRIES}) "
        "ORDER BY n.name LIMIT ?",
        (EVERYBODY, EVERYBODY, after or "", limit),
    ).fetchall()
    return [name for (name,) in rows]


def delete_cells(thread_id: str, execute: Execute) -> None:
    """Delete the cells of a thread, and of the shared ones those that it wrote."""
    on_shelves = "shelf IN (SELECT id FROM shelves WHERE thread = ?)"
    execute(f"DELETE FROM cells WHERE {on_shelves}", (thread_id,))
    execute(f"DELETE FROM cells WHERE origin = ? AND {on_shelves}", (thread_id, EVERYBODY))
    execute("DELETE FROM shelves WHERE thread = ?", (thread_id,))
