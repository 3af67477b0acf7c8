"""The PostgreSQL driver: where connections come from, and how a request is sent.

What it needs of a server is small, so that it also runs on what speaks PostgreSQL's protocol:

* A request of one statement is sent alone, on a connection in autocommit. One of several is a transaction, sent in one go
  (libpq's pipeline mode): one trip all the same.
* No advisory locks, LISTEN/NOTIFY, sequences, stored functions, temporary tables, cursors or session state, so it works
  behind PgBouncer in transaction pooling. Before PgBouncer 1.21 prepared statements do not: `prepare_threshold=None`.
* Each table is changed by at most one part of a statement (CockroachDB refuses more), thread_id leads every key and is in
  every condition (Citus, hash partitions), and 40001 and 40P01 are tried again (CockroachDB and YugabyteDB ask for it).
  These three have not been run here; what they refuse is taken from their documentation.

A request may be sent again after its connection broke, since every request is harmless the second time: a put carries a
token that the store knows again, and what removes or appends removes or is read only once.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from langgraph_keel.core.plan import Plan, arun, run
from langgraph_keel.errors import InvalidInput, ReadOnlyStore, StoreBusy, StoreClosed
from langgraph_keel.postgres.connection import AsyncConnection, AsyncPool, Connection, Pool, Watch, Watched, named
from langgraph_keel.postgres.opening import Rows, opened
from langgraph_keel.postgres.rows import Request, Statement
from langgraph_keel.postgres.tables import Tables

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    Given: TypeAlias = (
        str | Connection | AsyncConnection | ConnectionPool[Connection] | AsyncConnectionPool[AsyncConnection]
    )

T = TypeVar("T")
_drivers: WeakSet[PostgresDriver] = WeakSet()
# Sockets are inherited by a fork: a child must neither use nor close those of its parent.
_inherited: list[object] = []


def _after_fork_in_child() -> None:
    for driver in list(_drivers):
        driver.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class PostgresDriver:
    """Sends requests to one database.

    Args:
        given: A URL or connection string of libpq, or a connection or pool of the user's own.
        tables: What the tables are called.
        size: Most connections of a pool of our own, for each face and loop.
        timeout: Seconds to wait for a connection, and for the answer to one request.
        prepare_threshold: As psycopg's; `None` for PgBouncer before 1.21.
        read_only: Refuse to write, and do not create what is missing.
        auto_setup: Create the tables on first use.
    """

    def __init__(
        self,
        given: Given,
        tables: Tables,
        *,
        size: int,
        timeout: float,
        prepare_threshold: int | None,
        read_only: bool,
        auto_setup: bool,
    ) -> None:
        self.given = given
        self.tables = tables
        self.where = _where(given)
        self.size = size
        self.timeout = timeout
        self.read_only = read_only
        self.auto_setup = auto_setup
        self._options: dict[str, Any] = {"autocommit": True, "prepare_threshold": prepare_threshold}
        self._closed = False
        self._start()
        _drivers.add(self)

    def _start(self) -> None:
        self._ready = False
        self._starting = threading.RLock()
        self._watch = Watch(self.timeout)
        self._pool = Pool(self._connect, self.size, self.timeout, self.where)
        self._pools: dict[asyncio.AbstractEventLoop, AsyncPool] = {}
        self._one_at_a_time = threading.RLock()

    def forget(self) -> None:
        """Start anew, as a forked child must."""
        _inherited.append((self._pool, self._pools))
        self._start()

    # -- sending -----------------------------------------------------------------------------------------------

    def send(self, request: Request) -> list[Rows]:
        """Send `request` as one transaction; return the rows of each of its statements.

        Raises:
            StoreError: As `connection.NAMED` tells them apart; `StoreBusy` after `timeout` seconds.
        """
        self._check(request)
        if not self._ready:
            self.open(self.auto_setup)
        return self.insist(lambda connection: _run(connection, request))

    async def asend(self, request: Request) -> list[Rows]:
        """As `send`, without blocking the running loop."""
        if self.gives_sync:
            return await asyncio.to_thread(self.send, request)
        self._check(request)
        if not self._ready:
            await self._aopen(self.auto_setup)
        return await self.ainsist(lambda connection: _arun(connection, request))

    def _check(self, request: Request) -> None:
        if self._closed:
            raise StoreClosed(f"{self.where}: this saver was closed")
        if request.writes and self.read_only:
            raise ReadOnlyStore(f"{self.where}: this saver was opened to read only")

    def insist(self, act: Callable[[Connection], T]) -> T:
        """Do something on a connection; again if that broke, or if others were quicker."""
        patience = Patience(self.where, self.timeout)
        while True:
            try:
                with self._lend() as connection, self._watch.over(connection) as watched, patience.over(watched):
                    return act(connection)
            except Again as again:
                time.sleep(again.delay)
            except (psycopg.Error, OSError) as error:
                raise named(error, self.where) from error

    async def ainsist(self, act: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """As `insist`, without blocking the running loop."""
        patience = Patience(self.where, self.timeout)
        while True:
            try:
                async with self._alend() as connection:
                    with self._watch.over(connection) as watched, patience.over(watched):
                        return await act(connection)
            except Again as again:
                await asyncio.sleep(again.delay)
            except (psycopg.Error, OSError) as error:
                raise named(error, self.where) from error

    # -- connections -------------------------------------------------------------------------------------------

    @property
    def gives_sync(self) -> bool:
        """Whether all there is is a connection or pool of the user's that blocks: then a thread waits for it."""
        return not isinstance(self.given, str) and not _is_async(self.given)

    def _lend(self) -> AbstractContextManager[Connection]:
        if isinstance(self.given, str):
            return self._pool.connection()
        if _is_async(self.given):
            raise InvalidInput(
                "this saver was given an async connection or pool: use its async methods, or pass a URL, which has both"
            )
        return self._alone() if isinstance(self.given, psycopg.Connection) else self.given.connection(self.timeout)

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        # Statements of two threads on one connection would be parts of one transaction.
        with self._one_at_a_time:
            yield self.given

    def _alend(self) -> AbstractAsyncContextManager[AsyncConnection]:
        if isinstance(self.given, str):
            return self._pool_here().connection()
        if isinstance(self.given, psycopg.AsyncConnection):
            return self._aalone()
        lent: AbstractAsyncContextManager[AsyncConnection] = self.given.connection(self.timeout)
        return lent

    @asynccontextmanager
    async def _aalone(self) -> AsyncIterator[AsyncConnection]:
        async with self._async_lock:
            yield self.given

    @cached_property
    def _async_lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    def _pool_here(self) -> AsyncPool:
        """Return the pool of the running loop."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            for other in [other for other in list(self._pools) if other.is_closed()]:
                self._pools.pop(other).close(is_dead=True)
            pool = self._pools[loop] = AsyncPool(self._aconnect, self.size, self.timeout, self.where)
        return pool

    def _connect(self) -> Connection:
        return psycopg.connect(self.given, **self._options)

    async def _aconnect(self) -> AsyncConnection:
        return await psycopg.AsyncConnection.connect(self.given, **self._options)

    # -- opening and closing -----------------------------------------------------------------------------------

    def open(self, create: bool) -> None:
        """Make sure that the tables are there; see `opening.opened`."""
        with self._starting:
            if not self._ready:
                run(self._opening(create), _Texts(self))
                self._ready = True

    async def _aopen(self, create: bool) -> None:
        await arun(self._opening(create), _AsyncTexts(self))
        self._ready = True

    def _opening(self, create: bool) -> Plan[str, Rows, None]:
        return opened(self.tables, self.where, create=create, read_only=self.read_only)

    async def aopen(self, create: bool) -> None:
        """As `open`, without blocking the running loop."""
        if self.gives_sync:
            await asyncio.to_thread(self.open, create)
        elif not self._ready:
            await self._aopen(create)

    def close(self) -> None:
        """Close the pools of our own; connections and pools of the user's stay as they are."""
        self._closed = True
        self._pool.close()
        while self._pools:
            loop, pool = self._pools.popitem()
            pool.close(loop.is_closed())


