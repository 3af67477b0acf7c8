"""Requests for approval, one cell each.

A request is changed by compare-and-set, so only one of two reviewers wins. The cells of all threads share a shelf, and
their keys begin with a hash of the thread: a page of them is the inbox, and the requests of a thread are a range of
keys. Closed requests move to another shelf.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

from langgraph_keel.approvals.checks import find_misfits
from langgraph_keel.engine import audit
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable, Kept, record_of
from langgraph_keel.errors import AlreadyDecided, InvalidInput, NotAllowed

WAITING, CLAIMED, EXPIRED, SUPERSEDED, CONSUMED = "waiting", "claimed", "expired", "superseded", "consumed"
APPROVED, REJECTED, EDITED, ANSWERED = "approved", "rejected", "edited", "answered"

# Superseded: the thread continued without it, or the facts changed. Consumed: the agent has taken the decision.
OPEN = frozenset({WAITING, CLAIMED})
DECIDED = frozenset({APPROVED, REJECTED, EDITED, ANSWERED, EXPIRED})
"""Decided, but not yet used by the agent."""
CLOSED = frozenset({SUPERSEDED, CONSUMED})
STATUSES = (WAITING, CLAIMED, APPROVED, REJECTED, EDITED, ANSWERED, EXPIRED, SUPERSEDED, CONSUMED)

Kind = Literal["approve", "reject", "edit", "answer"]
STATUS_OF: Mapping[str, str] = {"approve": APPROVED, "reject": REJECTED, "edit": EDITED, "answer": ANSWERED}

BY_EXPIRY = "keel:expiry"
"""The `by` of a decision made by expiry."""

REOPENED = "reopened"
_ACTS: Mapping[str, tuple[str, str]] = {
    "approve": ("approval", APPROVED),
    "reject": ("rejection", REJECTED),
    "edit": ("edit", EDITED),
    "answer": ("answer", ANSWERED),
    "claim": ("claim", CLAIMED),
    "revise": ("revision", REOPENED),
}
"""The noun for an act in messages, and the event that records it."""

_TUPLES = ("interrupt_ids", "allowed", "approvers", "history")

PAGE = 1000


@publish
@dataclass(frozen=True, slots=True)
class Decision:
    """A person's decision.

    Attributes:
        kind: `approve`, `reject`, `edit` or `answer`.
        by: The reviewer, as authenticated by the calling program; `keel:expiry` if the request expired, empty if a
            program resumed the graph itself.
        at: ISO time.
        reason: The reviewer's reason.
        args: The approved arguments: those of the request, or the reviewer's.
        value: The answer, for `answer`.
        unchecked: For `edit`: whether the arguments were not checked against those of the request.
    """

    kind: Kind
    by: str = ""
    at: str = ""
    reason: str = ""
    args: Any = None
    value: Any = None
    unchecked: bool = field(default=False, repr=False)

    @property
    def approved(self) -> bool:
        """Whether the agent may act, with `args`, which the reviewer may have edited."""
        return self.kind in ("approve", "edit")


@publish
@dataclass(frozen=True, slots=True, repr=False)
class ApprovalRequest:
    """A request for approval.

    Attributes:
        id: 24 hexadecimal digits, the same if the same question is asked again.
        thread_id: The thread that waits.
        checkpoint_id: The checkpoint whose step asks.
        task_id: The task that asks.
        interrupt_ids: The ids of the interrupts that asked this question, oldest first. The last one is to be answered.
            Empty before the step has ended.
        action: The action that the agent wants to take, such as a tool's name; empty for a free question.
        args: The arguments of the action.
        value: The value of the interrupt, as plain data.
        schema: The JSON schema of its answer, if any.
        status: `waiting`, `claimed`, `approved`, `rejected`, `edited`, `answered`, `expired`, `superseded` or
            `consumed`.
        asked_at: ISO time.
        description: A text for the reviewer.
        facts: The data that the decision depends on, at the time of the question.
        before: The facts of an earlier decision; empty if there was none.
        earlier: That decision, with the id of its request.
        args_hash: A hash of the arguments.
        allowed: The kinds of decision that are allowed.
        approvers: The allowed reviewers; empty for everyone.
        owner: The owner of the thread (`configurable["user_id"]`).
        expires_at: ISO time from which it cannot be decided; `None` is never.
        on_expiry: The result of expiry: the agent gets a rejection (`reject`), or continues to wait (`wait`).
        claimed_by: The reviewer that reserved the request.
        claimed_until: ISO time of the end of the reservation.
        reminded_at: ISO time of the last reminder.
        decision: The decision; `None` if there is none yet.
        part: Its index among the questions of one interrupt.
        parts: The number of these questions.
        history: Its events, oldest first: plain data.
        audited: The number of events that are in the audit trail.
        warnings: Sentences for the reviewer, such as that a fork of the thread has called this tool. Computed when
            `get`, `pending` or `status` reads the request, not stored.
        warned_at: ISO time of the latest event behind these warnings.
    """

    id: str
    thread_id: str
    checkpoint_id: str = ""
    task_id: str = ""
    interrupt_ids: Sequence[str] = ()
    action: str = ""
    args: Any = None
    value: Any = None
    schema: Any = None
    status: str = WAITING
    asked_at: str = ""
    description: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    earlier: Mapping[str, Any] = field(default_factory=dict)
    args_hash: str = ""
    allowed: Sequence[str] = ("approve", "reject", "edit", "answer")
    approvers: Sequence[str] = ()
    owner: str = ""
    expires_at: str | None = None
    on_expiry: str = "reject"
    claimed_by: str = ""
    claimed_until: str = ""
    reminded_at: str = ""
    decision: Decision | None = None
    part: int = 0
    parts: int = 1
    history: Sequence[Mapping[str, Any]] = ()
    audited: int = 0
    warnings: Sequence[str] = ()
    warned_at: str = ""

    def __repr__(self) -> str:
        """Return the question in short."""
        # A reviewer decides by this text, so control characters must not overwrite parts of it.
        action = self.action if self.action.isprintable() else repr(self.action)
        asks = f"{action}({self.args!r:.200})" if action else f"{self.value!r:.200}"
        facts = f" on {self.facts!r:.200}" if self.facts else ""
        by = f" by {self.decision.by!r}" if self.decision and self.decision.by else ""
        return f"<approval {self.id} of thread {self.thread_id!r}: {asks}{facts}, {self.status}{by}>"

    @property
    def interrupt_id(self) -> str:
        """The id of the interrupt to answer; empty if there is none yet."""
        return self.interrupt_ids[-1] if self.interrupt_ids else ""

    @property
    def is_settled(self) -> bool:
        """Whether this request no longer blocks the agent."""
        return self.on_expiry == "reject" if self.status == EXPIRED else self.status in (*DECIDED, CONSUMED)


def request_at(request: ApprovalRequest, now: str) -> ApprovalRequest:
    """Return a request as of a time, with expired claims and deadlines applied."""
    if request.status not in OPEN:
        return request
    if request.expires_at is not None and request.expires_at <= now:
        return replace(request, status=EXPIRED, decision=Decision("reject", BY_EXPIRY, request.expires_at))
    if request.status == CLAIMED and request.claimed_until <= now:
        return replace(request, status=WAITING, claimed_by="", claimed_until="")
    return request


def apply_decision(request: ApprovalRequest, decision: Decision) -> ApprovalRequest:
    """Return a request with a decision; `request` must be as of that time."""
    check_open(request, decision.kind, decision.by)
    check_reviewer(request, decision.by)
    if decision.kind not in request.allowed:
        allowed = ", ".join(request.allowed)
        raise NotAllowed(
            f"approval {request.id} ({request.action or 'a question'}) allows {allowed}, not {decision.kind}"
        )
    if decision.kind == "edit":
        _check_edit(request, decision)
    if decision.kind == "approve":
        decision = replace(decision, args=request.args)
    return replace(request, status=STATUS_OF[decision.kind], decision=decision, claimed_by="", claimed_until="")


def is_decided_so(request: ApprovalRequest, decision: Decision) -> bool:
    """Return whether an equal decision by the same person is stored."""
    if request.decision is None or request.status not in (*DECIDED, CONSUMED) or not audit.is_name(decision.by):
        return False
    if decision.kind == "approve":
        decision = replace(decision, args=request.args)
    return _content(decision) == _content(request.decision)


def _content(decision: Decision) -> str:
    return json.dumps(asdict(replace(decision, at="")), sort_keys=True)  # 1, 1.0 and True are not the same


def _check_edit(request: ApprovalRequest, decision: Decision) -> None:
    if isinstance(request.args, Mapping) and not isinstance(decision.args, Mapping):
        raise InvalidInput(f"args must be a dict with all arguments of {request.action}, not {decision.args!r:.80}")
    # `HumanInTheLoopMiddleware` may add the schema of the tool's arguments to its request.
    configs = request.value.get("review_configs") if isinstance(request.value, Mapping) else None
    named = [each for each in configs if isinstance(each, Mapping)] if isinstance(configs, list) else ()
    schema = next((each.get("args_schema") for each in named if each.get("action_name") == request.action), None)
    misfits = () if decision.unchecked else find_misfits(request.args, decision.args, schema)
    if misfits:
        raise InvalidInput(
            f"approval {request.id}: the edited arguments do not fit {request.action or 'the question'}: "
            f"{'; '.join(misfits)}. Nothing was recorded: give all arguments of the request, of the same types"
        )


def check_open(request: ApprovalRequest, kind: str, by: str, *, may_revise: bool = False) -> None:
    """Check that a request can be decided."""
    if request.status not in OPEN:
        act, event = _ACTS[kind]
        earlier = times_of(request, event, by)
        # The reviewer may repeat an act because its reply was lost.
        fate = f"Your earlier {act}{_when(earlier[-1])} was recorded, this one was not" if earlier else ""
        revise = (
            f" If the agent cannot act on that decision, take it back with saver.approvals.revise({request.id!r}, "
            f"by=...) or `keel revise {request.id} --by NAME`. Actions of its tools are not undone."
        )
        said = f"{describe_end(request)}. {fate or f'Your {act} was not recorded'}.{revise if may_revise else ''}"
        raise _refusal(request, said)


def check_not_changed(request: ApprovalRequest, decision: Decision) -> None:
    """Check that a decision was not recorded before, whose reply may have been lost."""
    act, event = _ACTS[decision.kind]
    if decision.at in times_of(request, event, decision.by):
        last = request.history[-1]
        by = f" by {last['by']}" if last.get("by") else ""
        raise _refusal(
            request,
            f"your {act} was recorded, and changed before its reply arrived: the request was "
            f"{last['kind']}{by}{_when(last['at'])}, and is {request.status} now. Look at it before you decide again",
        )


def times_of(request: ApprovalRequest, event: str, by: str) -> Sequence[str]:
    """Return the ISO times of an event by a person in a request's history."""
    return [each["at"] for each in request.history if (each["kind"], each["by"]) == (event, by)]


