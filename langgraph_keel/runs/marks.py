"""Marks of checkpoints (`recoverable=True`): a run's process, and why it stopped.

Each checkpoint that a run stores in its root graph has a mark of 8 bytes, which identifies the saver of a process. The
saver renews one heartbeat for all its runs. If a run ends with steps left, and the saver is notified of its end, it
records the reason. A run is cut off if its heartbeat has expired and no reason was recorded.
"""

from __future__ import annotations

import logging
import os
import secrets
from asyncio import CancelledError
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from langgraph_keel._langgraph import CONFIG_KEY_RUNTIME, ERROR
from langgraph_keel.engine import runs as live
from langgraph_keel.engine.config import Address, begins_run, run_of
from langgraph_keel.engine.entries import MARK, Header
from langgraph_keel.engine.events import Put, Reading, Writes
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.leases import Keeper, is_alive, is_dead, this_holder
from langgraph_keel.engine.plan import Plan, run
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, Kept
from langgraph_keel.errors import CheckpointConflict, StoreBusy, StoreUnavailable
from langgraph_keel.runs.claims import CLAIMED, ClaimRecord
from langgraph_keel.runs.hook import RunClaims, judge_claim
from langgraph_keel.runs.records import LAST, PROCESSES, STOPS, ProcessRecord, Stop, Why

_log = logging.getLogger(__name__)
NOBODY = 1 << 63
"""The mark of a checkpoint stored outside of runs, such as by `update_state`."""
ACCEPTED = NOBODY + 1
"""The mark of accepted input, which any process may run: see `KeelSaver.accept`."""
_BY_HAND = {NOBODY: "updated", ACCEPTED: "accepted"}
_RANDOM = 0x3F7F_7F7F_7F7F_7F7F
"""The random bits of a mark. It has no byte from 0xC4 to 0xC6, for which a serializer would search the header."""
_NODES = "nodes"
"""Key in a header's `about` for accepted input: the nodes of its graph."""
IDLE = 30
"""Heartbeats without a run or worker after which a saver removes its heartbeat."""
_INCOMPLETE = "status:incomplete"


def write_stop(session: Session, thread_id: str, stop: Stop) -> Plan[bool]:
    """Record why a thread's last run stopped; return `False` if another run has it.

    Two trips, and one more to replace an older record.
    """
    claim, is_over = yield from judge_claim(session, thread_id)
    if claim is not None and is_over is False:
        return False
    cells = Cells(session, STOPS, thread_id)
    yield from cells.overwrite_raw(LAST, cells.cell(replace(stop, claim=claim.token if claim else "")))
    return True


_all: WeakSet[Marks] = WeakSet()
_accepts: ContextVar[Sequence[str] | None] = ContextVar("keel_accepts", default=None)


@contextmanager
def accepting(nodes: Iterable[str]) -> Iterator[None]:
    """Mark checkpoints stored in this block as accepted input of a graph with `nodes`."""
    # Stored with the checkpoint: after a crash between two writes, it would be neither idle nor accepted.
    token = _accepts.set(sorted(nodes))
    try:
        yield
    finally:
        _accepts.reset(token)


