"""What a saver can do with another store: copy threads to it, compare, and hand a thread on as a file."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Collection
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import EngineSaver, arun, engine_of, run
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langgraph_keel.moving.bundle import Bundle, BundleInfo
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
        on_progress: CopyProgress | None = None,
        **wanted: Any,
    ) -> CopyReport:
        """Copy threads to another store, of any backend, with all that is theirs; values need not be revived for it.

        It may be cut off anywhere, and goes on when it is done again. Others may write to the source meanwhile: a
        second pass brings what they have changed, and compares every value of both stores. Done again later, it brings
        what is new. A thread that the target holds already is left alone, unless it is a copy that nobody has used. If
        all threads of a saver are copied that is no tenant's, those of all tenants are, too.

        In memory are the names of all threads; of one thread the headers of its checkpoints, and the values of some.
        Some twenty round trips a thread, and one for each checkpoint and each write. Nothing is locked.

        Args:
            other: A saver on the other store.
            thread_ids: Only these threads.
            mode: `"look"` only says what would be copied; `"verify"` compares what is there. Both write nothing.
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

        plan = self._copy_to(other, thread_ids, mode, on_progress, wanted)
        return run(plan, PairDriver((self.engine.driver, other.engine.driver)))

    async def acopy_to(
        self,
        other: EngineSaver,
        thread_ids: Collection[str] | None = None,
        *,
        mode: Mode = "copy",
        on_progress: CopyProgress | None = None,
        **wanted: Any,
    ) -> CopyReport:
        """As `copy_to`, asynchronously."""
        from langgraph_keel.moving.pair import AsyncPairDriver

        plan = self._copy_to(other, thread_ids, mode, on_progress, wanted)
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

    def export_bundle(self, thread_id: str, path: str | PathLike[str]) -> BundleInfo:
        """Write a thread to a file of its own, with all that is its, to attach to a report or to read back elsewhere.

        **The file holds the whole conversation in plain text**, also of an encrypted store. It has the checkpoints of
        all branches, writes, labels, tool calls, requests for approval, archives; not the audit trail, and not the
        secret of the ledger, so that another store does not know the tool calls again unless `ToolCache(secret=...)` is
        the same. All of the thread is in memory meanwhile.

        Args:
            thread_id: The thread.
            path: The file, which must not be there.

        Raises:
            NotFound: There is no such thread.
            InvalidInput: There is a file of that name, or it cannot be written.
            CorruptStore: The thread cannot be read.
        """
        from langgraph_keel.moving.bundle import write_bundle

        return write_bundle(self.engine.run(self._read_bundle(thread_id)), Path(path))

    async def aexport_bundle(self, thread_id: str, path: str | PathLike[str]) -> BundleInfo:
        """As `export_bundle`, asynchronously."""
        from langgraph_keel.moving.bundle import write_bundle

        bundle = await self.engine.arun(self._read_bundle(thread_id))
        return await to_thread(write_bundle, bundle, Path(path))

    def _read_bundle(self, thread_id: str) -> Plan[Bundle]:
        from langgraph_keel.moving.bundle import read_thread
        from langgraph_keel.moving.copy import kinds_that_move

        session = self.engine.session
        return read_thread(session.store, thread_id_of(thread_id), kinds_that_move(session, "never", "always"))

    def import_bundle(self, path: str | PathLike[str]) -> BundleInfo:
        """Read a thread from the file that `export_bundle` has written, and compare all of it with the file.

        It may be cut off anywhere, and goes on when it is done again.

        Raises:
            NotFound: There is no such file.
            NotAKeelStore: It is no bundle.
            NewerFormat: A newer version of Keel has written it.
            CorruptStore: It was cut off, or changed.
            ThreadExists: The store holds another thread of that name.
        """
        from langgraph_keel.moving.bundle import load_bundle
        from langgraph_keel.moving.pair import PairDriver

        bundle, info = load_bundle(Path(path))
        run(self._import_bundle(bundle), PairDriver((self.engine.driver, self.engine.driver)))
        return info

    async def aimport_bundle(self, path: str | PathLike[str]) -> BundleInfo:
        """As `import_bundle`, asynchronously."""
        from langgraph_keel.moving.bundle import load_bundle
        from langgraph_keel.moving.pair import AsyncPairDriver

        bundle, info = await to_thread(load_bundle, Path(path))
        driver = self.engine.async_driver
        await arun(self._import_bundle(bundle), AsyncPairDriver((driver, driver)))
        return info

    def _import_bundle(self, bundle: Bundle) -> Plan[None]:
        from langgraph_keel.moving.copy import copy_bundle

        return copy_bundle(bundle, self.engine.session)

    def _copy_to(
        self,
        other: EngineSaver,
        thread_ids: Collection[str] | None,
        mode: Mode,
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
        return copy_store(
            self.engine.session, other.engine.session, ids, filter_of(**wanted), mode, tell, self._place()
        )
