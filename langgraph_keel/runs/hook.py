"""Detects the start and end of runs, and claims threads so that one run resumes.

A run with `Command` or `None` claims its thread, unless it starts from a checkpoint given by id, which forks. A run
with new input claims its thread when it asks a question. With `on_busy="wait"` it claims at its start, and waits in
line for that (`turns`).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import re
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal
from uuid import UUID
from weakref import WeakSet

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel._langgraph import ERROR, INTERRUPT, exit_of, register_configure_hook, var_child_runnable_config
from langgraph_keel.approvals.asked import without_replaced, without_spent
from langgraph_keel.approvals.questions import close_all_unstored
from langgraph_keel.engine import runs as live
from langgraph_keel.engine.checkpoints import storing
from langgraph_keel.engine.config import begins_run, run_of, thread_id_of
from langgraph_keel.engine.entries import next_nodes, waiting_tasks
from langgraph_keel.engine.errands import ErrandDriver
from langgraph_keel.engine.events import Put, Reading, Writes
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.leases import Keeper, Pause, Watch, is_dead, looks_alive, this_holder
from langgraph_keel.engine.plan import Plan, run
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, Kept
from langgraph_keel.errors import InvalidInput, ReadOnlyStore, SaverDraining, ThreadTaken, ThreadUnfinished
from langgraph_keel.runs import claims
from langgraph_keel.runs.claims import (
    CLAIMED,
    CLAIMS,
    KEY,
    LATE,
    LEASE,
    Claim,
    ClaimRecord,
    take,
    watch_claim,
)
from langgraph_keel.runs.records import PROCESSES, STOPS, TRIES
from langgraph_keel.runs.turns import LINES, Place, Ticket

_log = logging.getLogger(__name__)
PlainResume = Literal["allow", "refuse"]
OnBusy = Literal["raise", "wait"]
OnUnfinished = Literal["drop", "refuse"]
_AT_EXIT = 2.0
"""Maximum seconds that the end of a program waits for each saver."""
_SOON = 0.02
"""Initial polling interval of the next run in line, in seconds; at most `LATE`."""
_PATIENCE = 5.0
"""Maximum seconds to wait for other runs of the process that store on the thread.

Also for a run that has asked and is storing its question.
"""
_LOOKS, _TURN = 3, 0.001
"""Polls that must find no write in progress, and the seconds between them.