class Marks(Hook):
    """Marks a saver's checkpoints, renews its heartbeat, records why its runs stop."""

    def __init__(self, keeper: Keeper[Any]) -> None:
        self._keeper = keeper
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Reset in a forked child: mark, heartbeat and runs belong to the parent."""
        self.mark = NOBODY | secrets.randbits(64) & _RANDOM
        self._term = f"by:{key_of(self.mark)}"
        self.token = secrets.token_hex(16)  # of the heartbeat's cell; known before the first request
        self.stops: dict[str, Stop] = {}  # not written yet, by thread
        self._session: Session | None = None  # if set, the heartbeat is stored
        self._beat = self._idle = 0

    @property
    def work(self) -> str:
        """The reason for the heartbeat, for the log."""
        return f"runs of {this_holder()} are active"

    # -- marks -----------------------------------------------------------------------------------------------------

    def begin(self, session: Session, reading: Reading) -> None:
        """Register for the end of a run that starts."""
        if begins_run(reading.config) and (begun := live.find_run(reading.config)):
            begun.on_end = partial(self._end, session, begun)

    def draft_put(self, session: Session, put: Put) -> None:
        """Mark a checkpoint of a root graph."""
        if put.address.checkpoint_ns:
            return
        if found := live.find_run(put.config):
            put.notes[self] = found
            put.header.about[MARK] = self.mark
            put.terms.append(self._term)
        elif CONFIG_KEY_RUNTIME not in (put.config.get("configurable") or {}):
            nodes = _accepts.get()
            put.header.about.update({MARK: NOBODY} if nodes is None else {MARK: ACCEPTED, _NODES: nodes})

    def before_put(self, session: Session, put: Put) -> Plan[None] | None:
        """Store the heartbeat before the first checkpoint that refers to it."""
        return self._begin_heartbeat(session) if self._session is None and self in put.notes else None

    def keep_alive(self, session: Session) -> Plan[None]:
        """Keep the heartbeat while a worker polls. One trip if it is not stored."""
        self._idle = 0
        if self._session is None:
            yield from self._begin_heartbeat(session)

    def _begin_heartbeat(self, session: Session) -> Plan[None]:
        cells = Cells(session, PROCESSES, None)
        record = ProcessRecord(this_holder(), self._beat, session.now)
        yield from cells.swap_raw(key_of(self.mark), None, cells.cell(record, token=self.token))
        self._session = session
        self._keeper.hold(self)

    def after_put(self, session: Session, put: Put) -> None:
        """Record the checkpoint that its run would leave."""
        if found := put.notes.get(self):
            found.left = (str(put.address.checkpoint_id),) if _INCOMPLETE in put.terms else ()

    def put_failed(self, session: Session, put: Put, error: BaseException) -> None:
        """Record that a checkpoint may have been stored anyway."""
        if (found := put.notes.get(self)) and not isinstance(error, CheckpointConflict):
            found.left = (*_left_by(found), str(put.address.checkpoint_id))

    def after_writes(self, session: Session, writes: Writes) -> None:
        """Record that a task has failed, and its error is stored."""
        if not writes.address.checkpoint_ns and any(channel == ERROR for channel, _ in writes.writes):
            for found in live.find_runs(run_of(writes.config)):
                found.failed_at = writes.address.checkpoint_id

    # -- the end of a run --------------------------------------------------------------------------------------------

    def _end(self, session: Session, ended: live.LiveRun, error: BaseException | None, later: bool) -> None:
        """Record why a run has stopped, if it leaves steps without a question or failure."""
        left = ended.left or () if error is None else _left_by(ended)
        if not left or ended.refusal or not {ended.asked_at, ended.failed_at}.isdisjoint(left):
            return
        drains = ended.drain is not None and bool(ended.drain.reason)
        self.stops[ended.thread_id] = stop = Stop(left, _why(error, drains))
        write = partial(self._write_stop, session, ended.thread_id, stop)
        if later:
            self._keeper.defer(write)
            return
        try:
            write()
        except Exception as failure:
            _log.warning("thread %r: the reason why its run stopped is not recorded yet: %s", ended.thread_id, failure)

    def _write_stop(self, session: Session, thread_id: str, stop: Stop) -> None:
        """Store a stop; if the store fails, retry with the next heartbeat."""
        if self.stops.get(thread_id) is stop:
            run(write_stop(session, thread_id, stop), session.driver)
            if self.stops.get(thread_id) is stop:
                del self.stops[thread_id]

    # -- the heartbeat -----------------------------------------------------------------------------------------------

    def renew(self) -> bool:
        """Renew the heartbeat, or remove it if idle. Runs in the keeper's thread."""
        session = self._session
        if session is None:
            return False
        for thread_id, stop in list(self.stops.items()):
            self._keeper.defer(partial(self._write_stop, session, thread_id, stop))
        self._idle = 0 if live.find_runs_of(session.store) else self._idle + 1
        if self._idle >= IDLE and self._end_heartbeat(session):
            return True
        self._beat += 1
        cells = Cells(session, PROCESSES, None)
        cell = cells.cell(ProcessRecord(this_holder(), self._beat, session.now), token=self.token)
        for expected in (self.token, None):  # removed if this process was considered dead
            if run(cells.swap_raw(key_of(self.mark), expected, cell), session.driver).done:
                break
        return True

    def _end_heartbeat(self, session: Session) -> bool:
        """Remove the heartbeat if no run is active and no stop unwritten; return success."""
        # In this order: a run that starts now is either seen here, or sees that its first write must store a heartbeat.
        self._session = None
        if live.find_runs_of(session.store) or self.stops:
            self._session = session
            return False
        self._keeper.drop(self)
        run(Cells(session, PROCESSES, None).remove({key_of(self.mark): self.token}), session.driver)
        return True

    def close(self) -> None:
        """Remove the heartbeat. If a run is still active, it expires after a lease."""
        if (session := self._session) is not None:
            try:
                self._end_heartbeat(session)
            except Exception as error:
                _log.warning("the heartbeat of %s could not be removed: %s", this_holder(), error)

    def before_sweep(self, session: Session, remind_after: float | None) -> Plan[Sequence[Any]]:
        """Remove the heartbeats of dead processes."""
        cells, asked = Cells(session, PROCESSES, None), _timer(session)
        kept = yield from cells.every()
        dead = {key: each.token for key, each in kept if _is_over(session, key, each, asked)}
        if dead:
            yield from cells.remove(dead)
        return ()


def _left_by(ended: live.LiveRun) -> tuple[str, ...]:
    """Return the last checkpoints of an interrupted run: its start if it stored none."""
    if ended.left is not None:
        return ended.left
    return (ended.began_at,) if ended.goes_on and ended.began_at else ()


def _why(error: BaseException | None, drains: bool) -> Why:
    from langgraph.errors import GraphDrained

    if error is None:
        return "breakpoint"
    is_cancelled = isinstance(error, GeneratorExit | CancelledError | KeyboardInterrupt | SystemExit)
    # The end of a process cancels runs that have not ended within the grace time of a drain.
    if isinstance(error, GraphDrained) or (is_cancelled and drains):
        return "drained"
    if is_cancelled:
        return "cancelled"
    return "unreachable" if isinstance(error, StoreUnavailable | StoreBusy) else "failed"


