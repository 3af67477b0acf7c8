"""Stores that copy wrongly, a thread as a whole or up to an entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from langgraph_keel.backends.memory.store import MemoryStore, Request, State
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import BaseGone, Copied, CopyOutcome, Entry
from langgraph_keel.engine.thread import Record, Thread

Copying: TypeAlias = StorePlan[Request, Any, CopyOutcome]


class CopySharesTheLog(MemoryStore):
    """Lets source and copy append to the same logs."""

    def _copy(self, source: Thread, target: str) -> Thread:
        thread = super()._copy(source, target)
        thread.logs = source.logs
        return thread


class CopyForgetsWrites(MemoryStore):
    """Copies entries and items only."""

    def _copy(self, source: Thread, target: str) -> Thread:
        thread = super()._copy(source, target)
        thread.batches = {}
        return thread


class CopyForgetsBranches(MemoryStore):
    """Puts every copied entry on the trunk."""

    def _copy(self, source: Thread, target: str) -> Thread:
        thread = super()._copy(source, target)
        for record in thread.records.values():
            record.trunk = True
        return thread


class CopyWritesOver(MemoryStore):
    """Copies onto a thread that exists."""

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Copying:
        def copy(state: State) -> CopyOutcome:
            before = state.pop(target, None)
            (inner,) = super(CopyWritesOver, self).copy_thread(source, target, upto)
            outcome: CopyOutcome = inner(state)
            if target not in state and before:
                state[target] = before
            return outcome

        outcome: CopyOutcome = yield copy
        return outcome


class CopyOfNothingIsNotRefused(MemoryStore):
    """Looks at the target only if there is something to copy."""

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Copying:
        def copy(state: State) -> CopyOutcome:
            (inner,) = super(CopyOfNothingIsNotRefused, self).copy_thread(source, target, upto)
            outcome: CopyOutcome = inner(state)
            return outcome if source in state else Copied()

        outcome: CopyOutcome = yield copy
        return outcome


class Altered(MemoryStore):
    """Copies up to an entry, and then changes something in the copy."""

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Copying:
        (inner,) = super().copy_thread(source, target, upto)

        def copy(state: State) -> CopyOutcome:
            outcome: CopyOutcome = inner(state)
            if isinstance(outcome, Copied) and upto is not None:
                self.alter(state[source], state[target], state[source].records[upto.stamp])
            return outcome

        outcome: CopyOutcome = yield copy
        return outcome

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        """Make the copy wrong."""
        raise NotImplementedError


class TheCutIsIgnored(MemoryStore):
    """Copies all of a thread, whatever the entry."""

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Copying:
        outcome = yield from super().copy_thread(source, target)
        return outcome


class WhatIsGoneMeansAll(MemoryStore):
    """Copies all of a thread if the entry is gone."""

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Copying:
        outcome = yield from super().copy_thread(source, target, upto)
        if isinstance(outcome, BaseGone):
            outcome = yield from super().copy_thread(source, target)
        return outcome


class WhatIsGoneIsNotTold(MemoryStore):
    """Copies nothing if the entry is gone, and reports success."""

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Copying:
        outcome = yield from super().copy_thread(source, target, upto)
        return Copied() if isinstance(outcome, BaseGone) else outcome


class GhostsAreCutAt(MemoryStore):
    """Copies up to a ghost, too."""

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Copying:
        def show(state: State) -> None:
            record = state[source].records.get(upto.stamp) if upto and source in state else None
            if record:
                record.ghost = False

        yield show
        outcome = yield from super().copy_thread(source, target, upto)
        return outcome


class TheCutKeepsItsHeader(MemoryStore):
    """Leaves the header of the entry unchanged."""

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Copying:
        def copy(state: State) -> CopyOutcome:
            record = state[source].records.get(upto.stamp) if upto and source in state else None
            (inner,) = super(TheCutKeepsItsHeader, self).copy_thread(source, target, record.entry if record else upto)
            outcome: CopyOutcome = inner(state)
            return outcome

        outcome: CopyOutcome = yield copy
        return outcome


class TheCutKeepsItsWrites(Altered):
    """Copies the writes of the entry itself, whose step must run again."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        key = last.entry.address.checkpoint_ns, str(last.entry.address.checkpoint_id)
        if key in source.batches:
            target.batches[key] = list(source.batches[key])


class TheCutForgetsWrites(Altered):
    """Copies no writes."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        target.batches.clear()


class TheCutCopiesOrphans(Altered):
    """Copies writes of checkpoints that are not in the copy."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        there = {(ns, str(checkpoint_id)) for ns, checkpoint_id in target.ids}
        target.batches |= {key: list(value) for key, value in source.batches.items() if key not in there}


class TheCutStaysABranch(Altered):
    """Leaves the entry off the trunk if it was off before."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        next(reversed(target.records.values())).trunk = last.trunk


class TheCutGoesByIds(Altered):
    """Omits entries with greater ids that were stored before."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        for stamp, record in list(target.records.items()):
            if str(record.entry.address.checkpoint_id) > str(last.entry.address.checkpoint_id):
                target.forget(stamp)


class TheCutIsOfOneNamespace(Altered):
    """Copies entries of the same namespace only."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        for stamp, record in list(target.records.items()):
            if record.entry.address.checkpoint_ns != last.entry.address.checkpoint_ns:
                target.forget(stamp)


class TheCutIsOfItsAncestors(Altered):
    """Copies only the ancestors of the entry, and other namespaces."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        kept: set[str | None] = set()
        node: Record | None = last
        while node:
            kept.add(node.entry.address.checkpoint_id)
            parent = node.entry.parent
            node = source.named(node.entry.address.checkpoint_ns, parent) if parent else None
        for stamp, record in list(target.records.items()):
            address = record.entry.address
            if address.checkpoint_ns == last.entry.address.checkpoint_ns and address.checkpoint_id not in kept:
                target.forget(stamp)


class TheCutLosesGhosts(Altered):
    """Does not copy ghosts."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        for stamp in [stamp for stamp, record in target.records.items() if record.ghost]:
            target.forget(stamp)


class TheCutShowsGhosts(Altered):
    """Copies ghosts as ordinary entries."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        for record in target.records.values():
            record.ghost = False


class TheCutLosesARow(Altered):
    """Omits the last row of each log."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        for log in target.logs.values():
            log.rows.popitem()


class TheCutSharesTheLog(Altered):
    """Lets source and fork append to the same logs."""

    def alter(self, source: Thread, target: Thread, last: Record) -> None:
        target.logs = source.logs


COPYING: Mapping[str, Callable[[], MemoryStore]] = {
    store.__name__: store
    for store in (
        CopySharesTheLog,
        CopyForgetsWrites,
        CopyForgetsBranches,
        CopyWritesOver,
        CopyOfNothingIsNotRefused,
        TheCutIsIgnored,
        WhatIsGoneMeansAll,
        WhatIsGoneIsNotTold,
        GhostsAreCutAt,
        TheCutKeepsItsHeader,
        TheCutKeepsItsWrites,
        TheCutForgetsWrites,
        TheCutCopiesOrphans,
        TheCutStaysABranch,
        TheCutGoesByIds,
        TheCutIsOfOneNamespace,
        TheCutIsOfItsAncestors,
        TheCutLosesGhosts,
        TheCutShowsGhosts,
        TheCutLosesARow,
        TheCutSharesTheLog,
    )
}
