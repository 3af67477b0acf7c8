"""Read-only connections to databases of LangGraph's savers, SQLite or PostgreSQL.

They write nothing and block no writer. No error contains a password.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Literal, Protocol
from urllib.parse import quote, urlsplit

from langgraph_keel.errors import (
    AccessDenied,
    CorruptStore,
    InvalidInput,
    NotFound,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)

_SPARE = 1 << 20
_STEPS, _STEPS_A_BYTE = 100_000, 4
"""Steps of SQLite's virtual machine per check, and maximum steps per byte of a file."""

_WITH_COLON = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

_NAMED = "use sqlite:///PATH, the PATH of a file, or postgresql://HOST/DATABASE for a store of LangGraph's savers"


class Connection(Protocol):
    """A read-only connection to a database."""

    mark: str
    """The placeholder of a value in a statement."""

    def read(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Return the rows of a query."""

    def columns(self, table: str) -> Sequence[str]:
        """Return the names of a table's columns; empty if the table does not exist."""

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Read from one snapshot within this context."""


# -- SQLite ------------------------------------------------------------------------------------------------------------


class SqliteConnection:
    """A SQLite file that may come from an attacker; limits the bytes of each statement."""

    mark = "?"

    def __init__(self, connection: sqlite3.Connection, place: str, size: int) -> None:
        self._connection = connection
        self._place = place
        self._most = size + _SPARE
        self._steps = 0
        connection.text_factory = _read_text
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(self._most, 1_000_000_000))
        connection.set_progress_handler(self._count_steps, _STEPS)

    def _count_steps(self) -> bool:
        self._steps += _STEPS
        return self._steps > _STEPS_A_BYTE * self._most

    def read(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """See `Connection.read`."""
        self._steps, nbytes, rows = 0, 0, list[Sequence[Any]]()
        with sqlite_errors(self._place):
            for row in self._connection.execute(statement, values):
                nbytes += sum(len(value) for value in row if isinstance(value, str | bytes))
                if nbytes > self._most:
                    raise CorruptStore(f"{self._place}: a table returns more bytes than the file has")
                rows.append(row)
        return rows

    def columns(self, table: str) -> Sequence[str]:
        """See `Connection.columns`; ignores views and tables with computed columns."""
        # Their values are not in the file.
        is_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        found = self.read("SELECT name, hidden FROM pragma_table_xinfo(?)", table) if self.read(is_table, table) else ()
        return [] if any(hidden for _, hidden in found) else [name for name, _ in found]

    @contextmanager
    def moment(self) -> Iterator[None]:
        """See `Connection.moment`."""
        with sqlite_errors(self._place):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.rollback()


def _read_text(data: bytes) -> str | bytes:
    """Return a text; invalid UTF-8 as bytes, which callers refuse."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


@contextmanager
def open_sqlite(path: str) -> Iterator[Connection]:
    """Open a SQLite file for reading."""
    if not os.path.isfile(path):
        raise NotFound(f"there is no file {path}")
    with sqlite_errors(path):
        connection = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, isolation_level=None)
    with closing(connection):
        size = sum(os.path.getsize(each) for each in (path, f"{path}-wal") if os.path.exists(each))
        yield SqliteConnection(connection, path, size)


@contextmanager
def sqlite_errors(place: str) -> Iterator[None]:
    """Convert errors of SQLite to Keel's, with the name of the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            raise CorruptStore(f"{place}: a table takes more work to read than is possible for its size") from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            # In WAL mode, SQLite creates a -shm file even for readers.
            raise StoreError(
                f"{place}: {error}. The file may be in WAL mode in a read-only directory, where SQLite must create "
                "another file even for reading. Copy it, with its -wal file if there is one, to a writable directory"
            ) from error
        kind = StoreBusy if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) else StoreError
        raise kind(f"{place}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{place} is not a valid SQLite database: {error}") from error


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


class PostgresConnection:
    """A PostgreSQL database."""

    mark = "%s"

    def __init__(self, connection: Any, place: str) -> None:
        self._connection = connection
        self._place = place

    def read(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """See `Connection.read`."""
        with postgres_errors(self._place):
            rows: Sequence[Sequence[Any]] = self._connection.execute(statement, values).fetchall()
            return rows

    def columns(self, table: str) -> Sequence[str]:
        """See `Connection.columns`."""
        statement = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
        is_table = "EXISTS (SELECT FROM pg_class WHERE oid = attrelid AND relkind IN ('r', 'p'))"  # not a view
        return [name for (name,) in self.read(f"{statement} AND NOT attisdropped AND {is_table}", table)]

    @contextmanager
    def moment(self) -> Iterator[None]:
        """See `Connection.moment`."""
        with self._connection.transaction():
            yield


@contextmanager
def open_postgres(url: str) -> Iterator[Connection]:
    """Open a PostgreSQL database for reading."""
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise InvalidInput("PostgreSQL needs psycopg: pip install 'psycopg[binary,pool]>=3.2.3'") from error
    place = place_of(url)
    with postgres_errors(place):
        connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
    with closing(connection):
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        yield PostgresConnection(connection, place)


@contextmanager
def postgres_errors(place: str) -> Iterator[None]:
    """Convert errors of psycopg to Keel's, without passwords."""
    import psycopg

    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise AccessDenied(f"{place}: this user may not read the tables: {error}") from error
    except psycopg.OperationalError as error:
        if "password" in str(error) or (error.sqlstate or "").startswith("28"):
            raise AccessDenied(f"{place}: the server refuses this user or password") from None
        if "connection is bad: invalid" in str(error):  # before connecting: `invalid sslmode value: "x"`
            raise InvalidInput(f"{place}: an option of the URL has a wrong value: {error}") from None
        raise StoreUnavailable(f"{place}: {str(error).strip() or 'the connection broke'}") from error
    except psycopg.ProgrammingError as error:
        if error.sqlstate is None:  # raised by psycopg itself, which quotes the URL, perhaps with a password
            raise InvalidInput(f"{place}: the URL cannot be read") from None
        raise StoreError(f"{place}: {error}") from error
    except psycopg.Error as error:
        raise StoreError(f"{place}: {error}") from error


def find_place(given: str | os.PathLike[str]) -> tuple[Literal["postgresql", "sqlite"], str]:
    """Return the kind of database of a URL or path, and its URL or path."""
    if not isinstance(given, str):
        return "sqlite", os.fspath(given)
    scheme, is_url, rest = given.partition("://")
    if is_url and scheme in ("postgresql", "postgres"):
        return "postgresql", given
    if is_url and scheme != "sqlite" and re.fullmatch("[a-z0-9+.-]+", scheme):
        raise InvalidInput(f"{_NAMED}, not {scheme}://")
    path = rest.removeprefix("/") if is_url else given
    is_doubtful = "?" in path and "=" in path if is_url else "=" in given or "@" in given or _WITH_COLON.match(given)
    if (is_url and not rest.startswith("/")) or (is_doubtful and not os.path.lexists(path)):
        raise InvalidInput(f"the source or target is neither a file path nor a URL: {_NAMED}")
    return "sqlite", path


def place_of(url: str) -> str:
    """Return the display name of a server: its URL without user, password and options."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an IPv6 address without a closing bracket
        return "PostgreSQL"
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
