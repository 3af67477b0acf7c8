"""The SQLite driver: one writing thread per process, and connections for reading.

Reads never wait for a writer and see only data on disk: the write-ahead log shows a commit only after its fsync.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Condition, Lock, RLock, Thread, current_thread, main_thread
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from langgraph_keel.backends.sqlite.connection import (
    MIGRATIONS,
    Migrations,
    connect,
    connect_read_only,
    is_prepared,
    list_due,
    may_only_be_read,
    prepare,
    refuse_to_make,
)
from langgraph_keel.backends.sqlite.entries import MAKE_ROOM, Work
from langgraph_keel.errors import (
    CorruptStore,
    KeelError,
    NewerFormat,
    NotAKeelStore,
    ReadOnlyStore,
    StoreBusy,
    StoreError,
    StoreFull,
    refuse_closed,
)

try:
    import fcntl
    import resource
except ImportError:  # Windows: SQLite's own busy handler is used instead.
    fcntl = resource = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

T = TypeVar("T")
ROOM = 1 << 20
"""Free bytes below which a disk, or the size limit of a file, counts as full."""
WAL_BYTES = 4 << 20
"""Size of the WAL, in bytes, at which it is written back and reused."""
RESERVE = 5 << 20
"""Bytes that the lock file reserves once the WAL has been long."""
LOOK_EVERY = 64
"""Commits between two checks of the size of the WAL."""
SHARED = 64 << 10
"""Bytes of the reserve that are released if a process cannot open the database."""
GROUP = 128
"""Maximum requests per commit; it limits how long the first one waits."""
READERS = 4
"""Maximum threads that read for event loops."""

_BUSY = StoreBusy, "locked by another process or thread for too long; nothing was written"
_FULL = (
    StoreFull,
    "no space left; nothing was written. Free space on the disk, or prune or delete threads (which needs free space "
    "only if the database is too small to have a reserve)",
)
NAMED: Mapping[int, tuple[type[KeelError], str]] = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: (ReadOnlyStore, "it is read-only"),
    sqlite3.SQLITE_NOTADB: (NotAKeelStore, "this is not a SQLite database"),
    sqlite3.SQLITE_CORRUPT: (CorruptStore, "the database is damaged: restore a backup, or try `sqlite3 .recover`"),
}


# -- the lock file, transactions, errors -------------------------------------------------------------------------------


class LockFile:
    """A lock file next to the database; its holder may write.

    The kernel grants the lock in order, and releases it if the process dies. With SQLite's own busy handler some of
    eight processes waited for 3 to 4 s; with the lock file the longest wait was 0.13 s.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path and f"{path}.lock"
        self._handle: int | None = None

    @contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock; wait in the kernel's queue, or poll if there is a timeout."""
        if timeout is not None:
            deadline = time.monotonic() + timeout
            while not self.take():
                if time.monotonic() >= deadline:
                    raise StoreBusy(f"{self._path}: another process has locked the store")
                time.sleep(0.01)
        elif (handle := self._open()) is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.give_back()

    def take(self) -> bool:
        """Take the lock if it is free; return whether it was."""
        handle = self._open()
        if handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def give_back(self) -> None:
        """Release the lock."""
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def keep_reserve(self) -> bool:
        """Allocate the reserve if the disk has room for it; return whether it exists.

        The caller holds the lock.
        """
        handle = self._open()
        if handle is None or not hasattr(os, "posix_fallocate"):
            return False
        if os.fstat(handle).st_size < RESERVE:
            space = os.fstatvfs(handle)
            if space.f_bavail * space.f_frsize < RESERVE + 2 * WAL_BYTES:
                return False
            try:
                os.posix_fallocate(handle, 0, RESERVE)
            except OSError:
                os.ftruncate(handle, 0)
                return False
        return True

    def give_up_reserve(self, nbytes: int = RESERVE) -> bool:
        """Release reserved space; return whether there was any. The caller holds the lock."""
        handle = self._open()
        size = 0 if handle is None else os.fstat(handle).st_size
        if handle is not None and size:
            os.ftruncate(handle, max(0, size - nbytes))
        return bool(size)

    def _open(self) -> int | None:
        if self._handle is None and self._path is not None and fcntl is not None:
            # Same mode as the database: every process that may write it needs the lock.
            mode = stat.S_IMODE(os.stat(self._path.removesuffix(".lock")).st_mode)
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        return self._handle

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def transaction(connection: sqlite3.Connection, kind: str, work: Callable[[], T]) -> T:
    """Call `work` in one transaction (DEFERRED or IMMEDIATE); return its result."""
    if connection.in_transaction:
        # A signal (Ctrl-C) raised between the last two lines of an earlier transaction.
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


