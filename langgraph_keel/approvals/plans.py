"""The plans behind `saver.approvals`: pending requests, decisions and resuming."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from langgraph_keel._langgraph import INTERRUPT, RESUME
from langgraph_keel.approvals.arrivals import has_arrived
from langgraph_keel.approvals.asked import Asked, find_questions, read_questions, waiting_in
from langgraph_keel.approvals.checks import time_after
from langgraph_keel.approvals.interrupts import answer_of, answer_with, describe_question, interrupts_in
from langgraph_keel.approvals.questions import (
    as_taken,
    close_request,
    close_unstored,
    how_to_decide,
    is_from_decision,
    is_keel_question,
    is_stored,
    record_interrupt,
    supersede_unstored,
)
from langgraph_keel.approvals.requests import (
    APPROVED,
    CLOSED,
    CONSUMED,
    CURRENT,
    DECIDED,
    EDITED,
    EXPIRED,
    OPEN,
    OVER,
    REOPENED,
    SUPERSEDED,
    WAITING,
    ApprovalRequest,
    Approvals,
    Decision,
    KeptRequest,
    check_not_changed,
    check_open,
    check_reviewer,
    is_decided_so,
    request_at,
    times_of,
)
from langgraph_keel.display.text import one_line
from langgraph_keel.engine.checkpoints import revive_other
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import pack_batch, pending_writes, unpack_header, waiting_tasks
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Found, Query
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, NotFound, ThreadTaken, ValueRefused
from langgraph_keel.runs.hook import find_claim, is_taken, may_be_taken

if TYPE_CHECKING:
    from langgraph.types import Command, Interrupt

_UNSTORED = "unstored"
_LEAST = 6
"""Minimum digits of a shortened id: fewer easily match another request."""
_LISTED = 10
"""Maximum requests listed in an error."""
_LOOKED_AT = 200
"""Maximum newest checkpoints that are searched for the successor of a request's."""


def refresh_thread(session: Session, thread_id: str, *, watches: bool = False) -> Plan[Sequence[KeptRequest]]:
    """Bring the requests of a thread up to date, and return the current ones.

    Two trips, or more.
    """
    # A crash may have left a question without a request, or an open request of a step that has ended. Requests are read
    # before the head: if the head were read first, its question might be answered by now, and recording it again would
    # leave a request for which no task waits.
    known = yield from Approvals(session).of_thread(thread_id)
    head = yield from session.store.read_entry(Address(thread_id, "", None))
    questions = (yield from _questions_at(session, head, known)) if head else {}
    recorded = {held.request.interrupt_id for held in known}
    missing = [asked for asked in waiting_in(questions) if asked.interrupt.id not in recorded]
    if head is not None and missing:
        for asked in missing:
            yield from record_interrupt(session, head.entry.address, asked.interrupt, asked.task_id)
        known = yield from Approvals(session).of_thread(thread_id)
    found: list[KeptRequest] = []
    for held in known:
        left = yield from _look_after(session, held, head, questions, watches)
        if left is not None:
            found.append(left)
    return found


def _questions_at(session: Session, head: Found, known: Sequence[KeptRequest] = ()) -> Plan[Mapping[str, Asked]]:
    requests = [held.request for held in known]
    taken = {each.interrupt_id: each.task_id for each in requests if is_keel_question(each) and each.status == CONSUMED}
    try:
        return (yield from find_questions(session, head, taken))
    except ValueRefused:
        return {}  # of classes unknown to this process: the program itself records the requests


def _look_after(
    session: Session, held: KeptRequest, head: Found | None, questions: Mapping[str, Asked], watches: bool
) -> Plan[KeptRequest | None]:
    """Bring a request up to date; return it unless it is closed."""
    approvals, request, now = Approvals(session), held.request, session.now
    if head is not None and request.checkpoint_id == head.entry.address.checkpoint_id:
        asked = questions.get(request.interrupt_id)
        fate = _fate_of(request, asked)
        if asked is None or fate == "kept":
            return (yield from approvals.expire(held, now))
        if fate == "lost":
            return (yield from approvals.reopen(held, now))
        if fate == "over":
            yield from close_request(approvals, held, now, is_answered=True, given=asked.answers or None)
            return None
        return held if request.status == CONSUMED else (yield from approvals.consume(as_taken(held, now), now)) or held
    ended = yield from _find_end(session, request, watches)
    if ended is None:
        return (yield from approvals.expire(held, now))
    if ended == _UNSTORED:
        yield from close_unstored(session, held)
    else:
        given = (yield from _read_given(session, request)) if ended == "loop" else None
        yield from close_request(approvals, held, now, is_answered=ended == "loop", given=given)
    return None


