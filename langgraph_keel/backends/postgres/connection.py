"""Connections: how they are made and pooled, when they are dropped, and what their errors mean.

A connection is checked before it is used without a round trip: a server that closed it while it was idle (restart,
failover, SSL, a timeout between) has left something to read on a socket where nothing is due.

Why not the pools of psycopg_pool, though one of the user's own is accepted? Measured with 3.3.3, `min_size=0` and
a `check=` that closes connections which `is_lost` finds; that part works as well as here. But:

* They connect in background threads, and try again until the caller's time is up. A wrong password, a database that is
  not there, a port where nobody listens: `PoolTimeout("couldn't get a connection after 5.00 sec")` after all of 5 s,
  without the reason, which is only logged. The pools here connect in the thread that needs a connection, and raise what
  the server said after 1 to 32 ms. The fault tests hold them to that: of those of a wrong password, of a missing
  database and of "too many clients", psycopg_pool passes none.
* `AsyncConnectionPool` belongs to one loop and its tasks must be closed in it: `close()` afterwards ("Event loop is
  closed") or from elsewhere ("belongs to a different loop") fails, but a saver is closed by whoever is done with it. So
  the pool for each loop, the clean-up after dead loops and the new start after a fork would all stay here.
* Each pool has four threads of its own.

To lend a connection and to take it back takes 11 microseconds there, and 16 here.

`Watchdog` cuts requests that wait for too long, and `RetryBudget` says which are sent again, and for how long.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg import errors as pg
from psycopg.pq import PipelineStatus, TransactionStatus

from langgraph_keel.backends.postgres.exchange import AsyncOwnConnection, OwnConnection
from langgraph_keel.errors import (
    AccessDenied,
    InvalidInput,
    KeelError,
    NotSetUp,
    ReadOnlyStore,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    refuse_closed,
)

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool


Connection: TypeAlias = psycopg.Connection[Any]
AsyncConnection: TypeAlias = psycopg.AsyncConnection[Any]
Given: TypeAlias = "str | Connection | AsyncConnection | ConnectionPool[Any] | AsyncConnectionPool[Any]"
"""What a user may give: a connection string, or a connection or pool that stays theirs."""

# In this order: the first that fits.
NAMED: tuple[tuple[tuple[type[Exception], ...], type[KeelError], str], ...] = (
    ((pg.InsufficientPrivilege,), AccessDenied, "this user lacks a right"),
    ((pg.UndefinedTable, pg.InvalidSchemaName), NotSetUp, "the tables are gone"),
    ((pg.ReadOnlySqlTransaction,), ReadOnlyStore, "the server takes no writes (a replica, or set read-only)"),
    (
        (pg.DiskFull, pg.OutOfMemory, pg.ConfigurationLimitExceeded),
        StoreFull,
        "the server has no room left, free some on it",
    ),
    ((pg.QueryCanceled,), StoreBusy, "the server gave the statement up (statement_timeout or a cancel)"),
    ((pg.LockNotAvailable,), StoreBusy, "a lock was not to be had in time"),
    ((pg.SerializationFailure, pg.DeadlockDetected), StoreBusy, "others wrote the same thread again and again"),
    (
        (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement),
        StoreError,
        "a pooler between forgets prepared statements (PgBouncer, transactions): open with prepare_threshold=None",
    ),
    ((pg.NumericValueOutOfRange,), StoreError, "an item log holds 2^31 items: go on in a new thread"),
)
# Errors of connecting have no code in psycopg, only the server's words. In other languages than English they are not
# recognized, and become `StoreUnavailable`.
WORDED: tuple[tuple[str, type[KeelError], str], ...] = (
    ("too many clients", StoreBusy, "the server takes no more connections"),
    ("too many connections", StoreBusy, "the server takes no more connections"),
    ("remaining connection slots", StoreBusy, "the server takes no more connections"),
    ('role "', AccessDenied, "the server refuses this user"),
    ("does not exist", StoreUnavailable, "this database does not exist, create it first"),
    ("password", AccessDenied, "the server refuses this user"),
    # What libpq, and psycopg, say of options before they connect: `invalid sslmode value: "x"`.
    ("connection is bad: invalid", InvalidInput, "an option of the connection string has a wrong value"),
    ("bad value for", InvalidInput, "an option of the connection string has a wrong value"),
    ("authentication", AccessDenied, "the server refuses this user"),
    ("pg_hba.conf", AccessDenied, "the server refuses this user"),
)

RACES = {"40001", "40P01"}
"""serialization_failure and deadlock_detected: CockroachDB and YugabyteDB ask clients to retry after these."""
SHUFFLED = {"26000", "42P05"}
"""A prepared statement that is missing, or there twice: a pooler now uses another connection of the server."""


def name_error(error: BaseException, where: str) -> BaseException:
    """Return an error of psycopg as the error of Keel that says what to do; any other error as it is."""
    if not isinstance(error, (psycopg.Error, OSError)) or isinstance(error, KeelError):
        return error
    text = " ".join(str(error).split())
    for kinds, kind, what in NAMED:
        if isinstance(error, kinds):
            return kind(f"{where}: {what} ({text})")
    for words, kind, what in WORDED if getattr(error, "sqlstate", None) is None else ():
        if words in text:
            return kind(f"{where}: {what} ({text.rpartition('FATAL: ')[2]})")
    # Of a pool of the user's own; psycopg_pool need not be installed.
    if type(error).__name__ == "PoolTimeout":
        return StoreBusy(f"{where}: all connections of the pool were in use: {text}")
    if type(error).__name__ == "PoolClosed":
        return StoreClosed(f"{where}: {text}")
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError)):
        return StoreUnavailable(f"{where}: {text}")
    return StoreError(f"{where}: {type(error).__name__}: {text}")


@contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Raise errors of psycopg as those of Keel."""
    try:
        yield
    except (psycopg.Error, OSError) as error:
        raise name_error(error, where) from error


