"""The claim of a thread by the run that resumes it: one cell, changed by compare-and-set.

It is made before the run reads the thread. Without it, two concurrent resumes would both run the node that asked.
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
"""In a header's `about`: the run that put this checkpoint had claimed the thread."""
LEASE = 30_000
"""Milliseconds after which a claim that is not renewed is over. A dead process of the same machine is seen at once."""
LATE = 0.5
"""Seconds between two looks at a claim that is watched."""


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """The run that has claimed a thread."""

    holder: str  # its process (see `langgraph_keel.engine.leases`)
    run_id: str  # as LangChain names it
    # Milliseconds since 1970, by the holder's clock alone (see `Watch`); more with each renewal, and 0 if it is over.
    until: int
    since: str  # ISO time
    deaths: int = 0  # runs in a row whose processes have died with their claims in the thread


def _pack(record: ClaimRecord) -> list[Any]:
    return [record.holder, record.run_id, record.until, record.since, record.deaths]


def _unpack(parts: Sequence[Any]) -> ClaimRecord:
    if [type(part) for part in parts] != [str, str, int, str, int]:
        raise TypeError("it does not hold what it should")
    return ClaimRecord(*parts)


CLAIMS: CellTable[ClaimRecord] = CellTable("resume", "the claim of the run that goes on", _pack, _unpack, moves="never")


@dataclass(slots=True)
class Claim:
    """A claim that is ours, or one on its way."""

    thread_id: str
    token: str  # known before anything is sent
    record: ClaimRecord
    expected: str | None = None  # the token that the cell must hold for it to be made
    is_acknowledged: bool = False
    former: ClaimRecord | None = None  # the claim that it replaced, if another process has left that

    @property
    def work(self) -> str:
        """What goes on under it, for the log."""
        return f"run {self.record.run_id} goes on from where thread {self.thread_id!r} waited"


IsOver: TypeAlias = Callable[[Kept[ClaimRecord], float], bool | None]
"""Whether a claim, and the run that made it, is over; `None` if it must be watched. It is told when the look began."""


def take(session: Session, claim: Claim, is_over: IsOver, timer: Callable[[], float] = time.monotonic) -> Plan[None]:
    """Claim a thread. One trip; one more to take over a claim that is over, and one every so often to watch one."""
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
    """Wait until a claim is to be looked at again, with a warning the first time. Returns that it is watched."""
    if not is_watched:
        _log.warning(
            "thread %r: a run on %s has claimed it at %s, and may be dead: watching for up to %d s whether it renews "
            "its claim",
            *(thread_id, record.holder.partition("/")[0], record.since, LEASE // 1000),
        )
    yield Pause(LATE)
    return True


def renew(session: Session, claim: Claim, until: int) -> Plan[bool]:
    """Make a claim hold longer; return whether it is still ours. One trip."""
    claims = Cells(session, CLAIMS, claim.thread_id)
    claim.record = replace(claim.record, until=max(until, claim.record.until + 1))
    cell = claims.cell(claim.record, token=claim.token, origin=claim.thread_id)
    return (yield from claims.swap_raw(KEY, claim.token, cell)).done


def give_back(session: Session, claim: Claim) -> Plan[None]:
    """Give a thread back as it was found: with the claim of a run whose process died, which tells that. One trip."""
    claims, former = Cells(session, CLAIMS, claim.thread_id), claim.former
    if former is None or claim.expected is None or not is_dead(former.holder):
        yield from claims.remove({KEY: claim.token})
    else:
        cell = claims.cell(former, token=claim.expected, origin=claim.thread_id)
        yield from claims.swap_raw(KEY, claim.token, cell)


def release(session: Session, claim: Claim, token: str) -> Plan[None]:
    """Give a thread back. One trip; two if the claim was never acknowledged, and may still be on its way."""
    # A claim on its way must find that the token it expects is gone: a claim that is over takes its place.
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
