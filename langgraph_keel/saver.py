"""KeelSaver: LangGraph's checkpoint-saver interface, both faces, one line a method.

What the methods mean is in `core`; how bytes are kept is in a backend's store; this class only brings a plan and a
driver together (`running`). What LangGraph does not know is in `inspection`, `travel`, `upkeep`, `erasing` and
`archiving`.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from langgraph_keel.archiving import Archiving
from langgraph_keel.core import carried, retention
from langgraph_keel.core.address import address_of, texts_of, thread_id_of
from langgraph_keel.core.allowlist import allowing
from langgraph_keel.core.deltas import delta_history
from langgraph_keel.core.encoding import Unpacker
from langgraph_keel.core.headers import next_version_of
from langgraph_keel.core.queries import query_of
from langgraph_keel.core.records import Query


class KeelSaver(Archiving):
    """A LangGraph checkpointer over one store.

    Every method is there twice: `put` blocks, `aput` does not block the running loop; both may be used on the same
    object, from any thread and any loop. Backends subclass this with a way to open themselves, and override `_close`.

    Args:
        store: The layout of the data.
        driver: Sends the store's requests, blocking.
        async_driver: Sends them without blocking a loop.
        serde: Any serializer; `None` is `KeelSerializer(types=types)`, which is safe and keeps every type.
        types: With Keel's serializer, the only classes of the program that may be revived (see `KeelSerializer`).
        on_conflict: What happens when two runs continue the same checkpoint: the second put raises
            `CheckpointConflict` ("raise"), or is kept as a branch that is not the latest ("fork").
        provenance: Whether to record every call of a model with the step it leads to (`provenance`).
        graph_version: The application's own version: it stands in each checkpoint's metadata, and in the records.
        on_drift: What happens when a thread goes on with another model, fingerprint, tool or version than it was
            written with: nothing ("ignore"), a `DriftWarning` ("warn"), or `DriftDetected` before the step is stored
            ("raise"). With the last two, the first checkpoint after it says so in its metadata (`keel_drift`).
        plain_resume: Whether `Command(resume=value)`, which names no interrupt, answers whatever is asked when it comes
            ("allow", as in LangGraph), or is refused before anything runs ("refuse"): a click that comes twice then
            never answers the next question.
        archive_removed: Whether messages that anybody takes out of a list are archived before the checkpoint without
            them is stored (`archive`): of every list of messages, or of the channels named. A put that takes nothing
            out stays one round trip (two where there are delta channels); one that does takes three, or four. What
            checkpoints are compared by is what they hold: with `durability="exit"`, messages that one run both adds
            and takes out are in none, and not archived (Keel's own summaries and windows archive them nevertheless).
        keep_last: Of each thread that this saver puts to, only so many checkpoints stay (`Retention(last=...)`). A
            thread of this saver sees to it, which begins with the first put; `close` does it once more, for at most
            30 seconds. A stored policy (`set_retention`) that fits the thread counts instead; one with `idle` waits
            for a `sweep`. What it could not do is logged.
        ttl: Seconds (or a timedelta) after its last put that a whole thread is deleted, by the same thread, whoever has
            put it, but not in `close`; where a stored policy fits, by that one's `ttl` only. Longer than the longest
            step (see `Retention`). (`RedisSaver` leaves it to the server: its own `ttl` is meant there.)
        upkeep_every: Seconds between two rounds of that thread.
        owner: A function that says whose the thread of a run is (given its config: a str or `None`). It is asked only
            where `configurable["user_id"]` (or the run's metadata) does not say it. That stands in each checkpoint's
            metadata as `user_id`, and `erase` finds it. A run that names nobody goes on for whom the checkpoint names
            that it continues, as far as this process remembers it (of the last 10,000 threads): name them in each run.
        memo_entries: Most (thread, namespace) pairs the memo remembers.
        memo_bytes: Most bytes it takes, about.
    """

    # -- reading -----------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the latest of its thread and namespace. One round trip.

        The latest is the one that was put last, whatever the clocks say. All objects in the tuple are fresh. A run that
        goes on from where the thread waits (`Command(resume=...)`, or no input) claims it first: one trip more, or two.

        Args:
            config: `configurable.thread_id` (str or int), `checkpoint_ns` (default `""`), `checkpoint_id` (optional).

        Returns:
            The tuple, its pending writes in the order LangGraph applies them; `None` if there is no such checkpoint.

        Raises:
            InvalidConfig: The config names no usable thread.
            ThreadTaken: Another run goes on from where the thread waits.
            RefusedType: A stored value is of a type that may not be revived here.
            CorruptStore: Stored bytes do not add up.
        """
        return self._run(self._begin(config, is_async=False))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`, asynchronously."""
        return await self._arun(self._begin(config, is_async=True))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first, in pages read as they are needed.

        Args:
            config: Thread, and optionally namespace and checkpoint; without `checkpoint_ns` all namespaces, and
                with `None` all threads (then newest first by id).
            filter: Metadata keys and the values they must equal (`core.filters`).
            before: Only checkpoints put before the one this config names.
            limit: Most to yield.

        Raises:
            InvalidInput: `limit` is negative.
            InvalidConfig: `config` names no usable thread.
        """
        query: Query | None = query_of(config, filter, before, limit)
        codec, left = self._codec, limit
        while query is not None and left != 0:
            entries, query = self._run(self._core.page(codec, query, filter))
            unpacker = Unpacker(codec)
            for found in self._run(self._core.load(codec, entries[:left])):
                left = left if left is None else left - 1
                yield self._run(self._core.revive(codec, found, unpacker, "named"))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`, asynchronously."""
        query: Query | None = query_of(config, filter, before, limit)
        codec, left = self._codec, limit
        while query is not None and left != 0:
            entries, query = await self._arun(self._core.page(codec, query, filter))
            unpacker = Unpacker(codec)
            for found in await self._arun(self._core.load(codec, entries[:left])):
                left = left if left is None else left - 1
                yield await self._arun(self._core.revive(codec, found, unpacker, "named"))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return per channel the writes since its nearest stored value, oldest first, and that value. One round trip.

        Works after `prune`, `copy_thread` and `delete_for_runs`: ancestors it needs are kept for it.
        """
        if not channels:
            return {}
        return self._run(delta_history(self._core.store, self._codec, address_of(config), channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`, asynchronously."""
        if not channels:
            return {}
        return await self._arun(delta_history(self._core.store, self._codec, address_of(config), channels))

    # -- writing -----------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; it is the latest of its thread and namespace from then on. One round trip.

        Durable when it returns, as far as the backend promises. What is stored is what `channel_values` holds now, also
        where a node changed it in place without a new version; only the difference to what is known is written.

        Args:
            config: Where to put it; `checkpoint_id` in it is the parent.
            checkpoint: The checkpoint.
            metadata: Its metadata; scalars of the config are merged into it as LangGraph's savers do.
            new_versions: The channels that the step wrote. A channel that has a version, but neither a new one nor a
                value, keeps the value of the parent (`core.unnamed`). What else changed is found by content.

        Returns:
            The config of the new checkpoint.

        Raises:
            CheckpointConflict: The run continues the latest checkpoint, but another one is the latest by now.
                Runs that started at a checkpoint named by id never conflict. Nothing was written.
            UnstorableValue: A value has no stored form; the error names thread, channel, path and type.
            InvalidConfig: The config names no usable thread.
            StoreError: The store failed; nothing was written.
        """
        return self._run(self._put(config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`, asynchronously. Values are serialized before the first await."""
        return await self._arun(self._put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written so far, before its step is over. One round trip, durable when it returns.

        A question to a person takes some more: it becomes a request (`approvals`), and the thread is claimed until the
        run is over. The checkpoint may arrive later. Repeating a call is harmless: see `core.writes`.

        Raises:
            UnstorableValue: A value has no stored form.
            InvalidConfig: The config names no thread or no checkpoint.
        """
        self._run(self._write(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`, asynchronously."""
        await self._arun(self._write(config, writes, task_id, task_path))

    # -- removing and copying ----------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread; no error if there is none."""
        self._run(self._core.delete_thread(thread_id_of(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`, asynchronously."""
        await self._arun(self._core.delete_thread(thread_id_of(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of these runs, and their writes, in every thread.

        The latest is then the last one that remains. What the delta channels of others need is kept, unseen. The tool
        calls of these runs go too, and what a prune has carried of their calls of models, in threads that still have a
        checkpoint of theirs.
        """
        self._run(retention.delete_for_runs(self._core, self._codec, texts_of(run_ids, "run id")))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`, asynchronously."""
        await self._arun(retention.delete_for_runs(self._core, self._codec, texts_of(run_ids, "run id")))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, all namespaces, checkpoints and writes, to a new id, with its archive.

        Five round trips, one more for each prune, two more for each megabyte of the archive, or part of one.

        Raises:
            ThreadExists: The target holds checkpoints or writes already.
        """
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        self._run(carried.copy_thread(self._core, source, target, self._made()))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`, asynchronously."""
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        await self._arun(carried.copy_thread(self._core, source, target, self._made()))

    # -- what LangGraph asks besides ---------------------------------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the version after `current`; see `core.headers.next_version_of`."""
        return next_version_of(current)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> KeelSaver:
        """Return a copy whose serializer may also revive these types; it shares everything else with this saver."""
        serde = allowing(self.serde, extra_allowlist)
        if serde is self.serde:
            return self
        clone = copy.copy(self)
        clone.serde = serde
        return clone