def _refusal(request: ApprovalRequest, said: str) -> AlreadyDecided:
    by = request.decision.by if request.decision else ""
    return AlreadyDecided(request.id, request.status, by, f"approval {request.id}: {said}")


def _when(at: str) -> str:
    return f" on {at[:10]} at {at[11:19]} UTC" if at else ""


def describe_end(request: ApprovalRequest) -> str:
    """Return a request's decision and its use, as a sentence without a full stop."""
    decision, ended = request.decision, dict(request.history[-1]) if request.history else {}
    when = _when(decision.at) if decision else ""
    if decision is None:
        said = ""
    elif decision.by == BY_EXPIRY:
        said = f"this expired{when}, and was not decided in time"
    else:
        said = f"{decision.by or 'the program'} {STATUS_OF[decision.kind]} this{when}"
    if request.status == SUPERSEDED:
        why = ended.get("reason") or "the thread went on without it"
        return f"{said + '; ' if said else ''}it is superseded: {why}"
    if decision is None or decision.by == BY_EXPIRY:
        return said
    return f"{said}; the agent has {'already' if request.status == CONSUMED else 'not yet'} acted on it"


def check_reviewer(request: ApprovalRequest, by: str) -> None:
    """Check that a reviewer may decide."""
    if not audit.is_name(by):
        raise InvalidInput(f"by must name the reviewer, as authenticated by your program, not {by!r}")
    if request.approvers and by not in request.approvers:
        raise NotAllowed(f"approval {request.id}: {by!r} is not among its approvers ({', '.join(request.approvers)})")
    if request.status == CLAIMED and request.claimed_by != by:
        whose = f"it is claimed by {request.claimed_by!r} until {request.claimed_until}"
        raise NotAllowed(f"approval {request.id}: {whose}; nothing was decided")


