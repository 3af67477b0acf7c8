"""What travels between the engine and a store: records, and nothing that can do I/O.

*Entry*: one checkpoint. *Item log*: per (thread, namespace, channel), append-only and numbered from 0; an entry
refers to the values of its channels as runs of item numbers. *Row*: how a store keeps a stretch of an item
log, one or many items to a row. *Batch*: the pending writes of one `put_writes` call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar, dataclass_transform

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish

T = TypeVar("T")

NEW = 1 << 40
"""Item numbers from here on mean "the n-th item that this very request appends"; the store allocates the real ones."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a data class with slots that nobody changes: the type checker sees to that.

    At run time nothing does, for it is dear: a frozen data class sets each attribute by a call, and takes four times as
    long to make (0.66 µs instead of 0.17, with five attributes). A put makes some dozens.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


Run: TypeAlias = tuple[int, int]
"""A stretch `[lo, hi)` of an item log."""

Stamp: TypeAlias = str | int
"""A store's own name of one stored entry; never used for another one, not even after a delete."""


class Kind(IntEnum):
    """How a channel value is made of items. The numbers are stored: append only."""

    INLINE = 0
    """In the entry's header; no items."""
    WHOLE = 1
    """One item."""
    LIST = 2
    """One item an element (a piece table)."""
    TREE = 3
    """A snapshot and edits of its parts, in order."""


@record
class Ref:
    """Where one channel's value lives."""

    kind: Kind
    runs: tuple[Run, ...] = ()


@record
class Row:
    """Items `[lo, lo + count)` of one item log, framed (see `engine.encoding.bodies`)."""

    lo: int
    count: int
    body: bytes

    def is_tiled_by(self, rows: Sequence[Row]) -> bool:
        """Return whether `rows`, in order, hold exactly the items of this one.

        If not, another process packed or pruned there meanwhile, and replacing them would lose or revive items.
        """
        numbers = [self.lo, *(row.lo + row.count for row in rows)]
        return [row.lo for row in rows] == numbers[:-1] and numbers[-1] == self.lo + self.count


@record
class NewEntry:
    """One checkpoint to store, with all that must be stored with it.

    Attributes:
        address: Thread, namespace and the id of the new checkpoint.
        parent: Id of the checkpoint it continues.
        header: Everything of the checkpoint that is not in items; opaque to stores.
        refs: Per channel with a value, where it lives; numbers from `NEW` on point into `appends`.
        appends: Per channel, rows to append to its item log; `Row.lo` counts from `NEW`.
        repacks: Per channel, rows to replace the rows they were packed from, if those are there unchanged.
        base: The entry whose items `refs` and `repacks` build on, which must still exist; `None` if they use none.
        checked: Whether `parent` must be the head of the namespace.
        on_conflict: What to do if it is not: refuse ("raise"), or store it beside the trunk ("fork"). "beside" stores
            it there whatever the head is, even if there is none: so what stands there is copied to another store.
        run_id: The run that `delete_for_runs` would know it by.
        updated_at: ISO time of the checkpoint, kept as the thread's last activity if none before it is later.
        known: Per channel with items, what the process knows of it: `rows` are those that `refs` name and are there
            already. For a store that proves what it holds; never stored.
        terms: Of the root namespace: what the thread can be found by from now on (see `entries.marks_of`). Empty if
            nobody knows: it is found by whatever is asked for.
        read_known: Reads `known` for these channels, where it was left out.
    """

    address: Address
    parent: str | None
    header: bytes
    refs: Mapping[str, Ref]
    appends: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    repacks: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    base: Stamp | None = None
    checked: bool = False
    on_conflict: str = "raise"
    run_id: str | None = None
    updated_at: str = ""
    known: Mapping[str, Any] = field(default_factory=dict)
    terms: tuple[str, ...] = ()
    read_known: Callable[[Collection[str]], Plan[Mapping[str, Any]]] | None = None


@record
class Stored:
    """The entry is stored; per channel of `appends`, the number its first item got."""

    stamp: Stamp
    first: Mapping[str, int]


@record
class Moved:
    """Refused: the head is not the parent. Nothing was written.

    Attributes:
        head: The id of the head; `None` if there is none.
        is_resent: Whether the request was sent before, and that reply lost: the entry may have been stored then, and
            removed since.
    """

    head: str | None
    is_resent: bool = False


@record
class BaseGone:
    """Refused: the base entry no longer exists (pruned or deleted elsewhere). Nothing was written.

    Attributes:
        is_resent: As in `Moved`.
    """

    is_resent: bool = False


Outcome: TypeAlias = Stored | Moved | BaseGone


@record
class Copied:
    """The target holds what was to be copied; of an unknown thread, nothing."""


@record
class Occupied:
    """Refused: the target holds something already. Nothing was written."""


CopyOutcome: TypeAlias = Copied | Occupied | BaseGone


@record
class Entry:
    """One stored checkpoint without its items.

    `parent` is `None` when the parent is not (or no longer) there to be read. `updated_at` is given to `copy_thread`
    only: the ISO time of the copy.
    """

    address: Address
    parent: str | None
    stamp: Stamp
    header: bytes
    refs: Mapping[str, Ref]
    run_id: str | None = None
    updated_at: str = ""


@record
class Batch:
    """The writes of one `put_writes` call, in arrival order among those of their checkpoint.

    Attributes:
        task_id: The task that has written.
        task_path: Where it stands among the tasks of its step.
        body: Channels and values; opaque to stores.
        terms: Of the root namespace, as a call brings it: what the thread can be found by besides, as long as this
            checkpoint is the latest. Not read back.
    """

    task_id: str
    task_path: str
    body: bytes
    terms: tuple[str, ...] = ()


