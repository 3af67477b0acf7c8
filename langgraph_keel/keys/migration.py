"""Sealing of a store's plain-text records while other processes read and write.

A record is replaced only if it is still in plain text (`Store.replace_plain`), so a migration may be interrupted and
run concurrently. It ends when a pass over the whole store finds no plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from langgraph_keel.engine.cells import OBJECTS, Cell, Shelf
from langgraph_keel.engine.encoding.bodies import check_present
from langgraph_keel.engine.listing import read_names
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Found, Graph, Node, Replacement, Row, Writes
from langgraph_keel.engine.removal import live_runs
from langgraph_keel.errors import CorruptStore, KeyMissing, StoreBusy
from langgraph_keel.keys.datakeys import KIND, STORE
from langgraph_keel.keys.sealing import key_in
from langgraph_keel.keys.store import SealedStore, digests_of

Tell: TypeAlias = Callable[[int, int | None], object]

ENTRIES, WRITES, CELLS = 32, 32, 20
"""Page sizes of entries, writes and cells."""
BYTES = 4 << 20
"""Bytes of rows per request."""
ROUNDS = 20
"""Maximum number of passes. If more are needed, a process without keys is writing."""
_DAMAGE = CorruptStore, KeyMissing


@dataclass(slots=True)
class Sealed:
    """Result of a migration of one store."""

    threads: set[str] = field(default_factory=set)  # that contained plain text
    records: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # by thread, the error; the empty name: shared records
    is_done: bool = True


def migrate(store: SealedStore, tell: Tell) -> Plan[Sealed]:
    """Seal all plain-text records of a store."""
    done = Sealed()
    for _ in range(ROUNDS):
        before = done.records
        names = yield from read_names(store.inner)
        yield from _count(_seal_shelves(store, None), None, done)
        for looked, thread_id in enumerate(names, 1):
            yield from _count(_seal_thread(store, thread_id), thread_id, done)
            tell(looked, len(names))
        if done.failed:
            done.is_done = False
            return done
        if done.records == before:
            yield from store.chest.end_migration()
            return done
    raise StoreBusy(
        f"the store was read {ROUNDS} times, and each time it contained new plain text: stop the processes that write "
        "without keys"
    )


def _count(seal: Plan[int], thread_id: str | None, done: Sealed) -> Plan[None]:
    try:
        count = yield from seal
    except _DAMAGE as error:
        done.failed[thread_id or ""] = str(error)
        return
    done.records += count
    if count and thread_id is not None:
        done.threads.add(thread_id)


# -- a thread ----------------------------------------------------------------------------------------------------------


def _seal_thread(store: SealedStore, thread_id: str) -> Plan[int]:
    """Seal the records of a thread; return the number that were in plain text."""
    count = 0
    for _ in range(ROUNDS):
        store.chest.forget(thread_id)  # the thread may have been deleted and created again
        graph: Graph = yield from store.inner.read_graph(thread_id)
        if graph.epoch is not None:  # an interrupted prune leaves rows that no checkpoint shows
            yield from store.inner.remove_rows(thread_id, live_runs(graph), graph)
            graph = yield from store.inner.read_graph(thread_id)  # stamps of the files backend have changed
        count += yield from _seal_writes(store, thread_id, graph)
        missing = 0
        for first in range(0, len(graph.nodes), ENTRIES):
            nodes = graph.nodes[first : first + ENTRIES]
            found, sealed = yield from _seal_entries(store, thread_id, graph, nodes)
            missing += len(nodes) - found
            count += sealed
        # A missing checkpoint was removed or written again, and a later checkpoint may show its rows.
        if not missing:
            return count + (yield from _seal_shelves(store, thread_id))
    raise StoreBusy(f"thread {thread_id!r} was read {ROUNDS} times, and checkpoints were removed each time")


def _seal_writes(store: SealedStore, thread_id: str, graph: Graph) -> Plan[int]:
    count, after = 0, None
    while True:
        page: Sequence[Writes] = yield from store.inner.list_writes(thread_id, after, WRITES)
        check_present(each.batch.body for each in page)
        if plain := [each for each in page if _is_plain(each.batch.body)]:
            seals = yield from store.seals(thread_id)
            sealed = [replace(each, batch=seals.batch(each.batch, each.address)) for each in plain]
            yield from store.inner.replace_plain(thread_id, Replacement(graph.epoch, writes=sealed))
            count += len(plain)
        if len(page) < WRITES:
            return count
        after = page[-1]


def _seal_entries(store: SealedStore, thread_id: str, graph: Graph, nodes: Sequence[Node]) -> Plan[tuple[int, int]]:
    """Seal the rows of some entries, then their headers, which contain digests of the rows."""
    entries = [Entry(node.address, node.parent, node.stamp, node.header, node.refs, node.run_id) for node in nodes]
    found: Sequence[Found] = yield from store.inner.read_values(entries)
    rows = {
        (each.entry.address.checkpoint_ns, name, row.lo): (row, each.entry)
        for each in found
        for name, of_channel in each.rows.items()
        for row in of_channel
    }
    check_present(row.body for row, _ in rows.values())
    plain = {place: row for place, (row, _) in rows.items() if _is_plain(row.body)}
    entries = [entry for entry in entries if _is_plain(entry.header)]
    if not plain and not entries:
        return len(found), 0
    seals = yield from store.seals(thread_id)
    opener = yield from store.opener(thread_id, [row.body for row, _ in rows.values()])
    opened = {
        place: row if place in plain else opener.open_rows([row], entry.address, place[1])[0]
        for place, (row, entry) in rows.items()
    }
    for part in _parts(plain):
        sealed: dict[tuple[str, str], list[Row]] = {}
        for ns, channel, lo in part:
            address = rows[ns, channel, lo][1].address
            sealed.setdefault((ns, channel), []).extend(seals.rows([plain[ns, channel, lo]], address, channel))
        yield from store.inner.replace_plain(thread_id, Replacement(graph.epoch, rows=sealed))
    read = {each.entry.stamp: each for each in found}
    headers = {}
    for entry in entries:
        if each := read.get(entry.stamp):
            ns = entry.address.checkpoint_ns
            shown = {name: [opened[ns, name, row.lo] for row in of] for name, of in each.rows.items()}
            digests = digests_of(entry.refs, shown)
            headers[entry.stamp] = seals.header(entry.header, entry.address, entry.parent, entry.run_id, digests)
    if headers:
        yield from store.inner.replace_plain(thread_id, Replacement(graph.epoch, headers=headers))
    return len(found), len(plain) + len(entries)


def _parts(rows: dict[tuple[str, str, int], Row]) -> Iterator[Collection[tuple[str, str, int]]]:
    """Yield the places of rows in portions of one request each."""
    part: list[tuple[str, str, int]] = []
    size = 0
    for place, row in rows.items():
        part.append(place)
        size += len(row.body)
        if size >= BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _seal_shelves(store: SealedStore, thread_id: str | None) -> Plan[int]:
    count = 0
    shelves = [Shelf(thread_id, kind) for kind in (yield from store.inner.list_kinds(thread_id))]
    for shelf in shelves:
        # These contain wrapped keys, or are below the sealing layer.
        if shelf not in (STORE, OBJECTS, Shelf(thread_id, KIND)):
            count += yield from _seal_shelf(store, shelf)
    return count


def _seal_shelf(store: SealedStore, shelf: Shelf) -> Plan[int]:
    count, after = 0, None
    while True:
        page = yield from store.inner.list_cells(shelf, "", after, CELLS)
        if plain := [key for key, cell in page if _is_plain(cell.header)]:
            cells: Mapping[str, Cell] = yield from store.inner.read_cells(shelf, plain)
            for key, cell in cells.items():
                if _is_plain(cell.header):
                    # The token stays, so a process that has read the cell can still replace it.
                    sealed = yield from store.seal_cell(cell, shelf, key)
                    yield from store.inner.swap_cell(shelf, key, cell.token, sealed)
            count += len(plain)
        if len(page) < CELLS:
            return count
        after = page[-1][0]


def _is_plain(body: Any) -> bool:
    return key_in(body) is None
