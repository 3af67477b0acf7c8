"""The store in dictionaries: the reference model of every verb.

A request is a function of the state; the driver calls it under the store's lock, so each is atomic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias, TypeVar

from langgraph_keel.engine.cells import Cell, Search, Shelf, Swap, Swapped, ruling, select_cells
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import (
    BaseGone,
    Batch,
    Copied,
    CopyOutcome,
    Entry,
    Found,
    Graph,
    Listed,
    NewEntry,
    Occupied,
    Outcome,
    Page,
    Query,
    Replacement,
    Row,
    Run,
    Stamp,
    Stored,
    ThreadInfo,
    Unchanged,
    Writes,
)
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.thread import (
    Log,
    Record,
    Thread,
    ancestors,
    as_of,
    entry_of,
    graph_of,
    info_of,
    is_last,
    list_writes,
    page,
    put_time,
    read_record,
    replace_plain,
    selected,
    touches,
    verdict,
)

T = TypeVar("T")


class State(dict[str, Thread]):
    """The threads by id, and the cells."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: dict[Shelf, dict[str, Cell]] = {}
        # The marks by which searches find a thread: those of its head (with the head's stamp), and those of later
        # batches (with the highest checkpoint id of them).
        self.marks: dict[str, tuple[Stamp, Collection[str]]] = {}
        self.late: dict[str, tuple[str, set[str]]] = {}
        self.tenants: defaultdict[str, State] = defaultdict(State)

    def threads_with_cells(self) -> set[str]:
        """Return the threads that have their own cells or have written shared ones."""
        return {owner for shelf, cells in self.cells.items() for owner in _owners(shelf, cells).values() if owner}

    def drop_cells(self, thread_id: str) -> None:
        """Delete the cells of a thread, and the shared cells that it has written."""
        for shelf, cells in self.cells.items():
            for key in [key for key, owner in _owners(shelf, cells).items() if owner == thread_id]:
                del cells[key]
        # An empty shelf would still contain the thread's name.
        self.cells = {shelf: cells for shelf, cells in self.cells.items() if cells}


def _owners(shelf: Shelf, cells: Mapping[str, Cell]) -> dict[str, str]:
    return {key: cell.origin if shelf.thread_id is None else shelf.thread_id for key, cell in cells.items()}


