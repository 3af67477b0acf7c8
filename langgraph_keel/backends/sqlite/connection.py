"""How a database is opened: what is checked, how SQLite is set up, Keel's errors for its errors, and the lock file."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from langgraph_keel.errors import (
    CorruptStore,
    KeelError,
    NewerFormat,
    NotAKeelStore,
    NotFound,
    NotSetUp,
    ReadOnlyStore,
    StoreBusy,
    StoreError,
    StoreFull,
)

try:
    import fcntl
    import resource
except ImportError:  # Windows: SQLite's own busy handler has to do.
    fcntl = resource = None  # type: ignore[assignment]

T = TypeVar("T")
APPLICATION_ID = 0x4B65656C
"""`Keel` in ASCII, in the file's header."""
FORMAT = 1
PAGE_SIZE = 512
"""A put changes the last pages of a few trees: a turn of a chat wrote 20 KB with this, 27 with 1024, 45 with 2048."""
ROOM = 1 << 20
"""Bytes that a disk has left when it is said to be full, and a file before it is said to be as large as it may be."""
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
    with named_errors(path):
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
        if not _is_ours(connection, path):
            raise NotAKeelStore(f"{path} is an empty database, not a store of Keel")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_ours(connection: sqlite3.Connection, path: str) -> bool:
    """Return whether a database is Keel's; `False` if it is empty.

    Raises:
        NotAKeelStore: It holds something else.
        NewerFormat: A newer Keel wrote it.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (format,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION_ID:
        if format > FORMAT:
            raise NewerFormat(f"{path} has format {format}; this Keel knows {FORMAT}: upgrade langgraph-keel")
        return bool(tables)
    if not tables and application == 0:
        return False
    whose = "LangGraph's SqliteSaver" if {"checkpoints", "writes"} <= tables else "another program"
    raise NotAKeelStore(f"{path} is a database of {whose}, not of Keel: choose another path")


def prepare(connection: sqlite3.Connection, path: str, create: bool) -> None:
    """Check that a database is Keel's, or make it so if it is empty. The caller holds the lock file.

    Raises:
        NotAKeelStore: It holds something else, or it is empty and `create` is false.
        NotSetUp: It has no tables for cells, as one that an earlier Keel made, and `create` is false.
        NewerFormat: A newer Keel wrote it.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: Keel needs 3.35 or newer")
    if not _is_ours(connection, path):
        if not create:
            raise NotAKeelStore(f"{path} is empty and auto_setup is off: call saver.setup() once")
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    _write_ahead(connection, path)
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'cells'").fetchone():
        return
    if not create:
        raise NotSetUp(f"{path} has no tables for cells, which are new, and auto_setup is off: call saver.setup() once")
    connection.executescript(f"BEGIN IMMEDIATE; {schema()} COMMIT;")


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


class LockFile:
    """A lock that says whose turn it is to write.

    The kernel hands it on in order, and releases that of a process which dies.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path and f"{path}.lock"
        self._handle: int | None = None

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock.

        Without a timeout the kernel makes the wait, and it is fair. With one, the lock is polled.

        Raises:
            StoreBusy: Another process held it for longer than `timeout` seconds.
        """
        if timeout is not None:
            self._poll(timeout)
        elif (handle := self._open()) is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.give_back()

    def take(self) -> bool:
        """Take the lock, if nobody holds it; return whether it was had."""
        handle = self._open()
        if handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def give_back(self) -> None:
        """Let others have the lock."""
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _open(self) -> int | None:
        if self._handle is None and self._path is not None and fcntl is not None:
            # Whoever may write the database may have its turn, too.
            mode = stat.S_IMODE(os.stat(self._path.removesuffix(".lock")).st_mode)
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        return self._handle

    def _poll(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self.take():
            if time.monotonic() >= deadline:
                raise StoreBusy(f"{self._path}: another process holds the store")
            time.sleep(0.01)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def transaction(connection: sqlite3.Connection, kind: str, work: Callable[[], T]) -> T:
    """Return what `work` returns, done in one transaction of this kind (DEFERRED, IMMEDIATE)."""
    if connection.in_transaction:
        # An exception of a signal (Ctrl-C) came between the last two lines of an earlier transaction.
        connection.execute("ROLLBACK")
    try:
        connection.execute(f"BEGIN {kind}")
        result = work()
        connection.execute("COMMIT")
        return result
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Raise SQLite's errors as those of Keel, and errors of our own code on damaged rows as `CorruptStore`."""
    try:
        yield
    except sqlite3.Error as error:
        raise _name_error(path, error) from error
    except KeelError:
        raise
    except (TypeError, ValueError) as error:
        raise CorruptStore(f"{path}: a row does not hold what it should ({error!r})") from error
    except OSError as error:  # of the lock file
        kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(f"{path}: its lock file cannot be used; nothing was written ({error.strerror})") from error


def _name_error(path: str, error: sqlite3.Error) -> KeelError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kinds: dict[int, tuple[type[KeelError], str]] = {
        sqlite3.SQLITE_BUSY: (StoreBusy, "locked by somebody else for too long; nothing was written"),
        sqlite3.SQLITE_LOCKED: (StoreBusy, "locked by somebody else for too long; nothing was written"),
        sqlite3.SQLITE_FULL: (StoreFull, "no space left; nothing was written"),
        sqlite3.SQLITE_READONLY: (ReadOnlyStore, "it cannot be written"),
        sqlite3.SQLITE_NOTADB: (NotAKeelStore, "this is no SQLite database"),
        sqlite3.SQLITE_CORRUPT: (
            CorruptStore,
            "the database is damaged: restore a copy, or try `sqlite3 .recover`",
        ),
        sqlite3.SQLITE_CANTOPEN: (
            StoreError,
            "it cannot be opened: is the directory there, and may we write in it?",
        ),
    }
    kind, what = kinds.get(code, (StoreError, "SQLite failed"))
    if code == sqlite3.SQLITE_IOERR and _has_no_room(path):
        kind, what = kinds[sqlite3.SQLITE_FULL]
    return kind(f"{path}: {what} ({error})")


def _has_no_room(path: str) -> bool:
    """Return whether the disk is full, or a file as large as this process may make it; SQLite does not always say."""
    if path == ":memory:" or resource is None:
        return False
    with suppress(OSError):
        space = os.statvfs(path)
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        largest = max(os.stat(file).st_size for file in (path, f"{path}-wal") if os.path.exists(file))
        return space.f_bavail * space.f_frsize < ROOM or 0 <= limit < largest + ROOM
    return False
