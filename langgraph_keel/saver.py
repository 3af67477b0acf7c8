"""KeelSaver: LangGraph's checkpoint-saver interface, sync and async.

The methods run plans of `engine` with the drivers of a backend. This class also combines the features: methods that are
not part of LangGraph's interface are grouped in components, each in its room.
"""

from __future__ import annotations

import copy
from asyncio import to_thread
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast
from weakref import WeakValueDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from langgraph_keel._langgraph import INPUT
from langgraph_keel.display.text import plain
from langgraph_keel.engine import checkpoints
from langgraph_keel.engine.audit import append_deletion, check_by
from langgraph_keel.engine.config import address_of, texts_of, thread_id_of
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.engine import Engine, engine_of, with_engine
from langgraph_keel.engine.entries import Status, next_version_of
from langgraph_keel.engine.errands import AsyncErrandDriver, ErrandDriver
from langgraph_keel.engine.hooks import LookOnly
from langgraph_keel.engine.leases import Pause
from langgraph_keel.engine.plan import AsyncDriver, Driver, Plan, arun, run
from langgraph_keel.engine.queries import query_of
from langgraph_keel.engine.records import Query, ThreadInfo
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.serializer import KeelSerializer, with_allowlist_of, with_moved_classes
from langgraph_keel.engine.session import Hooks
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import InvalidInput
from langgraph_keel.history.methods import HistoryMethods, LabelMethods, ThreadHistory
from langgraph_keel.history.threads import Order, ThreadPages, filter_of
from langgraph_keel.keys.methods import KeyMethods, describe_backups
from langgraph_keel.moving.methods import MovingMethods, StatsMethods, describe_source
from langgraph_keel.options import SaverOptions, read_options, takes
from langgraph_keel.provenance.methods import ProvenanceMethods
from langgraph_keel.recovery.methods import RecoveryMethods
from langgraph_keel.retention.background import upkeep_of
from langgraph_keel.retention.methods import Progress, RetentionMethods, RetentionSaver
from langgraph_keel.retention.owners import check_threads
from langgraph_keel.runs.marks import accepting
from langgraph_keel.runs.methods import DrainMethods, RunMethods
from langgraph_keel.stack import Stack, open_engine, stack_of
from langgraph_keel.summaries.methods import ArchiveMethods
from langgraph_keel.tenants.methods import TenantMethods
from langgraph_keel.tools.methods import ToolMethods
from langgraph_keel.upgrades.hook import UpgradeHook
from langgraph_keel.workspace.methods import WorkspaceMethods

if TYPE_CHECKING:
    from langgraph.store.base import TTLConfig

    from langgraph_keel.approvals.inbox import Inbox
    from langgraph_keel.approvals.notices import AsyncSource, Bell, Source
    from langgraph_keel.history.threads import Usage
    from langgraph_keel.history.usage import By
    from langgraph_keel.retention.info import StoreFacts, StoreInfo
    from langgraph_keel.store.keel_store import KeelStore
    from langgraph_keel.store.vectors import KeelIndex

_VIEWS = 16
"""Number of recently used tenants' views to keep: a server asks for the same tenants again."""


