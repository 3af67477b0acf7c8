"""`saver.moving`: threads are copied to another store, moved in from LangGraph's own savers, and out again."""

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
"""Is called with how many threads were looked at, of how many (each of them twice), and how many bytes went over."""
Progress: TypeAlias = Callable[[int, int | None], object]
"""Is called with how many threads were looked at, and of how many."""

_OLD_STORE = (
    "The store of the saver from before ({0}) is only read: what it has of the person stays there, and what has not "
    "moved in yet was not looked at."
)


class StatsMethods(EngineSaver):
    """The method that says where the bytes of a store are."""

    def _stats(self, /, *, on_progress: Progress | None = None, **wanted: Any) -> Plan[StoreStats]:
        """Say where the bytes are, by thread, channel and kind of record, and what a prune or packing would save.

        All is read, page by page; nothing is written. Of a saver that is no tenant's, tenants are not in it.

        Args:
            on_progress: Called with how many threads were looked at, and of how many.
            **wanted: Only threads that fit, as `saver.threads` takes it; what threads share is left out then.

        Raises:
            InvalidInput: What is asked for cannot be meant.
            KeyMissing: The store is encrypted, and this saver has no keyring.
        """
        from langgraph_keel.history.threads import filter_of
        from langgraph_keel.moving.stats import read_stats

        return read_stats(self.engine.session, filter_of(**wanted), on_progress or (lambda looked, total: None))

    stats, astats = faces(_stats)


class MovingMethods(Component):
    """`saver.moving`: threads come from other stores, and go there.

    Args:
        saver: The saver.
        place: Where its store is, for people.
        mover: Moves threads in at their first touch (`moving_from`), if that was asked for.
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
                cached results of nodes and of tools, and with all threads the items of `saver.store()`, the audit trail
                and all tenants. Only from a source that you trust. `report.left` names what was left out.
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
        from langgraph_keel.history.threads import filter_of
        from langgraph_keel.moving.copy import check_mode, copy_store
        from langgraph_keel.moving.pair import from_source

        target = engine_of(other)
        if target is None:
            raise InvalidInput(f"a copy goes to a saver of Keel's, not to a {type(other).__name__}")
        if isinstance(thread_ids, str):
            raise InvalidInput("thread_ids are the ids of threads, not a text")
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
        """Move threads in from the store of one of LangGraph's own savers, which is only read.

        Each with all its checkpoints, branches, namespaces, pending writes and questions, as a whole or not at all, and
        compared with the source by a digest of each moment. What is here already is passed over, so it may be cut off
        and begun again; a thread that has gone on in the source, and not here, is brought up to date.

        The asynchronous face uses the asynchronous methods of a saver object. It works in a thread, where `on_progress`
        is called, too. Cancelled, it ends with the thread it is at.

        Args:
            source: `sqlite:///old.db`, the path of such a file, `postgresql://...`, or a saver object of LangGraph's
                interface. Of an object, all checkpoints are listed to find its threads, if none are named.
            threads: Their ids; `None` is all.
            dry_run: Whether to read and decode only, and to write nothing.
            on_progress: Called with how many threads are done, and of how many (`None` if nobody knows).

        Returns:
            What was done; why a thread could not be moved stands in it.

        Raises:
            InvalidInput: The source is none, or another program's, or half of one.
            NotFound: There is no such file.
            AccessDenied: The source's server refuses the user.
            StoreError: A store failed; what is done stays.
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
            raise InvalidInput("saver.raw has placeholders, which are not to be moved: use the saver itself")
        return session

    def _export_to(
        self,
        target: SourceLike,
        threads: Iterable[str] | None = None,
        *,
        on_progress: Progress | None = None,
    ) -> Plan[ExportReport]:
        """Write threads into the store of one of LangGraph's own savers, by that saver's own `put` and `put_writes`.

        That saver then goes on with them. A thread that the target holds already is left as it is. The asynchronous
        face uses the asynchronous methods of a saver object.

        Args:
            target: `sqlite:///new.db`, the path of such a file, `postgresql://...`, or a saver object of LangGraph's
                interface.
            threads: Their ids; `None` is all.
            on_progress: Called with how many threads are done, and of how many.

        Returns:
            What was done; why a thread could not be written stands in it.

        Raises:
            InvalidInput: The target names none, or the package of its saver is not installed.
            AccessDenied: The target's server refuses the user.
            StoreError: A store failed; what is done stays.
        """

        def move_out(call: CallSaver | None, is_cut_off: Callable[[], bool]) -> ExportReport:
            from langgraph_keel.moving.export import export_threads, open_target

            names = None if threads is None else _names_of(threads)
            with open_target(target, call) as put:
                return export_threads(self._whole_session(), put, names, on_progress or (lambda done, total: None))

        return _call_blocking(move_out, target)

    export_to, aexport_to = faces(_export_to)


def _call_blocking(work: Callable[[CallSaver | None, Callable[[], bool]], T], saver: SourceLike) -> Plan[T]:
    """Call a function that blocks; in the asynchronous face in a thread, and with the saver's asynchronous methods."""
    cut_off = Event()

    async def awaited() -> T:
        try:
            return await to_thread(work, _caller_of(saver), cut_off.is_set)
        finally:
            cut_off.set()

    result: T = yield Call(partial(work, None, cut_off.is_set), awaited)
    return result


def describe_source(mover: Mover | None) -> list[str]:
    """Return a sentence that says that the store from which threads move in still has everything."""
    return [] if mover is None else [_OLD_STORE.format(mover.source.place)]


def _names_of(threads: Iterable[str]) -> list[str]:
    if isinstance(threads, str):
        raise InvalidInput(f"pass a list of thread ids, not one string: [{threads!r}]")
    return [*dict.fromkeys(map(thread_id_of, threads))]


def _caller_of(saver: SourceLike) -> CallSaver | None:
    """Return a function that calls the asynchronous methods of a saver from a thread, in the running loop."""
    if not isinstance(saver, BaseCheckpointSaver):
        return None
    loop = asyncio.get_running_loop()

    async def do(method: str, given: Any, more: Any) -> Any:
        if method == "list":
            return [each async for each in saver.alist(*given, **more)]
        return await getattr(saver, f"a{method}")(*given, **more)

    return lambda method, *given, **more: asyncio.run_coroutine_threadsafe(do(method, given, more), loop).result()
