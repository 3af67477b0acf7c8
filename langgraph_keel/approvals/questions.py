"""What graphs ask, written down as requests; and how a request is over."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from langgraph_keel.approvals.interrupts import Ask, answer_with, asks_of
from langgraph_keel.approvals.requests import (
    CONSUMED,
    DECIDED,
    OPEN,
    SUPERSEDED,
    ApprovalRequest,
    Approvals,
    Decision,
    KeptRequest,
    add_event,
    request_id,
)
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.session import Session

if TYPE_CHECKING:
    from langgraph.types import Interrupt

_log = logging.getLogger(__name__)
UNSTORED = "the run that asked has ended before its checkpoint was stored"
GONE = "it expired with its thread (ttl), or the run that asked ended before anything of that thread was stored"
ANSWERED_OTHERWISE = "the program resumed the graph with another answer"
RESTRICTIONS = ("facts", "before", "approvers", "expires_at", "on_expiry")


def record_interrupt(
    session: Session, address: Address, interrupt: Interrupt, task_id: str, owner: str = ""
) -> Plan[None]:
    """Write down what an interrupt asks, unless that is done."""
    approvals = Approvals(session)
    requests = requests_of(address, interrupt, task_id, owner, session.now)
    for request in requests:
        held: KeptRequest | None = yield from approvals.ask(request)
        while held and interrupt.id != held.request.interrupt_id:
            # Its task has made the request before; now it has stopped the graph, maybe by a name that it had earlier.
            ids = (*(name for name in held.request.interrupt_ids if name != interrupt.id), interrupt.id)
            changed = yield from approvals.change(held, replace(held.request, interrupt_ids=ids, value=request.value))
            held = changed or (yield from approvals.read([request.id])).get(request.id)
    new = requests[0]
    for held in (yield from approvals.of_thread(new.thread_id)) if is_keel_question(new) else ():
        old = held.request
        is_same_place = (old.interrupt_id, old.action) == (new.interrupt_id, new.action) and old.id != new.id
        if is_same_place and old.status in OPEN and old.args_hash != new.args_hash:
            yield from approvals.end(held, SUPERSEDED, session.now, "the arguments have changed")


def close_request(
    approvals: Approvals, held: KeptRequest, now: str, *, is_answered: bool, given: Sequence[Any] | None = None
) -> Plan[None]:
    """Put a request with those that are over."""
    request = held.request
    # `request_approval` itself records that it has taken a decision.
    if not is_answered or (is_keel_question(request) and request.status != CONSUMED):
        yield from approvals.end(held, SUPERSEDED, now, "the thread went on without it")
    elif not is_from_decision(request, given):
        yield from approvals.end(held, SUPERSEDED, now, ANSWERED_OTHERWISE)
    else:
        yield from approvals.end(as_taken(held, now), CONSUMED, now)


def as_taken(held: KeptRequest, now: str) -> KeptRequest:
    """Return a request with a decision: without one, a program has resumed the graph itself."""
    if held.request.decision is not None:
        return held
    return replace(held, request=replace(held.request, decision=Decision("answer", "", now)))


def is_from_decision(request: ApprovalRequest, given: Sequence[Any] | None) -> bool:
    """Return whether an answer that the agent received can be that of the request's decision; true if unknown."""
    if given is None or request.decision is None or is_keel_question(request):
        return True
    if not request.decision.by or request.status == CONSUMED:
        return True
    expected, answers = as_json(answer_with(request, request.decision)), [as_json(answer) for answer in given]
    if request.parts == 1:
        return expected in answers
    one, others = _parts_of(expected), map(_parts_of, answers)
    return any(len(one) == len(other) and one[request.part] == other[request.part] for other in others)


def _parts_of(answer: Any) -> Sequence[Any]:
    parts = answer.get("decisions") if isinstance(answer, Mapping) else answer
    return parts if isinstance(parts, list) else ()


def is_stored(session: Session, request: ApprovalRequest) -> Plan[bool]:
    """Return whether the checkpoint is there that a request was made at. One trip."""
    return bool((yield from session.store.scan(Query(request.thread_id, "", request.checkpoint_id, limit=1))))


def supersede_unstored(session: Session, request: ApprovalRequest) -> Plan[ApprovalRequest]:
    """Return a request whose checkpoint is not there as it is from then on, and why. One trip; nothing is written."""
    older = yield from session.store.scan(Query(request.thread_id, "", before=request.checkpoint_id, limit=1))
    why = UNSTORED if older else GONE
    return add_event(replace(request, status=SUPERSEDED), SUPERSEDED, session.now, reason=why)


def close_unstored(session: Session, held: KeptRequest) -> Plan[None]:
    """Put a request with those that are over, as its checkpoint is not there: an interrupt may be stored before it."""
    request = held.request
    why = (yield from supersede_unstored(session, request)).history[-1]["reason"]
    if request.status in DECIDED:
        by = request.decision.by if request.decision else ""
        _log.warning("approval %s, %s by %r, is superseded: %s", request.id, request.status, by, why)
    yield from Approvals(session).end(held, SUPERSEDED, session.now, why)


def close_all_unstored(session: Session, thread_id: str) -> Plan[None]:
    """Close the requests of a dead run whose checkpoints were never stored. One trip, and one for each request."""
    for held in (yield from Approvals(session).of_thread(thread_id)):
        if not (yield from is_stored(session, held.request)):
            yield from close_unstored(session, held)


def is_keel_question(request: ApprovalRequest) -> bool:
    """Return whether `request_approval` has asked it."""
    return isinstance(request.value, Mapping) and request.value.get("type") == "keel_approval"


def requests_of(
    address: Address, interrupt: Interrupt, task_id: str, owner: str, now: str
) -> Sequence[ApprovalRequest]:
    """Return the requests that an interrupt makes, one for each action it asks about."""
    value, schema = as_json(interrupt.value), as_json(interrupt.response_schema)
    asks = asks_of(value, schema)
    whole = ApprovalRequest(
        "",
        address.thread_id,
        str(address.checkpoint_id),
        task_id,
        (interrupt.id,),
        value=value,
        schema=schema,
        asked_at=now,
        owner=owner,
        parts=len(asks),
    )
    return [_part(whole, ask, part) for part, ask in enumerate(asks)]


def _part(whole: ApprovalRequest, ask: Ask, part: int) -> ApprovalRequest:
    args = as_json(ask.args)
    # Keel's own question carries its difference from the others of its thread (`ask.py`).
    of = (ask.keel or {}).get("of")
    if not isinstance(of, list) or not all(isinstance(each, str) for each in of):
        of = [whole.checkpoint_id, whole.interrupt_id, str(part)]
    # What restricts Keel's own question is in what the interrupt carries, too: a copy of the thread has only that.
    restricted = {name: ask.keel[name] for name in RESTRICTIONS if name in ask.keel} if ask.keel else {}
    return replace(
        whole,
        id=request_id(whole.thread_id, *of),
        action=ask.action,
        args=args,
        description=ask.description,
        args_hash=hash_of(args if ask.action else whole.value),
        allowed=tuple(ask.allowed),
        part=part,
        **restricted,
    )


def hash_of(args: Any) -> str:
    """Return what tells arguments, as plain data, from all others."""
    return sha256(json.dumps(args, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()
