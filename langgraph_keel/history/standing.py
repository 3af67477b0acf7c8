"""Where a thread stands, and how it goes on: after a crash, four situations need four different calls.

LangGraph's `get_state().next` does not tell them apart: after a kill between the writes of a step and its checkpoint it
is empty, though `invoke(None)` would go on, and new input would drop what the step has done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from langgraph_keel.approvals.plans import answers_of, find_open_requests
from langgraph_keel.approvals.requests import OPEN, ApprovalRequest
from langgraph_keel.approvals.run_claims import ClaimRecord, find_claim
from langgraph_keel.display.text import count_of, one_line
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import PAGE
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import ToolOutcomeUnknown, short_key
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.reading import moments_of
from langgraph_keel.tools.ledger import UNKNOWN, KeptCall, calls_of, is_doubt, shelf_of

_TEXT, _NAMED = 120, 3
"""Characters of an error, and calls in doubt, that a sentence names."""
_OPENED = re.compile(r"[\w.]+\(([\"']?)")

State: TypeAlias = Literal["new", "idle", "cut off", "waits", "decided", "runs"]


@publish
@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a thread stands.

    Attributes:
        thread_id: The thread.
        state: `"new"`: it has no checkpoint, and takes its first input. `"idle"`: its last run has ended, and it takes
            new input. `"cut off"`: a run ended in the middle; given `None`, the graph goes on. `"waits"`: for persons.
            `"decided"`: what a task has asked is decided, and no run has gone on with it. `"runs"`: a run goes on from
            a question, or has its turn (`on_busy="wait"`); other runs claim nothing, so what they do looks cut off as
            long as they do it.
        given: What to invoke the graph with so that it goes on: `None`, or a `Command` with what was decided.
        updated_at: When its latest checkpoint was made, ISO time.
        next: The nodes that run next.
        requests: What is asked of persons at its latest checkpoint, by requests for approval.
        questions: How many interrupts are open, with requests or without.
        errors: What the tasks of the step failed with, but for the `ToolOutcomeUnknown` of a call that is settled.
        doubts: Calls of tools of which nobody knows how they ended: until they are settled, the next run raises
            `ToolOutcomeUnknown`, or asks. Not those that are made again by themselves (`ToolPolicy(unknown="retry")`).
        holder: Which process has the thread, if one runs: host, machine, process, and when that began.
    """

    thread_id: str
    state: State
    given: Any = None
    updated_at: str = ""
    next: tuple[str, ...] = ()
    requests: tuple[ApprovalRequest, ...] = ()
    questions: int = 0
    errors: tuple[str, ...] = ()
    doubts: tuple[KeptCall, ...] = ()
    holder: str = ""

    @property
    def can_go_on(self) -> bool:
        """Whether `graph.invoke(given, config)` goes on from here."""
        return self.state in ("cut off", "decided")

    def __str__(self) -> str:
        """Return what is so, and what to do, in a sentence or two."""
        return f"thread {self.thread_id!r} {self._says()}.{self._says_of_doubts()}"

    def _says(self) -> str:
        if self.state == "new":
            return "has no checkpoint yet: it takes its first input"
        if self.state == "idle":
            return "is idle: it takes new input"
        if self.state == "runs":
            return f"is run by a process of {self.holder.partition('/')[0]}"
        if self.state == "decided":
            given = f"saver.approvals.resume({self.thread_id!r})"
            return f"was decided, and no run has gone on with it: graph.invoke({given}, config)"
        if self.state == "waits":
            ids = ", ".join(f"`keel approval {each.id}`" for each in self.requests if each.status in OPEN)
            asked = (
                f"{count_of(self.questions, 'question')} without a request: graph.invoke(Command(resume=...), config)"
            )
            return f"waits for a person: {ids or asked}"
        where = f" before {', '.join(self.next)}" if self.next else ", with what its step has done"
        failed = f" ({_shorten(self.errors[0])})" if self.errors else ""
        return f"was cut off{where}{failed}: invoke the graph with None"

    def _says_of_doubts(self) -> str:
        if not self.doubts:
            return ""
        names = ", ".join(f"{each.tool} {short_key(each.key)}" for each in self.doubts[:_NAMED])
        more = f", and {len(self.doubts) - _NAMED:,} more" if len(self.doubts) > _NAMED else ""
        return (
            f" {count_of(len(self.doubts), 'call')} of tools in doubt ({names}{more}): settle them first, as "
            "`keel tools --unknown` says."
        )


