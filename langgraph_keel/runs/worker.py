"""Workers, which resume due threads, and the threads that are due by a decision.

A poll is one listing. Each run claims its thread (`runs.hook`), so a second worker is refused before a node runs. A
notice of a decision starts the next poll immediately; if it is lost, the worker waits for its polling interval.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph import errors
from langgraph.types import Command

from langgraph_keel._langgraph import CONFIG_KEY_STRICT_RESUME
from langgraph_keel.approvals.notices import Bell
from langgraph_keel.approvals.plans import find_free_answers, find_interrupts, settled_in
from langgraph_keel.approvals.requests import CURRENT, SUPERSEDED, ApprovalRequest, Approvals, request_at
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.engine import Engine
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, SaverDraining, StoreBusy, StoreUnavailable, ThreadTaken
from langgraph_keel.runs.hook import RunClaims, is_in_doubt
from langgraph_keel.runs.marks import Marks

_log = logging.getLogger(__name__)
_LONGEST = 30.0
"""Maximum seconds until a thread that could not resume is tried again."""
# An option of LangGraph, also set by its servers: a run that answers a question that is not open is refused before a
# node runs.
_STRICT = {CONFIG_KEY_STRICT_RESUME: True}
_NOT_ASKED: Any = getattr(errors, "UnknownInterruptError", ())


@publish
@dataclass(frozen=True, slots=True)
class Resumed:
    """A thread that was resumed.

    Attributes:
        thread_id: The thread.
        result: The result of the graph, which may wait again (`__interrupt__`).
        error: The exception of the graph, if it raised. The worker of `run_when_decided` does not retry before there is
            another decision in the thread; those of `recover` retry until the attempts are used up.
        attempts: For `recover`: the number of attempts from the checkpoint at which the thread was taken over,
            including this one.
    """

    thread_id: str
    result: Any = None
    error: Exception | None = None
    attempts: int = field(default=0, repr=False)


# -- which threads -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueThread:
    """A thread that a worker may continue."""

    thread_id: str
    # The ids that make it due: with other ids, it is due again. For decisions, the requests of tasks with all
    # answers.
    ids: frozenset[str]
    since: str  # since when it is due, ISO time
    owner: str


D = TypeVar("D", bound=DueThread)


def find_settled(session: Session) -> Plan[Sequence[DueThread]]:
    """Return the threads in which a task has all answers, longest waiting first.

    A trip for each 1,000 requests.
    """
    by_thread: defaultdict[str, list[ApprovalRequest]] = defaultdict(list)
    now = session.now
    for held in (yield from Approvals(session).all(CURRENT)):
        if held.request.status != SUPERSEDED:
            by_thread[held.request.thread_id].append(request_at(held.request, now))
    found: list[DueThread] = []
    for thread_id, requests in by_thread.items():
        done = settled_in(requests)
        if any(request.interrupt_id for request in done):
            since = min(request.decision.at if request.decision else "" for request in done)
            found.append(DueThread(thread_id, frozenset(request.id for request in done), since, done[0].owner))
    return sorted(found, key=lambda each: (each.since, each.thread_id))


def _is_waiting(session: Session, thread_id: str) -> Plan[bool]:
    """Return whether a decided question is still open, and no run uses its decision."""
    found = yield from find_free_answers(session, thread_id)
    head = (yield from session.store.read_entry(Address(thread_id, "", None))) if found else None
    if head is None:
        return False
    asked = find_interrupts(session, head, is_upgraded=True)
    # `None`: of classes unknown to this process; the process with the graph decides.
    return asked is None or any(each.id in found for _, each in asked)


class RetryList:
    """The threads of the last listing that a worker must not retry, or not yet."""

    def __init__(self, poll: float) -> None:
        self._poll = poll  # initial retry interval in seconds, then increasing
        # By thread: the ids that made it due, the time of the first try, and the time of the next.
        self._known: dict[str, tuple[frozenset[str], float, float]] = {}

    def due(self, found: Sequence[D]) -> Sequence[D]:
        """Return the threads of a listing that should be tried."""
        known = self._known
        self._known = {
            each.thread_id: known[each.thread_id]
            for each in found
            if each.thread_id in known and known[each.thread_id][0] == each.ids
        }
        return [each for each in found if self.is_due(each)]

    def is_due(self, each: DueThread) -> bool:
        """Return whether a thread should be tried now."""
        ids, _, at = self._known.get(each.thread_id, (each.ids, 0.0, 0.0))
        return ids != each.ids or at <= time.monotonic()

    def done(self, each: DueThread) -> None:
        """Do not retry a thread before other ids make it due."""
        self._known[each.thread_id] = each.ids, inf, inf

    def later(self, each: DueThread) -> None:
        """Retry a thread after as long again as it has waited, up to `_LONGEST`."""
        now = time.monotonic()
        _, since, _ = self._known.get(each.thread_id, (each.ids, now, now))
        since = now if since == inf else since
        self._known[each.thread_id] = each.ids, since, now + min(max(now - since, self._poll), _LONGEST)


class PollTimer:
    """A worker's polling interval and timeout, in seconds (`None`: no timeout)."""

    def __init__(self, poll: float, timeout: float | None) -> None:
        if not _is_seconds(poll) or poll <= 0:
            raise InvalidInput(f"poll must be a positive number of seconds, not {poll!r}")
        if timeout is not None and not _is_seconds(timeout):
            raise InvalidInput(f"timeout must be a number of seconds or None, not {timeout!r}")
        self.poll = float(poll)
        self._timeout = inf if timeout is None else timeout
        self.restart()

    def restart(self) -> None:
        """Restart the timeout after work was done."""
        self._end = time.monotonic() + self._timeout

    @property
    def is_endless(self) -> bool:
        """Whether there is no timeout."""
        return self._timeout == inf

    @property
    def left(self) -> float:
        """Seconds to wait now; 0 at the end."""
        return max(0.0, min(self.poll, self._end - time.monotonic()))


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