LangGraph takes two turns of an event loop from one checkpoint to the next, and until an abandoned stream is closed.
"""
_KEPT = "the claim of a thread, or the heartbeat of a process,"
_INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True)
class _Start:
    """A graph that has started."""

    run_id: UUID
    goes_on: bool  # whether it resumes a thread, without new input
    resume: Any  # its answer
    thread_id: object  # as passed by the caller, before LangGraph converts it to text
    run: live.LiveRun | None = None  # set once it has read its checkpoint


@dataclass(slots=True, eq=False)
class HeldThread:
    """A thread claimed by a run of this process."""

    claim: Claim
    run: live.LiveRun
    runs: RunClaims
    session: Session
    was_at_question: bool = False  # the run was only asking at the last renewal of the claim
    is_settled: bool = False  # the claim was made or refused, and the questions of a dead run are closed

    @property
    def token(self) -> str:
        """The token of the claim."""
        return self.claim.token

    @property
    def work(self) -> str:
        """The run, for the log."""
        return self.claim.work

    def renew(self) -> bool:
        """Renew the claim, or release it if the run only asks; return whether it is ours."""
        is_at_question = run(_is_at_question(self.session, self.run), self.session.driver)
        if is_at_question and self.was_at_question:
            _give_up(self.run, self.claim)
            self.release()
            return True
        self.was_at_question = is_at_question
        until = self.runs.clock() + self.runs.lease
        return run(claims.renew(self.session, self.claim, until), self.session.driver)

    def release(self) -> None:
        """Release the claim."""
        self.runs.keeper.drop(self)
        driver = ErrandDriver(self.session.driver, Pause)
        run(self.runs.wait_for_stored(self.session, self.claim.thread_id), driver)
        run(claims.release(self.session, self.claim, _token()), driver)


class _RunHandler(BaseCallbackHandler):
    """LangChain calls it when a graph, or another chain, starts or ends. One per run.

    A graph starts in the context in which LangGraph then reads its checkpoint from the saver. It ends after everything
    is stored, also after an error, a cancellation or a closed stream. Ids do not identify runs, as programs choose
    them.
    """

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self._start: _Start | None = None

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, metadata: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """Record a graph that starts; it replaces earlier ones of this context."""
        from langgraph.types import Command

        if self._start is not None:  # the program passes the callbacks of one run to another, which also has its own
            return
        is_command = type(inputs) is Command
        resume, thread_id = inputs.resume if is_command else None, (metadata or {}).get("thread_id")
        self._start = _Start(run_id, is_command or inputs is None, resume, thread_id)
        _start.set(self._start)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **more: Any) -> None:
        """Release the claims of the run."""
        self._end(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """Release the claims of the run, once it no longer stores anything."""
        run = self._run_of(run_id)
        if run is not None and (left := exit_of(error)):
            left.add_done_callback(lambda _: self._end(run_id, error))
        else:
            self._end(run_id, error)

    def _run_of(self, run_id: UUID) -> live.LiveRun | None:
        return self._start.run if self._start and self._start.run_id == run_id else None

    def _end(self, run_id: UUID, error: BaseException | None) -> None:
        run = self._run_of(run_id)
        if run is None:
            return
        held = held_threads.pop(run, None)
        # The garbage collector may close a generator at any point: a store request there could wait for a lock that its
        # own thread holds.
        later = run.is_async or isinstance(error, GeneratorExit)
        if run.on_end:
            run.on_end(error, later)
        if held:
            held.runs.end(held, later)
        live.end_run(run)  # last, as code that waits for the end of runs may then close the store


class _Handlers:
    """Provides LangChain with a handler for each run."""

    def get(self) -> _RunHandler:
        """Return a new handler."""
        return _RunHandler()


_start: ContextVar[_Start | None] = ContextVar("keel_start", default=None)
begins_at: ContextVar[tuple[str, str] | None] = ContextVar("keel_begins_at", default=None)
"""The thread and checkpoint from which a run of this context must start."""
held_threads: dict[live.LiveRun, HeldThread] = {}
_all: WeakSet[RunClaims] = WeakSet()
# The prefix of this process's tokens: our own claim is over when its run is over, released or not.
_ours = secrets.token_hex(8)


@cache
def watch() -> None:
    """Register the handler with LangChain, once."""
    register_configure_hook(_Handlers(), inheritable=False)
    live.watch()


def _token() -> str:
    return _ours + secrets.token_hex(8)


def _now() -> int:
    return time.time_ns() // 1_000_000


class RunClaims(Hook):
    """Claims and releases threads for a saver's runs. `lease` is in milliseconds."""

    hears_replays = True
    tables = (CLAIMS, LINES, STOPS, TRIES)
    shared_tables = (PROCESSES,)

    def __init__(
        self,
        plain_resume: PlainResume = "allow",
        on_busy: OnBusy = "raise",
        busy_timeout: float = 60.0,
        on_unfinished: OnUnfinished = "drop",
        drain: live.Drain | None = None,
        lease: int = LEASE,
    ) -> None:
        self._plain_resume = plain_resume
        self._waits = on_busy == "wait"
        self._timeout = busy_timeout
        self._refuses = on_unfinished == "refuse"
        self.drain = drain or live.Drain()
        self.lease = lease
        self.clock = _now
        self.timer = time.monotonic
        self.watch = Watch(lease / 1000, lambda: self.timer())
        self.patience = _PATIENCE
        self.keeper: Keeper[Any] = Keeper(lease / 3000, lambda each: each.renew(), _KEPT)
        _all.add(self)

    def begin(self, session: Session, reading: Reading) -> Plan[None]:
        """Claim the thread that a run is about to read, if it resumes it; else no trip."""
        # Before the read, as a late run must read the head left by the other one. So it also waits for other runs of
        # this process that are storing there: a cancelled run may do so for some time.
        start = _start.get()
        if start is None or not begins_run(reading.config):
            if storing and _may_wait(reading):  # an update of the state, or a subgraph: the run around it may store
                namespace = None if run_of(reading.config) is None else reading.address.checkpoint_ns
                yield from self.wait_for_stored(session, reading.address.thread_id, namespace=namespace)
            return
        _start.set(None)  # a run that starts from a checkpoint id reads twice
        self._check_resume(start.resume)
        thread_id = reading.address.thread_id
        if start.thread_id is not None and str(start.thread_id) == thread_id:
            thread_id_of(start.thread_id)  # LangGraph converts even a list to text
        may_fork = reading.address.checkpoint_id or session.on_conflict != "raise"
        goes_on_from_head = start.goes_on and not (start.resume is None and may_fork)
        # The runs around this call: a run started by one of their nodes must not wait for them, and ends with them.
        outer = live.find_runs(run_of(var_child_runnable_config.get() or {}))
        if not outer:
            self._check_drain(thread_id)
        has_thread = any(run in held_threads and run.thread_id == thread_id for run in outer)
        waits = self._waits and not goes_on_from_head and not has_thread
        if _may_wait(reading):
            has_others = any(run not in outer for run in live.find_runs_on(session.store, thread_id))
            yield from self.wait_for_stored(session, thread_id, has_others)
        run = live.begin_run(start.run_id, thread_id, session.store, reading.config, reading.is_async)
        start.run, reading.notes[self], run.goes_on = run, (run, start), start.goes_on
        run.answers = start.resume if _is_by_id(start.resume) else {}
        run.drain = self.drain
        if self.drain.reason:  # set since the check above
            run.control.request_drain(self.drain.reason)
        if goes_on_from_head:
            # A run that only asks gives up its thread. Without such a run in this process, this costs no trip.
            held = self._new_claim(run, session)
            asking = yield from self._wait_for_questions(held)
            yield from self._take(held, asking)
            for each in asking:
                _give_up(each, held.claim)
        elif waits:
            yield from self._take(self._new_claim(run, session), waits=True)

    def read(self, session: Session, reading: Reading) -> Plan[None]:
        """Record where a run starts, and remove answers that were used or are replaced."""
        if self in reading.notes and (wanted := begins_at.get()):
            yield from self._check_head(session, reading.notes[self][0], wanted, reading.result)
        if reading.result is None:
            return
        if self in reading.notes:
            run, start = reading.notes[self]
            run.began_at = reading.result.checkpoint["id"]
            if self._refuses and not (start.goes_on or reading.address.checkpoint_id):
                yield from self._refuse_unfinished(session, run, reading.result)
            if start.goes_on:
                reading.result = yield from without_spent(session, reading, _is_by_id(start.resume))
        elif not reading.address.checkpoint_ns:
            return
        for run in live.find_runs(run_of(reading.config)):
            if run.answers and not reading.is_revived:
                reading.result = without_replaced(reading, session.codec, run.answers)

    def _refuse_unfinished(self, session: Session, run: live.LiveRun, head: CheckpointTuple) -> Plan[None]:
        """Refuse new input for a thread with steps left, leaving it unchanged."""
        nodes = next_nodes(head.checkpoint, head.checkpoint["channel_values"])
        if nodes or head.pending_writes:
            yield from self._withdraw(session, run)
            raise ThreadUnfinished(run.thread_id, nodes, bool(waiting_tasks(head.pending_writes or ())))

    def _check_head(
        self, session: Session, run: live.LiveRun, wanted: tuple[str, str], head: CheckpointTuple | None
    ) -> Plan[None]:
        """Refuse a run that does not start at the wanted checkpoint: another was faster."""
        begins = run.thread_id, head.checkpoint["id"] if head else None
        if begins != wanted and run.thread_id == wanted[0]:
            yield from self._withdraw(session, run)
            raise ThreadTaken(run.thread_id, this_holder(), session.now)

    def _withdraw(self, session: Session, run: live.LiveRun) -> Plan[None]:
        """Release the claim and leave the thread unchanged. One trip, or none."""
        if held := held_threads.get(run):
            self.keeper.drop(held)
            yield from claims.give_back(session, held.claim)
            held_threads.pop(run, None)

    def draft_put(self, session: Session, put: Put) -> None:
        """Mark a checkpoint whose run has claimed the thread."""
        if held_threads and not put.address.checkpoint_ns and live.find_run(put.config) in held_threads:
            put.header.about[CLAIMED] = True

    def before_writes(self, session: Session, writes: Writes) -> Plan[None]:
        """Claim the thread for a run that asks; record that writes are in progress."""
        if _asks(writes):
            yield from self.claim_to_ask(session, writes.address.thread_id, writes.config)
        if not writes.address.checkpoint_ns and any(channel in (INTERRUPT, ERROR) for channel, _ in writes.writes):
            yield from self._wait_for_puts(session, writes.address.thread_id)
        storing[writes] = session.store, writes.address.thread_id

    def _wait_for_puts(self, session: Session, thread_id: str) -> Plan[None]:
        """Wait until this process stores no checkpoint of a thread, with a limit. No trip."""
        # Lists find a thread by marks of its tasks' writes, which are stored in the row created by its first
        # checkpoint. Two concurrent transactions of PostgreSQL do not see each other.
        until = self.timer() + self.patience
        while _is_storing(session, thread_id, Put) and self.timer() < until:
            yield Pause(_TURN)

    def writes_failed(self, session: Session, writes: Writes, error: BaseException) -> None:
        """Record that the writes are not stored."""
        storing.pop(writes, None)

    def after_writes(self, session: Session, writes: Writes) -> None:
        """Record that the writes of a task are stored."""
        storing.pop(writes, None)
        if not writes.address.checkpoint_ns:
            for each in live.find_runs(run_of(writes.config)):
                each.end_task(writes.task_id, writes.address.checkpoint_id if _asks(writes) else None)

    def claim_to_ask(self, session: Session, thread_id: str, config: Mapping[str, Any]) -> Plan[None]:
        """Claim the thread for a run with new input at its first question; else no trip.

        The answer may arrive while other tasks of the step run, and a run resumed then would run those again. If two
        tasks of a run ask concurrently, one claims and the other waits, as the claim closes older requests.
        """
        runs = [each for each in live.find_runs(run_of(config)) if each.thread_id == thread_id]
        run = next((each for each in runs if each not in held_threads), None)
        held = self._new_claim(run, session) if run else None
        if run is None or held is None or held_threads.setdefault(run, held) is not held:
            while any((claiming := held_threads.get(each)) and not claiming.is_settled for each in runs):
                yield Pause(_SOON)
            return
        try:
            yield from self._take(held)
        except ThreadTaken as error:
            _log.info("%s", error)  # one of two runs with new input gets a `CheckpointConflict`

    def wait_for_stored(
        self, session: Session, thread_id: str, has_others: bool = False, namespace: str | None = None
    ) -> Plan[None]:
        """Wait until this process stores nothing on a thread, or in one namespace of it, with a limit. No trip."""
        # A cancelled run, or an abandoned stream that is not closed yet, may still store. Between two checkpoints of a
        # run no write is in progress, so several polls must find none.
        if not (has_others or _is_storing(session, thread_id, namespace=namespace)):
            return
        until, looks, pause = self.timer() + self.patience, _LOOKS if has_others else 0, _TURN
        while self.timer() < until:
            if _is_storing(session, thread_id, namespace=namespace):
                looks, pause = _LOOKS, min(2 * pause, _SOON)
            elif looks:
                looks, pause = looks - 1, _TURN
            else:
                return
            yield Pause(pause)

    def forget(self) -> None:
        """Reset in a forked child."""
        self.keeper.forget()
        storing.clear()

    def _wait_for_turn(self, held: HeldThread) -> Plan[None]:
        """Claim a thread once no run has it and no earlier run waits. Two trips if idle."""
        claim, until = held.claim, self.timer() + self._timeout
        ticket = Ticket(claim.token, claim.record.holder, claim.record.since)
        place = Place(held.session, claim.thread_id, ticket, self.lease / 1000, self.timer)
        try:
            while True:
                self._check_drain(claim.thread_id)
                ahead = yield from place.look()
                if ahead:
                    holder, since = ahead[0].holder, ahead[0].since
                else:
                    claim.record = replace(claim.record, until=self.clock() + self.lease)
                    try:
                        # This loop also polls claims that must be watched.
                        return (yield from take(held.session, claim, lambda *of: bool(self.is_over(*of)), self.timer))
                    except ThreadTaken as error:
                        holder, since = error.holder, error.since
                if self.timer() >= until:
                    raise ThreadTaken(claim.thread_id, holder, since, self._timeout)
                yield from place.stay()
                yield Pause(min(_SOON * (1 + len(ahead)), LATE))
        finally:
            if place.is_to_leave:
                # In the keeper's thread: the run may be cancelled, and must not block its loop.
                self.keeper.defer(lambda: run(place.leave(), held.session.driver))

    def _new_claim(self, run: live.LiveRun, session: Session) -> HeldThread:
        now = self.clock()
        since = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds")
        record = ClaimRecord(this_holder(), str(run.run_id), now + self.lease, since)
        return HeldThread(Claim(run.thread_id, _token(), record), run, self, session)

    def _check_drain(self, thread_id: str) -> None:
        if reason := self.drain.reason:
            raise SaverDraining(thread_id, reason)

    def _check_resume(self, resume: Any) -> None:
        if resume is not None and self._plain_resume == "refuse" and not _is_by_id(resume):
            raise InvalidInput(
                "Command(resume=value) answers any question that is open when it arrives, so a second click answers "
                "the next question. This saver refuses it (plain_resume='refuse'): name the interrupt, "
                "Command(resume={id: value})"
            )

    def _wait_for_questions(self, held: HeldThread) -> Plan[Collection[live.LiveRun]]:
        """Wait until this process's runs of a thread only ask, and return them."""
        until = self.timer() + self.patience
        while asking := live.find_asking(held.session.store, held.claim.thread_id):
            if self.timer() >= until:
                return ()
            yield Pause(_SOON)  # a run whose stream is consumed ends in this time
            for each in asking:
                if not (yield from _is_at_question(held.session, each)):
                    break
            else:
                return asking
        return ()

    def _take(self, held: HeldThread, asking: Collection[live.LiveRun] = (), *, waits: bool = False) -> Plan[None]:
        """Claim a thread; if it replaces a dead run's claim, close its unstored requests."""
        given_up = {held_threads[run].token for run in asking if run in held_threads}
        try:
            held_threads[held.run] = held
            if waits:
                yield from self._wait_for_turn(held)
            else:
                yield from take(
                    held.session,
                    held.claim,
                    lambda other, asked: other.token in given_up or self.is_over(other, asked),
                    self.timer,
                )
        except (ThreadTaken, SaverDraining):
            del held_threads[held.run]
            raise
        except ReadOnlyStore:
            del held_threads[held.run]  # neither the saver nor the run stores anything
        else:
            self.keeper.hold(held)
            if held.claim.expected:
                yield from close_all_unstored(held.session, held.claim.thread_id)
        finally:
            held.is_settled = True

    def is_over(self, claim: Kept[ClaimRecord], asked: float) -> bool | None:
        """Return whether a claim is over: see `IsOver`. Other hosts' clocks do not decide."""
        if claim.token.startswith(_ours):
            return all(held.token != claim.token for held in list(held_threads.values()))
        record = claim.record
        if not record.until or is_dead(record.holder):
            return True
        is_over = self.watch.is_over(claim.token, record.until, asked)
        return False if is_over is None and looks_alive(record.until, self.lease, self.clock()) else is_over

    def end(self, held: HeldThread, later: bool) -> None:
        """Release a run's claim: immediately, or `later` in the keeper's thread."""
        if later:
            self.keeper.defer(held.release)
            return
        try:
            held.release()
        except Exception as error:
            _log.warning(
                "%s; its claim is not released and expires after %d s: %s", held.work, self.lease // 1000, error
            )

    def close(self, timeout: float = 5.0) -> None:
        """Release the claims of ended runs, for at most `timeout` seconds; stays usable."""
        self.keeper.flush(timeout)