@record
class Writes:
    """A batch as it is stored.

    Attributes:
        stamp: The store's own name of it, within its checkpoint's thread and namespace.
        address: The checkpoint, which need not be there.
        batch: What was written.
    """

    stamp: Stamp
    address: Address
    batch: Batch


@record
class Replacement:
    """Sealed records that take the place of those that stand in a thread in plain text.

    Attributes:
        epoch: The life of the thread that they are of, as in `Graph`.
        headers: By the stamps of the entries.
        rows: Per (namespace, channel).
        writes: With the batches as they are to be.
    """

    epoch: Stamp | None
    headers: Mapping[Stamp, bytes] = field(default_factory=dict)
    rows: Mapping[tuple[str, str], Sequence[Row]] = field(default_factory=dict)
    writes: Sequence[Writes] = ()


@record
class Found:
    """An entry with the rows that its refs need, per channel in ascending order, and its batches."""

    entry: Entry
    rows: Mapping[str, Sequence[Row]]
    batches: Sequence[Batch] = ()


@record
class Unchanged:
    """What was to be read is the entry that the asker knows: what may have changed beside it.

    Attributes:
        parent: As in `Entry`.
        batches: The writes that it has now.
        checkpoint_id: Its id, where its stamp is a number that is counted: a store that was put back to an earlier time
            counts on from there.
    """

    parent: str | None
    batches: Sequence[Batch] = ()
    checkpoint_id: str | None = None


@record
class Query:
    """A page of entries, newest first.

    Attributes:
        thread_id: One thread, or `None` for all of them.
        checkpoint_ns: One namespace, or `None` for all of them.
        checkpoint_id: One checkpoint, or `None` for all of them.
        before: Only entries that precede the checkpoint with this id.
        after: The last entry of the page before this one; it need not exist any more.
        limit: Most entries to return.
    """

    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    after: Entry | None = None
    limit: int = 100


@record
class Page:
    """A page of threads, last activity first.

    Attributes:
        after: The (updated_at, thread_id) of the last thread of the page before; `None` for the first page.
        limit: Most threads to return.
        terms: Only threads that can be found by each of these: by what the put of the root head has brought
            (`NewEntry.terms`), or a task that has written to it since (`Batch.terms`).
        oldest_first: Whether the order is the opposite one.
        tolerant: Whether damage is passed over, and logged; else it is an error.
    """

    after: tuple[str, str] | None = None
    limit: int = 100
    terms: Sequence[str] = ()
    oldest_first: bool = False
    tolerant: bool = False


@record
class Node:
    """One entry as retention sees it.

    Attributes:
        updated_at: ISO time of the checkpoint, as it was put.
        is_beside: Whether it is off the trunk; a ghost may be said not to be.
    """

    address: Address
    parent: str | None
    stamp: Stamp
    header: bytes
    refs: Mapping[str, Ref]
    run_id: str | None
    is_head: bool
    is_ghost: bool
    updated_at: str = ""
    is_beside: bool = False


@record
class Graph:
    """A thread at one moment.

    Attributes:
        nodes: All its entries, ghosts included, in the order they were put.
        ends: Per (namespace, channel), the number that the next item of the log gets.
        epoch: The store's name of this very thread; another one of the same id, made after a delete, has another.
    """

    nodes: Sequence[Node]
    ends: Mapping[tuple[str, str], int]
    epoch: Stamp | None


@publish
@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """One thread as `keel threads` lists it.

    Attributes:
        thread_id: Its id.
        checkpoints: How many checkpoints it holds, over all namespaces.
        updated_at: ISO time of the checkpoint put last; where its host's clock was behind, of one before it.
        latest: Id of the latest checkpoint of the root graph, or `None` if it has none.
        step: That checkpoint's step, if its metadata says.
        models: The names of the models that wrote the thread, asked for and served.
        owner: Whose it is, as its latest checkpoint says (`configurable["user_id"]`); empty if that says nothing.
        facts: What else features say of it (`Hook.describe_thread`): names of columns of `keel threads`, and what
            stands there.
        status: What is so of its latest checkpoint. `"waiting"`: a task of the next step asks a person. `"failed"`:
            one has failed. `"incomplete"`: there are tasks for a next step; a run may be at them, or not: see
            `saver.status(thread_id)`. `"done"`: its last run has come to its end. `"idle"`: no run has,
            but nothing is next: a program put the state there. Empty if that cannot be read.
        next: The nodes that run next.
        error: The class of what a task has failed with, if it is `"failed"`.
        tokens: What the models took and gave that led to its latest checkpoint, as far as they report it.
        cost: What those calls cost, as far as they report it; `None` if none did.
        cursor: Where a list goes on after this thread: `saver.threads(after=info.cursor)`, asked for the same.
    """

    thread_id: str
    checkpoints: int
    updated_at: str
    latest: str | None
    step: int | None
    models: tuple[str, ...] = ()
    owner: str = field(default="", repr=False)
    facts: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    status: str = field(default="", repr=False)
    next: tuple[str, ...] = field(default=(), repr=False)
    error: str = field(default="", repr=False)
    tokens: tuple[int, int] = field(default=(0, 0), repr=False)
    cost: float | None = field(default=None, repr=False)
    cursor: str = field(default="", repr=False)


Listed: TypeAlias = tuple[ThreadInfo, Entry | None]
"""A thread, and its root head, if it has one."""
