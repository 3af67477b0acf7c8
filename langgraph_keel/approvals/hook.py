"""Records the questions of graphs, from their tasks' writes to the root namespace.

See README.md, "How LangGraph stores questions".
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.constants import START

from langgraph_keel._langgraph import BRANCH_TO, ERROR, INTERRUPT, JOIN, NULL_TASK_ID, RESUME, TASKS
from langgraph_keel.approvals.interrupts import interrupts_in
from langgraph_keel.approvals.plans import refresh_thread, sweep_requests
from langgraph_keel.approvals.questions import close_all_unstored, close_request, is_keel_question, record_interrupt
from langgraph_keel.approvals.requests import (
    CLOSED,
    CONSUMED,
    SUPERSEDED,
    TABLES,
    ApprovalRequest,
    Approvals,
    request_at,
)
from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.config import USER, must_follow_head, owner_in, owner_of
from langgraph_keel.engine.entries import has_result
from langgraph_keel.engine.events import Holding, Leaving, Put, Reading, Travel, Writes
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.lineage import leaves, roots_in
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells
from langgraph_keel.errors import KeelError, StoreError

_PLACES = 10_000
_log = logging.getLogger(__name__)


class ApprovalHook(Hook):
    """Records the questions of a saver's graphs; closes answered ones. Thread-safe."""

    shared_tables = TABLES

    def __init__(self) -> None:
        # The tasks that have asked, by thread and checkpoint; a read of the thread finds forgotten ones. With
        # durability="async" the next question may be written before the step of the last one.
        self._waits: OrderedDict[str, dict[str, set[str]]] = OrderedDict()
        # The answers that tasks of these threads have received, also in subgraphs.
        self._given: dict[str, list[Any]] = {}

    def read(self, session: Session, reading: Reading) -> None:
        """Remember a checkpoint with open questions, from which a run may continue."""
        if reading.result is None:
            return
        place, writes = reading.result.config["configurable"], reading.result.pending_writes or ()
        if not place.get("checkpoint_ns"):
            for task_id in [task for task, channel, _ in writes if channel == INTERRUPT]:
                self._remember(place["thread_id"], place["checkpoint_id"], task_id)

    def before_writes(self, session: Session, writes: Writes) -> Plan[None]:
        """Record the questions of a task before its interrupt is stored."""
        # After a crash in between, it asks again. The answers are collected here, as the checkpoint that ends the step
        # may be stored before these writes.
        if writes.task_id != NULL_TASK_ID and writes.address.thread_id in self._waits:
            for answers in [value for channel, value in writes.writes if channel == RESUME]:
                known = self._given.setdefault(writes.address.thread_id, [])
                known.extend(answers if isinstance(answers, list) else [answers])
        if writes.address.checkpoint_ns:
            return
        values = [value for channel, value in writes.writes if channel == INTERRUPT]
        if not values:
            return
        writes.notes[self] = not self._remember(
            writes.address.thread_id, str(writes.address.checkpoint_id), writes.task_id
        )
        owner = owner_of(writes.config, session.owner)
        for interrupt in [each for value in values for each in interrupts_in(value)]:
            yield from record_interrupt(session, writes.address, interrupt, writes.task_id, owner)

    def after_writes(self, session: Session, writes: Writes) -> Plan[None] | None:
        """Close the earlier questions of a task, which were answered. A trip, if it asked."""
        thread_id, place = writes.address.thread_id, writes.address
        asked = self._waits.get(thread_id, {}).get(str(place.checkpoint_id), ())
        if place.checkpoint_ns or writes.task_id not in asked or writes.notes.get(self, False):
            return None
        channels = {channel for channel, _ in writes.writes}
        if INTERRUPT in channels or has_result(channels):
            return self._tolerate(thread_id, self._close_earlier(session, writes))
        if ERROR in channels:  # the stored writes show how far it got
            return self._tolerate(thread_id, refresh_thread(session, thread_id))
        return None

    def _close_earlier(self, session: Session, writes: Writes) -> Plan[None]:
        """Close the requests of a task that are not among its current questions."""
        place, approvals = writes.address, Approvals(session)
        given = self._given.get(place.thread_id)  # read before the end of the step may remove it
        has_ended = has_result(channel for channel, _ in writes.writes)
        asks = {each.id for name, value in writes.writes if name == INTERRUPT for each in interrupts_in(value)}
        for held in (yield from approvals.of_thread(place.thread_id)):
            request = held.request
            is_its = (request.checkpoint_id, request.task_id) == (place.checkpoint_id, writes.task_id)
            is_kept = is_keel_question(request) and not (has_ended and request.status == CONSUMED)
            if is_its and request.interrupt_id and request.interrupt_id not in asks and not is_kept:
                yield from close_request(approvals, held, session.now, is_answered=True, given=given)

    @staticmethod
    def _tolerate(thread_id: str, plan: Plan[Any]) -> Plan[Any]:
        try:
            return (yield from plan)
        except StoreError as error:
            # The write itself is stored, and must not be reported as failed; a later read of the thread closes them.
            _log.warning("thread %r: its questions are not closed yet: %s", thread_id, error)
            return None

    def after_put(self, session: Session, put: Put) -> Plan[None]:
        """Close requests of earlier checkpoints; log dropped questions and steps."""
        if put.address.checkpoint_ns:
            return
        dropped = (yield from self._close_over(session, put)) if put.address.thread_id in self._waits else ()
        if put.source != "input":
            return
        thread_id = put.address.thread_id
        if dropped:  # their content is not logged: it may be confidential
            _log.warning(
                "thread %r waited for a person and got new input, which drops these requests: %s. To answer instead, "
                "decide them (saver.approvals, `keel approvals`) and invoke the graph with "
                "saver.approvals.resume(%r), or with Command(resume=...)",
                thread_id,
                ", ".join(f"{each.id} ({each.status})" for each in dropped),
                thread_id,
            )
        elif nodes := _find_unrun(put):
            _log.warning(
                "thread %r had steps left and got new input, which replaces them: %s. A run that is executing them is "
                "refused. Check saver.status(%r) before new input, or use on_busy='wait' to wait for the other run",
                thread_id,
                ", ".join(nodes),
                thread_id,
            )

    def _close_over(self, session: Session, put: Put) -> Plan[Sequence[ApprovalRequest]]:
        """Close finished requests; return those whose decision was never used."""
        new, known = put.address, [*self._waits.get(put.address.thread_id, ())]  # other threads may add to it
        is_answered = put.source == "loop"
        # Ids are ordered by time; questions newer than this checkpoint are open.
        over = {
            each
            for each in known
            if each == put.parent.checkpoint_id or (not is_answered and each < str(new.checkpoint_id))
        }
        if not over:
            return ()
        given = self._given.get(new.thread_id) if is_answered else None
        self._forget(new.thread_id, over)
        if put.parent.checkpoint_id is None:  # it starts over, as it has expired
            # This run may have asked already: writes may be stored before their checkpoint.
            older = close_all_unstored(session, new.thread_id, before=str(new.checkpoint_id))
            yield from self._tolerate(new.thread_id, older)
            return ()
        plan = _close_requests(session, new.thread_id, over, is_answered=is_answered, given=given)
        closed = (yield from self._tolerate(new.thread_id, plan)) or ()
        return [each for each in closed if each.status not in CLOSED]

    def after_travel(self, session: Session, travel: Travel) -> Plan[None]:
        """Close the requests from which a thread was rewound."""
        new = travel.twin
        if new is None or travel.verb != "rewound":
            return
        self._waits.pop(new.thread_id, None)
        approvals = Approvals(session)
        for held in (yield from approvals.of_thread(new.thread_id)):
            if held.request.checkpoint_id < str(new.checkpoint_id):
                yield from close_request(approvals, held, session.now, is_answered=False)

    def before_remove(self, session: Session, leaving: Leaving) -> Plan[None]:
        """Close the requests of branches that a prune removes."""
        if leaving.run_ids:
            return
        ids = {node.address.checkpoint_id for node, _ in roots_in(leaves(leaving.moments, leaving.kept))}
        if not ids:
            return
        approvals = Approvals(session)
        for held in (yield from approvals.of_thread(leaving.thread_id)):
            if held.request.checkpoint_id in ids:
                yield from approvals.end(held, SUPERSEDED, session.now, "its checkpoint was pruned")

    def before_sweep(self, session: Session, remind_after: float | None) -> Plan[Sequence[Any]]:
        """Bring all requests up to date: see `Inbox.sweep`."""
        return (yield from sweep_requests(session, remind_after))

    def find_owners(self, session: Session, user: str) -> Plan[Sequence[Holding]]:
        """Return the owners of all requests. One trip for each 500."""
        found: list[Holding] = []
        for table in TABLES:
            cells = yield from Cells(session, table, None).every_raw()
            found += [_holding(key, cell, session.codec, user) for key, cell in cells]
        return found

    def _remember(self, thread_id: str, checkpoint_id: str, task_id: str) -> bool:
        """Record that a task has asked; return whether that was known."""
        tasks = self._waits.setdefault(thread_id, {}).setdefault(checkpoint_id, set())
        is_known = task_id in tasks
        tasks.add(task_id)
        if len(self._waits) > _PLACES:
            self._given.pop(self._waits.popitem(last=False)[0], None)
        return is_known

    def _forget(self, thread_id: str, over: set[str]) -> None:
        tasks = self._waits.get(thread_id, {})
        for each in over:
            tasks.pop(each, None)
        self._given.pop(thread_id, None)
        if not tasks:
            self._waits.pop(thread_id, None)


