"""Records of model calls that are not stored yet: which task they go with, and which checkpoint they lead to.

A call ends before its task's writes are put, and those and the checkpoint of the step come in any order. So a record
waits here for whichever comes first, and goes with it: no round trip is ever made for it. It leads to the next
checkpoint of its own run in the innermost namespace that is stored. Ids are ordered in time, so that is the first one
younger than what the call began from; with `durability="exit"`, where those between never reach the saver, the run's
last one. What a run leaves behind (it was cancelled, or refused) goes with the thread's next checkpoint as a stray, and
is shown where it began.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from threading import Lock
from typing import Any

from langgraph_keel.core.provenance import Record
from langgraph_keel.core.records import Address

THREADS = 1000
"""Most threads of which records wait that stand somewhere already; those that stand nowhere are kept."""
_LOOKED_AT = 100

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Captured:
    """A record that waits.

    Attributes:
        record: The record.
        thread_id: The thread of the call.
        lineage: Per namespace around the call, the id of the checkpoint that its step began from.
        tasks: The ids of its task and of those around it.
        run: What tells the run from all others; `None` where LangGraph does not.
        is_guessed: Whether another run may have called: the one that writes the task did.
        is_ended: Whether the call is over, and the record complete.
        is_written: Whether it stands among a task's writes.
        is_headed: Whether it stands in the header of a checkpoint.
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
    is_headed: bool = False
    call: object = None
    refused: Sequence[Any] = ()

    @property
    def is_stored(self) -> bool:
        """Whether it stands anywhere."""
        return self.is_written or self.is_headed


@dataclass(frozen=True, slots=True)
class Taken:
    """What goes with a checkpoint.

    Attributes:
        headed: The records that led to it and stand in no header yet.
        counted: Those that led to it, wherever they stand.
        strays: Those that other runs have left behind.
    """

    headed: Sequence[Captured] = ()
    counted: Sequence[Captured] = ()
    strays: Sequence[Captured] = ()


NOTHING = Taken()

Group = dict[int, Captured]


@dataclass(slots=True)
class _Thread:
    by_task: defaultdict[str, Group] = field(default_factory=lambda: defaultdict(dict))
    by_ns: defaultdict[str, Group] = field(default_factory=lambda: defaultdict(dict))

    def add(self, each: Captured) -> None:
        for task in each.tasks:
            self.by_task[task][id(each)] = each
        for namespace in each.lineage:
            self.by_ns[namespace][id(each)] = each

    def all(self) -> Collection[Captured]:
        return {key: each for group in self.by_ns.values() for key, each in group.items()}.values()

    def before(self, address: Address) -> list[Captured]:
        """Return what began before a checkpoint. Puts may be thousands of steps late: none after it is looked at."""
        namespace, own = address.checkpoint_ns, str(address.checkpoint_id)
        group = self.by_ns.get(namespace, {}).values()
        return list(takewhile(lambda each: each.lineage[namespace] < own, group))

    def leave_tasks(self, each: Captured) -> None:
        _leave(self.by_task, each.tasks, each)

    def leave(self, each: Captured) -> None:
        _leave(self.by_task, each.tasks, each)
        _leave(self.by_ns, each.lineage, each)


def _leave(groups: dict[str, Group], names: Iterable[str], each: Captured) -> None:
    for name in names:
        group = groups.get(name, {})
        group.pop(id(each), None)
        if not group:
            groups.pop(name, None)


