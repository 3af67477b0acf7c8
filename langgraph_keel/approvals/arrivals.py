"""Marks copied and imported threads with the latest checkpoint they came with.

The steps left in such a thread may be run, or may have been run, by its original. Until a run of this store has added a
checkpoint, it is not resumed automatically, except after a decision made here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from langgraph_keel.approvals.requests import ApprovalRequest, Approvals
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.events import Copy
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable

_HEAD = "head"
"""The key of the latest checkpoint; others are ids of requests decided elsewhere."""


def _unpack(parts: Sequence[Any]) -> str:
    (checkpoint_id,) = parts
    if not isinstance(checkpoint_id, str):
        raise TypeError("it is not the id of a checkpoint")
    return checkpoint_id


ARRIVALS: CellTable[str] = CellTable(
    "arrived", "the record of the latest checkpoint it came with", lambda head: [head], _unpack, moves="never"
)


class ArrivalHook(Hook):
    """Records which threads are copies; forks are marked in their latest checkpoint."""

    tables = (ARRIVALS,)

    def after_copy(self, session: Session, copy: Copy) -> Plan[None]:
        """Record the latest checkpoint of a copy."""
        if copy.at is None:
            yield from note_arrival(session, copy.target)

    def find_warnings(
        self, session: Session, thread_id: str, checkpoint_id: str, action: str, relatives: Sequence[str]
    ) -> Plan[Sequence[tuple[str, str]]]:
        """Warn that the original of a thread may act, too. One trip."""
        if not (yield from has_arrived(session, thread_id, checkpoint_id)):
            return ()
        said = f"Thread {thread_id!r} is a copy: its original may ask the same and act on it."
        return [(said, "")]


def note_arrival(session: Session, thread_id: str) -> Plan[None]:
    """Record that a thread was copied or imported. Two trips."""
    found = yield from session.store.read_entry(Address(thread_id))
    if found is not None:
        cells = Cells(session, ARRIVALS, thread_id)
        yield from cells.overwrite_raw(_HEAD, cells.cell(str(found.entry.address.checkpoint_id)))


def note_decisions(session: Session, threads: Collection[str]) -> Plan[None]:
    """Record the requests that came decided. A trip per thread, and per request."""
    for thread_id in threads:
        cells = Cells(session, ARRIVALS, thread_id)
        for request in [held.request for held in (yield from Approvals(session).of_thread(thread_id))]:
            if request.decision is not None:
                yield from cells.overwrite_raw(request.id, cells.cell(request.decision.at))


def has_arrived(
    session: Session, thread_id: str, head: str | None, decided: Collection[ApprovalRequest] = ()
) -> Plan[bool]:
    """Return whether a thread's latest checkpoint is the one it came with. One trip.

    If decided requests are given, also check that one of the decisions came with it.
    """
    found = yield from Cells(session, ARRIVALS, thread_id).read([_HEAD, *(each.id for each in decided)])
    known = {key: kept.record for key, kept in found.items()}
    is_own = decided and not any(each.decision and known.get(each.id) == each.decision.at for each in decided)
    return known.get(_HEAD) == head and not is_own
