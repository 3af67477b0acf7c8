"""The savers under test.

To add a backend: write its two openers, add a `Backend` for LangGraph's saver and one for Keel's to
`BACKENDS`, and a line to `PAIRS`; then `python -m tests.benchmarks --backend NAME` measures it.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

Saver = BaseCheckpointSaver[Any]
Opener = Callable[[Path], AbstractContextManager[Saver]]
AsyncOpener = Callable[[Path], AbstractAsyncContextManager[Saver]]


def directory_bytes(directory: Path) -> int:
    """Every byte of every file a saver left, log and lock files included; not SQLite's shared memory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if not path.name.endswith("-shm"))


@dataclass(frozen=True)
class Backend:
    """One saver: how to open it on a directory of its own (both faces), and what it stores there."""

    name: str
    open: Opener
    aopen: AsyncOpener | None = None
    stored: Callable[[Path], int] = directory_bytes


@dataclass(frozen=True)
class Pair:
    """What is measured against what."""

    theirs: Backend
    ours: Backend


def _database(directory: Path) -> str:
    return str(directory / "checkpoints.db")


def _langgraph_sqlite(directory: Path) -> AbstractContextManager[Saver]:
    return SqliteSaver.from_conn_string(_database(directory))


def _langgraph_sqlite_async(directory: Path) -> AbstractAsyncContextManager[Saver]:
    return AsyncSqliteSaver.from_conn_string(_database(directory))


@contextmanager
def _langgraph_memory(_: Path) -> Iterator[Saver]:
    yield InMemorySaver()


@asynccontextmanager
async def _langgraph_memory_async(_: Path) -> AsyncIterator[Saver]:
    yield InMemorySaver()


def _keel_sqlite(directory: Path) -> Any:
    return import_module("langgraph_keel").SqliteSaver.from_conn_string(_database(directory))


@contextmanager
def _keel_memory(_: Path) -> Iterator[Saver]:
    yield import_module("langgraph_keel").MemorySaver()


LANGGRAPH_MEMORY = Backend("langgraph-memory", _langgraph_memory, _langgraph_memory_async)
KEEL_MEMORY = Backend("keel-memory", _keel_memory)

BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("langgraph-sqlite", _langgraph_sqlite, _langgraph_sqlite_async),
        Backend("keel-sqlite", _keel_sqlite, _keel_sqlite),
        LANGGRAPH_MEMORY,
        KEEL_MEMORY,
    )
}

PAIRS = {
    "sqlite": Pair(BACKENDS["langgraph-sqlite"], BACKENDS["keel-sqlite"]),
}
