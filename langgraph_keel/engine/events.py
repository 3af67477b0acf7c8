"""The arguments of hooks: reads, writes, copies and removals of checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple, PendingWrite

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Header
from langgraph_keel.engine.memo import KnownEntry
from langgraph_keel.engine.records import Batch, Found, Graph, NewEntry, Node, Ref, Stamp


@dataclass(slots=True, eq=False)
class Reading:
    """A read of a checkpoint, perhaps by a run that begins from it.

    Attributes:
        is_async: Whether the caller runs in an event loop, which must not be blocked.
        result: The tuple to return; a hook may replace it.
        about: The items that hooks added to its header (`Put.header`).
        batches: Its stored writes, in arrival order.
        beside: The items that hooks added to its writes, as stored, one per `put_writes` call.
        is_revived: Whether `Hook.revive` changed it.
        found: The reply of the store; `None` if the checkpoint was in the memo, or could not be read.
        notes: Values that a hook keeps between two events, under its own key.
    """

    config: Mapping[str, Any]
    address: Address
    is_async: bool = False
    result: CheckpointTuple | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    batches: Sequence[Batch] = ()
    beside: Sequence[Any] = ()
    is_revived: bool = False
    found: Found | None = None
    notes: dict[object, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes read from the store, without writes."""
        rows = self.found.rows.values() if self.found else ()
        return sum(len(row.body) for each in rows for row in each) + (len(self.found.entry.header) if self.found else 0)


@dataclass(slots=True, eq=False)
class Revived:
    """A checkpoint of another version of the application, upgraded to this version.

    Attributes:
        writes: Its pending writes, in the order in which LangGraph applies them.
        beside: As in `Reading`.
        interrupts: The old ids of changed interrupts to their new ids, which derive from names of nodes.
    """

    header: Header
    values: dict[str, Any]
    writes: list[PendingWrite]
    beside: list[Any]
    interrupts: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Put:
    """A checkpoint on its way into the store.

    Attributes:
        source: LangGraph's source of the checkpoint: `input`, `loop`, `update` or `fork`.
        parent: The checkpoint it continues; without an id if there is none.
        address: Its address.
        header: Its header. In `draft_put`, before the header is encoded, a hook may add to `metadata`, which users see,
            and to `about`, which they do not.
        entry: The encoded checkpoint.
        base: The last known checkpoint of its thread and namespace, set once values are encoded.
        terms: Terms by which a list finds the thread while this checkpoint is the latest, such as `"owner:ada"`. A hook
            may add terms in `draft_put`. They are used for the root namespace only. A filtered list reads only threads
            with the term and then checks each, so surplus terms do no harm.
        notes: Values that a hook keeps between two events, under its own key.
    """

    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    source: object
    parent: Address
    address: Address
    header: Header
    base: KnownEntry | None = None
    terms: list[str] = field(default_factory=list)
    entry: NewEntry | None = None
    notes: dict[object, Any] = field(default_factory=dict)

    @property
    def refs(self) -> Mapping[str, Ref]:
        """The locations of its values, once they are encoded."""
        return self.entry.refs if self.entry else {}

    @property
    def nbytes(self) -> int:
        """Bytes to store: header, and appended or repacked rows."""
        entry = self.entry
        packs = [rows for each in (entry.appends, entry.repacks) for rows in each.values()] if entry else ()
        return sum(len(row.body) for rows in packs for row in rows) + (len(entry.header) if entry else 0)


@dataclass(slots=True, eq=False)
class Writes:
    """The writes of a task on their way into the store.

    Attributes:
        address: The checkpoint that the task's step began from.
        writes: Channels and values.
        beside: Items that hooks store with the writes. Readers do not see them as writes.
        terms: More terms of the thread (`Put.terms`) while the checkpoint is its latest.
        nbytes: Stored bytes, set once they are stored.
        notes: Values that a hook keeps between two events, under its own key.
    """

    config: RunnableConfig
    address: Address
    writes: Sequence[tuple[str, Any]]
    task_id: str
    beside: list[Any] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    nbytes: int = 0
    notes: dict[object, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Travel:
    """A rewind or a branch of a thread.

    Attributes:
        verb: `"rewound"`, or `"branched"`, which does not change the latest checkpoint.
        origin: The checkpoint that the thread returns to.
        twin: The new checkpoint, a copy of the origin, once it is stored.
        about: Items of the origin's `Header.about` that also hold for the twin.
    """

    verb: str
    origin: Address
    twin: Address | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy or a fork of a thread.

    Attributes:
        at: The last copied checkpoint of a fork; `None` if the whole thread was copied.
        graph: The entries of a fork; `None` if the whole thread was copied.
    """

    source: str
    target: str
    at: Address | None = None
    graph: Graph | None = None


@dataclass(frozen=True, slots=True)
class Leaving:
    """A removal of checkpoints of a thread.

    Attributes:
        moments: All visible checkpoints of the thread before the removal, in the order they were stored.
        kept: The checkpoints that stay.
        removed: The checkpoints to remove, except for values that delta channels still need.
        run_ids: The runs whose checkpoints are removed (`delete_for_runs`); empty if a policy or a program chose them.
    """

    thread_id: str
    moments: Sequence[tuple[Node, Header]]
    kept: Collection[Stamp]
    removed: Collection[Stamp]
    run_ids: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """A record that a feature keeps of a thread, next to its checkpoints.

    Attributes:
        owner: Its owner; empty if unknown.
        is_named: Whether it names the person in question without being theirs.
        problem: Why it cannot be read; empty if it can.
    """

    thread_id: str
    owner: str = ""
    is_named: bool = False
    problem: str = ""