def carry_out(connection: sqlite3.Connection, work: Work) -> Any:
    """Run and commit a writing request; return its result."""
    if work.alone and not connection.in_transaction and (result := work.alone(connection.execute)) is not None:
        return result
    return transaction(connection, "IMMEDIATE", partial(work.run, connection.execute))


def name_error(path: str, error: BaseException) -> BaseException:
    """Translate an error of SQLite, a damaged row or the lock file to one of Keel."""
    if isinstance(error, sqlite3.Error):
        kind, what = _name_sqlite_error(path, error)
    elif isinstance(error, KeelError):
        return error
    elif isinstance(error, (TypeError, ValueError, OverflowError)):
        kind, what = CorruptStore, f"a row contains invalid data ({error!r})"
    elif isinstance(error, OSError):  # of the lock file
        kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        what = f"its lock file cannot be used; nothing was written ({error.strerror})"
    else:
        return error
    named = kind(f"{path}: {what}")
    named.__cause__ = error
    if isinstance(named, StoreFull):
        named.room = MAKE_ROOM
    return named


@contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Translate errors with `name_error`."""
    try:
        yield
    except Exception as error:
        named = name_error(path, error)
        if named is error:
            raise
        raise named from error


def _text_or_bytes(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _name_sqlite_error(path: str, error: sqlite3.Error) -> tuple[type[KeelError], str]:
    if "Could not decode to UTF-8" in str(error):  # raised by Python's module, without an SQLite error code
        return CorruptStore, f"a row contains invalid data ({error})"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kind, what = NAMED.get(code, (StoreError, "SQLite failed"))
    if code == sqlite3.SQLITE_CANTOPEN:
        what = _why_not_opened(path)
    if code == sqlite3.SQLITE_IOERR and _has_no_room(path):
        kind, what = _FULL
    return kind, f"{what} ({error})"


def _why_not_opened(path: str) -> str:
    directory = os.path.dirname(path) or "."
    if os.path.isdir(path):
        example = os.path.join(path, "agent.db")
        return f"it is a directory: name a file in it, such as {example}, or open a file store with FileSaver"
    if not os.path.isdir(directory):
        return f"the directory {directory} does not exist: create it, or name another file"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"this process may not write to the directory {directory}: change its mode, or name another file"
    return "it cannot be opened"


def _has_no_room(path: str) -> bool:
    """Return whether the disk or a file is full; SQLite does not always report it."""
    if path == ":memory:" or resource is None:
        return False
    with suppress(OSError):
        space = os.statvfs(path)
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        largest = max(os.stat(file).st_size for file in (path, f"{path}-wal") if os.path.exists(file))
        return space.f_bavail * space.f_frsize < ROOM or 0 <= limit < largest + ROOM
    return False


# -- the writing thread ------------------------------------------------------------------------------------------------


class Job:
    """A request for the writing thread, and the thread or loop waiting for it."""

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.work = work
        self.loop = loop
        self.result: Any = None
        self.error: BaseException | None = None
        self._free = Lock()
        self._done = Lock()
        self._done.acquire()
        self.waiter = loop.create_future() if loop else None

    def claim(self) -> bool:
        """Claim the job, to run or abandon it; return `False` if already claimed."""
        return self._free.acquire(blocking=False)

    def wait(self, timeout: float = -1) -> bool:
        """Block until the job is done, at most `timeout` seconds; return whether it is."""
        return self._done.acquire(timeout=timeout)

    def outcome(self) -> Any:
        """Return the result of a finished job, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result

    def finish(self) -> None:
        """Wake the waiting thread."""
        self._done.release()


