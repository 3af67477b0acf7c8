"""Which threads came from elsewhere, and what was their latest checkpoint then.

Such a thread may have steps left that are run, or were run, where it came from. Until a run of this store has added a
checkpoint, nothing here may resume it by itself, except for a decision that was made here.
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
"""The key of the latest checkpoint. The others are the ids of requests that were decided elsewhere, with the time."""


def _unpack(parts: Sequence[Any]) -> str:
    (checkpoint_id,) = parts
    if not isinstance(checkpoint_id, str):
        raise TypeError("it does not hold what it should")
    return checkpoint_id


ARRIVALS: CellTable[str] = CellTable(
    "arrived", "the note of what arrived as its latest checkpoint", lambda head: [head], _unpack, moves="never"
)


class ArrivalHook(Hook):
    """Notes which threads are copies of others of the store. A fork says so in its latest checkpoint."""

    tables = (ARRIVALS,)

    def after_copy(self, session: Session, copy: Copy) -> Plan[None]:
        """Note what a copy has as its latest checkpoint."""
        if copy.at is None:
            yield from note_arrival(session, copy.target)

    def find_warnings(
        self, session: Session, thread_id: str, checkpoint_id: str, action: str, relatives: Sequence[str]
    ) -> Plan[Sequence[tuple[str, str]]]:
        """Say that the original of a thread may act, too. One trip."""
        if not (yield from has_arrived(session, thread_id, checkpoint_id)):
            return ()
        said = f"Thread {thread_id!r} came from elsewhere, where its original may ask the same, and act on it."
        return [(said, "")]


def note_arrival(session: Session, thread_id: str) -> Plan[None]:
    """Note that a thread came from elsewhere as it is. Two trips."""
    found = yield from session.store.read_entry(Address(thread_id))
    if found is not None:
        cells = Cells(session, ARRIVALS, thread_id)
        yield from cells.overwrite_raw(_HEAD, cells.cell(str(found.entry.address.checkpoint_id)))


def note_decisions(session: Session, threads: Collection[str]) -> Plan[None]:
    """Note which requests came to these threads decided. One trip for each thread, and one for each of these."""
    for thread_id in threads:
        cells = Cells(session, ARRIVALS, thread_id)
        for request in [held.request for held in (yield from Approvals(session).of_thread(thread_id))]:
            if request.decision is not None:
                yield from cells.overwrite_raw(request.id, cells.cell(request.decision.at))


def has_arrived(
    session: Session, thread_id: str, head: str | None, decided: Collection[ApprovalRequest] = ()
) -> Plan[bool]:
    """Return whether the latest checkpoint of a thread is the one that it came with; one trip.

    With requests that are decided, whether one of these decisions came with it, too.
    """
    found = yield from Cells(session, ARRIVALS, thread_id).read([_HEAD, *(each.id for each in decided)])
    known = {key: kept.record for key, kept in found.items()}
    is_own = decided and not any(each.decision and known.get(each.id) == each.decision.at for each in decided)
    return known.get(_HEAD) == head and not is_own