def _fate_of(request: ApprovalRequest, asked: Asked | None) -> Literal["kept", "lost", "taken", "over"]:
    """Return the fate of a request of the latest checkpoint, from its task's writes."""
    if asked is None:
        return "kept"
    if is_keel_question(request):  # a finished task does not need its decision again
        return "over" if asked.is_done and request.status == CONSUMED else "kept"
    if asked.is_open:
        # The answer of a program is lost if the next attempt at the task has not reached this question.
        is_lost = request.status == CONSUMED and request.decision is not None and not request.decision.by
        return "lost" if is_lost else "kept"
    if request.status in DECIDED and asked.is_last and not asked.answers:
        return "kept"  # its task failed before this question
    is_taken = asked.is_last and is_from_decision(request, asked.answers or None)
    return "taken" if is_taken else "over"


def _read_given(session: Session, request: ApprovalRequest) -> Plan[Sequence[Any] | None]:
    """Return the agent's answers to a request of an earlier checkpoint, if known."""
    if request.status not in DECIDED or is_keel_question(request):
        return None
    entries = yield from session.store.scan(Query(request.thread_id, "", request.checkpoint_id, limit=1))
    found = yield from session.store.read_values([replace(each, refs={}) for each in entries])
    asked = (yield from _questions_at(session, found[0])).get(request.interrupt_id) if found else None
    return (asked.answers or None) if asked else None


def find_interrupts(
    session: Session, head: Found, *, is_upgraded: bool = False
) -> Sequence[tuple[str, Interrupt]] | None:
    """Return the waiting tasks and interrupts of a checkpoint; `None` if unreadable."""
    try:
        # Requests use the stored ids of interrupts; upgrades may change them.
        other = revive_other(session, head) if is_upgraded else None
        writes = other.writes if other else pending_writes(head.batches, session.codec, head.entry.address)
    except ValueRefused:
        return None
    waits = waiting_tasks(writes)
    asked = [(task, value) for task, channel, value in writes if task in waits and channel == INTERRUPT]
    return [(task, each) for task, value in asked for each in interrupts_in(value)]


def _find_end(session: Session, request: ApprovalRequest, watches: bool) -> Plan[str | None]:
    """Return the `source` of an earlier checkpoint's successor; `None` if none."""
    if not (yield from is_stored(session, request)):
        has_run = may_be_taken(session, request.thread_id, watches=watches)
        return _UNSTORED if (yield from _is_moot(session, request, has_run)) else None
    entries = yield from session.store.scan(Query(request.thread_id, "", limit=_LOOKED_AT))
    child = next((entry for entry in entries if entry.parent == request.checkpoint_id), None)
    try:
        header = unpack_header(child.header, session.codec, child.address) if child else None
    except ValueRefused:
        header = None
    return str(header.metadata.get("source")) if header else "unknown"


def _is_moot(session: Session, request: ApprovalRequest, has_run: Plan[bool]) -> Plan[bool]:
    """Return whether a request's checkpoint was never stored. One trip, or none."""
    # An interrupt may be stored before its checkpoint. But the run has claimed its thread by then, until all its writes
    # are stored: so the claim is read first.
    if (yield from has_run):
        return False
    return not (yield from is_stored(session, request))


def request_now(session: Session, request: ApprovalRequest) -> Plan[ApprovalRequest]:
    """Return a request as of now: superseded if its checkpoint was never stored.

    Usually one trip; nothing is written.
    """
    request = request_at(request, session.now)
    if request.status in CLOSED or (yield from is_stored(session, request)):
        return request
    is_moot = yield from _is_moot(session, request, is_taken(session, request.thread_id))
    return (yield from supersede_unstored(session, request)) if is_moot else request


def decide_request(session: Session, name: str, decision: Decision) -> Plan[ApprovalRequest]:
    """Decide a request. One of two concurrent decisions wins; equal ones are returned."""
    tried: Decision | None = None
    while True:
        held = yield from read_request(session, name)
        name = held.request.id  # once this request is decided, its shortened id may match another one
        if is_decided_so(held.request, decision):
            return held.request
        if tried is not None:
            check_not_changed(held.request, tried)
        is_decided = held.request.status in CLOSED or held.request.status in DECIDED
        may_revise = is_decided and held.shelf == CURRENT and held.request.status not in (SUPERSEDED, EXPIRED)
        check_open(held.request, decision.kind, decision.by, may_revise=may_revise)
        _check_format(held.request, decision)
        tried = replace(decision, at=session.now)
        changed = yield from Approvals(session).decide(held, tried)
        if changed is not None:
            return changed.request


