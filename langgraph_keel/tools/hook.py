"""Forgets the calls of tools that nobody can ask for any more; notes what tells of calls that are past."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache

from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.hooks import Hook, Leaving, Put
from langgraph_keel.engine.lineage import Ancestry, find_steps_behind, made_at, roots_in
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.tools.invocations import INVOCATIONS
from langgraph_keel.tools.ledger import (
    CALLS,
    COUNTS,
    DONE,
    FAILED,
    SECRETS,
    TOOLS,
    CallRecord,
    forget,
    revise,
    speaks_for_one,
)
from langgraph_keel.tools.orphans import NOTE, Past, read_past, steps_of, stores_at_end


class LedgerHook(Hook):
    """Removes calls from the ledger with what they led to."""

    tables = (CALLS, COUNTS)
    shared_tables = (CALLS, COUNTS, SECRETS)

    def draft_put(self, session: Session, put: Put) -> None:
        """Note in the last checkpoint of an invocation that has stored no other which one it was (`orphans.py`)."""
        if stores_at_end(put.config) and (name := INVOCATIONS.find(put.config)):
            put.header.about[NOTE] = name

    def after_remove(self, session: Session, leaving: Leaving) -> Plan[None]:
        """Forget the calls that a prune has left behind. One trip, if nothing is forgotten.

        Those are calls whose results are part of all that stays, if no equal call is answered with them: failed ones,
        those that used a person's answer, and those past their `ttl`. And calls that answer no other (`scope="call"`):
        a later call must not be taken for one of them. Where only a part of what stays has its result, and no longer
        tells, its record does.
        """
        stays = [header for node, header in roots_in(leaving.moments) if node.stamp in leaving.kept]
        since = min((made_at(header) or 0 for header in stays), default=None)
        if since is None:
            return
        # Neither is needed where no tool was called.
        past = cache(lambda: set(find_steps_behind(leaving.moments, leaving.kept)))
        pasts = cache(lambda: _read_pasts(leaving))
        now = session.milliseconds

        def revised(call: CallRecord, cell: Cell) -> CallRecord | None:
            if not call.invocation:
                is_over = not leaving.run_ids and _is_past(call, cell, since, now, past)
                return None if is_over else call
            step = steps_of(call).get("", "")
            known = {first: each.knows(call, step) for first, each in pasts().items()}
            if call.state not in (DONE, FAILED) or not any(known.values()):
                return call
            told = sorted(first for first, is_known in known.items() if is_known)
            return None if all(known.values()) else call if told == [*call.past_of] else replace(call, past_of=told)

        yield from revise(session, Shelf(leaving.thread_id, TOOLS), revised)

    def after_runs_removed(self, session: Session, run_ids: Collection[str], threads: Sequence[str]) -> Plan[None]:
        """Forget the calls of these runs, those that threads share too."""
        for shelf in [Shelf(None, TOOLS), *(Shelf(thread_id, TOOLS) for thread_id in threads)]:
            yield from forget(session, shelf, lambda call, _: call.run_id in run_ids)


def _read_pasts(leaving: Leaving) -> dict[str, Past]:
    """Return, for each checkpoint that stays and whose way back ends with it from now on, what lies behind it."""
    roots = roots_in(leaving.moments)
    ancestry = Ancestry(node for node, _ in roots)
    stays = [node for node, _ in roots if node.stamp in leaving.kept]
    firsts = [node for node in stays if not (parent := ancestry.parent(node)) or parent.stamp not in leaving.kept]
    return {str(node.address.checkpoint_id): read_past(roots, [node]) for node in firsts}


def _is_past(
    call: CallRecord, cell: Cell, since: float, now: float, past: Callable[[], Collection[str | None]]
) -> bool:
    # Made on the way to what is left, and ended before the oldest of that was made: its result is part of the state
    # there. One whose end nobody knows, or that is under way, stays: without it the tool would run again.
    is_over = call.state in (DONE, FAILED) and (call.ended_at or call.started_at) < since
    return is_over and not _answers_others(call, cell, now) and call.checkpoint_id in past()


def _answers_others(call: CallRecord, cell: Cell, now: float) -> bool:
    """Return whether an equal call of a later turn is answered with this one's result: then that must stay."""
    is_result = call.state == DONE and not speaks_for_one(call)
    return is_result and (cell.expires_at is None or cell.expires_at > now)
