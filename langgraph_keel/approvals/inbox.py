"""`saver.approvals`: requests that wait for a person, their decisions, and requests as a table in a notebook."""

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
"""Digits of an id that are shown: 8 of its thread, and 4 of its own."""
_NAMES = ("request", "thread", "what the agent asks", "facts", "status")
_WAITS, _DONE, _OVER = ("230,140,20", ".28"), ("47,159,79", ".24"), ("127,127,127", ".18")


class Requests(list[ApprovalRequest]):
    """Requests for approval: a list, and a table in a notebook."""

    def _repr_html_(self) -> str:
        if not self:
            return tag("div", "nothing waits for anybody", style=FAINT)
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
"""Called with how many events were read, and how many there are."""


class Inbox:
    """The requests of all threads in a store.

    The calling program says who decides, and has authenticated them: never pass on what a browser has sent. A decision
    is durable when a method returns; the graph takes it when it is resumed (`resume`, `run_when_decided`).
    """

    def __init__(self, engine: Engine, bell: Bell) -> None:
        self.engine = engine
        self.bell = bell

    @property
    def plans(self) -> Approvals:
        """The plans of requests, for those who run plans."""
        return Approvals(self.engine.session)

    # -- looking -----------------------------------------------------------------------------------------------

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
        """Return what waits for a person, the oldest first.

        One round trip for each 1,000 requests that are not over, and two to four for each that is returned: is its
        checkpoint there (a request whose run died before that is superseded), has its thread come from elsewhere, and,
        of a request for an action, what have the thread and its forks called (`warnings`)?

        Args:
            thread_id: Only of this thread. It is looked at itself then, and what it has gone on without is closed.
            owner: Only of threads of this owner (`configurable["user_id"]`).
            action: Only of this name.
            status: Only of this status, or of one of these: what is to be decided, if left out.
            older_than: Only what was asked that many seconds ago, or more.
            after: The id of the last request of the page before.
            limit: Most to return; `None` for all of them.

        Raises:
            InvalidInput: There is no such status, `limit` is negative, or no request has the id `after`.
        """
        wanted = {status} if isinstance(status, str) else set(status)
        if unknown := wanted - set(STATUSES):
            raise InvalidInput(f"no request is ever {', '.join(sorted(unknown))!r}: use some of {', '.join(STATUSES)}")
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
                raise InvalidInput(f"no request that fits has the id {after!r}: begin with the first page")
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
        """Return a request, also one that is over, by its id or the beginning of it: five round trips, mostly.

        If several ids begin so, the request that waits is returned.

        Raises:
            NotFound: No request has such an id; or several that wait, or that are all over: they are listed.
        """
        held = yield from plans.find_request(self.engine.session, request_id)
        request = yield from plans.request_now(self.engine.session, held.request)
        return (yield from plans.with_warnings(self.engine.session, request))

    get, aget = faces(_get)

    # -- deciding ----------------------------------------------------------------------------------------------

    def _approve(self, request_id: str, *, by: str, reason: str = "") -> Plan[ApprovalRequest]:
        """Let the agent act as it has asked.

        Args:
            request_id: The request, or the beginning of its id.
            by: Who decides, as your program has authenticated them.
            reason: Why, for the agent and for the audit trail.

        Returns:
            The request, decided. Of two decisions at the same moment one is taken; the other raises. An equal decision
            of the same person, in the same words, returns the stored one: a reply may have been lost.

        Raises:
            NotFound: There is no such request.
            AlreadyDecided: Something else was decided, it has expired, or the thread went on without it.
            NotAllowed: This reviewer may not decide, or this request allows no such decision.
            InvalidInput: `by` names nobody.
        """
        return self._record(request_id, Decision("approve", by, reason=reason))

    approve, aapprove = faces(_approve)

    def _reject(self, request_id: str, *, by: str, reason: str = "") -> Plan[ApprovalRequest]:
        """Tell the agent not to act. Arguments and errors are those of `approve`."""
        return self._record(request_id, Decision("reject", by, reason=reason))

    reject, areject = faces(_reject)

    def _edit(
        self, request_id: str, *, args: Any, by: str, reason: str = "", unchecked: bool = False
    ) -> Plan[ApprovalRequest]:
        """Let the agent act with other arguments.

        Args:
            request_id: The request, or the beginning of its id.
            args: All arguments, as JSON carries them. They must have the names and JSON types of those of the request,
                or fit the schema of the tool, if the request has one.
            by: Who decides, as your program has authenticated them.
            reason: Why, for the agent and for the audit trail.
            unchecked: Whether to accept arguments that do not fit. The audit trail records that.

        Raises:
            InvalidInput: If `args` do not fit the request; nothing is written. Other errors are those of `approve`.
        """
        return self._record(request_id, Decision("edit", by, reason=reason, args=args, unchecked=unchecked))

    edit, aedit = faces(_edit)

    def _answer(self, request_id: str, *, value: Any, by: str, reason: str = "") -> Plan[ApprovalRequest]:
        """Answer a question: `value`, as JSON carries it, is what the interrupt returns. Else as `approve`."""
        return self._record(request_id, Decision("answer", by, reason=reason, value=value))

    answer, aanswer = faces(_answer)

    def _record(self, request_id: str, decision: Decision) -> Plan[ApprovalRequest]:
        request = yield from plans.decide_request(self.engine.session, request_id, _as_data(decision))
        yield Call(self.bell.ring, self.bell.aring)
        return request

    def _decide(self, request_id: str, decision: Decision) -> Plan[Command[Any] | None]:
        """Decide a request, and return what to invoke the graph with: one call for the handler of a click.

            command = saver.approvals.decide(request_id, Decision("approve", by=user))
            if command is not None:
                graph.invoke(command, config)

        It can be repeated: a second click with the same decision raises no error.

        Args:
            request_id: The request, or the beginning of its id.
            decision: The decision; `by` names the person whom your program has authenticated.

        Returns:
            The command, or `None` if there is nothing to do: the agent has acted on the decision, a run of the thread
            is under way, its step needs other decisions, too, or one of them is left to an operator (`saver.status`).

        Raises:
            AlreadyDecided: If a different decision stands. Other errors are those of `approve` and `edit`.
        """
        from langgraph.types import Command

        request = yield from plans.decide_request(self.engine.session, request_id, _as_data(decision))
        found = yield from plans.find_free_answers(self.engine.session, request.thread_id)
        yield Call(self.bell.ring, self.bell.aring)  # last: a worker that it wakes takes the thread
        return Command(resume=dict(found)) if found else None

    decide, adecide = faces(_decide)

    def _revise(self, request_id: str, *, by: str, reason: str = "") -> Plan[ApprovalRequest]:
        """Take a decision back whose step has not ended, so that the request waits for another one.

        A step that fails on a decision, such as an edit with wrong arguments, gets the same decision at each attempt.
        The audit trail records who took it back, and why.

        Args:
            request_id: The request, or the beginning of its id.
            by: Who takes it back, as your program has authenticated them.
            reason: Why, for the audit trail.

        Returns:
            The request, which waits; or it has expired, if its deadline has passed.

        Raises:
            NotFound: If there is no such request.
            AlreadyDecided: If the step has ended, or the request has expired.
            NotAllowed: If this reviewer may not decide the request.
            ThreadTaken: If a run of the thread is under way.
            InvalidInput: If `by` does not name a person.
        """
        return plans.revise_request(self.engine.session, request_id, by, reason)

    revise, arevise = faces(_revise)

    def _claim(self, request_id: str, *, by: str, seconds: float = 900) -> Plan[ApprovalRequest]:
        """Hold a request for a reviewer, so that nobody else decides it meanwhile. Errors are those of `approve`.

        Args:
            request_id: The request, or the beginning of its id.
            by: Who is about to decide.
            seconds: For how long; 0 lets it go.
        """
        return plans.claim_request(self.engine.session, request_id, by, seconds)

    claim, aclaim = faces(_claim)

    # -- going on ----------------------------------------------------------------------------------------------

    def _resume(self, thread_id: str) -> Plan[Command[Any]]:
        """Return what to invoke the graph with: `graph.invoke(saver.approvals.resume("t"), config)`.

        It answers by the ids of interrupts, so a late or doubled one answers no other question; and it waits until all
        questions of a task are decided, as LangGraph runs a task from its beginning at each answer.

        Raises:
            NotFound: Nothing was decided that the agent has not taken; it says what waits.
        """
        return plans.resume(self.engine.session, thread_id_of(thread_id))

    resume, aresume = faces(_resume)

    def wait(self, timeout: float | None = None, *, poll: float = 1.0) -> Sequence[str]:
        """Wait until threads can go on, that is until all that some task of theirs has asked is decided, or expired.

        Args:
            timeout: Seconds to wait at most; `None` is for ever.
            poll: Seconds between two looks. Decisions that are made in this process, or over PostgreSQL or Redis, are
                noticed at once.

        Returns:
            Their ids, for `resume`, those first that have waited longest; none after the timeout. Threads that
            somebody goes on with are not among them.

        Raises:
            InvalidInput: `timeout` or `poll` is no such number.
        """
        from langgraph_keel.runs.worker import PollTimer, wait

        return wait(self.engine, self.bell, PollTimer(poll, timeout))

    async def await_decided(self, timeout: float | None = None, *, poll: float = 1.0) -> Sequence[str]:
        """As `wait`, asynchronously; `await` is Python's own word."""
        from langgraph_keel.runs.worker import PollTimer, await_decided

        return await await_decided(self.engine, self.bell, PollTimer(poll, timeout))

    def run_when_decided(
        self, graph: Any, *, poll: float = 1.0, timeout: float | None = None, config: RunnableConfig | None = None
    ) -> Iterator[Resumed]:
        """Have a graph go on in each thread that something is decided in: a worker.

            for resumed in saver.approvals.run_when_decided(graph):
                print(resumed.thread_id, resumed.error or resumed.result)

        There may be any number of workers, in any processes: one of them goes on with a thread. If it dies, another one
        takes the thread over: at its next look on the same machine, else when it has seen for half a minute that the
        claim is not renewed.
        Threads of other graphs in the same store are left alone.

        Args:
            graph: The graph, compiled with this saver.
            poll: Seconds between two looks, as for `wait`.
            timeout: Seconds without work after which to end; `None` is never. With `None`, a store that cannot be
                reached is waited for.
            config: What every run is given besides its thread, and `user_id` where the thread has an owner.

        Returns:
            The threads that went on, each when the graph has returned or raised. What it raised is not tried again by
            this worker before something else is decided in the thread, unless the store was out of reach.

        Raises:
            InvalidInput: `timeout` or `poll` is no such number.
            StoreError: The store cannot be asked; while iterating.
        """
        return self._worker(graph, poll, timeout, config).run()

    def arun_when_decided(
        self, graph: Any, *, poll: float = 1.0, timeout: float | None = None, config: RunnableConfig | None = None
    ) -> AsyncIterator[Resumed]:
        """As `run_when_decided`, asynchronously: `async for resumed in saver.approvals.arun_when_decided(graph)`."""
        return self._worker(graph, poll, timeout, config).arun()

    def _worker(self, graph: Any, poll: float, timeout: float | None, config: RunnableConfig | None) -> Worker:
        from langgraph_keel.runs.worker import Decisions, PollTimer, RetryList, Worker

        timer, decisions = (
            PollTimer(poll, timeout),
            Decisions(self.engine.session, graph, config or {}, RetryList(poll)),
        )
        return Worker(self.engine, self.bell, decisions, timer)

    def _sweep(self, remind_after: float | None = None) -> Plan[Sequence[ApprovalRequest]]:
        """Look after all threads that wait: expired requests say so, and requests of threads that went on are closed.

        Any process may do it, at any time; without it, the same happens to a thread when somebody looks at it.

        Args:
            remind_after: Seconds after which a reviewer shall be reminded.

        Returns:
            The requests that a reminder is due for; they are not returned again for as long.
        """
        return plans.sweep_requests(self.engine.session, remind_after)

    sweep, asweep = faces(_sweep)

    # -- the audit trail ---------------------------------------------------------------------------------------

    def _audit(self, after: int = 0, limit: int = 200) -> Plan[Sequence[AuditEvent]]:
        """Return a page of what was asked, decided and taken, in order: the events after that number."""
        return read_events(self.engine.session, after, limit)

    audit, aaudit = faces(_audit)

    def _verify_audit(self, expected: str | None = None, progress: Progress | None = None) -> Plan[AuditVerdict]:
        """Return whether the audit trail is as it was written; see `langgraph_keel.engine.audit.verify`.

        Args:
            expected: A head that was noted earlier (`AuditVerdict.head`), which must still be there.
            progress: Called with how many events were read, and how many there are.
        """
        return verify(self.engine.session, expected, progress)

    verify_audit, averify_audit = faces(_verify_audit)


def _as_data(decision: Decision) -> Decision:
    return replace(decision, args=as_json(decision.args), value=as_json(decision.value))