class Waiting:
    """The records of one saver that wait. Any thread may call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads: OrderedDict[str, _Thread] = OrderedDict()

    def __len__(self) -> int:
        """Count the threads of which records wait."""
        return len(self._threads)

    def add(self, each: Captured) -> None:
        """Take a record of a call that has begun, or is over."""
        with self._lock:
            if each.thread_id not in self._threads:
                self._threads[each.thread_id] = _Thread()
            self._threads[each.thread_id].add(each)
            self._threads.move_to_end(each.thread_id)
            if len(self._threads) > THREADS:
                self._let_go()

    def _let_go(self) -> None:
        """Forget the thread that was used least lately, of those of which everything stands somewhere."""
        for thread_id in list(self._threads)[:_LOOKED_AT]:
            if all(each.is_stored for each in self._threads[thread_id].all()):
                del self._threads[thread_id]
                return

    def unstored(self, thread_id: str) -> list[Record]:
        """Return the records of calls that are over and stand nowhere yet."""
        with self._lock:
            thread = self._threads.get(thread_id)
            waiting = (
                {} if thread is None else {key: each for group in thread.by_ns.values() for key, each in group.items()}
            )
            return [each.record for each in waiting.values() if each.is_ended and not each.is_stored]

    def of_task(self, thread_id: str, task_id: str, run: object) -> Sequence[Captured]:
        """Return the records of a task, and of what it has called, that stand nowhere yet."""
        if thread_id not in self._threads:
            return ()
        with self._lock:
            thread = self._threads.get(thread_id)
            group = thread.by_task.get(task_id, {}) if thread else {}
            for each in group.values():
                each.run, each.is_guessed = run if each.is_guessed else each.run, False
            return [each for each in group.values() if each.is_ended and each.run is run and not each.is_stored]

    def written(self, taken: Iterable[Captured]) -> None:
        """Note that these stand among the writes of a task."""
        with self._lock:
            for each in taken:
                each.is_written = True
                if thread := self._threads.get(each.thread_id):
                    thread.leave_tasks(each)

    def of_entry(self, address: Address, source: object, run: object) -> Taken:
        """Return what goes with a checkpoint; only the steps of a run (`source="loop"`) are led to by calls."""
        if address.thread_id not in self._threads:
            return NOTHING
        with self._lock:
            thread = self._threads.get(address.thread_id)
            group = thread.before(address) if thread else []
        if not group:
            return NOTHING
        led = [each for each in group if each.is_ended and each.run is run] if source == "loop" else []
        others = [] if address.checkpoint_ns else [each for each in group if each.run is not run]
        left = [each for each in others if not each.is_stored and not each.is_guessed]
        return Taken([each for each in led if not each.is_headed], led, left)

    def stored(self, address: Address, taken: Taken, run: object) -> None:
        """Note that a checkpoint is stored with what it took along."""
        if address.thread_id not in self._threads and not taken.headed and not taken.strays:
            return
        with self._lock:
            thread = self._threads.get(address.thread_id)
            for each in (*taken.headed, *taken.strays):
                each.is_headed = True
            if thread is None:
                return
            for each in (*taken.counted, *taken.strays):
                self._settle(thread, address, each)
            if not address.checkpoint_ns:  # of other runs, what stands somewhere stays there
                for each in [
                    e for e in thread.by_ns.get("", {}).values() if e.run is not run and (e.is_stored or e.is_guessed)
                ]:
                    thread.leave(each)
            if not thread.by_ns:
                del self._threads[address.thread_id]

    def _settle(self, thread: _Thread, address: Address, each: Captured) -> None:
        if address.checkpoint_ns:
            thread.leave_tasks(each)
            _leave(thread.by_ns, [address.checkpoint_ns], each)
        else:
            thread.leave(each)

    def forget_thread(self, thread_id: str, gone: Collection[str | None] = frozenset()) -> None:
        """Forget what waits of a thread, or of some checkpoints of it, that are deleted.

        Another thread may have this name some day, and another run go on from the checkpoint before.
        """
        with self._lock:
            thread = self._threads.pop(thread_id, None)
            if thread is None or not gone:
                return
            for each in [each for each in thread.all() if not set(gone) & set(each.lineage.values())]:
                self._threads.setdefault(thread_id, _Thread()).add(each)


def run_of(config: Mapping[str, Any]) -> object:
    """Return what tells the run behind a config from all others, subgraphs and tasks included; `None` if nothing does.

    LangGraph makes one `RunControl` for each run (since 1.2), which all its configs share.
    """
    values = config.get("configurable") or {}
    return getattr(values.get("__pregel_runtime"), "control", None)
