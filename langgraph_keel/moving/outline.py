"""Outlines of threads for comparison: digests of checkpoints, writes and cells.

Values are represented only by their number of items. Stores may frame equal content differently, so digests cover the
unframed content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from langgraph_keel.engine.cells import Cell, Shelf, key_of_cell
from langgraph_keel.engine.encoding.bodies import open_frame
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import NEW, Graph, Kind, Node, Writes
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore
from langgraph_keel.moving.damage import add_inflated, check_texts

CELLS, WRITES = 100, 64
"""Cells, and writes, listed per request."""
_MOST_HEADER = 1 << 24
"""Maximum bytes of a header: a few stored kilobytes can expand to a gigabyte."""
_MOST_RUNS = 1 << 17
"""Maximum runs of items per value, at 30 µs each; a heavily edited list has many."""


def _digest(*parts: Any) -> bytes:
    return blake2b(repr(parts).encode(errors="surrogatepass"), digest_size=16).digest()


@dataclass(slots=True)
class Outline:
    """The outline of a thread."""

    graph: Graph
    nodes: Sequence[bytes]  # the digests of the entries, in order
    writes: Mapping[tuple[str, str], Sequence[bytes]]  # digests by namespace and checkpoint
    cells: bytes  # the digest of its cells; empty if it has none
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Compute the digest of all parts, including which entries are heads."""
        heads = [node.is_head for node in self.graph.nodes]
        self.digest = _digest([*self.nodes], heads, sorted(self.writes.items()), self.cells)

    @property
    def is_empty(self) -> bool:
        """Whether the store has no record of the thread."""
        return not (self.nodes or self.writes or self.cells)

    def is_akin_to(self, other: Outline) -> bool:
        """Return whether both share a checkpoint, as two states of one thread do."""
        # This also holds after a prune.
        ours, theirs = (
            {
                (node.address.checkpoint_ns, node.address.checkpoint_id, open_frame(node.header))
                for node in each.graph.nodes
            }
            for each in (self, other)
        )
        return not ours.isdisjoint(theirs)

    def begins(self, other: Outline) -> bool:
        """Return whether adding entries, writes and any cells to this can give the other."""
        return [*other.nodes[: len(self.nodes)]] == [*self.nodes] and all(
            [*other.writes.get(place, ())[: len(digests)]] == [*digests] for place, digests in self.writes.items()
        )


def read_outline(store: Store[Any, Any], thread_id: str, takes: Callable[[str], bool], most: int) -> Plan[Outline]:
    """Read a thread's outline. Three trips, and one for each 64 writes and 100 cells."""
    graph: Graph = yield from store.read_graph(thread_id)
    for node in graph.nodes:
        _check_node(node)
    there = {(node.address.checkpoint_ns, node.address.checkpoint_id) for node in graph.nodes}
    # Older stores allowed times before that of the previous entry; current ones do not.
    times = accumulate((node.updated_at for node in graph.nodes), max)
    nodes = [
        _digest_of_node(node, (node.address.checkpoint_ns, node.parent) in there, at)
        for node, at in zip(graph.nodes, times, strict=True)
    ]
    writes: dict[tuple[str, str], list[bytes]] = {}
    after: Writes | None = None
    inflated = 0
    while True:
        page: Sequence[Writes] = yield from store.list_writes(thread_id, after, WRITES)
        inflated = add_inflated(inflated, (each.batch.body for each in page), most)
        for each in page:
            check_texts(*place_of(each), each.address.checkpoint_id, each.batch.task_id, each.batch.task_path)
            digest = _digest(each.batch.task_id, each.batch.task_path, open_frame(each.batch.body))
            writes.setdefault(place_of(each), []).append(digest)
        if len(page) < WRITES:
            break
        after = page[-1]
    return Outline(graph, nodes, writes, (yield from read_cells_digest(store, thread_id, takes)))


def read_cells_digest(store: Store[Any, Any], thread_id: str | None, takes: Callable[[str], bool]) -> Plan[bytes]:
    """Read the digest of a thread's or shared cells; empty if there are none."""
    # A trip for each 100 cells.
    found, count = blake2b(digest_size=16), 0
    for kind in sorted(filter(takes, (yield from store.list_kinds(thread_id)))):
        walk = Shelves(store, Shelf(thread_id, kind))
        while (cell := (yield from walk.next())) is not None:
            found.update(_digest(kind, cell[0], digest_of_cell(cell[1])))
            count += 1
    return found.digest() if count else b""


