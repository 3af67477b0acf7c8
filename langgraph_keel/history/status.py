"""The state of a thread, and the next step that is safe.

A run that is active, was stopped, failed or was killed leaves the same checkpoint, and so does a fork. So a thread is
`cut off` only if its process is known to be dead; otherwise the advice is to look.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypeAlias

from langgraph_keel.approvals.asked import find_questions, waiting_in
from langgraph_keel.approvals.plans import answers_of, find_open_requests
from langgraph_keel.approvals.requests import OPEN, ApprovalRequest
from langgraph_keel.display.text import count_of, one_line
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import BRANCHED_FROM, FORKED_FROM, REWOUND_TO, Status, unpack_header
from langgraph_keel.engine.leases import is_dead, this_holder
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Found
from langgraph_keel.engine.runs import find_acting
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore, ToolOutcomeUnknown, ValueRefused, short_key
from langgraph_keel.history.arrivals import has_arrived
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.reading import moments_of
from langgraph_keel.history.threads import Order, ThreadFilter, ThreadPages
from langgraph_keel.runs.claims import CLAIMED, ClaimRecord
from langgraph_keel.runs.hook import find_claim
from langgraph_keel.tools.copies import find_later
from langgraph_keel.tools.ledger import DONE, UNKNOWN, CallPages, KeptCall, is_doubt

_TEXT, _NAMED = 120, 3
"""Characters of an error, and calls in doubt, that a sentence names."""
_ALL = ThreadFilter()
_LEFT: tuple[Status, ...] = ("incomplete", "waiting", "failed")
"""The statuses of threads that have something left to do."""
_log = logging.getLogger(__name__)
_OPENED = re.compile(r"[\w.]+\(([\"']?)")

State: TypeAlias = Literal[
    "new", "idle", "runs", "waits", "decided", "failed", "forked", "rewound", "arrived", "unfinished", "cut off"
]
_LOOK = "look at what it has done first (`keel history`, `keel tools --unknown`)"


@publish
@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStatus:
    """Where a thread stands.

    Attributes:
        thread_id: The thread.
        state: `"new"`: it has no checkpoint, and takes its first input. `"idle"`: its last run has ended, and it takes
            new input. `"runs"`: a run of this process is in it, or one that has claimed it. `"waits"`: for persons.
            `"decided"`: its question is decided, and no run has taken the decision. `"failed"`: a task of its next step
            raised. `"forked"`, `"rewound"`, `"arrived"`: it became what it is by a fork, by a rewind, or by a copy or
            an import, has steps left, and nothing was added since. `"cut off"`: it has steps left, and the process of
            its last run is known to be dead. `"unfinished"`: it has steps left, and may be running, stopped, or cut
            off: a run without a claim, a breakpoint and a cancelled run cannot be told apart.
        can_go_on: Whether `graph.invoke(given, config)` may be called without a look at the thread: a decision waits
            for its run; or the run was cut off, the one before it was not, and no call of a tool is in doubt.
        given: If it can go on, what to invoke the graph with: `None`, or a `Command` with what was decided.
        updated_at: When its latest checkpoint was made, ISO time.
        next: The nodes that run next.
        requests: What is asked of persons at its latest checkpoint, by requests for approval.
        questions: How many interrupts are open, with requests or without.
        errors: What the tasks of the step failed with, but for the `ToolOutcomeUnknown` of a call that is settled.
        is_settled: Whether the step failed with nothing else: the next run acts on what was said of these calls.
        doubts: Calls of tools of which nobody knows how they ended: until they are settled, the next run raises
            `ToolOutcomeUnknown`, or asks. Not those that are made again by themselves (`ToolPolicy(unknown="retry")`).
        source: Of a fork with steps left, the thread that it was forked from.
        outlook: Of such a fork: which calls of tools a run makes again, and which it answers from its ledger; text.
        holder: Which process has the thread, if one runs: host, machine, process, and when that began.
    """

    thread_id: str
    state: State
    can_go_on: bool = field(default=False, repr=False)
    given: Any = None
    updated_at: str = ""
    next: tuple[str, ...] = ()
    requests: tuple[ApprovalRequest, ...] = ()
    questions: int = 0
    errors: tuple[str, ...] = ()
    is_settled: bool = field(default=False, repr=False)
    doubts: tuple[KeptCall, ...] = ()
    source: str = field(default="", repr=False)
    outlook: str = field(default="", repr=False)
    holder: str = ""

    def __str__(self) -> str:
        """Return the state and the next step, in a sentence or two."""
        said = f"thread {self.thread_id!r} {self._says()}."
        if not self.doubts:
            return said
        names = ", ".join(f"{each.tool} {short_key(each.key)}" for each in self.doubts[:_NAMED])
        more = f", and {len(self.doubts) - _NAMED:,} more" if len(self.doubts) > _NAMED else ""
        return (
            f"{said} {count_of(len(self.doubts), 'call')} of tools in doubt ({names}{more}): settle them first, as "
            "`keel tools --unknown` says."
        )

    def _says(self) -> str:
        resume = f"graph.invoke(saver.approvals.resume({self.thread_id!r}), config)"
        where = f" before {', '.join(self.next)}" if self.next else ""
        left = f"steps left{where}"
        ids = ", ".join(f"`keel approval {each.id}`" for each in self.requests if each.status in OPEN)
        questions = count_of(self.questions, "question")
        error = one_line(next(iter(self.errors), ""), _TEXT)
        if error.endswith("…") and (opened := _OPENED.match(self.errors[0])):
            error += f"{opened[1]})"  # such as `ValueError('no …')`
        again = resume if answers_of(self.requests) else "graph.invoke(None, config)"
        twice = f"so did that of the run before it; {_LOOK}. If its steps are safe to run, {again} runs them"
        rest = "calls of tools are in doubt" if self.doubts else twice
        if self.can_go_on:
            rest = f"{'graph.invoke(None, config)' if self.given is None else resume} runs the rest"
        unfinished = f"has {left}; it may be running, stopped, or cut off: {_LOOK}"
        if self.is_settled and not self.doubts:
            unfinished = f"has {left}, and what was in doubt is settled: graph.invoke(None, config) acts on it"
        return {
            "new": "has no checkpoint yet: it takes its first input",
            "idle": "is idle: it takes new input",
            "runs": f"is run by a process of {self.holder.partition('/')[0]}",
            "waits": "waits for a person: "
            + (ids or f"{questions} without a request: graph.invoke(Command(resume=...), config)"),
            "decided": f"was decided, and no run has gone on with it: {resume}",
            "failed": f"failed with {left} ({error}): {_LOOK}",
            "forked": f"is a fork of thread {self.source!r} with {left}, and has not run since: {self.outlook}",
            "rewound": f"was rewound, has {left}, and has not run since: a run does again what these steps did before, "
            "except for calls in its ledger of tools",
            "arrived": f"came from elsewhere with {left}, and has not run here. Its original may be running them, or "
            f"have done so: {_LOOK}",
            "cut off": f"was cut off{where}, as its process died: {rest}",
            "unfinished": unfinished,
        }[self.state]


def read_status(session: Session, thread_id: str) -> Plan[ThreadStatus]:
    """Read the state of a thread. Five trips, one for each request, and mostly one more. Nothing is written."""
    found = yield from session.store.read_entry(Address(thread_id))
    moments = (yield from moments_of(session, [found.entry], is_brief=True)) if found else ()
    moment = moments[0] if moments else None
    claim, is_over = yield from find_claim(session, thread_id)
    open_ = yield from find_open_requests(session, thread_id)
    requests = tuple(each for each in open_ if moment and each.checkpoint_id == moment.address.checkpoint_id)
    answers = answers_of(requests)
    questions = (yield from _count_questions(session, found, moment)) if moment and found else 0
    calls: list[KeptCall] = []  # those in doubt, or that were until a person settled them
    kept = set[str]()  # the tools of the next step whose results are in the ledger
    pages = CallPages(session, thread_id)
    while (page := (yield from pages.next())) is not None:
        calls += [call for call in page if call.state == UNKNOWN or call.decided]
        kept |= {call.tool for call in page if moment and (call.state, call.checkpoint_id) == (DONE, moment.id)}
    doubts = tuple(call for call in calls if is_doubt(call))
    # The error of a call in doubt counts until that is settled.
    settled = [f"`keel settle {short_key(call.key)} " for call in calls if call.state != UNKNOWN]
    errors = tuple(
        error
        for error in (moment.errors if moment else ())
        if not (error.startswith(ToolOutcomeUnknown.__name__) and any(each in error for each in settled))
    )
    # One that only asks has claimed the thread before its question; any other one is at the step, or was.
    run = claim if claim is not None and claim.until and _goes_on(claim, requests) else None
    if run and is_over and run.holder == this_holder():
        run = None  # its run has ended, and its release is on its way
    # A run of this process that has asked is in the thread, too; if it is at no later checkpoint, the thread waits.
    head, is_asked = moment.address.checkpoint_id if moment else None, questions and not answers
    is_here = any(not is_asked or each.began_at == head for each in find_acting(session.store, thread_id))
    if (run and is_over is False) or is_here:
        state: State = "runs"
    elif moment is None or found is None:
        state = "new"
    elif is_asked:
        state = "waits"
    elif not (answers or moment.next or moment.pending or moment.errors):
        state = "idle"
    elif errors:
        state = "failed"
    elif run and is_dead(run.holder) and (answers or _was_claimed(session, found.entry)):
        state = "cut off"
    elif (yield from has_arrived(session, moment.address)):
        state = "arrived"
    elif answers and not run:
        state = "decided"
    else:
        state = _moved(moment)
    forked_from = moment.metadata[FORKED_FROM] if moment and state == "forked" else {}
    source = str(forked_from.get("thread_id", ""))
    outlook = (yield from _look_ahead(session, thread_id, source, kept)) if source else ""
    can_go_on = state == "decided" or (state == "cut off" and run is not None and not (doubts or run.deaths))
    given: Any = None
    if can_go_on and answers:
        from langgraph.types import Command

        given = Command(resume=dict(answers))
    return ThreadStatus(
        thread_id=thread_id,
        state=state,
        can_go_on=can_go_on,
        given=given,
        updated_at=moment.time.isoformat() if moment and moment.time else "",
        next=moment.next if moment else (),
        requests=requests,
        questions=questions,
        errors=errors,
        is_settled=bool(moment and moment.errors and not errors),
        doubts=doubts,
        source=source,
        outlook=outlook,
        holder=(run.holder if run and is_over is False else this_holder()) if state == "runs" else "",
    )


def _look_ahead(session: Session, thread_id: str, source: str, kept: Set[str]) -> Plan[str]:
    """Return what a run of a fork does about calls of tools. One trip a page of both ledgers, and mostly one more."""
    later = sorted({call.tool for call in (yield from find_later(session, source, thread_id))})
    answered = f", answers calls of tools from its ledger ({', '.join(sorted(kept))})" if kept else ""
    again = f"; the ledger has no call of a tool that {source!r} made after this point"
    if later:
        again = f", and calls again what {source!r} has called after this point: {', '.join(later)}"
        again += f" (`keel tools {shlex.quote(source)}`)"
    elif (yield from session.store.read_entry(Address(source))) is None:
        again = f"; {source!r} was deleted, so nothing says which tools it called after this point"
    return f"a run does these steps again{answered}{again}"


def _moved(moment: Moment) -> State:
    """Return whether a fork or a rewind made a checkpoint, which also has the marks of those before it."""
    source = moment.metadata.get(FORKED_FROM)
    if isinstance(source, Mapping) and source.get("checkpoint_id") == moment.address.checkpoint_id:
        return "forked"
    return "unfinished" if moment.metadata.keys().isdisjoint((REWOUND_TO, BRANCHED_FROM)) else "rewound"


def _count_questions(session: Session, head: Found, moment: Moment) -> Plan[int]:
    """Return the number of open questions. Two trips if a subgraph may have taken the answer to one, else none."""
    if not moment.interrupts:
        return 0
    try:
        asked = yield from find_questions(session, head, {})
    except ValueRefused:
        return len(moment.interrupts)  # of classes of the application, which this process does not know
    # Placeholders name no question.
    return sum(1 for _ in waiting_in(asked)) if asked else len(moment.interrupts)


def _was_claimed(session: Session, head: Entry) -> bool:
    """Return whether the run that put a checkpoint had a claim; else it may be active beside an older claim."""
    return CLAIMED in unpack_header(head.header, session.codec, head.address).about


def _goes_on(claim: ClaimRecord, requests: Sequence[ApprovalRequest]) -> bool:
    """Return whether a run that has the thread goes on from its questions: one that only asks claims it before."""
    since = datetime.fromisoformat(claim.since)
    return all(since > datetime.fromisoformat(each.asked_at) for each in requests)


class UnfinishedThreads:
    """Reads the states of the threads that are not idle, as the index of threads names them."""

    def __init__(self, session: Session, wanted: ThreadFilter = _ALL, order: Order = "newest") -> None:
        self._session, self._wanted, self._order = session, wanted, order
        self._names: Iterator[str] | None = None

    def next(self) -> Plan[Sequence[ThreadStatus] | None]:
        """Return the next one, as a page; `None` at the end. One that cannot be read is logged, and passed over."""
        if self._names is None:
            self._names = iter((yield from self._list()))
        for name in self._names:
            try:
                status = yield from read_status(self._session, name)
            except CorruptStore as error:
                _log.warning("an unfinished thread is passed over: %s", error)
                continue
            if status.state not in ("new", "idle"):  # else it was deleted, or came to its end, since it was listed
                return (status,)
        return None

    def _list(self) -> Plan[Sequence[str]]:
        """Name the threads. Two trips for each 500 of them, and at least one for each status."""
        found: dict[str, str] = {}
        for status in _LEFT if self._wanted.status is None else {*_LEFT} & {self._wanted.status}:
            pages = ThreadPages(self._session, None, replace(self._wanted, status=status), order=self._order)
            while (page := (yield from pages.next())) is not None:
                found.update((info.thread_id, info.updated_at) for info in page)
        return sorted(found, key=lambda name: (found[name], name), reverse=self._order == "newest")
