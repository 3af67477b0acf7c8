"""What a person is asked, and what a person has said: records, and what may become of them.

A request is *waiting* until somebody decides; *claimed* while a reviewer holds it; then *approved*, *rejected*,
*edited* or *answered*; *expired* if nobody did in time; *superseded* if the thread went on without it, or the facts
changed; *consumed* once the agent has taken the decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from langgraph_keel.errors import AlreadyDecided, InvalidInput, NotAllowed

WAITING, CLAIMED, EXPIRED, SUPERSEDED, CONSUMED = "waiting", "claimed", "expired", "superseded", "consumed"
APPROVED, REJECTED, EDITED, ANSWERED = "approved", "rejected", "edited", "answered"

OPEN = frozenset({WAITING, CLAIMED})
"""Somebody has to decide."""

DECIDED = frozenset({APPROVED, REJECTED, EDITED, ANSWERED, EXPIRED})
"""Decided, and the agent has not taken it yet."""

CLOSED = frozenset({SUPERSEDED, CONSUMED})
"""Over."""

STATUSES = (WAITING, CLAIMED, APPROVED, REJECTED, EDITED, ANSWERED, EXPIRED, SUPERSEDED, CONSUMED)

Kind = Literal["approve", "reject", "edit", "answer"]
STATUS_OF: Mapping[str, str] = {"approve": APPROVED, "reject": REJECTED, "edit": EDITED, "answer": ANSWERED}

BY_EXPIRY = "keel:expiry"
"""Who has decided where nobody did in time."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person has decided.

    Attributes:
        kind: `approve`, `reject`, `edit` or `answer`.
        by: Who decided, as the reviewer's program says; `keel:expiry` if nobody did in time, empty if a program
            resumed the graph by itself.
        at: ISO time.
        reason: Why, in the reviewer's words.
        args: The arguments that were approved: those asked about, or the reviewer's.
        value: With `answer`: what was answered.
    """

    kind: Kind
    by: str = ""
    at: str = ""
    reason: str = ""
    args: Any = None
    value: Any = None

    @property
    def approved(self) -> bool:
        """Whether the agent may act: with `args`, which the reviewer may have edited."""
        return self.kind in ("approve", "edit")


@dataclass(frozen=True, slots=True, repr=False)
class ApprovalRequest:
    """What a person is asked.

    Attributes:
        id: Its name: 24 hexadecimal digits, the same whenever the same question is asked again.
        thread_id: The thread that waits.
        checkpoint_id: The checkpoint whose step asks.
        task_id: The task that asks.
        interrupt_ids: LangGraph's names of the interrupts that have asked it, the last one is the one to answer; empty
            before the step has ended.
        action: What the agent wants to do: a tool's name, for instance; empty for a free question.
        args: With which arguments.
        value: What the interrupt carried, as plain data.
        schema: The JSON schema that its answer must fit, if it has one.
        status: One of `STATUSES`.
        asked_at: ISO time.
        description: For whoever decides.
        facts: What the decision rests on, as it was when it was asked.
        before: The facts that an earlier decision rested on; empty if there was none.
        earlier: That decision, with the id of its request.
        args_hash: Tells the arguments from all others.
        allowed: The decisions that may be made.
        approvers: Who may decide; empty for anybody.
        owner: Whose thread it is (`configurable["user_id"]`).
        expires_at: ISO time from which nobody may decide; `None` is never.
        on_expiry: What the agent gets then: a rejection (`reject`), or nothing, and it waits on (`wait`).
        claimed_by: Who is about to decide.
        claimed_until: ISO time.
        reminded_at: ISO time of the last reminder.
        decision: What was decided.
        part: Its place among the questions of one interrupt.
        parts: How many there are.
        history: What has happened to it, oldest first: plain data.
        audited: How many of those stand in the audit trail.
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

    def __repr__(self) -> str:
        """Say what is asked, in short: a list of requests is to be read."""
        asks = f"{self.action}({self.args!r:.200})" if self.action else f"{self.value!r:.200}"
        facts = f" on {self.facts!r:.200}" if self.facts else ""
        by = f" by {self.decision.by!r}" if self.decision and self.decision.by else ""
        return f"<approval {self.id} of thread {self.thread_id!r}: {asks}{facts}, {self.status}{by}>"

    @property
    def interrupt_id(self) -> str:
        """LangGraph's name of the interrupt to answer; empty if there is none yet."""
        return self.interrupt_ids[-1] if self.interrupt_ids else ""

    @property
    def is_settled(self) -> bool:
        """Whether an agent may go on as far as this request goes."""
        return self.on_expiry == "reject" if self.status == EXPIRED else self.status in (*DECIDED, CONSUMED)


def as_of(request: ApprovalRequest, now: str) -> ApprovalRequest:
    """Return a request as it is at a time: a claim that has run out is none, and what nobody decided has expired."""
    if request.status not in OPEN:
        return request
    if request.expires_at is not None and request.expires_at <= now:
        return replace(request, status=EXPIRED, decision=Decision("reject", BY_EXPIRY, request.expires_at))
    if request.status == CLAIMED and request.claimed_until <= now:
        return replace(request, status=WAITING, claimed_by="", claimed_until="")
    return request


def decided(request: ApprovalRequest, decision: Decision) -> ApprovalRequest:
    """Return a request with a decision; `request` is as it is at that time.

    Raises:
        AlreadyDecided: Somebody has decided, it has expired, or the thread went on without it.
        NotAllowed: This reviewer may not decide, another one is about to, or this is no decision it allows.
        InvalidInput: Nobody is named, or the edited arguments are no dict, as those that were asked about.
    """
    check_open(request)
    check_reviewer(request, decision.by)
    if decision.kind not in request.allowed:
        allowed = ", ".join(request.allowed)
        raise NotAllowed(
            f"approval {request.id} ({request.action or 'a question'}) allows {allowed}, not {decision.kind}"
        )
    if decision.kind == "edit" and isinstance(request.args, Mapping) and not isinstance(decision.args, Mapping):
        raise InvalidInput(f"args must be a dict with all arguments of {request.action}, not {decision.args!r:.80}")
    if decision.kind == "approve":
        decision = replace(decision, args=request.args)
    return replace(request, status=STATUS_OF[decision.kind], decision=decision, claimed_by="", claimed_until="")


def check_open(request: ApprovalRequest) -> None:
    """See that somebody may decide.

    Raises:
        AlreadyDecided: Nobody may, any more.
    """
    if request.status not in OPEN:
        raise AlreadyDecided(request.id, request.status, request.decision.by if request.decision else "")


def check_reviewer(request: ApprovalRequest, by: str) -> None:
    """See that a reviewer may decide.

    Raises:
        InvalidInput: Nobody is named.
        NotAllowed: Somebody else has to, or is about to.
    """
    if not isinstance(by, str) or not by.strip() or by.startswith("keel:"):
        raise InvalidInput(f"by must name who decides, as your program has authenticated them, not {by!r}")
    if request.approvers and by not in request.approvers:
        raise NotAllowed(f"approval {request.id}: {by!r} is not among its approvers ({', '.join(request.approvers)})")
    if request.status == CLAIMED and request.claimed_by != by:
        whose = f"{request.claimed_by!r} has claimed it until {request.claimed_until}"
        raise NotAllowed(f"approval {request.id}: {whose}; nothing was decided")