def _check_node(node: Node) -> None:
    """Raise `CorruptStore` for a malformed entry, as stores do not check entries."""
    address = node.address
    check_texts(address.checkpoint_ns, address.checkpoint_id, node.parent or "", node.run_id or "", node.updated_at)
    check_texts(*node.refs)
    where = f"thread {address.thread_id!r}, checkpoint {address.checkpoint_id!r:.80}"
    if not address.checkpoint_id:
        raise CorruptStore(f"{where}: it has no id")
    for name, ref in node.refs.items():
        is_made_of_items = bool(ref.runs) or ref.kind in (Kind.INLINE, Kind.LIST)
        if not (is_made_of_items and all(type(lo) is type(hi) is int and 0 <= lo < hi <= NEW for lo, hi in ref.runs)):
            raise CorruptStore(f"{where}: channel {name!r} has invalid item numbers")
        if len(ref.runs) > _MOST_RUNS:
            raise CorruptStore(f"{where}: channel {name!r} is made of too many runs of items ({len(ref.runs):,})")


def place_of(writes: Writes) -> tuple[str, str]:
    """Return the namespace and id of the checkpoint to which a task wrote."""
    return writes.address.checkpoint_ns, str(writes.address.checkpoint_id)


def _digest_of_node(node: Node, has_parent: bool, at: str) -> bytes:
    """Return the digest of the parts of an entry that all stores preserve."""
    # Without a removed parent, which only some stores still name.
    refs = [(name, int(ref.kind), sum(hi - lo for lo, hi in ref.runs)) for name, ref in node.refs.items()]
    address, parent = node.address, node.parent if has_parent else None
    flags = node.is_ghost, node.is_beside and not node.is_ghost, at
    return _digest(
        address.checkpoint_ns,
        address.checkpoint_id,
        parent,
        node.run_id,
        *flags,
        open_frame(node.header, _MOST_HEADER),
        refs,
    )


def digest_of_cell(cell: Cell) -> bytes:
    """Return the digest of a listed cell with its token."""
    return _digest(cell.token, open_frame(cell.header), cell.origin, cell.expires_at, *_search_of(cell))


def content_of_cell(cell: Cell) -> bytes:
    """Return the digest of a cell's content without its token and body."""
    return _digest(open_frame(cell.header), cell.origin, cell.expires_at, *_search_of(cell))


def _search_of(cell: Cell) -> Sequence[Any]:
    """Return the search terms of a cell; empty if it is not searchable."""
    return () if cell.rank is None else (cell.rank, *cell.marks)


class Shelves:
    """Iterates over the cells of a shelf in key order, without their bodies."""

    def __init__(self, store: Store[Any, Any], shelf: Shelf) -> None:
        self._store, self._shelf = store, shelf
        self._page: Iterator[tuple[str, Cell]] = iter(())
        self._after: str | None = None
        self._is_last = False

    def next(self) -> Plan[tuple[str, Cell] | None]:
        """Return the next key and cell, or `None` at the end. A trip for each 100."""
        found = next(self._page, None)
        if found is None and not self._is_last:
            page = yield from self._store.list_cells(self._shelf, "", self._after, CELLS)
            self._is_last = len(page) < CELLS
            if self._after is None and (keys := [key for key, _ in page]) != sorted(keys):
                page = yield from self._sort(list(page))
            self._page = iter(page)
            found = next(self._page, None)
        if found is not None:
            key, cell = found
            check_texts(key_of_cell(key), cell.origin, cell.token)
            cell.is_live(0)
            self._after = key
        return found

    def _sort(self, page: list[tuple[str, Cell]]) -> Plan[list[tuple[str, Cell]]]:
        """Read the whole shelf and sort it by key."""
        # A store with hidden names sorts by the hidden ones.
        while not self._is_last:
            more = yield from self._store.list_cells(self._shelf, "", page[-1][0], CELLS)
            self._is_last = len(more) < CELLS
            page += more
        return sorted(page, key=lambda found: found[0])