class Again(Exception):
    """The request is to be sent once more.

    Attributes:
        delay: Seconds to wait before.
    """

    def __init__(self, delay: float) -> None:
        self.delay = delay


class Patience:
    """Decides, for one request, what is tried again: a broken connection once, a lost race until time is up."""

    def __init__(self, where: str, timeout: float) -> None:
        self._where = where
        self._timeout = timeout
        self._end = time.monotonic() + timeout
        self._resent = False

    @contextmanager
    def over(self, watched: Watched) -> Iterator[None]:
        """Turn an error after which to try again into `Again`."""
        try:
            yield
        except (psycopg.Error, OSError) as error:
            self._judge(error, watched)
            raise

    def _judge(self, error: Exception, watched: Watched) -> None:
        if watched.was_cut:
            raise StoreBusy(f"{self._where}: no answer within {self._timeout} s") from error
        if watched.connection.closed and not self._resent:
            self._resent = True
            raise Again(0) from error
        if isinstance(error, RACES) and time.monotonic() < self._end:
            raise Again(random.uniform(0, 0.02)) from error


RACES = psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected


def _where(given: Given) -> str:
    """Return how errors name the database: never with its password."""
    if not isinstance(given, str):
        return "PostgreSQL"
    try:
        parts = conninfo_to_dict(given)
    except psycopg.ProgrammingError as error:
        raise InvalidInput(f"this is no connection string of PostgreSQL: {str(error).strip()}") from None
    place = f"{parts.get('host', 'local socket')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
    return f"PostgreSQL at {place}"