def _check_format(request: ApprovalRequest, decision: Decision) -> None:
    """Check that the interrupt's format can express a decision."""
    if request.interrupt_ids and decision.kind in request.allowed:  # else it has no format yet, or is refused later
        answer_with(request, replace(decision, args=request.args) if decision.kind == "approve" else decision)


def find_request(session: Session, name: str) -> Plan[KeptRequest]:
    """Return a request by its id or a prefix: the pending one, or else the only one."""
    if not isinstance(name, str) or len(name) < _LEAST:
        raise InvalidInput(f"{name!r} is not a request id: give an id, or at least the first {_LEAST} digits of one")
    approvals = Approvals(session)
    found = yield from approvals.all(CURRENT, name)
    waits: list[KeptRequest] = []
    for held in found:
        may_wait = request_at(held.request, session.now).status in OPEN
        if may_wait and (len(found) == 1 or (yield from request_now(session, held.request)).status in OPEN):
            waits.append(held)
    if not waits:
        # In this order, as a request is added to the closed ones before it is removed from the current ones.
        over = yield from approvals.first(OVER, name, _LISTED + 1)
        known = {held.request.id: held.request.asked_at for held in over}
        # A request that is asked again after it was closed has the same id: the newer one counts.
        found = [held for held in found if held.request.asked_at > known.get(held.request.id, "")]
        later = {held.request.id for held in found}
        found = [*(held for held in over if held.request.id not in later), *found]
    several = waits or found
    if len(several) == 1:
        return several[0]
    if not several:
        raise NotFound(
            f"no request for approval has an id that begins with {name!r}: it does not exist, or was deleted or "
            "expired (ttl) with its thread"
        )
    told = "several pending requests" if waits else "no pending but several closed requests"
    listed = []
    for request in [request_at(held.request, session.now) for held in several[:_LISTED]]:
        what = one_line(request.action or describe_question(request.value), 60)
        listed.append(f"{request.id} ({request.status}: {what}, thread {request.thread_id!r})")
    listed += ["…"] if len(several) > _LISTED else []
    raise NotFound(f"{told} have ids that begin with {name!r}: give more digits: {'; '.join(listed)}")


def read_request(session: Session, name: str) -> Plan[KeptRequest]:
    """Return a request to decide, brought up to date, which may take a lease."""
    held = yield from find_request(session, name)
    request = held.request
    if request.status in CLOSED:
        return held
    found = {each.request.id: each for each in (yield from refresh_thread(session, request.thread_id, watches=True))}
    return found.get(request.id) or (yield from find_request(session, request.id))


def find_free_answers(session: Session, thread_id: str) -> Plan[Mapping[str, Any]]:
    """Return the answers with which a program may resume a thread without a check.

    Empty while a run has the thread, if a decision was copied with the thread, or if a fork has acted since the
    decision. One trip if a run has it, else four or more.
    """
    # If one read cannot decide whether a run has it, the resumed run watches the claim.
    if (yield from is_taken(session, thread_id)):
        return {}
    return (yield from find_answers(session, thread_id, by_itself=True))


def revise_request(session: Session, name: str, by: str, reason: str) -> Plan[ApprovalRequest]:
    """Take a decision back and remove its stored answer; the request is pending again."""
    tried = ""
    while True:
        held = yield from read_request(session, name)
        request = held.request
        name = request.id
        check_reviewer(request, by)
        if request.status in OPEN or (tried in times_of(request, REOPENED, by)):
            return request  # in the second case, another reviewer has decided it since
        if held.shelf != CURRENT or request.status in (SUPERSEDED, EXPIRED):
            check_open(request, "revise", by)
        claim, is_over = yield from find_claim(session, request.thread_id)
        if claim is not None and not is_over:
            raise ThreadTaken(request.thread_id, claim.holder, claim.since)
        yield from _forget_answer(session, request)
        tried = session.now
        changed = yield from Approvals(session).reopen(held, tried, by, reason)
        if changed is not None:
            return request_at(changed.request, session.now)