def is_lost(connection: Connection | AsyncConnection) -> bool:
    """Return whether an idle connection was closed by the server, without asking it."""
    if connection.closed:
        return True
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def is_usable(connection: Connection | AsyncConnection) -> bool:
    """Return whether a connection may be used again after a request."""
    pgconn = connection.pgconn
    return pgconn.transaction_status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF


def close_now(connection: Connection | AsyncConnection) -> None:
    """Close a connection at once, from any thread, also if its loop is closed."""
    connection.pgconn.finish()


class Pool:
    """Connections of one process, made when they are needed, in the thread that needs them.

    Args:
        connect: Makes one.
        size: Most there may be at once.
        timeout: Seconds to wait for one that is in use.
        where: How errors name the database.
    """

    def __init__(self, connect: Callable[[], Connection], size: int, timeout: float, where: str) -> None:
        self._connect = connect
        self._timeout = timeout
        self._where = where
        self._size = size
        self._slots = threading.Semaphore(size)
        self._idle: list[Connection] = []
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection, and take it back for the next caller if it is still usable."""
        if self._closed:
            raise refuse_closed(self._where)
        if not self._slots.acquire(timeout=self._timeout):
            raise StoreBusy(f"{self._where}: all {self._size} connections were in use for {self._timeout} s")
        try:
            connection = self._take() or self._connect()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._slots.release()

    def _take(self) -> Connection | None:
        while self._idle:
            with suppress(IndexError):  # another thread may have been quicker
                connection = self._idle.pop()
                if not is_lost(connection):
                    return connection
                close_now(connection)
        return None

    def _give_back(self, connection: Connection) -> None:
        if is_usable(connection) and not self._closed:
            self._idle.append(connection)
        else:
            close_now(connection)

    def close(self) -> None:
        """Close what is idle now, and what is in use when it is given back."""
        self._closed = True
        while self._idle:
            close_now(self._idle.pop())


class AsyncPool:
    """As `Pool`, for the tasks of one loop."""

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncConnection]], size: int, timeout: float, where: str
    ) -> None:
        self._connect = connect
        self._timeout = timeout
        self._where = where
        self._size = size
        self._slots = asyncio.Semaphore(size)
        self._idle: list[AsyncConnection] = []
        self._lent: set[AsyncConnection] = set()
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection, and take it back for the next caller if it is still usable."""
        if self._closed:
            raise refuse_closed(self._where)
        await self._acquire()
        try:
            connection = self._take() or await self._connect()
            self._lent.add(connection)
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._slots.release()

    async def _acquire(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            await asyncio.wait_for(self._slots.acquire(), self._timeout)
        except TimeoutError:
            message = f"{self._where}: all {self._size} connections were in use for {self._timeout} s"
            raise StoreBusy(message) from None

    def _take(self) -> AsyncConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not is_lost(connection):
                return connection
            close_now(connection)
        return None

    def _give_back(self, connection: AsyncConnection) -> None:
        self._lent.discard(connection)
        if is_usable(connection) and not self._closed:
            self._idle.append(connection)
        else:
            close_now(connection)

    def close(self, is_dead: bool = False) -> None:
        """Close what is idle now, and what is in use when it is given back; at once if the loop is dead."""
        self._closed = True
        for connection in (*self._idle, *(self._lent if is_dead else ())):
            close_now(connection)
        self._idle.clear()


class OwnConnections:
    """Connections that Keel makes itself: a pool for all threads, and one for each loop.

    Args:
        conninfo: Where to.
        options: More arguments of psycopg's `connect`.
        size: Most connections of each pool.
        timeout: Seconds to wait for one that is in use.
        where: How errors name the database.
    """

    blocks = False

    def __init__(self, conninfo: str, options: Mapping[str, Any], size: int, timeout: float, where: str) -> None:
        self._conninfo = conninfo
        self._options = options
        self._limits = size, timeout, where
        self._pool = Pool(self.connect, *self._limits)
        self._pools: dict[asyncio.AbstractEventLoop, AsyncPool] = {}

    def connect(self) -> Connection:
        """Return a connection outside of the pools, which the caller closes."""
        return OwnConnection.connect(self._conninfo, **self._options)

    async def aconnect(self) -> AsyncConnection:
        """As `connect`, for the running loop."""
        return await AsyncOwnConnection.connect(self._conninfo, **self._options)

    def connection(self) -> AbstractContextManager[Connection]:
        """Lend a connection to this thread."""
        return self._pool.connection()

    def aconnection(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Lend a connection to a task of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            for dead in [other for other in list(self._pools) if other.is_closed()]:
                pool = self._pools.pop(dead, None)
                if pool is not None:  # a loop of another thread may have done it at this moment
                    pool.close(is_dead=True)
            self._pools[loop] = AsyncPool(self.aconnect, *self._limits)
        return self._pools[loop].connection()

    def close(self) -> None:
        """Close all pools."""
        self._pool.close()
        for loop, pool in list(self._pools.items()):
            pool.close(is_dead=loop.is_closed())


class WatchedRequest:
    """A request that waits for its reply.

    Attributes:
        connection: Where it was sent.
        due: When to cut the connection, on the clock of `monotonic`.
        was_cut: Whether that has been done.
    """

    __slots__ = ("connection", "due", "was_cut")

    def __init__(self, connection: Connection | AsyncConnection, due: float) -> None:
        self.connection = connection
        self.due = due
        self.was_cut = False

    @property
    def is_broken(self) -> bool:
        """Whether the connection cannot be used again: closed, or left while it waits for a reply.

        psycopg leaves it so ("connection socket closed") where the socket breaks between two of its polls.
        """
        return self.connection.closed or self.connection.info.transaction_status == TransactionStatus.ACTIVE


class Watchdog:
    """Cuts connections that wait longer than they may: psycopg waits for ever if the network loses an answer.

    One thread watches all requests, and lives while there are any: a timer for each would cost as much as the request.

    Args:
        timeout: Seconds that a request may take.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._period = min(1.0, timeout / 4)
        self._lock = threading.Lock()
        self._waiting: dict[int, WatchedRequest] = {}
        self._running = False

    def watch(self, connection: Connection | AsyncConnection) -> WatchedRequest:
        """Watch a request on `connection` until it is released."""
        watched = WatchedRequest(connection, time.monotonic() + self._timeout)
        with self._lock:
            self._waiting[id(watched)] = watched
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="keel-watch", daemon=True).start()
        return watched

    def release(self, watched: WatchedRequest) -> None:
        """Watch a request no longer."""
        with self._lock:
            del self._waiting[id(watched)]

    def _run(self) -> None:
        idle = 0
        while idle < 10:
            time.sleep(self._period)
            with self._lock:
                idle = 0 if self._waiting else idle + 1
                for watched in self._waiting.values():
                    self._cut_if_late(watched)
                self._running = idle < 10

    def _cut_if_late(self, watched: WatchedRequest) -> None:
        if time.monotonic() > watched.due and not watched.was_cut:
            watched.was_cut = True
            with suppress(OSError, psycopg.Error):
                break_connection(watched.connection)


def break_connection(connection: Connection | AsyncConnection) -> None:
    """Break a connection on which another thread waits: that thread wakes with an error."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Retry(Exception):
    """The request has to be sent once more.

    Attributes:
        delay: Seconds to wait before.
    """

    def __init__(self, delay: float) -> None:
        self.delay = delay


class GroupFailed(Exception):
    """A group of requests could not be carried out, whatever the reason; each has to be sent by itself."""


class RetryBudget:
    """Decides which errors of one request are retried: a broken connection once, a lost race until time is up.

    Attributes:
        was_broken: Whether the connection broke before there was a reply.
    """

    def __init__(self, where: str, timeout: float) -> None:
        self._where = where
        self._timeout = timeout
        self._end = time.monotonic() + timeout
        self._resent = self.was_broken = False

    def check(self, error: Exception, watched: WatchedRequest) -> None:
        """Decide what becomes of a request that failed; if it is to fail with this error, return."""
        if watched.was_cut:
            text = f"{self._where}: no answer within {self._timeout} s; if this was a put, it may yet be stored"
            raise StoreUnavailable(text) from error
        if isinstance(error, GroupFailed):
            return
        state = getattr(error, "sqlstate", None)
        if (watched.is_broken or state in SHUFFLED) and not self._resent:
            self._resent, self.was_broken = True, watched.is_broken
            raise Retry(0) from error
        if state in RACES and time.monotonic() < self._end:
            raise Retry(random.uniform(0, 0.02)) from error
