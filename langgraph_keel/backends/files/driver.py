"""The driver: the root, a cache of threads, and calls that do not block a loop.

Every call opens and closes its files, so no file is open across a fork, and a store may contain more threads than a
process can open files.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any

from langgraph_keel.backends.files.cells import SHARED, Shelves
from langgraph_keel.backends.files.compaction import carry_over
from langgraph_keel.backends.files.disk import (
    FOLDER_MODE,
    directory_of,
    named_errors,
    sync_directory,
    thread_of,
    write_durably,
)
from langgraph_keel.backends.files.git import SETTINGS
from langgraph_keel.backends.files.listing import Listing, any_id_of, id_of, last_put, names_in
from langgraph_keel.backends.files.log import MIGRATIONS, Migrations
from langgraph_keel.backends.files.mark import MARK, Mark
from langgraph_keel.backends.files.store import Work
from langgraph_keel.backends.files.thread import ThreadFiles
from langgraph_keel.backends.migrations import Migration, find_due, newest, refuse_older
from langgraph_keel.backends.paths import find_sqlite_store
from langgraph_keel.engine.records import Page
from langgraph_keel.engine.thread import info_of
from langgraph_keel.errors import (
    CorruptStore,
    NotAKeelStore,
    NotFound,
    NotSetUp,
    ReadOnlyStore,
    refuse_closed,
)

THREADS = "threads"
READS, WRITES = 16, 64
"""Maximum concurrent reads and writes from loops.

