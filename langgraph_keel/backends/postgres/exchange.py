"""Statements and their rows, as one round trip on a connection of Keel's own: `wait(exchange(connection, statements))`.

libpq is used as psycopg's cursors use it. Of a request that took the server 180 microseconds, a cursor took 100 of the
client's time, and this takes 45; a statement is prepared in the trip of its first use, not in one more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import psycopg
from psycopg import abc, adapt
from psycopg.errors import error_from_result
from psycopg.generators import execute, fetch_many, send
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from langgraph_keel.backends.postgres.rows import Statement

Rows: TypeAlias = list[Any]
Exchange: TypeAlias = Generator[Any, Any, list[Rows]]  # for psycopg's `wait`; returns the rows of each statement
Key: TypeAlias = tuple[bytes, tuple[int, ...]]  # a statement, and the types of its parameters

MOST = 200
"""Statements that a connection prepares; Keel has about sixty."""
FORGOTTEN = {"26000", "42P05", "0A000"}
"""A prepared statement is missing, there twice, or its tables have changed."""


class Prepared:
    """The prepared statements of a connection, and its adapters."""

    def __init__(self, transformer: abc.Transformer) -> None:
        self.transformer = transformer
        self.names: dict[Key, bytes] = {}
        self._uses: Counter[Key] = Counter()
        self._times_forgotten = 0

    def load(self, result: PGresult) -> Rows:
        """Return the rows of a result."""
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self.transformer.set_pgresult(result, format=Format.BINARY)
        return self.transformer.load_rows(0, result.ntuples, tuple)

    def name_new(self, key: Key, threshold: int | None) -> bytes | None:
        """Return the name by which to prepare a statement; `None` if it has been used too rarely.

        It is a hash of the statement: where clients of a pooler share a server connection, a name that one of them has
        prepared means the same statement to the others.
        """
        if threshold is None or len(self.names) >= MOST:
            return None
        self._uses[key] += 1
        if self._uses[key] <= threshold:
            return None
        digest = blake2b(repr(key).encode(), digest_size=12).hexdigest()
        return f"keel_{digest}_{self._times_forgotten}".encode()

    def forget(self) -> None:
        """Prepare all statements again, under other names: some may be taken still."""
        self.names.clear()
        self._times_forgotten += 1


class OwnConnection(psycopg.Connection[Any]):
    """A connection that Keel has made itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared = Prepared(adapt.Transformer(self))


class AsyncOwnConnection(psycopg.AsyncConnection[Any]):
    """As `OwnConnection`, for a running loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared = Prepared(adapt.Transformer(self))


def exchange(connection: OwnConnection | AsyncOwnConnection, statements: Sequence[Statement]) -> Exchange:
    """Send statements in one go; return the rows of each.

    The server skips the statements after one that fails. A transaction that they have begun is then rolled back, which
    takes another trip.
    """
    pgconn, prepared = connection.pgconn, connection.prepared
    pgconn.enter_pipeline_mode()
    fresh: dict[Key, bytes] = {}
    sent = [part for statement in statements for part in _queue(connection, statement, fresh)]
    pgconn.pipeline_sync()
    yield from send(pgconn)
    rows: list[Rows] = []
    error = None
    for new in sent:
        (result,) = yield from fetch_many(pgconn)
        if result.status == ExecStatus.FATAL_ERROR:
            error = error_from_result(result, encoding=connection.info.encoding)
        elif result.status != ExecStatus.PIPELINE_ABORTED:
            if new is None:
                rows.append(prepared.load(result))
            else:
                prepared.names[new] = fresh[new]
    yield from fetch_many(pgconn)  # the end
    pgconn.exit_pipeline_mode()
    if error is None:
        return rows
    if error.sqlstate in FORGOTTEN:
        prepared.forget()
    if pgconn.transaction_status == TransactionStatus.INERROR:
        pgconn.send_query(b"ROLLBACK")
        yield from execute(pgconn)
    raise error


def _queue(
    connection: OwnConnection | AsyncOwnConnection, statement: Statement, fresh: dict[Key, bytes]
) -> Sequence[Key | None]:
    """Have a statement sent, prepared before if that is due; return, for each reply to come, what it prepares."""
    pgconn, prepared = connection.pgconn, connection.prepared
    transformer = prepared.transformer
    values = transformer.dump_sequence(statement.parameters, [adapt.PyFormat.AUTO] * len(statement.parameters))
    types, formats = transformer.types, transformer.formats
    key = statement.sql, types or ()
    name = prepared.names.get(key) or fresh.get(key)
    if name is not None:
        pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        return (None,)
    name = prepared.name_new(key, connection.prepare_threshold)
    if name is None:
        pgconn.send_query_params(statement.sql, values, types, formats, Format.BINARY)
        return (None,)
    fresh[key] = name
    pgconn.send_prepare(name, statement.sql, types)
    pgconn.send_query_prepared(name, values, formats, Format.BINARY)
    return key, None
