"""What a saver shows of the calls of tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.leases import Watch
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import PAGE
from langgraph_keel.tools.ledger import LEASE, KeptCall, calls_of, shelf_of


class ToolMethods(EngineSaver):
    """The methods that read the ledger, and settle a call whose outcome is unknown."""

    def tools(self, thread_id: str | None) -> Iterator[KeptCall]:
        """Yield the tool calls in the ledger of a thread (see `ToolCache`), with `None` those that threads share."""
        after: str | None = None
        while True:
            page = self.engine.run(self._calls(thread_id, after))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].key

    def _calls(self, thread_id: str | None, after: str | None) -> Plan[Sequence[KeptCall]]:
        session = self.engine.session
        return calls_of(session, shelf_of(thread_id), after, PAGE)

    async def atools(self, thread_id: str | None) -> AsyncIterator[KeptCall]:
        """As `tools`, asynchronously."""
        after: str | None = None
        while True:
            page = await self.engine.arun(self._calls(thread_id, after))
            for call in page:
                yield call
            if len(page) < PAGE:
                return
            after = page[-1].key

    def settle(
        self, thread_id: str | None, key: str, decision: str, result: str | None = None, *, by: str | None = None
    ) -> None:
        """Say what became of a tool call whose outcome is unknown. The audit trail records it.

        Args:
            thread_id: Its thread; `None` for a call that is shared by threads (`scope="shared"` or a function). As a
                `ToolOutcomeUnknown` and the `doubts` of `where` have it.
            key: Its key, or the beginning of it, at least 6 characters.
            decision: `"retry"`: it may be made again. `"done"`: it was carried out, and the tool would have said
                `result`. `"skip"`: nobody knows, and it shall not be made again.
            result: What the tool would have returned, with `"done"`.
            by: Who says so, as your program has authenticated them.

        Raises:
            NotFound: There is no such call whose outcome is unknown.
            InvalidInput: There is no such decision, or it has no result; `key` is too short, or begins several keys;
                or `by` names nobody.
        """
        self.engine.run_patiently(self._settled(thread_id, key, decision, result, by))

    async def asettle(
        self, thread_id: str | None, key: str, decision: str, result: str | None = None, *, by: str | None = None
    ) -> None:
        """As `settle`, asynchronously."""
        await self.engine.arun_patiently(self._settled(thread_id, key, decision, result, by))

    def _settled(
        self, thread_id: str | None, key: str, decision: str, result: str | None, by: str | None
    ) -> Plan[None]:
        from langgraph_keel.tools.settling import settle_call

        session = self.engine.session
        return settle_call(session, thread_id, key, decision, result, by, session.milliseconds, Watch(LEASE))
