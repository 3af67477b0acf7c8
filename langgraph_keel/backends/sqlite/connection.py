"""How a database is opened: what is checked, and how SQLite is set up. Errors of SQLite are named by the driver."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from langgraph_keel.backends.paths import SQLITE_ID
from langgraph_keel.backends.sqlite.entries import FILL_INDEX
from langgraph_keel.errors import (
    NewerFormat,
    NotAKeelStore,
    NotFound,
    NotSetUp,
    StoreError,
)

APPLICATION_ID = SQLITE_ID
"""`Keel` in ASCII, in the file's header."""
FORMAT = 1
PAGE_SIZE = 512
"""A put changes the last pages of a few trees: a turn of a chat wrote 20 KB with this, 27 with 1024, 45 with 2048."""
OLDEST_SQLITE = (3, 35, 0)
"""The first with RETURNING."""


def connect(path: str, timeout: float) -> sqlite3.Connection:
    """Open a database for reading and writing; create the file if it is missing."""
    connection = sqlite3.connect(
        path, timeout=timeout, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA synchronous = FULL")
    # On by default in Debian's builds only. Where it is off, deleted content stays in the file.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def may_only_be_read(path: str) -> bool:
    """Return whether a file is there that this process may not write."""
    effective = os.access in os.supports_effective_ids
    return os.path.exists(path) and not os.access(path, os.W_OK, effective_ids=effective)


def create_private(path: str) -> None:
    """Make the file of a database that is not there, readable for its owner only; SQLite gives its logs the same mode.

    Where that fails, SQLite will say why.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def connect_read_only(path: str) -> sqlite3.Connection:
    """Open a database that must exist, for reading.

    Raises:
        NotFound: There is no such file.
        NotAKeelStore: It is something else.
        NewerFormat: A newer Keel wrote it.
    """
    if not Path(path).exists():
        raise NotFound(f"there is no store at {path}")
    try:
        return _connect_and_check(path, "mode=ro")
    except sqlite3.OperationalError as error:
        # A WAL database on a medium that cannot be written at all can only be read as an unchanging file.
        kinds = sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR
        if error.sqlite_errorcode & 0xFF not in kinds:
            raise
        _refuse_hidden_commits(path)
        return _connect_and_check(path, "immutable=1")


def _refuse_hidden_commits(path: str) -> None:
    wal = f"{path}-wal"
    if os.path.exists(wal) and os.path.getsize(wal):
        raise StoreError(f"{path}: {wal} holds commits that cannot be read here: copy both to a writable directory")


def _connect_and_check(path: str, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?{mode}", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        if not _tables_of(connection, path):
            raise NotAKeelStore(f"{path} is an empty database, not a store of Keel")
    except BaseException:
        connection.close()
        raise
    return connection


def _tables_of(connection: sqlite3.Connection, path: str) -> set[str]:
    """Return the tables of a database of Keel's; none if it is empty.

    Raises:
        NotAKeelStore: It holds something else.
        NewerFormat: A newer Keel wrote it.
    """
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    tables = {name for (name,) in names}
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (format,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION_ID:
        if format > FORMAT:
            raise NewerFormat(f"{path} has format {format}; this Keel knows {FORMAT}: upgrade langgraph-keel")
        return tables
    if not tables and application == 0:
        return set()
    whose = "LangGraph's SqliteSaver" if {"checkpoints", "writes"} <= tables else "another program"
    raise NotAKeelStore(f"{path} is a database of {whose}, not of Keel: choose another path")


def is_prepared(connection: sqlite3.Connection, path: str) -> bool:
    """Return whether a database is Keel's and has all that it should, before anything is made beside it.

    Raises:
        NotAKeelStore: It holds something else.
        NewerFormat: A newer Keel wrote it.
    """
    with suppress(sqlite3.OperationalError):  # it is locked: `prepare` waits for its turn, and looks again
        tables = _tables_of(connection, path)
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        return tables >= _LATER and mode == "wal" and sqlite3.sqlite_version_info >= OLDEST_SQLITE
    return False


_LATER = {"cells", "thread_index"}
"""Tables that the first Keels did not make."""


def prepare(connection: sqlite3.Connection, path: str, create: bool) -> None:
    """Check that a database is Keel's, or make it so if it is empty. The caller holds the lock file.

    Raises:
        NotAKeelStore: It holds something else, or it is empty and `create` is false.
        NotSetUp: A table is missing, as an earlier Keel did not make it, and `create` is false.
        NewerFormat: A newer Keel wrote it.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: Keel needs 3.35 or newer")
    tables = _tables_of(connection, path)
    if not tables:
        if not create:
            raise NotAKeelStore(f"{path} is empty and auto_setup is off: call saver.setup() once")
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    _write_ahead(connection, path)
    missing = _LATER - tables
    if not missing:
        return
    if not create:
        raise NotSetUp(
            f"{path} has no table {min(missing)}, which is new, and auto_setup is off: call saver.setup() once"
        )
    connection.executescript(f"BEGIN IMMEDIATE; {schema()} {FILL_INDEX}; COMMIT;")


def _write_ahead(connection: sqlite3.Connection, path: str) -> None:
    """Switch to a write-ahead log, also a database that a backup has left without one (`VACUUM INTO`, `.backup`).

    With a rollback journal, an acknowledged put can be rolled back after a power cut: its commit is the removal of the
    journal, which SQLite makes durable with `synchronous=EXTRA` only.
    """
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode not in ("wal", "memory"):
        raise StoreError(f"{path}: SQLite could not switch to a write-ahead log, and stays in mode {mode!r}")


def schema() -> str:
    """Return the statements that make an empty database a store."""
    tables = (files(__package__) / "schema.sql").read_text()
    return f"{tables}\nPRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {FORMAT};\n"