Jobs: TypeAlias = SimpleQueue[Job | None]


def take_group(jobs: Jobs) -> list[Job]:
    """Wait for a job, then take all queued ones; none if the driver stops."""
    group: list[Job] = []
    job = jobs.get()
    while job is not None:
        group.append(job)
        if len(group) >= GROUP or jobs.empty():
            return group
        job = jobs.get()
    if group:
        jobs.put(None)
    return group


def fail(group: Iterable[Job], error: BaseException) -> None:
    """Set the error of jobs, including jobs that are not claimed yet."""
    for job in group:
        job.claim()
        job.error = error


def finish(group: Iterable[Job]) -> None:
    """Wake the callers of these jobs: each loop once, as it costs a system call."""
    waiters: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for job in group:
        job.finish()
        if job.loop is not None and job.waiter is not None:
            waiters.setdefault(job.loop, []).append(job.waiter)
    for loop, each in waiters.items():
        # A caller that did not wait may have closed its loop.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_wake, each)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


class Writer:
    """The writer of this process: its own thread or, if that is idle, a caller's.

    It has no reference to its driver, so the thread ends when an unclosed driver is garbage collected.
    """

    def __init__(self, path: str, timeout: float, connection: sqlite3.Connection, lock: LockFile, jobs: Jobs) -> None:
        self._path = path
        self._timeout = timeout
        self._connection = connection
        self._lock = lock
        self._jobs = jobs
        self._turn = Lock()
        self._ended = False
        self._commits = 0
        self._is_tight = False
        self._keeps_deleted = False
        # SQLite writes a long WAL back after a commit, without waiting for readers, while this writer holds the lock:
        # SQLite before 3.51.3 can corrupt a database if one connection checkpoints while another commits. The WAL is
        # then overwritten from its start, not truncated: fsync of a growing file takes longer.
        ((page_size,),) = connection.execute("PRAGMA page_size").fetchall()
        connection.execute(f"PRAGMA wal_autocheckpoint = {max(1, WAL_BYTES // page_size)}")
        connection.execute(f"PRAGMA journal_size_limit = {RESERVE}")  # for a WAL that a reader has held
        self.thread = Thread(target=self._serve, name="keel-writer", daemon=True)
        self.thread.start()

    def take_turn(self) -> bool:
        """Let the calling thread write if the writer is idle; return whether it may.

        That saves two thread switches. Never in the main thread, where a signal may raise an exception between any two
        lines. LangGraph stores checkpoints from its thread pool.
        """
        if current_thread() is main_thread() or not self._turn.acquire(blocking=False):
            return False
        has_lock = False
        try:
            with suppress(OSError):  # the writing thread reports it
                has_lock = not self._ended and self._jobs.empty() and self._lock.take()
        finally:
            if not has_lock:
                self._turn.release()
        return has_lock

    def write_here(self, request: Work) -> Any:
        """Run a request in the calling thread, after `take_turn`, and release the turn."""
        try:
            if request.makes_room:
                return self._make_room()
            result = carry_out(self._connection, request)
            self._after_commit(request.removes)
            return result
        except KeelError:
            raise
        except Exception as error:
            raise name_error(self._path, error) from error
        finally:
            self._lock.give_back()
            self._turn.release()

    def _serve(self) -> None:
        while group := take_group(self._jobs):
            with self._turn:
                try:
                    self._commit_group(group)
                except BaseException as error:
                    fail(group, error)
            finish(group)
            del group  # otherwise it keeps the requests and their loop alive until the next group
        with self._turn:
            self._ended = True
            with suppress(sqlite3.Error, OSError), self._lock.hold():
                self._connection.close()
            self._lock.close()

    def _commit_group(self, group: list[Job]) -> None:
        with named_errors(self._path), self._lock.hold():
            jobs = [job for job in group if job.claim()]
            for job in [job for job in jobs if job.work.makes_room]:
                jobs.remove(job)
                job.result = self._make_room()
            _commit(self._connection, self._path, jobs)
            self._after_commit(any(job.work.removes for job in jobs))

    def _make_room(self) -> bool:
        """Release the reserve so the database can grow; return whether there was one.

        Until the reserve is restored, deleted rows are not overwritten (`secure_delete`): a removal would write as much
        to the log as it deletes.
        """
        if not self._lock.give_up_reserve():
            return False
        _log.warning(
            "%s: the disk is full: the space reserved for removals was released. Content deleted now remains in free "
            "parts of the file until `keel reclaim --full`",
            self._path,
        )
        self._is_tight = True
        self._connection.execute("PRAGMA secure_delete = FAST")
        self._checkpoint()
        return True

    def _after_commit(self, removes: bool) -> None:
        """Truncate the WAL if it contains deleted rows; allocate a reserve if due."""
        looks = self._commits % LOOK_EVERY == 0
        self._commits += 1
        if removes or (looks and self._keeps_deleted):
            self._keeps_deleted = not self._checkpoint()
        has_reserve = (self._is_tight or (looks and self._was_long())) and self._lock.keep_reserve()
        if has_reserve and self._is_tight:
            self._connection.execute("PRAGMA secure_delete = ON")
            self._is_tight = False

    def _was_long(self) -> bool:
        with suppress(FileNotFoundError):
            return os.stat(f"{self._path}-wal").st_size > WAL_BYTES
        return False

    def _checkpoint(self) -> bool:
        """Write the WAL back and truncate it; return `False` if a reader prevents it."""
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            (busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError:
            return False
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {int(self._timeout * 1000)}")
        return not busy


def _commit(connection: sqlite3.Connection, path: str, group: list[Job]) -> None:
    """Run requests in one transaction (one fsync); set each job's result or error."""

    def run_all() -> None:
        for job in group:
            job.result = job.work.run(connection.execute)

    try:
        if len(group) == 1:
            group[0].result = carry_out(connection, group[0].work)
        else:
            transaction(connection, "IMMEDIATE", run_all)
    except BaseException as error:
        named = name_error(path, error)
        fail(group, named)
        if len(group) > 1 and not isinstance(named, (StoreBusy, StoreFull)):
            # One request failed, so none is stored: run each separately, so that only that one fails.
            for job in group:
                job.error = None
                _commit(connection, path, [job])


def _abandon(jobs: Jobs, idle: SimpleQueue[sqlite3.Connection]) -> None:
    """End the writing thread of an abandoned driver, and close its connections."""
    jobs.put(None)
    _close_all(idle)


def _close_all(idle: SimpleQueue[sqlite3.Connection]) -> None:
    with suppress(Empty):
        while True:
            idle.get_nowait().close()


_drivers: WeakSet[SqliteDriver] = WeakSet()


def _call_drivers(act: Callable[[SqliteDriver], None]) -> None:
    for driver in list(_drivers):
        act(driver)


# A forked child inherits SQLite's table of locks, but not the locks. If it opens a database that its parent had open,
# it takes no lock, and loses its commits when the parent closes. So all connections are closed before a fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _call_drivers(SqliteDriver.suspend),
        after_in_parent=lambda: _call_drivers(SqliteDriver.resume),
        after_in_child=lambda: _call_drivers(SqliteDriver.forget),
    )


