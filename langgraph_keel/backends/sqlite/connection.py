"""Open, check and set up a database."""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pkgutil import get_data
from typing import Any, TypeAlias, cast
from urllib.parse import quote

from langgraph_keel.backends.migrations import Migration, find_due, newest, refuse_older
from langgraph_keel.backends.paths import SQLITE_ID
from langgraph_keel.backends.sqlite.entries import FILL_INDEX, Execute
from langgraph_keel.errors import CorruptStore, NotAKeelStore, NotFound, NotSetUp, StoreError

Migrations: TypeAlias = Mapping[int, Migration[str | Callable[[Execute], None]]]
MIGRATIONS: Migrations = {}
"""SQL (which can be printed and run by hand), or a function of `execute`."""
# A write changes the last pages of a few trees: a chat turn wrote 20 KB with this, 27 with 1024, 45 with 2048.
PAGE_SIZE = 512
"""Page size of new databases, in bytes."""
OLDEST_SQLITE = (3, 35, 0)
"""The first version with RETURNING."""

_TABLES = "('threads', 'namespaces', 'channels', 'entries', 'items', 'batches', 'shelves', 'cells', 'thread_index')"
_COMPUTED = (
    f"SELECT name FROM sqlite_master WHERE type = 'view' AND name COLLATE NOCASE IN {_TABLES} "
    "UNION ALL SELECT m.name FROM sqlite_master m JOIN pragma_table_xinfo(m.name) c "
    f"WHERE m.type = 'table' AND c.hidden AND m.name COLLATE NOCASE IN {_TABLES}"
)

_MADE_AGAIN = {"thread_index", "cells_by_rank"}
"""A table and an index that are created if missing.

`check` advises to drop a damaged `thread_index`; stores older than ranked cells lack the index and its columns.
"""
_RANKED = {"rank": "INTEGER", "marks": "TEXT"}

# Read on import: an event loop must not wait for a disk.
_FORMAT_1 = f"""{cast(bytes, get_data(__package__, "schema.sql")).decode()}
PRAGMA application_id = {SQLITE_ID};
PRAGMA user_version = 1;
"""