def _swap(state: State, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> Swapped:
    current = state.cells.get(shelf, {}).get(key)
    decision = ruling(current, expected, new)
    if decision == "refuse":
        return Swapped(False, current)
    if decision == "write" and new:
        # A replaced cell moves to the end, like a new one.
        cells = state.cells.setdefault(shelf, {})
        cells.pop(key, None)
        cells[key] = new
    elif decision == "write" and current:
        del state.cells[shelf][key]
    return Swapped(True)


Request: TypeAlias = Callable[[State], Any]


def _place_of(listed: Listed) -> tuple[str, str]:
    return listed[0].updated_at, listed[0].thread_id


class MemoryStore(Store[Request, Any]):
    """Keeps the threads of one tenant, or of none; counted stamps are never reused."""

    def __init__(self, tenant: str = "") -> None:
        self._stamps = count(1)
        self._tenant = tenant

    def of_tenant(self, tenant: str) -> MemoryStore:
        store = type(self)(tenant)
        store._stamps = self._stamps
        return store

    def list_tenants(self, after: str | None, limit: int) -> StorePlan[Request, Any, Sequence[str]]:
        def read(state: State) -> list[str]:
            names = (name for name, there in state.tenants.items() if there or any(there.cells.values()))
            return sorted(name for name in names if name > (after or ""))[:limit]

        return self._send(read)

    def _send(self, request: Callable[[State], T]) -> StorePlan[Request, Any, T]:
        """Plan one request, and return its reply."""
        reply: T = yield (lambda state: request(state.tenants[self._tenant])) if self._tenant else request
        return reply

    def write_entry(self, new: NewEntry) -> StorePlan[Request, Any, Outcome]:
        return self._send(lambda state: self._write(state, new))

    def _write(self, state: State, new: NewEntry) -> Outcome:
        thread = state.get(new.address.thread_id) or Thread()
        trunk = verdict(thread, new)
        if not isinstance(trunk, bool):
            return trunk
        state[new.address.thread_id] = thread
        first = {channel: self._append(thread, new.address, channel, rows) for channel, rows in new.appends.items()}
        for channel, rows in new.repacks.items():
            thread.log(new.address.checkpoint_ns, channel).repack(rows)
        stored = self._keep(thread, new, first, trunk)
        if not new.address.checkpoint_ns and trunk:
            name, checkpoint_id = new.address.thread_id, new.address.checkpoint_id
            state.marks[name] = stored.stamp, new.terms
            if name in state.late and state.late[name][0] < str(checkpoint_id):
                del state.late[name]
        return stored

    def _append(self, thread: Thread, address: Address, channel: str, rows: Sequence[Row]) -> int:
        return thread.log(address.checkpoint_ns, channel).append(rows)

    def _keep(self, thread: Thread, new: NewEntry, first: Mapping[str, int], trunk: bool) -> Stored:
        stamp = next(self._stamps)
        thread.keep(Record(entry_of(new, stamp, first), trunk, put_time(thread, new)))
        return Stored(stamp, first)

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Request, Any, None]:
        def write(state: State) -> None:
            thread = state.setdefault(address.thread_id, Thread())
            key = address.checkpoint_ns, str(address.checkpoint_id)
            thread.batches.setdefault(key, []).append(batch)
            if batch.terms:
                last, late = state.late.get(address.thread_id, ("", set()))
                state.late[address.thread_id] = max(last, str(address.checkpoint_id)), late | {*batch.terms}

        return self._send(write)

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Request, Any, Any]:
        def read(state: State) -> Found | Unchanged | None:
            thread = state.get(address.thread_id)
            record = thread and thread.visible(address.checkpoint_ns, address.checkpoint_id)
            found = read_record(thread, record) if thread and record else None
            if found is not None and found.entry.stamp == known:
                return Unchanged(found.entry.parent, found.batches, found.entry.address.checkpoint_id)
            return found

        return self._send(read)

    def scan(self, query: Query) -> StorePlan[Request, Any, Sequence[Entry]]:
        def read(state: State) -> list[Entry]:
            names = [query.thread_id] if query.thread_id is not None else list(state)
            return page((entry for name in names if name in state for entry in selected(state[name], query)), query)

        return self._send(read)

    def read_values(self, entries: Sequence[Entry]) -> StorePlan[Request, Any, Sequence[Found]]:
        def read(state: State) -> list[Found]:
            threads = [(state.get(entry.address.thread_id), entry) for entry in entries]
            return [read_record(t, t.records[e.stamp], e.refs) for t, e in threads if t and e.stamp in t.records]

        return self._send(read)

    def read_history(self, address: Address, channels: Collection[str]) -> StorePlan[Request, Any, Sequence[Found]]:
        def read(state: State) -> list[Found]:
            thread = state.get(address.thread_id)
            return list(ancestors(thread, address, channels)) if thread else []

        return self._send(read)

    def read_graph(self, thread_id: str) -> StorePlan[Request, Any, Graph]:
        return self._send(lambda state: graph_of(state.get(thread_id) or Thread()))

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Request, Any, None]:
        def remove(state: State) -> None:
            thread = state.get(thread_id) or Thread()
            for stamp in gone:
                thread.forget(stamp)
            for stamp, channels in ghosts.items():
                thread.make_ghost(stamp, channels)

        return self._send(remove)

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Request, Any, int]:
        def remove(state: State) -> int:
            thread = state.get(thread_id)
            if thread is None or thread.epoch != graph.epoch:
                return 0
            dead = [
                (thread.logs[key], row.lo)
                for key, end in graph.ends.items()
                for row in thread.logs[key].rows.values()
                if row.lo < end and not touches(row, live.get(key, ()))
            ]
            for log, lo in dead:
                del log.rows[lo]
            return len(dead)

        if graph.epoch is None:
            return 0
        return (yield from self._send(remove))

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Any, bool]:
        def delete(state: State) -> bool:
            if last is not None and not is_last(state.get(thread_id), last):
                return False
            for kept in (state, state.marks, state.late):
                kept.pop(thread_id, None)
            state.drop_cells(thread_id)
            return True

        return self._send(delete)

    def delete_all(self, limit: int) -> StorePlan[Request, Any, int]:
        if not self._tenant:
            return (yield from super().delete_all(limit))
        deleted: int = yield lambda state: len(state.tenants.pop(self._tenant, ()))
        return deleted

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> StorePlan[Request, Any, CopyOutcome]:
        def copy(state: State) -> CopyOutcome:
            if target in state:
                return Occupied()
            thread = state.get(source)
            if upto is not None:
                thread = as_of(thread, upto) if thread else None
            if thread:
                state[target] = self._copy(thread, target)
            return Copied() if thread or upto is None else BaseGone()

        return self._send(copy)

    def _copy(self, source: Thread, target: str) -> Thread:
        thread = Thread()
        thread.logs = {key: Log(dict(log.rows), log.end) for key, log in source.logs.items()}
        thread.batches = {key: list(batches) for key, batches in source.batches.items()}
        for record in source.records.values():
            address = replace(record.entry.address, thread_id=target)
            entry = replace(record.entry, address=address, stamp=next(self._stamps))
            thread.keep(replace(record, entry=entry))
        return thread

    def list_writes(
        self, thread_id: str, after: Writes | None, limit: int
    ) -> StorePlan[Request, Any, Sequence[Writes]]:
        return self._send(lambda state: list_writes(thread_id, state.get(thread_id) or Thread(), after, limit))

    def list_kinds(self, thread_id: str | None) -> StorePlan[Request, Any, Sequence[str]]:
        return self._send(lambda state: [shelf.kind for shelf in state.cells if shelf.thread_id == thread_id])

    def replace_plain(self, thread_id: str, new: Replacement) -> StorePlan[Request, Any, None]:
        def replace_in(state: State) -> None:
            thread = state.get(thread_id)
            if thread is not None and thread.epoch == new.epoch:
                replace_plain(thread, new)
                state.marks.pop(thread_id, None)
                state.late.pop(thread_id, None)

        return self._send(replace_in)

    def find_runs(self, run_ids: Collection[str]) -> StorePlan[Request, Any, Sequence[str]]:
        def find(state: State) -> list[str]:
            return [
                name
                for name, thread in state.items()
                if any(record.entry.run_id in run_ids for record in thread.records.values())
            ]

        return self._send(find)

    def read_threads(self, page: Page) -> StorePlan[Request, Any, Sequence[Listed]]:
        after, oldest_first = page.after, page.oldest_first

        def read(state: State) -> list[Listed]:
            infos = [
                pair
                for name, thread in state.items()
                if (pair := info_of(name, thread))[0].checkpoints
                and self._is_found(state, *pair, page.terms)
                and (after is None or (after < _place_of(pair) if oldest_first else _place_of(pair) < after))
            ]
            infos.sort(key=_place_of, reverse=not oldest_first)
            return infos[: page.limit]

        return self._send(read)

    def _is_found(self, state: State, info: ThreadInfo, head: Entry | None, terms: Sequence[str]) -> bool:
        """Return whether a thread matches marks; `True` if its head's are unknown."""
        stamp, marks = state.marks.get(info.thread_id, (None, ()))
        if not marks or head is None or head.stamp != stamp:
            return True
        _, late = state.late.get(info.thread_id, ("", set()))
        return {*terms} <= {*marks, *late}

    def swap_cell(
        self, shelf: Shelf, key: str, expected: str | None, new: Cell | None
    ) -> StorePlan[Request, Any, Swapped]:
        return self._send(lambda state: _swap(state, shelf, key, expected, new))

    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> StorePlan[Request, Any, Sequence[Swapped]]:
        return self._send(lambda state: [_swap(state, shelf, *swap) for swap in swaps])

    def find_cells(self, shelf: Shelf, search: Search) -> StorePlan[Request, Any, Sequence[tuple[str, Cell]]]:
        return self._send(lambda state: select_cells(state.cells.get(shelf, {}).items(), search))

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Request, Any, Mapping[str, Cell]]:
        def read(state: State) -> dict[str, Cell]:
            cells = state.cells.get(shelf, {})
            return {key: cells[key] for key in keys if key in cells}

        return self._send(read)

    def list_strays(self, after: str | None, limit: int) -> StorePlan[Request, Any, Sequence[str]]:
        def read(state: State) -> list[str]:
            names = {name for name in (*state, *state.threads_with_cells()) if name > (after or "")}
            seen = {name for name in names if name in state and info_of(name, state[name])[0].checkpoints}
            return sorted(names - seen)[:limit]

        return self._send(read)

    def list_cells(
        self, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> StorePlan[Request, Any, Sequence[tuple[str, Cell]]]:
        def read(state: State) -> list[tuple[str, Cell]]:
            cells = state.cells.get(shelf, {})
            keys = sorted(key for key in cells if key.startswith(prefix) and key > (after or ""))
            return [(key, replace(cells[key], body=b"")) for key in keys[:limit]]

        return self._send(read)

    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> StorePlan[Request, Any, int]:
        def remove(state: State) -> int:
            cells = state.cells.get(shelf, {})
            gone = [key for key, token in tokens.items() if key in cells and cells[key].token == token]
            for key in gone:
                del cells[key]
            return len(gone)

        return self._send(remove)
