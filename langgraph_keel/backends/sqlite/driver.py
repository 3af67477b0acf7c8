"""The SQLite driver: connections, one writing thread for each process, group commit, and who may write when.

* One thread of the process writes, or a thread that finds nobody writing and takes that turn itself. The writing thread
  takes what has queued up, runs all of it in one `IMMEDIATE` transaction, and commits once,
  so that many waiting puts cost one fsync. If one of them fails, nothing is stored, and each is run by itself. WAL with
  `synchronous=FULL`: `NORMAL` loses acknowledged commits when the power fails.
* Between processes, a lock file beside the database says whose turn it is. Measured with eight processes that
  commit rows of 1 KB: SQLite's own busy handler made some of them wait for 3 to 4 s (1,220 to 1,690 commits/s), with
  the lock the longest wait was 0.13 s (1,140 commits/s).
* The WAL is checkpointed under that lock only: SQLite before 3.51.3 can corrupt a database when a checkpoint and a
  commit of two connections meet.
* Reads have connections of their own, each read is one transaction, and none waits for the writer. Nor does a request
  to write that a read can answer (`Work.unless`): what a read sees is on disk, as WAL shows a commit after its fsync.

A `Job` is a request on its way to the writing thread, and back to the thread or the loop that waits for it.
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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Lock, RLock, Thread, current_thread, main_thread
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from langgraph_keel.backends.sqlite.connection import (
    MIGRATIONS,
    Migrations,
    connect,
    connect_read_only,
    create_private,
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
except ImportError:  # Windows: SQLite's own busy handler has to do.
    fcntl = resource = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

T = TypeVar("T")
ROOM = 1 << 20
"""Bytes that a disk has left when it is said to be full, and a file before it is said to be as large as it may be."""
WAL_BYTES = 4 << 20
"""Size of the WAL from which it is written back to the database."""
RESERVE = 5 << 20
"""Bytes that the lock file takes, once a log was written back: as many as a whole log needs in the database, and some
for what a removal writes."""
SHARED = 64 << 10
"""Bytes of that which a process is given that cannot open the database."""
GROUP = 128
"""Most requests in one commit, which bounds how long the first of them waits."""

READERS = 4
"""Threads that read for running loops."""


# -- whose turn it is, transactions, errors ----------------------------------------------------------------------------


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

    def keep_reserve(self) -> bool:
        """Have the file take space that can be given up when the disk is full; return whether it does.

        Not where there would be too little left for the log to go on. Who holds the lock calls this.
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
        """Give so much of the space back; return whether there was some. Who holds the lock calls this."""
        handle = self._open()
        size = 0 if handle is None else os.fstat(handle).st_size
        if handle is not None and size:
            os.ftruncate(handle, max(0, size - nbytes))
        return bool(size)

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
        raise _name_sqlite_error(path, error) from error
    except KeelError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise CorruptStore(f"{path}: a row does not hold what it should ({error!r})") from error
    except OSError as error:  # of the lock file
        what = f"its lock file cannot be used; nothing was written ({error.strerror})"
        kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise _named(kind, path, what) from error


def name_error(path: str, error: BaseException) -> BaseException:
    """Return the error that `named_errors` raises in the place of another."""
    try:
        with named_errors(path):
            raise error
    except BaseException as named:
        return named


