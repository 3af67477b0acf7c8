"""Connections: how they are made and pooled, when they are dropped, which requests are retried, and errors by name."""

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

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
C = TypeVar("C", psycopg.Connection[Any], psycopg.AsyncConnection[Any])
Given: TypeAlias = "str | Connection | AsyncConnection | ConnectionPool[Any] | AsyncConnectionPool[Any]"
"""A connection string, or a connection or pool, which stays the user's."""

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
    # Messages of libpq and psycopg about options, before they connect: `invalid sslmode value: "x"`.
    ("connection is bad: invalid", InvalidInput, "an option of the connection string has a wrong value"),
    ("bad value for", InvalidInput, "an option of the connection string has a wrong value"),
    ("authentication", AccessDenied, "the server refuses this user"),
    ("pg_hba.conf", AccessDenied, "the server refuses this user"),
)

RACES = {"40001", "40P01"}
"""serialization_failure and deadlock_detected; CockroachDB and YugabyteDB ask clients to retry after these."""
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
    except KeelError:
        raise
    except (psycopg.Error, OSError) as error:
        raise name_error(error, where) from error


def is_lost(connection: Connection | AsyncConnection) -> bool:
    """Return whether an idle connection was closed by the server, without a round trip."""
    if connection.closed:
        return True
    # A restart, a failover or a timeout has left something to read on a socket where nothing is due.
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def is_usable(connection: Connection | AsyncConnection) -> bool:
    """Return whether a connection may be used again after a request."""
    pgconn = connection.pgconn
    return pgconn.transaction_status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF


# The pools of psycopg_pool (3.3.3) connect in background threads until the caller's time is up: with a wrong password,
# `PoolTimeout` after all of 5 s, and the reason is only logged. An `AsyncConnectionPool` can be closed in its own loop
# only, but a saver is closed from anywhere; and each pool has four threads. These pools connect in the thread that
# needs a connection, raise the server's error after 1 to 32 ms, and take 16 microseconds to lend one (there: 11).


class _Idle(Generic[C]):
    """The part of a pool that is the same in both faces: connections that are not in use."""

    def __init__(self, size: int, timeout: float, where: str) -> None:
        self._size = size
        self._timeout = timeout
        self._where = where
        self._idle: list[C] = []
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise refuse_closed(self._where)

    def _busy(self) -> StoreBusy:
        return StoreBusy(f"{self._where}: all {self._size} connections were in use for {self._timeout} s")

    def _take(self) -> C | None:
        while self._idle:
            with suppress(IndexError):  # another thread may have been quicker
                connection = self._idle.pop()
                if not is_lost(connection):
                    return connection
                connection.pgconn.finish()
        return None

    def _give_back(self, connection: C) -> None:
        if is_usable(connection) and not self._closed:
            self._idle.append(connection)
        else:
            connection.pgconn.finish()

    def close(self) -> None:
        """Close idle connections now, and those in use when they are given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().pgconn.finish()  # from any thread, also if its loop is closed


class Pool(_Idle[Connection]):
    """Connections of one process, made when they are needed, in the thread that needs them."""

    def __init__(self, connect: Callable[[], Connection], size: int, timeout: float, where: str) -> None:
        super().__init__(size, timeout, where)
        self._connect = connect
        self._slots = threading.Semaphore(size)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection, and take it back for the next caller if it is still usable."""
        self._check_open()
        if not self._slots.acquire(timeout=self._timeout):
            raise self._busy()
        try:
            connection = self._take() or self._connect()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._slots.release()


class AsyncPool(_Idle[AsyncConnection]):
    """As `Pool`, for the tasks of one loop."""

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncConnection]], size: int, timeout: float, where: str
    ) -> None:
        super().__init__(size, timeout, where)
        self._connect = connect
        self._slots = asyncio.Semaphore(size)
        self._lent: set[AsyncConnection] = set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection, and take it back for the next caller if it is still usable."""
        self._check_open()
        if self._slots.locked():
            try:
                await asyncio.wait_for(self._slots.acquire(), self._timeout)
            except TimeoutError:
                raise self._busy() from None
        else:
            await self._slots.acquire()
        try:
            connection = self._take() or await self._connect()
            self._lent.add(connection)
            try:
                yield connection
            finally:
                self._lent.discard(connection)
                self._give_back(connection)
        finally:
            self._slots.release()

    def close_all(self) -> None:
        """Close all connections now, as their loop is dead."""
        self.close()
        for connection in self._lent:
            connection.pgconn.finish()


class OwnConnections:
    """Connections that Keel makes itself: a pool for all threads, and one for each loop."""

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
                    pool.close_all()
            self._pools[loop] = AsyncPool(self.aconnect, *self._limits)
        return self._pools[loop].connection()

    def close(self) -> None:
        """Close all pools."""
        self._pool.close()
        for loop, pool in list(self._pools.items()):
            if loop.is_closed():
                pool.close_all()
            else:
                pool.close()


@dataclass(slots=True)
class WatchedRequest:
    """A request that waits for its reply, until `due` on the clock of `monotonic`."""

    connection: Connection | AsyncConnection
    due: float
    was_cut: bool = False

    @property
    def is_broken(self) -> bool:
        """Whether the connection cannot be used again: closed, or left while it waits for a reply.

        psycopg leaves it so ("connection socket closed") where the socket breaks between two of its polls.
        """
        return self.connection.closed or self.connection.info.transaction_status == TransactionStatus.ACTIVE


class Watchdog:
    """Cuts connections that wait longer than `timeout`: psycopg waits for ever if the network loses an answer.

    One thread watches all requests, and lives while there are any: a timer for each would cost as much as the request.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._period = min(1.0, timeout / 4)
        self._lock = threading.Lock()
        self._waiting: dict[int, WatchedRequest] = {}
        self._running = False

    @contextmanager
    def watch(self, connection: Connection | AsyncConnection, budget: RetryBudget) -> Iterator[None]:
        """Watch a request on `connection`; if it fails, its budget decides whether it is sent again."""
        watched = WatchedRequest(connection, time.monotonic() + self._timeout)
        with self._lock:
            self._waiting[id(watched)] = watched
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="keel-watch", daemon=True).start()
        try:
            yield
        except Exception as error:
            budget.check(error, watched)
            raise
        finally:
            with self._lock:
                del self._waiting[id(watched)]

    def _run(self) -> None:
        idle = 0
        while idle < 10:
            time.sleep(self._period)
            with self._lock:
                idle = 0 if self._waiting else idle + 1
                for watched in self._waiting.values():
                    if time.monotonic() <= watched.due or watched.was_cut:
                        continue
                    watched.was_cut = True
                    # The thread that waits on the connection wakes with an error.
                    with (
                        suppress(OSError, psycopg.Error),
                        socket.socket(fileno=os.dup(watched.connection.fileno())) as end,
                    ):
                        end.shutdown(socket.SHUT_RDWR)
                self._running = idle < 10


class Retry(Exception):
    """The request has to be sent once more, after `delay` seconds."""

    def __init__(self, delay: float) -> None:
        self.delay = delay


class GroupFailed(Exception):
    """A group of requests could not be carried out, for any reason; each has to be sent by itself."""


class RetryBudget:
    """Decides which errors of one request are retried: a broken connection once, a lost race until time is up."""

    def __init__(self, where: str, timeout: float) -> None:
        self._where = where
        self._timeout = timeout
        self._end = time.monotonic() + timeout
        self._resent = self.was_broken = False

    def check(self, error: Exception, watched: WatchedRequest) -> None:
        """Raise `Retry` if a request that failed is to be sent again."""
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