def connect(path: str, timeout: float) -> sqlite3.Connection:
    """Open a database for reading and writing; create the file if it is missing."""
    connection = sqlite3.connect(
        path, timeout=timeout, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL loses acknowledged commits when the power fails
    # On by default in Debian's builds only. Where it is off, deleted content stays in the file.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def may_only_be_read(path: str) -> bool:
    """Return whether a file exists and this process may not write it."""
    effective = os.access in os.supports_effective_ids
    return os.path.exists(path) and not os.access(path, os.W_OK, effective_ids=effective)


def refuse_to_make(path: str) -> NotSetUp:
    """Return the error for a store that does not exist and may not be created."""
    return NotSetUp(f"{path}: there is no Keel store, and auto_setup is off: call saver.setup() once")


def connect_read_only(path: str, migrations: Migrations) -> sqlite3.Connection:
    """Open an existing database for reading."""
    try:
        return _connect_and_check(path, "mode=ro", migrations)
    except sqlite3.OperationalError as error:
        # On a read-only medium, a WAL database can only be opened as an immutable file.
        kinds = sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR
        if error.sqlite_errorcode & 0xFF not in kinds:
            raise
        wal = f"{path}-wal"
        if os.path.exists(wal) and os.path.getsize(wal):
            message = f"{path}: {wal} contains commits that cannot be read here: copy both to a writable directory"
            raise StoreError(message) from error
        return _connect_and_check(path, "immutable=1", migrations)


def _open_existing(path: str, mode: str) -> sqlite3.Connection:
    if not os.path.exists(path):
        raise NotFound(f"{path}: there is no Keel store")
    uri = f"file:{quote(os.path.abspath(path))}?{mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _connect_and_check(path: str, mode: str, migrations: Migrations) -> sqlite3.Connection:
    connection = _open_existing(path, mode)
    try:
        found = _check_format(connection, path)
        if find_due(migrations, found, path):
            raise refuse_older(path, found, newest(migrations), "it may only be read here")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'cells_by_rank'").fetchone():
            raise NotSetUp(f"{path} was created by an earlier Keel and is read-only here: open it for writing once")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_format(connection: sqlite3.Connection, path: str) -> int:
    tables, found = _look(connection, path)
    if not tables:
        raise NotAKeelStore(f"{path} is an empty database, not a Keel store")
    return found


def list_due(path: str, migrations: Migrations) -> Sequence[tuple[int, Migration[Any]]]:
    """Return the migrations that a database needs, with their numbers."""
    with closing(_open_existing(path, "mode=ro")) as connection:
        return find_due(migrations, _check_format(connection, path), path)


def _look(connection: sqlite3.Connection, path: str) -> tuple[set[str], int]:
    """Return the tables (and `cells_by_rank`) and the format of a Keel database."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' OR name = 'cells_by_rank'")
    tables = {name for (name,) in names}
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application == SQLITE_ID:
        # Views are refused: a view can compute endless rows, but a table has only those in the file.
        if computed := connection.execute(_COMPUTED).fetchone():
            problem = f"{computed[0]} is a view or has computed columns, which Keel never creates"
            raise CorruptStore(f"{path}: {problem}")
        return tables, read_format(connection.execute)
    if not tables and application == 0:
        return set(), 1
    if {"checkpoints", "writes"} <= tables:
        raise NotAKeelStore(
            f"{path} is a database of LangGraph's SqliteSaver, not of Keel: choose another path, and copy the threads "
            f"with `keel import {shlex.quote(path)} --url sqlite:///NEW.db`, or SqliteSaver('NEW.db', moving_from="
            f"{path!r})"
        )
    raise NotAKeelStore(f"{path} is a database of another program, not of Keel: choose another path")


def read_format(execute: Execute) -> int:
    """Return the format of a database."""
    ((found,),) = execute("PRAGMA user_version").fetchall()
    return int(found)


def is_prepared(connection: sqlite3.Connection, path: str, migrations: Migrations) -> bool:
    """Return whether a Keel database is complete, without creating other files."""
    with suppress(sqlite3.OperationalError):  # locked: `prepare` waits for the lock and checks again
        tables, found = _look(connection, path)
        is_whole = tables >= _MADE_AGAIN and not find_due(migrations, found, path)
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        return is_whole and mode == "wal" and sqlite3.sqlite_version_info >= OLDEST_SQLITE
    return False


def prepare(connection: sqlite3.Connection, path: str, create: bool, migrations: Migrations) -> None:
    """Create, migrate or check a database. The caller holds the lock file."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: Keel needs 3.35 or newer")
    tables, found = _look(connection, path)
    due = find_due(migrations, found, path)
    if not tables:
        if not create:
            raise refuse_to_make(path)
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    # A backup (`VACUUM INTO`, `.backup`) leaves a database without a write-ahead log. With a rollback journal, a power
    # cut can roll back an acknowledged write: its commit is the removal of the journal, and SQLite makes that durable
    # only with `synchronous=EXTRA`.
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode not in ("wal", "memory"):
        raise StoreError(f"{path}: SQLite could not switch to a write-ahead log and stays in mode {mode!r}")
    missing = sorted(_MADE_AGAIN - tables, reverse=True)
    if missing and not create:
        raise NotSetUp(f"{path} has no {missing[0]}, and auto_setup is off: call saver.setup() once")
    if missing:
        columns = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('cells')")}
        lacking = {name: kind for name, kind in _RANKED.items() if columns and name not in columns}
        added = "".join(f"ALTER TABLE cells ADD COLUMN {name} {kind};" for name, kind in lacking.items())
        connection.executescript(f"BEGIN IMMEDIATE; {added} {_FORMAT_1} {FILL_INDEX}; COMMIT;")
    while due:
        if not create:
            raise refuse_older(path, found, newest(migrations), "auto_setup is off")
        _migrate(connection, *due[0])
        due = find_due(migrations, read_format(connection.execute), path)


def _migrate(connection: sqlite3.Connection, number: int, migration: Migration[Any]) -> None:
    try:
        if isinstance(migration.work, str):
            connection.executescript(script_of(number, migration))
        else:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_guard(number)).fetchall()
            migration.work(connection.execute)
            connection.executescript(_mark(number))
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        # The guard also fails if an operator ran the migration by hand at the same time.
        if not isinstance(error, sqlite3.OperationalError) or read_format(connection.execute) < number:
            raise


def script_of(number: int, migration: Migration[Any]) -> str:
    """Return a migration as an SQL script, or as a comment if it is a function."""
    if not isinstance(migration.work, str):
        return f"-- Format {number}: {migration.what}. It cannot be done in SQL: run `keel schema --upgrade`."
    return (
        f"-- Format {number}: {migration.what}. Run it with sqlite3 -bail.\nBEGIN IMMEDIATE;\n"
        f"{_guard(number)} -- fails if the format has changed since\n{migration.work.strip()}\n{_mark(number)}"
    )


def _guard(number: int) -> str:
    return f"SELECT abs(-9223372036854775807 - 1) FROM pragma_user_version WHERE user_version <> {number - 1};"


def _mark(number: int) -> str:
    return f"PRAGMA user_version = {number};\nCOMMIT;"


def schema(migrations: Migrations) -> str:
    """Return the statements that create a store in an empty database."""
    return "\n".join([_FORMAT_1, *(script_of(number, migrations[number]) for number in sorted(migrations))])
