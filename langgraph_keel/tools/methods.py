"""`saver.tools`: the calls of tools in the ledger."""

from __future__ import annotations

from langgraph_keel.engine.faces import Component, Pages, faces, iterator_faces
from langgraph_keel.engine.leases import Watch
from langgraph_keel.engine.plan import Plan
from langgraph_keel.tools.ledger import LEASE, CallPages, KeptCall


class ToolMethods(Component):
    """`saver.tools`: the calls of tools in the ledger, and the outcome of those that were cut off."""

    def _calls(self, thread_id: str | None) -> Pages[KeptCall]:
        """Yield the tool calls in the ledger of a thread (see `ToolCache`), with `None` those that threads share."""
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
        """Say what became of a tool call whose outcome is unknown. The audit trail records it.

        Args:
            thread_id: Its thread; `None` for a call that is shared by threads (`scope="shared"` or a function). As a
                `ToolOutcomeUnknown` and the `doubts` of `saver.status` have it.
            key: Its key, or the beginning of it, at least 6 characters.
            decision: `"retry"`: it may be made again. `"done"`: it was carried out, and the tool would have said
                `result`. `"skip"`: nobody knows, and it shall not be made again.
            result: The result of the call, with `"done"`. It may be given later, by a second `"done"`.
            by: Who says so, as your program has authenticated them.
            moved: With `"retry"`, of a call that was in doubt when its thread was copied from another store: that the
                original will never run again.

        Raises:
            NotFound: There is no such call whose outcome is unknown.
            InvalidInput: There is no such decision, or it has no result; `key` is too short, or begins several keys;
                `by` is empty; or the decision is `"retry"`, and the call is to be settled in another thread, or
                may be made in the store that the thread was copied from.
        """
        from langgraph_keel.tools.settling import settle_call

        session = self.engine.session
        return settle_call(session, thread_id, key, decision, result, by, moved, session.milliseconds, Watch(LEASE))

    settle, asettle = faces(_settle)
