"""The verbs of a store. Each docstring is a contract.

`langgraph_keel.testing` tests whether a store keeps the contracts.

The engine decides, a store narrows. A store never interprets headers, bodies or batches. Where the contract says so,
it may return more than the engine asked for, never less; the engine checks again. A store that cannot keep a contract
must refuse with a named error. Stores have no capability flags.

Every verb is a plan (see `engine.plan`). *One trip* means that it yields exactly once.

Tool calls, approvals, the audit trail and claims of threads are cells, so similar features need no new verb.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, overload

from langgraph_keel.engine.cells import Cell, Search, Shelf, Swap, Swapped, select_cells
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import Q, R, StorePlan
from langgraph_keel.engine.records import (
    Batch,
    CopyOutcome,
    Entry,
    Found,
    Graph,
    Listed,
    NewEntry,
    Outcome,
    Page,
    Query,
    Replacement,
    Run,
    Stamp,
    Unchanged,
    Writes,
)
from langgraph_keel.errors import InvalidInput

CELLS = 500
"""Cells per page of a listing."""


class Store(ABC, Generic[Q, R]):
    """The interface of a backend: data layout and one native request per verb."""

    @abstractmethod
    def write_entry(self, new: NewEntry) -> StorePlan[Q, R, Outcome]:
        """Store one checkpoint with its items. One trip, atomic, durable when it returns.

        All in one atomic request, in this order:

        1. If `new.base` is given and no entry has that stamp, or a ghost has it, answer `BaseGone`.
        2. The head of a namespace is the entry with the highest sequence number on the trunk, or of all entries if the
           trunk is empty. If `new.checked`, the head must be `new.parent`, or the new entry itself (sent again after a
           lost acknowledgement). If it is not, answer `Moved` (`on_conflict="raise"`), or store the entry off the trunk
           (`"fork"`; on the trunk if the namespace has no head). With `"beside"`, store an entry with a new id off the
           trunk in any case.
        3. Append the rows of `new.appends` to their item logs, numbered from the highest number ever used there, also
           by deleted items.
        4. Replace the rows that exactly tile the range of a repack (`Row.is_tiled_by`) by it. If the rows do not tile
           it, skip the repack: it only saves space.
        5. Store the entry with the next sequence number of its thread. It replaces an entry with the same id in the
           same namespace, keeps the writes and children of that entry, and becomes the newest.
        6. Set its time to `new.updated_at`, or to that of the thread's newest entry if that is greater (compared as
           text), so that a host with a slow clock does not move the thread back in time.
        """

    @abstractmethod
    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Q, R, None]:
        """Append the writes of one task to those of a checkpoint, which may not exist yet.

        One trip, atomic, durable when it returns.
        """

    @overload
    @abstractmethod
    def read_entry(self, address: Address) -> StorePlan[Q, R, Found | None]: ...
    @overload
    @abstractmethod
    def read_entry(self, address: Address, known: Stamp | None) -> StorePlan[Q, R, Found | Unchanged | None]: ...
    @abstractmethod
    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Q, R, Any]:
        """Read a checkpoint, or the head of its namespace if it has no id.

        One trip, one snapshot. Returns every row that overlaps a run of its refs, and every batch of its writes in
        arrival order. Returns `None` if the checkpoint does not exist or is a ghost.

        The caller already has the rows of the entry with the stamp `known`. If this is still the entry to read, a store
        may save reading its rows and answer `Unchanged`.
        """

    @abstractmethod
    def scan(self, query: Query) -> StorePlan[Q, R, Sequence[Entry]]:
        """Read a page of entries without items, newest first.

        The order is by sequence number within a thread, and by id across threads. Equal ids in different threads or
        namespaces come in any order, if it is the same for every page. Fewer than `query.limit` entries mean that this
        is the last page. Ghosts are omitted. One trip; for all threads, at most two.

        With `query.before`, return entries with a lower sequence number than the entry with this id in the same
        namespace. If the namespace has no such entry, return entries with a lower id. (LangGraph passes the id of a
        parent graph's checkpoint when it replays a subgraph.)
        """

    @abstractmethod
    def read_values(self, entries: Sequence[Entry]) -> StorePlan[Q, R, Sequence[Found]]:
        """Read rows and batches of entries from `scan`, in the same order.

        One trip. Entries deleted since `scan` are omitted. If the caller removed some refs from an entry, only the rows
        of the remaining refs are required; with `refs={}`, only the batches. (So model calls and new items can be read
        without the state.) More rows may be returned: those of all runs of a channel, or of removed refs. Entries of
        one namespace that share a row get the same `Row` object, so that it is decoded once.
        """

    def read_stored(self, entries: Sequence[Entry]) -> StorePlan[Q, R, Sequence[Found]]:
        """As `read_values`, with bodies as they are stored: encrypted, or in objects."""
        return self.read_values(entries)

    @abstractmethod
    def read_history(self, address: Address, channels: Collection[str]) -> StorePlan[Q, R, Sequence[Found]]:
        """Read the ancestors of a checkpoint or head, nearest first, ghosts included.

        One trip. The walk follows parents. It may stop once each of `channels` occurred in the refs of an ancestor.
        Only rows of `channels` are required. The result is empty if the checkpoint does not exist or has no parent.
        """

    @abstractmethod
    def read_graph(self, thread_id: str) -> StorePlan[Q, R, Graph]:
        """Read all entries of a thread in order, and the ends of its item logs.

        One trip. Ghosts are included.
        """

    @abstractmethod
    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Q, R, None]:
        """Delete entries and their writes; turn others into ghosts.

        One trip, atomic. A ghost keeps only the given channels. Only `read_history` and `read_graph` return ghosts, and
        a ghost is never a head. Rows stay; see `remove_rows`.
        """

    @abstractmethod
    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Q, R, int]:
        """Delete rows below `graph.ends` that overlap no live run of their channel.

        One trip, atomic. `live` is per (namespace, channel). Do nothing if the thread was deleted and created again
        (`graph.epoch` differs). If `graph.epoch` is `None`, make no trip. Return the number of deleted rows. Their item
        numbers are never used again.
        """

    @abstractmethod
    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Q, R, bool]:
        """Delete a thread with its orphaned writes, its cells and cells it shared.

        One trip, atomic; no error if the thread does not exist. Shared cells may be deleted a moment earlier or later.

        With `last`, at most two trips, and nothing is deleted if the newest entry that is not a ghost has another
        stamp. Returns whether the thread was deleted; without `last`, `True`.
        """

    @abstractmethod
    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> StorePlan[Q, R, CopyOutcome]:
        """Copy a thread verbatim, or its state at one entry.

        Copies entries with their order and trunk, rows and writes. At most two trips, as source and target may be on
        different servers. The target is written completely or not at all, from a single snapshot of the source.

        1. If the target already contains anything except cells, answer `Occupied`. Cells are not copied: hooks copy the
           cells that belong to the copy.
        2. If `upto` is given and `source` has no entry of its stamp, or a ghost has it, answer `BaseGone`.
        3. Else answer `Copied`. An unknown source copies nothing. With `upto`:

           * Copy the entries up to this one, in the order they were stored, ghosts included. This entry becomes the
             head of its namespace, even if it was off the trunk. It gets the header of `upto`, and its time, if that is
             later.
           * Copy the writes of the copied entries, except those of this entry (its step runs again) and orphans.
           * Copy at least the rows that the copied entries refer to. More are allowed, as a sweep follows, but the work
             should not grow with later entries.
        """

    @abstractmethod
    def find_runs(self, run_ids: Collection[str]) -> StorePlan[Q, R, Sequence[str]]:
        """Return the ids of threads with an entry of one of these runs. At most two trips."""

    @abstractmethod
    def read_threads(self, page: Page) -> StorePlan[Q, R, Sequence[Listed]]:
        """Read a page of threads.

        One trip; two if the store has no index over all threads, and more if threads of the page have expired. Each
        thread comes with its root head (`None` if it has none). The engine and hooks fill in the other fields of
        `ThreadInfo`. Fewer than `page.limit` threads mean that this is the last page. With `page.terms`, the page may
        contain threads that do not match; a store without terms returns all threads.

        Raises:
            CorruptStore: If a thread cannot be read and the page is not `tolerant`. (An erasure must not miss one.)
            InvalidInput: If this store does not support the order.
        """

    @abstractmethod
    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> StorePlan[Q, R, Swapped]:
        """Replace the content of a cell if it has the expected token.

        One trip, atomic, durable when it returns.

        1. If the cell has the token `expected` (`None`: if it is empty), replace its content, including the body, by
           `new` (`None`: empty it). The token may stay the same.
        2. If it already has the token of `new` (`None`: if it is already empty), this is a repeated request: change
           nothing and report success.
        3. Else change nothing and return the current content.

        The thread need not exist, and a cell does not create it: listings and copies ignore cells. A thread's TTL also
        applies to its cells.
        """

    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> StorePlan[Q, R, Sequence[Swapped]]:
        """Carry out swaps of different cells; return the replies in the same order.

        One trip, durable when it returns. Each swap is atomic by itself. This default makes one trip per swap.
        """
        replies = []
        for swap in swaps:
            replies.append((yield from self.swap_cell(shelf, *swap)))
        return replies

    @abstractmethod
    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Q, R, Mapping[str, Cell]]:
        """Read cells with their bodies. Omit empty cells. One trip."""

    @abstractmethod
    def list_cells(
        self, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> StorePlan[Q, R, Sequence[tuple[str, Cell]]]:
        """Read a page of cells with a key prefix, without bodies, in key order.

        One trip. `after` is the last key of the previous page; fewer than `limit` cells mean that this is the last
        page.
        """

    def find_cells(self, shelf: Shelf, search: Search) -> StorePlan[Q, R, Sequence[tuple[str, Cell]]]:
        """Read a page of ranked cells without bodies, the highest rank first.

        Equal ranks are in key order. With `search.is_grouped`, return one cell of each group, in key order. One trip;
        fewer than `search.limit` cells mean that this is the last page. The result must contain all cells that have
        every mark, and may contain others. This default reads all cells of the prefix, page by page.
        """
        found: list[tuple[str, Cell]] = []
        while True:
            page = yield from self.list_cells(shelf, search.prefix, found[-1][0] if found else None, CELLS)
            found += page
            if len(page) < CELLS:
                return select_cells(found, search)

    @abstractmethod
    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> StorePlan[Q, R, int]:
        """Empty each cell that still has the token given for its key; return their number.

        One trip, durable when it returns. Each removal is atomic by itself.
        """

    @abstractmethod
    def list_strays(self, after: str | None, limit: int) -> StorePlan[Q, R, Sequence[str]]:
        """Return the ids of strays: threads with data but no visible checkpoint.

        Data means writes, cells of the thread, or shared cells whose origin it is. Threads of which only the name is
        left (a log without checkpoints, an emptied shelf) may be included. If the real id is lost, the result contains
        a stand-in that `delete_thread` accepts.

        Any number of trips. The order is the same for every page. There is no index of strays, so each page may read
        all keys. `after` is the last id of the previous page; fewer than `limit` mean that this is the last page.
        """

    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> StorePlan[Q, R, Sequence[Writes]]:
        """Read a page of all writes of a thread, orphans included.

        The order is the same for every page. The writes of a checkpoint are in arrival order. One trip. `after` is the
        last item of the previous page; fewer than `limit` mean that this is the last page.

        Raises:
            InvalidInput: If this store's records cannot be replaced.
        """
        raise InvalidInput(f"{type(self).__name__} cannot be migrated: its records cannot be replaced")

    def list_kinds(self, thread_id: str | None) -> StorePlan[Q, R, Sequence[str]]:
        """Return the kinds of a thread's cells, or of shared cells; perhaps more.

        One trip.

        Raises:
            InvalidInput: If this store's records cannot be replaced.
        """
        raise InvalidInput(f"{type(self).__name__} cannot be migrated: its records cannot be replaced")

    def replace_plain(self, thread_id: str, new: Replacement) -> StorePlan[Q, R, None]:
        """Replace plain-text records by encrypted ones (`bodies.SEALED`).

        One trip, atomic. Skip records that are already encrypted or no longer exist, and rows with another number of
        items. Do nothing if the thread was deleted and created again (`new.epoch`). Except for the stamp of an entry,
        which may change, nothing else of a record changes. Afterwards the marks of the thread are unknown, so it
        matches every filter.

        Raises:
            InvalidInput: If this store's records cannot be replaced.
        """
        raise InvalidInput(f"{type(self).__name__} cannot be migrated: its records cannot be replaced")

    def of_tenant(self, tenant: str) -> Store[Q, R]:
        """Return the store of a tenant, in the same place and for the same drivers.

        No trip. It contains only this tenant's threads and cells. The store without a tenant contains none of any
        tenant.

        Args:
            tenant: A name that `tenants.check_tenant` has returned.

        Raises:
            InvalidInput: If this store does not support tenants.
        """
        raise InvalidInput(f"{type(self).__name__} has no tenants")

    def delete_all(self, limit: int) -> StorePlan[Q, R, int]:
        """Delete all data of a tenant's store: threads, their cells, and shared cells.

        Deletes damaged data, too, and nothing of other tenants. Any number of trips. If it is interrupted, the next
        call deletes the rest.

        Args:
            limit: Approximate number of threads to delete. A store may delete all of them if that is no more work.

        Returns:
            The number of deleted threads. 0 means that no data of the tenant is left, shared cells included.

        Raises:
            InvalidInput: If this is not the store of a tenant.
        """
        yield from ()
        raise InvalidInput(f"{type(self).__name__} is not the store of a tenant, so it cannot be deleted as a whole")

    def list_tenants(self, after: str | None, limit: int) -> StorePlan[Q, R, Sequence[str]]:
        """Return the names of tenants with data, in order.

        Any number of trips; may read the names of all threads. `after` is the last name of the previous page; fewer
        than `limit` mean that this is the last page.
        """
        yield from ()
        return ()
