"""Removes calls that no run can repeat from the ledger, and marks past ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache

from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import one_line
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.config import stores_at_end
from langgraph_keel.engine.events import Copy, Leaving, Put
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.lineage import Ancestry, find_steps_behind, made_at, roots_in
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import PAGE, Cells
from langgraph_keel.tools.copies import KIN, copy_calls, find_kin, find_later, find_unused, join_kin
from langgraph_keel.tools.invocations import INVOCATIONS
from langgraph_keel.tools.ledger import (
    BROUGHT,
    CALLS,
    CLAIMED,
    COUNTS,
    DONE,
    FAILED,
    SECRETS,
    SHARERS,
    SHOWN,
    TOOLS,
    UNKNOWN,
    CallRecord,
    iso_time,
    read_ledger,
    rewrite,
    speaks_for_one,
    tell_settlement,
)
from langgraph_keel.tools.orphans import NOTE, Past, read_past, steps_of

_AGAIN = "with an approval, it is called again"


class LedgerHook(Hook):
    """Removes and copies calls together with their checkpoints."""

    tables = (CALLS, COUNTS, SHOWN, BROUGHT)
    shared_tables = (CALLS, COUNTS, SECRETS, SHARERS, KIN)

    def draft_put(self, session: Session, put: Put) -> None:
        """Note the invocation in the checkpoint at its end (`durability="exit"`)."""
        if stores_at_end(put.config) and (name := INVOCATIONS.find(put.config)):
            put.header.about[NOTE] = name

    def after_copy(self, session: Session, copy: Copy) -> Plan[None]:
        """Copy the calls of the shared history to a copy or a fork; see `copies.py`."""
        yield from join_kin(session, copy)
        yield from copy_calls(session, copy)

    def find_relatives(self, session: Session, thread_id: str) -> Plan[Sequence[str]]:
        """Return the other threads of a thread's family. One trip, or two."""
        return find_kin(session, thread_id)

    def find_warnings(
        self, session: Session, thread_id: str, checkpoint_id: str, action: str, relatives: Sequence[str]
    ) -> Plan[Sequence[tuple[str, str]]]:
        """Describe calls of a tool before a rewind, or only in forks and originals.

        One trip; three more if the thread called the tool before, and those of `find_later` for each other thread.
        """
        if not action:
            return ()
        found: list[tuple[str, str]] = []  # two calls may have equal descriptions
        session = session.with_placeholders()
        calls = (yield from read_ledger(session, thread_id)).values()
        if any(call.tool == action and call.checkpoint_id != checkpoint_id for call in calls):
            graph = yield from session.store.read_graph(thread_id)
            for call in (yield from find_unused(session, thread_id, graph)):
                if call.tool == action and call.checkpoint_id != checkpoint_id:
                    args = "" if call.args is None else f" {one_line(json.dumps(as_json(call.args)), 120)}"
                    at = iso_time(call.started_at)
                    said = f"Thread {thread_id!r} called {action}{args} at {at} ({call.state})"
                    # Without a time: the reviewer could know of it, so a decision stays valid.
                    found.append((f"{said}: {_fate_of_equal(call)}.", ""))
        for name in relatives:
            for call in (yield from find_later(session, name, thread_id)):
                if call.tool == action:
                    at, said = iso_time(call.started_at), f"Thread {name!r}, of the same history, called {action}"
                    found.append((f"{said} at {at} ({call.state}): {_AGAIN}.", at))
        return found

    def after_remove(self, session: Session, leaving: Leaving) -> Plan[None]:
        """Remove the calls that a prune made unnecessary. One trip if none is removed."""
        stays = [header for node, header in roots_in(leaving.moments) if node.stamp in leaving.kept]
        since = min((made_at(header) or 0 for header in stays), default=None)
        if since is None:
            return
        # Neither is needed if no tool was called.
        past = cache(lambda: set(find_steps_behind(leaving.moments, leaving.kept)))
        pasts = cache(lambda: _read_pasts(leaving))
        now = session.milliseconds

        def revised(call: CallRecord, cell: Cell) -> CallRecord | None:
            if not call.invocation:
                is_over = not leaving.run_ids and _is_past(call, cell, since, now, past)
                return None if is_over else call
            # A call that answers only itself (`scope="call"`) goes when its result is in all remaining states. If it is
            # in some of them, the record now lists these.
            step = steps_of(call).get("", "")
            known = {first: each.knows(call, step) for first, each in pasts().items()}
            if call.state not in (DONE, FAILED) or not any(known.values()):
                return call
            told = sorted(first for first, is_known in known.items() if is_known)
            return None if all(known.values()) else call if told == [*call.past_of] else replace(call, past_of=told)

        yield from revise(session, Shelf(leaving.thread_id, TOOLS), revised)

    def after_runs_removed(self, session: Session, run_ids: Collection[str], threads: Sequence[str]) -> Plan[None]:
        """Remove the calls of these runs, including those that threads share."""
        for shelf in [Shelf(None, TOOLS), *(Shelf(thread_id, TOOLS) for thread_id in threads)]:
            yield from forget(session, shelf, lambda call, _: call.run_id in run_ids)


