"""Stores whose thread lists are filtered wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph_keel.backends.memory.store import MemoryStore, Request, State
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import Batch, Entry, NewEntry, Outcome, Stored, ThreadInfo


class MarksOfTheFirstPut(MemoryStore):
    """Forever finds a thread by the marks of its first checkpoint."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        known = state.marks.get(new.address.thread_id)
        outcome = super()._write(state, new)
        stored = state.marks.get(new.address.thread_id)
        if known and stored:
            state.marks[new.address.thread_id] = stored[0], known[1]
        return outcome


class ClocksMoveThreadsBack(MemoryStore):
    """Dates the last write to a thread by its newest checkpoint's clock."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        outcome = super()._write(state, new)
        if isinstance(outcome, Stored):
            state[new.address.thread_id].records[outcome.stamp].updated_at = new.updated_at
        return outcome


class MarksOfSubgraphs(MemoryStore):
    """Finds a thread by its latest checkpoint in any namespace."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        outcome = super()._write(state, new)
        if new.address.checkpoint_ns and new.address.thread_id in state.marks:
            state.marks[new.address.thread_id] = state.marks[new.address.thread_id][0], ["none"]
        return outcome


class WritesAreNotFound(MemoryStore):
    """Does not keep the marks that tasks add."""

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Request, Any, None]:
        return super().write_batch(address, replace(batch, terms=()))


class EarlyWritesAreNotFound(MemoryStore):
    """Keeps the marks that tasks add only if the checkpoint exists already."""

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Request, Any, None]:
        found = yield from super().read_entry(address)
        yield from super().write_batch(address, batch if found else replace(batch, terms=()))


class TheLastWriteOnly(MemoryStore):
    """Forgets the marks that other tasks have added to the same checkpoint."""

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Request, Any, None]:
        def forget(state: State) -> None:
            if batch.terms:
                state.late.pop(address.thread_id, None)

        yield from self._send(forget)
        yield from super().write_batch(address, batch)


class MarksOutliveTheHead(MemoryStore):
    """Finds a thread by the marks of a removed checkpoint."""

    def _is_found(self, state: State, info: ThreadInfo, head: Entry | None, terms: Sequence[str]) -> bool:
        _, marks = state.marks.get(info.thread_id, (None, ()))
        _, late = state.late.get(info.thread_id, (set(), set()))
        return not marks or {*terms} <= {*marks, *late}


LISTING: Mapping[str, Callable[[], MemoryStore]] = {
    store.__name__: store
    for store in (
        ClocksMoveThreadsBack,
        MarksOfTheFirstPut,
        MarksOfSubgraphs,
        WritesAreNotFound,
        EarlyWritesAreNotFound,
        TheLastWriteOnly,
        MarksOutliveTheHead,
    )
}
