"""Where LangGraph's savers have kept threads, opened for reading only: a SQLite file, or a PostgreSQL database.

Nothing is written, no table is made or changed, and nothing is locked that a writer would wait for: SQLite is opened
`mode=ro`, PostgreSQL reads in transactions that are `READ ONLY`, one for each thread. What fails is a named error, in
which no password stands.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from langgraph_keel.errors import AccessDenied, InvalidInput, NotFound, StoreBusy, StoreError, StoreUnavailable


class Connection(Protocol):
    """A database that is read."""

    mark: str
    """What stands for a value in a statement."""

    def read(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Return the rows that a statement finds."""

    def columns(self, table: str) -> Sequence[str]:
        """Return the names of a table's columns; none if there is no such table."""

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Have all that is read meanwhile be of one moment."""


# -- SQLite ------------------------------------------------------------------------------------------------------------


class SqliteConnection:
    """A file of SQLite."""

    mark = "?"

    def __init__(self, connection: sqlite3.Connection, place: str) -> None:
        self._connection = connection
        self._place = place

    def read(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        """See `Connection.read`."""
        with sqlite_errors(self._place):
            return self._connection.execute(statement, values).fetchall()

    def columns(self, table: str) -> Sequence[str]:
        """See `Connection.columns`."""
        return [name for (name,) in self.read("SELECT name FROM pragma_table_info(?)", table)]

    @contextmanager
    def moment(self) -> Iterator[None]:
        """See `Connection.moment`."""
        with sqlite_errors(self._place):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.rollback()


@contextmanager
def open_sqlite(path: str) -> Iterator[Connection]:
    """Open a file.

    Raises:
        NotFound: There is none.
        InvalidInput: It is no database of SQLite.
    """
    if not os.path.isfile(path):
        raise NotFound(f"there is no file {path}")
    with sqlite_errors(path):
        connection = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, isolation_level=None)
    with closing(connection):
        yield SqliteConnection(connection, path)


@contextmanager
def sqlite_errors(place: str) -> Iterator[None]:
    """Name what goes wrong with a file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            # Nothing is written here; but in WAL mode SQLite makes a -shm also for who only reads.
            raise StoreError(
                f"{place}: {error}. It is in WAL mode, perhaps, and nothing can be written beside it, where SQLite "
                "needs a file also to read: copy it, with its -wal if there is one, to where that can be"
            ) from error
        kind = (
            StoreBusy if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) else StoreError
        )
        raise kind(f"{place}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{place} is no sound database of SQLite: {error}") from error


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


class PostgresConnection:
    """A database of PostgreSQL."""

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
        return [name for (name,) in self.read(f"{statement} AND NOT attisdropped", table)]

    @contextmanager
    def moment(self) -> Iterator[None]:
        """See `Connection.moment`."""
        with self._connection.transaction():
            yield


@contextmanager
def open_postgres(url: str) -> Iterator[Connection]:
    """Open a database.

    Raises:
        InvalidInput: psycopg is not installed, or cannot read the URL.
        AccessDenied: The server refuses this user.
        StoreUnavailable: It cannot be reached.
    """
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
    """Name what goes wrong with a server; no password stands in it."""
    import psycopg

    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise AccessDenied(f"{place}: this user may not read the tables: {error}") from error
    except psycopg.OperationalError as error:
        if "password" in str(error) or (error.sqlstate or "").startswith("28"):
            raise AccessDenied(f"{place}: the server refuses this user or password") from None
        if "connection is bad: invalid" in str(error):  # before it connects: `invalid sslmode value: "x"`
            raise InvalidInput(f"{place}: an option of the URL has a wrong value: {error}") from None
        raise StoreUnavailable(f"{place}: {str(error).strip() or 'the connection broke'}") from error
    except psycopg.ProgrammingError as error:
        if error.sqlstate is None:  # of psycopg itself: it quotes what it cannot read, a password perhaps
            raise InvalidInput(f"{place}: the URL cannot be read") from None
        raise StoreError(f"{place}: {error}") from error
    except psycopg.Error as error:
        raise StoreError(f"{place}: {error}") from error


def place_of(url: str) -> str:
    """Return how a server is named: without user, password and options."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an address of IPv6 without its end
        return "PostgreSQL"
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
