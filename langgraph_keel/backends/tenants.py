"""The store of one tenant in tables that all tenants share: it calls threads by other names there.

What the tables hold of other tenants cannot be named through it: each name of a thread, and each key of a cell that
threads share, begins with the tenant's own prefix (`engine.tenants`). Verbs over all threads are narrowed by the store
itself, which is told the tenant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph_keel.engine.cells import Cell, Shelf, Swapped
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import (
    Batch,
    CopyOutcome,
    Entry,
    Found,
    Graph,
    Heavy,
    Listed,
    NewEntry,
    Outcome,
    Query,
    Replacement,
    Run,
    Stamp,
    Unchanged,
    Writes,
)
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.tenants import prefix_of


class TenantStore(Store[Any, Any]):
    """What a tenant has in another store.

    Args:
        shared: That store; its verbs over all threads give back those of the tenant only.
        tenant: The tenant.
    """

    def __init__(self, shared: Store[Any, Any], tenant: str) -> None:
        self._shared = shared
        self._prefix = prefix_of(tenant)

    # -- names -------------------------------------------------------------------------------------------------

    def _inside(self, thread_id: str) -> str:
        return _like(thread_id, self._prefix + thread_id)

    def _outside(self, name: str) -> str:
        return _like(name, name[len(self._prefix) :])

    def _at(self, address: Address) -> Address:
        return Address(self._inside(address.thread_id), address.checkpoint_ns, address.checkpoint_id)

    def _show_address(self, address: Address) -> Address:
        return Address(self._outside(address.thread_id), address.checkpoint_ns, address.checkpoint_id)

    def _put(self, entry: Entry) -> Entry:
        return replace(entry, address=self._at(entry.address))

    def _show_entry(self, entry: Entry) -> Entry:
        return replace(entry, address=self._show_address(entry.address))

    def _show_found(self, found: Found) -> Found:
        return Found(self._show_entry(found.entry), found.rows, found.batches)

    def _shelf(self, shelf: Shelf) -> tuple[Shelf, str]:
        """Return where cells are, and what their keys begin with: those that a tenant's threads share are among all."""
        return (
            (shelf, self._prefix) if shelf.thread_id is None else (Shelf(self._inside(shelf.thread_id), shelf.kind), "")
        )

    def _cell(self, cell: Cell) -> Cell:
        return replace(cell, origin=self._inside(cell.origin)) if cell.origin else cell

    def _show_cell(self, cell: Cell) -> Cell:
        return replace(cell, origin=self._outside(cell.origin)) if cell.origin else cell

    # -- checkpoints -------------------------------------------------------------------------------------------

    def write_entry(self, new: NewEntry) -> Plan[Outcome]:
        """See `Store.write_entry`."""
        outcome: Outcome = yield from self._shared.write_entry(replace(new, address=self._at(new.address)))
        return outcome

    def write_batch(self, address: Address, batch: Batch) -> Plan[None]:
        """See `Store.write_batch`."""
        yield from self._shared.write_batch(self._at(address), batch)

    def read_entry(self, address: Address) -> Plan[Found | None]:
        """See `Store.read_entry`."""
        found: Found | None = yield from self._shared.read_entry(self._at(address))
        return found and self._show_found(found)

    def read_known(self, address: Address, known: Stamp) -> Plan[Found | Unchanged | None]:
        """See `Store.read_known`."""
        found: Found | Unchanged | None = yield from self._shared.read_known(self._at(address), known)
        return self._show_found(found) if isinstance(found, Found) else found

    def read_light(self, address: Address, known: Stamp | None, most: int) -> Plan[Found | Unchanged | Heavy | None]:
        """See `Store.read_light`."""
        found: Found | Unchanged | Heavy | None = yield from self._shared.read_light(self._at(address), known, most)
        if isinstance(found, Heavy):
            return Heavy(self._show_entry(found.entry), found.batches)
        return self._show_found(found) if isinstance(found, Found) else found

    def scan(self, query: Query) -> Plan[Sequence[Entry]]:
        """See `Store.scan`."""
        thread_id, after = query.thread_id, query.after
        query = replace(
            query,
            thread_id=None if thread_id is None else self._inside(thread_id),
            after=None if after is None else self._put(after),
        )
        entries: Sequence[Entry] = yield from self._shared.scan(query)
        return [self._show_entry(entry) for entry in entries]

    def read_values(self, entries: Sequence[Entry]) -> Plan[Sequence[Found]]:
        """See `Store.read_values`."""
        found: Sequence[Found] = yield from self._shared.read_values([self._put(entry) for entry in entries])
        return [self._show_found(each) for each in found]

    def read_history(self, address: Address, channels: Collection[str]) -> Plan[Sequence[Found]]:
        """See `Store.read_history`."""
        found: Sequence[Found] = yield from self._shared.read_history(self._at(address), channels)
        return [self._show_found(each) for each in found]

    def read_graph(self, thread_id: str) -> Plan[Graph]:
        """See `Store.read_graph`."""
        graph: Graph = yield from self._shared.read_graph(self._inside(thread_id))
        nodes = [replace(node, address=self._show_address(node.address)) for node in graph.nodes]
        return Graph(nodes, graph.ends, graph.epoch)

    # -- threads -----------------------------------------------------------------------------------------------

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> Plan[None]:
        """See `Store.remove_entries`."""
        yield from self._shared.remove_entries(self._inside(thread_id), gone, ghosts)

    def remove_rows(self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph) -> Plan[int]:
        """See `Store.remove_rows`."""
        removed: int = yield from self._shared.remove_rows(self._inside(thread_id), live, graph)
        return removed

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> Plan[bool]:
        """See `Store.delete_thread`."""
        is_deleted: bool = yield from self._shared.delete_thread(self._inside(thread_id), last)
        return is_deleted

    def delete_all(self, limit: int) -> Plan[int]:
        """See `Store.delete_all`."""
        deleted: int = yield from self._shared.delete_all(limit)
        return deleted

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Plan[CopyOutcome]:
        """See `Store.copy_thread`."""
        upto = None if upto is None else self._put(upto)
        outcome: CopyOutcome = yield from self._shared.copy_thread(self._inside(source), self._inside(target), upto)
        return outcome

    def make_room(self) -> Plan[bool]:
        """See `Store.make_room`."""
        return self._shared.make_room()

    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> Plan[Sequence[Writes]]:
        """See `Store.list_writes`."""
        after = after and replace(after, address=self._at(after.address))
        page: Sequence[Writes] = yield from self._shared.list_writes(self._inside(thread_id), after, limit)
        return [replace(each, address=self._show_address(each.address)) for each in page]

    def list_kinds(self, thread_id: str | None) -> Plan[Sequence[str]]:
        """See `Store.list_kinds`. Of what threads share, those of all tenants."""
        inside = None if thread_id is None else self._inside(thread_id)
        kinds: Sequence[str] = yield from self._shared.list_kinds(inside)
        return kinds

    def replace_plain(self, thread_id: str, new: Replacement) -> Plan[None]:
        """See `Store.replace_plain`."""
        writes = [replace(each, address=self._at(each.address)) for each in new.writes]
        yield from self._shared.replace_plain(self._inside(thread_id), replace(new, writes=writes))

    def find_runs(self, run_ids: Collection[str]) -> Plan[Sequence[str]]:
        """See `Store.find_runs`."""
        names: Sequence[str] = yield from self._shared.find_runs(run_ids)
        return [self._outside(name) for name in names]

    def read_threads(
        self, after: tuple[str, str] | None, limit: int, terms: Sequence[str] = ()
    ) -> Plan[Sequence[Listed]]:
        """See `Store.read_threads`."""
        page: Sequence[Listed] = yield from self._shared.read_threads(self._place(after), limit, terms)
        return self._show_page(page)

    def show_threads(
        self, after: tuple[str, str] | None, limit: int, terms: Sequence[str] = (), oldest_first: bool = False
    ) -> Plan[Sequence[Listed]]:
        """See `Store.show_threads`."""
        page: Sequence[Listed] = yield from self._shared.show_threads(self._place(after), limit, terms, oldest_first)
        return self._show_page(page)

    def _place(self, after: tuple[str, str] | None) -> tuple[str, str] | None:
        return None if after is None else (after[0], self._inside(after[1]))

    def _show_page(self, page: Sequence[Listed]) -> Sequence[Listed]:
        return [
            (replace(info, thread_id=self._outside(info.thread_id)), head and self._show_entry(head))
            for info, head in page
        ]

    def list_strays(self, after: str | None, limit: int) -> Plan[Sequence[str]]:
        """See `Store.list_strays`."""
        names: Sequence[str] = yield from self._shared.list_strays(after and self._inside(after), limit)
        return [self._outside(name) for name in names]

    # -- cells -------------------------------------------------------------------------------------------------

    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> Plan[Swapped]:
        """See `Store.swap_cell`."""
        shelf, prefix = self._shelf(shelf)
        new = None if new is None else self._cell(new)
        swapped: Swapped = yield from self._shared.swap_cell(shelf, prefix + key, expected, new)
        return swapped if swapped.cell is None else Swapped(swapped.done, self._show_cell(swapped.cell))

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> Plan[Mapping[str, Cell]]:
        """See `Store.read_cells`."""
        shelf, prefix = self._shelf(shelf)
        cells: Mapping[str, Cell] = yield from self._shared.read_cells(shelf, [prefix + key for key in keys])
        return {key[len(prefix) :]: self._show_cell(cell) for key, cell in cells.items()}

    def list_cells(self, shelf: Shelf, prefix: str, after: str | None, limit: int) -> Plan[Sequence[tuple[str, Cell]]]:
        """See `Store.list_cells`."""
        shelf, ours = self._shelf(shelf)
        after = None if after is None else ours + after
        cells: Sequence[tuple[str, Cell]] = yield from self._shared.list_cells(shelf, ours + prefix, after, limit)
        return [(key[len(ours) :], self._show_cell(cell)) for key, cell in cells]

    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> Plan[int]:
        """See `Store.remove_cells`."""
        shelf, prefix = self._shelf(shelf)
        removed: int = yield from self._shared.remove_cells(shelf, {prefix + key: tokens[key] for key in tokens})
        return removed


def _like(name: str, text: str) -> str:
    """Return a text as what a name is: a store may mark what stands for a name that nobody knows any more."""
    return text if type(name) is str else type(name)(text)
