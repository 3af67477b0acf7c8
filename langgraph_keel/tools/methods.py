"""What a saver shows of the calls of tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import PAGE
from langgraph_keel.engine.session import EngineSaver
from langgraph_keel.tools.ledger import KeptCall, calls_of, shelf_of


class ToolMethods(EngineSaver):
    """The methods that read the ledger."""

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
