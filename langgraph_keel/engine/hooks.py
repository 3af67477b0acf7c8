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
from typing import Any

from langgraph_keel.engine.config import Address, begins_run
from langgraph_keel.engine.entries import Header
from langgraph_keel.engine.events import Copy, Holding, Leaving, Put, Reading, Revived, Travel, Writes
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Found, ThreadInfo
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import CellTable
from langgraph_keel.errors import InvalidInput


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

    def read_failed(self, session: Session, reading: Reading, error: BaseException) -> Plan[None] | None:
        """The checkpoint that a run asked for could not be read. Round trips for an `Exception` only."""

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

    def reclaim(self, session: Session, now: bool) -> Plan[str]:
        """Give back space outside of the store, at once or when it is safe to; return a note on what was done."""
        yield from ()
        return ""

    def find_owners(self, session: Session, user: str) -> Plan[Sequence[Holding]]:
        """Return what a feature keeps of any thread, and whose that is: an erasure asks."""
        yield from ()
        return ()

    def erase_items(
        self, session: Session, person: str, held: Collection[str], acts: bool
    ) -> Plan[tuple[int, Sequence[str]]]:
        """Remove what a feature keeps of a person beside threads, or with `acts=False`, only count it.

        Return how many items these are, and why others of the person are left: those of persons on hold (`held`) are.
        """
        yield from ()
        return 0, ()

    def find_relatives(self, session: Session, thread_id: str) -> Plan[Sequence[str]]:
        """Return the threads that share their history with a thread: its forks, copies and originals."""
        yield from ()
        return ()

    def find_warnings(
        self, session: Session, thread_id: str, checkpoint_id: str, action: str, relatives: Sequence[str]
    ) -> Plan[Sequence[tuple[str, str]]]:
        """Return what a reviewer has to know before this step may act: sentences, each with its event's ISO time."""
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
