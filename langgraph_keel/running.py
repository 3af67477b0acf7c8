"""A store with its drivers: what is live behind a saver, all of it in one `Backend`, and how plans are run on it."""

from __future__ import annotations

import copy
import logging
from asyncio import to_thread
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from weakref import WeakSet

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph_keel.approvals.inbox import Inbox, new_token, now
from langgraph_keel.approvals.notices import AsyncNotices, AsyncSource, Notices, Source, ring
from langgraph_keel.approvals.noticing import Questions
from langgraph_keel.core.answers import without_spent
from langgraph_keel.core.archive_rule import ArchiveRule
from langgraph_keel.core.backend import Backend
from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.checkpoints import Checkpoints
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.memo import DEFAULT_BYTES, DEFAULT_ENTRIES, Memo
from langgraph_keel.core.noted import made_now
from langgraph_keel.core.owners import Owner
from langgraph_keel.core.plan import AsyncDriver, Driver, Plan, arun, run
from langgraph_keel.core.recorder import OnDrift, Recorder
from langgraph_keel.core.serde import KeelSerializer
from langgraph_keel.core.store import Store
from langgraph_keel.errors import InvalidInput
from langgraph_keel.provenance.capture import package_versions, watch
from langgraph_keel.runs import claims
from langgraph_keel.runs.begun import PlainResume, Runs
from langgraph_keel.upkeep_thread import upkeep_of

_log = logging.getLogger(__name__)
T = TypeVar("T")
OnConflict = Literal["raise", "fork"]


