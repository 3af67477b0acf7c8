"""What a saver shows beyond LangGraph's interface: its threads, the calls of tools, the calls of models."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph_keel.core.calls import KeptCall, calls_of, shelf_of
from langgraph_keel.core.plan import Plan
from langgraph_keel.core.provenance import ModelCall
from langgraph_keel.core.queries import PAGE, checked_limit, query_of
from langgraph_keel.core.recorded import recorded
from langgraph_keel.core.records import Query, ThreadInfo
from langgraph_keel.holder import is_dead
from langgraph_keel.running import Running


class Inspection(Running):
    """The reading methods that LangGraph does not know."""

    def threads(self, limit: int | None = None, *, model: str | None = None) -> Iterator[ThreadInfo]:
        """Yield the threads of this store, last activity first.

        Args:
            limit: Most to yield.
            model: Only threads that this model has written, by the name asked for or served.
        """
        after: tuple[str, str] | None = None
        left = checked_limit(limit)
        while left != 0:
            size = PAGE if left is None or model else min(PAGE, left)
            page = self._run(self._core.threads(self._codec, after, size))
            wanted = [info for info in page if model is None or model in info.models]
            yield from wanted[:left]
            if len(page) < size:
                return
            after = page[-1].updated_at, page[-1].thread_id
            left = left if left is None else left - len(wanted[:left])

    def tools(self, thread_id: str | None) -> Iterator[KeptCall]:
        """Yield the tool calls in the ledger of a thread (see `ToolCache`), with `None` those that threads share."""
        after: str | None = None
        while True:
            page = self._run(self._calls(thread_id, after))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].key

    def _calls(self, thread_id: str | None, after: str | None) -> Plan[Any, Any, Sequence[KeptCall]]:
        now = time.time_ns() // 1_000_000
        return calls_of(self._core.store, self._codec, shelf_of(thread_id), after, PAGE, now, is_dead)

    async def atools(self, thread_id: str | None) -> AsyncIterator[KeptCall]:
        """As `tools`, asynchronously."""
        after: str | None = None
        while True:
            page = await self._arun(self._calls(thread_id, after))
            for call in page:
                yield call
            if len(page) < PAGE:
                return
            after = page[-1].key

    def provenance(self, config: Mapping[str, Any]) -> Sequence[ModelCall]:
        """Return the calls of models that led to a checkpoint, or to all of a thread, in the order of the checkpoints.

        Args:
            config: `configurable.thread_id`; with `checkpoint_ns` or `checkpoint_id`, only what led there.

        Returns:
            One record a call. At the end those that stand nowhere yet: of this process, with no `checkpoint_id`.

        Raises:
            InvalidConfig: The config names no usable thread.
            CorruptStore: Stored bytes do not add up.
        """
        query = query_of(config, None, None, None)
        return [*self._run(recorded(self._core, self._codec, query)), *self._waiting(query)]

    async def aprovenance(self, config: Mapping[str, Any]) -> Sequence[ModelCall]:
        """As `provenance`, asynchronously."""
        query = query_of(config, None, None, None)
        return [*await self._arun(recorded(self._core, self._codec, query)), *self._waiting(query)]

    def _waiting(self, query: Query) -> Sequence[ModelCall]:
        if self.recorder is None or query.checkpoint_ns is not None or query.checkpoint_id is not None:
            return ()
        thread_id = str(query.thread_id)
        return [replace(call, thread_id=thread_id) for call in self.recorder.waiting(thread_id)]