def _is_async(given: Any) -> bool:
    return inspect.iscoroutinefunction(given.close)


def _run(connection: Connection, request: Request) -> list[Rows]:
    if len(request.statements) == 1 and connection.autocommit:
        return [_fetched(_execute(connection, request.statements[0]))]
    with connection.pipeline(), connection.transaction():
        cursors = [_execute(connection, statement) for statement in request.statements]
    return [_fetched(cursor) for cursor in cursors]


def _fetched(cursor: psycopg.Cursor[Any]) -> Rows:
    return cursor.fetchall() if cursor.description else []


def _execute(connection: Connection, statement: Statement) -> psycopg.Cursor[Any]:
    cursor = connection.cursor(binary=True, row_factory=tuple_row)
    return cursor.execute(statement.sql, statement.parameters)  # type: ignore[arg-type]  # wants a literal


async def _arun(connection: AsyncConnection, request: Request) -> list[Rows]:
    if len(request.statements) == 1 and connection.autocommit:
        return [await _rows(await _aexecute(connection, request.statements[0]))]
    async with connection.pipeline(), connection.transaction():
        cursors = [await _aexecute(connection, statement) for statement in request.statements]
    return [await _rows(cursor) for cursor in cursors]


async def _aexecute(connection: AsyncConnection, statement: Statement) -> psycopg.AsyncCursor[Any]:
    cursor = connection.cursor(binary=True, row_factory=tuple_row)
    return await cursor.execute(statement.sql, statement.parameters)  # type: ignore[arg-type]


async def _rows(cursor: psycopg.AsyncCursor[Any]) -> Rows:
    return await cursor.fetchall() if cursor.description else []


class _Texts:
    """Runs SQL as it stands, several statements in one transaction."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver

    def send(self, text: str) -> Rows:
        return self._driver.insist(lambda connection: _fetched(connection.execute(text)))  # type: ignore[call-overload]


class _AsyncTexts:
    """As `_Texts`, for a running loop."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver

    async def send(self, text: str) -> Rows:
        async def act(connection: AsyncConnection) -> Rows:
            return await _rows(await connection.execute(text))  # type: ignore[call-overload]

        return await self._driver.ainsist(act)


class AsyncPostgresDriver:
    """The same driver, for a running loop."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver

    async def send(self, request: Request) -> list[Rows]:
        """As `PostgresDriver.asend`."""
        return await self._driver.asend(request)
