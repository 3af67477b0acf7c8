"""Workers, which resume threads that are due, and the threads that are due because something was decided there.

A poll is one listing. Each run claims its thread (`runs.hook`), so a second worker is refused before a node runs. A
notice of a decision spares a worker the wait for its next poll; one that is lost costs a poll.
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
"""Most seconds until a thread that could not go on is looked at again."""
# Of LangGraph: its servers set it, too. A run that answers what is not asked is refused before a node of it runs.
_STRICT = {CONFIG_KEY_STRICT_RESUME: True}
_NOT_ASKED: Any = getattr(errors, "UnknownInterruptError", ())


@publish
@dataclass(frozen=True, slots=True)
class Resumed:
    """A thread that went on.

    Attributes:
        thread_id: The thread.
        result: What the graph returned; it may wait again (`__interrupt__`).
        error: What the graph raised instead. After `run_when_decided`, the worker does not try again before something
            else is decided there; after `recover`, workers try again while there are attempts left.
        attempts: Of `recover`: how often workers have tried to continue the thread from the checkpoint at which it was
            taken over, this time included.
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
    # What makes it due: with other ones, it is due again. Of a decision, the requests of the tasks with all answers.
    ids: frozenset[str]
    since: str  # when that was so first, ISO time
    owner: str


D = TypeVar("D", bound=DueThread)


def find_settled(session: Session) -> Plan[Sequence[DueThread]]:
    """Return the threads in which a task has all its answers, the longest wait first. A trip for 1,000 requests."""
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
    """Return whether something that was decided is still asked, and nobody goes on with it."""
    found = yield from find_free_answers(session, thread_id)
    head = (yield from session.store.read_entry(Address(thread_id, "", None))) if found else None
    if head is None:
        return False
    asked = find_interrupts(session, head, is_upgraded=True)
    # Of classes of the program, which this process does not know: whoever has the graph will see.
    return asked is None or any(each.id in found for _, each in asked)


class RetryList:
    """The threads that one worker need not try again, or not yet, of those that the last listing has named."""

    def __init__(self, poll: float) -> None:
        self._poll = poll  # seconds until a thread that cannot continue is looked at again; then longer and longer
        # What made it due when it was tried, since when, and when to try again.
        self._known: dict[str, tuple[frozenset[str], float, float]] = {}

    def due(self, found: Sequence[D]) -> Sequence[D]:
        """Return what is to be tried, of a listing."""
        known = self._known
        self._known = {
            each.thread_id: known[each.thread_id]
            for each in found
            if each.thread_id in known and known[each.thread_id][0] == each.ids
        }
        return [each for each in found if self.is_due(each)]

    def is_due(self, each: DueThread) -> bool:
        """Return whether a thread is to be tried."""
        ids, _, at = self._known.get(each.thread_id, (each.ids, 0.0, 0.0))
        return ids != each.ids or at <= time.monotonic()

    def done(self, each: DueThread) -> None:
        """Do not try it again before something else makes it due."""
        self._known[each.thread_id] = each.ids, inf, inf

    def later(self, each: DueThread) -> None:
        """Try it again, when it has waited as long again."""
        now = time.monotonic()
        _, since, _ = self._known.get(each.thread_id, (each.ids, now, now))
        since = now if since == inf else since
        self._known[each.thread_id] = each.ids, since, now + min(max(now - since, self._poll), _LONGEST)


class PollTimer:
    """Says how long a worker waits, in seconds: until the next poll, and in all (`None` is for ever)."""

    def __init__(self, poll: float, timeout: float | None) -> None:
        if not _is_seconds(poll) or poll <= 0:
            raise InvalidInput(f"poll must be seconds, more than none, not {poll!r}")
        if timeout is not None and not _is_seconds(timeout):
            raise InvalidInput(f"timeout must be seconds or None, not {timeout!r}")
        self.poll = float(poll)
        self._timeout = inf if timeout is None else timeout
        self.restart()

    def restart(self) -> None:
        """Begin to wait anew: there was something to do."""
        self._end = time.monotonic() + self._timeout

    @property
    def is_endless(self) -> bool:
        """Whether it never comes to an end."""
        return self._timeout == inf

    @property
    def left(self) -> float:
        """Seconds to wait now; 0 at the end."""
        return max(0.0, min(self.poll, self._end - time.monotonic()))


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