@publish
class KeelSaver(
    RetentionSaver,
    HistoryMethods,
    StatsMethods,
    ArchiveMethods,
    DrainMethods,
    RecoveryMethods,
):
    """A LangGraph checkpointer for one store.

    Every method has a blocking form (`put`) and an async form (`aput`). Both can be used on the same object, from any
    thread and any event loop. The saver of a backend subclasses this, opens the store, and overrides `_close`.

    Args:
        store: Translates operations on checkpoints into requests to the backend.
        driver: Sends these requests, and blocks until the reply arrives.
        async_driver: Sends these requests without blocking a loop.
        is_read_only: Whether the driver refuses to write.
        is_async_only: Whether only the asynchronous driver can be used.
        **options: `SaverOptions` lists and documents them.
    """

    stack: Stack
    """The layers between this saver and its backend, and the drivers."""

    @takes(SaverOptions)
    def __init__(
        self,
        store: Store[Any, Any],
        driver: Driver[Any, Any],
        async_driver: AsyncDriver[Any, Any],
        is_read_only: bool = False,
        is_async_only: bool = False,
        **options: Unpack[SaverOptions],
    ) -> None:
        self._options = options = read_options(type(self), options)
        self.stack = stack_of(store, driver, async_driver, options, is_read_only, is_async_only, self._beside())
        serde = options["serde"] or KeelSerializer(types=options["types"])
        super().__init__(serde=with_moved_classes(serde, self.stack.upgrades.moved))
        self._upkeep = upkeep_of(self, options["keep_last"], options["ttl"], options["upkeep_every"])
        self._views: WeakValueDictionary[str, Self] = WeakValueDictionary()
        self._last_views: deque[Self] = deque(maxlen=_VIEWS)
        self._engine = self._open_engine(self.stack.store, "" if options["tenants"] == "allowed" else None)
        if self.stack.mover is not None:
            self.stack.mover.open(self._engine.session, self.stack.settled)
        if not is_read_only:  # otherwise no graph runs on it
            watch(options["provenance"])

    def _open_engine(self, store: Store[Any, Any], tenant: str | None) -> Engine:
        return open_engine(self.stack, store, tenant, self._options, self.serde, self._upkeep)

    def __repr__(self) -> str:
        """Return the class and the store's place, without a request or password."""
        tenant = f"tenant {self.tenant}" if self.tenant else ""
        return f"<{' '.join(part for part in (type(self).__name__, plain(self._place()), tenant) if part)}>"

    def _view(self, tenant: str) -> Self:
        if self._engine.session.hooks.find(LookOnly):
            raise InvalidInput("write saver.for_tenant(name).raw, and not saver.raw.for_tenant(name)")
        view = self._views.get(tenant)
        if view is None:
            view = copy.copy(self)
            view._engine = self._open_engine(self._engine.session.store.of_tenant(tenant), tenant)
            self._last_views.append(view)
            self._views[tenant] = view  # two concurrent threads may create a view each, which is as good as two savers
        return view

    @property
    def raw(self) -> Self:
        """A read-only view of this saver that works without the application's classes.

        Values that cannot be revived are returned as `Unread`, which describes the stored value, by every method:
        `saver.raw.get_tuple(config)`, `await saver.raw.aget_tuple(config)`. This needs Keel's own serializer, which may
        be wrapped in another one. The view runs no graphs and writes nothing.
        """
        session = self.engine.session.with_placeholders()
        # Values are shown as they were stored, without upgrades.
        hooks = [each for each in session.hooks.all if not isinstance(each, UpgradeHook)]
        session = replace(session, hooks=Hooks((LookOnly(), *hooks)))
        clone = with_engine(self, replace(self.engine, session=session))
        clone.serde = session.codec.serde
        return clone

    # -- open and close ----------------------------------------------------------------------------------------

    def setup(self) -> Awaitable[None]:
        """Create the store's tables or files.

        Happens automatically at first use, unless `auto_setup=False`. Safe to call again, and from several processes
        concurrently. The call blocks; its result may be awaited, for code that was written for other savers. `asetup`
        does not block a running loop.

        Raises:
            NotSetUp: If this user may not create the tables.
            NotAKeelStore: If the place contains data of another program.
        """
        self._setup()
        return Done()

    async def asetup(self) -> None:
        """As `setup`, asynchronously."""
        await self._asetup()

    def _setup(self) -> None:
        """Create tables or files, for `setup`; backends override it."""

    async def _asetup(self) -> None:
        """As `_setup`, asynchronously."""
        await to_thread(self._setup)

    def migrations(self) -> list[str]:
        """Return a description of each migration that `setup` would run.

        A description is the SQL to run, or a sentence. A store of an older format is migrated at its first use. With
        `auto_setup=False` or read-only, it is refused instead.

        Raises:
            NotFound: If there is no store.
            NewerFormat: If a newer Keel wrote it.
        """
        return self._migrations()

    async def amigrations(self) -> list[str]:
        """As `migrations`, asynchronously."""
        return await self._amigrations()

    def _migrations(self) -> list[str]:
        """As `migrations`; backends with several formats override it."""
        return []

    async def _amigrations(self) -> list[str]:
        """As `_migrations`, asynchronously."""
        return await to_thread(self._migrations)

    @property
    def ddl(self) -> str:
        """The SQL that `setup` runs; empty for backends without tables."""
        return ""

    def grants(self, role: str) -> str:
        """Return the SQL that lets a role use the tables; empty without roles.

        Args:
            role: The name of the role.
        """
        return ""

    def close(self) -> None:
        """Complete deferred work and close all resources.

        Deferred are outcomes of a `ToolCache` and claims of ended runs. Safe to call again. Later calls that need the
        store raise `StoreClosed`.
        """
        if self.tenant is None:
            for view in list(self._views.values()):
                view.close()
        shared = (*self._options["extra_hooks"], self._upkeep)
        for closer in (*self._engine.closers, *self._engine.session.hooks.all):
            if self.tenant is None or closer not in shared:
                closer.close()
        if self.tenant is None:
            self._close()
            if self.stack.objects is not None:
                self.stack.objects.close()

    async def aclose(self) -> None:
        """As `close`, asynchronously."""
        await to_thread(self.close)

    def _close(self) -> None:
        """Close the backend's resources; backends override it. Must be safe to call again."""

    def __enter__(self) -> Self:
        """Return the saver itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the saver."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return the saver itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the saver."""
        await self.aclose()

    # -- reading -----------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the latest of its thread.

        One round trip. The latest checkpoint is the one that was stored last, independent of clocks. All mutable
        objects in the tuple are new. A run that resumes its thread (`Command(resume=...)`, or no input) claims it
        first, which takes one or two trips more.

        Args:
            config: `configurable.thread_id` (str or int), `checkpoint_ns` (default `""`), `checkpoint_id` (optional).

        Returns:
            The tuple, with its pending writes in the order in which LangGraph applies them; `None` if the checkpoint
            does not exist.

        Raises:
            InvalidConfig: If the config names no usable thread.
            NotFound: If a run starts from a checkpoint that does not exist. LangGraph would start with an empty state,
                and append that to the thread.
            ThreadTaken: If another run resumes the thread; or, with `on_busy="wait"`, holds it beyond `busy_timeout`.
            ThreadUnfinished: With `on_unfinished="refuse"`, if a run brings new input to a thread that has steps left.
            RefusedType: If a stored value is of a type that may not be revived here.
            CorruptStore: If stored bytes are damaged.
        """
        engine = self.engine
        return run(checkpoints.begin_run(engine.session, config, is_async=False), ErrandDriver(engine.driver, Pause))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`, asynchronously."""
        engine = self.engine
        driver = AsyncErrandDriver(engine.async_driver, Pause)
        return await arun(checkpoints.begin_run(engine.session, config, is_async=True), driver)

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
            filter: Metadata keys and the values they must equal (`engine.queries` defines a match).
            before: Only checkpoints that were stored before the one that this config names.
            limit: Maximum number of checkpoints.

        Raises:
            InvalidInput: If `limit` is negative.
            InvalidConfig: If `config` names no usable thread.
        """
        query: Query | None = query_of(config, filter, before, limit)
        engine, left = self.engine, limit
        while query is not None and left != 0:
            entries, query = engine.run(checkpoints.page(engine.session, query, filter))
            entries = entries[:left]
            unpacker = Unpacker(engine.session.codec, engine.session.memo.open_frame, entries)
            for found in engine.run(checkpoints.load(engine.session, entries)):
                left = left if left is None else left - 1
                yield engine.run(checkpoints.revive(engine.session, found, unpacker, "named"))

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
        engine, left = self.engine, limit
        while query is not None and left != 0:
            entries, query = await engine.arun(checkpoints.page(engine.session, query, filter))
            entries = entries[:left]
            unpacker = Unpacker(engine.session.codec, engine.session.memo.open_frame, entries)
            for found in await engine.arun(checkpoints.load(engine.session, entries)):
                left = left if left is None else left - 1
                yield await engine.arun(checkpoints.revive(engine.session, found, unpacker, "named"))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the last stored value of each channel, and the writes since then.

        The value is that of the nearest ancestor that stores one. Writes are ordered, oldest first. One round trip.
        Works after `prune`, `copy_thread` and `delete_for_runs`, which keep the required ancestors.
        """
        if not channels:
            return {}
        return self.engine.run(checkpoints.delta_history(self.engine.session, address_of(config), channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`, asynchronously."""
        if not channels:
            return {}
        return await self.engine.arun(checkpoints.delta_history(self.engine.session, address_of(config), channels))

    # -- writing -----------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint as the latest of its thread and namespace.

        One round trip; durable when it returns, with the guarantee of the backend. The current content of
        `channel_values` is stored, including values that a node changed in place without a new version. Only the
        difference to known values is written.

        Args:
            config: The thread and namespace; its `checkpoint_id` is the parent.
            checkpoint: The checkpoint.
            metadata: Its metadata; scalars of the config are merged into it as LangGraph's savers do.
            new_versions: The channels that the step wrote. A channel that has a version, but neither a new one nor a
                value, keeps the value of the parent (`engine.entries`). Other changes are found by content.

        Returns:
            The config of the new checkpoint.

        Raises:
            CheckpointConflict: If another checkpoint has become the latest since the run read the thread. Runs that
                started from a checkpoint id never conflict. Nothing was written.
            NotFound: If `update_state` names a checkpoint that does not exist. Nothing was written.
            UnstorableValue: If a value has no stored form; the error names thread, channel, path and type.
            InvalidConfig: If the config names no usable thread.
            StoreError: If the store failed; nothing was written.
        """
        return self.engine.run(checkpoints.put(self.engine.session, config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`, asynchronously. Values are serialized before the first await.

        If the caller is cancelled, the checkpoint is stored nevertheless, because the request has been sent.
        """
        plan = checkpoints.put(self.engine.session, config, checkpoint, metadata, new_versions)
        return await self.engine.arun_whole(plan)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task before its step has ended.

        One round trip; durable when it returns. A question to a person takes a few trips more: it creates a request
        (`approvals`), and claims the thread until the run has ended. The checkpoint may be stored later. Repeating a
        call is harmless: see `engine.entries`.

        Raises:
            UnstorableValue: If a value has no stored form.
            InvalidConfig: If the config names no thread or no checkpoint.
            CheckpointConflict: If a checkpoint of the run was refused, so that these writes belong to no checkpoint.
        """
        self.engine.run_patiently(checkpoints.put_writes(self.engine.session, config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`, asynchronously."""
        plan = checkpoints.put_writes(self.engine.session, config, writes, task_id, task_path)
        await self.engine.arun_patiently(plan)

    def accept(self, graph: Any, input: Any, config: RunnableConfig) -> RunnableConfig:
        """Store input for a thread without running it.

        Durable when it returns, so a program may answer 202. Any process continues the thread, with
        `graph.invoke(None, config)`. A thread holds one such input, not a queue. Six round trips. If the input is
        refused, nothing is written.

        Args:
            graph: The graph to run, compiled with this saver.
            input: The input of the graph, in any form that its channels take.
            config: Names the thread, and its owner (`user_id`).

        Returns:
            The config of the stored checkpoint.

        Raises:
            InvalidInput: If the saver has no `recoverable=True`, the graph has another saver, the input is `None` or a
                `Command`, or the config names a checkpoint or a namespace.
            ThreadTaken: If a run holds the thread.
            ThreadUnfinished: If the thread has steps left, or waits for a person.
            CheckpointConflict: If a run, or other input, came at the same time.
        """
        self.engine.run(self._check_accept(graph, input, config))
        with accepting(graph.nodes):
            return cast(RunnableConfig, graph.update_state(config, input, as_node=INPUT))

    async def aaccept(self, graph: Any, input: Any, config: RunnableConfig) -> RunnableConfig:
        """As `accept`, asynchronously."""
        await self.engine.arun(self._check_accept(graph, input, config))
        with accepting(graph.nodes):
            return cast(RunnableConfig, await graph.aupdate_state(config, input, as_node=INPUT))

    def _check_accept(self, graph: Any, input: Any, config: RunnableConfig) -> Plan[None]:
        from langgraph.types import Command

        from langgraph_keel.history.status import check_takes_input

        address = address_of(config)
        if not self._options["recoverable"]:
            raise InvalidInput("accept needs a saver with recoverable=True, which marks accepted input")
        engine = engine_of(getattr(graph, "checkpointer", None))
        if engine is None or not engine.is_same_store(self.engine):
            raise InvalidInput("accept needs a graph that was compiled with this saver (checkpointer=saver)")
        if input is None or isinstance(input, Command):
            raise InvalidInput("accept takes new input: None and Command continue a thread, which graph.invoke does")
        if address.checkpoint_id or address.checkpoint_ns:
            raise InvalidInput(f"accept stores input at the end of a thread, and the config names {address}")
        return check_takes_input(self.engine.session, address.thread_id)

    # -- removing and copying ----------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str, *, by: str | None = None) -> None:
        """Delete everything of a thread; no error if there is none.

        Args:
            thread_id: The thread.
            by: The person who deletes it, authenticated by your program. The audit trail then records the deletion,
                with a hash of the thread id, which takes four trips more.

        Raises:
            OnHold: If the thread belongs to a person on hold (`retention.hold`). Nothing was deleted.
        """
        self.engine.run(self._delete_thread(thread_id, by))

    async def adelete_thread(self, thread_id: str, *, by: str | None = None) -> None:
        """As `delete_thread`, asynchronously."""
        await self.engine.arun(self._delete_thread(thread_id, by))

    def _delete_thread(self, thread_id: str, by: str | None) -> Plan[None]:
        thread_id = thread_id_of(thread_id)
        check_by(by)
        yield from check_threads(self.engine.session, [thread_id])
        yield from checkpoints.delete_thread(self.engine.session, thread_id)
        if by is not None:
            yield from append_deletion(self.engine.session, thread_id, by)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs, with their writes, in every thread.

        The runs are found by the `run_id` in checkpoints' metadata. The last remaining checkpoint becomes the latest.
        Values that delta channels of other checkpoints need are kept, but not shown. In threads that still have a
        checkpoint of these runs, the tool calls and the records of model calls of the runs are deleted too.

        Raises:
            OnHold: If one of the threads belongs to a person on hold. Nothing was deleted.
        """
        self.engine.run(self._delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`, asynchronously."""
        await self.engine.arun(self._delete_for_runs(run_ids))

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Plan[None]:
        from langgraph_keel.retention import prune

        return prune.delete_for_runs(self.engine.session, texts_of(run_ids, "run id"))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its archive and tool calls to a new id.

        All namespaces, checkpoints and writes are copied. A tool call that is running, or whose outcome is unknown, has
        an unknown outcome in the copy. Requests for approval stay with the source: the copy asks again. Thirteen round
        trips, one more for each prune, and two more for each tool call and each megabyte (or part of one) of the
        archive.

        Raises:
            ThreadExists: If the target already holds checkpoints or writes.
            BlobsMissing: If values are stored as objects outside the store, and this saver has no `blobs=`.
        """
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        self.engine.run(checkpoints.copy_thread(self.engine.session, source, target))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`, asynchronously."""
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        await self.engine.arun(checkpoints.copy_thread(self.engine.session, source, target))

    # -- other methods of LangGraph -----------------------------------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the version after `current`; see `engine.entries.next_version_of`."""
        return next_version_of(current)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> KeelSaver:
        """Return a copy whose serializer may also revive these types."""
        serde = with_allowlist_of(self.serde, extra_allowlist)
        if serde is self.serde:
            return self
        clone = copy.copy(self)
        clone.serde = serde
        return clone

    # -- features of Keel --------------------------------------------------------------------------------------

    def threads(
        self,
        limit: int | None = None,
        *,
        model: str | None = None,
        match: str | None = None,
        owner: str | None = None,
        waiting: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        status: Status | None = None,
        label: str | None = None,
        node: str | None = None,
        error: str | type[BaseException] | None = None,
        where: Mapping[str, Any] | None = None,
        order: Order = "newest",
        after: str | None = None,
    ) -> Iterator[ThreadInfo]:
        """Yield the threads of this store, ordered by last activity.

        Times are those of the writers' clocks. No state is read. Two round trips for each page: 50 threads, then 100,
        and so on, up to 500. Filters are combined with AND.

        Args:
            limit: Maximum number of threads.
            model: Only threads that this model has written, by its requested or served name.
            match: Only threads whose ids match this pattern, with `*`, `?` and `[...]`: `"customer-*"`.
            owner: Only threads whose latest checkpoint names this owner (`configurable["user_id"]`).
            waiting: Only threads that wait for a person's decision. One round trip more for each open request.
            since: Only threads whose last write was at or after this time; without a zone it is local time.
            until: Only threads whose last write was at or before this time; without a zone it is local time.
            status: Only threads of this status: `"incomplete"`, `"waiting"`, `"failed"`, `"done"`, or `"idle"`
                (defined by `ThreadInfo.status`).
            label: Only threads in which a checkpoint has this label. One round trip more for each thread.
            node: Only threads in which this node runs next.
            error: Only threads in which a task has failed with an error of this class, or of a class of this name.
            where: Only threads whose latest checkpoints have these metadata, as in `list(filter=...)`.
            order: `"newest"` (last active first) or `"oldest"`. Both are read from the same index, page by page;
                threads of the same time are ordered by id. With `"oldest"`, a thread that becomes active during the
                listing is yielded again at the end.
            after: The `cursor` of the thread after which to continue, from a listing with the same arguments.

        Raises:
            InvalidInput: If an argument is invalid, or `after` is a cursor of another listing.
        """
        wanted = filter_of(model, match, owner, waiting, since, until, status, label, node, error, where)
        pages = ThreadPages(self.engine.session, limit, wanted, after, order)
        while (page := self.engine.run(pages.next())) is not None:
            yield from page

    async def athreads(
        self,
        limit: int | None = None,
        *,
        model: str | None = None,
        match: str | None = None,
        owner: str | None = None,
        waiting: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        status: Status | None = None,
        label: str | None = None,
        node: str | None = None,
        error: str | type[BaseException] | None = None,
        where: Mapping[str, Any] | None = None,
        order: Order = "newest",
        after: str | None = None,
    ) -> AsyncIterator[ThreadInfo]:
        """As `threads`, asynchronously."""
        wanted = filter_of(model, match, owner, waiting, since, until, status, label, node, error, where)
        pages = ThreadPages(self.engine.session, limit, wanted, after, order)
        while (page := await self.engine.arun(pages.next())) is not None:
            for info in page:
                yield info

    def usage(
        self,
        by: By = "owner",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        bytes: bool = False,
        on_progress: Progress | None = None,
    ) -> Mapping[str, Usage]:
        """Return tokens, cost, checkpoints and threads of each group, largest first.

        Read from the latest checkpoint of each thread: two round trips for up to 500 threads. Deleted threads are not
        counted. Tokens and cost cover a thread's whole history, including pruned checkpoints.

        Args:
            by: The grouping: `"owner"`, `"tenant"` (threads without a tenant under `""`), `"status"`, `"day"` (of the
                last activity, UTC; in order), or `"thread"`.
            since: Only threads whose last write was at or after this time; without a zone it is local time.
            until: Only threads whose last write was at or before this time.
            bytes: Whether to measure stored bytes, which reads all records of the threads.
            on_progress: Called with the number of threads read (and `None`, as the total is unknown).

        Raises:
            InvalidInput: If the grouping is unknown, or it is by tenant and this saver is a tenant's view.
        """
        return self.engine.run(self._read_usage(by, since, until, bytes, on_progress))

    async def ausage(
        self,
        by: By = "owner",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        bytes: bool = False,
        on_progress: Progress | None = None,
    ) -> Mapping[str, Usage]:
        """As `usage`, asynchronously."""
        return await self.engine.arun(self._read_usage(by, since, until, bytes, on_progress))

    def _read_usage(
        self, by: By, since: datetime | None, until: datetime | None, weighs: bool, on_progress: Progress | None
    ) -> Plan[Mapping[str, Usage]]:
        from langgraph_keel.history.usage import check_by, read_usage

        check_by(by, self.tenant)
        report = on_progress or (lambda done, total: None)
        return read_usage(self.engine.session, by, filter_of(since=since, until=until), weighs, report)

    def info(self) -> StoreInfo:
        """Return facts on the store, and the number of threads and open requests.

        The facts are backend, format, durability and size. One round trip for each 500 threads, one for each open
        request, and a few more.
        """
        return self._info(self._facts(), self.engine.run(self._count()), len(self.approvals.pending(limit=None)))

    async def ainfo(self) -> StoreInfo:
        """As `info`, asynchronously."""
        waiting = await self.approvals.apending(limit=None)
        return self._info(await to_thread(self._facts), await self.engine.arun(self._count()), len(waiting))

    def _count(self) -> Plan[tuple[int, int]]:
        from langgraph_keel.retention.info import count_threads

        return count_threads(self.engine.session)

    def _info(self, facts: StoreFacts, counts: tuple[int, int], waiting: int) -> StoreInfo:
        from langgraph_keel.retention.info import StoreInfo

        return StoreInfo(**asdict(facts), threads=counts[0], checkpoints=counts[1], waiting=waiting)

    @property
    def history(self) -> ThreadHistory:
        """The feed of events in threads; the notes, hand-off and journal of a thread."""
        return ThreadHistory(self, self._bell)

    @property
    def labels(self) -> LabelMethods:
        """Labels of checkpoints."""
        return LabelMethods(self)

    @property
    def tools(self) -> ToolMethods:
        """The calls of tools in the ledger (`ToolCache`)."""
        return ToolMethods(self)

    @property
    def runs(self) -> RunMethods:
        """Runs of graphs on threads with concurrent runs."""
        return RunMethods(self)

    def store(self, *, index: KeelIndex | None = None, ttl: TTLConfig | None = None) -> KeelStore:
        """Return a LangGraph store: `compile(checkpointer=saver, store=saver.store())`.

        All threads share its items. No round trip. Items are stored in the same place as the checkpoints, and can be
        used while the saver is open. Each tenant has its own store.

        Args:
            index: Semantic search, with the keys of LangGraph's stores: `dims`, `embed` and `fields`; optionally
                `model` and `memory` (`store.vectors.KeelIndex`). Needs NumPy. By default, queries are ignored.
            ttl: Expiry of items, with the keys of LangGraph's stores: `default_ttl` and `sweep_interval_minutes` in
                minutes, and `refresh_on_read`. By default, items are kept until they are deleted.

        Raises:
            InvalidInput: If `index` or `ttl` is not a valid configuration, or NumPy is not installed.
        """
        from langgraph_keel.store.keel_store import KeelStore

        return KeelStore(self, ttl, index=index, is_read_only=self.stack.is_read_only)

    @property
    def provenance(self) -> ProvenanceMethods:
        """The model calls that led to each checkpoint."""
        return ProvenanceMethods(self)

    @property
    def approvals(self) -> Inbox:
        """Requests for approval in all threads, and their decisions."""
        from langgraph_keel.approvals.inbox import Inbox

        return Inbox(self.engine, self._bell)

    @property
    def keys(self) -> KeyMethods:
        """The keys of the store, if it is encrypted (`encryption=`)."""
        return KeyMethods(self)

    @property
    def moving(self) -> MovingMethods:
        """Copies to other stores, and import from and export to LangGraph's own savers."""
        return MovingMethods(self, self._place(), self.stack.mover)

    @property
    def retention(self) -> RetentionMethods:
        """Retention policies, holds, and the erasure of a person's data."""
        return RetentionMethods(
            self, partial(describe_backups, keyring=self.stack.keyring), describe_source(self.stack.mover)
        )

    @property
    def tenants(self) -> TenantMethods:
        """The tenants of the store."""
        return TenantMethods(self)

    @property
    def workspace(self) -> WorkspaceMethods:
        """The files that were saved with checkpoints (`workspace=`)."""
        files = self.stack.files
        return WorkspaceMethods(self, files.shadow if files else None)

    def _beside(self) -> Path | None:
        """Return the file or directory of the store; `None` for other backends."""
        return None

    @property
    def _bell(self) -> Bell:
        from langgraph_keel.approvals.notices import Bell

        return Bell(self._notify, self._anotify, self._listen, self._alisten)

    def _notify(self) -> None:
        """Notify other processes of a decision; backends with a server override this."""

    async def _anotify(self) -> None:
        """As `_notify`, asynchronously."""

    def _listen(self) -> Source | None:
        """Listen for notifications of `_notify`; `None` if the backend sends none."""
        return None

    async def _alisten(self) -> AsyncSource | None:
        """As `_listen`, asynchronously."""
        return None


class Done:
    """An awaitable that has already completed."""

    def __await__(self) -> Generator[None]:
        """Return at once."""
        yield from ()


def watch(provenance: bool) -> None:
    """Register LangChain callbacks for runs, and for model calls if recorded."""
    from langgraph_keel.provenance import capture
    from langgraph_keel.runs import hook as runs

    runs.watch()
    if provenance:
        capture.watch()
