"""The ledger of a copy or fork: the calls of the shared history.

A fork must not repeat a call of its history, nor one whose outcome is unknown at the fork point.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from langgraph_keel.engine.entries import UnreadHeader
from langgraph_keel.engine.events import Copy
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Graph
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable
from langgraph_keel.tools.ledger import (
    BROUGHT,
    CALLS,
    CLAIMED,
    DONE,
    SHOWN,
    UNKNOWN,
    WAITING,
    CallRecord,
    digest_of,
    may_run_again,
    read_ledger,
    share_call,
)
from langgraph_keel.tools.orphans import read_past, steps_of

_MADE = (CLAIMED, UNKNOWN, DONE)
"""The states of calls that may have acted."""
_LOT = 100
"""Calls whose results are read in one trip and held in memory together."""


def _kin_keys(family: str, thread_id: str) -> Sequence[str]:
    return f"of.{digest_of(thread_id)}", f"{family}.{digest_of(thread_id)}"


KIN: CellTable[tuple[str, str]] = CellTable(
    "kin",
    "the note of a thread that shares its history with others",
    list,
    lambda parts: (str(parts[0]), str(parts[1])),
    thread_of=lambda key, note: note[1] if key in _kin_keys(*note) else "",
)
"""Families of threads made by forks and copies: the family's random name, and the thread's id.

The notes are deleted with their threads, so a new thread with the id of a deleted one does not join its family.
"""


def join_kin(session: Session, copy: Copy) -> Plan[None]:
    """Note that a fork or copy shares its source's history. Four trips."""
    notes, family = Cells(session, KIN, None), session.new_token()
    for nth in range(2):  # first the family of the source, if it has one
        key, note = _kin_keys(family, copy.source)[nth], (family, copy.source)
        _, kept = yield from notes.swap(key, None, note, origin=copy.source)
        family = kept.record[0] if kept else family
    for key in _kin_keys(family, copy.target):
        yield from notes.overwrite_raw(key, notes.cell((family, copy.target), origin=copy.target))


def find_kin(session: Session, thread_id: str) -> Plan[list[str]]:
    """Return the other threads that share history with a thread. One trip, or two."""
    notes = Cells(session, KIN, None)
    kept = yield from notes.find(_kin_keys("", thread_id)[0])
    found = (yield from notes.every(f"{kept.record[0]}.")) if kept else ()
    return sorted(each.record[1] for _, each in found if each.record[1] != thread_id)


def copy_calls(session: Session, copy: Copy) -> Plan[None]:
    """Copy the calls of the shared history. One trip, and one or more for each call."""
    calls, target = Cells(session, CALLS, copy.source), Cells(session, CALLS, copy.target)
    found = yield from calls.every()
    if found and copy.graph is not None:
        source = yield from session.store.read_graph(copy.source)
        fork = _Fork(session, source, copy.graph)
        found = [(key, kept) for key, kept in found if fork.has_made(kept.record)]
    for start in range(0, len(found), _LOT):
        for key, cell in (yield from calls.read_raw([key for key, _ in found[start : start + _LOT]])).items():
            record = calls.keep(key, cell).record
            # The source settles its claims, and repeats a call if a person allowed it. Until then, the outcome is
            # unknown in the copy.
            if record.state == CLAIMED or may_run_again(record):
                record = replace(record, state=UNKNOWN, decided="", error=None)
            if record.state == UNKNOWN:
                yield from share_call(session, record.lineage, copy.source, copy.target)
            record = replace(record, thread_id=copy.target, untold={})
            if copy.graph is not None:
                # A fork has no answers to the pending step, so their places are useless.
                record = replace(record, answers=(), decisions=(), taken=())
            new = target.cell(record, body=cell.body, origin=copy.target, expires_at=cell.expires_at)
            yield from target.swap_raw(key, None, new)
    if found:
        yield from Cells(session, BROUGHT, copy.source).copy_raw(copy.target)
    if found and copy.graph is None:
        yield from Cells(session, SHOWN, copy.source).copy_raw(copy.target)


def find_open(session: Session, thread_id: str) -> Plan[set[str]]:
    """Return the idempotency keys of the open calls of a thread. One trip a page."""
    calls, found = Cells(session, CALLS, thread_id), set[str]()
    page = yield from calls.page()
    while page:
        records = [kept.record for _, kept in page]
        found |= {call.lineage for call in records if call.state in (CLAIMED, UNKNOWN) or may_run_again(call)}
        page = yield from calls.page(after=page[-1][0])
    return found


def note_brought(session: Session, thread_id: str, lineages: Collection[str], place: str) -> Plan[None]:
    """Note the open calls of a copy from another store. One trip for each."""
    notes = Cells(session, BROUGHT, thread_id)
    for lineage in lineages:
        yield from notes.overwrite_raw(digest_of(lineage), notes.cell(place))


def find_unused(session: Session, thread_id: str, graph: Graph) -> Plan[list[CallRecord]]:
    """Return the calls whose results are not in the thread's latest state."""
    calls = [kept.record for _, kept in (yield from Cells(session, CALLS, thread_id).every())]
    roots = [node for node in graph.nodes if calls and not (node.address.checkpoint_ns or node.is_ghost)]
    moments = [(node, UnreadHeader(node, session.codec)) for node in roots]
    past = read_past(moments, [node for node in roots if node.is_head])
    made = [call for call in calls if call.state in _MADE or may_run_again(call)]
    return [call for call in made if not past.knows(call, steps_of(call).get("", ""))]


def find_later(session: Session, source: str, fork: str) -> Plan[list[CallRecord]]:
    """Return a thread's calls that its fork or original lacks. One trip a page."""
    ours = {call.lineage for call in (yield from read_ledger(session, fork)).values()}
    calls = (yield from read_ledger(session, source)).values()
    return [call for call in calls if call.lineage not in ours and call.state in _MADE]


class _Fork:
    """Separates the calls before a fork point from those after it."""

    def __init__(self, session: Session, source: Graph, fork: Graph) -> None:
        roots = [node for node in source.nodes if not (node.address.checkpoint_ns or node.is_ghost)]
        self._ids = {str(node.address.checkpoint_id) for node in fork.nodes if not node.address.checkpoint_ns}
        later = [node for node in roots if node.address.checkpoint_id not in self._ids]
        moments = [(node, UnreadHeader(node, session.codec)) for node in roots]
        self._past = read_past(moments, [node for node in roots if node.address.checkpoint_id in self._ids])
        self._later_past = read_past(moments, later)
        self._later = {str(node.address.checkpoint_id) for node in later}

    def has_made(self, call: CallRecord) -> bool:
        """Return whether a call was made, or perhaps made, before the fork point."""
        step = steps_of(call).get("", "")
        if call.state == WAITING:
            return False  # the fork asks again
        # Its result is in a state of the fork; or in no state, and its step runs from a checkpoint of the fork. If
        # that checkpoint was lost in a crash, its id decides, because ids are in order of creation.
        if self._past.knows(call, step) or step in self._ids - self._later_past.steps:
            return True
        is_later = self._later_past.knows(call, step) or step in self._later
        return not is_later and step < min(self._later, default="\U0010ffff")
