"""The records that the engine and stores exchange. None of them does I/O.

*Entry*: one checkpoint. *Item log*: per (thread, namespace, channel), append-only and numbered from 0; an entry
refers to the values of its channels as runs of item numbers. *Row*: one or more consecutive items of an item log, as
a store keeps them. *Batch*: the pending writes of one `put_writes` call.
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
"""Item number `NEW + n` is the n-th item of this request; the store numbers it."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a data class with slots, frozen for the type checker only.

    Freezing it at run time is expensive: a frozen data class sets each attribute by a call, and takes four times as
    long to create (0.66 µs instead of 0.17, with five attributes). Each `put` creates dozens.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


Run: TypeAlias = tuple[int, int]
"""A stretch `[lo, hi)` of an item log."""

Stamp: TypeAlias = str | int
"""A store's name of one stored entry. It is never reused, not even after a delete."""


class Kind(IntEnum):
    """How a channel value consists of items. The numbers are stored: never change one."""

    INLINE = 0
    """In the entry's header; no items."""
    WHOLE = 1
    """One item."""
    LIST = 2
    """One item per element (a piece table)."""
    TREE = 3
    """A snapshot, followed by edits of its parts."""


@record
class Ref:
    """Where the value of a channel is stored."""

    kind: Kind
    runs: tuple[Run, ...] = ()


@record
class Row:
    """Items `[lo, lo + count)` of one item log, framed (see `engine.encoding.bodies`)."""

    lo: int
    count: int
    body: bytes

    def is_tiled_by(self, rows: Sequence[Row]) -> bool:
        """Return whether `rows`, in order, contain exactly the items of this row.

        If not, another process has packed or pruned them, and replacing them would lose or revive items.
        """
        numbers = [self.lo, *(row.lo + row.count for row in rows)]
        return [row.lo for row in rows] == numbers[:-1] and numbers[-1] == self.lo + self.count


@record
class NewEntry:
    """One checkpoint to store, with everything stored in the same request.

    Attributes:
        address: Thread, namespace and the id of the new checkpoint.
        parent: Id of the checkpoint it continues.
        header: The part of the checkpoint that is not in items; opaque to stores.
        refs: Per channel with a value, its location; numbers from `NEW` refer to `appends`.
        appends: Per channel, rows to append to its item log; `Row.lo` counts from `NEW`.
        repacks: Per channel, packed rows that replace the rows they were made of, if those are unchanged.
        base: The entry whose items `refs` and `repacks` use, which must still exist; `None` if they use none.
        checked: Whether `parent` must be the head of the namespace.
        on_conflict: What to do if it is not: refuse ("raise"), or store the entry off the trunk ("fork"). With "beside"
            the entry is stored off the trunk in any case, to copy such an entry to another store.
        run_id: The run id by which `delete_for_runs` finds it.
        updated_at: ISO time of the checkpoint. It becomes the thread's last activity, unless that is later already.
        known: Per channel with items, this process's memory of it: `rows` are the stored rows that `refs` use. For a
            store that verifies its content; never stored.
        terms: In the root namespace: the terms by which the thread is found from now on (see `entries.marks_of`). If
            empty, they are unknown, and every search finds the thread.
        read_known: Reads `known` for the given channels, if `known` was omitted.
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
    """The entry is stored; `first` is the number of the first new item per channel."""

    stamp: Stamp
    first: Mapping[str, int]


@record
class Moved:
    """Refused: the head is not the parent. Nothing was written.

    Attributes:
        head: The id of the head; `None` if there is none.
        is_resent: Whether the request was sent before and its reply lost. The entry may have been stored then and
            removed since.
    """

    head: str | None
    is_resent: bool = False


@record
class BaseGone:
    """Refused: the base entry was pruned or deleted elsewhere. Nothing was written.

    Attributes:
        is_resent: As in `Moved`.
    """

    is_resent: bool = False


Outcome: TypeAlias = Stored | Moved | BaseGone


@record
class Copied:
    """The thread is copied. If the source is unknown, nothing was copied."""


@record
class Occupied:
    """Refused: the target is not empty. Nothing was written."""


CopyOutcome: TypeAlias = Copied | Occupied | BaseGone


@record
class Entry:
    """One stored checkpoint without its items.

    `parent` is `None` if readers cannot see the parent (any more). `updated_at` is only set for `copy_thread`: the ISO
    time of the copy.
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
    """The writes of one `put_writes` call, in arrival order.

    Attributes:
        task_id: The task that wrote them.
        task_path: Its position among the tasks of its step.
        body: Channels and values; opaque to stores.
        terms: In the root namespace, when written: more terms by which the thread is found while this checkpoint is the
            latest. Not read back.
    """

    task_id: str
    task_path: str
    body: bytes
    terms: tuple[str, ...] = ()