# -- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on a thread's last run, if it left steps, no question and no failure.

    Attributes:
        state: `"runs"`, `"cut off"`, `"stopped"`; or `"unfinished"`, if its process must be watched for a lease.
        why: Why it has ended, if recorded: see `Why`; `"updated"` if the latest checkpoint is not from a run.
        holder: The process that runs it, or that must be watched; empty if unknown.
        is_second: Whether it was cut off while resuming a run that had been cut off.
    """

    state: Literal["runs", "cut off", "stopped", "unfinished"]
    why: str = ""
    holder: str = ""
    is_second: bool = False


Processes: TypeAlias = MutableMapping[int, tuple[str, bool | None]]
"""Holders by mark, and whether each is over: a cache across threads."""


def judge_run(
    session: Session,
    head: Address,
    about: Mapping[str, Any],
    claim: Kept[ClaimRecord] | None,
    is_over: bool | None,
    processes: Processes | None = None,
) -> Plan[Verdict | None]:
    """Return the verdict on a thread without a run in this process or a live claim.

    At most two trips; none if the checkpoint has no mark.

    Args:
        session: The session of the saver.
        head: The latest checkpoint.
        about: The data that hooks have added to its header.
        claim: The claim of the thread by a resuming run, if any.
        is_over: Whether that claim is over; `None` if it must be watched.
        processes: Known verdicts on processes; new ones are added.

    Returns:
        The verdict; `None` if the checkpoint has no mark.
    """
    mark, hook = mark_in(about), session.hooks.find(Marks)
    if mark is None:
        return None
    stop = hook.stops.get(head.thread_id) if hook else None
    if stop is None or head.checkpoint_id not in stop.checkpoints:
        found = yield from Cells(session, STOPS, head.thread_id).find(LAST)
        stop = found.record if found and head.checkpoint_id in found.record.checkpoints else None
    if stop is not None and (claim is None or claim.token == stop.claim):
        return Verdict("cut off" if stop.why == "unreachable" else "stopped", stop.why)
    if claim is not None and is_over is None:
        return Verdict("unfinished", holder=claim.record.holder)
    if stop is not None or (mark in _BY_HAND and claim is not None):
        return Verdict("cut off")  # the run that resumed the thread
    if mark in _BY_HAND:
        return Verdict("stopped", _BY_HAND[mark])
    known = processes if processes is not None else {}
    if mark not in known:
        known[mark] = (this_holder(), True) if hook and mark == hook.mark else (yield from judge_process(session, mark))
    holder, is_gone = known[mark]
    if is_gone:
        return Verdict("cut off", is_second=claim is not None and CLAIMED not in about)
    return Verdict("runs" if is_gone is False else "unfinished", holder=holder)


def mark_in(about: Mapping[str, Any]) -> int | None:
    """Return the mark in the header of a checkpoint; `None` if it has none."""
    mark = about.get(MARK)
    return mark if type(mark) is int and mark >> 63 == 1 else None


def nodes_known(header: Header) -> set[str]:
    """Return known nodes of a thread's graph: executed ones, and those of its input."""
    named, seen = header.about.get(_NODES), header.checkpoint.get("versions_seen") or {}
    found = (*seen, *(named if isinstance(named, list) else ()))
    return {node for node in found if isinstance(node, str) and not node.startswith("__")}


def key_of(mark: int) -> str:
    """Return the key of the heartbeat of a process."""
    return f"{mark:x}"


def judge_process(session: Session, mark: int) -> Plan[tuple[str, bool | None]]:
    """Return the process of a mark, and whether its runs are over (`None`: watch it).

    Clocks are not used: a process of this machine is alive or not, and the heartbeat of another machine's process is
    watched for a lease. One trip.
    """
    asked = _timer(session)
    found = yield from Cells(session, PROCESSES, None).find(key_of(mark))
    if found is None:  # it is removed only if no run is left
        return "", True
    return found.record.holder, _is_over(session, key_of(mark), found, asked)


def read_processes(session: Session) -> Plan[Sequence[ProcessRecord]]:
    """Return the heartbeats of processes that recently ran graphs, except dead ones."""
    cells, asked = Cells(session, PROCESSES, None), _timer(session)
    kept = yield from cells.every()
    return [each.record for key, each in kept if not _is_over(session, key, each, asked)]


def _is_over(session: Session, key: str, found: Kept[ProcessRecord], asked: float) -> bool | None:
    holder, runs = found.record.holder, session.hooks.find(RunClaims)
    if is_dead(holder):
        return True
    is_over = runs.watch.is_over(key, found.record.beat, asked) if runs else None
    return False if is_over is None and is_alive(holder) else is_over


def _timer(session: Session) -> float:
    runs = session.hooks.find(RunClaims)
    return runs.timer() if runs else 0.0


def _after_fork() -> None:
    for marks in list(_all):
        marks.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
