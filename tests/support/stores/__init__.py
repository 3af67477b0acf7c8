"""The stores that the contract runs on: ways to open, empty and inspect them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from servers import SHARED

from langgraph_keel.backends.memory.saver import AsyncMemoryDriver, MemoryDriver
from langgraph_keel.backends.memory.store import MemoryStore, State
from langgraph_keel.backends.sqlite.driver import AsyncSqliteDriver, SqliteDriver
from langgraph_keel.backends.sqlite.entries import Work
from langgraph_keel.backends.sqlite.store import SqliteStore
from langgraph_keel.engine.thread import Thread
from langgraph_keel.saver import KeelSaver
from support.stores.files import FilesUnderTest
from support.stores.postgres import postgres_store
from support.stores.redis import redis_store


class MemoryUnderTest:
    """One memory driver and store, many savers."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = store or MemoryStore()
        self._driver = MemoryDriver()

    def open(self, **options: Any) -> KeelSaver:
        return KeelSaver(self._store, self._driver, AsyncMemoryDriver(self._driver), **options)

    def wipe(self) -> None:
        self._state.clear()
        self._state.cells.clear()
        self._state.tenants.clear()

    def raw(self) -> bytes:
        parts: list[Any] = []
        for state in (self._state, *self._state.tenants.values()):
            parts += [part for name, thread in state.items() for part in (name, *_parts(thread))]
            for cells in state.cells.values():
                parts += [part for key, cell in cells.items() for part in (key, cell.header, cell.body)]
        return b"\n".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)

    def close(self) -> None:
        pass

    @property
    def _state(self) -> State:
        return self._driver.state


def _parts(thread: Thread) -> Iterator[Any]:
    for record in thread.records.values():
        yield from (record.entry.address, record.entry.header, record.entry.refs, record.ghost)
    for key, log in thread.logs.items():
        yield from (key, log.end, *(row.body for row in log.rows.values()))
    for key, batches in thread.batches.items():
        for batch in batches:
            yield from (key, batch.task_id, batch.task_path, batch.body)


class SqliteUnderTest:
    """One database.

    A file is opened twice, as by two processes, and savers alternate; a database in memory is opened once.
    """

    def __init__(self, path: str) -> None:
        count = 1 if path == ":memory:" else 2
        self._drivers = [SqliteDriver(path, timeout=30, read_only=False, auto_setup=True) for _ in range(count)]
        self._turns = cycle(self._drivers)

    def open(self, **options: Any) -> KeelSaver:
        driver = next(self._turns)
        return KeelSaver(SqliteStore(), driver, AsyncSqliteDriver(driver), **options)

    def wipe(self) -> None:
        self._execute(_wipe)

    def raw(self) -> bytes:
        dump: bytes = self._execute(_dump)
        return dump

    def _execute(self, run: Any) -> Any:
        return self._drivers[0].send(Work(run, writes=True))

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()


def _tables(execute: Any) -> list[str]:
    rows = execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    return [name for (name,) in rows]


def _wipe(execute: Any) -> None:
    for table in _tables(execute):
        execute(f"DELETE FROM {table}")


def _dump(execute: Any) -> bytes:
    rows = [row for table in _tables(execute) for row in execute(f"SELECT * FROM {table}").fetchall()]
    return b"\n".join(part if isinstance(part, bytes) else str(part).encode() for row in rows for part in row)


@contextmanager
def each_store(directory: Path) -> Iterator[dict[str, Any]]:
    """Open one store of each kind, in its own directory and on running servers.

    The servers are those of `savers.SERVERS`.
    """
    with ExitStack() as stack:
        yield {
            "memory": MemoryUnderTest(),
            "sqlite": stack.enter_context(closing(SqliteUnderTest(str(directory / "keel.db")))),
            "sqlite-memory": stack.enter_context(closing(SqliteUnderTest(":memory:"))),
            "files": stack.enter_context(closing(FilesUnderTest(directory / "files"))),
            "postgres": stack.enter_context(postgres_store(os.environ[SHARED["PostgreSQL"]])),
            "redis": stack.enter_context(redis_store(os.environ[SHARED["Redis"]])),
        }
