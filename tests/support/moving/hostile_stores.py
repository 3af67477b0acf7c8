"""Stores edited by hand with SQL, with some threads that must not be harmed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import ormsgpack
from langgraph.types import Interrupt

from langgraph_keel import KeelSaver, SqliteSaver
from langgraph_keel.engine.encoding.bodies import frame, raw_frame
from langgraph_keel.testing.rig import at, checkpoint_of

GOOD = ("aaa", "zzz")
EVIL = "evil"

_THREAD = f"(SELECT id FROM threads WHERE name = '{EVIL}')"
_ENTRIES = f"WHERE key >> 32 = {_THREAD}"
_SPACES = f"(SELECT id FROM namespaces WHERE thread = {_THREAD})"
_ITEMS = f"WHERE key >> 32 IN (SELECT id FROM channels WHERE namespace IN {_SPACES})"
_BATCHES = f"WHERE namespace IN {_SPACES}"
_CELLS = f"WHERE shelf IN (SELECT id FROM shelves WHERE thread = '{EVIL}')"
_REQUESTS = f"WHERE origin = '{EVIL}'"

Edit = str | tuple[str, Callable[[], bytes]]


def _refs(*parts: Any) -> bytes:
    return frame(ormsgpack.packb([list(part) for part in parts]))


def _rename(name: str) -> str:
    return "; ".join(f"UPDATE {table} SET name = {name} WHERE name = '{EVIL}'" for table in ("threads", "thread_index"))


COSTS_THE_THREAD: Mapping[str, Edit] = {
    "an id that is bytes": f"UPDATE entries SET id = x'ff00' {_ENTRIES}",
    "an id that is no UTF-8": f"UPDATE entries SET id = CAST(x'6dff' AS TEXT) {_ENTRIES}",
    "an empty id": f"UPDATE entries SET id = '' {_ENTRIES}",
    "a parent that is bytes": f"UPDATE entries SET parent = x'ff' {_ENTRIES}",
    "a run that is bytes": f"UPDATE entries SET run = x'ff' {_ENTRIES}",
    "refs that are text": f"UPDATE entries SET refs = 'x' {_ENTRIES}",
    "refs of 20 million runs": (
        f"UPDATE entries SET refs = ? {_ENTRIES}",
        lambda: frame(b"\x91\xdd" + (40_000_002).to_bytes(4, "big") + b"\x01\x02" + b"\x00\x01" * 20_000_000),
    ),
    "a run that ends before it begins": (f"UPDATE entries SET refs = ? {_ENTRIES}", lambda: _refs([1, 2, 5, 3])),
    "a run of 2**62 items": (f"UPDATE entries SET refs = ? {_ENTRIES}", lambda: _refs([1, 2, 0, 2**62])),
    "a header that is text": f"UPDATE entries SET header = 'x' {_ENTRIES}",
    "a header of 900 MB": (f"UPDATE entries SET header = ? {_ENTRIES}", lambda: frame(bytes(900 << 20))),
    "rows of 4 GB that take 300 KB": (
        f"UPDATE items SET count = 1, body = ? {_ITEMS}",
        lambda: frame(b"\x91\xc6" + (400 << 20).to_bytes(4, "big") + bytes(400 << 20)),
    ),
    "writes of 1.2 GB that take 80 KB": (f"UPDATE batches SET body = ? {_BATCHES}", lambda: frame(bytes(600 << 20))),
    "a row of 2**63 - 1 items": f"UPDATE items SET count = {2**63 - 1} {_ITEMS}",
    "a row that claims 2**32 - 1 items": (
        f"UPDATE items SET count = {2**32 - 1}, body = ? {_ITEMS}",
        lambda: raw_frame(b"\xdd\xff\xff\xff\xff\x01"),
    ),
    "a row that is a number": f"UPDATE items SET body = 5 {_ITEMS}",
    "rows that are gone": f"DELETE FROM items {_ITEMS}",
    "a task that is bytes": f"UPDATE batches SET task = x'ff' {_BATCHES}",
    "writes that are text": f"UPDATE batches SET body = 'x' {_BATCHES}",
    "a cell whose key is a path": f"UPDATE cells SET key = '../../X' {_CELLS}",
    "a cell whose token is bytes": f"UPDATE cells SET token = x'ff' {_CELLS}",
    "a cell whose body is text": f"UPDATE cells SET body = 'x' {_CELLS}",
    "a cell that expires never": f"UPDATE cells SET expires_at = 'x' {_CELLS}",
    "a request for approval of another thread": (
        f"UPDATE cells SET header = ? {_REQUESTS}",
        lambda: raw_frame(ormsgpack.packb([{"id": "0" * 24, "thread_id": "zzz", "checkpoint_id": "2", "kind": "x"}])),
    ),
    "a request that is no record": (f"UPDATE cells SET header = ? {_REQUESTS}", lambda: raw_frame(b"\x91\x05")),
    "a request whose body is text": f"UPDATE cells SET body = 'x' {_REQUESTS}",
    "a request whose body is zero": f"UPDATE cells SET body = 0 {_REQUESTS}",
    "a request whose body is damaged": f"UPDATE cells SET body = x'000000000090' {_REQUESTS}",
    "a request under another key": f"UPDATE cells SET key = 'zz' || key {_REQUESTS}",
    "a namespace that is bytes": f"UPDATE namespaces SET name = x'ff' WHERE thread = {_THREAD}",
    "a channel that is none": f"UPDATE channels SET slot = slot + 5 WHERE namespace IN {_SPACES}",
    "an empty name": _rename("''"),
    "a name that is bytes": _rename("x'ff'"),
    "a name that is no UTF-8": _rename("CAST(x'6dff' AS TEXT)"),
}
"""Edits that make the edited thread unreadable, and no other, by name."""

IN_A_TENANT = _rename("char(31) || 'acme' || char(31) || 'ada'")
COMPUTED: Mapping[str, str] = {
    "rows without end": "ALTER TABLE items RENAME TO kept; CREATE VIEW items AS WITH RECURSIVE x(key, count, body) AS "
    "(SELECT 1, 1, x'00' UNION ALL SELECT key + 1, 1, x'00' FROM x) SELECT * FROM x",
    "threads without end": "ALTER TABLE thread_index RENAME TO kept; CREATE VIEW thread_index AS WITH RECURSIVE "
    "x(thread, name, put_at, marks, late_of, late) AS (SELECT 1, 'a', '2026', NULL, NULL, NULL UNION ALL "
    "SELECT thread + 1, 'a' || thread, '2026', NULL, NULL, NULL FROM x) SELECT * FROM x",
    "a column of 900 MB": "ALTER TABLE items RENAME TO kept; CREATE TABLE items (key INTEGER PRIMARY KEY, "
    "count INTEGER, body AS (zeroblob(900000000))); INSERT INTO items (key, count) SELECT key, count FROM kept",
}
"""Tables that are computed when they are read: such a file is not a store."""


def fill(saver: KeelSaver) -> None:
    """Store two good threads, and a third one for the edit."""
    for thread_id in (GOOD[0], EVIL, GOOD[1]):
        config: Any = at(thread_id)
        for n in range(3):
            values = {"list": [f"item {k}" for k in range(4 + n)], "n": n}
            versions: Any = dict.fromkeys(values, n + 1)
            new: Any = checkpoint_of(str(n), values, channel_versions=versions)
            config = saver.put(config, new, {"step": n}, versions)
        saver.put_writes(config, [("n", 9)], "task")
        saver.put_writes(config, [("__interrupt__", [Interrupt("Sure?", id="1" * 32)])], "asking")
        saver.labels.set(config, "here")


def write_hostile(path: Path, edit: Edit | None = None) -> None:
    """Create a store with two good threads and a third one, and edit the third."""
    with SqliteSaver(path) as saver:
        fill(saver)
    if edit is not None:
        with closing(sqlite3.connect(path)) as database:
            if isinstance(edit, str):
                database.executescript(edit)
            else:
                database.execute(edit[0], (edit[1](),))
            database.commit()
