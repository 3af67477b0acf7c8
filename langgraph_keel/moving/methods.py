"""What a saver can do with another store: copy threads to it, and compare both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.engine import EngineSaver, engine_of
from langgraph_keel.engine.plan import Plan, arun, run
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langgraph_keel.moving.copy import CopyReport, Mode
    from langgraph_keel.moving.stats import StoreStats

CopyProgress: TypeAlias = Callable[[int, int | None, int], object]
"""Is called with how many threads were looked at, of how many (each of them twice), and how many bytes went over."""
Progress: TypeAlias = Callable[[int, int | None], object]
"""Is called with how many threads were looked at, and of how many."""


class MovingMethods(EngineSaver):
    """The methods that bring threads to another store."""

    def copy_to(
        self,
        other: EngineSaver,
        thread_ids: Collection[str] | None = None,
        *,
        mode: Mode = "copy",
        shared: bool = False,
        on_progress: CopyProgress | None = None,
        **wanted: Any,
    ) -> CopyReport:
        """Copy threads to another store, of any backend, with all that is theirs; values need not be revived for it.

        The source need not be trusted: only records that belong to one of the threads are copied, each of a kind that a
        feature declares, and a thread with records that no store writes is refused by name. Records that threads share
        change what happens to all threads of the target, so they are copied only with `shared=True`.

        It may be cut off anywhere, and goes on when it is done again. Others may write to the source meanwhile: a
        second pass brings what they have changed, and compares every value of both stores. Done again later, it brings
        what is new. A thread that the target holds already is left alone, unless it is a copy that nobody has used.

        In memory are the names of all threads; of one thread the headers of its checkpoints, and the values of some.
        Some twenty round trips a thread, and one for each checkpoint and each write. Nothing is locked.

        Args:
            other: A saver on the other store.
            thread_ids: Only these threads.
            mode: `"look"` only says what would be copied; `"verify"` compares what is there. Both write nothing.
            shared: Whether to copy what threads share, too: stored policies of retention, the secret of the ledger,
                cached results of nodes and of tools, and with all threads the audit trail and all tenants. Only from a
                source that you trust. `report.left` names what was left out.
            on_progress: Called with how many threads were looked at, of how many, and how many bytes went over.
            **wanted: Only threads that fit, as `saver.threads` takes it: `owner="ada"`, `status="waiting"`, ...

        Returns:
            What was copied; `is_done` says whether that is all.

        Raises:
            InvalidInput: Both are the same store, or what is asked for cannot be meant.
            NotFound: There is no thread of one of the ids.
            KeyMissing: The store is encrypted, and this saver has no keyring.
            StoreError: One of the stores fails; what was copied by then is there, and the next one goes on.
        """
        from langgraph_keel.moving.pair import PairDriver

        plan = self._copy_to(other, thread_ids, mode, shared, on_progress, wanted)
        return run(plan, PairDriver((self.engine.driver, other.engine.driver)))

    async def acopy_to(
        self,
        other: EngineSaver,
        thread_ids: Collection[str] | None = None,
        *,
        mode: Mode = "copy",
        shared: bool = False,
        on_progress: CopyProgress | None = None,
        **wanted: Any,
    ) -> CopyReport:
        """As `copy_to`, asynchronously."""
        from langgraph_keel.moving.pair import AsyncPairDriver

        plan = self._copy_to(other, thread_ids, mode, shared, on_progress, wanted)
        return await arun(plan, AsyncPairDriver((self.engine.async_driver, other.engine.async_driver)))

    def stats(self, *, on_progress: Progress | None = None, **wanted: Any) -> StoreStats:
        """Say where the bytes are, by thread, channel and kind of record, and what a prune or packing would save.

        All is read, page by page; nothing is written. Of a saver that is no tenant's, tenants are not in it.

        Args:
            on_progress: Called with how many threads were looked at, and of how many.
            **wanted: Only threads that fit, as `saver.threads` takes it; what threads share is left out then.

        Raises:
            InvalidInput: What is asked for cannot be meant.
            KeyMissing: The store is encrypted, and this saver has no keyring.
        """
        return self.engine.run(self._stats(on_progress, wanted))

    async def astats(self, *, on_progress: Progress | None = None, **wanted: Any) -> StoreStats:
        """As `stats`, asynchronously."""
        return await self.engine.arun(self._stats(on_progress, wanted))

    def _stats(self, on_progress: Progress | None, wanted: Any) -> Plan[StoreStats]:
        from langgraph_keel.history.threads import filter_of
        from langgraph_keel.moving.stats import read_stats

        return read_stats(self.engine.session, filter_of(**wanted), on_progress or (lambda looked, total: None))

    def _copy_to(
        self,
        other: EngineSaver,
        thread_ids: Collection[str] | None,
        mode: Mode,
        shared: bool,
        on_progress: CopyProgress | None,
        wanted: Any,
    ) -> Plan[CopyReport]:
        from langgraph_keel.history.threads import filter_of
        from langgraph_keel.moving.copy import check_mode, copy_store

        if engine_of(other) is None:
            raise InvalidInput(f"a copy goes to a saver of Keel's, not to a {type(other).__name__}")
        if isinstance(thread_ids, str):
            raise InvalidInput("thread_ids are the ids of threads, not a text")
        if self.engine.is_same_store(other.engine):
            raise InvalidInput("the source and the target are the same store: nothing was copied")
        check_mode(mode)
        ids = None if thread_ids is None else [thread_id_of(each) for each in thread_ids]
        tell = on_progress or (lambda looked, total, nbytes: None)
        stores = self.engine.session, other.engine.session
        return copy_store(*stores, ids, filter_of(**wanted), mode, tell, self._place(), shared=shared)
