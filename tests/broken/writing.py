"""Stores that write wrongly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph_keel.backends.memory.store import MemoryStore, Request, State
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import Batch, Graph, Moved, NewEntry, Outcome, Row, Stored, Writes
from langgraph_keel.engine.thread import Log, Thread


class ComparesNothing(MemoryStore):
    """Never checks the head: the second of two runs overwrites the first."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        return super()._write(state, replace(new, checked=False))


class ComparesAcrossNamespaces(MemoryStore):
    """Treats the latest entry of the thread as the head of every namespace."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        records = list(state[new.address.thread_id].records.values()) if new.address.thread_id in state else []
        newest = records[-1].entry.address.checkpoint_id if records else None
        if new.checked and newest not in (new.parent, new.address.checkpoint_id):
            return Moved(newest)
        return super()._write(state, new)


class RefusesTheSameEntryAgain(MemoryStore):
    """Forgets that the head may be the same entry, stored before a lost reply."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        head = state.get(new.address.thread_id, Thread()).head(new.address.checkpoint_ns)
        head_id = head.entry.address.checkpoint_id if head else None
        if new.checked and head_id != new.parent:
            return Moved(head_id)
        return super()._write(state, new)


class BranchesBecomeTheHead(MemoryStore):
    """Keeps the loser of a conflict, but as the latest."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        return super()._write(state, replace(new, checked=new.checked and new.on_conflict == "raise"))


class BesideNeedsAHead(MemoryStore):
    """Puts an entry that belongs off the trunk on it if there is no head."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        on_conflict = "fork" if new.on_conflict == "beside" else new.on_conflict
        return super()._write(state, replace(new, on_conflict=on_conflict))


class GraphsForgetBranches(MemoryStore):
    """Reports every entry as on the trunk."""

    def read_graph(self, thread_id: str) -> StorePlan[Request, Any, Graph]:
        graph = yield from super().read_graph(thread_id)
        return replace(graph, nodes=[replace(node, is_beside=False) for node in graph.nodes])


class ListsWritesByTask(MemoryStore):
    """Lists the writes of a checkpoint in the order of their tasks."""

    def list_writes(
        self, thread_id: str, after: Writes | None, limit: int
    ) -> StorePlan[Request, Any, Sequence[Writes]]:
        found = yield from super().list_writes(thread_id, None, 10_000)
        ordered = sorted(found, key=lambda each: (str(each.address), each.batch.task_id))
        begin = 0 if after is None else 1 + ordered.index(after)
        return ordered[begin : begin + limit]


class WritesItemsBeforeItChecks(MemoryStore):
    """Leaves the items of a refused entry behind."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        outcome = super()._write(state, new)
        if isinstance(outcome, Moved) and new.address.thread_id in state:
            for channel, rows in new.appends.items():
                self._append(state[new.address.thread_id], new.address, channel, rows)
        return outcome


class BuildsOnAnything(MemoryStore):
    """Never reports that the base is gone."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        return super()._write(state, replace(new, base=None))


class TakesTwoTrips(MemoryStore):
    """Writes the items in one request and the entry in another."""

    def write_entry(self, new: NewEntry) -> StorePlan[Request, Any, Outcome]:
        yield lambda state: None
        outcome = yield from super().write_entry(new)
        return outcome


class AcknowledgesBeforeItStores(MemoryStore):
    """Stores writes only with the next request that writes."""

    def __init__(self) -> None:
        super().__init__()
        self._late: deque[Callable[[State], None]] = deque()

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Request, Any, None]:
        (store,) = super().write_batch(address, batch)
        self._late.append(store)
        yield self._settle if len(self._late) > 1 else lambda state: None

    def _settle(self, state: State) -> None:
        while self._late:
            self._late.popleft()(state)


class ReplacingForgetsWrites(MemoryStore):
    """Drops the writes of an entry that is stored again."""

    def _keep(self, thread: Thread, new: NewEntry, first: Mapping[str, int], trunk: bool) -> Stored:
        if thread.named(new.address.checkpoint_ns, new.address.checkpoint_id):
            thread.batches.pop((new.address.checkpoint_ns, str(new.address.checkpoint_id)), None)
        return super()._keep(thread, new, first, trunk)