Most calls wait for the disk; writes also wait for other processes.
"""
TENANTS = "tenants"
MOST_TENANTS = 64
"""Maximum number of tenants with cached threads."""
ABANDONED = 3600.0
"""Seconds after which an unfinished new thread counts as abandoned."""
EVERY = 64
"""Number of uses of threads after which their memory is measured again."""
_LOOKED_AT = 1000
"""Maximum number of files that are checked for being a SQLite database."""
# Names that a directory may contain before it becomes a store: of a new repository, or made by another process.
_MAY_BE_THERE = re.compile(r"\.|readme|licen[cs]e|(threads|shared|tenants|keel\.json)$|.*\.tmp$", re.IGNORECASE)

if TYPE_CHECKING:
    from langgraph_keel.backends.files.check import Check


class FileRoot:
    """The threads of one directory, and the cells that they share."""

    def __init__(self, root: Path, timeout: float, memory: int, read_only: bool, mark: Mark) -> None:
        self.root = root
        self.mark = mark
        self.timeout = timeout
        self.read_only = read_only
        self._memory = memory
        self._forget()

    def _forget(self) -> None:
        # A forked child has no threads that could release the locks held at the fork.
        self._lock = Lock()
        self._threads: OrderedDict[str, ThreadFiles] = OrderedDict()
        self._asked = 0
        self.is_made = False
        self._find_shared()

    def _find_shared(self) -> None:
        self._listing = Listing(self.root / THREADS, writes=not self.read_only)
        self._shared = Shelves(self.root, (SHARED,), self.timeout, SETTINGS)

    def make(self, *, is_new: bool) -> None:
        """Make missing directories, and make the names of all of them durable."""
        # Existing names, too: the process that made them may have died before it synced them.
        threads = self.root / THREADS
        missing = [path for path in (*self.root.parents, self.root, threads) if not path.exists()]
        self.root.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        threads.mkdir(FOLDER_MODE, exist_ok=True)
        for name, text in SETTINGS.items() if is_new else ():
            # In the directory of threads, because the root may contain the repository's own files of these names.
            if not (threads / name).exists():
                write_durably(threads / name, text.encode())
        for path in {threads, self.root, self.root.parent, *(path.parent for path in missing)}:
            sync_directory(path)
        self.is_made = True

    def thread(self, thread_id: str) -> ThreadFiles:
        """Return the files of a thread, which may not exist."""
        return self._files(directory_of(thread_id), thread_id)

    def cells(self, thread_id: str | None) -> Shelves:
        """Return the cells of a thread; for `None`, the shared cells."""
        return self._shared if thread_id is None else self.thread(thread_id).cells

    def _files(self, name: str, thread_id: str) -> ThreadFiles:
        with self._lock:
            files = self._threads.get(name)
            if files is None:
                files = self._threads[name] = ThreadFiles(
                    self.root / THREADS / name, thread_id, self.timeout, self.mark
                )
            self._threads.move_to_end(name)
            self._asked += 1
            if self._asked % EVERY == 0 or files.nbytes > self._memory // 8:
                # Drop the least recently used threads; a call that still uses one is not disturbed.
                size = sum(each.nbytes for each in self._threads.values())
                while len(self._threads) > 1 and (size > self._memory or len(self._threads) > self._memory // 4096):
                    size -= self._threads.popitem(last=False)[1].nbytes
            return files

    def threads(self) -> Iterator[ThreadFiles]:
        """Return the files of every existing thread."""
        for name in names_in(self.root / THREADS):
            thread_id = id_of(self.root / THREADS / name)
            if thread_id is not None:
                yield self._files(name, thread_id)

    def strays(self, after: str | None) -> Iterator[str]:
        """Return the strays after one, in the order of their directories."""
        directories = self.root / THREADS
        names: dict[str, str] = {directory_of(origin): origin for origin in self._shared.origins()}
        names |= {name: thread_id for name in names_in(directories) if (thread_id := any_id_of(directories / name))}
        for name in sorted(name for name in names if after is None or name > directory_of(after)):
            with suppress(CorruptStore):
                if not self._has_checkpoint(names[name]):
                    yield names[name]

    def _has_checkpoint(self, thread_id: str) -> bool:
        files = self.thread(thread_id)
        return bool(last_put(files.log) or files.read(lambda thread: thread and info_of("", thread)[0].checkpoints))

    def threads_after(self, page: Page) -> Iterator[tuple[tuple[str, str], ThreadFiles]]:
        """Return the threads of a page of the listing, with their places."""

        def activity(thread_id: str) -> str:
            files = self.thread(thread_id)
            return files.read(lambda thread: info_of(thread_id, thread)[0].updated_at if thread else "")

        return ((place, self.thread(place[1])) for place in self._listing.places(page, activity))


class FileDriver(FileRoot):
    """The driver of one root, for any thread of the process.

    `prepare` is called with the root before its first use.
    """

    def __init__(
        self,
        root: Path,
        *,
        timeout: float,
        read_only: bool,
        auto_setup: bool,
        memory: int,
        migrations: Migrations = MIGRATIONS,
        prepare: Callable[[Path], None] | None = None,
    ) -> None:
        self.auto_setup = auto_setup
        self._prepare = prepare
        self._is_closed = False
        super().__init__(root, timeout, memory, read_only, Mark(root, migrations))

    def _forget(self) -> None:
        super()._forget()
        self._process = os.getpid()
        self._preparing = Lock()
        self._may_read = self._may_write = False
        self._pools: dict[bool, ThreadPoolExecutor] = {}
        self._tenants: OrderedDict[str, FileRoot] = OrderedDict()

    def _settle(self) -> None:
        """Make a relative root absolute, at the first use."""
        if not self.root.is_absolute():
            self.root = self.mark.root = Path(os.path.abspath(self.root))
            self._find_shared()
        if self._prepare:
            self._prepare(self.root)

    # -- the root ------------------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Make the store if it does not exist; safe to call concurrently."""
        self._settle()
        with named_errors(self.root):
            if self._is_closed:
                raise refuse_closed(self.root)
            self._make_ready()
            # Git or a copy may have added logs of an older format since.
            for number in sorted(self.mark.migrations):
                self._carry_over(number)

    def _make_ready(self) -> None:
        found = self._format()
        self.make(is_new=found is None)
        if found is None:
            self.mark.write()  # the last file: if it exists, so do all others
        elif self._find_due(found):
            self._migrate()
        self._may_read = self._may_write = True

    def _migrate(self) -> None:
        with self.mark.hold(self.timeout):
            for number, _ in self._find_due(self._format() or 1):
                self.mark.write(number, begun_from=number - 1)  # from now on, an older Keel refuses the store
                self._carry_over(number)
                self.mark.write(number)

    def _carry_over(self, number: int) -> None:
        change = self.mark.migrations[number].work
        for root in [self, *(self.tenant(tenant, writes=False) for tenant in self.tenants())]:
            for name in names_in(root.root / THREADS):
                files = ThreadFiles(root.root / THREADS / name, "", self.timeout, self.mark)
                carry_over(files, number, change)
                files.cells.carry_over(change)
            root.cells(None).carry_over(change)

    def _find_due(self, found: int) -> Sequence[tuple[int, Migration[Any]]]:
        return find_due(self.mark.migrations, found, str(self.root))

    def migrations(self) -> list[str]:
        """Return descriptions of the migrations that the store needs."""
        return [f"Format {number}: {migration.what}." for number, migration in self._find_due(self.format)]

    def _format(self) -> int | None:
        """Return the format of the store, if it exists."""
        found = self.mark.read()
        if found is None:
            self._refuse_others()
        return found

    def _refuse_others(self) -> None:
        outer = self.root.absolute().parent
        if outer.name == TENANTS and (outer.parent / MARK).exists():
            raise NotAKeelStore(
                f"{self.root}: this directory belongs to a tenant of the store {outer.parent}: open that store "
                f"and use saver.for_tenant({thread_of(self.root.name)!r}), or choose another directory"
            )
        names = sorted(path.name for path in self.root.iterdir()) if self.root.exists() else []
        others = [name for name in names if not _MAY_BE_THERE.match(name)]
        database = find_sqlite_store(self.root / name for name in others[:_LOOKED_AT])
        if database:
            raise (NotFound if self.read_only else NotAKeelStore)(
                f"{self.root}: not a store of files, but it contains a SQLite database of Keel's, {database}: use "
                "SqliteSaver, or open_saver with its path"
            )
        if self.read_only:
            raise NotFound(f"{self.root}: there is no Keel store")
        if others:
            raise NotAKeelStore(
                f"{self.root}: not empty, and not a Keel store (it contains {others[0]!r}): pass an empty "
                f"directory, such as {self.root / 'threads'}"
            )

    @property
    def format(self) -> int:
        """The format of the store."""
        with named_errors(self.root):
            version = self._format()
        if version is None:
            raise NotFound(f"{self.root}: there is no Keel store")
        return version

    def open_check(self, writes: bool, tenant: str = "") -> Check:
        """Return a check of the store, or of one tenant's data in it."""
        from langgraph_keel.backends.files.check import Check

        assert self.format
        with named_errors(self.root):
            self.prepare(writes)
            root = self.tenant(tenant, writes=False).root if tenant else self.root
            return Check(root, self.timeout, self.mark)

    def prepare(self, writes: bool) -> None:
        """Check that the store may be used in this way; make it before the first write."""
        if self._is_closed:
            raise refuse_closed(self.root)
        if writes and self.read_only:
            raise ReadOnlyStore(f"{self.root}: opened read-only")
        if self._process != os.getpid():
            self._forget()
        if not (self._may_write or (self._may_read and not writes)):
            with self._preparing:
                self._open(writes)

    def _open(self, writes: bool) -> None:
        self._settle()
        version = self._format()
        if version is None and not self.auto_setup:
            raise NotSetUp(f"{self.root}: there is no Keel store, and auto_setup is off: call setup() once")
        if version is not None and self._find_due(version):
            if self.read_only or not self.auto_setup:
                why = "it was opened read-only" if self.read_only else "auto_setup is off"
                raise refuse_older(str(self.root), version, newest(self.mark.migrations), why)
            self._make_ready()
        if writes and not self._may_write:
            self._make_ready()
            self.clean()
        self._may_read = version is not None

    def clean(self, abandoned: float = ABANDONED) -> None:
        """Finish interrupted deletions; remove abandoned new threads and indexes."""
        for path in (self.root / THREADS).glob(".*-*"):
            with suppress(FileNotFoundError):
                is_old = time.time() - path.stat().st_mtime > abandoned
                if path.name.startswith(".gone-") or (path.name.startswith(".new-") and is_old):
                    shutil.rmtree(path, ignore_errors=True)
        for path in (self.root / TENANTS).glob(".gone-*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.root / THREADS).glob(".*.tmp"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > abandoned:
                    path.unlink()

    # -- tenants -------------------------------------------------------------------------------------------------

    def tenant(self, tenant: str, writes: bool) -> FileRoot:
        """Return the directory of a tenant; made before the first write."""
        with self._lock:
            found = self._tenants.get(tenant)
            if found is None:
                directory = self.root / TENANTS / directory_of(tenant)
                found = self._tenants[tenant] = FileRoot(
                    directory, self.timeout, self._memory // 8, self.read_only, self.mark
                )
            self._tenants.move_to_end(tenant)
            while len(self._tenants) > MOST_TENANTS:
                self._tenants.popitem(last=False)
        # Another process may have deleted the tenant since.
        if writes and not (found.is_made and (found.root / THREADS).exists()):
            found.make(is_new=not (found.root / THREADS).exists())
        return found

    def tenants(self) -> list[str]:
        """Return the tenants that have threads or shared cells."""
        directories = self.root / TENANTS
        names = []
        for name in names_in(directories):
            root = directories / name
            if any(names_in(root / THREADS)) or any((root / SHARED).glob("*/*")):
                names.append(thread_of(name))
        return sorted(name for name in names if name)

    def delete_tenant(self, tenant: str) -> int:
        """Delete the directory of a tenant; return the number of deleted threads."""
        directory = self.root / TENANTS / directory_of(tenant)
        deleted = sum(1 for _ in names_in(directory / THREADS))
        going = directory.with_name(f".gone-{token_hex(8)}")
        with suppress(FileNotFoundError):
            os.rename(directory, going)
            sync_directory(going.parent)
        with self._lock:
            self._tenants.pop(tenant, None)
        shutil.rmtree(going, ignore_errors=True)
        return deleted

    # -- calls ---------------------------------------------------------------------------------------------------

    def send(self, request: Work) -> Any:
        """Run a request."""
        with named_errors(self.root):
            self.prepare(request.writes)
            return request.run(self)

    async def asend(self, request: Work) -> Any:
        """As `send`, without blocking the running loop."""
        if self._is_closed:
            raise refuse_closed(self.root)
        if self._process != os.getpid():
            self._forget()
        return await asyncio.get_running_loop().run_in_executor(self._pool(request.writes), self.send, request)

    def _pool(self, writes: bool) -> ThreadPoolExecutor:
        with self._lock:
            if writes not in self._pools:
                self._pools[writes] = ThreadPoolExecutor(WRITES if writes else READS, "keel-files")
            return self._pools[writes]

    def close(self) -> None:
        """Refuse new calls, and wait for running ones."""
        self._is_closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values() if self._process == os.getpid() else ():
            pool.shutdown()


class AsyncFileDriver:
    """The same driver, for a running loop."""

    def __init__(self, driver: FileDriver) -> None:
        self._driver = driver

    async def send(self, request: Work) -> Any:
        """As `FileDriver.asend`."""
        return await self._driver.asend(request)
