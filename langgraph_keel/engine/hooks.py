"""What a feature hears of the saver's verbs, and what it may add to them: the one door through which features come in.

A feature subclasses `Hook` and overrides what it wants to hear. `Hooks` (in `session.py`) keeps, for each event, the
hooks that override it, so what nobody listens to costs no call. Each method of an event is a plan (see `plan.py`),
which may make round trips where its docstring says so; one that makes none may be a plain function that returns
nothing. It may raise: what has not been stored by then is not.

What is about to happen is told in the order of the hooks, what has happened or failed in the opposite one, so that they
nest: the first hook is the first to hear `before_put` and the last to hear `after_put`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple, PendingWrite

from langgraph_keel.engine.config import Address, begins_run
from langgraph_keel.engine.entries import Header
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Batch, Found, Graph, Node, Ref, Stamp, ThreadInfo
from langgraph_keel.engine.session import KnownEntry, Session
from langgraph_keel.engine.tables import CellTable
from langgraph_keel.errors import InvalidInput


@dataclass(slots=True, eq=False)
class Reading:
    """A checkpoint that is read, perhaps by a run that begins from it.

    Attributes:
        config: What was asked for.
        address: What that names.
        is_async: Whether whoever asks has a running loop, which must not be kept waiting.
        result: What is about to be returned; a hook may replace it.
        about: What hooks have added to its header (`Put.header`).
        batches: Its writes as they were stored, in the order of arrival.
        beside: What hooks have added to its writes (`Writes.beside`), as it was stored, one item for each call.
        is_revived: Whether it is not as it was stored (`Hook.revive`).
        notes: What a hook notes for itself between two events.
    """

    config: Mapping[str, Any]
    address: Address
    is_async: bool = False
    result: CheckpointTuple | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    batches: Sequence[Batch] = ()
    beside: Sequence[Any] = ()
    is_revived: bool = False
    notes: dict[Hook, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Revived:
    """A checkpoint that another version of the application has stored, as this one reads it.

    Attributes:
        header: Its header.
        values: The values of its channels.
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
        config: The config of the run that puts it.
        checkpoint: The checkpoint, as LangGraph gave it.
        metadata: Its metadata, as LangGraph gave it.
        source: What has made it, in LangGraph's words: `input`, `loop`, `update` or `fork`.
        parent: The checkpoint it continues; without an id, none.
        address: Where it will be.
        header: Its header. A hook may add to `metadata`, which everybody sees, and to `about`, which nobody does, until
            it is encoded, after `draft_put`.
        refs: Where its values will be, once they are encoded.
        base: What this process knows of the last checkpoint of its thread and namespace, once they are encoded.
        terms: What its thread can be found by while it is the latest, such as `"owner:ada"`. A hook may add to it,
            until it is encoded; it is used of checkpoints of the root namespace. A list of threads that is asked for
            it reads no others, and then looks at each that it has read: a term too many does no harm.
        notes: What a hook notes for itself between two events.
    """

    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    source: object
    parent: Address
    address: Address
    header: Header
    refs: Mapping[str, Ref] = field(default_factory=dict)
    base: KnownEntry | None = None
    terms: list[str] = field(default_factory=list)
    notes: dict[Hook, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Writes:
    """What a task has written, on its way into the store.

    Attributes:
        config: The config of the run; it names the checkpoint.
        address: The checkpoint that the task's step began from.
        writes: Channels and values.
        task_id: The task.
        beside: What hooks have to store with them. It is not seen as a write.
        terms: What the thread can be found by besides (`Put.terms`), as long as the checkpoint is its latest.
        notes: What a hook notes for itself between two events.
    """

    config: RunnableConfig
    address: Address
    writes: Sequence[tuple[str, Any]]
    task_id: str
    beside: list[Any] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    notes: dict[Hook, Any] = field(default_factory=dict)


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
        source: The other one.
        target: The new one.
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
        thread_id: The thread.
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
        thread_id: The thread.
        owner: Whose it is; empty if it does not say.
        is_named: Whether the person that is asked for is named in it, though it is not theirs.
        problem: Why it cannot be read; empty if it can.
    """

    thread_id: str
    owner: str = ""
    is_named: bool = False
    problem: str = ""


