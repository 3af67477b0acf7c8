"""`saver.approvals`: requests and their decisions, as a table in notebooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig

from langgraph_keel.approvals import plans
from langgraph_keel.approvals.checks import time_after
from langgraph_keel.approvals.notices import Bell
from langgraph_keel.approvals.requests import (
    CLOSED,
    CURRENT,
    DECIDED,
    OPEN,
    OVER,
    STATUSES,
    SUPERSEDED,
    ApprovalRequest,
    Approvals,
    Decision,
    KeptRequest,
    request_at,
)
from langgraph_keel.display.html import FAINT, PAGE, SMALL, cell, chip, code, head, table, tag, text
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import one_line, represent
from langgraph_keel.engine.audit import AuditEvent, AuditVerdict, read_events, verify
from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.engine import Engine
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.faces import faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import checked_limit
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langgraph.types import Command

    from langgraph_keel.runs.worker import Resumed, Worker

SHORT = 12
"""Displayed digits of an id: 8 of the thread, and 4 of the request."""
_NAMES = ("request", "thread", "what the agent asks", "facts", "status")
_WAITS, _DONE, _OVER = ("230,140,20", ".28"), ("47,159,79", ".24"), ("127,127,127", ".18")


class Requests(list[ApprovalRequest]):
    """Requests for approval: a list, and a table in a notebook."""

    def _repr_html_(self) -> str:
        if not self:
            return tag("div", "no requests", style=FAINT)
        return tag("div", table(head(_NAMES), tag("tbody", *map(_row, self))), style=PAGE)


def _row(request: ApprovalRequest) -> str:
    id_ = code(request.id[:SHORT], "", request.id)
    return tag(
        "tr",
        cell(id_, *_small(f"{request.asked_at[:10]} {request.asked_at[11:19]} UTC"), style="white-space:nowrap"),
        cell(text(request.thread_id), *_small(request.owner), style="overflow-wrap:anywhere"),
        cell(*_question(request), style="width:50%;overflow-wrap:anywhere"),
        cell(*_facts(request)),
        cell(*_status(request)),
    )


def _small(said: str) -> Iterator[str]:
    if said:
        yield tag("div", text(one_line(said)), style=f"{SMALL};{FAINT}")


def _question(request: ApprovalRequest) -> Iterator[str]:
    if request.action:
        yield code(f"{request.action}({arguments(request.args)})")
    elif not request.description:
        yield text(one_line(str(request.value)))
    for said in (request.description, *request.warnings):
        yield from _small(said)


def arguments(args: Any) -> str:
    """Return arguments on one line."""
    if isinstance(args, Mapping):
        return one_line(", ".join(f"{name}={represent(value)}" for name, value in args.items()))
    return "" if args is None else one_line(represent(args))


def _facts(request: ApprovalRequest) -> Iterator[str]:
    for name, fact in request.facts.items():
        was = request.before.get(name, fact)
        old = [tag("s", text(one_line(str(was))), style=FAINT), " → "] if was != fact else []
        yield tag("div", text(f"{name}: "), *old, tag("b", text(one_line(str(fact)))))


def _status(request: ApprovalRequest) -> Iterator[str]:
    colour = _WAITS if request.status in OPEN else _DONE if request.status in DECIDED else _OVER
    yield chip(request.status, *colour)
    if request.claimed_by:
        yield from _small(f"by {request.claimed_by}")
    if request.decision and (request.decision.by or request.decision.reason):
        yield from _small(" — ".join(filter(None, (f"by {request.decision.by}", request.decision.reason))))


Progress = Callable[[int, int], None]
"""Called with the number of events read, and the total."""


class Inbox:
    """The requests of all threads in a store.

    The calling program authenticates the reviewer and passes the name as `by`; never pass on a name that a browser
    sent. A decision is durable when a method returns; the graph uses it when it is resumed (`resume`,
    `run_when_decided`).
    """

    def __init__(self, engine: Engine, bell: Bell) -> None:
        self.engine = engine
        self.bell = bell

    @property
    def plans(self) -> Approvals:
        """The plans of requests."""
        return Approvals(self.engine.session)

        # -- reading -----------------------------------------------------------------------------------------------

    def _pending(
        self,
        thread_id: str | None = None,
        *,
        owner: str | None = None,
        action: str | None = None,
        status: str | Collection[str] = OPEN,
        older_than: float | None = None,
        after: str | None = None,
        limit: int | None = 100,
    ) -> Plan[Requests]:
        """Return the requests that wait for a person, oldest first.

        One round trip for each 1,000 current requests, and two to four for each returned one. They check whether its
        checkpoint exists (if its run died before storing it, the request is superseded), whether its thread is a copy,
        and, for an action, the calls of the thread and its forks (`warnings`).

        Args:
            thread_id: Only requests of this thread. Its requests are brought up to date, and stale ones closed.
            owner: Only requests of this owner's threads (`configurable["user_id"]`).
            action: Only requests for this action.
            status: Only requests with this status, or one of these; by default, those that can be decided.
            older_than: Minimum age, in seconds.
            after: The id of the last request of the previous page.
            limit: Maximum number of requests; `None` for all.

        Raises:
            InvalidInput: If a status is unknown, `limit` is negative, or no matching request has the id `after`.
        """
        wanted = {status} if isinstance(status, str) else set(status)
        if unknown := wanted - set(STATUSES):
            raise InvalidInput(f"unknown status {', '.join(sorted(unknown))!r}: use some of {', '.join(STATUSES)}")
        limit, session = checked_limit(limit), self.engine.session
        found = [request_at(held.request, session.now) for held in (yield from self._find(thread_id, wanted))]
        before = None if older_than is None else time_after("older_than", older_than, session.clock(), -1)
        fitting = [
            request
            for request in sorted(found, key=lambda request: (request.asked_at, request.id))
            if (request.status in wanted or SUPERSEDED in wanted)
            and owner in (None, request.owner)
            and action in (None, request.action)
            and (before is None or request.asked_at <= before)
        ]
        if after is not None:
            ids = [request.id for request in fitting]
            if after not in ids:
                raise InvalidInput(f"no matching request has the id {after!r}: start with the first page")
            fitting = fitting[ids.index(after) + 1 :]
        page = Requests()
        for request in fitting:
            if len(page) == limit:
                break
            now = yield from plans.request_now(session, request)
            if now.status in wanted:
                page.append((yield from plans.with_warnings(session, now)))
        return page

    pending, apending = faces(_pending)

    def _find(self, thread_id: str | None, wanted: Collection[str]) -> Plan[Sequence[KeptRequest]]:
        approvals = self.plans
        if thread_id is None:
            found = list((yield from approvals.all(CURRENT)))
        else:
            found = list((yield from plans.refresh_thread(self.engine.session, thread_id_of(thread_id))))
        if not CLOSED.isdisjoint(wanted):
            over = yield from approvals.all(OVER)
            found += [held for held in over if thread_id in (None, held.request.thread_id)]
        return found

    def _get(self, request_id: str) -> Plan[ApprovalRequest]:
        """Return a request, pending or closed, by its id or the beginning of its id.

        If several ids match, the pending request is returned. Usually five round trips.

        Raises:
            NotFound: If no request matches, or several pending ones, or several closed ones: the error lists them.
        """
        held = yield from plans.find_request(self.engine.session, request_id)
        request = yield from plans.request_now(self.engine.session, held.request)
        return (yield from plans.with_warnings(self.engine.session, request))

    get, aget = faces(_get)

    # -- deciding ----------------------------------------------------------------------------------------------

    def _approve(self, request_id: str, *, by: str, reason: str = "") -> Plan[ApprovalRequest]:
        """Allow the agent to act as requested.

        Args:
            request_id: The id of the request, or its beginning.
            by: The reviewer, as authenticated by your program.
            reason: The reason, for the agent and the audit trail.

        Returns:
            The decided request. Of two concurrent decisions one wins; the other raises. Repeating an equal decision by
            the same person returns the stored one, as a reply may have been lost.

        Raises:
            NotFound: If the request does not exist.
            AlreadyDecided: If there is a different decision, the request has expired, or the thread continued without
                it.
            NotAllowed: If this reviewer may not decide, or the request does not allow this kind of decision.
            InvalidInput: If `by` is not a name.
        """
        return self._record(request_id, Decision("approve", by, reason=reason))

    approve, aapprove = faces(_approve)

    def _reject(self, request_id: str, *, by: str, reason: str = "") -> Plan[ApprovalRequest]:
        """Forbid the agent to act. Arguments and errors are those of `approve`."""
        return self._record(request_id, Decision("reject", by, reason=reason))

    reject, areject = faces(_reject)

    def _edit(
        self, request_id: str, *, args: Any, by: str, reason: str = "", unchecked: bool = False
    ) -> Plan[ApprovalRequest]:
        """Allow the agent to act with other arguments.

        Args:
            request_id: The id of the request, or its beginning.
            args: All arguments, as JSON data. They must have the names and JSON types of the original ones, or fit the
                tool's schema if the request has one.
            by: The reviewer, as authenticated by your program.
            reason: The reason, for the agent and the audit trail.
            unchecked: Whether to skip this check. The audit trail records that.

        Raises:
            InvalidInput: If `args` do not fit the request; nothing is stored. Other errors are those of `approve`.
        """
        return self._record(request_id, Decision("edit", by, reason=reason, args=args, unchecked=unchecked))

    edit, aedit = faces(_edit)

    def _answer(self, request_id: str, *, value: Any, by: str, reason: str = "") -> Plan[ApprovalRequest]:
        """Answer a question: the interrupt returns `value` (JSON data). See `approve`."""
        return self._record(request_id, Decision("answer", by, reason=reason, value=value))

    answer, aanswer = faces(_answer)

    def _record(self, request_id: str, decision: Decision) -> Plan[ApprovalRequest]:
        request = yield from plans.decide_request(self.engine.session, request_id, _as_data(decision))
        yield Call(self.bell.ring, self.bell.aring)
        return request

    def _decide(self, request_id: str, decision: Decision) -> Plan[Command[Any] | None]:
        """Decide a request and return the command to resume with, in one call.

            command = saver.approvals.decide(request_id, Decision("approve", by=user))
            if command is not None:
                graph.invoke(command, config)

        For click handlers: repeating the same decision raises no error.

        Args:
            request_id: The id of the request, or its beginning.
            decision: The decision; `by` is the reviewer, as authenticated by your program.

        Returns:
            The command, or `None` if there is nothing to do: the agent has acted on the decision, a run of the thread
            is in progress, its step needs further decisions, or an operator must resume it (`saver.status`).

        Raises:
            AlreadyDecided: If there is a different decision. Other errors are those of `approve` and `edit`.
        """
        from langgraph.types import Command

        request = yield from plans.decide_request(self.engine.session, request_id, _as_data(decision))
        found = yield from plans.find_free_answers(self.engine.session, request.thread_id)
        yield Call(self.bell.ring, self.bell.aring)  # last, as it wakes a worker that takes the thread
        return Command(resume=dict(found)) if found else None

    decide, adecide = faces(_decide)

    def _revise(self, request_id: str, *, by: str, reason: str = "") -> Plan[ApprovalRequest]:
        """Take back a decision whose step has not ended, so the request is pending again.

        Use it if the step fails on the decision, such as an edit with wrong arguments: each attempt gets the same one.
        The audit trail records the person and the reason.

        Args:
            request_id: The id of the request, or its beginning.
            by: The reviewer, as authenticated by your program.
            reason: The reason, for the audit trail.

        Returns:
            The request: pending, or expired if its deadline has passed.

        Raises:
            NotFound: If the request does not exist.
            AlreadyDecided: If the step has ended, or the request has expired.
            NotAllowed: If this reviewer may not decide the request.
            ThreadTaken: If a run of the thread is in progress.
            InvalidInput: If `by` does not name a person.
        """
        return plans.revise_request(self.engine.session, request_id, by, reason)

    revise, arevise = faces(_revise)

    def _claim(self, request_id: str, *, by: str, seconds: float = 900) -> Plan[ApprovalRequest]:
        """Reserve a request for a reviewer. Errors are those of `approve`.

        Args:
            request_id: The id of the request, or its beginning.
            by: The reviewer; others cannot decide it until the reservation ends.
            seconds: Duration of the reservation; 0 releases it.
        """
        return plans.claim_request(self.engine.session, request_id, by, seconds)

    claim, aclaim = faces(_claim)

    # -- resuming ----------------------------------------------------------------------------------------------

    def _resume(self, thread_id: str) -> Plan[Command[Any]]:
        """Return the command to resume a thread with.

            graph.invoke(saver.approvals.resume("t"), config)

        It answers by interrupt id, so a late or repeated command never answers another question. It contains only
        answers of tasks whose questions are all decided, as LangGraph runs a task from its beginning at each answer.

        Raises:
            NotFound: If there is no unused decision (the error lists the pending requests), or its question is not
                stored, as the run that asks it is still active or has died.
        """
        return plans.resume(self.engine.session, thread_id_of(thread_id))

    resume, aresume = faces(_resume)

    def wait(self, timeout: float | None = None, *, poll: float = 1.0) -> Sequence[str]:
        """Wait until a thread can resume, because all questions of a task are decided.

        A request that has expired counts as rejected, unless its `on_expiry` is `"wait"`.

        Args:
            timeout: Maximum wait, in seconds; `None` is without limit.
            poll: Polling interval, in seconds. A decision that is made in this process ends the wait immediately; with
                PostgreSQL or Redis, a decision of any process does.

        Returns:
            The ids of the threads, for `resume`, longest waiting first; empty after the timeout. Threads that are
            already being resumed are left out.

        Raises:
            InvalidInput: If `timeout` or `poll` is not a valid number.
        """
        from langgraph_keel.runs.worker import PollTimer, wait

        return wait(self.engine, self.bell, PollTimer(poll, timeout))

    async def await_decided(self, timeout: float | None = None, *, poll: float = 1.0) -> Sequence[str]:
        """Like `wait`, asynchronously (`await` is a keyword)."""
        from langgraph_keel.runs.worker import PollTimer, await_decided

        return await await_decided(self.engine, self.bell, PollTimer(poll, timeout))

    def run_when_decided(
        self, graph: Any, *, poll: float = 1.0, timeout: float | None = None, config: RunnableConfig | None = None
    ) -> Iterator[Resumed]:
        """Run a worker: resume a graph in each thread that has new decisions.

            for resumed in saver.approvals.run_when_decided(graph):
                print(resumed.thread_id, resumed.error or resumed.result)

        Any number of workers may run, in any processes; only one of them resumes a thread. If it dies, another worker
        takes the thread over: at its next poll on the same machine, else after it has seen the claim unrenewed for 30
        seconds. Threads of other graphs on the store are left alone.

        Args:
            graph: The graph, compiled with this saver.
            poll: Polling interval, in seconds, as for `wait`.
            timeout: Seconds without work after which the worker ends; `None` is never. With `None` it also waits for a
                store that is unreachable.
            config: The config of every run. The thread id is added to it, and `user_id` if the thread has an owner.

        Returns:
            An iterator of the resumed threads, each after its graph has returned or raised. If it raised, this worker
            does not retry it before there is another decision in the thread, unless the store was unreachable.

        Raises:
            InvalidInput: If `timeout` or `poll` is not a valid number.
            StoreError: If the store cannot be reached while iterating.
        """
        return self._worker(graph, poll, timeout, config).run()

    def arun_when_decided(
        self, graph: Any, *, poll: float = 1.0, timeout: float | None = None, config: RunnableConfig | None = None
    ) -> AsyncIterator[Resumed]:
        """Like `run_when_decided`, asynchronously: use it with `async for`."""
        return self._worker(graph, poll, timeout, config).arun()

    def _worker(self, graph: Any, poll: float, timeout: float | None, config: RunnableConfig | None) -> Worker:
        from langgraph_keel.runs.worker import Decisions, PollTimer, RetryList, Worker

        timer, decisions = (
            PollTimer(poll, timeout),
            Decisions(self.engine.session, graph, config or {}, RetryList(poll)),
        )
        return Worker(self.engine, self.bell, decisions, timer)

    def _sweep(self, remind_after: float | None = None) -> Plan[Sequence[ApprovalRequest]]:
        """Mark expired requests, and close those whose thread continued without them.

        Any process may run it, at any time. Without it, this happens to a thread's requests when the thread is read.

        Args:
            remind_after: Seconds after which a reviewer should be reminded.

        Returns:
            The requests for which a reminder is due; each is returned again after as many seconds.
        """
        return plans.sweep_requests(self.engine.session, remind_after)

    sweep, asweep = faces(_sweep)

    # -- the audit trail ---------------------------------------------------------------------------------------

    def _audit(self, after: int = 0, limit: int = 200) -> Plan[Sequence[AuditEvent]]:
        """Return a page of the audit trail: the events after number `after`, in order."""
        return read_events(self.engine.session, after, limit)

    audit, aaudit = faces(_audit)

    def _verify_audit(self, expected: str | None = None, progress: Progress | None = None) -> Plan[AuditVerdict]:
        """Check that the audit trail was not changed; see `langgraph_keel.engine.audit`.

        Args:
            expected: A head noted earlier (`AuditVerdict.head`), which the trail must still contain.
            progress: Called with the number of events read, and the total.
        """
        return verify(self.engine.session, expected, progress)

    verify_audit, averify_audit = faces(_verify_audit)


def _as_data(decision: Decision) -> Decision:
    return replace(decision, args=as_json(decision.args), value=as_json(decision.value))
