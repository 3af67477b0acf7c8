"""Calls of a saver as LangGraph's loop makes them, without the loop, sync and async."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from .backend import Saver
from .graphs import thread
from .timing import timed

_POOL = ThreadPoolExecutor(1)


class Calls:
    """The blocking calls of a saver; each returns its duration in seconds, and its result.

    Writes run in another thread than reads, as in LangGraph's loop. Switching threads is not counted.
    """

    def __init__(self, saver: Saver, pool: Executor = _POOL, watch: Callable[..., tuple[float, Any]] = timed) -> None:
        self.saver, self._pool, self._watch = saver, pool, watch

    def put(self, *arguments: Any) -> tuple[float, RunnableConfig]:
        return self._pool.submit(self._watch, self.saver.put, *arguments).result()

    def put_writes(self, config: RunnableConfig, writes: Any) -> tuple[float, None]:
        return self._pool.submit(self._watch, self.saver.put_writes, config, writes, str(uuid4())).result()

    def get_tuple(self, config: RunnableConfig) -> tuple[float, Any]:
        return self._watch(self.saver.get_tuple, config)

    def list(self, config: RunnableConfig) -> tuple[float, Any]:
        return timed(lambda: list(self.saver.list(config, limit=10)))


class AsyncCalls(Calls):
    """The asynchronous calls of a saver, in an otherwise idle event loop."""

    def __init__(self, saver: Saver, runner: asyncio.Runner) -> None:
        super().__init__(saver)
        self.runner = runner

    def _timed(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[float, Any]:
        async def within() -> tuple[float, Any]:
            start = perf_counter()
            result = await call()
            return perf_counter() - start, result

        return self.runner.run(within())

    def put(self, *arguments: Any) -> tuple[float, RunnableConfig]:
        return self._timed(partial(self.saver.aput, *arguments))

    def put_writes(self, config: RunnableConfig, writes: Any) -> tuple[float, None]:
        return self._timed(partial(self.saver.aput_writes, config, writes, str(uuid4())))

    def get_tuple(self, config: RunnableConfig) -> tuple[float, Any]:
        return self._timed(partial(self.saver.aget_tuple, config))

    def list(self, config: RunnableConfig) -> tuple[float, Any]:
        async def read() -> Any:
            return [found async for found in self.saver.alist(config, limit=10)]

        return self._timed(read)


class Sequence:
    """One thread's checkpoints, each the child of the one before."""

    def __init__(self, saver: Saver, thread_id: str, calls: Calls | None = None) -> None:
        self.saver, self.calls = saver, calls or Calls(saver)
        self.latest = thread(thread_id)
        _, found = self.calls.get_tuple(self.latest)
        self.config: RunnableConfig = found.config if found else thread(thread_id)
        # LangGraph's loop writes version 4; for older versions, pending tasks are read from the parent.
        self.checkpoint: Checkpoint = found.checkpoint if found else {**empty_checkpoint(), "v": 4}
        self.step = (found.metadata.get("step", -1) if found else -1) + 1

    @property
    def values(self) -> dict[str, Any]:
        return self.checkpoint["channel_values"]

    def put(self, updates: Mapping[str, Any]) -> float:
        """Store a checkpoint with new values of these channels; return the seconds of the `put`."""
        versions = self._advance(updates)
        metadata: CheckpointMetadata = {"source": "loop", "step": self.step, "parents": {}}
        seconds, self.config = self.calls.put(self.config, self.checkpoint, metadata, versions)
        self.step += 1
        return seconds

    def _advance(self, updates: Mapping[str, Any]) -> dict[str, Any]:
        old = self.checkpoint
        next_version = self.saver.get_next_version
        versions = {name: next_version(old["channel_versions"].get(name), None) for name in updates}
        seen = {name: version for name, version in old["channel_versions"].items() if name.startswith("branch:to:")}
        self.checkpoint = Checkpoint(
            v=old["v"],
            id=str(uuid6(clock_seq=self.step)),
            ts=datetime.now(UTC).isoformat(),
            channel_values={**old["channel_values"], **updates},
            channel_versions={**old["channel_versions"], **versions},
            versions_seen={"__input__": {}, "reply": seen} if seen else old["versions_seen"],
            updated_channels=sorted(updates),
        )
        return versions
