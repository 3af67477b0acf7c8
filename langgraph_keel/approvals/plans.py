"""The plans behind `saver.approvals`: what waits, a decision about it, and how the graph goes on with that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langgraph.types import Command, Interrupt

from langgraph_keel._langgraph import INTERRUPT
from langgraph_keel.approvals.hook import Questions, close, interrupts_in
from langgraph_keel.approvals.interrupts import answer_of, asks_of
from langgraph_keel.approvals.requests import (
    CURRENT,
    OPEN,
    SUPERSEDED,
    ApprovalRequest,
    Approvals,
    Decision,
    Held,
    as_of,
)
from langgraph_keel.engine.checkpoints import where_is
from langgraph_keel.engine.headers import unpack_header
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Address, Entry, Found, Query
from langgraph_keel.engine.serde.codec import Codec
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.writes import pending_writes, waiting_tasks
from langgraph_keel.errors import AlreadyDecided, NotFound, ValueRefused

_LOOKED_AT = 200
"""Checkpoints, the newest, among which the one is looked for by which a thread has gone on."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What every plan here needs.

    Attributes:
        store: The store.
        codec: How records are written.
        now: The time, as ISO text.
        tokens: Where tokens come from.
    """

    store: Store[Any, Any]
    codec: Codec
    now: Callable[[], str]
    tokens: Callable[[], str]

    @property
    def approvals(self) -> Approvals[Any, Any]:
        """The plans of requests."""
        return Approvals(self.store, self.codec, self.tokens)

    @property
    def questions(self) -> Questions:
        """What writes new requests down."""
        return Questions(self.store, self.now, self.tokens)


def looked(desk: Desk, thread_id: str) -> Plan[Any, Any, Sequence[Held]]:
    """Look what waits in a thread, whatever was written down of it: a crash may have left that undone.

    What is new is written down, what the thread has gone on without is closed, and what expired is said to have. Two
    trips, if there is nothing of that.
    """
    head = yield from desk.store.read_entry(Address(thread_id, "", None))
    known = yield from desk.approvals.of_thread(thread_id)
    if head is not None and (yield from _noted(desk, head, known)):
        known = yield from desk.approvals.of_thread(thread_id)
    found: list[Held] = []
    for held in known:
        ended = yield from _end_of(desk, held.request, head)
        if ended is None:
            found.append((yield from desk.approvals.expire(held, desk.now())))
        else:
            yield from close(desk.approvals, held, desk.now(), is_answered=ended == "loop")
    return found


def _noted(desk: Desk, head: Found, known: Sequence[Held]) -> Plan[Any, Any, bool]:
    """Write down what waits at a checkpoint and was not noted; return whether there was any."""
    noted = {name for held in known for name in held.request.interrupt_ids}
    missing = [(task, each) for task, each in _interrupts(desk, head) if each.id not in noted]
    for task_id, interrupt in missing:
        yield from desk.questions.noted(desk.codec, head.entry.address, interrupt, task_id)
    return bool(missing)


def _interrupts(desk: Desk, head: Found) -> Sequence[tuple[str, Interrupt]]:
    """Return the tasks and interrupts that wait at a checkpoint; none if they cannot be read here."""
    try:
        writes = pending_writes(head.batches, desk.codec, where_is(head.entry.address))
    except ValueRefused:
        return ()  # of classes of the program, which this process does not know: it has noted them itself
    waits = waiting_tasks(writes)
    asked = [(task, value) for task, channel, value in writes if task in waits and channel == INTERRUPT]
    return [(task, each) for task, value in asked for each in interrupts_in(value)]


def _end_of(desk: Desk, request: ApprovalRequest, head: Found | None) -> Plan[Any, Any, str | None]:
    """Return how a thread has gone on from where a request was made, as metadata say; `None` if it has not."""
    if head is not None and request.checkpoint_id == head.entry.address.checkpoint_id:
        return None
    # An interrupt may be stored before its checkpoint is (G4): then there is none of that id yet.
    if not (yield from desk.store.scan(Query(request.thread_id, "", request.checkpoint_id, limit=1))):
        return None
    entries = yield from desk.store.scan(Query(request.thread_id, "", limit=_LOOKED_AT))
    child = next((entry for entry in entries if entry.parent == request.checkpoint_id), None)
    return "unknown" if child is None else _source_of(desk, child)


def _source_of(desk: Desk, entry: Entry) -> str:
    try:
        header = unpack_header(entry.header, desk.codec, where_is(entry.address))
    except ValueRefused:
        return "unknown"
    return str(header.metadata.get("source"))


def decided(desk: Desk, name: str, decision: Decision) -> Plan[Any, Any, ApprovalRequest]:
    """Decide a request; of two who do so at once, one wins.

    Raises:
        NotFound: There is no such request.
        AlreadyDecided: Somebody has decided, it has expired, or the thread went on without it.
        NotAllowed: Not by this reviewer, or not so.
    """
    while True:
        held = yield from live(desk, name)
        _check_format(held.request, decision)
        changed = yield from desk.approvals.decide(held, replace(decision, at=desk.now()))
        if changed is not None:
            return changed.request


def _check_format(request: ApprovalRequest, decision: Decision) -> None:
    """See that the asker's format can say a decision: once it is stored, nobody could take it back.

    Raises:
        InvalidInput: It cannot.
    """
    asks = asks_of(request.value, request.schema)
    if not request.interrupt_ids or decision.kind not in request.allowed or request.part >= len(asks):
        return  # nobody has a format yet; or it is refused as such
    said = [Decision(ask.allowed[0], args=ask.args, value="") for ask in asks]  # type: ignore[arg-type]
    said[request.part] = replace(decision, args=request.args) if decision.kind == "approve" else decision
    answer_of(request.value, said, request.schema)


def live(desk: Desk, name: str) -> Plan[Any, Any, Held]:
    """Return a request as it is, which is not over.

    Raises:
        NotFound: There is no such request.
        AlreadyDecided: It is over.
    """
    held = yield from desk.approvals.one(name)
    request = held.request
    if held.request.status in OPEN:
        found = {each.request.id: each for each in (yield from looked(desk, request.thread_id))}
        held = found.get(request.id) or (yield from desk.approvals.one(name))
    if held.request.status not in OPEN:
        by = held.request.decision.by if held.request.decision else ""
        raise AlreadyDecided(held.request.id, held.request.status, by)
    return held


def claimed(desk: Desk, name: str, by: str, until: str) -> Plan[Any, Any, ApprovalRequest]:
    """Hold a request for a reviewer. Errors are those of `decided`."""
    while True:
        held = yield from live(desk, name)
        changed = yield from desk.approvals.claim(held, by, desk.now(), until)
        if changed is not None:
            return changed.request


def answers(desk: Desk, thread_id: str) -> Plan[Any, Any, Mapping[str, Any]]:
    """Return what was decided in a thread and the agent has not taken, by interrupt, in the askers' formats.

    Questions of one task are answered together: LangGraph runs a task from its beginning at each answer, and what it
    did after the first one would be done again. What was taken is given again as long as the step has not ended: the
    process that took it may have died, and nothing else remembers what the graph was resumed with.
    """
    found = [held.request for held in (yield from looked(desk, thread_id))]
    known = [request for request in found if request.status != SUPERSEDED]  # because of facts: it was asked anew
    undecided = {request.task_id for request in known if not request.is_settled}
    by_interrupt: defaultdict[str, list[ApprovalRequest]] = defaultdict(list)
    for request in known:
        if request.interrupt_id and request.task_id not in undecided:
            by_interrupt[request.interrupt_id].append(request)
    return {name: _answer(requests) for name, requests in by_interrupt.items()}


def _answer(requests: Sequence[ApprovalRequest]) -> Any:
    # LangGraph numbers the interrupts of a task: run again, it may have asked something else by the same name.
    last = max(requests, key=lambda each: each.asked_at)
    parts = sorted((each for each in requests if each.value == last.value), key=lambda each: each.part)
    return answer_of(last.value, [each.decision for each in parts if each.decision is not None], last.schema)


def resume(desk: Desk, thread_id: str) -> Plan[Any, Any, Command[Any]]:
    """Return what to invoke the graph with, so that it takes what was decided.

    Raises:
        NotFound: Nothing was decided that the agent has not taken.
    """
    found = yield from answers(desk, thread_id)
    if not found:
        if (yield from desk.store.read_entry(Address(thread_id, "", None))) is None:
            raise NotFound(f"there is no thread {thread_id!r} in this store")
        waiting = yield from desk.approvals.of_thread(thread_id)
        ids = ", ".join(f"{each.request.id} is {as_of(each.request, desk.now()).status}" for each in waiting)
        raise NotFound(f"thread {thread_id!r}: nothing to resume with: {ids or 'it waits for nobody'}")
    return Command(resume=dict(found))


def swept(desk: Desk, remind_before: str) -> Plan[Any, Any, Sequence[ApprovalRequest]]:
    """Look after every thread that a request names; return those to be reminded of, which say so from then on.

    Args:
        desk: What to work with.
        remind_before: ISO time: what was asked before, and not reminded of since, is due.
    """
    known = yield from desk.approvals.all(CURRENT)
    due: list[ApprovalRequest] = []
    for thread_id in sorted({held.request.thread_id for held in known}):
        for held in (yield from looked(desk, thread_id)):
            request = as_of(held.request, desk.now())
            if request.status in OPEN and max(request.asked_at, request.reminded_at) < remind_before:
                changed = yield from desk.approvals.change(held, replace(held.request, reminded_at=desk.now()))
                due += [changed.request] if changed else []
    return due
