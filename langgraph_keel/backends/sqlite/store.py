"""The SQLite layout: each verb is one transaction.

A request is a `Work`: a function that is given `execute`, and runs within one transaction that the driver begins and
commits. The layout itself is explained in `schema.sql`. The head of a namespace is its trunk entry with the highest
key, so there is no pointer to it that a put would have to move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from langgraph_keel.backends.sqlite import cells, reading, removal
from langgraph_keel.backends.sqlite.rows import (
    LAST,
    Execute,
    Place,
    Situation,
    Work,
    append_rows,
    create_place,
    create_situation,
    ensure_slots,
    mark_of,
    pack_refs,
    read_situation,
    replace_rows,
    span,
)
from langgraph_keel.engine.cells import Cell, Shelf, Swapped
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import (
    BaseGone,
    Batch,
    CopyOutcome,
    Entry,
    Found,
    Graph,
    Moved,
    NewEntry,
    Outcome,
    Query,
    Run,
    Stamp,
    Stored,
    ThreadInfo,
    Unchanged,
)
from langgraph_keel.engine.store import Store

T = TypeVar("T")


def _send(
    run: Callable[[Execute], T], writes: bool = False, unless: Callable[[Execute], T | None] | None = None
) -> StorePlan[Work, Any, T]:
    """Plan one request, and return its reply. The arguments are those of `Work`."""
    reply: T = yield Work(run, writes, unless)
    return reply


class SqliteStore(Store[Work, Any]):
    """One database file. Stateless: names are looked up in the transaction that uses them."""

    def write_entry(self, new: NewEntry) -> StorePlan[Work, Any, Outcome]:
        """See `Store.write_entry`."""
        return _send(partial(_write_entry, new), writes=True)

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Work, Any, None]:
        """See `Store.write_batch`."""
        return _send(partial(_write_batch, address, batch), writes=True)

    def read_entry(self, address: Address) -> StorePlan[Work, Any, Found | None]:
        """See `Store.read_entry`."""
        return _send(partial(reading.read_entry, address))

    def read_known(self, address: Address, known: Stamp) -> StorePlan[Work, Any, Found | Unchanged | None]:
        """See `Store.read_known`."""
        return _send(partial(reading.read_known, address, known))

    def scan(self, query: Query) -> StorePlan[Work, Any, Sequence[Entry]]:
        """See `Store.scan`."""
        return _send(partial(reading.scan, query))

    def read_values(self, entries: Sequence[Entry]) -> StorePlan[Work, Any, Sequence[Found]]:
        """See `Store.read_values`."""
        return _send(partial(reading.read_values, entries))

    def read_history(self, address: Address, channels: Collection[str]) -> StorePlan[Work, Any, Sequence[Found]]:
        """See `Store.read_history`."""
        return _send(partial(reading.read_history, address, set(channels)))

    def read_graph(self, thread_id: str) -> StorePlan[Work, Any, Graph]:
        """See `Store.read_graph`."""
        return _send(partial(removal.read_graph, thread_id))

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Work, Any, None]:
        """See `Store.remove_entries`."""
        return _send(partial(removal.remove_entries, thread_id, gone, ghosts), writes=True)

    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Work, Any, int]:
        """See `Store.remove_rows`."""
        return _send(partial(removal.remove_rows, thread_id, live, graph), writes=True)

    def delete_thread(self, thread_id: str) -> StorePlan[Work, Any, None]:
        """See `Store.delete_thread`."""
        return _send(partial(removal.delete_thread, thread_id), writes=True)

    def copy_thread(
        self, source: str, target: str, upto: Stamp | None = None, header: bytes | None = None
    ) -> StorePlan[Work, Any, CopyOutcome]:
        """See `Store.copy_thread`."""
        return _send(partial(removal.copy_thread, source, target, upto, header), writes=True)

    def find_runs(self, run_ids: Collection[str]) -> StorePlan[Work, Any, Sequence[str]]:
        """See `Store.find_runs`."""
        return _send(partial(reading.find_runs, list(run_ids)))

    def read_threads(
        self, after: tuple[str, str] | None, limit: int
    ) -> StorePlan[Work, Any, Sequence[tuple[ThreadInfo, bytes]]]:
        """See `Store.read_threads`."""
        return _send(partial(reading.read_threads, after, limit))

    def swap_cell(
        self, shelf: Shelf, key: str, expected: str | None, new: Cell | None
    ) -> StorePlan[Work, Any, Swapped]:
        """See `Store.swap_cell`.

        A caller that expects an empty cell is often wrong, and a read, which waits for nobody, is enough to refuse it.
        One that brings a token has seen it there, and goes to the writer at once.
        """
        swap = partial(cells.swap_cell, shelf, key, expected, new)
        reply = partial(cells.reply_if_settled, shelf, key, expected, new) if expected is None else None
        return _send(swap, writes=True, unless=reply)

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Work, Any, Mapping[str, Cell]]:
        """See `Store.read_cells`."""
        return _send(partial(cells.read_cells, shelf, keys))

    def list_cells(
        self, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> StorePlan[Work, Any, Sequence[tuple[str, Cell]]]:
        """See `Store.list_cells`."""
        return _send(partial(cells.list_cells, shelf, prefix, after, limit))

    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> StorePlan[Work, Any, int]:
        """See `Store.remove_cells`."""
        return _send(partial(cells.remove_cells, shelf, tokens), writes=True)

    def list_strays(self, after: str | None, limit: int) -> StorePlan[Work, Any, Sequence[str]]:
        """See `Store.list_strays`. Looks for an entry of each thread."""
        return _send(partial(cells.list_strays, after, limit))


def _write_entry(new: NewEntry, execute: Execute) -> Outcome:
    address = new.address
    before = read_situation(execute, new)
    if new.base is not None and not (before and before.has_base):
        return BaseGone()
    head = before.head if before else None
    follows = not new.checked or head in (new.parent, address.checkpoint_id)
    if not follows and new.on_conflict == "raise":
        return Moved(head)
    return _insert(execute, new, before or create_situation(execute, address), 0 if follows or head is None else 1)


def _insert(execute: Execute, new: NewEntry, before: Situation, state: int) -> Stored:
    place, seq = before.place, before.seq + 1
    slots = ensure_slots(execute, place.namespace, new.refs, new.appends)
    first = {name: append_rows(execute, slots[name], rows) for name, rows in new.appends.items()}
    for name, rows in new.repacks.items():
        replace_rows(execute, slots[name].id, rows)
    if before.same is not None:
        _replace(execute, place, before.same, seq)
    key = span(place.thread)[0] + seq
    execute(
        "INSERT INTO entries (key, namespace, nested, state, id, mark, parent, run, put_at, refs, header) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            key,
            place.namespace,
            int(place.nested),
            state,
            new.address.checkpoint_id,
            mark_of(str(new.address.checkpoint_id)),
            before.parent & LAST if before.parent else new.parent,
            new.run_id,
            new.updated_at,
            pack_refs(new.refs, slots, first),
            new.header,
        ),
    )
    return Stored(key, first)


def _replace(execute: Execute, place: Place, old: int, seq: int) -> None:
    """Delete the entry whose id is put again; its children become children of the new one."""
    execute(
        "UPDATE entries SET parent = ? WHERE parent = ? AND key BETWEEN ? AND ?",
        (seq, old & LAST, *span(place.thread)),
    )
    execute("DELETE FROM entries WHERE key = ?", (old,))


INSERT_BATCH = (
    "INSERT INTO batches (namespace, checkpoint, mark, task, path, body) "
    "SELECT n.id, ?, ?, ?, ?, ? FROM threads t JOIN namespaces n ON n.thread = t.id WHERE t.name = ? AND n.name = ?"
)


def _write_batch(address: Address, batch: Batch, execute: Execute) -> None:
    checkpoint_id, where = str(address.checkpoint_id), (address.thread_id, address.checkpoint_ns)
    parts = (checkpoint_id, mark_of(checkpoint_id), batch.task_id, batch.task_path, batch.body, *where)
    if execute(INSERT_BATCH, parts).rowcount == 0:
        create_place(execute, address)
        execute(INSERT_BATCH, parts)
