"""Stores that remove wrongly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from langgraph_keel.backends.memory.store import MemoryStore, Request, State
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import Graph, NewEntry, Outcome, Run, Stamp
from langgraph_keel.engine.thread import Thread

Live = Mapping[tuple[str, str], Sequence[Run]]


class PruneDropsALiveRow(MemoryStore):
    """Deletes the first live row of every log, too."""

    def remove_rows(self, thread_id: str, live: Live, graph: Graph) -> StorePlan[Request, Any, int]:
        less = {key: [(lo + 1, hi) for lo, hi in runs] for key, runs in live.items()}
        removed = yield from super().remove_rows(thread_id, less, graph)
        return removed


class PruneKeepsRows(MemoryStore):
    """Leaves the rows of removed entries behind."""

    def remove_rows(self, thread_id: str, live: Live, graph: Graph) -> StorePlan[Request, Any, int]:
        yield lambda state: None
        return 0


class ReusesItemNumbers(MemoryStore):
    """Numbers new items from the last remaining one."""

    def remove_rows(self, thread_id: str, live: Live, graph: Graph) -> StorePlan[Request, Any, int]:
        removed = yield from super().remove_rows(thread_id, live, graph)

        def rewind(state: State) -> None:
            for log in state.get(thread_id, Thread()).logs.values():
                log.end = max((row.lo + row.count for row in log.rows.values()), default=0)

        yield rewind
        return removed


class SweepsAnotherThread(MemoryStore):
    """Does not notice that a thread was deleted and created again under the same name."""

    def remove_rows(self, thread_id: str, live: Live, graph: Graph) -> StorePlan[Request, Any, int]:
        now = yield from self.read_graph(thread_id)
        removed = yield from super().remove_rows(thread_id, live, replace(graph, epoch=now.epoch))
        return removed


class RemovalLeavesWrites(MemoryStore):
    """Removes entries, but not their writes."""

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Request, Any, None]:
        (remove,) = super().remove_entries(thread_id, gone, ghosts)

        def remove_entries_only(state: State) -> None:
            thread = state.get(thread_id, Thread())
            batches = dict(thread.batches)
            remove(state)
            thread.batches = batches

        yield remove_entries_only


class RemovalTakesAllNamespaces(MemoryStore):
    """Removes the writes of entries with the same id in every namespace."""

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Request, Any, None]:
        (remove,) = super().remove_entries(thread_id, gone, ghosts)

        def remove_too_much(state: State) -> None:
            thread = state.get(thread_id, Thread())
            ids = {thread.records[stamp].entry.address.checkpoint_id for stamp in gone if stamp in thread.records}
            remove(state)
            thread.batches = {key: value for key, value in thread.batches.items() if key[1] not in ids}

        yield remove_too_much


class GhostsAreSeen(MemoryStore):
    """Keeps a ghost as an ordinary entry."""

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Request, Any, None]:
        yield from super().remove_entries(thread_id, gone, {})


class GhostsAreRemoved(MemoryStore):
    """Removes an entry that should become a ghost."""

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Request, Any, None]:
        yield from super().remove_entries(thread_id, {*gone, *ghosts}, {})


class GhostsKeepEverything(MemoryStore):
    """Hides a ghost but keeps all of its channels."""

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Request, Any, None]:
        def remove(state: State) -> None:
            thread = state.get(thread_id, Thread())
            for stamp in gone:
                thread.records.pop(stamp, None)
            for stamp in ghosts:
                thread.records[stamp].ghost = True

        yield remove


class DeleteLeavesWrites(MemoryStore):
    """Deletes a thread's entries and items, not its writes."""

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Any, bool]:
        def delete(state: State) -> None:
            if thread_id in state:
                state[thread_id] = Thread(batches=state[thread_id].batches)

        yield delete
        return True


class DeletedThreadsComeBack(MemoryStore):
    """Hides a deleted thread until the next write to it."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden: dict[str, Thread] = {}

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Any, bool]:
        def hide(state: State) -> None:
            if thread_id in state:
                self._hidden[thread_id] = state.pop(thread_id)

        yield hide
        return True

    def _write(self, state: State, new: NewEntry) -> Outcome:
        hidden = self._hidden.pop(new.address.thread_id, None)
        if hidden:
            state.setdefault(new.address.thread_id, hidden)
        return super()._write(state, new)


class ReusesStamps(MemoryStore):
    """Counts stamps from 1 again after a thread was deleted."""

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Any, bool]:
        is_deleted = yield from super().delete_thread(thread_id, last)
        self._stamps = count(1)
        return is_deleted


class DeletesWhatWasPutSince(MemoryStore):
    """Deletes a thread even if a checkpoint was stored since."""

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Any, bool]:
        return (yield from super().delete_thread(thread_id))


class GhostsKeepFromDeleting(MemoryStore):
    """Treats a ghost as the latest entry."""

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Any, bool]:
        graph = yield from self.read_graph(thread_id)
        if last is not None and graph.nodes[-1].stamp != last:
            return False
        return (yield from super().delete_thread(thread_id))


class FindsRunsOfHeadsOnly(MemoryStore):
    """Looks for a run in the newest entry of each thread only."""

    def find_runs(self, run_ids: Collection[str]) -> StorePlan[Request, Any, Sequence[str]]:
        def find(state: State) -> list[str]:
            newest = {name: list(thread.records.values())[-1:] for name, thread in state.items()}
            return [name for name, records in newest.items() if any(r.entry.run_id in run_ids for r in records)]

        names: Sequence[str] = yield find
        return names


REMOVING: Mapping[str, Callable[[], MemoryStore]] = {
    store.__name__: store
    for store in (
        PruneDropsALiveRow,
        PruneKeepsRows,
        ReusesItemNumbers,
        SweepsAnotherThread,
        RemovalLeavesWrites,
        RemovalTakesAllNamespaces,
        GhostsAreSeen,
        GhostsAreRemoved,
        GhostsKeepEverything,
        DeleteLeavesWrites,
        DeletesWhatWasPutSince,
        GhostsKeepFromDeleting,
        DeletedThreadsComeBack,
        ReusesStamps,
        FindsRunsOfHeadsOnly,
    )
}
