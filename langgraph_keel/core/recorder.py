"""What a process has captured of model calls and not stored yet; and what a thread was written with so far.

A call ends before its task's writes are put, and those and the checkpoint of the step come in any order. So a record
waits here for both, and goes with each: no round trip is ever made for it. A call led to the checkpoint that continues
the one it began from. With `durability="exit"`, where those between never reach the saver, that is the run's last one:
ids are ordered in time, and it is younger than what the call began from, and its parent is older. Of a task that has
failed or asked and is never taken up again, the records stay where its writes are.

Records of namespaces that are never stored (a subgraph without a checkpointer, or a finished one with "exit") go with
the checkpoint of the graph around it.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from langgraph_keel.core.drift import GRAPH_VERSION, MARK, Change, DriftReport, Known, followed
from langgraph_keel.core.provenance import ModelCall, Record, names_of, packed, unpacked_all
from langgraph_keel.core.records import Address
from langgraph_keel.errors import DriftDetected, DriftWarning

OnDrift: TypeAlias = Literal["ignore", "warn", "raise"]

THREADS = 1000
"""Most threads of which records wait; of the least recently used ones they are forgotten."""
CALLS_WAITING = 10_000
"""Most records of one thread that wait."""
CHECKPOINTS = 10_000
"""Most checkpoints of which it is remembered what they were written with: those that runs are at, and some."""

NOTHING = Known()

_recorders: WeakSet[Recorder] = WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock; and what waits here is the parent's to store.
    for recorder in list(_recorders):
        recorder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(slots=True, eq=False)
class Captured:
    """A record that waits.

    Attributes:
        record: The record.
        lineage: Per namespace around the call, the id of the checkpoint that its step began from.
        tasks: The ids of its task and of those around it.
        is_written: Whether it stands among a task's writes.
        is_headed: Whether it stands in the header of a checkpoint it led to.
        is_counted: Whether the root graph's checkpoint after it names its model.
    """

    record: Record
    lineage: Mapping[str, str]
    tasks: Collection[str]
    is_written: bool = False
    is_headed: bool = False
    is_counted: bool = False

    @property
    def is_stored(self) -> bool:
        """Whether it stands anywhere."""
        return self.is_written or self.is_headed


@dataclass(slots=True)
class Account:
    """What a checkpoint that is about to be put takes along.

    Attributes:
        about: For its header.
        marks: For its metadata.
        drift: What has changed since the checkpoint it continues; `None` if nothing has.
        known: What its thread was written with, it included; `None` if nothing is known.
        taken: The records that go to its header.
        counted: The records whose models it names.
    """

    about: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)
    drift: DriftReport | None = None
    known: Known | None = None
    taken: Sequence[Captured] = ()
    counted: Sequence[Captured] = ()


class Recorder:
    """The records of one saver, shared by its copies. Any thread may call.

    Args:
        versions: The versions of the packages that the graph runs on.
        graph_version: The application's own version.
        on_drift: What to do where a thread goes on with something else than what it was written with.
    """

    def __init__(
        self, versions: Mapping[str, str], graph_version: str | None = None, on_drift: OnDrift = "warn"
    ) -> None:
        self.versions = {**versions, "graph": graph_version} if graph_version else dict(versions)
        self.graph_version = graph_version
        self.on_drift = on_drift
        self.forget()
        _recorders.add(self)

    def forget(self) -> None:
        """Forget everything that waits."""
        self._lock = Lock()
        self._waiting: OrderedDict[str, list[Captured]] = OrderedDict()
        self._known: OrderedDict[tuple[str, str | None], Known] = OrderedDict()
        self._unfinished: OrderedDict[Address, list[Record]] = OrderedDict()

    # -- capture -----------------------------------------------------------------------------------------------

    def add(self, thread_id: str, captured: Captured) -> None:
        """Take a record of a call that has ended."""
        with self._lock:
            waiting = self._waiting.setdefault(thread_id, [])
            waiting.append(captured)
            del waiting[:-CALLS_WAITING]
            _trim(self._waiting, thread_id, THREADS)

    def waiting(self, thread_id: str) -> list[ModelCall]:
        """Return the records of a thread that stand nowhere yet."""
        with self._lock:
            waiting = self._waiting.get(thread_id, ())
            return unpacked_all([each.record for each in waiting if not each.is_stored])

    # -- with a task's writes ----------------------------------------------------------------------------------

    def of_task(self, thread_id: str, task_id: str) -> Sequence[Captured]:
        """Return the records of a task, and of what it has called, that stand with no task's writes yet."""
        if thread_id not in self._waiting:
            return ()
        with self._lock:
            waiting = self._waiting.get(thread_id, ())
            return [each for each in waiting if task_id in each.tasks and not each.is_written]

    def written(self, taken: Iterable[Captured]) -> None:
        """Note that these are stored with the writes of a task."""
        for each in taken:
            each.is_written = True

    # -- with a checkpoint -------------------------------------------------------------------------------------

    def of_entry(self, address: Address, parent: str | None, source: object) -> Account:
        """Return what a checkpoint takes along. Nothing changes until `stored` is called with it.

        Args:
            address: Where it will be.
            parent: The id of the checkpoint it continues.
            source: Its metadata's `source`; only the steps of a run (`"loop"`) are led to by calls.
        """
        with self._lock:
            waiting = self._waiting.get(address.thread_id, ())
            before = self._known.get((address.thread_id, parent), NOTHING)
            earlier = self._unfinished.get(Address(address.thread_id, address.checkpoint_ns, parent), ())
        led = [each for each in waiting if _led_to(each, address, parent)] if source == "loop" else []
        taken = [each for each in led if not each.is_headed]
        ids = {each.record["id"] for each in waiting}
        earlier = [record for record in earlier if record["id"] not in ids] if source == "loop" else []
        records = [*earlier, *(each.record for each in taken)]
        about: dict[str, Any] = {"calls": records} if records else {}
        if address.checkpoint_ns:
            return Account(about, taken=taken)
        counted = [each for each in led if not each.is_counted]
        new = {record["id"]: record for record in [*records, *(each.record for each in counted)]}
        return self._account(address, before, about, list(new.values()), taken, counted)

    def _account(
        self,
        address: Address,
        before: Known,
        about: dict[str, Any],
        new: Sequence[Record],
        taken: Sequence[Captured],
        counted: Sequence[Captured],
    ) -> Account:
        if names := set().union(*map(names_of, new)):
            about["models"] = sorted(names)
        known, found = followed(before, new, self.versions) if new or before.nodes else (before, [])
        if known.nodes:
            about["known"] = known.packed()
        found = [] if self.on_drift == "ignore" else found
        report = DriftReport(address.thread_id, tuple(found)) if found else None
        return Account(about, self._marks(found), report, known, taken, counted)

    def _marks(self, found: Sequence[Change]) -> dict[str, Any]:
        marks: dict[str, Any] = {GRAPH_VERSION: self.graph_version} if self.graph_version else {}
        return {**marks, MARK: [str(change) for change in found]} if found else marks

    def judge(self, account: Account) -> None:
        """Say that something has changed, as the saver was told to.

        Raises:
            DriftDetected: It was told to raise.
        """
        if account.drift is None:
            return
        if self.on_drift == "raise":
            raise DriftDetected(account.drift)
        warnings.warn(DriftWarning(account.drift), stacklevel=2)

    def stored(self, address: Address, parent: str | None, account: Account) -> None:
        """Note that a checkpoint is stored with what it took along."""
        for each in account.taken:
            each.is_headed = True
        for each in account.counted:
            each.is_counted = True
        with self._lock:
            if account.known and account.known.nodes:
                self._remember(address, account.known)
            self._sweep(address, parent)

    def _remember(self, address: Address, known: Known) -> None:
        key = address.thread_id, address.checkpoint_id
        self._known[key] = known
        _trim(self._known, key, CHECKPOINTS)

    def _sweep(self, address: Address, parent: str | None) -> None:
        """Let go of the records that stand where they belong; a task's writes may still be on their way to the rest."""
        waiting = self._waiting.get(address.thread_id)
        if waiting is None:
            return
        left = [each for each in waiting if not (each.is_headed and each.is_counted and each.is_written)]
        if not address.checkpoint_ns:  # the graph has gone on: what stands anywhere stays there
            left = [each for each in left if not (each.is_stored and each.lineage.get("", "") < (parent or ""))]
        if left:
            self._waiting[address.thread_id] = left
        else:
            del self._waiting[address.thread_id]

    def forget_thread(self, thread_id: str, gone: Set[str | None] = frozenset()) -> None:
        """Forget what waits of a thread, or of some checkpoints of it, that are deleted.

        Another thread may have this name some day, and another run go on from the checkpoint before.
        """
        with self._lock:
            waiting = self._waiting.pop(thread_id, [])
            if gone and (left := [each for each in waiting if gone.isdisjoint(each.lineage.values())]):
                self._waiting[thread_id] = left

    # -- what others have stored -------------------------------------------------------------------------------

    def learn(self, address: Address, about: Mapping[str, Any], calls: Sequence[Any]) -> None:
        """Remember what a checkpoint that was read says: what it was written with, and calls not yet led anywhere."""
        records = [packed(call) for stored in calls for call in unpacked_all(stored)]  # what fits a record of today
        known = Known.unpacked(about["known"]) if "known" in about and not address.checkpoint_ns else NOTHING
        with self._lock:
            if records:
                self._unfinished[address] = records
                _trim(self._unfinished, address, CHECKPOINTS)
            if known.nodes:
                self._remember(address, known)


def _led_to(each: Captured, address: Address, parent: str | None) -> bool:
    began, before = each.lineage.get(address.checkpoint_ns), parent or ""
    if began is None or began >= str(address.checkpoint_id):
        return False
    # One that nobody waited for may end when the graph has gone on, and goes with the next step.
    return began >= before or not each.is_stored


def _trim(kept: OrderedDict[Any, Any], key: Any, most: int) -> None:
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)


def models_of(about: Mapping[str, Any]) -> set[str]:
    """Return the names of the models that a header says led to its checkpoint."""
    named = about.get("models")
    called = {name for call in unpacked_all(about.get("calls")) for name in call.names}
    return called | {name for name in (named if isinstance(named, list) else ()) if isinstance(name, str)}


def known_models(about: Mapping[str, Any]) -> set[str]:
    """Return the names of all models that a root checkpoint's header says wrote its thread."""
    names = Known.unpacked(about["known"]).names if "known" in about else set()
    return {name for name in names if isinstance(name, str)}