class Hook:
    """What a feature hears. A method that makes no round trip need not be a plan.

    Attributes:
        hears_replays: Whether it hears of the fork in which a thread is replayed, too, which stays as it is until
            somebody has looked at it.
        tables: The kinds of cells that it keeps beside each thread.
        shared_tables: Those of cells that all threads share.
    """

    hears_replays = False
    tables: Sequence[CellTable[Any]] = ()
    shared_tables: Sequence[CellTable[Any]] = ()

    def begin(self, session: Session, reading: Reading) -> Plan[None] | None:
        """A run asks for the checkpoint to begin from; it is not read yet."""

    def read(self, session: Session, reading: Reading) -> Plan[None] | None:
        """A checkpoint was read, and is about to be returned."""

    def draft_put(self, session: Session, put: Put) -> Plan[None] | None:
        """A checkpoint is about to be encoded. No round trip: the values are the program's own, which may go on."""

    def before_put(self, session: Session, put: Put) -> Plan[None] | None:
        """A checkpoint is encoded, and about to be stored."""

    def after_put(self, session: Session, put: Put) -> Plan[None] | None:
        """A checkpoint is stored. It must not be said to have failed: errors of the store are to be caught."""

    def put_failed(self, session: Session, put: Put, error: BaseException) -> Plan[None] | None:
        """A checkpoint that was encoded is not stored, or nobody knows. Round trips for an `Exception` only."""

    def draft_writes(self, session: Session, writes: Writes) -> Plan[None] | None:
        """What a task has written is about to be encoded. No round trip."""

    def before_writes(self, session: Session, writes: Writes) -> Plan[None] | None:
        """What a task has written is encoded, and about to be stored."""

    def after_writes(self, session: Session, writes: Writes) -> Plan[None] | None:
        """What a task has written is stored."""

    def writes_failed(self, session: Session, writes: Writes, error: BaseException) -> Plan[None] | None:
        """What a task has written is not stored, or nobody knows. Round trips for an `Exception` only."""

    def before_travel(self, session: Session, travel: Travel) -> Plan[None] | None:
        """A thread is about to be rewound, or branched."""

    def after_travel(self, session: Session, travel: Travel) -> Plan[None] | None:
        """A thread was rewound, or branched."""

    def travel_failed(self, session: Session, travel: Travel, error: BaseException) -> Plan[None] | None:
        """A thread was not rewound, or not branched, or nobody knows. Round trips for an `Exception` only."""

    def after_copy(self, session: Session, copy: Copy) -> Plan[None] | None:
        """A thread was copied or forked: what a feature has beside it is to be copied, too."""

    def keep(self, session: Session, thread_id: str, policy: Any) -> Plan[Collection[Address]]:
        """Return which checkpoints of a thread a prune must leave, besides those that its `Retention` names."""
        yield from ()
        return ()

    def before_remove(self, session: Session, leaving: Leaving) -> Plan[None] | None:
        """Checkpoints are about to be removed. It may be told again of the same, if that is cut off."""

    def after_remove(self, session: Session, leaving: Leaving) -> Plan[None] | None:
        """Checkpoints were removed, or there were none to remove; their rows of values may still be there."""

    def after_runs_removed(
        self, session: Session, run_ids: Collection[str], threads: Sequence[str]
    ) -> Plan[None] | None:
        """The checkpoints of runs were removed, from these threads."""

    def before_delete(self, session: Session, thread_id: str) -> Plan[None] | None:
        """A thread is about to be deleted, with all that stands beside it."""

    def before_sweep(self, session: Session, remind_after: float | None) -> Plan[Sequence[Any]]:
        """All threads are about to be swept; return what somebody is to be reminded of after so many seconds."""
        yield from ()
        return ()

    def find_owners(self, session: Session, user: str) -> Plan[Sequence[Holding]]:
        """Return what a feature keeps of any thread, and whose that is: an erasure asks."""
        yield from ()
        return ()

    # -- no plans at all: answered at once ---------------------------------------------------------------------------

    def find_terms(self, header: Header) -> Mapping[str, Collection[Any]]:
        """Return what a filter of `list` may ask a checkpoint for besides its metadata."""
        return {}

    def describe_thread(self, info: ThreadInfo, header: Header) -> ThreadInfo:
        """Return what a list of threads says of one, given the header of its latest root checkpoint.

        A new fact (text, a number or a truth value) is a new column of `keel threads`:
        `replace(info, facts=(*info.facts, ("cost", "0.02 $")))`.
        """
        return info

    def revive(
        self, session: Session, found: Found, header: Header, channels: Collection[str] | None
    ) -> Revived | None:
        """Decode a checkpoint in place of the engine, before anything but its header is decoded; `None` leaves it.

        Args:
            session: What it runs on.
            found: What the store has.
            header: Its header.
            channels: The channels whose rows were read; `None` if all were.
        """
        return None

    def close(self) -> None:
        """Do what was put off, in threads of your own: the store is about to be closed. Safe to call again."""

    # -- for `Hooks` ---------------------------------------------------------------------------------------------------

    def listens_to(self, event: str) -> bool:
        """Return whether it overrides the method of that name."""
        return getattr(type(self), event) is not getattr(Hook, event)


class LookOnly(Hook):
    """Refuses runs, and whatever they put: of a state that was read for showing, parts may be placeholders."""

    def begin(self, session: Session, reading: Reading) -> None:
        """Refuse the run before anything of it runs."""
        if begins_run(reading.config):
            raise _only_looks()

    def draft_put(self, session: Session, put: Put) -> None:
        """Refuse the checkpoint."""
        raise _only_looks()

    def draft_writes(self, session: Session, writes: Writes) -> None:
        """Refuse the writes."""
        raise _only_looks()


def _only_looks() -> InvalidInput:
    return InvalidInput("saver.raw only reads, and puts nothing: compile the graph with the saver itself")