def is_taken(session: Session, thread_id: str) -> Plan[bool]:
    """Return whether a run has claimed a thread, by one read. One trip."""
    _, is_over = yield from find_claim(session, thread_id)
    return is_over is False


def find_claim(session: Session, thread_id: str) -> Plan[tuple[ClaimRecord | None, bool | None]]:
    """Return a thread's claim, and whether it is over (`None`: unknown). One trip."""
    found, is_over = yield from judge_claim(session, thread_id)
    return found.record if found else None, is_over


def is_in_doubt(session: Session, thread_id: str) -> Plan[bool]:
    """Return whether a thread's claim must be watched, and start that. One trip."""
    _, is_over = yield from judge_claim(session, thread_id)
    return is_over is None


def may_be_taken(session: Session, thread_id: str, *, watches: bool) -> Plan[bool]:
    """Return whether a run may have a thread. One trip; more, up to a lease, to watch."""
    is_watched = False
    while True:
        found, is_over = yield from judge_claim(session, thread_id)
        if found is None or is_over is not None or not watches:
            return not is_over
        is_watched = yield from watch_claim(thread_id, found.record, is_watched)


def judge_claim(session: Session, thread_id: str) -> Plan[tuple[Kept[ClaimRecord] | None, bool | None]]:
    """Return the claim of a thread, and whether it is over: see `IsOver`. One trip."""
    runs = session.hooks.find(RunClaims)
    asked = runs.timer() if runs else 0.0
    found = yield from Cells(session, CLAIMS, thread_id).find(KEY)
    return found, found is None or (runs is not None and runs.is_over(found, asked))