def _text_or_bytes(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _name_sqlite_error(path: str, error: sqlite3.Error) -> KeelError:
    if "Could not decode to UTF-8" in str(error):  # of Python's module: SQLite has not failed, and there is no code
        return CorruptStore(f"{path}: a row does not hold what it should ({error})")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kinds: dict[int, tuple[type[KeelError], str]] = {
        sqlite3.SQLITE_BUSY: (StoreBusy, "locked by somebody else for too long; nothing was written"),
        sqlite3.SQLITE_LOCKED: (StoreBusy, "locked by somebody else for too long; nothing was written"),
        sqlite3.SQLITE_FULL: (
            StoreFull,
            "no space left, and nothing was written: free some on the disk, or prune or delete threads, which needs "
            "none unless the database is so small that it has no reserve yet",
        ),
        sqlite3.SQLITE_READONLY: (ReadOnlyStore, "it cannot be written"),
        sqlite3.SQLITE_NOTADB: (NotAKeelStore, "this is no SQLite database"),
        sqlite3.SQLITE_CORRUPT: (
            CorruptStore,
            "the database is damaged: restore a copy, or try `sqlite3 .recover`",
        ),
    }
    kind, what = kinds.get(code, (StoreError, "SQLite failed"))
    if code == sqlite3.SQLITE_CANTOPEN:
        what = _why_not_opened(path)
    if code == sqlite3.SQLITE_IOERR and _has_no_room(path):
        kind, what = kinds[sqlite3.SQLITE_FULL]
    return _named(kind, path, f"{what} ({error})")


def _named(kind: type[KeelError], path: str, what: str) -> KeelError:
    named = kind(f"{path}: {what}")
    if isinstance(named, StoreFull):
        named.room = MAKE_ROOM
    return named


def _why_not_opened(path: str) -> str:
    directory = os.path.dirname(path) or "."
    if os.path.isdir(path):
        example = os.path.join(path, "agent.db")
        return f"it is a directory: name a file in it, such as {example}, or open a store of files with FileSaver"
    if not os.path.isdir(directory):
        return f"the directory {directory} does not exist: create it, or name another file"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"this process may not write in the directory {directory}: change its mode, or name another file"
    return "it cannot be opened"


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


# -- who writes --------------------------------------------------------------------------------------------------------


class Job:
    """One request and the caller who waits for it.

    Either the writing thread claims it, and then carries it out, or the caller gives it up before that, and then it is
    not carried out. `list.append` is atomic, so whoever comes first in the list of claims has the job.
    """

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.work = work
        self.loop = loop
        self.result: Any = None
        self.error: BaseException | None = None
        self._claims: list[str] = []
        self._done = Lock()
        self._done.acquire()
        self.waiter = loop.create_future() if loop else None

    def claim(self) -> bool:
        """Take the job to carry it out; `False` if the caller gave it up."""
        return self._take("writer")

    def give_up(self) -> bool:
        """Take the job back; `False` if it is being carried out."""
        return self._take("caller")

    def _take(self, who: str) -> bool:
        self._claims.append(who)
        return self._claims[0] == who

    def wait(self, timeout: float = -1) -> bool:
        """Block until the job is done, or for `timeout` seconds; return whether it is done."""
        return self._done.acquire(timeout=timeout)

    def outcome(self) -> Any:
        """Return the result of a job that is done, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result

    def finish(self) -> None:
        """Let a waiting thread go on."""
        self._done.release()


Jobs: TypeAlias = SimpleQueue[Job | None]


def take_group(jobs: Jobs) -> list[Job]:
    """Wait for a job, then take all that are queued; an empty list means that the driver stops."""
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
    """Give jobs an error as their outcome, also those that nobody has claimed yet."""
    for job in group:
        job.claim()
        job.error = error


def finish(group: Iterable[Job]) -> None:
    """Wake all who wait for these jobs; each loop is woken once only, as that is a system call."""
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
    """Who writes for this process: one thread, or whoever takes its turn while it waits.

    It does not know its driver, so that the thread ends when the driver is forgotten without having been closed.

    Args:
        path: The database.
        timeout: Seconds that SQLite may wait for another connection.
        connection: What to write with.
        lock: The lock file.
        jobs: What is to be carried out.
    """

    def __init__(self, path: str, timeout: float, connection: sqlite3.Connection, lock: LockFile, jobs: Jobs) -> None:
        self._path = path
        self._timeout = timeout
        self._connection = connection
        self._lock = lock
        self._jobs = jobs
        self._turn = Lock()
        self._ended = False
        self._wal_limit = WAL_BYTES
        self._is_tight = False
        self._thread = Thread(target=self._serve, name="keel-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait until the thread has ended, as `None` among the jobs bids it."""
        self._thread.join(timeout)

    def take_turn(self) -> bool:
        """Take the turn to write for the calling thread, if nobody is writing: that saves two changes of threads.

        Never in the main thread, where a signal may raise an exception between any two lines. (LangGraph's puts come
        from its thread pool.)
        """
        if current_thread() is main_thread() or not self._turn.acquire(blocking=False):
            return False
        has_lock = False
        try:
            with suppress(OSError):  # the writing thread will say what it is
                has_lock = not self._ended and self._jobs.empty() and self._lock.take()
        finally:
            if not has_lock:
                self._turn.release()
        return has_lock

    def write_here(self, request: Work) -> Any:
        """Carry out a request in the thread that has the turn, and give it back."""
        try:
            if request.makes_room:
                return self._make_room()
            result = transaction(self._connection, "IMMEDIATE", partial(request.run, self._connection.execute))
            self._write_back()
            return result
        except KeelError:
            raise
        except Exception as error:
            raise name_error(self._path, error) from error
        finally:
            self._lock.give_back()
            self._turn.release()

    # -- what runs in the writing thread ---------------------------------------------------------------------------

    def _serve(self) -> None:
        while group := take_group(self._jobs):
            with self._turn:
                try:
                    self._commit_group(group)
                except BaseException as error:
                    fail(group, error)
            finish(group)
            del group  # or it would keep what the requests hold, and their loop, until the next one
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
            self._write_back()

    def _make_room(self) -> bool:
        """Give up the reserve, so that the log can be written back and begin anew; return whether there was one.

        The database has to grow for what is in the log, which a full disk refuses. Until there is a reserve again, what
        is deleted is not overwritten (`secure_delete`): a removal would write as much to the log as it removes.
        """
        if not self._lock.give_up_reserve():
            return False
        _log.warning(
            "%s: the disk is full: space was given up that is kept for removing something. What is removed now stays "
            "in free parts of the file until it is written anew (keel reclaim --full)",
            self._path,
        )
        self._is_tight = True
        self._connection.execute("PRAGMA secure_delete = FAST")
        self._checkpoint()
        return True

    def _write_back(self) -> None:
        """Write a long WAL back to the database, unless somebody is reading an old state of it."""
        if self._path == ":memory:":
            return
        if self._is_tight:
            self._keep_reserve()
        try:
            size = os.stat(f"{self._path}-wal").st_size
        except FileNotFoundError:
            return
        if size <= self._wal_limit:
            return
        is_done = self._checkpoint()
        if is_done is not None:
            # A backup may read for long, and everybody would wait for it here: try again when the WAL has grown more.
            self._wal_limit = WAL_BYTES if is_done else size + WAL_BYTES
            self._keep_reserve()

    def _checkpoint(self) -> bool | None:
        """Write the WAL back, and have it begin anew; return whether it does, or `None` if SQLite failed."""
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            (busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError:
            return None
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {int(self._timeout * 1000)}")
        return not busy

    def _keep_reserve(self) -> None:
        if self._lock.keep_reserve() and self._is_tight:
            self._connection.execute("PRAGMA secure_delete = ON")
            self._is_tight = False


def _commit(connection: sqlite3.Connection, path: str, group: list[Job]) -> None:
    """Run requests in one transaction; leave its result or its error in each job."""
    try:
        transaction(connection, "IMMEDIATE", lambda: _run_all(connection, group))
    except BaseException as error:
        named = name_error(path, error)
        fail(group, named)
        if len(group) > 1 and not isinstance(named, (StoreBusy, StoreFull)):
            # One of them failed, and nothing is stored: run each by itself, so that only that one fails.
            for job in group:
                job.error = None
                _commit(connection, path, [job])


def _run_all(connection: sqlite3.Connection, group: list[Job]) -> None:
    for job in group:
        job.result = job.work.run(connection.execute)


def _abandon(jobs: Jobs, idle: SimpleQueue[sqlite3.Connection]) -> None:
    """End the writing thread of a driver that was forgotten, and close its connections."""
    jobs.put(None)
    _close_all(idle)


def _close_all(idle: SimpleQueue[sqlite3.Connection]) -> None:
    with suppress(Empty):
        while True:
            idle.get_nowait().close()


_drivers: WeakSet[SqliteDriver] = WeakSet()


def _before_fork() -> None:
    for driver in list(_drivers):
        driver.suspend()


def _after_fork_in_parent() -> None:
    for driver in list(_drivers):
        driver.resume()


def _after_fork_in_child() -> None:
    for driver in list(_drivers):
        driver.forget()


# A fork inherits SQLite's table of locks, but not the locks themselves: a child that opens a database which was open in
# its parent takes no lock at all, and loses its commits when the parent closes. So nothing stays open over a fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class SqliteDriver:
    """Runs requests on one database file, or on a private database in memory (`:memory:`).

    Args:
        path: The file, or `":memory:"`.
        timeout: Seconds a request may wait for other processes before `StoreBusy`.
        read_only: Refuse to write, and do not create what is missing.
        auto_setup: Create the tables on first use.
        migrations: What leads to the present format.
    """

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
        """Start from nothing, as a forked child must: its threads are gone, and nobody releases the locks they held."""
        self._starting = RLock()
        self._gate = Lock()
        self._opened = Event()
        self._opened.set()
        self._reading = 0
        self._jobs: Jobs = SimpleQueue()
        self._idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        self._writer: Writer | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._ready = False
        weakref.finalize(self, _abandon, self._jobs, self._idle).atexit = False

    def suspend(self) -> None:
        """Close all connections and let nobody open one until `resume`."""
        self._starting.acquire()
        with self._gate:
            self._opened.clear()
        deadline = time.monotonic() + self.timeout
        while self._reading and time.monotonic() < deadline:
            time.sleep(0.001)
        if not self.private:
            self._stop()

    def resume(self) -> None:
        """Go on after `suspend`, and carry out what was sent meanwhile."""
        self._opened.set()
        self._starting.release()
        if not self._jobs.empty():
            self._start_writer()

    # -- sending -----------------------------------------------------------------------------------------------

    def send(self, request: Work) -> Any:
        """Run `request` in one transaction and return its result."""
        try:
            if not self._ready:
                self._start()
            if not self._goes_to_writer(request):
                return self.read(request)
            if (look := self._look_first(request)) and (reply := self.read(look)) is not None:
                return reply
            writer = self._writer or self._start_writer()
            if writer.take_turn():
                return writer.write_here(request)
            job = self._submit(Job(request))
            if not self._is_writing():
                self._start_writer()
            if not job.wait(self.timeout):
                if job.give_up():
                    raise self._busy()
                job.wait()
            return job.outcome()
        except StoreError as error:
            self._refuse_newer(error)
            raise

    async def asend(self, request: Work) -> Any:
        """As `send`, without blocking the running loop."""
        loop = asyncio.get_running_loop()
        try:
            if not self._ready:
                await loop.run_in_executor(None, self._start)
            if not self._goes_to_writer(request):
                return await loop.run_in_executor(self._reader_threads(), self.read, request)
            if look := self._look_first(request):
                reply = await loop.run_in_executor(self._reader_threads(), self.read, look)
                if reply is not None:
                    return reply
            job = self._submit(Job(request, loop))
            if not self._is_writing():
                await loop.run_in_executor(None, self._start_writer)
            assert job.waiter is not None
            try:
                async with asyncio.timeout(self.timeout):
                    await asyncio.shield(job.waiter)
            except TimeoutError:
                if job.give_up():
                    raise self._busy() from None
                await job.waiter
            except asyncio.CancelledError:
                job.give_up()
                raise
            return job.outcome()
        except StoreError as error:
            await loop.run_in_executor(None, self._refuse_newer, error)
            raise

    def _refuse_newer(self, error: StoreError) -> None:
        """Raise `NewerFormat` if an error comes from a newer format: a column is gone, a row is different."""
        if type(error) not in (StoreError, CorruptStore) or self.private:
            return
        try:
            with named_errors(self.path):
                list_due(self.path, self.migrations)
        except NewerFormat:
            raise
        except KeelError:
            return  # the first error says it

    def _goes_to_writer(self, request: Work) -> bool:
        if request.writes and self.read_only:
            raise ReadOnlyStore(f"{self.path} may only be read, by its mode or because it was opened so")
        return request.writes or self.private

    def _look_first(self, request: Work) -> Work | None:
        return Work(request.unless) if request.unless and not self.private else None

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"{self.path}: another process or thread held the store for more than {self.timeout} s; nothing was written"
        )

    def _submit(self, job: Job) -> Job:
        self._jobs.put(job)
        return job

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
            # The program may change its directory, and SQLite names the WAL by the file behind a link.
            self.path = os.path.realpath(self.path)
        self.read_only = self.read_only or may_only_be_read(self.path)
        if self.read_only:
            with named_errors(self.path):
                self._idle.put(connect_read_only(self.path, self.migrations))
            return
        if not (self.private or os.path.exists(self.path)):
            if not self.auto_setup:
                raise refuse_to_make(self.path)
            create_private(self.path)
        try:
            connection = self._connect()
        except StoreFull:  # to read, too, SQLite makes a file (-shm)
            with closing(self._lock_file()) as lock, lock.hold(self.timeout):
                if not lock.give_up_reserve(SHARED):
                    raise
            connection = self._connect()
        if self.private:
            self._write_with(connection)
        else:
            self._idle.put(connection)  # many a process only reads

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
        """Open the database, and the connection that writes."""
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
        self._writer.start()

    def setup(self) -> None:
        """Create the tables now, if they are not there."""
        self.auto_setup = True
        self._start()

    def close(self) -> None:
        """Finish what is queued and close all connections; calling it again does nothing."""
        with self._starting:
            self._closed = True
            self._stop()
            if self._readers:
                self._readers.shutdown()
                self._readers = None
            with suppress(Empty):
                while True:
                    self._refuse(self._jobs.get_nowait())

    def _refuse(self, job: Job | None) -> None:
        if job is not None:
            fail([job], refuse_closed(self.path))
            finish([job])

    def _stop(self) -> None:
        self._ready = False
        if self._writer:
            self._jobs.put(None)
            # With a timeout, as the process that holds the lock file may be stopped.
            self._writer.join(self.timeout)
            self._writer = None
        _close_all(self._idle)

    # -- reading -----------------------------------------------------------------------------------------------

    def _reader_threads(self) -> ThreadPoolExecutor:
        if self._readers is None:
            self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="keel-reader")
        return self._readers

    def read(self, request: Work) -> Any:
        """Run a reading request on a connection of its own."""
        try:
            connection = self._take()
            try:
                connection.text_factory = _text_or_bytes if request.takes_bytes else str
                # A statement is a transaction by itself, unless an earlier one was left open (see `transaction`).
                if request.unless and not connection.in_transaction:
                    reply = request.unless(connection.execute)
                    if reply is not None:
                        return reply
                return transaction(connection, "DEFERRED", partial(request.run, connection.execute))
            finally:
                self._give_back(connection)
        except KeelError:
            raise
        except Exception as error:
            raise name_error(self.path, error) from error

    @contextmanager
    def lend(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for reading; a fork waits until it is given back (see `suspend`)."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _take(self) -> sqlite3.Connection:
        while not self._enter():
            self._opened.wait()
        try:
            return self._take_idle()
        except BaseException:
            self._leave()
            raise

    def _give_back(self, connection: sqlite3.Connection) -> None:
        self._idle.put(connection)
        self._leave()

    def _leave(self) -> None:
        with self._gate:
            self._reading -= 1

    def _enter(self) -> bool:
        with self._gate:
            if not self._opened.is_set():
                return False
            self._reading += 1
            return True

    def _take_idle(self) -> sqlite3.Connection:
        try:
            return self._idle.get_nowait()
        except Empty:
            return connect_read_only(self.path, self.migrations) if self.read_only else connect(self.path, self.timeout)


class AsyncSqliteDriver:
    """The same driver, for a running loop."""

    def __init__(self, driver: SqliteDriver) -> None:
        self._driver = driver

    async def send(self, request: Work) -> Any:
        """As `SqliteDriver.asend`."""
        return await self._driver.asend(request)