# -- waiting -------------------------------------------------------------------------------------------------------


def wait(engine: Engine, bell: Bell, timer: PollTimer) -> Sequence[str]:
    """Wait until threads can resume; return their ids. See `Inbox.wait`."""
    retries = RetryList(timer.poll)
    with bell.notices() as notices:
        while not (found := engine.run(_find_ready(engine.session, retries))) and (seconds := timer.left):
            notices.wait(seconds)
        return found


async def await_decided(engine: Engine, bell: Bell, timer: PollTimer) -> Sequence[str]:
    """As `wait`, asynchronously."""
    retries = RetryList(timer.poll)
    async with bell.anotices() as notices:
        while not (found := await engine.arun(_find_ready(engine.session, retries))) and (seconds := timer.left):
            await notices.wait(seconds)
        return found


def _find_ready(session: Session, retries: RetryList) -> Plan[Sequence[str]]:
    found: list[str] = []
    for each in retries.due((yield from find_settled(session))):
        if (yield from _is_waiting(session, each.thread_id)):
            found.append(each.thread_id)
        else:
            retries.later(each)
    return tuple(found)


# -- resuming ------------------------------------------------------------------------------------------------------


class Trigger(Protocol[D]):
    """Finds the threads that are due, and resumes one of them."""

    def next(self) -> Plan[Sequence[D] | None]:
        """Return the next threads to try; `None` at the end of a pass."""

    def resume(self, each: D) -> Plan[Resumed | None]:
        """Continue a thread, and return the result; `None` if it was left alone."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Continues the threads of a saver that are due, one after another."""

    engine: Engine
    bell: Bell
    trigger: Trigger[Any]
    timer: PollTimer
    is_stopped: Callable[[], bool] = bool  # called before each page, and before waiting

    def _next(self) -> Plan[Sequence[Any] | None]:
        marks = self.engine.session.hooks.find(Marks)
        try:
            if marks:
                yield from marks.keep_alive(self.engine.session)  # shows that a worker is running
            return (yield from self.trigger.next())
        except (StoreBusy, StoreUnavailable) as error:
            if not self.timer.is_endless:
                raise
            _log.warning("no threads are continued before the next poll: %s", error)
            return None

    def _has_to_end(self) -> bool:
        claims = self.engine.session.hooks.find(RunClaims)
        return self.is_stopped() or bool(claims and claims.drain.reason)

    def run(self) -> Iterator[Resumed]:
        """Yield resumed threads, until the timeout passes without work."""
        with self.bell.notices() as notices:
            while True:
                did = False
                while not self._has_to_end() and (page := self.engine.run(self._next())) is not None:
                    for each in page:
                        if resumed := self.engine.run_patiently(self.trigger.resume(each)):
                            did = True
                            yield resumed
                if did:
                    self.timer.restart()
                elif (seconds := self.timer.left) and not self._has_to_end():
                    notices.wait(seconds)
                else:
                    return

    async def arun(self) -> AsyncIterator[Resumed]:
        """As `run`, asynchronously."""
        async with self.bell.anotices() as notices:
            while True:
                did = False
                while not self._has_to_end() and (page := await self.engine.arun(self._next())) is not None:
                    for each in page:
                        if resumed := await self.engine.arun_patiently(self.trigger.resume(each)):
                            did = True
                            yield resumed
                if did:
                    self.timer.restart()
                elif (seconds := self.timer.left) and not self._has_to_end():
                    await notices.wait(seconds)
                else:
                    return


