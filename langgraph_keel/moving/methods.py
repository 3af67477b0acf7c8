"""`saver.moving`: copies threads to other stores, and imports and exports them."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.engine import EngineSaver, engine_of
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.faces import Component, faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langgraph_keel.moving.copy import CopyReport, Mode
    from langgraph_keel.moving.export import ExportReport
    from langgraph_keel.moving.langgraph import ImportReport
    from langgraph_keel.moving.notes import SourceLike
    from langgraph_keel.moving.sources import Call as CallSaver
    from langgraph_keel.moving.stats import StoreStats
    from langgraph_keel.moving.touch import Mover

T = TypeVar("T")
CopyProgress: TypeAlias = Callable[[int, int | None, int], object]
"""Called with threads done and in total (each counts twice), and bytes copied."""
Progress: TypeAlias = Callable[[int, int | None], object]
"""Called with the number of threads processed and the total."""

_OLD_STORE = (
    "The store of the old saver ({0}) is only read: it keeps its data of the person, and threads that are not imported "
    "yet were not searched."
)


class StatsMethods(EngineSaver):
    """The `stats` method of a saver."""

    def _stats(self, /, *, on_progress: Progress | None = None, **wanted: Any) -> Plan[StoreStats]:
        """Measure the store by thread, channel and kind of record, and possible savings.

        Reads everything page by page, and writes nothing. A saver without a tenant does not count tenants.

        Args:
            on_progress: Called with the number of threads processed and the total.
            **wanted: Filters of `saver.threads`; with a filter, shared records are not counted.

        Raises:
            InvalidInput: If a filter is invalid.
            KeyMissing: If the store is encrypted and this saver has no keyring.
        """
        from langgraph_keel.history.threads import filter_of
        from langgraph_keel.moving.stats import read_stats

        return read_stats(self.engine.session, filter_of(**wanted), on_progress or (lambda looked, total: None))

    stats, astats = faces(_stats)


class MovingMethods(Component):
    """`saver.moving`: copies, imports and exports threads.

    Args:
        saver: The saver.
        place: The display name of its store.
        mover: Imports threads at their first access, if `moving_from` is set.
    """

    def __init__(self, saver: EngineSaver, place: str, mover: Mover | None) -> None:
        super().__init__(saver)
        self._place = place
        self._mover = mover

    def _copy_to(
        self,
        /,
        other: EngineSaver,
        thread_ids: Collection[str] | None = None,
        *,
        mode: Mode = "copy",
        shared: bool = False,
        on_progress: CopyProgress | None = None,
        **wanted: Any,
    ) -> Plan[CopyReport]:
        """Copy threads with all their records to a store of any backend.

        Values are not revived. The source need not be trusted: only records of the selected threads are copied, and
        only kinds that a feature declares. A thread with malformed records is refused by name. Shared records affect
        all threads of the target, so they are copied only with `shared=True`.

        A copy can be interrupted; the next one continues it. Other processes may write to the source concurrently: a
        second pass copies their changes, and compares every value of both stores. A later copy adds new data. A thread
        that the target already has is left unchanged, unless it is an unused copy.

        Memory holds the names of all threads, the headers of one thread's checkpoints and some of their values. A
        thread takes about twenty round trips, and one for each checkpoint and each write. Nothing is locked.

        Args:
            other: A saver on the target store.
            thread_ids: Only these threads.
            mode: `"look"` only reports the threads to copy; `"verify"` only compares. Both write nothing.
            shared: Also copy shared records: retention policies, the secret of the ledger, cached results of nodes and
                tools. If all threads are copied, also the items of `saver.store()`, the audit trail and all tenants.
                Use it only with a source that you trust. `report.left` names the omitted records.
            on_progress: Called with threads processed, total threads, and bytes copied.
            **wanted: Filters of `saver.threads`: `owner="ada"`, `status="waiting"`, ...

        Returns:
            The result; `is_done` is true if the copy is complete.

        Raises:
            InvalidInput: If both are the same store, or an argument is invalid.
            NotFound: If one of the ids has no thread.
            KeyMissing: If the store is encrypted and this saver has no keyring.
            StoreError: If one of the stores fails; copied data is kept, and the next copy continues.
        """
        from langgraph_keel.history.threads import filter_of
        from langgraph_keel.moving.copy import check_mode, copy_store
        from langgraph_keel.moving.pair import from_source

        target = engine_of(other)
        if target is None:
            raise InvalidInput(f"copy_to needs a saver of Keel's as the target, not a {type(other).__name__}")
        if isinstance(thread_ids, str):
            raise InvalidInput("thread_ids must be a list of thread ids, not one string")
        if self.engine.is_same_store(target):
            raise InvalidInput("the source and the target are the same store: nothing was copied")
        check_mode(mode)
        ids = None if thread_ids is None else [thread_id_of(each) for each in thread_ids]
        tell = on_progress or (lambda looked, total, nbytes: None)
        stores = self.engine.session, target.session
        plan = copy_store(*stores, ids, filter_of(**wanted), mode, tell, self._place, shared=shared)
        return from_source(plan, target)

    copy_to, acopy_to = faces(_copy_to)

    def _import_from(
        self,
        source: SourceLike,
        threads: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> Plan[ImportReport]:
        """Import threads from the store of one of LangGraph's own savers.

        The source is only read. Each thread is imported with all its checkpoints, branches, namespaces, pending writes
        and questions, or not at all. Each checkpoint is compared with the source by a digest. Threads that already
        exist are skipped, so an interrupted import can be run again. A thread that continued only in the source is
        updated.

        The asynchronous method uses the asynchronous methods of a saver object. It works in another thread, which also
        calls `on_progress`. If it is cancelled, it ends after the current thread.

        Args:
            source: `sqlite:///old.db`, the path of such a file, `postgresql://...`, or a saver object with LangGraph's
                interface. Without `threads`, all checkpoints of a saver object are listed to find its threads.
            threads: Thread ids; by default all threads.
            dry_run: Only read and decode; write nothing.
            on_progress: Called with the number of threads done and the total (`None` if unknown).

        Returns:
            The result, with the reason for each thread that could not be imported.

        Raises:
            InvalidInput: If the source is not a complete store of LangGraph's savers.
            NotFound: If the file does not exist.
            AccessDenied: If the source's server refuses the user.
            StoreError: If a store failed; imported threads are kept.
        """

        def move_in(call: CallSaver | None, is_cut_off: Callable[[], bool]) -> ImportReport:
            from langgraph_keel.moving.langgraph import allows_of, arriving, import_threads
            from langgraph_keel.moving.sources import source_of

            session = self._whole_session()
            if self._mover is not None and not session.tenant:
                session = replace(self._mover.session, codec=session.codec)
            else:
                session = arriving(session)
            names = None if threads is None else _names_of(threads)
            with source_of(source, call).open(allows_of(session)) as reader:
                tell = on_progress or (lambda done, total: None)
                return import_threads(session, reader, names, dry_run=dry_run, on_progress=tell, is_cut_off=is_cut_off)

        return _call_blocking(move_in, source)

    import_from, aimport_from = faces(_import_from)

    def _whole_session(self) -> Session:
        session = self.engine.session
        if session.codec.shows:
            raise InvalidInput("saver.raw has placeholders instead of values: use the saver itself")
        return session

    def _export_to(
        self,
        target: SourceLike,
        threads: Iterable[str] | None = None,
        *,
        on_progress: Progress | None = None,
    ) -> Plan[ExportReport]:
        """Export threads into the store of one of LangGraph's own savers.

        Threads are written with that saver's own `put` and `put_writes`, so it can continue them. A thread that the
        target already has is left unchanged. The asynchronous method uses the asynchronous methods of a saver object.

        Args:
            target: `sqlite:///new.db`, the path of such a file, `postgresql://...`, or a saver object with LangGraph's
                interface.
            threads: Thread ids; by default all threads.
            on_progress: Called with the number of threads done and the total.

        Returns:
            The result, with the reason for each thread that could not be written.

        Raises:
            InvalidInput: If the target is invalid, or the package of its saver is not installed.
            AccessDenied: If the target's server refuses the user.
            StoreError: If a store failed; exported threads are kept.
        """

        def move_out(call: CallSaver | None, is_cut_off: Callable[[], bool]) -> ExportReport:
            from langgraph_keel.moving.export import export_threads, open_target

            names = None if threads is None else _names_of(threads)
            with open_target(target, call) as put:
                return export_threads(self._whole_session(), put, names, on_progress or (lambda done, total: None))

        return _call_blocking(move_out, target)

    export_to, aexport_to = faces(_export_to)


def _call_blocking(work: Callable[[CallSaver | None, Callable[[], bool]], T], saver: SourceLike) -> Plan[T]:
    """Call a blocking function; async code calls it in a thread with async methods."""
    cut_off = Event()

    async def awaited() -> T:
        try:
            return await to_thread(work, _caller_of(saver), cut_off.is_set)
        finally:
            cut_off.set()

    result: T = yield Call(partial(work, None, cut_off.is_set), awaited)
    return result


def describe_source(mover: Mover | None) -> list[str]:
    """Return a sentence for receipts: the store of `moving_from` keeps its data."""
    return [] if mover is None else [_OLD_STORE.format(mover.source.place)]


def _names_of(threads: Iterable[str]) -> list[str]:
    if isinstance(threads, str):
        raise InvalidInput(f"pass a list of thread ids, not one string: [{threads!r}]")
    return [*dict.fromkeys(map(thread_id_of, threads))]


def _caller_of(saver: SourceLike) -> CallSaver | None:
    """Return a function for a thread that calls a saver's async methods in this loop."""
    if not isinstance(saver, BaseCheckpointSaver):
        return None
    loop = asyncio.get_running_loop()

    async def do(method: str, given: Any, more: Any) -> Any:
        if method == "list":
            return [each async for each in saver.alist(*given, **more)]
        return await getattr(saver, f"a{method}")(*given, **more)

    return lambda method, *given, **more: asyncio.run_coroutine_threadsafe(do(method, given, more), loop).result()
