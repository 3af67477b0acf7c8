"""`saver.tools`: the tool calls in the ledger."""

from __future__ import annotations

from langgraph_keel.engine.faces import Component, Pages, faces, iterator_faces
from langgraph_keel.engine.leases import Watch
from langgraph_keel.engine.plan import Plan
from langgraph_keel.tools.ledger import LEASE, CallPages, KeptCall


class ToolMethods(Component):
    """`saver.tools`: lists the tool calls in the ledger, and settles unknown outcomes."""

    def _calls(self, thread_id: str | None) -> Pages[KeptCall]:
        """Yield the tool calls of a thread, or with `None` those that threads share."""
        return CallPages(self.engine.session, thread_id)

    calls, acalls = iterator_faces(_calls)

    def _settle(
        self,
        thread_id: str | None,
        key: str,
        decision: str,
        result: str | None = None,
        *,
        by: str | None = None,
        moved: bool = False,
    ) -> Plan[None]:
        """Settle a tool call whose outcome is unknown; the audit trail records it.

        A call that raised an error can be settled too, as `"done"` or `"skip"`, if its tool has acted before the error.

        Args:
            thread_id: The call's thread; `None` for a call that threads share (`scope="shared"` or a function). See
                `ToolOutcomeUnknown` and the `doubts` of `saver.status`.
            key: The call's key, or at least the first 6 characters of it.
            decision: `"retry"`: the call may be made again. `"done"`: it was carried out, with `result`. `"skip"`: the
                outcome stays unknown, and the call must not be made again.
            result: The result of the call, with `"done"`. A second `"done"` can add it later.
            by: The user who decides, as authenticated by your program.
            moved: With `"retry"`, for a call whose outcome was unknown when its thread was copied from another store:
                confirms that the original will never run again.

        Raises:
            NotFound: If there is no such call of unknown outcome.
            InvalidInput: If the decision does not exist, or takes no result; if `key` is too short or ambiguous; if
                `by` is empty; or if the decision is `"retry"`, and the call must be settled in another thread or may be
                made in the store from which the thread was copied.
        """
        from langgraph_keel.tools.settling import settle_call

        session = self.engine.session
        return settle_call(session, thread_id, key, decision, result, by, moved, session.milliseconds, Watch(LEASE))

    settle, asettle = faces(_settle)
