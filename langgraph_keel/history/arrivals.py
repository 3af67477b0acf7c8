"""Which threads came from elsewhere, and what was their latest checkpoint then.

Such a thread may have steps left that are run, or were run, where it came from. Until a run of this store has added a
checkpoint, nothing here may resume it by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.events import Copy
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable

_HEAD = "head"


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


def note_arrival(session: Session, thread_id: str) -> Plan[None]:
    """Note that a thread came from elsewhere as it is. Two trips."""
    found = yield from session.store.read_entry(Address(thread_id))
    if found is not None:
        cells = Cells(session, ARRIVALS, thread_id)
        yield from cells.overwrite_raw(_HEAD, cells.cell(str(found.entry.address.checkpoint_id)))


def has_arrived(session: Session, head: Address) -> Plan[bool]:
    """Return whether the latest checkpoint of a thread is the one that it came with. One trip."""
    found = yield from Cells(session, ARRIVALS, head.thread_id).find(_HEAD)
    return found is not None and found.record == head.checkpoint_id
