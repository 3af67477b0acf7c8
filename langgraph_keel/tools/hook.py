"""Forgets the calls of tools that nobody can ask for any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.hooks import Hook, Leaving
from langgraph_keel.engine.lineage import find_steps_behind, made_at, roots_in
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.tools.ledger import DONE, FAILED, TOOLS, CallRecord, forget, speaks_for_one


class LedgerHook(Hook):
    """Removes calls from the ledger with what they led to."""

    def after_remove(self, session: Session, leaving: Leaving) -> Plan[None]:
        """Forget the calls that a prune has left behind. One trip, if nothing is forgotten.

        Those are calls whose results are part of all that stays, if no equal call is answered with them: failed ones,
        those that used a person's answer, and those past their `ttl`.
        """
        stays = [header for node, header in roots_in(leaving.moments) if node.stamp in leaving.kept]
        since = min((made_at(header) or 0 for header in stays), default=None)
        if since is None or leaving.run_ids:
            return
        past = cache(
            lambda: set(find_steps_behind(leaving.moments, leaving.kept))
        )  # not needed where no tool was called
        now = session.milliseconds
        yield from forget(
            session, Shelf(leaving.thread_id, TOOLS), lambda call, cell: _is_past(call, cell, since, now, past)
        )

    def after_runs_removed(self, session: Session, run_ids: Collection[str], threads: Sequence[str]) -> Plan[None]:
        """Forget the calls of these runs, those that threads share too."""
        for shelf in [Shelf(None, TOOLS), *(Shelf(thread_id, TOOLS) for thread_id in threads)]:
            yield from forget(session, shelf, lambda call, _: call.run_id in run_ids)


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