def _pack(request: ApprovalRequest) -> list[dict[str, Any]]:
    # Arguments and answers may be 0 or False.
    fields = asdict(replace(request, warnings=(), warned_at=""))
    return [{name: value for name, value in fields.items() if value or name in ("args", "value")}]


def _unpack(stored: Sequence[Any]) -> ApprovalRequest:
    (said,) = stored
    return record_of(ApprovalRequest, said | {name: tuple(said[name]) for name in _TUPLES if name in said})


def _thread_of(key: str, request: ApprovalRequest) -> str:
    is_own = request.id == key and key.startswith(thread_prefix(request.thread_id))
    return request.thread_id if is_own else ""


TABLES = tuple(
    CellTable(kind, "the request for approval {key}", _pack, _unpack, thread_of=_thread_of)
    for kind in ("approvals", "approvalsover")
)
"""The current requests, and the closed ones."""
CURRENT, OVER = (Shelf(None, table.kind) for table in TABLES)


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A stored request, with the token of its cell, on the shelf `CURRENT` or `OVER`."""

    request: ApprovalRequest
    token: str
    shelf: Shelf


def request_id(thread_id: str, *parts: str) -> str:
    """Return the id of a request; the ids of a thread share a prefix."""
    text = "\x00".join((thread_id, *parts)).encode("utf-8", "surrogatepass")
    return thread_prefix(thread_id) + sha256(text).hexdigest()[:16]


def thread_prefix(thread_id: str) -> str:
    """Return the prefix of a thread's request ids; other threads may share it."""
    return sha256(thread_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def add_event(request: ApprovalRequest, kind: str, at: str, by: str = "", **more: Any) -> ApprovalRequest:
    """Return a request with an event added to its history."""
    event = {"kind": kind, "at": at, "by": by, **{name: value for name, value in more.items() if value is not None}}
    return replace(request, history=(*request.history, event))


class Approvals:
    """The plans of requests, over one store."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cells = {shelf: Cells(session, table, None) for shelf, table in zip((CURRENT, OVER), TABLES, strict=True)}

    @property
    def now(self) -> str:
        """The time, as ISO text."""
        return self._session.now

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, ids: Sequence[str]) -> Plan[Mapping[str, KeptRequest]]:
        """Read requests by id, omitting missing ones. One trip, two if some are closed."""
        found: dict[str, KeptRequest] = {}
        for shelf in (CURRENT, OVER):
            if missing := [name for name in ids if name not in found]:
                kept = yield from self._cells[shelf].read(missing)
                found |= {name: _keep(each, shelf) for name, each in kept.items()}
        return found

    def first(self, shelf: Shelf, prefix: str, limit: int) -> Plan[Sequence[KeptRequest]]:
        """Read the first requests whose ids have a prefix. One trip."""
        found = yield from self._cells[shelf].page(prefix, limit=limit)
        return [_keep(kept, shelf) for _, kept in found]

    def all(self, shelf: Shelf, prefix: str = "") -> Plan[Sequence[KeptRequest]]:
        """Read the requests whose ids have a prefix, by id. A trip for each 1,000."""
        found = yield from self._cells[shelf].every(prefix, PAGE)
        return [_keep(kept, shelf) for _, kept in found]

    def of_thread(self, thread_id: str) -> Plan[Sequence[KeptRequest]]:
        """Read a thread's current requests."""
        found = yield from self.all(CURRENT, thread_prefix(thread_id))
        return [held for held in found if held.request.thread_id == thread_id]

    # -- changing ----------------------------------------------------------------------------------------------

    def ask(self, request: ApprovalRequest) -> Plan[KeptRequest]:
        """Store a new request, or return the stored one if the question is asked again."""
        what = {"args": request.args, "description": request.description or None, "facts": dict(request.facts) or None}
        what |= {} if request.action else {"value": request.value}
        asked = add_event(request, "asked", request.asked_at, **what)
        while True:
            done, kept = yield from self._cells[CURRENT].swap(request.id, None, asked, origin=request.thread_id)
            if kept is not None:
                held = _keep(kept, CURRENT)
                return (yield from self._log(held)) if done else held

    def change(self, held: KeptRequest, new: ApprovalRequest) -> Plan[KeptRequest | None]:
        """Replace a request, update the audit trail; `None` if another process was faster."""
        held = yield from self._log(held)
        new = replace(new, audited=held.request.audited)
        done, kept = yield from self._cells[held.shelf].swap(new.id, held.token, new, origin=new.thread_id)
        return (yield from self._log(_keep(kept, held.shelf))) if done and kept else None

    def decide(self, held: KeptRequest, decision: Decision) -> Plan[KeptRequest | None]:
        """Store a decision made at `decision.at`; `None` if another process was faster."""
        new = apply_decision(request_at(held.request, decision.at), decision)
        said = new.decision or decision
        more = {"reason": said.reason or None, "args": said.args, "value": said.value}
        more |= {"unchecked": True} if said.unchecked else {}
        return (yield from self.change(held, add_event(new, new.status, said.at, said.by, **more)))

    def claim(self, held: KeptRequest, by: str, at: str, until: str) -> Plan[KeptRequest | None]:
        """Reserve a request for a reviewer, or release it if `until` is in the past."""
        request = request_at(held.request, at)
        check_open(request, "claim", by)
        check_reviewer(request, by)
        if until <= at and request.status == WAITING:
            return held
        new = replace(request, status=CLAIMED, claimed_by=by, claimed_until=until)
        if until <= at:
            new = replace(request, status=WAITING, claimed_by="", claimed_until="")
        return (yield from self.change(held, add_event(new, "claimed" if until > at else "released", at, by)))

    def expire(self, held: KeptRequest, now: str) -> Plan[KeptRequest]:
        """Mark the request as expired if its deadline has passed."""
        request = request_at(held.request, now)
        if request.status != EXPIRED or held.request.status == EXPIRED:
            return held
        changed = yield from self.change(held, add_event(request, EXPIRED, now))
        return changed or held

    def consume(self, held: KeptRequest, at: str) -> Plan[KeptRequest | None]:
        """Record that the agent has taken the decision."""
        return (yield from self.change(held, add_event(replace(held.request, status=CONSUMED), CONSUMED, at)))

    def reopen(self, held: KeptRequest, at: str, by: str = "", reason: str = "") -> Plan[KeptRequest | None]:
        """Make a request pending again."""
        new = replace(held.request, status=WAITING, decision=None)
        return (yield from self.change(held, add_event(new, REOPENED, at, by, reason=reason or None)))

    def end(self, held: KeptRequest, status: str, at: str, why: str = "") -> Plan[None]:
        """Mark a request as consumed or superseded, and move it to the closed ones."""
        if held.request.status not in (CONSUMED, SUPERSEDED):
            new = add_event(replace(held.request, status=status), status, at, reason=why or None)
            changed = yield from self.change(held, new)
            if changed is None:
                return  # changed concurrently: a later pass finds it again
            held = changed
        held = yield from self._log(held)
        # Written there before it is removed here, so that it is always found by its id, even after a crash in between.
        request, over = held.request, self._cells[OVER]
        done, there = yield from over.swap(request.id, None, request, origin=request.thread_id)
        # It was closed before, and asked again: two tools of a node may ask concurrently, before their run is known to
        # live.
        if not done and there is not None and there.record.asked_at <= request.asked_at and there.record != request:
            yield from over.swap(request.id, there.token, request, origin=request.thread_id)
        yield from self._cells[CURRENT].remove({request.id: held.token})

    def _log(self, held: KeptRequest) -> Plan[KeptRequest]:
        """Append the events of a request that are not yet in the audit trail."""
        # Done by the process that has made a change, and by any other process that finds events missing, as the first
        # may have died. A request is not changed before its events are appended, so all processes see the same events
        # under the same token. The secret derived from the token ensures that each event is appended once.
        request = held.request
        if request.audited == len(request.history):
            return held
        for nth in range(request.audited, len(request.history)):
            event = dict(request.history[nth])
            content = {**_about(request), "n": nth, **event}
            secret = sha256(f"{held.token}:{nth}".encode()).hexdigest()[:32]
            yield from audit.append(self._session, request.thread_id, event["at"], event["kind"], content, secret)
        new = replace(request, audited=len(request.history))
        # Under the same token, so other processes see no change.
        cells, token = self._cells[held.shelf], held.token
        done, _ = yield from cells.swap(request.id, token, new, token=token, origin=request.thread_id)
        return replace(held, request=new if done else request)


def _keep(kept: Kept[ApprovalRequest], shelf: Shelf) -> KeptRequest:
    return KeptRequest(kept.record, kept.token, shelf)


def _about(request: ApprovalRequest) -> dict[str, Any]:
    about = {
        "request": request.id,
        "thread_id": request.thread_id,
        "checkpoint_id": request.checkpoint_id,
        "interrupt_id": request.interrupt_id,
        "action": request.action,
        "args_hash": request.args_hash,
    }
    return {name: value for name, value in about.items() if value}
