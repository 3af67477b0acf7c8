"""The verbs of a store. Each docstring is the contract; `langgraph_keel.testing` holds a store to it.

Law: the engine decides, a store narrows. A store never interprets headers, bodies or batches; it may return
more than was asked where the contract says so, never less, and the engine checks again. A store that cannot keep
a contract must refuse by a named error; there are no capability flags.

Every verb is a plan (see `engine.plan`). *One trip* means that it yields exactly once.

Tool calls, approvals, the audit trail and claims of threads are cells: a capability of that sort needs no new verb.
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
"""Cells that are listed at once."""


class Store(ABC, Generic[Q, R]):
    """What a backend implements: the layout of its data and one native request per verb."""

    @abstractmethod
    def write_entry(self, new: NewEntry) -> StorePlan[Q, R, Outcome]:
        """Store one checkpoint with its items. One trip, atomic, durable when it returns.

        All in one atomic request, in this order:

        1. If `new.base` is given and no entry has that stamp, or a ghost has it, answer `BaseGone`.
        2. If `new.checked` and the namespace's head (the entry with the highest sequence number on the trunk, or of all
           if no trunk is left; `None` if there is none) is neither `new.parent` nor the very entry that is put (again,
           after a lost acknowledgement): answer `Moved` (`on_conflict="raise"`), or go on and store the entry off the
           trunk (`"fork"`), on it if there is no head to be beside. With `"beside"`, and an id that is
           not there yet, store it off the trunk in any case.
        3. Append the rows of `new.appends` to their item logs, numbered on from the highest number ever used there,
           also by items that are gone.
        4. Replace the rows that tile the range of a repack exactly (`Row.is_tiled_by`) by it. If they do not, leave the
           repack out: it only saves space.
        5. Store the entry with the next sequence number of its thread. One with the same id in the same namespace is
           replaced, keeps its writes and its children, and becomes the newest.
        6. Its time is `new.updated_at`, or that of the entry put last to the thread if that is greater, as text: a host
           whose clock is behind moves no thread back.
        """

    @abstractmethod
    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Q, R, None]:
        """Append the writes of one task to those of a checkpoint, which need not exist yet.

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
        """Read a checkpoint, or the head of the namespace if `address.checkpoint_id` is `None`. One trip, one moment.

        Returns every row that overlaps a run of its refs, and every batch of its writes in arrival order.
        `None` if there is none. Never a ghost.

        The caller already has the rows of the entry whose stamp is `known`. A store that can spare reading them then
        answers `Unchanged`.
        """

    @abstractmethod
    def scan(self, query: Query) -> StorePlan[Q, R, Sequence[Entry]]:
        """Read a page of entries without items, newest first: by sequence within a thread, by id across threads.

        Equal ids in different threads or namespaces come in any order that stays the same from page to page.

        Fewer than `query.limit` entries means that there are no more; ghosts are left out. With `query.before`, an
        entry precedes if its sequence is lower than that of the entry with this id in the same namespace; where that
        namespace has no such entry (LangGraph passes the id of a parent graph's checkpoint when it replays a
        subgraph), if its id is lower. One trip; for all threads, at most two.
        """

    @abstractmethod
    def read_values(self, entries: Sequence[Entry]) -> StorePlan[Q, R, Sequence[Found]]:
        """Read rows and batches of entries from `scan`, in the same order, without those gone meanwhile. One trip.

        Of entries from which refs were taken out, the rows of what is left (with `refs={}` none, but the batches): so
        model calls and what is new are read without the state. It may be more: those of all runs of a channel, or of
        the channels that were taken out, too. Entries of one namespace that share a row get the same `Row` object, so
        that it is decoded once.
        """

    def read_stored(self, entries: Sequence[Entry]) -> StorePlan[Q, R, Sequence[Found]]:
        """As `read_values`, for who does not decode: bodies as they are stored, sealed or kept elsewhere. One trip."""
        return self.read_values(entries)

    @abstractmethod
    def read_history(self, address: Address, channels: Collection[str]) -> StorePlan[Q, R, Sequence[Found]]:
        """Read the ancestors of a checkpoint (or of the head), nearest first, ghosts included. One trip.

        The walk follows parents and may stop where each of `channels` was in the refs of an ancestor seen
        so far. Rows are needed for `channels` only. Empty if the checkpoint does not exist or has no parent.
        """

    @abstractmethod
    def read_graph(self, thread_id: str) -> StorePlan[Q, R, Graph]:
        """Read every entry of a thread, ghosts included, in sequence order, and the end of every item log. One trip."""

    @abstractmethod
    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> StorePlan[Q, R, None]:
        """Delete entries and their writes; make others ghosts that keep only the named channels. One trip, atomic.

        A ghost is read by `read_history` and `read_graph` only and is never a head. Rows stay; see `remove_rows`.
        """

    @abstractmethod
    def remove_rows(
        self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
    ) -> StorePlan[Q, R, int]:
        """Delete rows below `graph.ends` that overlap no live run, per (namespace, channel). One trip, atomic.

        Does nothing if the thread is another one by now (`graph.epoch`); no trip if that is `None`. Returns how many
        rows went. Item numbers of deleted rows are never used again.
        """

    @abstractmethod
    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Q, R, bool]:
        """Delete everything of a thread, orphaned writes and cells included, and the shared cells of its origin.

        One trip, atomic; no error if there is none. What is shared may go a moment earlier or later.

        With `last`, at most two trips, and nothing at all is deleted if the entry put last that is no ghost is another
        one by now. Returns whether it was deleted; without `last`, `True`.
        """

    @abstractmethod
    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> StorePlan[Q, R, CopyOutcome]:
        """Copy everything of a thread verbatim (entries, order, trunk, rows, writes), or what it was at one entry.

        At most two trips, where source and target may be on different servers; the target is there as a whole or not at
        all, and as the source was at one moment.

        1. If the target holds anything already, answer `Occupied`. Cells are not copied, and do not count: hooks copy
           those that belong to the copy.
        2. If `upto` is given and `source` has no entry of its stamp, or a ghost has it, answer `BaseGone`.
        3. Else answer `Copied`. An unknown source copies nothing. With `upto`:

           * Of the entries, those up to it in the order they were put, ghosts too. It is the head of its namespace:
             on the trunk, whatever it was; the header of `upto` stands in the place of its own, and so does the time
             of `upto`, if it is later.
           * Of the writes, those of the entries copied; not its own, as its step runs anew, and no orphans.
           * Of the rows, at least those that the copied entries show. More may come along, for a sweep follows; but
             the work should not grow with what was put later.
        """

    @abstractmethod
    def find_runs(self, run_ids: Collection[str]) -> StorePlan[Q, R, Sequence[str]]:
        """Name the threads that hold an entry of one of these runs. At most two trips."""

    @abstractmethod
    def read_threads(self, page: Page) -> StorePlan[Q, R, Sequence[Listed]]:
        """Read a page of threads.

        One trip; two where no index is over all threads, and more where threads of the page have expired. Each comes
        with its root head (`None` if it has none); all else of `ThreadInfo` is the engine's and the hooks'. Fewer than
        `page.limit` mean that there are no more. With `page.terms`, there may be others among them, and a store that
        keeps no terms returns all threads.

        Raises:
            CorruptStore: One of them cannot be read, and the page is not `tolerant`. Whoever must not miss one, as an
                erasure, is told.
            InvalidInput: This store has no such order.
        """

    @abstractmethod
    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> StorePlan[Q, R, Swapped]:
        """Replace what a cell holds, if that is what the caller thinks. One trip, atomic, durable when it returns.

        1. If the cell holds the token `expected` (or is empty, and that is `None`), it holds `new` from then on, body
           and all; it is empty if that is `None`. The token may stay the same.
        2. If it holds the token of `new` already, this is the same request again: nothing changes, and it was done. So
           it is if it is empty, and `new` is `None`.
        3. Else nothing changes, and the reply says what it holds.

        The thread need not exist, and does not by this: listings and copies know nothing of cells. Whatever makes a
        thread live longer (a TTL) makes its cells live as long.
        """

    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> StorePlan[Q, R, Sequence[Swapped]]:
        """Carry out several swaps, no two of one cell; return the reply to each, in their order.

        One trip, durable when it returns. Each swap is atomic by itself. This default takes a trip for each.
        """
        replies = []
        for swap in swaps:
            replies.append((yield from self.swap_cell(shelf, *swap)))
        return replies

    @abstractmethod
    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Q, R, Mapping[str, Cell]]:
        """Read cells, body and all, without those that are empty. One trip."""

    @abstractmethod
    def list_cells(
        self, shelf: Shelf, prefix: str, after: str | None, limit: int
    ) -> StorePlan[Q, R, Sequence[tuple[str, Cell]]]:
        """Read a page of cells without bodies, those whose keys begin with `prefix`, in the order of the keys.

        One trip. `after` is the last key of the page before; fewer than `limit` mean that there are no more.
        """

    def find_cells(self, shelf: Shelf, search: Search) -> StorePlan[Q, R, Sequence[tuple[str, Cell]]]:
        """Read a page of ranked cells without bodies: the highest rank first, those of equal rank in key order.

        With `search.is_grouped`, one cell of each group, in key order. One trip; fewer than `search.limit` mean that
        there are no more. It may return cells that lack a mark, and must return all that have each. This default reads
        all cells of the prefix, in pages.
        """
        found: list[tuple[str, Cell]] = []
        while True:
            page = yield from self.list_cells(shelf, search.prefix, found[-1][0] if found else None, CELLS)
            found += page
            if len(page) < CELLS:
                return select_cells(found, search)

    @abstractmethod
    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> StorePlan[Q, R, int]:
        """Empty each cell that still holds the token given for its key; return how many.

        One trip, durable when it returns, each of them atomic.
        """

    @abstractmethod
    def list_strays(self, after: str | None, limit: int) -> StorePlan[Q, R, Sequence[str]]:
        """Name the threads that hold something and show no checkpoint, in an order that stays from page to page.

        Something is: writes, cells of their own, shared cells of which they are the origin. A thread of which no more
        than its name is left (a log without checkpoints, an emptied shelf) may be among them. A name may be a stand-in
        for one that nobody knows any more: `delete_thread` takes it.

        Any number of trips, and it may look at all keys for each page: nothing keeps an index of what should not be.
        `after` is the last name of the page before; fewer than `limit` mean that there are no more.
        """

    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> StorePlan[Q, R, Sequence[Writes]]:
        """Read a page of all writes of a thread, also of checkpoints that are not there, in an order that stays.

        Those of a checkpoint are in the order of their arrival. One trip. `after` is the last one of the page before;
        fewer than `limit` mean that there are no more.

        Raises:
            InvalidInput: This store's records cannot be replaced.
        """
        raise InvalidInput(f"{type(self).__name__} cannot be migrated: its records cannot be replaced")

    def list_kinds(self, thread_id: str | None) -> StorePlan[Q, R, Sequence[str]]:
        """Name the kinds of cells that a thread has, or those that all threads share; perhaps more. One trip.

        Raises:
            InvalidInput: This store's records cannot be replaced.
        """
        raise InvalidInput(f"{type(self).__name__} cannot be migrated: its records cannot be replaced")

    def replace_plain(self, thread_id: str, new: Replacement) -> StorePlan[Q, R, None]:
        """Put sealed records (`engine.encoding.bodies.SEALED`) in the place of those in plain text. One trip, atomic.

        What is sealed already or is not there any more is left as it is; so is a row with another number of items, and
        everything if the thread is another one by now (`new.epoch`). Nothing else of a record changes, but for the
        stamp of an entry, which may. Then the thread is found by whatever is asked for: nobody knows its marks.

        Raises:
            InvalidInput: This store's records cannot be replaced.
        """
        raise InvalidInput(f"{type(self).__name__} cannot be migrated: its records cannot be replaced")

    def of_tenant(self, tenant: str) -> Store[Q, R]:
        """Return the store of a tenant, in the same place and for the same drivers. No trip.

        In it, only that tenant's threads and cells exist; and in this one, nothing that any tenant has.

        Args:
            tenant: A name that `tenants.check_tenant` has returned.

        Raises:
            InvalidInput: This is no store that tenants share.
        """
        raise InvalidInput(f"{type(self).__name__} has no tenants")

    def delete_all(self, limit: int) -> StorePlan[Q, R, int]:
        """Delete what the store of a tenant holds, whatever it is: threads and all that is theirs, and shared cells.

        Damaged or not, and nothing that others have. Any number of trips. It may be cut off anywhere; what is left goes
        with the next call.

        Args:
            limit: About how many threads to delete; a store for which that is no more work may delete all of them.

        Returns:
            How many threads went. If none did, nothing of the tenant is left, the shared cells among that.

        Raises:
            InvalidInput: This is no store of a tenant.
        """
        yield from ()
        raise InvalidInput(f"{type(self).__name__} is no store of a tenant: all of it is not deleted at once")

    def list_tenants(self, after: str | None, limit: int) -> StorePlan[Q, R, Sequence[str]]:
        """Name the tenants that have something, in the order of their names.

        Any number of trips, and it may look at the names of all threads. `after` is the last name of the page before;
        fewer than `limit` mean that there are no more.
        """
        yield from ()
        return ()
