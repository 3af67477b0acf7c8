"""Faces: one way to call a saver, whichever of its two sets of methods does the work.

A test is written once against a `Face` and runs on both. A face asks for its saver at every call, so that a test may
have a new saver object each time (a cold memo, as another process would have).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from langgraph_keel import StateDiff
from langgraph_keel.core.plan import arun, run
from langgraph_keel.saver import KeelSaver

T = TypeVar("T")
Opener = Callable[[], KeelSaver]


class Face(ABC):
    """The methods of a saver that read and write, called on what `opener` returns."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    @property
    def saver(self) -> KeelSaver:
        """The saver that the next call would use."""
        return self._opener()

    @abstractmethod
    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by its sync name."""

    @abstractmethod
    def verb(self, name: str, *args: Any) -> Any:
        """Call a verb of the store below the saver, for what no method of the saver shows as it is."""

    @abstractmethod
    def list(self, config: RunnableConfig | None, **options: Any) -> Generator[CheckpointTuple, None, None]:
        """As `KeelSaver.list`; closing the generator abandons the listing."""

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        new_versions: Mapping[str, Any] | None = None,
    ) -> RunnableConfig:
        """As `KeelSaver.put`."""
        kept = cast(CheckpointMetadata, metadata or {})
        stored = self._call("put", config, cast(Checkpoint, checkpoint), kept, dict(new_versions or {}))
        return cast(RunnableConfig, stored)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `KeelSaver.put_writes`."""
        self._call("put_writes", config, writes, task_id, task_path)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `KeelSaver.get_tuple`."""
        return cast("CheckpointTuple | None", self._call("get_tuple", config))

    def read(self, config: RunnableConfig) -> CheckpointTuple:
        """As `get_tuple`, of a checkpoint that must be there."""
        found = self.get_tuple(config)
        assert found is not None, f"there is no checkpoint at {config}"
        return found

    def delta_history(self, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """As `KeelSaver.get_delta_channel_history`."""
        history = self._call("get_delta_channel_history", config=config, channels=channels)
        return cast(Mapping[str, DeltaChannelHistory], history)

    def delete_thread(self, thread_id: str) -> None:
        """As `KeelSaver.delete_thread`."""
        self._call("delete_thread", thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `KeelSaver.delete_for_runs`."""
        self._call("delete_for_runs", run_ids)

    def copy_thread(self, source: str, target: str) -> None:
        """As `KeelSaver.copy_thread`."""
        self._call("copy_thread", source, target)

    def diff(self, before: RunnableConfig, after: RunnableConfig) -> StateDiff:
        """As `KeelSaver.diff`."""
        return cast(StateDiff, self._call("diff", before, after))

    def rewind(self, config: RunnableConfig) -> RunnableConfig:
        """As `KeelSaver.rewind`."""
        return cast(RunnableConfig, self._call("rewind", config))

    def fork(self, config: RunnableConfig, thread_id: str | None = None) -> RunnableConfig:
        """As `KeelSaver.fork`."""
        return cast(RunnableConfig, self._call("fork", config, thread_id))

    def prune(self, thread_ids: Sequence[str], strategy: str = "keep_latest") -> None:
        """As `KeelSaver.prune`."""
        self._call("prune", thread_ids, strategy=strategy)

    @abstractmethod
    def close(self) -> None:
        """Free what the face itself holds; the saver stays open."""


class SyncFace(Face):
    """The blocking methods."""

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.saver, name)(*args, **kwargs)

    def verb(self, name: str, *args: Any) -> Any:
        """See `Face.verb`."""
        backend = self.saver._backend
        return run(getattr(backend.checkpoints.store, name)(*args), backend.driver)

    def list(self, config: RunnableConfig | None, **options: Any) -> Generator[CheckpointTuple, None, None]:
        """As `KeelSaver.list`."""
        listing = cast(Generator[CheckpointTuple, None, None], self.saver.list(config, **options))
        try:
            yield from listing
        finally:
            listing.close()

    def close(self) -> None:
        """Do nothing; this face holds nothing."""


class AsyncFace(Face):
    """The async methods, each driven to its end on a loop of the face's own."""

    def __init__(self, opener: Opener) -> None:
        super().__init__(opener)
        # Not asyncio.Runner: for each call it asks the signal module about the task, whose repr names all of the state.
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Drive a coroutine to its end on this face's loop."""
        return self._loop.run_until_complete(coroutine)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.run(getattr(self.saver, f"a{name}")(*args, **kwargs))

    def verb(self, name: str, *args: Any) -> Any:
        """See `Face.verb`."""
        backend = self.saver._backend
        return self.run(arun(getattr(backend.checkpoints.store, name)(*args), backend.async_driver))

    def list(self, config: RunnableConfig | None, **options: Any) -> Generator[CheckpointTuple, None, None]:
        """As `KeelSaver.alist`, driven one checkpoint at a time."""
        listing = cast(AsyncGenerator[CheckpointTuple, None], self.saver.alist(config, **options))
        try:
            yield from self._driven(listing)
        finally:
            self.run(_closed(listing))

    def _driven(self, listing: AsyncGenerator[CheckpointTuple, None]) -> Iterator[CheckpointTuple]:
        while (found := self.run(_following(listing))) is not None:
            yield found

    def close(self) -> None:
        """Close the loop."""
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _following(listing: AsyncGenerator[CheckpointTuple, None]) -> CheckpointTuple | None:
    return await anext(listing, None)


async def _closed(listing: AsyncGenerator[CheckpointTuple, None]) -> None:
    await listing.aclose()


FACES: Mapping[str, type[Face]] = {"sync": SyncFace, "async": AsyncFace}
