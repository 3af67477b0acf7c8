"""The savers under test.

To add a backend: write a module with its openers and its `PAIR` (see `sqlite`, and `postgres` for one with a server),
its targets in `targets`, and a line in `PAIRS`; then `python -m tests.benchmarks --backend NAME` measures it.
"""

from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path

from langgraph.checkpoint.memory import InMemorySaver

from . import files, postgres, redis, sqlite
from .backend import AsyncOpened, Backend, Opened, Pair


@contextmanager
def _langgraph_memory(_: Path) -> Opened:
    yield InMemorySaver()


@asynccontextmanager
async def _langgraph_memory_async(_: Path) -> AsyncOpened:
    yield InMemorySaver()


@contextmanager
def _keel_memory(_: Path) -> Opened:
    yield import_module("langgraph_keel").MemorySaver()


LANGGRAPH_MEMORY = Backend("langgraph-memory", _langgraph_memory, _langgraph_memory_async)
KEEL_MEMORY = Backend("keel-memory", _keel_memory)

PAIRS: dict[str, Pair] = {
    "sqlite": sqlite.PAIR,
    "files": files.PAIR,
    "postgres": postgres.PAIR,
    "redis": redis.PAIR,
}
BACKENDS = {backend.name: backend for pair in PAIRS.values() for backend in (pair.ours, pair.theirs) if backend}