def _asks(writes: Writes) -> bool:
    return any(channel == INTERRUPT for channel, _ in writes.writes)


def _is_at_question(session: Session, run: live.LiveRun) -> Plan[bool]:
    """Return whether a run only asks, and everything is stored. One trip, or none."""
    if not run.is_at_question:
        return False
    return bool((yield from session.store.scan(Query(run.thread_id, "", run.asked_at, limit=1))))


def _give_up(left: live.LiveRun, claim: Claim) -> None:
    """Stop a run that only asks: its thread is claimed by another run, or free."""
    live.refuse_run(left, ThreadTaken(claim.thread_id, claim.record.holder, claim.record.since))
    if held := held_threads.pop(left, None):
        held.runs.keeper.drop(held)


def _may_wait(reading: Reading) -> bool:
    """Return whether a read may wait: in a loop, a sync one would block its writes."""
    return reading.is_async or asyncio._get_running_loop() is None


def _is_storing(session: Session, thread_id: str, kind: type[Put] | None = None, namespace: str | None = None) -> bool:
    """Return whether this process has writes (of a kind, or in a namespace) in progress on a thread."""
    return any(
        store is session.store
        and thread == thread_id
        and (kind is None or type(new) is kind)
        and namespace in (None, new.address.checkpoint_ns)
        for new, (store, thread) in list(storing.items())
    )


def _is_by_id(resume: Any) -> bool:
    # The same test as LangGraph's.
    return isinstance(resume, dict) and all(isinstance(key, str) and _INTERRUPT_ID.fullmatch(key) for key in resume)


def keepers_of(drain: live.Drain) -> Sequence[Keeper[Any]]:
    """Return the keepers of a saver and of its tenant views."""
    return [each.keeper for each in list(_all) if each.drain is drain]


@atexit.register
def _at_exit() -> None:
    for runs in list(_all):
        runs.close(_AT_EXIT)


def _after_fork() -> None:
    # Runs and claims belong to the parent.
    global _ours
    _ours = secrets.token_hex(8)
    held_threads.clear()
    live.forget_runs()
    for runs in list(_all):
        runs.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