def _fate_of_equal(call: CallRecord) -> str:
    """Describe what an equal call does, once it is approved."""
    if call.state in (CLAIMED, UNKNOWN) and not call.retries:
        return "an equal call is not made before its outcome is known, one with other arguments is made"
    if call.state == DONE and not speaks_for_one(call):
        return "an equal call is answered with its result, one with other arguments is made"
    return _AGAIN


def _read_pasts(leaving: Leaving) -> dict[str, Past]:
    """Return the past of each remaining checkpoint whose parent is removed."""
    roots = roots_in(leaving.moments)
    ancestry = Ancestry(node for node, _ in roots)
    stays = [node for node, _ in roots if node.stamp in leaving.kept]
    firsts = [node for node in stays if not (parent := ancestry.parent(node)) or parent.stamp not in leaving.kept]
    return {str(node.address.checkpoint_id): read_past(roots, [node]) for node in firsts}


def _is_past(
    call: CallRecord, cell: Cell, since: float, now: float, past: Callable[[], Collection[str | None]]
) -> bool:
    # Made on the path to the remaining checkpoints, and ended before the oldest of them: its result is in their states.
    # Running calls and unknown outcomes stay: without them the tool would run again.
    is_over = call.state in (DONE, FAILED) and (call.ended_at or call.started_at) < since
    # This result answers an equal call of a later turn.
    is_needed = call.state == DONE and not speaks_for_one(call) and cell.is_live(now)
    return is_over and not is_needed and call.checkpoint_id in past()


# -- how calls leave the ledger --------------------------------------------------------------------------------


def forget(session: Session, shelf: Shelf, is_over: Callable[[CallRecord, Cell], bool]) -> Plan[int]:
    """Remove the calls of a shelf that are over; return how many. Trips as `revise`."""
    return (yield from revise(session, shelf, lambda record, cell: None if is_over(record, cell) else record))


def revise(session: Session, shelf: Shelf, change: Callable[[CallRecord, Cell], CallRecord | None]) -> Plan[int]:
    """Remove or rewrite the calls of a shelf; return how many were removed.

    One trip a page, more with changes.
    """
    calls, hits, removed = Cells(session, CALLS, shelf.thread_id), Cells(session, COUNTS, shelf.thread_id), 0
    page = yield from calls.page()
    while page:
        new = {key: change(kept.record, kept.cell) for key, kept in page}
        for key, kept in page:
            yield from tell_settlement(session, shelf, key, kept)
        gone = {key: kept.token for key, kept in page if new[key] is None}
        if gone:
            removed += yield from calls.remove(gone)
            counts = yield from hits.read_raw(gone)
            if counts:
                yield from hits.remove({key: cell.token for key, cell in counts.items()})
        for key, kept in page:
            if (record := new[key]) is not None and record is not kept.record:
                yield from rewrite(calls, key, kept, replace(record, untold={}))
        page = (yield from calls.page(after=page[-1][0])) if len(page) == PAGE else []
    return removed