def _forget_answer(session: Session, request: ApprovalRequest) -> Plan[None]:
    """Remove the answer stored for a task's next attempt, and later answers."""
    head = yield from session.store.read_entry(Address(request.thread_id, "", None))
    asked = (yield from _questions_at(session, head)).get(request.interrupt_id) if head else None
    if asked is None or not asked.answers or is_keel_question(request):
        return  # `request_approval` reads its decision from the request
    task_id, path, address = asked.writer
    batch = pack_batch([(RESUME, list(asked.before))], task_id, path, session.codec, address)
    yield from session.store.write_batch(address, batch)


def with_warnings(session: Session, request: ApprovalRequest) -> Plan[ApprovalRequest]:
    """Return a request with the warnings for its reviewer.

    No trip for a closed request, and one for a question without an action. For a request with an action at least three
    trips, and more for each fork of its thread.
    """
    if request.status in CLOSED:
        return request
    found, relatives = list[tuple[str, str]](), list[str]()
    for find_relatives in session.hooks.find_relatives if request.action else ():
        relatives += yield from find_relatives(session, request.thread_id)
    for find in session.hooks.find_warnings:
        found += yield from find(session, request.thread_id, request.checkpoint_id, request.action, relatives)
    for name in relatives:
        asked = [held.request for held in (yield from Approvals(session).of_thread(name))]
        if any(each.action == request.action and each.status in (*OPEN, APPROVED, EDITED) for each in asked):
            said = f"Thread {name!r}, of the same history, also asks for {request.action}"
            found.append((f"{said}: if both are approved, it is called twice.", ""))
    times = max((at for _, at in found), default="")
    return replace(request, warnings=tuple(text for text, _ in found), warned_at=times)


def is_overtaken(request: ApprovalRequest) -> bool:
    """Return whether a fork has acted since the decision, unknown to the reviewer."""
    return request.decision is not None and request.warned_at > request.decision.at


def claim_request(session: Session, name: str, by: str, seconds: float) -> Plan[ApprovalRequest]:
    """Reserve a request for a reviewer. Errors are those of `decide_request`."""
    until = time_after("seconds", seconds, session.clock())
    while True:
        held = yield from read_request(session, name)
        name = held.request.id
        changed = yield from Approvals(session).claim(held, by, session.now, until)
        if changed is not None:
            return changed.request


def find_answers(session: Session, thread_id: str, *, by_itself: bool = False) -> Plan[Mapping[str, Any]]:
    """Return the decisions of a thread, by interrupt, in the formats of the askers.

    With `by_itself`, for a resume without a check: see `find_free_answers`.
    """
    # Questions of one task are answered together: LangGraph runs a task from its beginning at each answer. A decision
    # is passed again until the step has ended, as the process that used it may have died.
    requests = [held.request for held in (yield from refresh_thread(session, thread_id))]
    answers, decided = answers_of(requests), settled_in(requests)
    if answers and by_itself:
        if (yield from has_arrived(session, thread_id, decided[0].checkpoint_id, decided)):
            return {}
        for request in decided:
            if is_overtaken((yield from with_warnings(session, request))):
                return {}
    if not answers or not session.hooks.revive:
        return answers
    # Interrupt ids depend on node names, which an upgrade may have changed. One more trip.
    head = yield from session.store.read_entry(Address(thread_id, "", None))
    other = revive_other(session, head) if head else None
    return {other.interrupts.get(name, name): answer for name, answer in answers.items()} if other else answers


def find_open_requests(session: Session, thread_id: str) -> Plan[Sequence[ApprovalRequest]]:
    """Return the current requests of a thread; nothing is written.

    Two trips, and one for each older request.
    """
    held = yield from Approvals(session).of_thread(thread_id)
    head = (yield from session.store.read_entry(Address(thread_id, "", None))) if held else None
    questions = (yield from _questions_at(session, head, held)) if head else {}
    known: list[ApprovalRequest] = []
    for request in [each.request for each in held]:
        if head is not None and request.checkpoint_id == head.entry.address.checkpoint_id:
            now = request_at(request, session.now)
            fate = _fate_of(now, questions.get(request.interrupt_id))
            if fate == "over":
                continue
            if fate == "lost":
                now = replace(now, status=WAITING, decision=None)
            elif fate == "taken":
                now = replace(now, status=CONSUMED, decision=now.decision or Decision("answer"))
        else:
            now = yield from request_now(session, request)
        if now.status != SUPERSEDED:
            known.append(now)
    return known


