"""Workers: threads are resumed as decisions about them arrive.

A poll is one listing of the open requests. Each run claims its thread (`runs.hook`), so a second worker is refused
before a node runs. A notice of a decision spares a worker the wait for its next poll; one that is lost costs a poll.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph import errors
from langgraph.types import Command

from langgraph_keel._langgraph import CONFIG_KEY_STRICT_RESUME
from langgraph_keel.approvals.notices import Bell
from langgraph_keel.approvals.plans import find_free_answers, find_interrupts, settled_in
from langgraph_keel.approvals.requests import CURRENT, SUPERSEDED, ApprovalRequest, Approvals, request_at
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.engine import Engine
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, StoreBusy, StoreUnavailable, ThreadTaken
from langgraph_keel.runs.hook import is_in_doubt

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
        error: What the graph raised instead. The worker does not try again before something else is decided there.
    """

    thread_id: str
    result: Any = None
    error: Exception | None = None


# -- which threads -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettledThread:
    """A thread of which some task has all its answers."""

    thread_id: str
    ids: frozenset[str]  # of the requests of such tasks
    since: str  # when the first of them was decided, ISO time
    owner: str


def find_settled(session: Session) -> Plan[Sequence[SettledThread]]:
    """Return the threads that may go on, those first that have waited longest. A trip for each 1,000 requests."""
    by_thread: defaultdict[str, list[ApprovalRequest]] = defaultdict(list)
    now = session.now
    for held in (yield from Approvals(session).all(CURRENT)):
        if held.request.status != SUPERSEDED:
            by_thread[held.request.thread_id].append(request_at(held.request, now))
    found: list[SettledThread] = []
    for thread_id, requests in by_thread.items():
        done = settled_in(requests)
        if any(request.interrupt_id for request in done):
            since = min(request.decision.at if request.decision else "" for request in done)
            found.append(SettledThread(thread_id, frozenset(request.id for request in done), since, done[0].owner))
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
        # The ids of the settled requests that it was tried with, since when, and when to try again.
        self._known: dict[str, tuple[frozenset[str], float, float]] = {}

    def due(self, found: Sequence[SettledThread]) -> Sequence[SettledThread]:
        """Return what is to be tried, of a listing."""
        now, known = time.monotonic(), self._known
        self._known = {
            each.thread_id: known[each.thread_id]
            for each in found
            if each.thread_id in known and known[each.thread_id][0] == each.ids
        }
        return [each for each in found if each.thread_id not in self._known or self._known[each.thread_id][2] <= now]

    def done(self, each: SettledThread) -> None:
        """Do not try it again before something else is decided there."""
        self._known[each.thread_id] = each.ids, inf, inf

    def later(self, each: SettledThread) -> None:
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


def _find_due(session: Session, retries: RetryList) -> Plan[Sequence[SettledThread]]:
    """Return the threads to try. A trip for each of several."""
    # Threads whose claims must be watched come last, and have all been looked at by then: if a host has died with many
    # threads, a worker waits for one lease, and not for one after the other.
    due = retries.due((yield from find_settled(session)))
    if len(due) == 1:
        return due
    last: list[SettledThread] = []
    for each in due:
        if (yield from is_in_doubt(session, each.thread_id)):
            last.append(each)
    return [*(each for each in due if each not in last), *last]


# -- going on ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Worker:
    """Continues the threads of a saver with a graph. Of `Inbox.run_when_decided`."""

    engine: Engine
    bell: Bell
    graph: Any
    config: RunnableConfig
    timer: PollTimer
    retries: RetryList

    def run(self) -> Iterator[Resumed]:
        """Yield threads that went on, until there was nothing to do for long enough."""
        with self.bell.notices() as notices:
            while True:
                did = False
                for each in self.engine.run(_find_due(self.engine.session, self.retries)):
                    if resumed := self._resume(each):
                        did = True
                        yield resumed
                if did:
                    self.timer.restart()
                elif seconds := self.timer.left:
                    notices.wait(seconds)
                else:
                    return

    def _resume(self, each: SettledThread) -> Resumed | None:
        config = self._config(each)
        try:
            found = self.engine.run(find_free_answers(self.engine.session, each.thread_id))
            command = _command_for(found, self.graph.get_state(config)) if found else None
            result = self.graph.invoke(command, config) if command else None
        except Exception as error:
            return self._fail(each, error)
        return self._finish(each, command, result)

    async def arun(self) -> AsyncIterator[Resumed]:
        """As `run`, asynchronously."""
        async with self.bell.anotices() as notices:
            while True:
                did = False
                for each in await self.engine.arun(_find_due(self.engine.session, self.retries)):
                    if resumed := await self._aresume(each):
                        did = True
                        yield resumed
                if did:
                    self.timer.restart()
                elif seconds := self.timer.left:
                    await notices.wait(seconds)
                else:
                    return

    async def _aresume(self, each: SettledThread) -> Resumed | None:
        config = self._config(each)
        try:
            found = await self.engine.arun(find_free_answers(self.engine.session, each.thread_id))
            command = _command_for(found, await self.graph.aget_state(config)) if found else None
            result = await self.graph.ainvoke(command, config) if command else None
        except Exception as error:
            return self._fail(each, error)
        return self._finish(each, command, result)

    def _config(self, each: SettledThread) -> RunnableConfig:
        # The owner, so that what the run asks next is the same person's.
        owner = {"user_id": each.owner} if each.owner else {}
        given = self.config.get("configurable") or {}
        return {**self.config, "configurable": {**owner, **given, **_STRICT, "thread_id": each.thread_id}}

    def _finish(self, each: SettledThread, command: Command[Any] | None, result: Any) -> Resumed | None:
        if command is None:
            self.retries.later(each)
            return None
        self.retries.done(each)
        return Resumed(each.thread_id, result)

    def _fail(self, each: SettledThread, error: Exception) -> Resumed | None:
        is_late = isinstance(error, ThreadTaken) and error.thread_id == each.thread_id
        if is_late or isinstance(error, _NOT_ASKED):
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
