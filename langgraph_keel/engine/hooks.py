"""The interface of features: hooks for the events of the saver's verbs.

A feature subclasses `Hook` and overrides methods. `Hooks` (in `session.py`) keeps, for each event, the hooks that
override it, so an unused event costs no call. Each method is a plan (see `plan.py`). It may make round trips unless its
docstring forbids them; without round trips it may be a plain function that returns nothing. If it raises an error,
nothing more is stored.

Hooks are called in order before an action, and in reverse order after it or after its failure. So they nest: the first
hook gets `before_put` first and `after_put` last.
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
    """The base class of hooks. A method without round trips need not be a plan.

    Attributes:
        hears_replays: Whether it is also called for replays. A replay runs in a fork, which stays unchanged until a
            person has inspected it.
        tables: The kinds of cells that it keeps per thread.
        shared_tables: The kinds of cells that all threads share.
    """

    hears_replays = False
    tables: Sequence[CellTable[Any]] = ()
    shared_tables: Sequence[CellTable[Any]] = ()

    def begin(self, session: Session, reading: Reading) -> Plan[None] | None:
        """Called before the checkpoint is read from which a run begins."""

    def read(self, session: Session, reading: Reading) -> Plan[None] | None:
        """Called after a checkpoint was read, before it is returned."""

    def read_failed(self, session: Session, reading: Reading, error: BaseException) -> Plan[None] | None:
        """Called if `begin` or the read failed. Round trips only for an `Exception`."""

    def draft_put(self, session: Session, put: Put) -> Plan[None] | None:
        """Called before encoding. No round trip, as the program may change the values."""

    def before_put(self, session: Session, put: Put) -> Plan[None] | None:
        """Called after a checkpoint was encoded, before it is stored."""

    def after_put(self, session: Session, put: Put) -> Plan[None] | None:
        """Called after a checkpoint was stored. Catch store errors: `put` must not fail."""

    def put_failed(self, session: Session, put: Put, error: BaseException) -> Plan[None] | None:
        """Called if storing a checkpoint failed, or its outcome is unknown.

        Round trips only for an `Exception`.
        """

    def draft_writes(self, session: Session, writes: Writes) -> Plan[None] | None:
        """Called before the writes of a task are encoded. No round trip."""

    def before_writes(self, session: Session, writes: Writes) -> Plan[None] | None:
        """Called after the writes of a task were encoded, before they are stored."""

    def after_writes(self, session: Session, writes: Writes) -> Plan[None] | None:
        """Called after the writes of a task were stored."""

    def writes_failed(self, session: Session, writes: Writes, error: BaseException) -> Plan[None] | None:
        """Called if storing writes failed, or its outcome is unknown.

        Round trips only for an `Exception`.
        """

    def before_travel(self, session: Session, travel: Travel) -> Plan[None] | None:
        """Called before a thread is rewound or branched."""

    def after_travel(self, session: Session, travel: Travel) -> Plan[None] | None:
        """Called after a thread was rewound or branched."""

    def travel_failed(self, session: Session, travel: Travel, error: BaseException) -> Plan[None] | None:
        """Called if a rewind or branch failed, or its outcome is unknown.

        Round trips only for an `Exception`.
        """

    def after_copy(self, session: Session, copy: Copy) -> Plan[None] | None:
        """Called after a thread was copied or forked, to copy the feature's records of it."""

    def keep(self, session: Session, thread_id: str, policy: Any) -> Plan[Collection[Address]]:
        """Return checkpoints that a prune must keep in addition to its `Retention`."""
        yield from ()
        return ()

    def before_remove(self, session: Session, leaving: Leaving) -> Plan[None] | None:
        """Called before checkpoints are removed, again if the removal was interrupted."""

    def after_remove(self, session: Session, leaving: Leaving) -> Plan[None] | None:
        """Called after checkpoints, or none, were removed. Their rows may still exist."""

    def after_runs_removed(
        self, session: Session, run_ids: Collection[str], threads: Sequence[str]
    ) -> Plan[None] | None:
        """Called after the checkpoints of runs were removed from these threads."""

    def before_delete(self, session: Session, thread_id: str) -> Plan[None] | None:
        """Called before a thread and its cells are deleted."""

    def before_sweep(self, session: Session, remind_after: float | None) -> Plan[Sequence[Any]]:
        """Called before a sweep; return reminders of items older than `remind_after` s."""
        yield from ()
        return ()

    def reclaim(self, session: Session, now: bool) -> Plan[str]:
        """Free space outside of the store, now or once it is safe; return a note about it."""
        yield from ()
        return ""

    def find_owners(self, session: Session, user: str) -> Plan[Sequence[Holding]]:
        """Return the feature's records of threads with their owners, for an erasure."""
        yield from ()
        return ()

    def erase_items(
        self, session: Session, person: str, held: Collection[str], acts: bool
    ) -> Plan[tuple[int, Sequence[str]]]:
        """Remove (with `acts=False`, count) a person's items that belong to no thread.

        Return their number, and the reasons why other items of the person stay. Items of persons on hold (`held`) stay.
        """
        yield from ()
        return 0, ()

    def find_relatives(self, session: Session, thread_id: str) -> Plan[Sequence[str]]:
        """Return threads that share history with a thread: forks, copies and originals."""
        yield from ()
        return ()

    def find_warnings(
        self, session: Session, thread_id: str, checkpoint_id: str, action: str, relatives: Sequence[str]
    ) -> Plan[Sequence[tuple[str, str]]]:
        """Return warnings for a reviewer of this step, each with its event's ISO time."""
        yield from ()
        return ()

    # -- plain methods, not plans ------------------------------------------------------------------------------------

    def find_terms(self, header: Header) -> Mapping[str, Collection[Any]]:
        """Return terms that filters of `list` match in addition to metadata."""
        return {}

    def describe_thread(self, info: ThreadInfo, header: Header) -> ThreadInfo:
        """Return a thread's entry in a list, given the header of its root head.

        Each added fact (a text, number or bool) is a column of `keel threads`:
        `replace(info, facts=(*info.facts, ("cost", "0.02 $")))`.
        """
        return info

    def revive(
        self, session: Session, found: Found, header: Header, channels: Collection[str] | None
    ) -> Revived | None:
        """Decode a checkpoint in place of the engine, or return `None`.

        Args:
            session: The saver's session.
            found: The stored checkpoint.
            header: Its header; nothing else is decoded yet.
            channels: The channels whose rows were read; `None` if all were.
        """
        return None

    def close(self) -> None:
        """Finish background work before the store is closed. May be called twice."""

    # -- for `Hooks` ---------------------------------------------------------------------------------------------------

    def listens_to(self, event: str) -> bool:
        """Return whether it overrides the method of this name."""
        return getattr(type(self), event) is not getattr(Hook, event)


class LookOnly(Hook):
    """Refuses runs and their writes, as states for display may have placeholders."""

    def begin(self, session: Session, reading: Reading) -> None:
        """Refuse the run before its first step."""
        if begins_run(reading.config):
            raise _only_looks()

    def draft_put(self, session: Session, put: Put) -> None:
        """Refuse the checkpoint."""
        raise _only_looks()

    def draft_writes(self, session: Session, writes: Writes) -> None:
        """Refuse the writes."""
        raise _only_looks()


def _only_looks() -> InvalidInput:
    return InvalidInput("saver.raw is read-only: compile the graph with the saver itself")