def _close_requests(
    session: Session, thread_id: str, over: set[str], *, is_answered: bool, given: Sequence[Any] | None
) -> Plan[Sequence[ApprovalRequest]]:
    """Close the requests of some checkpoints; return them as they were before."""
    approvals = Approvals(session)
    closed: list[ApprovalRequest] = []
    for held in (yield from approvals.of_thread(thread_id)):
        if held.request.checkpoint_id in over:
            closed.append(request_at(held.request, session.now))
            yield from close_request(approvals, held, session.now, is_answered=is_answered, given=given)
    return closed


def _find_unrun(put: Put) -> Sequence[str]:
    """Return the next nodes of a head that new input has replaced. No trip."""
    # LangGraph marks dropped triggers as seen at the head's version; a trigger that ran was cleared afterwards, and has
    # a newer version. A run has read the head from which it starts, so this process knows it.
    base, checkpoint = put.base, put.checkpoint
    is_head = must_follow_head(put.config, put.header.metadata)
    if base is None or base.checkpoint_id != put.parent.checkpoint_id or not is_head:
        return ()
    nodes = {
        "its input" if node == START else node
        for node, seen in checkpoint["versions_seen"].items()
        if node != INTERRUPT  # of breakpoints: all versions at the last stop
        for channel, version in seen.items()
        if (channel == START or channel.startswith((BRANCH_TO, JOIN))) and base.versions.get(channel) == version
    }
    has_sent = TASKS in base.versions and base.versions[TASKS] != checkpoint["channel_versions"].get(TASKS)
    return [*sorted(nodes), *(["sent tasks"] if has_sent else [])]


def _holding(key: str, cell: Cell, codec: Codec, user: str) -> Holding:
    """Return the owner of a request, and whether it names a person in another role."""
    try:
        (stored,) = codec.decode(cell.header)
    except (KeelError, ValueError):
        stored = None
    if not isinstance(stored, Mapping):
        return Holding(cell.origin or key, problem=f"its request for approval {key} cannot be read")
    owner = owner_in({USER: stored.get("owner") or None})
    events = [event.get("by") for event in stored.get("history") or () if isinstance(event, Mapping)]
    names = [stored.get("claimed_by"), *(stored.get("approvers") or ()), *events]
    return Holding(str(stored.get("thread_id", cell.origin)), owner, owner != user and user in names)
