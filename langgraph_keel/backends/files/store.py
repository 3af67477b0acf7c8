"""The verbs of the store: the lines that each reads and appends (FORMAT.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile, islice
from typing import Any, Protocol, TypeVar

from langgraph_keel.backends.files.cells import Shelves
from langgraph_keel.backends.files.compaction import Compaction, blobs_of, compact, seal
from langgraph_keel.backends.files.disk import read
from langgraph_keel.backends.files.log import Bodies, Draft, Records, Replica, read_committed
from langgraph_keel.backends.files.thread import ThreadFiles, new_epoch
from langgraph_keel.engine.cells import Cell, Search, Shelf, Swap, Swapped
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
    Unchanged,
    Writes,
)
from langgraph_keel.engine.removal import live_runs
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.thread import (
    Record,
    Thread,
    ancestors,
    as_of,
    entry_of,
    graph_of,
    info_of,
    list_writes,
    page,
    put_time,
    read_record,
    selected,
    sequence_of,
    verdict,
)
from langgraph_keel.errors import CorruptStore

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Root(Protocol):
    """The threads of one directory."""

    def thread(self, thread_id: str) -> ThreadFiles: ...

    def cells(self, thread_id: str | None) -> Shelves: ...

    def threads(self) -> Iterator[ThreadFiles]: ...

    def strays(self, after: str | None) -> Iterator[str]: ...

    def threads_after(self, page: Page) -> Iterator[tuple[tuple[str, str], ThreadFiles]]: ...


class StoreRoot(Root, Protocol):
    """The part of a driver that requests use."""

    def tenant(self, tenant: str, writes: bool) -> Root: ...

    def tenants(self) -> list[str]: ...

    def delete_tenant(self, tenant: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Work:
    """One request: reads or changes one thread atomically, or reads several."""

    run: Callable[[StoreRoot], Any]
    writes: bool = False


def copy(source: ThreadFiles, target: ThreadFiles, upto: Entry | None) -> CopyOutcome:
    """Copy a thread; up to an entry, only the items that the copied entries show."""
    if target.log.exists():
        return Occupied()
    with source.writing() as handle:
        if handle is None:
            return Copied() if upto is None else BaseGone()
        replica = source.read_on(handle)
        records, _ = read_committed(read(handle, 0)[: replica.end], 0, str(source.log))
        begin = target.first_line(new_epoch(), replica.seq)
        if upto is None:
            draft = Draft()
            draft.lines = [begin, *(line + b"\n" for _, line in records[1:])]
        elif (part := _upto(replica, records, begin, Bodies(source.load, str(source.log)), upto)) is None:
            return BaseGone()
        else:
            draft = part
        blobs = {blob: source.load(blob) for blob in blobs_of(draft.lines) if blob not in draft.blobs}
        return Copied() if target.create(draft.lines, blobs | draft.blobs) else Occupied()


def _upto(replica: Replica, records: Records, begin: bytes, bodies: Bodies, upto: Entry) -> Draft | None:
    thread = as_of(replica.thread, upto) if replica.thread else None
    if thread is None:
        return None
    return Compaction(thread, live_runs(graph_of(thread)), None, bodies, {upto.stamp}).of(records, begin)


Look = Callable[[Thread, Bodies], T]


class FileStore(Store[Work, Any]):
    """The threads of one directory, of one tenant or of none. Stateless."""

    def __init__(self, tenant: str = "") -> None:
        self._tenant = tenant

    def of_tenant(self, tenant: str) -> FileStore:
        return FileStore(tenant)

    def list_tenants(self, after: str | None, limit: int) -> StorePlan[Work, Any, Sequence[str]]:
        names: list[str] = yield Work(lambda root: root.tenants())
        return [name for name in names if name > (after or "")][:limit]

    def _send(self, run: Callable[[Root], T], writes: bool = False) -> StorePlan[Work, Any, T]:
        """Plan one request, and return its reply. The arguments are those of `Work`."""
        tenant = self._tenant
        reply: T = yield Work((lambda root: run(root.tenant(tenant, writes))) if tenant else run, writes)
        return reply

    def _look(self, thread_id: str, look: Look[T], otherwise: T) -> StorePlan[Work, Any, T]:
        return self._send(lambda root: _look_at(root.thread(thread_id), look, otherwise))

    def _change(self, thread_id: str, decide: Callable[[Replica, Draft], T]) -> StorePlan[Work, Any, T]:
        return self._send(lambda root: root.thread(thread_id).change(decide), writes=True)

    def write_entry(self, new: NewEntry) -> StorePlan[Work, Any, Outcome]:

        def decide(replica: Replica, draft: Draft) -> Outcome:
            thread = replica.thread
            assert thread is not None
            trunk = verdict(thread, new)
            if not isinstance(trunk, bool):
                return trunk
            ns, checkpoint_id = new.address.checkpoint_ns, str(new.address.checkpoint_id)
            first = {channel: thread.log(ns, channel).end for channel in new.appends}
            replica.add_index(draft)
            for channel, rows in new.appends.items():
                draft.items(ns, channel, first[channel], rows)
            # Repacks are ignored, because a log has no rows.
            seq = replica.seq + 1
            early = [mark for batch in thread.batches.get((ns, checkpoint_id), ()) for mark in batch.terms]
            marks = [*new.terms, *early] if new.terms else []
            draft.checkpoint(Record(entry_of(new, "", first), trunk, put_time(thread, new)), seq, new.header, marks)
            return Stored(f"{thread.epoch}.{seq}.{draft.lines[-1][-11:-3].decode()}", first)

        return self._change(new.address.thread_id, decide)

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Work, Any, None]:
        def decide(replica: Replica, draft: Draft) -> None:
            draft.writes(address.checkpoint_ns, str(address.checkpoint_id), batch)

        return self._change(address.thread_id, decide)

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Work, Any, Any]:
        def look(thread: Thread, bodies: Bodies) -> Found | Unchanged | None:
            record = thread.visible(address.checkpoint_ns, address.checkpoint_id)
            if record is None or record.entry.stamp != known:
                return with_bodies(read_record(thread, record), bodies) if record else None
            part = with_bodies(read_record(thread, record, ()), bodies)
            return Unchanged(part.entry.parent, part.batches)

        return self._look(address.thread_id, look, None)

    def scan(self, query: Query) -> StorePlan[Work, Any, Sequence[Entry]]:
        """Reads every log, if the query is over all threads."""

        def read(root: Root) -> list[Entry]:
            if query.thread_id is not None:
                return _look_at(root.thread(query.thread_id), look, [])
            return page((entry for files in root.threads() for entry in _look_at(files, look, list[Entry]())), query)

        def look(thread: Thread, bodies: Bodies) -> list[Entry]:
            # Entries of one thread come in the order of the page, so only those of the page are read.
            entries = selected(thread, query)
            if query.thread_id is None:
                entries = iter(page(entries, query))
            elif query.after is not None:
                last = sequence_of(query.after.stamp)
                entries = dropwhile(lambda entry: sequence_of(entry.stamp) >= last, entries)
            return [replace(entry, header=bodies.of(entry.header)) for entry in islice(entries, query.limit)]

        return self._send(read)

    def read_values(self, entries: Sequence[Entry]) -> StorePlan[Work, Any, Sequence[Found]]:
        threads: dict[str, dict[Stamp, Collection[str]]] = {}
        for entry in entries:
            threads.setdefault(entry.address.thread_id, {})[entry.stamp] = entry.refs

        def read(root: Root) -> list[Found]:
            # By thread and stamp: if a directory was copied by hand, both threads have the same stamps.
            there: dict[tuple[str, Stamp], Found] = {}
            for thread_id, asked in threads.items():
                values = _look_at(root.thread(thread_id), partial(_read_values, asked), dict[Stamp, Found]())
                there |= {(thread_id, stamp): found for stamp, found in values.items()}
            keys = [(entry.address.thread_id, entry.stamp) for entry in entries]
            return [there[key] for key in keys if key in there]

        return self._send(read)

    def read_history(self, address: Address, channels: Collection[str]) -> StorePlan[Work, Any, Sequence[Found]]:
        def look(thread: Thread, bodies: Bodies) -> list[Found]:
            return [with_bodies(each, bodies) for each in ancestors(thread, address, channels)]

        return self._look(address.thread_id, look, list[Found]())

    def read_graph(self, thread_id: str) -> StorePlan[Work, Any, Graph]:
        def look(thread: Thread, bodies: Bodies) -> Graph:
            graph = graph_of(thread)
            return replace(graph, nodes=[replace(node, header=bodies.of(node.header)) for node in graph.nodes])

        return self._look(thread_id, look, Graph([], {}, None))

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Work, Any, None]:
        """Removed entries stay in the file until `remove_rows`."""

        def decide(replica: Replica, draft: Draft) -> None:
            there = replica.thread.records if replica.thread else {}
            seqs = [sequence_of(stamp) for stamp in gone if stamp in there]
            left = {str(sequence_of(stamp)): [*channels] for stamp, channels in ghosts.items() if stamp in there}
            if seqs or left:
                draft.add("gone", seq=seqs, ghosts=left)

        return self._change(thread_id, decide)

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Work, Any, int]:
        """Writes a new log. Rows are counted as items."""
        if graph.epoch is None:
            return 0
        return (yield from self._send(lambda root: compact(root.thread(thread_id), live, graph), writes=True))

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Work, Any, bool]:
        """Reads every shared cell to find the thread's."""

        def delete(root: Root) -> bool:
            is_deleted = root.thread(thread_id).delete(last)
            if is_deleted:
                root.cells(None).remove_shared_by(thread_id)
            return is_deleted

        return self._send(delete, writes=True)

    def delete_all(self, limit: int) -> StorePlan[Work, Any, int]:
        """Removes the tenant's directory as a whole: first its name, then its content."""
        tenant = self._tenant
        if not tenant:
            return (yield from super().delete_all(limit))
        deleted: int = yield Work(lambda root: root.delete_tenant(tenant), writes=True)
        return deleted

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> StorePlan[Work, Any, CopyOutcome]:
        """Reads the whole log of the source."""
        return self._send(lambda root: copy(root.thread(source), root.thread(target), upto), writes=True)

    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> StorePlan[Work, Any, Sequence[Writes]]:
        def look(thread: Thread, bodies: Bodies) -> list[Writes]:
            found = list_writes(thread_id, thread, after, limit)
            return [replace(each, batch=replace(each.batch, body=bodies.of(each.batch.body))) for each in found]

        return self._look(thread_id, look, list[Writes]())

    def list_kinds(self, thread_id: str | None) -> StorePlan[Work, Any, Sequence[str]]:
        return self._send(lambda root: root.cells(thread_id).kinds())

    def replace_plain(self, thread_id: str, new: Replacement) -> StorePlan[Work, Any, None]:
        """Writes a new log."""
        return self._send(lambda root: seal(root.thread(thread_id), new), writes=True)

    def find_runs(self, run_ids: Collection[str]) -> StorePlan[Work, Any, Sequence[str]]:
        """Reads every log."""

        def has_run(thread: Thread, bodies: Bodies) -> bool:
            return any(record.entry.run_id in run_ids for record in thread.records.values())

        def find(root: Root) -> list[str]:
            return [files.thread_id for files in root.threads() if _look_at(files, has_run, False)]

        return self._send(find)

    def read_threads(self, page: Page) -> StorePlan[Work, Any, Sequence[Listed]]:
        """Reads the index if the page is tolerant, otherwise the end of every log."""

        def look(place: tuple[str, str], files: ThreadFiles) -> Listed | None:
            try:
                return _look_at(files, partial(_info, place), None)
            except CorruptStore as error:
                if not page.tolerant:
                    raise
                _log.warning("a thread is not listed: %s", error)
                return None

        def read(root: Root) -> list[Listed]:
            infos = (look(place, files) for place, files in root.threads_after(page))
            return [*islice((info for info in infos if info and info[0].checkpoints), page.limit)]

        return self._send(read)

    def swap_cell(
        self, shelf: Shelf, key: str, expected: str | None, new: Cell | None
    ) -> StorePlan[Work, Any, Swapped]:
        return self._send(lambda root: root.cells(shelf.thread_id).swap(shelf.kind, key, expected, new), writes=True)

    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> StorePlan[Work, Any, Sequence[Swapped]]:
        """Swaps cells one by one; a power cut may come in between."""

        def swap(root: Root) -> list[Swapped]:
            cells = root.cells(shelf.thread_id)
            return [cells.swap(shelf.kind, *each) for each in swaps]

        return self._send(swap, writes=True)

    def find_cells(self, shelf: Shelf, search: Search) -> StorePlan[Work, Any, Sequence[tuple[str, Cell]]]:
        """Lists all names of the shelf, and reads the cells that have changed."""
        return self._send(lambda root: root.cells(shelf.thread_id).find(shelf.kind, search))

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Work, Any, Mapping[str, Cell]]:
        return self._send(lambda root: root.cells(shelf.thread_id).read(shelf.kind, keys))

    def list_cells(
        self, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> StorePlan[Work, Any, Sequence[tuple[str, Cell]]]:
        """Lists all names of the shelf, and reads the cells of the page."""
        return self._send(lambda root: root.cells(shelf.thread_id).page(shelf.kind, prefix, after, limit))

    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> StorePlan[Work, Any, int]:
        """Removes cells one by one; a power cut may come in between."""
        return self._send(lambda root: root.cells(shelf.thread_id).remove(shelf.kind, tokens), writes=True)

    def list_strays(self, after: str | None, limit: int) -> StorePlan[Work, Any, Sequence[str]]:
        """Reads the end of every log, and every shared cell."""
        return self._send(lambda root: [*islice(root.strays(after), limit)])


def _look_at(files: ThreadFiles, look: Look[T], otherwise: T) -> T:
    bodies = Bodies(files.load, str(files.log))
    return files.read(lambda thread: look(thread, bodies) if thread else otherwise)


def _read_values(asked: Mapping[Stamp, Collection[str]], thread: Thread, bodies: Bodies) -> dict[Stamp, Found]:
    rows: dict[int, Row] = {}
    records = ((thread.records[stamp], channels) for stamp, channels in asked.items() if stamp in thread.records)
    return {
        record.entry.stamp: with_bodies(read_record(thread, record, channels), bodies, rows)
        for record, channels in records
    }


def _info(place: tuple[str, str], thread: Thread, bodies: Bodies) -> Listed:
    updated_at, thread_id = place
    info, head = info_of(thread_id, thread)
    # The time from the listing: the time of a later write would disturb the order of the page.
    return replace(info, updated_at=updated_at), head and replace(head, header=bodies.of(head.header))


def with_bodies(part: Found, bodies: Bodies, made: dict[int, Row] | None = None) -> Found:
    """Return an entry and its rows with lines replaced by bodies.

    A shared row stays one object.
    """
    made = {} if made is None else made

    def row(old: Row) -> Row:
        if id(old) not in made:
            made[id(old)] = replace(old, body=bodies.of(old.body))
        return made[id(old)]

    return Found(
        replace(part.entry, header=bodies.of(part.entry.header)),
        {channel: [row(old) for old in rows] for channel, rows in part.rows.items()},
        tuple(replace(batch, body=bodies.of(batch.body), terms=()) for batch in part.batches),
    )