# -- waiting -------------------------------------------------------------------------------------------------------


def wait(engine: Engine, bell: Bell, timer: PollTimer) -> Sequence[str]:
    """Wait until threads can go on; return their ids. Of `Inbox.wait`."""
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


# -- going on ------------------------------------------------------------------------------------------------------


class Trigger(Protocol[D]):
    """Finds the threads that are due, and resumes one of them."""

    def next(self) -> Plan[Sequence[D] | None]:
        """Return the next threads to try; `None` at the end of a look, after which another one begins."""

    def resume(self, each: D) -> Plan[Resumed | None]:
        """Continue a thread, and return the result; `None` if it was left alone."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Continues the threads of a saver that are due, one after another."""

    engine: Engine
    bell: Bell
    trigger: Trigger[Any]
    timer: PollTimer
    is_stopped: Callable[[], bool] = bool  # asked before each page, and before it waits

    def _next(self) -> Plan[Sequence[Any] | None]:
        marks = self.engine.session.hooks.find(Marks)
        try:
            if marks:
                yield from marks.keep_alive(self.engine.session)  # so that people see that a worker is there
            return (yield from self.trigger.next())
        except (StoreBusy, StoreUnavailable) as error:
            if not self.timer.is_endless:
                raise
            _log.warning("no threads are continued before the next look: %s", error)
            return None

    def _has_to_end(self) -> bool:
        claims = self.engine.session.hooks.find(RunClaims)
        return self.is_stopped() or bool(claims and claims.drain.reason)

    def run(self) -> Iterator[Resumed]:
        """Yield threads that went on, until there was nothing to do for long enough."""
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
    # With the owner, so that the next questions of the run are for the same person.
    owner = {"user_id": each.owner} if each.owner else {}
    given = config.get("configurable") or {}
    return {**config, "configurable": {**owner, **given, **_STRICT, "thread_id": each.thread_id}}


def is_late(error: Exception, each: DueThread) -> bool:
    """Return whether a run was refused, or drained: another one has its thread, or has answered there."""
    if isinstance(error, ThreadTaken):
        return error.thread_id == each.thread_id
    return isinstance(error, (SaverDraining, errors.GraphDrained, _NOT_ASKED))


@dataclass(slots=True)
class Decisions:
    """Continues threads in which something was decided. Of `Inbox.run_when_decided`."""

    session: Session
    graph: Any
    config: RunnableConfig
    retries: RetryList
    _is_listed: bool = False

    def next(self) -> Plan[Sequence[DueThread] | None]:
        """Return the threads to try, all at once. A trip for each of several."""
        if self._is_listed:
            self._is_listed = False
            return None
        # Threads whose claims must be watched come last, and have all been looked at by then: if a host has died with
        # many threads, a worker waits for one lease, and not for one after the other.
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
                options = {"durability": "sync"}  # so that another worker can continue where this one dies
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
        # A store that was away for a moment is no reason to leave the thread for good.
        again = self.retries.later if isinstance(error, StoreBusy | StoreUnavailable) else self.retries.done
        again(each)
        return Resumed(each.thread_id, error=error)


def _command_for(found: Mapping[str, Any], state: Any) -> Command[Any] | None:
    """Return what to resume a thread with; `None` if this graph asks none of that: it may be another one's thread."""
    asked = {interrupt.id for interrupt in state.interrupts}
    resume = {name: answer for name, answer in found.items() if name in asked}
    return Command(resume=resume) if resume else None