class Running(BaseCheckpointSaver[Any]):
    """A saver's store, drivers and serializer. The arguments are those of `KeelSaver`."""

    def __init__(
        self,
        store: Store[Any, Any],
        driver: Driver[Any, Any],
        async_driver: AsyncDriver[Any, Any],
        *,
        serde: SerializerProtocol | None = None,
        types: Collection[type | tuple[str, ...]] | None = None,
        on_conflict: OnConflict = "raise",
        provenance: bool = True,
        graph_version: str | None = None,
        on_drift: OnDrift = "warn",
        plain_resume: PlainResume = "allow",
        archive_removed: bool | Collection[str] = False,
        owner: Owner | None = None,
        keep_last: int | None = None,
        ttl: float | timedelta | None = None,
        upkeep_every: float = 60.0,
        memo_entries: int = DEFAULT_ENTRIES,
        memo_bytes: int = DEFAULT_BYTES,
    ) -> None:
        if on_conflict not in ("raise", "fork"):
            raise InvalidInput(f"on_conflict must be 'raise' or 'fork', not {on_conflict!r}")
        if owner is not None and not callable(owner):
            raise InvalidInput(f"owner must be a function of a run's config, not {owner!r:.100}")
        if serde is not None and types is not None:
            raise InvalidInput("types= belongs to Keel's own serializer: pass types= or serde=, not both")
        super().__init__(serde=serde or KeelSerializer(types=types))
        memo = Memo(memo_entries, memo_bytes)
        recorder = recording(graph_version, on_drift, provenance)
        questions = Questions(store, now, new_token, owner)
        core = Checkpoints(
            store, memo, on_conflict, recorder, questions, owner=owner, rule=archive_rule(archive_removed)
        )
        runs = Runs(plain_resume)
        upkeep = upkeep_of(self, driver, keep_last, ttl, upkeep_every)
        self._backend = Backend(core, driver, async_driver, runs, WeakSet([runs]), upkeep)

    def setup(self) -> None:
        """Make the store ready. Safe to call again; happens by itself on first use unless `auto_setup=False`."""

    @property
    def ddl(self) -> str:
        """The SQL that `setup` runs, for somebody else to run; empty where there are no tables."""
        return ""

    def close(self) -> None:
        """Write what a `ToolCache` still has to write, and give back what is open. Safe to call again.

        What needs the store afterwards raises `StoreClosed`.
        """
        for cache in list(self._backend.caches):
            cache.close()
        if self._backend.upkeep:
            self._backend.upkeep.close()
        self._close()

    def _close(self) -> None:
        """Give back what is open; backends override it. Must be safe to call again."""

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
        await to_thread(self.close)

    @property
    def approvals(self) -> Inbox:
        """What waits for a person, in all threads, and what persons decide."""
        return Inbox(self)

    @property
    def recorder(self) -> Recorder | None:
        """What has been captured of model calls, and what threads were written with."""
        return self._core.recorder

    @property
    def _core(self) -> Checkpoints[Any, Any]:
        return self._backend.checkpoints

    @property
    def _codec(self) -> Codec:
        # Made anew each time: programs assign `saver.serde`.
        return Codec(self.serde)

    def _apart(self) -> Self:
        """Return a saver on the same store that shares nothing else with this one: it records, and minds no drift.

        Nothing prunes what it puts: a replay's fork stays whole until it was looked at.
        """
        known = self.recorder
        recorder = recording(known.graph_version if known else None, "ignore", captures=True)
        clone = copy.copy(self)
        core = Checkpoints(self._core.store, Memo(), "fork", recorder, rule=self._core.rule, owner=self._core.owner)
        clone._backend = replace(self._backend, checkpoints=core, upkeep=None)
        return clone

    def _begin(self, config: RunnableConfig, *, is_async: bool) -> Plan[Any, Any, CheckpointTuple | None]:
        # The claim comes first: a run that comes late must read the head that the other one has left.
        is_by_id = yield from self._backend.runs.begin(config, self._backend, self._codec, is_async=is_async)
        found = yield from self._core.get_tuple(self._codec, config)
        return found if found is None or is_by_id is None else without_spent(found, is_by_id)

    def _put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new: Collection[str]
    ) -> Plan[Any, Any, RunnableConfig]:
        stored = yield from self._core.put(self._codec, config, checkpoint, metadata, new)
        if self._backend.upkeep:
            self._backend.upkeep.note(stored["configurable"]["thread_id"])
        return stored

    def _write(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Plan[Any, Any, None]:
        # Before the question can be answered. The task has stopped: nobody changes meanwhile what it has written.
        if any(channel == INTERRUPT for channel, _ in writes):
            yield from self._backend.runs.hold(config, self._backend, self._codec)
        yield from self._core.put_writes(self._codec, config, writes, task_id, task_path)

    def _is_taken(self, thread_id: str) -> Plan[Any, Any, bool]:
        """Return whether a run goes on from where a thread waits. One trip."""
        found = yield from self._core.store.read_cells(Shelf(thread_id, claims.KIND), [claims.KEY])
        read = [claims.read_claim(self._codec, thread_id, cell) for cell in found.values()]
        return any(not self._backend.runs.is_over(claim) for claim in read)

    def _made(self) -> Cell:
        """Return the note that a thread is made now."""
        return made_now(self._codec, now(), new_token())

    def _announce(self) -> None:
        """Tell workers that somebody has decided. That is stored, so nothing that goes wrong here is an error."""
        ring()
        try:
            self._notify()
        except Exception as error:
            _log.info("workers of other processes see a decision at their next poll: %s", error)

    async def _aannounce(self) -> None:
        """As `_announce`, asynchronously."""
        ring()
        try:
            await self._anotify()
        except Exception as error:
            _log.info("workers of other processes see a decision at their next poll: %s", error)

    def _notify(self) -> None:
        """Tell other processes that somebody has decided; backends with a server override it, and the next three."""

    async def _anotify(self) -> None:
        """As `_notify`, asynchronously."""

    def _listen(self) -> Source | None:
        """Begin to listen to what `_notify` tells; `None` where nothing is told."""
        return None

    async def _alisten(self) -> AsyncSource | None:
        """As `_listen`, asynchronously."""
        return None

    def _notices(self) -> Notices:
        return Notices(self._listen)

    def _anotices(self) -> AsyncNotices:
        return AsyncNotices(self._alisten)

    def _run(self, plan: Plan[Any, Any, T]) -> T:
        return run(plan, self._backend.driver)

    async def _arun(self, plan: Plan[Any, Any, T]) -> T:
        return await arun(plan, self._backend.async_driver)


def archive_rule(removed: bool | Collection[str]) -> ArchiveRule | None:
    """Return the rule that archives what others take out of lists of messages, if there shall be one.

    Raises:
        InvalidInput: What to watch is neither said by True or False nor by names of channels.
    """
    if not isinstance(removed, bool) and not _are_names(removed):
        raise InvalidInput(f"archive_removed must be True, False or names of channels, as in ['messages']: {removed!r}")
    if not removed:
        return None
    return ArchiveRule(None if removed is True else frozenset(removed), lambda: datetime.now(UTC), new_token)


def recording(graph_version: str | None, on_drift: OnDrift, captures: bool) -> Recorder:
    """Return a recorder; if it captures, have all model calls of this process reported from now on.

    Raises:
        InvalidInput: There is no such way to treat drift, or the version is no text.
    """
    if on_drift not in ("ignore", "warn", "raise"):
        raise InvalidInput(f"on_drift must be 'ignore', 'warn' or 'raise', not {on_drift!r}")
    if not isinstance(graph_version, str | None):
        raise InvalidInput(f"graph_version must be a str, such as '1.4' or a commit's hash, not {graph_version!r}")
    if on_drift == "raise" and captures is not True:
        raise InvalidInput("on_drift='raise' needs provenance=True: what is not recorded cannot be compared")
    if captures:
        watch()
    return Recorder(package_versions(), graph_version, on_drift, captures)


def _are_names(given: object) -> bool:
    return isinstance(given, Collection) and not isinstance(given, str) and all(isinstance(name, str) for name in given)