def config_of(each: DueThread, config: RunnableConfig) -> RunnableConfig:
    """Return the config of a run in a thread, given that of the worker."""
    # With the owner, so that later questions of the run have the same owner.
    owner = {"user_id": each.owner} if each.owner else {}
    given = config.get("configurable") or {}
    return {**config, "configurable": {**owner, **given, **_STRICT, "thread_id": each.thread_id}}


def is_late(error: Exception, each: DueThread) -> bool:
    """Return whether a run was drained, or refused as another run was faster."""
    if isinstance(error, ThreadTaken):
        return error.thread_id == each.thread_id
    return isinstance(error, (SaverDraining, errors.GraphDrained, _NOT_ASKED))


@dataclass(slots=True)
class Decisions:
    """Resumes threads with new decisions, for `Inbox.run_when_decided`."""

    session: Session
    graph: Any
    config: RunnableConfig
    retries: RetryList
    _is_listed: bool = False

    def next(self) -> Plan[Sequence[DueThread] | None]:
        """Return all threads to try. A trip for each, if there are several."""
        if self._is_listed:
            self._is_listed = False
            return None
        # Threads whose claims must be watched come last, after all of them were read once: if a host has died with many
        # threads, a worker waits for one lease in total, not for one lease per thread.
        due = self.retries.due((yield from find_settled(self.session)))
        self._is_listed = True
        if len(due) == 1:
            return due
        last: list[DueThread] = []
        for each in due:
            if (yield from is_in_doubt(self.session, each.thread_id)):
                last.append(each)
        return [*(each for each in due if each not in last), *last]

    def resume(self, each: DueThread) -> Plan[Resumed | None]:
        """Continue a thread with its decisions, if this graph asks for them."""
        graph, config = self.graph, config_of(each, self.config)
        command = result = None
        try:
            if found := (yield from find_free_answers(self.session, each.thread_id)):
                state = yield Call(lambda: graph.get_state(config), lambda: graph.aget_state(config))
                command = _command_for(found, state)
            if command:
                options = {"durability": "sync"}  # so that another worker can continue if this one dies
                result = yield Call(
                    lambda: graph.invoke(command, config, **options), lambda: graph.ainvoke(command, config, **options)
                )
        except Exception as error:
            return self._fail(each, error)
        if command is None:
            self.retries.later(each)
            return None
        self.retries.done(each)
        return Resumed(each.thread_id, result)

    def _fail(self, each: DueThread, error: Exception) -> Resumed | None:
        if is_late(error, each):
            self.retries.later(each)
            return None
        # Retry after a temporary failure of the store.
        again = self.retries.later if isinstance(error, StoreBusy | StoreUnavailable) else self.retries.done
        again(each)
        return Resumed(each.thread_id, error=error)


def _command_for(found: Mapping[str, Any], state: Any) -> Command[Any] | None:
    """Return the command for a thread; `None` if this graph has none of the questions."""
    asked = {interrupt.id for interrupt in state.interrupts}
    resume = {name: answer for name, answer in found.items() if name in asked}
    return Command(resume=resume) if resume else None
