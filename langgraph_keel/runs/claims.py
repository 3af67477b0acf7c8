"""The claim of a thread by the run that goes on from where it waits: one cell, changed by compare-and-set.

LangGraph claims nothing: of two resumes that come at the same time, both read the question as open, and both run the
node that asked. The claim is made before the run reads the thread, so a run that comes late reads what the other left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.store import Store
from langgraph_keel.errors import CorruptStore, ThreadTaken

KIND, KEY = "resume", "run"


@dataclass(slots=True)
class Claim:
    """A claim, or one on its way.

    Attributes:
        thread_id: The thread.
        token: Known before anything is sent.
        holder: Whose process the run is in (see `langgraph_keel.holder`).
        run_id: The run, as LangChain names it.
        since: When it began, ISO time.
        until: Milliseconds since 1970 up to which it holds unless it is renewed.
        expected: What the cell must hold for it to be made.
        is_acknowledged: Whether the store has said that it was made.
    """

    thread_id: str
    token: str
    holder: str
    run_id: str
    since: str
    until: int
    expected: str | None = None
    is_acknowledged: bool = False

    @property
    def shelf(self) -> Shelf:
        """Where it stands."""
        return Shelf(self.thread_id, KIND)

    @property
    def work(self) -> str:
        """What goes on under it, for the log."""
        return f"run {self.run_id} goes on from where thread {self.thread_id!r} waited"


IsOver: TypeAlias = Callable[[Claim], bool]


def take(store: Store[Q, R], codec: Codec, claim: Claim, is_over: IsOver) -> Plan[Q, R, None]:
    """Claim a thread. One trip; one more to take over the claim of a run that is over.

    Args:
        store: The store.
        codec: How the claim is written.
        claim: What to claim; it is told what is sent, so that it can be withdrawn.
        is_over: Whether the run behind a claim is known to be over.

    Raises:
        ThreadTaken: Another run has it.
        CorruptStore: What stands there is no claim.
    """
    while True:
        reply = yield from store.swap_cell(claim.shelf, KEY, claim.expected, _cell(codec, claim))
        if reply.done:
            claim.is_acknowledged = True
            return
        claim.expected = None
        if reply.cell is not None:
            other = read_claim(codec, claim.thread_id, reply.cell)
            if not is_over(other):
                raise ThreadTaken(claim.thread_id, other.holder, other.since)
            claim.expected = other.token


def renew(store: Store[Q, R], codec: Codec, claim: Claim, until: int) -> Plan[Q, R, bool]:
    """Make a claim hold longer; return whether it is still ours. One trip."""
    cell = _cell(codec, replace(claim, until=until))
    return (yield from store.swap_cell(claim.shelf, KEY, claim.token, cell)).done


def release(store: Store[Q, R], codec: Codec, claim: Claim, token: str) -> Plan[Q, R, None]:
    """Give a thread back. One trip; two if the claim was never acknowledged, and may still be on its way.

    That one must find that what it expects is gone: a claim that is over takes its place, under `token`.
    """
    if claim.is_acknowledged:
        yield from store.remove_cells(claim.shelf, {KEY: claim.token})
        return
    done = False
    while not done:
        found = (yield from store.read_cells(claim.shelf, [KEY])).get(KEY)
        stands = None if found is None else found.token
        if stands not in (claim.token, claim.expected):
            return
        new = None if stands == claim.token else _cell(codec, replace(claim, token=token, until=0))
        done = (yield from store.swap_cell(claim.shelf, KEY, stands, new)).done


def _cell(codec: Codec, claim: Claim) -> Cell:
    header = codec.encode([claim.holder, claim.run_id, claim.until, claim.since])
    return Cell(claim.token, header, origin=claim.thread_id)


def read_claim(codec: Codec, thread_id: str, cell: Cell) -> Claim:
    """Return the claim in a cell.

    Raises:
        CorruptStore: It holds something else.
    """
    stored = codec.decode(cell.header)
    if not (isinstance(stored, list) and [type(part) for part in stored] == [str, str, int, str]):
        raise CorruptStore(f"thread {thread_id!r}: the claim of the run that goes on does not hold what it should")
    holder, run_id, until, since = stored
    return Claim(thread_id, cell.token, holder, run_id, since, until)
