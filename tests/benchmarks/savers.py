"""The savers under test.

To add a backend, write a module with its openers and its `PAIR` (see `sqlite`, or `postgres` for one with a server),
and add its targets to `targets` and a line to `PAIRS`. `python -m tests.benchmarks --backend NAME` then measures it.
"""

from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple, PendingWrite
from langgraph.checkpoint.memory import InMemorySaver

from . import files, postgres, redis, sealed, sqlite, tiered
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


class ReferenceSaver(BaseCheckpointSaver[int]):
    """Keeps references to all checkpoints: the minimum that a saver can do."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[tuple[str, str], CheckpointTuple] = {}
        self.all: dict[str, CheckpointTuple] = {}  # by checkpoint id; a `DeltaChannel` is rebuilt from earlier ones
        self.writes: dict[str, list[PendingWrite]] = {}

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        checkpoint_id = config["configurable"].get("checkpoint_id")
        found = self.all.get(checkpoint_id) if checkpoint_id else self.latest.get(self._key(config))
        return found and found._replace(pending_writes=self.writes.get(found.checkpoint["id"], []))

    def put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: Any, new_versions: Any) -> RunnableConfig:
        thread_id, namespace = self._key(config)
        ids = {"thread_id": thread_id, "checkpoint_ns": namespace}
        new: RunnableConfig = {"configurable": {**ids, "checkpoint_id": checkpoint["id"]}}
        before = self.latest.get((thread_id, namespace))
        stored = CheckpointTuple(new, checkpoint, metadata, before and before.config)
        self.latest[thread_id, namespace] = self.all[checkpoint["id"]] = stored
        return new

    def put_writes(self, config: RunnableConfig, writes: Any, task_id: str, task_path: str = "") -> None:
        kept = self.writes.setdefault(config["configurable"]["checkpoint_id"], [])
        kept += [(task_id, channel, value) for channel, value in writes]

    def _key(self, config: RunnableConfig) -> tuple[str, str]:
        values = config["configurable"]
        return values["thread_id"], values.get("checkpoint_ns", "")


@contextmanager
def _references(_: Path) -> Opened:
    yield ReferenceSaver()


REFERENCES = Backend("references", _references)
LANGGRAPH_MEMORY = Backend("langgraph-memory", _langgraph_memory, _langgraph_memory_async)
KEEL_MEMORY = Backend("keel-memory", _keel_memory)

PAIRS: dict[str, Pair] = {
    "sqlite": sqlite.PAIR,
    "files": files.PAIR,
    "postgres": postgres.PAIR,
    "redis": redis.PAIR,
    "sealed": sealed.PAIR,
    "tiered": tiered.PAIR,
}
BACKENDS = {backend.name: backend for pair in PAIRS.values() for backend in (pair.ours, pair.theirs) if backend}