@record
class Writes:
    """A stored batch.

    Attributes:
        stamp: The store's name of the batch, unique in the thread and namespace of its checkpoint.
        address: The checkpoint, which may not exist.
    """

    stamp: Stamp
    address: Address
    batch: Batch


@record
class Replacement:
    """Encrypted records that replace those of a thread that are in plain text.

    Attributes:
        epoch: As in `Graph`.
        headers: By the stamps of the entries.
        rows: Per (namespace, channel).
        writes: With the new batches.
    """

    epoch: Stamp | None
    headers: Mapping[Stamp, bytes] = field(default_factory=dict)
    rows: Mapping[tuple[str, str], Sequence[Row]] = field(default_factory=dict)
    writes: Sequence[Writes] = ()


@record
class Found:
    """An entry with its batches and, per channel in ascending order, its rows."""

    entry: Entry
    rows: Mapping[str, Sequence[Row]]
    batches: Sequence[Batch] = ()


@record
class Unchanged:
    """The caller already knows this entry; only parent and writes may have changed.

    Attributes:
        parent: As in `Entry`.
        batches: Its current writes.
        checkpoint_id: Its id, if stamps are consecutive numbers: after a restore from a backup, a store may assign the
            same number to another entry.
    """

    parent: str | None
    batches: Sequence[Batch] = ()
    checkpoint_id: str | None = None


@record
class Query:
    """A page of entries, newest first.

    Attributes:
        thread_id: One thread; `None` for all.
        checkpoint_ns: One namespace; `None` for all.
        checkpoint_id: One checkpoint; `None` for all.
        before: Only entries that precede the checkpoint with this id.
        after: The last entry of the previous page. It may have been deleted since.
        limit: Maximum number of entries.
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
        after: The (updated_at, thread_id) of the last thread of the previous page; `None` for the first page.
        limit: Maximum number of threads.
        terms: Only threads with all of these terms, from the root head (`NewEntry.terms`) or its writes
            (`Batch.terms`).
        oldest_first: Whether the order is reversed.
        tolerant: Whether damaged threads are skipped and logged; else they raise an error.
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
        updated_at: ISO time of the checkpoint when it was stored.
        is_beside: Whether it is off the trunk; not reliable for ghosts.
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
    """A snapshot of a thread.

    Attributes:
        nodes: All entries, ghosts included, in the order they were stored.
        ends: Per (namespace, channel), the number of the next item of the log.
        epoch: The store's name for this life of the thread. A thread that was deleted and created again has another.
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
        checkpoints: Number of checkpoints in all namespaces.
        updated_at: ISO time of the newest checkpoint, or of an earlier one if that time is later (clock skew).
        latest: Id of the latest checkpoint of the root graph; `None` if there is none.
        step: The step in that checkpoint's metadata, if any.
        models: The requested and served names of the models that wrote the thread.
        owner: Its owner according to the latest checkpoint (`configurable["user_id"]`); empty if unknown.
        facts: Facts that features add (`Hook.describe_thread`): column names of `keel threads`, with values.
        status: The status of its latest checkpoint. `"waiting"`: a task of the next step asks a person. `"failed"`: a
            task has failed. `"incomplete"`: the next step has tasks, which a run may or may not be executing (see
            `saver.status(thread_id)`). `"done"`: its last run has finished. `"idle"`: no run has finished and no
            tasks are next, as after `update_state`. Empty if it cannot be read.
        next: The nodes that run next.
        error: The class of the error of a failed task, if the status is `"failed"`.
        tokens: Input and output tokens of the model calls that led to its latest checkpoint, as far as reported.
        cost: The cost of those calls, as far as reported; `None` if unknown.
        cursor: The position of this thread in the list, for the next page: `saver.threads(after=info.cursor)` with the
            same filters.
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
"""A thread, and its root head if it has one."""
