"""The claim of a thread by a resuming run: one cell, changed by compare-and-set.

The run makes the claim before it reads the thread. Without it, two concurrent resumes would both run the node that
asked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from langgraph_keel.engine.leases import Pause, is_dead
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable, Kept
from langgraph_keel.errors import ThreadTaken

_log = logging.getLogger(__name__)
KEY = "run"
CLAIMED = "claimed"
"""Key in a header's `about`: the run of this checkpoint had claimed the thread."""
LEASE = 30_000
"""Milliseconds after which an unrenewed claim of another machine is abandoned."""
LATE = 0.5
"""Polling interval of a watched claim, in seconds."""


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """The run that has claimed a thread."""

    holder: str  # its process (see `langgraph_keel.engine.leases`)
    run_id: str  # as LangChain names it
    # Milliseconds since 1970 by the holder's clock (see `Watch`); increases with each renewal, 0 if abandoned.
    until: int
    since: str  # ISO time
    deaths: int = 0  # runs in a row whose processes have died with their claims in the thread


def _pack(record: ClaimRecord) -> list[Any]:
    return [record.holder, record.run_id, record.until, record.since, record.deaths]


def _unpack(parts: Sequence[Any]) -> ClaimRecord:
    if [type(part) for part in parts] != [str, str, int, str, int]:
        raise TypeError("it has parts of the wrong type")
    return ClaimRecord(*parts)


CLAIMS: CellTable[ClaimRecord] = CellTable("resume", "the claim of the run that resumes", _pack, _unpack, moves="never")


@dataclass(slots=True)
class Claim:
    """A claim that is ours, or one on its way."""

    thread_id: str
    token: str  # known before the first request
    record: ClaimRecord
    expected: str | None = None  # the token that the cell must have
    is_acknowledged: bool = False
    former: ClaimRecord | None = None  # the replaced claim, if another process abandoned it

    @property
    def work(self) -> str:
        """The run under the claim, for the log."""
        return f"run {self.record.run_id} has resumed thread {self.thread_id!r}"


IsOver: TypeAlias = Callable[[Kept[ClaimRecord], float], bool | None]
"""Whether a claim is over, given the start time of its read; `None`: watch it."""


def take(session: Session, claim: Claim, is_over: IsOver, timer: Callable[[], float] = time.monotonic) -> Plan[None]:
    """Claim a thread. One trip, or more to take over or watch another claim."""
    claims, is_watched = Cells(session, CLAIMS, claim.thread_id), False
    while True:
        asked = timer()
        done, other = yield from claims.swap(
            KEY, claim.expected, claim.record, token=claim.token, origin=claim.thread_id
        )
        if done:
            claim.is_acknowledged = True
            return
        if other is None or (is_left := is_over(other, asked)):
            claim.expected, claim.former = other.token if other else None, None
            if other and other.record.until and other.record.holder != claim.record.holder:
                claim.record, claim.former = replace(claim.record, deaths=other.record.deaths + 1), other.record
        elif is_left is None:
            is_watched = yield from watch_claim(claim.thread_id, other.record, is_watched)
        else:
            raise ThreadTaken(claim.thread_id, other.record.holder, other.record.since)


def watch_claim(thread_id: str, record: ClaimRecord, is_watched: bool) -> Plan[Literal[True]]:
    """Wait until a claim should be read again, with a warning the first time."""
    if not is_watched:
        _log.warning(
            "thread %r: a run on %s claimed it at %s and may be dead: watching for up to %d s whether it renews its "
            "claim",
            *(thread_id, record.holder.partition("/")[0], record.since, LEASE // 1000),
        )
    yield Pause(LATE)
    return True


def renew(session: Session, claim: Claim, until: int) -> Plan[bool]:
    """Extend a claim; return whether it is still ours. One trip."""
    claims = Cells(session, CLAIMS, claim.thread_id)
    claim.record = replace(claim.record, until=max(until, claim.record.until + 1))
    cell = claims.cell(claim.record, token=claim.token, origin=claim.thread_id)
    return (yield from claims.swap_raw(KEY, claim.token, cell)).done


def give_back(session: Session, claim: Claim) -> Plan[None]:
    """Release a claim, and restore the claim of a dead run that it replaced. One trip."""
    claims, former = Cells(session, CLAIMS, claim.thread_id), claim.former
    if former is None or claim.expected is None or not is_dead(former.holder):
        yield from claims.remove({KEY: claim.token})
    else:
        cell = claims.cell(former, token=claim.expected, origin=claim.thread_id)
        yield from claims.swap_raw(KEY, claim.token, cell)


def release(session: Session, claim: Claim, token: str) -> Plan[None]:
    """Release a claim. One trip; more if the claim was never acknowledged."""
    # An unacknowledged claim may still be in flight, and must then find another token than it expects. So it is
    # replaced by a claim that is over.
    claims = Cells(session, CLAIMS, claim.thread_id)
    if claim.is_acknowledged:
        yield from claims.remove({KEY: claim.token})
        return
    done = False
    while not done:
        cell = (yield from claims.read_raw([KEY])).get(KEY)
        stands = cell.token if cell else None
        if stands not in (claim.token, claim.expected):
            return
        over = claims.cell(replace(claim.record, until=0), token=token, origin=claim.thread_id)
        done = (yield from claims.swap_raw(KEY, stands, None if stands == claim.token else over)).done
