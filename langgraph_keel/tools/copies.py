"""The ledger of a copy or a fork: the calls of the history that it shares with its source.

A fork must not repeat a call that its history has made, nor one whose outcome is unknown at the fork point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from langgraph_keel.engine.entries import FORKED_FROM, UnreadHeader
from langgraph_keel.engine.events import Copy
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Graph
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells
from langgraph_keel.tools.ledger import (
    CALLS,
    CLAIMED,
    DONE,
    FAILED,
    SHOWN,
    UNKNOWN,
    WAITING,
    CallRecord,
    read_ledger,
    share_call,
)
from langgraph_keel.tools.orphans import read_past, steps_of

_MADE = (CLAIMED, UNKNOWN, DONE)
"""The states of calls that may have acted."""
_LOT = 100
"""Calls whose results are read in one trip, and are in memory at once."""


def copy_calls(session: Session, copy: Copy) -> Plan[None]:
    """Copy the calls that a copy or a fork shares with its source. One trip, and at least one for each call."""
    calls, target = Cells(session, CALLS, copy.source), Cells(session, CALLS, copy.target)
    found = yield from calls.every()
    if found and copy.graph is not None:
        source = yield from session.store.read_graph(copy.source)
        fork = _Fork(session, source, copy.graph)
        found = [(key, kept) for key, kept in found if fork.has_made(kept.record)]
    for start in range(0, len(found), _LOT):
        for key, cell in (yield from calls.read_raw([key for key, _ in found[start : start + _LOT]])).items():
            record = calls.keep(key, cell).record
            # The source settles its claims, and makes a call again if a person has allowed that. Until then, the
            # outcome of the call is unknown in the copy.
            if record.state == CLAIMED or (record.state == FAILED and record.decided == "retry"):
                record = replace(record, state=UNKNOWN, decided="", error=None)
            if record.state == UNKNOWN:
                yield from share_call(session, record.lineage, copy.source, copy.target)
            record = replace(record, thread_id=copy.target, untold={})
            if copy.graph is not None:
                # A fork has none of the answers that were given to the pending step: their places are of no use.
                record = replace(record, answers=(), decisions=(), taken=())
            new = target.cell(record, body=cell.body, origin=copy.target, expires_at=cell.expires_at)
            yield from target.swap_raw(key, None, new)
    if found and copy.graph is None:
        yield from Cells(session, SHOWN, copy.source).copy_raw(copy.target)


def find_unused(session: Session, thread_id: str, graph: Graph) -> Plan[list[CallRecord]]:
    """Return the calls that the next run of a thread looks for: they were made, and its latest state has no result."""
    calls = [kept.record for _, kept in (yield from Cells(session, CALLS, thread_id).every())]
    roots = [node for node in graph.nodes if calls and not (node.address.checkpoint_ns or node.is_ghost)]
    moments = [(node, UnreadHeader(node, session.codec)) for node in roots]
    past = read_past(moments, [node for node in roots if node.is_head])
    made = [call for call in calls if call.state in _MADE]
    return [call for call in made if not past.knows(call, steps_of(call).get("", ""))]


def find_origins(session: Session, thread_id: str) -> Plan[list[str]]:
    """Return the threads that a thread was forked from, and those that they were forked from. One trip for each."""
    names = [thread_id]
    for name in names:  # it grows meanwhile
        for node in (yield from session.store.read_graph(name)).nodes:
            mark = UnreadHeader(node, session.codec).metadata.get(FORKED_FROM)
            source = str(mark.get("thread_id")) if isinstance(mark, Mapping) else name
            names += [source] if source not in names else []
    return names[1:]


def find_later(session: Session, source: str, fork: str) -> Plan[list[CallRecord]]:
    """Return the calls that a thread has made after it was forked. One trip a page of both ledgers."""
    ours = {call.lineage for call in (yield from read_ledger(session, fork)).values()}
    calls = (yield from read_ledger(session, source)).values()
    return [call for call in calls if call.lineage not in ours and call.state in _MADE]


class _Fork:
    """Tells the calls that were made before a fork point from those made after it."""

    def __init__(self, session: Session, source: Graph, fork: Graph) -> None:
        roots = [node for node in source.nodes if not (node.address.checkpoint_ns or node.is_ghost)]
        self._ids = {str(node.address.checkpoint_id) for node in fork.nodes if not node.address.checkpoint_ns}
        later = [node for node in roots if node.address.checkpoint_id not in self._ids]
        moments = [(node, UnreadHeader(node, session.codec)) for node in roots]
        self._past = read_past(moments, [node for node in roots if node.address.checkpoint_id in self._ids])
        self._later_past = read_past(moments, later)
        self._later = {str(node.address.checkpoint_id) for node in later}

    def has_made(self, call: CallRecord) -> bool:
        """Return whether a call was made before the fork point, or its outcome is unknown there."""
        step = steps_of(call).get("", "")
        if call.state == WAITING:
            return False  # the fork asks again
        # Its result is part of a state in the fork; or of no state, and its step runs from a checkpoint of the fork. If
        # that checkpoint was lost in a crash, its id decides: ids are in the order of creation.
        if self._past.knows(call, step) or step in self._ids - self._later_past.steps:
            return True
        is_later = self._later_past.knows(call, step) or step in self._later
        return not is_later and step < min(self._later, default="\U0010ffff")
