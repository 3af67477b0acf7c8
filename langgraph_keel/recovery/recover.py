"""Workers that continue threads which were cut off, drained or accepted.

An attempt is counted in a cell of the thread before it begins. Its run claims the thread, and is refused unless the
thread is still at the checkpoint that the worker has read. So only one of two workers continues a thread, and neither
runs past a breakpoint at which the other one's run has stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.constants import START
from langgraph.pregel import Pregel

from langgraph_keel.display.text import count_of, one_line
from langgraph_keel.engine.config import owner_in
from langgraph_keel.engine.engine import Engine, engine_of
from langgraph_keel.engine.entries import Header, state_of, unpack_header
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, Kept
from langgraph_keel.errors import (
    CheckpointConflict,
    InvalidInput,
    NewerState,
    ReadOnlyStore,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from langgraph_keel.history.status import ThreadStatus, UnfinishedThreads
from langgraph_keel.history.threads import filter_of
from langgraph_keel.runs.hook import begins_at
from langgraph_keel.runs.marks import Marks, mark_in, nodes_known
from langgraph_keel.runs.records import LAST, TRIES, Tries
from langgraph_keel.runs.worker import DueThread, Resumed, RetryList, config_of, is_late

_log = logging.getLogger(__name__)
_AWAY = (StoreBusy, StoreUnavailable)
_NO_ATTEMPT = (NewerState, CheckpointConflict, *_AWAY)
"""Errors that say nothing about the thread, so they do not count as attempts."""
_TEXT = 300
"""Maximum characters of an error that are stored."""


@dataclass(frozen=True, slots=True)
class CutOffThread(DueThread):
    """A thread to take over."""

    checkpoint_id: str  # from which it is continued
    given: Any  # the decisions to resume with, or `None`
    tried: Kept[Tries] | None  # the cell's content
    count: int  # attempts from this checkpoint so far


@dataclass(frozen=True, slots=True)
class Look:
    """The verdict of a worker on a thread that has steps left.

    Attributes:
        status: The state of the thread.
        due: The thread to take over; `None` if it is left alone.
        why: Why the thread is left alone, if its status does not explain that.
    """

    status: ThreadStatus
    due: CutOffThread | None = None
    why: str = ""


def tries_at(session: Session, thread_id: str, checkpoint_id: str) -> Plan[tuple[Tries, Kept[Tries] | None]]:
    """Return the attempts from a checkpoint, and the content of their cell. One trip."""
    found = yield from Cells(session, TRIES, thread_id).find(LAST)
    is_last = found is not None and found.record.checkpoint_id == checkpoint_id
    return found.record if found and is_last else Tries(checkpoint_id, 0), found


def check_graph(engine: Engine, graph: object, is_read_only: bool = False) -> None:
    """Check that a graph can continue the threads of a saver."""
    if is_read_only:
        raise ReadOnlyStore("a worker writes, and this saver is read-only: open it without read_only")
    if engine.session.hooks.find(Marks) is None:
        raise InvalidInput(
            "this saver does not mark its checkpoints, so workers cannot detect runs that were cut off: open it with "
            "recoverable=True"
        )
    if not isinstance(graph, Pregel):
        raise InvalidInput(f"graph must be a compiled graph, not a {type(graph).__name__}")
    own = engine_of(graph.checkpointer)
    if own is None or not own.is_same_store(engine):
        raise InvalidInput("the graph must be compiled with this saver: builder.compile(checkpointer=saver)")


class Recovery:
    """Finds threads to take over, and continues them with one graph."""

    def __init__(
        self,
        session: Session,
        graph: Pregel[Any, Any, Any, Any],
        config: RunnableConfig,
        attempts: int,
        match: str | None,
        retries: RetryList,
    ) -> None:
        if type(attempts) is not int or attempts < 1:
            raise InvalidInput(f"attempts must be an integer of 1 or more, not {attempts!r}")
        self._session = session
        self._graph = graph
        self._config = config
        self._attempts = attempts
        self._wanted = filter_of(match=match)
        self._retries = retries
        self._nodes = {*graph.nodes}
        self._pages: UnfinishedThreads | None = None
        self._found: list[CutOffThread] = []  # in the current pass

    def next(self) -> Plan[Sequence[CutOffThread] | None]:
        """Return the next threads to take over, longest idle first; `None` at the end."""
        try:
            looks = yield from self.look()
        except StoreError:
            self._pages = None
            raise
        if looks is None:
            self._retries.due(self._found)  # drops all other threads
            return None
        found = [look.due for look in looks if look.due]
        self._found += found
        return [due for due in found if self._retries.is_due(due)]

    def look(self) -> Plan[Sequence[Look] | None]:
        """Return the next threads with steps left; `None` at the end of a pass.

        Costs the round trips of `saver.unfinished`, and two for each thread that may be taken over.
        """
        if self._pages is None:
            self._pages, self._found = UnfinishedThreads(self._session, self._wanted, "oldest"), []
        page = yield from self._pages.next()
        if page is None:
            self._pages = None
            return None
        looks: list[Look] = []
        for status in page:
            looks.append((yield from self._look(status)))
        return looks

    def _look(self, status: ThreadStatus) -> Plan[Look]:
        """Decide whether to take over a thread. Two trips, or none."""
        is_over = status.state == "cut off" or status.stopped in ("drained", "accepted")
        # Continue these only if the error was raised to a worker: another caller may not want a further attempt.
        is_retry = status.state == "failed" or status.is_settled
        if status.doubts or not (is_over or is_retry):
            return Look(status)
        name = status.thread_id
        entries = yield from self._session.store.scan(Query(name, "", status.checkpoint_id, limit=1))
        if not entries:
            return Look(status, why="it has moved on")
        header = unpack_header(entries[0].header, self._session.codec, entries[0].address)
        last, tried = yield from tries_at(self._session, name, status.checkpoint_id)
        if is_retry and not last.count:
            return Look(status)
        why = ""
        if mark_in(header.about) is None:
            why = "its latest checkpoint was not written by a saver with recoverable=True"
        elif state_of(header.about) > self._session.state_version:
            why = "its state was written by a newer version of the application"
        elif not self._has_graph_of(status.next, header):
            why = "it belongs to another graph"
        elif last.count >= self._attempts:
            why = f"given up after {count_of(last.count, 'attempt')}" + (f": {last.error}" if last.error else "")
        if why:
            return Look(status, why=why)
        return Look(
            status,
            CutOffThread(
                thread_id=name,
                ids=frozenset((status.checkpoint_id,)),
                since=status.updated_at,
                owner=owner_in(header.metadata),
                checkpoint_id=status.checkpoint_id,
                given=status.given,
                tried=tried,
                count=last.count,
            ),
        )

    def _has_graph_of(self, nodes: Sequence[str], header: Header) -> bool:
        """Return whether a thread may belong to the graph."""
        if START not in nodes:
            return bool(nodes) and self._nodes.issuperset(nodes)
        # Before the first step. Another version of the graph may have more nodes or fewer, so one in common is enough.
        known = nodes_known(header)
        return not known or not known.isdisjoint(self._nodes)

    def resume(self, due: CutOffThread) -> Plan[Resumed | None]:
        """Take a thread over and continue it, unless another worker or run is faster."""
        try:
            token = yield from self._count(due)
        except _AWAY as error:
            _log.warning("thread %r could not be taken over yet: %s", due.thread_id, error)
            token = None
        if token is None:
            self._retries.later(due)
            return None
        about = {"thread_id": due.thread_id, "checkpoint_id": due.checkpoint_id, "attempt": due.count + 1}
        _log.info("taking over thread %r: attempt %d of %d", due.thread_id, due.count + 1, self._attempts, extra=about)
        try:
            result = yield self._run(due)
        except Exception as error:
            return (yield from self._fail(due, token, error, about))
        _log.info("thread %r was continued", due.thread_id, extra=about)
        yield from self._note(due, token, None)
        return Resumed(due.thread_id, result, attempts=due.count + 1)

    def _run(self, due: CutOffThread) -> Call:
        graph, config = self._graph, config_of(due, self._config)

        def invoke() -> Any:
            was = begins_at.set((due.thread_id, due.checkpoint_id))
            try:
                return graph.invoke(due.given, config, durability="sync")
            finally:
                begins_at.reset(was)

        async def ainvoke() -> Any:
            was = begins_at.set((due.thread_id, due.checkpoint_id))
            try:
                return await graph.ainvoke(due.given, config, durability="sync")
            finally:
                begins_at.reset(was)

        return Call(invoke, ainvoke)

    def _count(self, due: CutOffThread) -> Plan[str | None]:
        """Count an attempt; return the cell's token, `None` if another worker was faster."""
        cells, token = Cells(self._session, TRIES, due.thread_id), self._session.new_token()
        record = Tries(due.checkpoint_id, due.count + 1)
        done, _ = yield from cells.swap(LAST, due.tried.token if due.tried else None, record, token=token)
        return token if done else None

    def _fail(self, due: CutOffThread, token: str, error: Exception, about: dict[str, Any]) -> Plan[Resumed | None]:
        """Record how an attempt has failed. Two trips."""
        try:
            head = yield from self._session.store.scan(Query(due.thread_id, "", limit=1))
        except StoreError:
            head = ()
        at = str(head[0].address.checkpoint_id) if head else due.checkpoint_id
        moved = replace(due, ids=frozenset((at,)))
        self._found.append(moved)
        self._retries.later(moved)
        if is_late(error, due) or isinstance(error, _NO_ATTEMPT):
            _log.info("thread %r was not continued to the end: %s", due.thread_id, error, extra=about)
            yield from self._note(due, token, due.tried.record if due.tried else None)
            return Resumed(due.thread_id, error=error, attempts=due.count) if isinstance(error, _AWAY) else None
        _log.warning("thread %r has failed: %r", due.thread_id, error, extra=about)
        count = due.count + 1 if at == due.checkpoint_id else 1
        yield from self._note(due, token, Tries(at, count, one_line(repr(error), _TEXT)))
        return Resumed(due.thread_id, error=error, attempts=due.count + 1)

    def _note(self, due: CutOffThread, token: str, tries: Tries | None) -> Plan[None]:
        """Record an attempt's result. If the store is unreachable, it stays counted."""
        try:
            yield from Cells(self._session, TRIES, due.thread_id).swap(LAST, token, tries)
        except StoreError as error:
            _log.warning("thread %r: the result of an attempt could not be recorded: %s", due.thread_id, error)