def find_waiting_threads(session: Session, among: Collection[str] | None = None) -> Plan[set[str]]:
    """Return the threads, of `among` or all, that wait for a person.

    A trip for each 1,000 requests, and for each open one.
    """
    waiting: set[str] = set()
    for held in (yield from Approvals(session).all(CURRENT)):
        request = held.request
        if request.thread_id in waiting or (among is not None and request.thread_id not in among):
            continue
        if request_at(request, session.now).status not in OPEN:
            continue
        if (yield from request_now(session, request)).status in OPEN:
            waiting.add(request.thread_id)
    return waiting


def answers_of(requests: Sequence[ApprovalRequest]) -> Mapping[str, Any]:
    """Return the decisions among a thread's requests, by interrupt."""
    by_interrupt: defaultdict[str, list[ApprovalRequest]] = defaultdict(list)
    for request in settled_in(requests):
        if request.interrupt_id:
            by_interrupt[request.interrupt_id].append(request)
    return {name: _answer(requests) for name, requests in by_interrupt.items()}


def settled_in(requests: Collection[ApprovalRequest]) -> Sequence[ApprovalRequest]:
    """Return the requests of a thread whose decisions an agent can use now."""
    # The answer of a program is stored with the task itself. Superseded requests were asked again.
    known = [each for each in requests if each.status != SUPERSEDED and (each.decision is None or each.decision.by)]
    waiting = [each for each in known if not each.is_settled]
    # Plain questions that are open at the same time belong to one interrupt, or to different tasks in a subgraph.
    interrupts = {each.interrupt_id for each in waiting}
    tasks = {
        is_keel: {each.task_id for each in waiting if is_keel_question(each) >= is_keel} for is_keel in (False, True)
    }
    return [
        each
        for each in known
        if each.is_settled
        and each.interrupt_id not in interrupts
        and each.task_id not in tasks[not is_keel_question(each)]
    ]


def _answer(requests: Sequence[ApprovalRequest]) -> Any:
    # LangGraph numbers the interrupts of a task: a rerun may have asked another question under the same id.
    last = max(requests, key=lambda each: each.asked_at)
    parts = sorted((each for each in requests if each.value == last.value), key=lambda each: each.part)
    return answer_of(last.value, [each.decision for each in parts if each.decision is not None], last.schema)


def resume(session: Session, thread_id: str) -> Plan[Command[Any]]:
    """Return the command that resumes a thread with its decisions."""
    from langgraph.types import Command

    found = yield from find_answers(session, thread_id)
    head = yield from session.store.read_entry(Address(thread_id, "", None))
    if head is None:
        raise NotFound(f"there is no thread {thread_id!r} in this store")
    if found and not read_questions(head.batches, session.codec.with_placeholders(), head.entry.address):
        raise NotFound(
            f"thread {thread_id!r}: the question that was decided is not stored: the run that asks it is still active "
            f"or has died. `saver.status({thread_id!r})` reports the next step"
        )
    if not found:
        waiting = yield from Approvals(session).of_thread(thread_id)
        requests = [request_at(each.request, session.now) for each in waiting]
        ids = ", ".join(f"{each.id} is {each.status}" for each in requests)
        advice = f", and `saver.status({thread_id!r})` reports its next step" if not ids else ""
        if first := next((each for each in requests if each.status in OPEN), None):
            advice = f": decide it first, by {how_to_decide(first)}"
        raise NotFound(f"thread {thread_id!r}: nothing to resume with: {ids or 'it has no open question'}{advice}")
    return Command(resume=dict(found))


def sweep_requests(session: Session, remind_after: float | None) -> Plan[Sequence[ApprovalRequest]]:
    """Bring all requests up to date; return those that need a reminder, and mark them."""
    remind_before = "" if remind_after is None else time_after("remind_after", remind_after, session.clock(), -1)
    known = yield from Approvals(session).all(CURRENT)
    due: list[ApprovalRequest] = []
    for thread_id in sorted({held.request.thread_id for held in known}):
        for held in (yield from refresh_thread(session, thread_id)):
            request = request_at(held.request, session.now)
            is_due = request.status in OPEN and max(request.asked_at, request.reminded_at) < remind_before
            if is_due and (yield from request_now(session, request)).status in OPEN:
                changed = yield from Approvals(session).change(held, replace(held.request, reminded_at=session.now))
                due += [changed.request] if changed else []
    return due
