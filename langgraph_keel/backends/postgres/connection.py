"""Open, pool and drop connections; retry requests; translate errors."""

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
"""A connection string, or the user's own connection or pool."""

# The first match applies.
NAMED: tuple[tuple[tuple[type[Exception], ...], type[KeelError], str], ...] = (
    ((pg.InsufficientPrivilege,), AccessDenied, "this user lacks a permission"),
    ((pg.UndefinedTable, pg.InvalidSchemaName), NotSetUp, "the tables are missing"),
    ((pg.ReadOnlySqlTransaction,), ReadOnlyStore, "the server takes no writes (a replica, or set read-only)"),
    (
        (pg.DiskFull, pg.OutOfMemory, pg.ConfigurationLimitExceeded),
        StoreFull,
        "the server has no space left, free some there",
    ),
    ((pg.QueryCanceled,), StoreBusy, "the server cancelled the statement (statement_timeout or a cancel request)"),
    ((pg.LockNotAvailable,), StoreBusy, "a lock was not available in time"),
    ((pg.SerializationFailure, pg.DeadlockDetected), StoreBusy, "other processes kept writing to the same thread"),
    (
        (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement),
        StoreError,
        "a pooler drops prepared statements (PgBouncer, transaction pooling): open with prepare_threshold=None",
    ),
    ((pg.NumericValueOutOfRange,), StoreError, "an item log contains 2^31 items: continue in a new thread"),
)
# Connection errors have no code in psycopg, only the server's text. In languages other than English they are not
# recognized and become `StoreUnavailable`.
WORDED: tuple[tuple[str, type[KeelError], str], ...] = (
    ("too many clients", StoreBusy, "the server accepts no more connections"),
    ("too many connections", StoreBusy, "the server accepts no more connections"),
    ("remaining connection slots", StoreBusy, "the server accepts no more connections"),
    ('role "', AccessDenied, "the server refuses this user"),
    ("does not exist", StoreUnavailable, "this database does not exist, create it first"),
    ("password", AccessDenied, "the server refuses this user"),
    # Messages of libpq and psycopg about options, before connecting: `invalid sslmode value: "x"`.
    ("connection is bad: invalid", InvalidInput, "an option of the connection string has a wrong value"),
    ("bad value for", InvalidInput, "an option of the connection string has a wrong value"),
    ("authentication", AccessDenied, "the server refuses this user"),
    ("pg_hba.conf", AccessDenied, "the server refuses this user"),
)

RACES = {"40001", "40P01"}
"""serialization_failure and deadlock_detected, after which clients should retry."""
SHUFFLED = {"26000", "42P05"}
"""A prepared statement is missing or duplicate: a pooler switched connections."""


def name_error(error: BaseException, where: str) -> BaseException:
    """Return Keel's error for an error of psycopg; other errors unchanged."""
    if not isinstance(error, (psycopg.Error, OSError)) or isinstance(error, KeelError):
        return error
    text = " ".join(str(error).replace("\n\t", ". ").split())  # libpq indents its advice
    for kinds, kind, what in NAMED:
        if isinstance(error, kinds):
            return kind(f"{where}: {what} ({text})")
    for words, kind, what in WORDED if getattr(error, "sqlstate", None) is None else ():
        if words in text:
            return kind(f"{where}: {what} ({text.rpartition('FATAL: ')[2]})")
    # Errors of a user's own pool; psycopg_pool may not be installed.
    if type(error).__name__ == "PoolTimeout":
        return StoreBusy(f"{where}: all connections of the pool were in use: {text}")
    if type(error).__name__ == "PoolClosed":
        return StoreClosed(f"{where}: {text}")
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError)):
        return StoreUnavailable(f"{where}: {text}")
    return StoreError(f"{where}: {type(error).__name__}: {text}")


@contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Translate errors of psycopg with `name_error`."""
    try:
        yield
    except KeelError:
        raise
    except (psycopg.Error, OSError) as error:
        raise name_error(error, where) from error


def is_lost(connection: Connection | AsyncConnection) -> bool:
    """Return whether the server closed an idle connection, without a round trip."""
    if connection.closed:
        return True
    # A restart, a failover or a timeout left unexpected data to read on the socket.
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def is_usable(connection: Connection | AsyncConnection) -> bool:
    """Return whether a connection may be used again after a request."""
    pgconn = connection.pgconn
    return pgconn.transaction_status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF


# The pools of psycopg_pool (3.3.3) have four threads each and connect in the background until the caller's timeout:
# with a wrong password, `PoolTimeout` after 5 s, and the reason is only logged. An `AsyncConnectionPool` can be closed
# only in its own loop, but a saver must be closable anywhere. These pools connect in the thread that needs a
# connection, raise the server's error after 1 to 32 ms, and lend a connection in 16 microseconds (there: 11).


class _Idle(Generic[C]):
    """Idle connections: the part shared by the blocking and the async pool."""

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
            with suppress(IndexError):  # another thread may have taken it
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
        """Close idle connections now, and used ones when they are returned."""
        self._closed = True
        while self._idle:
            self._idle.pop().pgconn.finish()  # works in any thread, even if the loop is closed


class Pool(_Idle[Connection]):
    """Connections of one process, opened on demand in the requesting thread."""

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
    """Like `Pool`, for the tasks of one loop."""

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
        """Close all connections now; their loop is closed."""
        self.close()
        for connection in self._lent:
            connection.pgconn.finish()


class OwnConnections:
    """Keel's own connections: a pool for all threads, and one per event loop."""

    blocks = False

    def __init__(self, conninfo: str, options: Mapping[str, Any], size: int, timeout: float, where: str) -> None:
        self._conninfo = conninfo
        self._options = options
        self._limits = size, timeout, where
        self._pool = Pool(self.connect, *self._limits)
        self._pools: dict[asyncio.AbstractEventLoop, AsyncPool] = {}

    def connect(self) -> Connection:
        """Return a connection outside the pools; the caller closes it."""
        return OwnConnection.connect(self._conninfo, **self._options)

    async def aconnect(self) -> AsyncConnection:
        """Like `connect`, for the running loop."""
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
                if pool is not None:  # another thread's loop may have removed it
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
    """A request that waits for its reply until `due` (`monotonic`)."""

    connection: Connection | AsyncConnection
    due: float
    was_cut: bool = False

    @property
    def is_broken(self) -> bool:
        """Whether the connection cannot be reused: closed, or still waiting for a reply.

        psycopg leaves it waiting ("connection socket closed") if the socket breaks between two polls.
        """
        return self.connection.closed or self.connection.info.transaction_status == TransactionStatus.ACTIVE


class Watchdog:
    """Closes connections that wait longer than `timeout` for a reply.

    psycopg itself waits forever if the network loses a reply. One thread watches all requests while there are any: a
    timer per request would cost as much as the request.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._period = min(1.0, timeout / 4)
        self._lock = threading.Lock()
        self._waiting: dict[int, WatchedRequest] = {}
        self._running = False

    @contextmanager
    def watch(self, connection: Connection | AsyncConnection, budget: RetryBudget) -> Iterator[None]:
        """Watch a request; if it fails, its budget decides whether to send it again."""
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
                    # This wakes the thread that waits on the connection, with an error.
                    with (
                        suppress(OSError, psycopg.Error),
                        socket.socket(fileno=os.dup(watched.connection.fileno())) as end,
                    ):
                        end.shutdown(socket.SHUT_RDWR)
                self._running = idle < 10


class Retry(Exception):
    """The request must be sent again, after `delay` seconds."""

    def __init__(self, delay: float) -> None:
        self.delay = delay


class GroupFailed(Exception):
    """A group of requests failed; each must be sent separately."""


class RetryBudget:
    """Retries a request once after a broken connection; after races until timeout."""

    def __init__(self, where: str, timeout: float) -> None:
        self._where = where
        self._timeout = timeout
        self._end = time.monotonic() + timeout
        self._resent = self.was_broken = False

    def check(self, error: Exception, watched: WatchedRequest) -> None:
        """Raise `Retry` if a failed request should be sent again."""
        if watched.was_cut:
            text = f"{self._where}: no reply within {self._timeout} s; a write may still be stored"
            raise StoreUnavailable(text) from error
        if isinstance(error, GroupFailed):
            return
        state = getattr(error, "sqlstate", None)
        if (watched.is_broken or state in SHUFFLED) and not self._resent:
            self._resent, self.was_broken = True, watched.is_broken
            raise Retry(0) from error
        if state in RACES and time.monotonic() < self._end:
            raise Retry(random.uniform(0, 0.02)) from error
