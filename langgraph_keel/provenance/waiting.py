"""Records of model calls that are not stored yet: which task they go with, and which checkpoint they lead to.

A call ends before its task's writes are put, and those and the checkpoint of the step come in any order. So a record
waits here for whichever comes first, and goes with it: no round trip is ever made for it. It leads to the next
checkpoint of its own run in the innermost namespace that is stored. Ids are ordered in time, so that is the first one
younger than what the call began from; with `durability="exit"`, where those between never reach the saver, the run's
last one. What a run leaves behind that was cancelled goes with the thread's next checkpoint as a stray, and is shown
where it began. What a run has called whose checkpoint was refused is forgotten: it is no call of the thread's.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from threading import Lock
from typing import TypeAlias

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.runs import find_runs
from langgraph_keel.errors import DriftDetected
from langgraph_keel.provenance.drift import Change, DriftReport
from langgraph_keel.provenance.records import Record

WAITING_THREADS = 1000
"""Most threads whose records wait although they are stored; records that are stored nowhere are never forgotten."""
_EXAMINED = 100


@dataclass(slots=True, eq=False)
class WaitingRecord:
    """A record that waits.

    Attributes:
        record: The record.
        thread_id: The thread of the call.
        lineage: Per namespace around the call, the id of the checkpoint that its step began from.
        tasks: The ids of its task and of those around it.
        run: What tells the run from all others; `None` where LangGraph does not.
        is_guessed: Whether another run may have called: the one that writes the task did.
        is_ended: Whether the call is over, and the record complete.
        is_written: Whether it is stored among a task's writes.
        is_in_header: Whether it is stored in the header of a checkpoint.
        call: What completes the record when the call is over, kept as long as the record waits.
        refused: Why nothing may go on from its answer.
    """

    record: Record
    thread_id: str
    lineage: Mapping[str, str]
    tasks: Collection[str]
    run: object = None
    is_guessed: bool = False
    is_ended: bool = True
    is_written: bool = False
    is_in_header: bool = False
    call: object = None
    refused: Sequence[Change] = ()

    @property
    def is_stored(self) -> bool:
        """Whether it is stored anywhere."""
        return self.is_written or self.is_in_header


def check_refusals(records: Sequence[WaitingRecord]) -> None:
    """Refuse once more what was refused before: somebody has caught it, such as a middleware that tries again.

    Raises:
        DriftDetected: One of the calls was refused.
    """
    changes = [change for each in records for change in each.refused]
    if changes:
        raise DriftDetected(DriftReport(records[0].thread_id, tuple(dict.fromkeys(changes))))


@dataclass(frozen=True, slots=True)
class Selection:
    """The records that go with a checkpoint.

    Attributes:
        led: Those that led to it, wherever they are stored.
        new: Those of them that are in no header yet.
        strays: Those that other runs have left behind.
    """

    led: Sequence[WaitingRecord] = ()
    new: Sequence[WaitingRecord] = ()
    strays: Sequence[WaitingRecord] = ()


NOTHING_SELECTED = Selection()

_Group: TypeAlias = dict[int, WaitingRecord]


@dataclass(slots=True)
class _ThreadRecords:
    by_task: defaultdict[str, _Group] = field(default_factory=lambda: defaultdict(dict))
    by_ns: defaultdict[str, _Group] = field(default_factory=lambda: defaultdict(dict))

    def add(self, each: WaitingRecord) -> None:
        for task in each.tasks:
            self.by_task[task][id(each)] = each
        for namespace in each.lineage:
            self.by_ns[namespace][id(each)] = each

    def all(self) -> Collection[WaitingRecord]:
        return {key: each for group in self.by_ns.values() for key, each in group.items()}.values()

    def find_before(self, address: Address) -> list[WaitingRecord]:
        """Return what began before a checkpoint. Puts may be thousands of steps late: none after it is looked at."""
        namespace, own = address.checkpoint_ns, str(address.checkpoint_id)
        group = self.by_ns.get(namespace, {}).values()
        return list(takewhile(lambda each: each.lineage[namespace] < own, group))

    def remove_from_tasks(self, each: WaitingRecord) -> None:
        _remove(self.by_task, each.tasks, each)

    def remove_from_namespaces(self, each: WaitingRecord, namespaces: Iterable[str]) -> None:
        _remove(self.by_ns, namespaces, each)

    def remove(self, each: WaitingRecord) -> None:
        self.remove_from_tasks(each)
        self.remove_from_namespaces(each, each.lineage)


def _remove(groups: dict[str, _Group], names: Iterable[str], each: WaitingRecord) -> None:
    for name in names:
        group = groups.get(name, {})
        group.pop(id(each), None)
        if not group:
            groups.pop(name, None)


class WaitingRecords:
    """The records of one saver that wait. Any thread may call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads: OrderedDict[str, _ThreadRecords] = OrderedDict()

    def __len__(self) -> int:
        """Count the threads whose records wait."""
        return len(self._threads)

    def add(self, each: WaitingRecord) -> None:
        """Add the record of a call that has begun, or is over."""
        with self._lock:
            if each.thread_id not in self._threads:
                self._threads[each.thread_id] = _ThreadRecords()
            self._threads[each.thread_id].add(each)
            self._threads.move_to_end(each.thread_id)
            if len(self._threads) > WAITING_THREADS:
                self._evict()

    def _evict(self) -> None:
        """Forget the least recently used thread among those whose records are all stored."""
        for thread_id in list(self._threads)[:_EXAMINED]:
            if all(each.is_stored for each in self._threads[thread_id].all()):
                del self._threads[thread_id]
                return

    def find_unstored(self, thread_id: str) -> list[Record]:
        """Return the records of calls that are over and not stored yet."""
        with self._lock:
            thread = self._threads.get(thread_id)
            waiting = thread.all() if thread else ()
            return [each.record for each in waiting if each.is_ended and not each.is_stored]

    # -- with the writes of a task -----------------------------------------------------------------------------

    def select_for_task(self, thread_id: str, task_id: str, run: object) -> Sequence[WaitingRecord]:
        """Return the records of a task, and of what it has called, that are not stored yet."""
        if thread_id not in self._threads:
            return ()
        with self._lock:
            thread = self._threads.get(thread_id)
            group = thread.by_task.get(task_id, {}) if thread else {}
            for each in group.values():
                each.run, each.is_guessed = run if each.is_guessed else each.run, False
            return [each for each in group.values() if each.is_ended and each.run is run and not each.is_stored]

    def mark_written(self, records: Iterable[WaitingRecord]) -> None:
        """Note that these are stored among the writes of a task."""
        with self._lock:
            for each in records:
                each.is_written = True
                if thread := self._threads.get(each.thread_id):
                    thread.remove_from_tasks(each)

    # -- with a checkpoint -------------------------------------------------------------------------------------

    def select_for_entry(self, address: Address, source: object, run: object) -> Selection:
        """Return what goes with a checkpoint; only the steps of a run (`source="loop"`) are led to by calls."""
        if address.thread_id not in self._threads:
            return NOTHING_SELECTED
        with self._lock:
            thread = self._threads.get(address.thread_id)
            group = thread.find_before(address) if thread else []
        if not group:
            return NOTHING_SELECTED
        led = [each for each in group if each.is_ended and each.run is run] if source == "loop" else []
        others = [] if address.checkpoint_ns else [each for each in group if each.run is not run]
        # A run that is under way may still lead somewhere, or be refused.
        strays = [each for each in others if not each.is_stored and not each.is_guessed and not find_runs(each.run)]
        return Selection(led, [each for each in led if not each.is_in_header], strays)

    def mark_stored(self, address: Address, selection: Selection, run: object) -> None:
        """Note that a checkpoint is stored with what was selected for it."""
        if address.thread_id not in self._threads and not selection.new and not selection.strays:
            return
        with self._lock:
            for each in (*selection.new, *selection.strays):
                each.is_in_header = True
            thread = self._threads.get(address.thread_id)
            if thread is None:
                return
            for each in (*selection.led, *selection.strays):
                if address.checkpoint_ns:  # it has led to a checkpoint there, and not yet to one of the graphs around
                    thread.remove_from_tasks(each)
                    thread.remove_from_namespaces(each, [address.checkpoint_ns])
                else:
                    thread.remove(each)
            if not address.checkpoint_ns:
                others = [each for each in thread.by_ns.get("", {}).values() if each.run is not run]
                for each in others:
                    if each.is_stored or each.is_guessed:  # it stays where it is stored
                        thread.remove(each)
            if not thread.by_ns:
                del self._threads[address.thread_id]

    def forget_run(self, thread_id: str, run: object) -> Sequence[WaitingRecord]:
        """Forget the records of a run that was refused, and return them: they lead nowhere."""
        with self._lock:
            thread = self._threads.get(thread_id)
            if thread is None:
                return ()
            records = [each for each in thread.all() if each.run is run]
            for each in records:
                thread.remove(each)
            if not thread.by_ns:
                del self._threads[thread_id]
            return records

    def forget_thread(self, thread_id: str, removed: Collection[str | None] = frozenset()) -> None:
        """Forget what waits of a thread, or of some of its checkpoints, that are deleted.

        Another thread may have this name some day, and another run go on from the checkpoint before.
        """
        with self._lock:
            thread = self._threads.pop(thread_id, None)
            if thread is None or not removed:
                return
            for each in thread.all():
                if not set(removed) & set(each.lineage.values()):
                    self._threads.setdefault(thread_id, _ThreadRecords()).add(each)
