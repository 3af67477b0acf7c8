"""The state of a thread, and the next safe step.

Active, stopped, failed and killed runs leave the same checkpoint, and so does a fork. Savers with `recoverable=True`
distinguish them (`runs.marks`). Without it, a thread is `cut off` only if its process is known to be dead; otherwise
the advice is to look at its history.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypeAlias

from langgraph_keel.approvals.arrivals import has_arrived
from langgraph_keel.approvals.asked import find_questions, waiting_in
from langgraph_keel.approvals.plans import answers_of, find_open_requests, is_overtaken, settled_in, with_warnings
from langgraph_keel.approvals.requests import CURRENT, OPEN, ApprovalRequest, Approvals
from langgraph_keel.display.text import count_of, one_line
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import BRANCHED_FROM, FORKED_FROM, REWOUND_TO, Status, unpack_header
from langgraph_keel.engine.leases import is_dead, this_holder
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Found, ThreadInfo
from langgraph_keel.engine.runs import find_acting
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import (
    CorruptStore,
    ThreadTaken,
    ThreadUnfinished,
    ToolOutcomeUnknown,
    ValueRefused,
    short_key,
)
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.reading import moment_of_head, read_heads
from langgraph_keel.history.threads import Order, ThreadFilter, ThreadPages
from langgraph_keel.runs.claims import CLAIMED, ClaimRecord
from langgraph_keel.runs.hook import judge_claim
from langgraph_keel.runs.marks import Processes, judge_run, mark_in
from langgraph_keel.tools.copies import find_kin, find_later
from langgraph_keel.tools.ledger import DONE, UNKNOWN, CallPages, KeptCall, is_doubt

_TEXT, _NAMED = 120, 3
"""Maximum characters of an error, and calls in doubt, in a sentence."""
_ALL = ThreadFilter()
_LEFT: tuple[Status, ...] = ("incomplete", "waiting", "failed")
"""The statuses of threads that are not finished."""
_log = logging.getLogger(__name__)
_OPENED = re.compile(r"[\w.]+\(([\"']?)")

State: TypeAlias = Literal[
    "new",
    "idle",
    "runs",
    "waits",
    "decided",
    "failed",
    "forked",
    "rewound",
    "arrived",
    "unfinished",
    "cut off",
    "stopped",
]
_LOOK = "look at its history first (`keel history`, `keel tools --unknown`)"
_STOPPED = {
    "breakpoint": "stopped at a breakpoint{where}: graph.invoke(None, config) passes it",
    "cancelled": f"was cancelled{{where}}: {_LOOK}",
    "failed": f"stopped{{where}} with an error that belongs to no step: {_LOOK}",
    "updated": f"was updated, has {{left}}, and has not run since: {_LOOK}",
    "drained": "was drained{where}: {rest}",
    "accepted": "has input that was accepted, and has not run since: {rest}",
}
_GOES_ON = ("drained", "accepted")
"""The reasons of a stop after which any process may continue the thread."""


@publish
@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStatus:
    """The status of a thread.

    Attributes:
        thread_id: The thread.
        state: `"new"`: it has no checkpoint, and takes its first input. `"idle"`: its last run has finished, and it
            takes new input. `"runs"`: a run of this process is in it, or a run that has claimed it, or a run that has
            marked its latest checkpoint (`recoverable=True`) and whose process is alive. `"waits"`: it waits for a
            person. `"decided"`: its question is decided, and no run has used the decision. `"failed"`: a task of its
            next step raised. `"forked"`, `"rewound"`, `"arrived"`: it is a fork, was rewound, or was copied or
            imported; it has steps left, and nothing was added since except a decision. `"cut off"`: it has steps left,
            and the process of its last run is known to be dead, or lost its store. `"stopped"`: its last run has ended
            with steps left, for the reason in `stopped`. `"unfinished"`: it has steps left, and may be running,
            stopped, or cut off. With `recoverable=True`, this is only returned for a process of another machine, until
            a saver has watched its heartbeat for a lease (30 seconds); without it, for each run that has no claim.
        can_go_on: Whether `graph.invoke(given, config)` is safe without a look at the thread. No tool call may have an
            unknown outcome. Either it has an unused decision, and no fork or copy has acted on the same one since
            (`ApprovalRequest.warnings`). Or the run was drained, or its input was accepted, or it was cut off and the
            run before it was not.
        given: The input to resume the graph with, if it can resume, or after you have looked at it: `None`, or a
            `Command` with the decisions.
        checkpoint_id: Its latest checkpoint; empty if it has none.
        updated_at: When its latest checkpoint was made, ISO time.
        next: The nodes that run next.
        requests: The requests for approval of its latest checkpoint.
        questions: Number of open interrupts, with requests or without.
        errors: The errors of the step's tasks, except the `ToolOutcomeUnknown` of a settled call.
        is_settled: Whether the step failed only with calls that are settled now: the next run uses their outcomes.
        doubts: Tool calls with an unknown outcome. Until they are settled, the next run raises `ToolOutcomeUnknown`, or
            asks. Calls that are retried automatically (`ToolPolicy(unknown="retry")`) are not included.
        source: For a fork with steps left, the original thread.
        outlook: For such a fork, a text: the tool calls that a run repeats, and those whose stored results it uses. For
            a failed thread that was copied or imported: that its original may have run.
        holder: The process that runs the thread, or may run it: host, machine, process, and start time of the process.
        since: If it runs, the time of the claim, or of the start of its current step: ISO time, by the clock of that
            process.
        stopped: Why its last run has ended, if recorded: `"breakpoint"`, `"cancelled"`, `"drained"` or `"accepted"`;
            `"failed"`: an error outside of its tasks; `"unreachable"`: an error of the store; `"updated"`: its latest
            checkpoint was stored by `update_state`.
    """

    thread_id: str
    state: State
    can_go_on: bool = field(default=False, repr=False)
    given: Any = None
    checkpoint_id: str = field(default="", repr=False)
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
    since: str = field(default="", repr=False)
    stopped: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Return the state and the next step, in one or two sentences."""
        said = f"thread {self.thread_id!r} {self._says()}."
        if self.state in ("waits", "decided"):
            said = " ".join((said, *dict.fromkeys(each for request in self.requests for each in request.warnings)))
        if not self.doubts:
            return said
        names = ", ".join(f"{each.tool} {short_key(each.key)}" for each in self.doubts[:_NAMED])
        more = f", and {len(self.doubts) - _NAMED:,} more" if len(self.doubts) > _NAMED else ""
        return (
            f"{said} {count_of(len(self.doubts), 'tool call')} with unknown outcome ({names}{more}): settle them "
            "first, see `keel tools --unknown`."
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
        again = "graph.invoke(None, config)" if self.given is None else resume
        twice = f"so was the run before it; {_LOOK}. If its steps are safe to run, {again} runs them"
        rest = "the outcome of tool calls is unknown" if self.doubts else twice
        if self.can_go_on:
            rest = f"{'graph.invoke(None, config)' if self.given is None else resume} runs the rest"
        lost = "run could not reach the store" if self.stopped else "process died"
        since, host = f" since {self.since}" if self.since else "", self.holder.partition("/")[0]
        if self.since == self.updated_at:  # no claim: its start is not stored
            since = f"; its latest checkpoint is of {self.since}" if self.since else ""
        unfinished = f"has {left}; it may be running, stopped, or cut off: {_LOOK}"
        if self.holder:
            unfinished = f"has {left}; whether its process on {host} is alive is not known yet: ask again in 30 seconds"
        is_settled = self.is_settled and not self.doubts
        if is_settled:
            unfinished = f"has {left}, and its unknown tool calls are settled: graph.invoke(None, config) continues"
        return {
            "new": "has no checkpoint yet: it takes its first input",
            "idle": "is idle: it takes new input",
            "runs": f"is running in a process on {host}{since}",
            "waits": "waits for a person: "
            + (ids or f"{questions} without a request: graph.invoke(Command(resume=...), config)"),
            "decided": "was decided, and "
            + ("its unknown tool calls are settled: " if is_settled else "no run has used the decision yet: ")
            + (resume if self.can_go_on else f"{_LOOK}. If it should still be done, {resume} does it"),
            "failed": f"failed with {left} ({error}): look at its history and its calls first (`keel history`, "
            "`keel tools`); a tool that raised an error may have acted before" + self.outlook,
            "forked": f"is a fork of thread {self.source!r} with {left}, and has not run since: {self.outlook}",
            "rewound": f"was rewound, has {left}, and has not run since: a run repeats these steps, except for tool "
            "calls whose stored results used no person's answer",
            "arrived": f"was copied or imported with {left}, and has not run here. Its original may be running them, "
            "or may have run them: look at the original first, in its own store (`keel history`, `keel tools`)"
            + (f". A decision made there is not used here automatically: {resume} uses it" if self.given else ""),
            "cut off": f"was cut off{where}, as its {lost}: {rest}",
            "stopped": _STOPPED.get(self.stopped, "").format(where=where, left=left, rest=rest),
            "unfinished": unfinished,
        }[self.state]


def read_status(session: Session, thread_id: str) -> Plan[ThreadStatus]:
    """Read the state of a thread. Nothing is written.

    Four trips, four for each request, and usually one more; up to three more if the thread has steps left and a mark.
    """
    while True:
        found = yield from session.store.read_entry(Address(thread_id))
        status = yield from _judge(session, thread_id, found, True, {})
        if status is not None:
            return status


def check_takes_input(session: Session, thread_id: str) -> Plan[None]:
    """Raise `ThreadTaken` if a thread runs, `ThreadUnfinished` if it has steps left."""
    status = yield from read_status(session, thread_id)
    if status.state == "runs":
        raise ThreadTaken(thread_id, status.holder, status.since)
    if status.state not in ("new", "idle"):
        raise ThreadUnfinished(thread_id, status.next, status.questions > 0)


def _judge(
    session: Session, thread_id: str, found: Found | None, may_ask: bool, processes: Processes
) -> Plan[ThreadStatus | None]:
    """Return the state of a thread with this latest checkpoint.

    Returns `None` if another checkpoint was stored concurrently and changes the verdict. `may_ask` is whether the
    thread may have open requests.
    """
    moment = moment_of_head(session, found) if found else None
    claim, is_over = yield from judge_claim(session, thread_id)
    open_ = (yield from find_open_requests(session, thread_id)) if may_ask else ()
    requests: tuple[ApprovalRequest, ...] = ()
    for each in open_:
        if moment and each.checkpoint_id == moment.address.checkpoint_id:
            requests += ((yield from with_warnings(session, each)),)
    # A run may die between its request and its question: the next run asks again, and then it can be answered.
    answers = answers_of(requests) if moment and moment.asked else {}
    questions = (yield from _count_questions(session, found, moment)) if moment and found else 0
    calls: list[KeptCall] = []  # calls in doubt, and those that a person has settled
    kept = set[str]()  # tools of the next step whose results are in the ledger
    pages = CallPages(session, thread_id)
    while (page := (yield from pages.next())) is not None:
        calls += [call for call in page if call.state == UNKNOWN or call.decided]
        kept |= {call.tool for call in page if moment and (call.state, call.checkpoint_id) == (DONE, moment.id)}
    doubts = tuple(call for call in calls if is_doubt(call))
    # The error of a call in doubt counts until the call is settled.
    settled = [f"`keel settle {short_key(call.key)} " for call in calls if call.state != UNKNOWN]
    errors = tuple(
        error
        for error in (moment.errors if moment else ())
        if not (error.startswith(ToolOutcomeUnknown.__name__) and any(each in error for each in settled))
    )
    # A run that only asks has claimed the thread before its question; any other run is at the step, or was.
    run = claim.record if claim is not None and claim.record.until and _goes_on(claim.record, requests) else None
    if run and is_over and run.holder == this_holder():
        run = None  # its run has ended, and is about to release its claim
    # A run of this process that has asked is also in the thread; unless it is at a later checkpoint, the thread waits.
    head, is_asked = moment.address.checkpoint_id if moment else None, questions and not answers
    is_here = any(not is_asked or each.began_at == head for each in find_acting(session.store, thread_id))
    about = unpack_header(found.entry.header, session.codec, found.entry.address).about if found else {}
    is_run, verdict = run is not None and is_over is False, None
    if is_run or is_here:
        state: State = "runs"
    elif moment is None or found is None:
        state = "new"
    elif is_asked:
        state = "waits"
    elif not (answers or moment.next or moment.pending or moment.errors):
        state = "idle"
    elif errors:
        state = "failed"
    elif run and is_over and moment.asked and not answers:
        state = "cut off"  # the run that resumed the thread has stored its answer, and died before its next checkpoint
    elif run and is_dead(run.holder) and (answers or (CLAIMED in about and mark_in(about) is None)):
        state = "cut off"  # if the head was stored without a claim, its run may be active despite an older claim
    elif (yield from has_arrived(session, thread_id, head, settled_in(requests))):
        state = "arrived"
    elif answers and not run:
        state = "decided"
    elif (state := _moved(moment)) == "unfinished" and not (answers or moment.asked or moment.errors):
        verdict = yield from judge_run(session, moment.address, about, claim if run else None, is_over, processes)
        if verdict is not None:
            state = verdict.state
    forked_from = moment.metadata[FORKED_FROM] if moment and state == "forked" else {}
    source = str(forked_from.get("thread_id", ""))
    outlook = (yield from _look_ahead(session, thread_id, source, kept)) if source else ""
    if state == "failed" and (yield from has_arrived(session, thread_id, head, settled_in(requests))):
        outlook = ". It was copied or imported here, and its original may have run these steps: look there, too"
    goes_on = state == "cut off" or (verdict is not None and verdict.why in _GOES_ON)
    deaths = (run.deaths if run else 0) + (verdict.is_second if verdict else 0)
    is_current = not any(is_overtaken(each) for each in requests)
    can_go_on = not doubts and ((state == "decided" and is_current) or (goes_on and not deaths))
    if verdict and goes_on and (yield from _has_moved(session, moment)):
        return None
    holder = verdict.holder if verdict else ""
    if state == "runs" and not verdict:
        holder = run.holder if run and is_run else this_holder()
    updated_at = moment.time.isoformat() if moment and moment.time else ""
    given: Any = None
    if answers:
        from langgraph.types import Command

        given = Command(resume=dict(answers))
    return ThreadStatus(
        thread_id=thread_id,
        state=state,
        can_go_on=can_go_on,
        given=given,
        checkpoint_id=head or "",
        updated_at=updated_at,
        next=moment.next if moment else (),
        requests=requests,
        questions=questions,
        errors=errors,
        is_settled=bool(moment and moment.errors and not errors),
        doubts=doubts,
        source=source,
        outlook=outlook,
        holder=holder,
        since=(run.since if run and is_run else updated_at) if state == "runs" else "",
        stopped=verdict.why if verdict else "",
    )


def _has_moved(session: Session, moment: Moment | None) -> Plan[bool]:
    """Return whether a thread has a newer latest checkpoint. One trip."""
    # Its process may have stored one, stopped there and ended during the judgement.
    assert moment is not None, "a thread with a verdict has a checkpoint"
    now = yield from session.store.read_entry(Address(moment.address.thread_id))
    return now is None or now.entry.address != moment.address


def _look_ahead(session: Session, thread_id: str, source: str, kept: Set[str]) -> Plan[str]:
    """Describe the tools that a run of a fork calls again.

    Two trips, and two or more for each thread of its family.
    """
    later: dict[str, set[str]] = {}
    kin = yield from find_kin(session, thread_id)
    for name in sorted(kin, key=lambda name: name != source):
        for call in (yield from find_later(session, name, thread_id)):
            later.setdefault(name, set()).add(call.tool)
    answered = f", uses the stored results of tool calls ({', '.join(sorted(kept))})" if kept else ""
    called = [
        f"{name!r} called after this point: {', '.join(sorted(tools))} (`keel tools {shlex.quote(name)}`)"
        for name, tools in later.items()
    ]
    again = f", and calls again the tools that {'; those that '.join(called)}" if later else ""
    if source not in kin:
        again += f"; {source!r} was deleted, so its tool calls after this point are unknown"
    elif not later:
        again = f"; no tool calls of {source!r} after this point are known"
    return f"a run repeats these steps{answered}{again}"


def _moved(moment: Moment) -> State:
    """Return whether a fork or a rewind made a checkpoint."""
    source = moment.metadata.get(FORKED_FROM)  # later checkpoints inherit this mark
    if isinstance(source, Mapping) and source.get("checkpoint_id") == moment.address.checkpoint_id:
        return "forked"
    return "unfinished" if moment.metadata.keys().isdisjoint((REWOUND_TO, BRANCHED_FROM)) else "rewound"


def _count_questions(session: Session, head: Found, moment: Moment) -> Plan[int]:
    """Return the number of open questions.

    Two trips if a subgraph may have received the answer to one, else none.
    """
    if not moment.interrupts:
        return 0
    try:
        asked = yield from find_questions(session, head, {})
    except ValueRefused:
        return len(moment.interrupts)  # of classes of the application, which this process does not know
    # Placeholders name no question.
    return sum(1 for _ in waiting_in(asked)) if asked else len(moment.interrupts)


def _goes_on(claim: ClaimRecord, requests: Sequence[ApprovalRequest]) -> bool:
    """Return whether a run has claimed the thread after its questions were asked."""
    since = datetime.fromisoformat(claim.since)
    return all(since > datetime.fromisoformat(each.asked_at) for each in requests)


class UnfinishedThreads:
    """Reads the states of threads that are not idle, found in the index of threads."""

    def __init__(self, session: Session, wanted: ThreadFilter = _ALL, order: Order = "newest") -> None:
        self._session, self._order = session, order
        statuses = [status for status in _LEFT if wanted.status in (None, status)]
        self._lists = [
            _Listed(session, ThreadPages(session, None, replace(wanted, status=status), order=order))
            for status in statuses
        ]
        self._seen: set[str] = set()
        self._asking: Collection[str] | None = None  # the threads with requests that are not closed
        self._processes: Processes = {}

    def next(self) -> Plan[Sequence[ThreadStatus] | None]:
        """Return the next thread, as a page; `None` at the end.

        Unreadable threads are logged and skipped. Three trips for each page of threads, and three or more for each
        thread.
        """
        if self._asking is None:
            self._asking = {held.request.thread_id for held in (yield from Approvals(self._session).all(CURRENT))}
        while True:
            for each in self._lists:
                yield from each.fill()
            choose = max if self._order == "newest" else min
            left = [each for each in self._lists if each.rows]
            if not left:
                return None
            info, found = choose(left, key=lambda each: (each.rows[0][0].updated_at, each.rows[0][0].thread_id)).take()
            if info.thread_id in self._seen:  # its status changed while it was listed
                continue
            self._seen.add(info.thread_id)
            try:
                status = yield from self._read(info.thread_id, found)
            except CorruptStore as error:
                _log.warning("skipping an unfinished thread: %s", error)
                continue
            if status.state not in ("new", "idle"):  # else it was deleted or has finished since it was listed
                return (status,)

    def _read(self, thread_id: str, found: Found | None) -> Plan[ThreadStatus]:
        status = None
        if found is not None:
            may_ask = thread_id in (self._asking or ())
            status = yield from _judge(self._session, thread_id, found, may_ask, self._processes)
        return status or (yield from read_status(self._session, thread_id))


class _Listed:
    """The threads of one status with their latest checkpoints, read page by page."""

    def __init__(self, session: Session, pages: ThreadPages) -> None:
        self._session, self._pages = session, pages
        self._is_whole = False
        self.rows: list[tuple[ThreadInfo, Found | None]] = []

    def fill(self) -> Plan[None]:
        """Read the next page if the last one is used up. Three trips, or none."""
        while not (self.rows or self._is_whole):
            page = yield from self._pages.next()
            self._is_whole = page is None
            heads = [self._pages.heads[info.thread_id] for info in page or () if info.thread_id in self._pages.heads]
            found = yield from read_heads(self._session, heads)
            self.rows = [(info, found.get(info.thread_id)) for info in page or ()]

    def take(self) -> tuple[ThreadInfo, Found | None]:
        """Remove and return the first thread."""
        return self.rows.pop(0)
