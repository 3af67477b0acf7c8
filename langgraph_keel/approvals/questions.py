"""Records the questions of graphs as requests, and closes requests."""

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
    """Record the questions of an interrupt, if not done yet."""
    approvals = Approvals(session)
    requests = requests_of(address, interrupt, task_id, owner, session.now)
    for request in requests:
        held: KeptRequest | None = yield from approvals.ask(request)
        while held and interrupt.id != held.request.interrupt_id:
            # Its task made the request earlier; now it has stopped the graph, perhaps with an interrupt id it had
            # before.
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
    """Move a request to the closed ones."""
    request = held.request
    # `request_approval` itself records that it has used a decision.
    if not is_answered or (is_keel_question(request) and request.status != CONSUMED):
        yield from approvals.end(held, SUPERSEDED, now, "the thread went on without it")
    elif not is_from_decision(request, given):
        yield from approvals.end(held, SUPERSEDED, now, ANSWERED_OTHERWISE)
    else:
        yield from approvals.end(as_taken(held, now), CONSUMED, now)


def as_taken(held: KeptRequest, now: str) -> KeptRequest:
    """Return a request with a decision: an empty one if a program resumed the graph."""
    if held.request.decision is not None:
        return held
    return replace(held, request=replace(held.request, decision=Decision("answer", "", now)))


def is_from_decision(request: ApprovalRequest, given: Sequence[Any] | None) -> bool:
    """Return whether the agent's answer may come from the decision; true if unknown."""
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
    """Return whether the checkpoint of a request is stored. One trip."""
    return bool((yield from session.store.scan(Query(request.thread_id, "", request.checkpoint_id, limit=1))))


def supersede_unstored(session: Session, request: ApprovalRequest) -> Plan[ApprovalRequest]:
    """Return a request without a stored checkpoint as superseded. One trip; no write."""
    older = yield from session.store.scan(Query(request.thread_id, "", before=request.checkpoint_id, limit=1))
    why = UNSTORED if older else GONE
    return add_event(replace(request, status=SUPERSEDED), SUPERSEDED, session.now, reason=why)


def close_unstored(session: Session, held: KeptRequest) -> Plan[None]:
    """Close a request whose checkpoint is not stored."""
    request = held.request
    why = (yield from supersede_unstored(session, request)).history[-1]["reason"]
    if request.status in DECIDED:
        by = request.decision.by if request.decision else ""
        _log.warning("approval %s, %s by %r, is superseded: %s", request.id, request.status, by, why)
    yield from Approvals(session).end(held, SUPERSEDED, session.now, why)


def close_all_unstored(session: Session, thread_id: str, before: str | None = None) -> Plan[None]:
    """Close the requests of a dead run whose checkpoints were never stored, or of those before a checkpoint."""
    for held in (yield from Approvals(session).of_thread(thread_id)):
        is_older = before is None or held.request.checkpoint_id < before
        if is_older and not (yield from is_stored(session, held.request)):
            yield from close_unstored(session, held)


def how_to_decide(request: ApprovalRequest) -> str:
    """Return the call and the command that decide a request, for messages."""
    kind = request.allowed[0]
    needed = {"edit": "args", "answer": "value"}.get(kind)
    call = f"saver.approvals.{kind}({request.id!r}, by=...{f', {needed}=...' if needed else ''})"
    return f"{call} or `keel {kind} {request.id} --by NAME{f' --{needed} JSON' if needed else ''}`"


def is_keel_question(request: ApprovalRequest) -> bool:
    """Return whether a request was made by `request_approval`."""
    return isinstance(request.value, Mapping) and request.value.get("type") == "keel_approval"


def requests_of(
    address: Address, interrupt: Interrupt, task_id: str, owner: str, now: str
) -> Sequence[ApprovalRequest]:
    """Return the requests of an interrupt, one for each action."""
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
    # Keel's own question contains the parts of its id (`ask.py`).
    of = (ask.keel or {}).get("of")
    if not isinstance(of, list) or not all(isinstance(each, str) for each in of):
        of = [whole.checkpoint_id, whole.interrupt_id, str(part)]
    # The restrictions of Keel's own question are also in the interrupt's value, as a copy of the thread has only that.
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
    """Return a hash of arguments, which are plain data."""
    return sha256(json.dumps(args, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()