class ReplacingKeepsThePlace(MemoryStore):
    """Keeps the old position of an entry that is stored again."""

    def _keep(self, thread: Thread, new: NewEntry, first: Mapping[str, int], trunk: bool) -> Stored:
        order = [record.entry.address for record in thread.records.values()]
        stored = super()._keep(thread, new, first, trunk)
        if new.address in order:
            records = sorted(thread.records.items(), key=lambda pair: order.index(pair[1].entry.address))
            thread.records = dict(records)
        return stored


class StoresNoParent(MemoryStore):
    """Loses the link to the parent."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        outcome = super()._write(state, new)
        if isinstance(outcome, Stored):
            record = state[new.address.thread_id].records[outcome.stamp]
            record.entry = replace(record.entry, parent=None)
        return outcome


class ForgetsEarlyWrites(MemoryStore):
    """Accepts writes only for entries that exist."""

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Request, Any, None]:
        (store,) = super().write_batch(address, batch)

        def write(state: State) -> None:
            thread = state.get(address.thread_id)
            if thread and thread.named(address.checkpoint_ns, address.checkpoint_id):
                store(state)

        yield write


class OneBatchATask(MemoryStore):
    """Replaces the writes of a task by its next ones."""

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Request, Any, None]:
        (store,) = super().write_batch(address, batch)

        def write(state: State) -> None:
            thread = state.setdefault(address.thread_id, Thread())
            batches = thread.batches.setdefault((address.checkpoint_ns, str(address.checkpoint_id)), [])
            batches[:] = [old for old in batches if old.task_id != batch.task_id]
            store(state)

        yield write


class RepackLosesRows(MemoryStore):
    """Removes the small rows and forgets the large one."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        outcome = super()._write(state, new)
        if isinstance(outcome, Stored):
            for channel, rows in new.repacks.items():
                log = state[new.address.thread_id].log(new.address.checkpoint_ns, channel)
                for row in rows:
                    log.rows.pop(row.lo, None)
        return outcome


class RepackLosesAnItem(MemoryStore):
    """Cuts the last item off a packed row."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        outcome = super()._write(state, new)
        if isinstance(outcome, Stored):
            for channel, rows in new.repacks.items():
                log = state[new.address.thread_id].log(new.address.checkpoint_ns, channel)
                log.rows.update({row.lo: replace(row, count=row.count - 1) for row in rows})
        return outcome


class RepacksWhateverIsThere(MemoryStore):
    """Replaces every row that begins in a repack's range, even if it extends beyond."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        outcome = super()._write(state, replace(new, repacks={}))
        if isinstance(outcome, Stored):
            for channel, rows in new.repacks.items():
                log = state[new.address.thread_id].log(new.address.checkpoint_ns, channel)
                _replace_all_that_begin_in(log, rows)
        return outcome


def _replace_all_that_begin_in(log: Log, rows: Sequence[Row]) -> None:
    for row in rows:
        for lo in [lo for lo in log.rows if row.lo <= lo < row.lo + row.count]:
            del log.rows[lo]
        log.rows[row.lo] = row


class StripsIds(MemoryStore):
    """Treats ids as equal that differ only in surrounding spaces."""

    def _write(self, state: State, new: NewEntry) -> Outcome:
        address = replace(new.address, thread_id=new.address.thread_id.strip() or " ")
        return super()._write(state, replace(new, address=address))


WRITING: Mapping[str, Callable[[], MemoryStore]] = {
    store.__name__: store
    for store in (
        ComparesNothing,
        ComparesAcrossNamespaces,
        RefusesTheSameEntryAgain,
        BranchesBecomeTheHead,
        BesideNeedsAHead,
        GraphsForgetBranches,
        ListsWritesByTask,
        WritesItemsBeforeItChecks,
        BuildsOnAnything,
        TakesTwoTrips,
        AcknowledgesBeforeItStores,
        ReplacingForgetsWrites,
        ReplacingKeepsThePlace,
        StoresNoParent,
        ForgetsEarlyWrites,
        OneBatchATask,
        RepackLosesRows,
        RepackLosesAnItem,
        RepacksWhateverIsThere,
        StripsIds,
    )
}
