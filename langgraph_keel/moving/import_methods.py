"""The methods that move threads in from LangGraph's own savers, and out again."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput
from langgraph_keel.retention.methods import RetentionMethods

if TYPE_CHECKING:
    from langgraph_keel.moving.export import ExportReport
    from langgraph_keel.moving.langgraph import ImportReport, Progress
    from langgraph_keel.moving.notes import SourceLike
    from langgraph_keel.moving.sources import Call
    from langgraph_keel.retention.erase import Order
    from langgraph_keel.retention.receipt import Receipt

_OLD_STORE = (
    "The store of the saver from before ({0}) is only read: what it has of the person stays there, and what has not "
    "moved in yet was not looked at."
)


class ImportMethods(RetentionMethods):
    """The methods for threads of LangGraph's own savers; those of retention are told of the store they come from."""

    def _erase(self, order: Order, tell: Progress, elsewhere: Sequence[str]) -> Plan[Receipt]:
        """Erase; the receipt says that the store has all of it still from which threads move in (`moving_from`)."""
        receipt = yield from super()._erase(order, tell, elsewhere)
        if (mover := self.stack.mover) is None:
            return receipt
        # Also if nothing was found here: what has not moved in yet is there.
        return replace(receipt, exempt=(*receipt.exempt, _OLD_STORE.format(mover.source.place)))

    def import_from(
        self,
        source: SourceLike,
        threads: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> ImportReport:
        """Move threads in from the store of one of LangGraph's own savers, which is only read.

        Each with all its checkpoints, branches, namespaces, pending writes and questions, as a whole or not at all, and
        compared with the source by a digest of each moment. What is here already is passed over, so it may be cut off
        and begun again; a thread that has gone on in the source, and not here, is brought up to date.

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
        return self._move_in(source, threads, dry_run, on_progress, None, lambda: False)

    async def aimport_from(
        self,
        source: SourceLike,
        threads: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> ImportReport:
        """As `import_from`, asynchronously: of a saver object, the asynchronous methods are used.

        It is done in a thread, where `on_progress` is called, too. Cancelled, it ends with the thread it is at.
        """
        call = _call_in(asyncio.get_running_loop(), source) if isinstance(source, BaseCheckpointSaver) else None
        cut_off = Event()
        try:
            return await to_thread(self._move_in, source, threads, dry_run, on_progress, call, cut_off.is_set)
        finally:
            cut_off.set()

    def _move_in(
        self,
        source: SourceLike,
        threads: Iterable[str] | None,
        dry_run: bool,
        on_progress: Progress | None,
        call: Call | None,
        is_cut_off: Callable[[], bool],
    ) -> ImportReport:
        from langgraph_keel.moving.langgraph import allows_of, import_threads
        from langgraph_keel.moving.sources import source_of

        session = self._arriving()
        names = None if threads is None else _names_of(threads)
        with source_of(source, call).open(allows_of(session)) as reader:
            tell = on_progress or (lambda done, total: None)
            return import_threads(session, reader, names, dry_run=dry_run, on_progress=tell, is_cut_off=is_cut_off)

    def _arriving(self) -> Session:
        from langgraph_keel.moving.langgraph import arriving

        session = self._whole_session()
        if self.stack.mover is not None and not session.tenant:
            within: Session = self.stack.mover.session
            return replace(within, codec=session.codec)
        return arriving(session)

    def _whole_session(self) -> Session:
        session = self.engine.session
        if session.codec.shows:
            raise InvalidInput("saver.raw has placeholders, which are not to be moved: use the saver itself")
        return session

    def export_to(
        self,
        target: SourceLike,
        threads: Iterable[str] | None = None,
        *,
        on_progress: Progress | None = None,
    ) -> ExportReport:
        """Write threads into the store of one of LangGraph's own savers, by that saver's own `put` and `put_writes`.

        That saver then goes on with them. A thread that the target holds already is left as it is.

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
        return self._move_out(target, threads, on_progress, None)

    async def aexport_to(
        self,
        target: SourceLike,
        threads: Iterable[str] | None = None,
        *,
        on_progress: Progress | None = None,
    ) -> ExportReport:
        """As `export_to`, asynchronously: of a saver object, the asynchronous methods are used."""
        call = _call_in(asyncio.get_running_loop(), target) if isinstance(target, BaseCheckpointSaver) else None
        return await to_thread(self._move_out, target, threads, on_progress, call)

    def _move_out(
        self, target: SourceLike, threads: Iterable[str] | None, on_progress: Progress | None, call: Call | None
    ) -> ExportReport:
        from langgraph_keel.moving.export import export_threads, open_target

        names = None if threads is None else _names_of(threads)
        with open_target(target, call) as put:
            return export_threads(self._whole_session(), put, names, on_progress or (lambda done, total: None))


def _names_of(threads: Iterable[str]) -> list[str]:
    if isinstance(threads, str):
        raise InvalidInput(f"pass a list of thread ids, not one string: [{threads!r}]")
    return [*dict.fromkeys(map(thread_id_of, threads))]


def _call_in(loop: asyncio.AbstractEventLoop, saver: BaseCheckpointSaver[Any]) -> Call:
    """Return what calls the asynchronous methods of a saver from a thread, in the loop that they belong to."""

    async def do(method: str, given: Any, more: Any) -> Any:
        if method == "list":
            return [each async for each in saver.alist(*given, **more)]
        return await getattr(saver, f"a{method}")(*given, **more)

    return lambda method, *given, **more: asyncio.run_coroutine_threadsafe(do(method, given, more), loop).result()