def _shorten(error: str) -> str:
    """Return the start of what is written of an error, such as `ValueError('no …')`: what was opened is closed."""
    shown = one_line(error, _TEXT)
    if not shown.endswith("…"):
        return shown
    opened = _OPENED.match(error)
    return shown + (f"{opened[1]})" if opened else "")


def read_standing(session: Session, thread_id: str) -> Plan[Standing]:
    """Return where a thread stands. Five trips, and one for each request. Nothing is written.

    Raises:
        CorruptStore: Its latest checkpoint cannot be read.
    """
    found = yield from session.store.read_entry(Address(thread_id))
    moments = (yield from moments_of(session, [found.entry], is_brief=True)) if found else ()
    moment = moments[0] if moments else None
    claim = yield from find_claim(session, thread_id)
    open_ = yield from find_open_requests(session, thread_id)
    requests = tuple(each for each in open_ if moment and each.checkpoint_id == moment.address.checkpoint_id)
    answers = answers_of(requests)
    calls = yield from _read_calls(session, thread_id)
    is_run = claim is not None and _goes_on(claim, requests)
    state = "runs" if is_run else _state_of(moment, bool(answers))
    return Standing(
        thread_id=thread_id,
        state=state,
        given=_command(answers) if state == "decided" else None,
        updated_at=moment.time.isoformat() if moment and moment.time else "",
        next=moment.next if moment else (),
        requests=requests,
        questions=len(moment.interrupts) if moment else 0,
        errors=tuple(_open_errors(moment.errors, calls)) if moment else (),
        doubts=tuple(call for call in calls if is_doubt(call)),
        holder=claim.holder if claim and is_run else "",
    )


def _state_of(moment: Moment | None, is_decided: bool) -> State:
    if moment is None:
        return "new"
    if is_decided:
        return "decided"
    if moment.interrupts:
        return "waits"
    return "cut off" if moment.next or moment.pending or moment.errors else "idle"


def _goes_on(claim: ClaimRecord, requests: Sequence[ApprovalRequest]) -> bool:
    """Return whether a run that has the thread goes on from its questions: one that only asks claims it before."""
    since = datetime.fromisoformat(claim.since)
    return all(since > datetime.fromisoformat(each.asked_at) for each in requests)


def _command(answers: Mapping[str, Any]) -> Any:
    from langgraph.types import Command

    return Command(resume=dict(answers))


def _read_calls(session: Session, thread_id: str) -> Plan[Sequence[KeptCall]]:
    """Return the calls of a thread that are in doubt, or were until a person settled them."""
    found: list[KeptCall] = []
    page = yield from calls_of(session, shelf_of(thread_id), None, PAGE)
    while page:
        found += [call for call in page if call.state == UNKNOWN or call.decided]
        full = len(page) == PAGE
        page = (yield from calls_of(session, shelf_of(thread_id), page[-1].key, PAGE)) if full else ()
    return found


def _open_errors(errors: Sequence[str], calls: Sequence[KeptCall]) -> Iterator[str]:
    """Yield what tasks failed with, but for each `ToolOutcomeUnknown` whose call is settled since."""
    settled = [f"`keel settle {short_key(call.key)} " for call in calls if call.state != UNKNOWN]
    for error in errors:
        if not (error.startswith(ToolOutcomeUnknown.__name__) and any(each in error for each in settled)):
            yield error


class UnfinishedPages:
    """Reads which threads are not idle, page by page, last activity first."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._after: tuple[str, str] | None = None

    def next(self) -> Plan[Sequence[Standing] | None]:
        """Return those among the next threads; `None` if there are no more threads."""
        page = yield from self._session.store.show_threads(self._after, PAGE)
        if not page:
            return None
        self._after = page[-1][0].updated_at, page[-1][0].thread_id
        found: list[Standing] = []
        for info, _ in page:
            found.append((yield from read_standing(self._session, info.thread_id)))
        return [each for each in found if each.state not in ("new", "idle")]  # new: deleted meanwhile
