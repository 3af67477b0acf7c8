"""The events that hooks hear of, as records: a checkpoint that is read, put, copied or removed, and the like."""

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
    """A checkpoint that is read, perhaps by a run that begins from it.

    Attributes:
        is_async: Whether the caller has a running loop, which must not be blocked.
        result: The tuple that is about to be returned; a hook may replace it.
        about: What hooks have added to its header (`Put.header`).
        batches: Its writes as they were stored, in the order of arrival.
        beside: What hooks have added to its writes (`Writes.beside`), as it was stored, one item for each call.
        is_revived: Whether it is not as it was stored (`Hook.revive`).
        found: What the store has returned; `None` if the checkpoint was known, or could not be read.
        notes: Private to each hook, between two events.
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
        """The bytes that the store has returned, without writes."""
        rows = self.found.rows.values() if self.found else ()
        return sum(len(row.body) for each in rows for row in each) + (len(self.found.entry.header) if self.found else 0)


@dataclass(slots=True, eq=False)
class Revived:
    """A checkpoint that another version of the application has stored, as this one reads it.

    Attributes:
        writes: Its pending writes, in the order in which LangGraph applies them.
        beside: What hooks have added to its writes (`Writes.beside`), as it was stored, one item for each call.
        interrupts: The ids of what it asks that are others now, and what they are: they are made of names of nodes.
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
        source: What has made it, in LangGraph's words: `input`, `loop`, `update` or `fork`.
        parent: The checkpoint it continues; without an id, none.
        address: Where it will be.
        header: Its header. A hook may add to `metadata`, which everybody sees, and to `about`, which nobody does, until
            it is encoded, after `draft_put`.
        entry: The checkpoint as it is encoded.
        base: The last known checkpoint of its thread and namespace, once values are encoded.
        terms: What its thread can be found by while it is the latest, such as `"owner:ada"`. A hook may add to it,
            until it is encoded; it is used of checkpoints of the root namespace. A list of threads that is asked for
            it reads no others, and then looks at each that it has read: a term too many does no harm.
        notes: Private to each hook, between two events.
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
        """Where its values will be, once they are encoded."""
        return self.entry.refs if self.entry else {}

    @property
    def nbytes(self) -> int:
        """The bytes that it takes: header, and rows that are appended or packed again."""
        entry = self.entry
        packs = [rows for each in (entry.appends, entry.repacks) for rows in each.values()] if entry else ()
        return sum(len(row.body) for rows in packs for row in rows) + (len(entry.header) if entry else 0)


@dataclass(slots=True, eq=False)
class Writes:
    """What a task has written, on its way into the store.

    Attributes:
        address: The checkpoint that the task's step began from.
        writes: Channels and values.
        beside: Items that hooks store with the writes. They are not seen as writes.
        terms: More terms of the thread (`Put.terms`), as long as the checkpoint is its latest.
        nbytes: The bytes that they take, once they are stored.
        notes: Private to each hook, between two events.
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
    """A thread that is about to go on from another checkpoint.

    Attributes:
        verb: `"rewound"`, or `"branched"`, which leaves the latest checkpoint what it is.
        origin: The checkpoint it goes back to.
        twin: The new checkpoint, a twin of that one, once it is stored.
        about: What its header says that is no metadata: of the origin's, what is true of the twin, too.
    """

    verb: str
    origin: Address
    twin: Address | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Copy:
    """A thread that was made of another one.

    Attributes:
        at: The checkpoint up to which it was copied; `None` if all of it was.
        graph: Of such a fork, what it has; `None` if all was copied.
    """

    source: str
    target: str
    at: Address | None = None
    graph: Graph | None = None


@dataclass(frozen=True, slots=True)
class Leaving:
    """Checkpoints that are about to be removed, or were.

    Attributes:
        moments: All its checkpoints that a reader sees, in the order they were put.
        kept: Those that stay.
        removed: Those that go, but for what delta channels need of them.
        run_ids: The runs whose checkpoints go, if it is for them; else a policy or a program has chosen.
    """

    thread_id: str
    moments: Sequence[tuple[Node, Header]]
    kept: Collection[Stamp]
    removed: Collection[Stamp]
    run_ids: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """What a feature keeps of a thread beside its checkpoints.

    Attributes:
        owner: Its owner; empty if it names none.
        is_named: Whether the person that is asked for is named in it, though it is not theirs.
        problem: Why it cannot be read; empty if it can.
    """

    thread_id: str
    owner: str = ""
    is_named: bool = False
    problem: str = ""