class SqliteDriver:
    """Runs requests on one database file, or on a database in memory (`:memory:`)."""

    def __init__(
        self, path: str, *, timeout: float, read_only: bool, auto_setup: bool, migrations: Migrations = MIGRATIONS
    ) -> None:
        self.path = path
        self.migrations = migrations
        self.timeout = timeout
        self.read_only = read_only
        self.auto_setup = auto_setup
        self.private = path == ":memory:"
        self._closed = False
        self.forget()
        _drivers.add(self)

    def forget(self) -> None:
        """Reset all state: a forked child has neither the parent's threads nor locks."""
        self._starting = RLock()
        self._gate = Condition()
        self._is_open = True
        self._reading = 0
        self._jobs: Jobs = SimpleQueue()
        self._idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        self._writer: Writer | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._ready = False
        weakref.finalize(self, _abandon, self._jobs, self._idle).atexit = False

    def suspend(self) -> None:
        """Close all connections, and open none until `resume`."""
        self._starting.acquire()
        with self._gate:
            self._is_open = False
            self._gate.wait_for(lambda: not self._reading, self.timeout)
        if not self.private:
            self._stop()

    def resume(self) -> None:
        """Continue after `suspend`, and run the requests queued since."""
        with self._gate:
            self._is_open = True
            self._gate.notify_all()
        self._starting.release()
        if not self._jobs.empty():
            self._start_writer()

    # -- sending -----------------------------------------------------------------------------------------------

    def send(self, request: Work) -> Any:
        """Run `request` in one transaction and return its result."""
        try:
            if not self._ready:
                self._start()
            if read := self._read_first(request):
                reply = self.read(read)
                if reply is not None or not request.writes:
                    return reply
            writer = self._writer or self._start_writer()
            if writer.take_turn():
                return writer.write_here(request)
            job = Job(request)
            self._jobs.put(job)
            if not self._is_writing():
                self._start_writer()
            if not job.wait(self.timeout):
                if job.claim():
                    raise self._busy()
                job.wait()
            return job.outcome()
        except StoreError as error:
            self._refuse_newer(error)
            raise

    async def asend(self, request: Work) -> Any:
        """Like `send`, without blocking the running loop."""
        loop = asyncio.get_running_loop()
        try:
            if not self._ready:
                await loop.run_in_executor(None, self._start)
            if read := self._read_first(request):
                if self._readers is None:
                    self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="keel-reader")
                reply = await loop.run_in_executor(self._readers, self.read, read)
                if reply is not None or not request.writes:
                    return reply
            job = Job(request, loop)
            self._jobs.put(job)
            if not self._is_writing():
                await loop.run_in_executor(None, self._start_writer)
            assert job.waiter is not None
            try:
                async with asyncio.timeout(self.timeout):
                    await asyncio.shield(job.waiter)
            except TimeoutError:
                if job.claim():
                    raise self._busy() from None
                await job.waiter
            except asyncio.CancelledError:
                job.claim()
                raise
            return job.outcome()
        except StoreError as error:
            await loop.run_in_executor(None, self._refuse_newer, error)
            raise

    def _refuse_newer(self, error: StoreError) -> None:
        """Raise `NewerFormat` if a newer format explains an error (missing columns)."""
        if type(error) not in (StoreError, CorruptStore) or self.private:
            return
        try:
            with named_errors(self.path):
                list_due(self.path, self.migrations)
        except NewerFormat:
            raise
        except KeelError:
            return  # the caller raises the first error

    def _read_first(self, request: Work) -> Work | None:
        """Return a read to try first; a writing request writes if it replies `None`."""
        if request.writes and self.read_only:
            raise ReadOnlyStore(f"{self.path} may only be read: its mode forbids writing, or it was opened read-only")
        if self.private or (request.writes and not request.unless):
            return None
        return Work(request.unless) if request.writes and request.unless else request

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"{self.path}: another process or thread held the store for more than {self.timeout} s; nothing was written"
        )

    # -- starting and stopping ---------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._ready:
            return
        with self._starting:
            if self._closed:
                raise refuse_closed(self.path)
            if not self._ready:
                self._open()
                self._ready = True

    def _open(self) -> None:
        if not self.private:
            # The program may change its directory; and SQLite names the WAL after the target of a link.
            self.path = os.path.realpath(self.path)
        self.read_only = self.read_only or may_only_be_read(self.path)
        if self.read_only:
            with named_errors(self.path):
                self._idle.put(connect_read_only(self.path, self.migrations))
            return
        if not (self.private or os.path.exists(self.path)):
            if not self.auto_setup:
                raise refuse_to_make(self.path)
            # Readable by its owner only. SQLite gives its logs the same mode, and reports any failure of this.
            with suppress(OSError):
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            connection = self._connect()
        except StoreFull:  # SQLite creates a file (-shm) also for reading
            with closing(self._lock_file()) as lock, lock.hold(self.timeout):
                if not lock.give_up_reserve(SHARED):
                    raise
            connection = self._connect()
        if self.private:
            self._write_with(connection)
        else:
            self._idle.put(connection)  # many processes only read

    def _connect(self) -> sqlite3.Connection:
        with named_errors(self.path):
            connection = connect(self.path, self.timeout)
            try:
                if not is_prepared(connection, self.path, self.migrations):
                    with closing(self._lock_file()) as lock, lock.hold(self.timeout):
                        prepare(connection, self.path, self.auto_setup, self.migrations)
            except BaseException:
                connection.close()
                raise
            return connection

    def _lock_file(self) -> LockFile:
        return LockFile(None if self.private else self.path)

    def _is_writing(self) -> bool:
        return self._ready and self._writer is not None

    def _start_writer(self) -> Writer:
        """Open the database and the writing connection."""
        self._start()
        with self._starting:
            if self._closed:
                raise refuse_closed(self.path)
            if self._writer is None:
                with named_errors(self.path):
                    self._write_with(connect(self.path, self.timeout))
            assert self._writer is not None
            return self._writer

    def _write_with(self, connection: sqlite3.Connection) -> None:
        self._writer = Writer(self.path, self.timeout, connection, self._lock_file(), self._jobs)

    def setup(self) -> None:
        """Create missing tables now."""
        self.auto_setup = True
        self._start()

    def close(self) -> None:
        """Finish queued requests and close all connections; calling it again does nothing."""
        with self._starting:
            self._closed = True
            self._stop()
            if self._readers:
                self._readers.shutdown()
                self._readers = None
            with suppress(Empty):
                while True:
                    if job := self._jobs.get_nowait():
                        fail([job], refuse_closed(self.path))
                        finish([job])

    def _stop(self) -> None:
        self._ready = False
        if self._writer:
            self._jobs.put(None)
            # With a timeout, because the process that holds the lock file may be suspended.
            self._writer.thread.join(self.timeout)
            self._writer = None
        _close_all(self._idle)

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, request: Work) -> Any:
        """Run a reading request on its own connection."""
        try:
            with self.lend() as connection:
                connection.text_factory = _text_or_bytes if request.takes_bytes else str
                # A single statement needs no transaction, unless an earlier one was left open (see `transaction`).
                if request.unless and not connection.in_transaction:
                    reply = request.unless(connection.execute)
                    if reply is not None:
                        return reply
                return transaction(connection, "DEFERRED", partial(request.run, connection.execute))
        except KeelError:
            raise
        except Exception as error:
            raise name_error(self.path, error) from error

    @contextmanager
    def lend(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for reading; a fork waits for it (see `suspend`)."""
        with self._gate:
            while not self._is_open:
                self._gate.wait()
            self._reading += 1
        try:
            try:
                connection = self._idle.get_nowait()
            except Empty:
                if self.read_only:
                    connection = connect_read_only(self.path, self.migrations)
                else:
                    connection = connect(self.path, self.timeout)
            try:
                yield connection
            finally:
                self._idle.put(connection)
        finally:
            with self._gate:
                self._reading -= 1
                if not self._is_open:
                    self._gate.notify_all()


class AsyncSqliteDriver:
    """The same driver, for a running loop."""

    def __init__(self, driver: SqliteDriver) -> None:
        self._driver = driver

    async def send(self, request: Work) -> Any:
        """Call `SqliteDriver.asend`."""
        return await self._driver.asend(request)
