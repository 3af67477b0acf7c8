"""What a process has captured of model calls, and what each thread was written with so far.

What is not stored yet waits in `core.waiting`. Here it becomes what a checkpoint takes along: the records that led to
it, the names of their models, and what the thread was written with, it included (`core.drift`).

Records of model calls that are not stored yet: which task they go with, and which checkpoint they lead to.

A call ends before its task's writes are put, and those and the checkpoint of the step come in any order. So a record
waits here for whichever comes first, and goes with it: no round trip is ever made for it. It leads to the next
checkpoint of its own run in the innermost namespace that is stored. Ids are ordered in time, so that is the first one
younger than what the call began from; with `durability="exit"`, where those between never reach the saver, the run's
last one. What a run leaves behind (it was cancelled, or refused) goes with the thread's next checkpoint as a stray, and
is shown where it began.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from threading import Lock
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from langgraph_keel._langgraph import ERROR
from langgraph_keel.engine.config import address_of, run_of
from langgraph_keel.engine.headers import Header
from langgraph_keel.engine.hooks import Copy, Hook, Leaving, Put, Reading, Travel, Writes
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Address, ThreadInfo
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import DriftDetected, DriftWarning
from langgraph_keel.provenance.carryover import carry, copy_carried, drop, hand_on
from langgraph_keel.provenance.drift import GRAPH_VERSION, MARK, Change, DriftReport, Known, followed
from langgraph_keel.provenance.records import ModelCall, Record, names_of, packed, unpacked_all

WAITING_THREADS = 1000
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


NOTHING_TAKEN = Taken()

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
            if len(self._threads) > WAITING_THREADS:
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
            return NOTHING_TAKEN
        with self._lock:
            thread = self._threads.get(address.thread_id)
            group = thread.before(address) if thread else []
        if not group:
            return NOTHING_TAKEN
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


OnDrift: TypeAlias = Literal["ignore", "warn", "raise"]

THREADS = 5000
"""Most threads, and runs, of which it is remembered what they were written with."""
CHECKPOINTS = 8
"""Most checkpoints of one thread of which that is remembered: those that runs are at, and some."""
UNFINISHED = 1000
"""Most checkpoints of which the calls of unfinished tasks are remembered."""
REFUSED = DriftDetected.__name__
"""The error of a call that was answered by what the thread must not go on with."""

NOTHING = Known()

_recorders: WeakSet[Recorder] = WeakSet()
_moments = count(1)


def _after_fork() -> None:
    # Another thread of the parent may have held the lock; and what waits here is the parent's to store.
    for recorder in list(_recorders):
        recorder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(slots=True)
class Account:
    """What a checkpoint that is about to be put takes along.

    Attributes:
        about: For its header.
        marks: For its metadata.
        drift: What has changed since the checkpoint it continues; `None` if nothing has.
        known: What its thread was written with, it included; `None` if nothing is known.
        taken: The records that go with it.
        run: The run that puts it.
    """

    about: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)
    drift: DriftReport | None = None
    known: Known | None = None
    taken: Taken = NOTHING_TAKEN
    run: object = None


class Recorder(Hook):
    """The records of one saver, shared by its copies. Any thread may call.

    Args:
        versions: The versions of the packages that the graph runs on.
        graph_version: The application's own version.
        on_drift: What to do where a thread goes on with something else than what it was written with.
        captures: Whether calls are captured; if not, what is known of a thread is carried on all the same.
    """

    def __init__(
        self,
        versions: Mapping[str, str],
        graph_version: str | None = None,
        on_drift: OnDrift = "warn",
        captures: bool = True,
    ) -> None:
        self.versions = {**versions, GRAPH_VERSION: graph_version} if graph_version else dict(versions)
        self.graph_version = graph_version
        self.on_drift = on_drift
        self.captures = captures
        self.forget()
        _recorders.add(self)

    def forget(self) -> None:
        """Forget everything that waits."""
        self._lock = Lock()
        self.waits = Waiting()
        self._known: OrderedDict[str, OrderedDict[str, Known]] = OrderedDict()
        self._of_runs: OrderedDict[int, tuple[object, Known]] = OrderedDict()
        self._unfinished: OrderedDict[Address, list[Record]] = OrderedDict()
        self._seen: OrderedDict[str, tuple[int, object]] = OrderedDict()

    def forget_thread(self, thread_id: str, gone: Collection[str | None] = frozenset()) -> None:
        """Forget what is known of a thread, or what waits of some checkpoints of it, that are deleted."""
        self.waits.forget_thread(thread_id, gone)
        with self._lock:
            self._known.pop(thread_id, None)
            for address in [address for address in self._unfinished if address.thread_id == thread_id]:
                del self._unfinished[address]

    # -- what the saver's verbs tell ---------------------------------------------------------------------------

    def begin(self, session: Session, reading: Reading) -> Plan[Any, Any, None]:
        """Note that a run begins."""
        self.saw(reading.address.thread_id, run_of(reading.config))
        yield from ()

    def read(self, session: Session, reading: Reading) -> Plan[Any, Any, None]:
        """Learn what a checkpoint says from which a run begins.

        Raises:
            DriftDetected: A run begins from it, of other versions, and the saver was told to raise. LangGraph would
                notice the refusal of its first checkpoint only when it has run further, to the end of the run perhaps.
        """
        yield from ()
        if not (reading.beside or reading.about) or reading.result is None:
            return
        address, run = address_of(reading.result.config), run_of(reading.config)
        known = self.learn(address, reading.about, reading.beside)
        found = followed(known, [], self._versions(known))[1] if run is not None and self.on_drift == "raise" else []
        if found:
            raise DriftDetected(DriftReport(address.thread_id, tuple(found)))

    def draft_put(self, session: Session, put: Put) -> Plan[Any, Any, None]:
        """Add to a checkpoint what it takes along.

        Raises:
            DriftDetected: See `judge`.
        """
        yield from ()
        account = self.of_entry(put.address, put.parent.checkpoint_id, put.source, run_of(put.config))
        self.judge(account, put.source)
        put.header.metadata.update(account.marks)
        put.header.about.update(account.about)
        put.notes[self] = account

    def after_put(self, session: Session, put: Put) -> Plan[Any, Any, None]:
        """Note that a checkpoint is stored with what it took along."""
        yield from ()
        self.stored(put.address, put.notes[self])

    def draft_writes(self, session: Session, writes: Writes) -> Plan[Any, Any, None]:
        """Add the records of a task to what it has written.

        Raises:
            DriftDetected: See `of_task`.
        """
        yield from ()
        run = run_of(writes.config)
        captured = self.of_task(writes.address.thread_id, writes.task_id, run, writes.writes)
        if captured:
            writes.beside += [each.record for each in captured]
            writes.notes[self] = captured

    def after_writes(self, session: Session, writes: Writes) -> Plan[Any, Any, None]:
        """Note that the records of a task stand among its writes."""
        yield from ()
        if self in writes.notes:
            self.waits.written(writes.notes[self])

    def after_travel(self, session: Session, travel: Travel) -> Plan[Any, Any, None]:
        """Learn of a twin what is true of the thread there."""
        yield from ()
        if travel.twin is not None and travel.about:
            self.learn(travel.twin, travel.about, ())

    def after_copy(self, session: Session, copy: Copy) -> Plan[Any, Any, None]:
        """Copy what prunes have carried, of a fork that of its way: see `carryover`."""
        if copy.graph is None:
            yield from copy_carried(session, copy.source, copy.target)
        else:
            names = [node.address.checkpoint_id for node in copy.graph.nodes if not node.address.checkpoint_ns]
            yield from hand_on(session, copy.source, copy.target, names)

    def before_remove(self, session: Session, leaving: Leaving) -> Plan[Any, Any, None]:
        """Carry on the records that led to what stays; remove those of runs that go."""
        if leaving.run_ids:
            yield from drop(session, leaving.thread_id, leaving.run_ids, leaving.moments, leaving.kept)
        else:
            yield from carry(session, leaving.thread_id, leaving.moments, leaving.kept)

    def after_remove(self, session: Session, leaving: Leaving) -> Plan[Any, Any, None]:
        """Forget what waits of checkpoints that are gone."""
        yield from ()
        if leaving.removed:
            ids = {node.address.checkpoint_id for node, _ in leaving.moments if node.stamp in leaving.removed}
            self.forget_thread(leaving.thread_id, ids)

    def before_delete(self, session: Session, thread_id: str) -> Plan[Any, Any, None]:
        """Forget a thread."""
        yield from ()
        self.forget_thread(thread_id)

    def find_terms(self, header: Header) -> Mapping[str, Collection[Any]]:
        """Let a filter ask for the models that led to a checkpoint: `filter={"model": "gpt-5"}`."""
        return {"model": models_of(header.about)}

    def describe_thread(self, info: ThreadInfo, header: Header) -> ThreadInfo:
        """Say which models wrote a thread."""
        return replace(info, models=tuple(sorted(known_models(header.about))))

    # -- capture -----------------------------------------------------------------------------------------------

    def capture(self, captured: Captured) -> None:
        """Take a record of a call that begins."""
        self.waits.add(captured)

    def end(self, captured: Captured) -> None:
        """Note that a call is over, and its record complete.

        Raises:
            DriftDetected: The thread was not written with what has answered, and the saver was told to raise. So the
                node fails that has called, before anything acts on the answer.
        """
        found = self._refused(captured) if self.on_drift == "raise" else []
        if found:
            captured.record["error"], captured.refused = REFUSED, found
        captured.is_ended = True
        if found:
            raise DriftDetected(DriftReport(captured.thread_id, tuple(found)))

    def _refused(self, captured: Captured) -> list[Change]:
        known = self._known_at(captured.thread_id, captured.lineage.get(""), captured.run)
        return followed(known, [captured.record], {})[1]

    def waiting(self, thread_id: str) -> list[ModelCall]:
        """Return the records of a thread that stand nowhere yet."""
        return unpacked_all(self.waits.unstored(thread_id))

    def saw(self, thread_id: str, run: object) -> None:
        """Note that a run of a thread has read or put something; `None` is no run."""
        if run is not None and self.captures:
            with self._lock:
                self._seen[thread_id] = next(_moments), run
                _trim(self._seen, thread_id, THREADS)

    def seen(self, thread_id: str) -> tuple[int, object]:
        """Return when a run of a thread was last seen, in an order of all savers', and which; 0 if none was."""
        return self._seen.get(thread_id, (0, None))

    def of_task(
        self, thread_id: str, task_id: str, run: object, writes: Iterable[tuple[str, Any]]
    ) -> Sequence[Captured]:
        """Return the records that go with a task's writes.

        Raises:
            DriftDetected: See `_check_swallowed`.
        """
        captured = self.waits.of_task(thread_id, task_id, run)
        if captured and ERROR not in (channel for channel, _ in writes):
            _check_swallowed(captured)
        return captured

    # -- with a checkpoint -------------------------------------------------------------------------------------

    def of_entry(self, address: Address, parent: str | None, source: object, run: object) -> Account:
        """Return what a checkpoint takes along. Nothing changes until `stored` is called with it.

        Args:
            address: Where it will be.
            parent: The id of the checkpoint it continues.
            source: Its metadata's `source`.
            run: The run that puts it (`waiting.run_of`).
        """
        self.saw(address.thread_id, run)
        taken = self.waits.of_entry(address, source, run)
        is_step = source == "loop" and self._unfinished
        earlier = self._unfinished.get(replace_id(address, parent), ()) if is_step else ()
        is_root = not address.checkpoint_ns
        if taken is NOTHING_TAKEN and not earlier and not (is_root and self._knows(address.thread_id, run)):
            return Account(marks=self._marks() if is_root else {}, run=run)
        headed = {each.record["id"]: each.record for each in taken.headed}
        records = [*(record for record in earlier if record["id"] not in headed), *headed.values()]
        about: dict[str, Any] = {"calls": records} if records else {}
        if taken.strays:
            about["strays"] = [_stray(each) for each in taken.strays]
        if not is_root:
            return Account(about, taken=taken, run=run)
        new = {record["id"]: record for record in [*records, *(each.record for each in taken.counted)]}
        account = Account(about, self._marks(), taken=taken, run=run)
        return self._account(account, address, parent, source, list(new.values()))

    def _marks(self) -> dict[str, Any]:
        return {GRAPH_VERSION: self.graph_version} if self.graph_version else {}

    def _account(
        self, account: Account, address: Address, parent: str | None, source: object, new: Sequence[Record]
    ) -> Account:
        if new and (names := set().union(*map(names_of, new))):
            account.about["models"] = sorted(names)
        before = self._known_at(address.thread_id, parent, account.run)
        known, found = followed(before, new, self._versions(before))
        if known.nodes:
            self._remember_run(account.run, known)
            account.known, account.about["known"] = known, known.packed()
        if account.about and parent is None:  # else nobody could tell it from one whose ancestors were pruned
            account.about["first"] = True
        if found and self.on_drift != "ignore":
            account.marks[MARK] = [str(change) for change in found]
            account.drift = DriftReport(address.thread_id, tuple(found))
        return account

    def _versions(self, before: Known) -> Mapping[str, str]:
        if not self.captures:
            return {}
        is_given_up = GRAPH_VERSION in before.versions and not self.graph_version
        return {**self.versions, GRAPH_VERSION: ""} if is_given_up else self.versions

    def judge(self, account: Account, source: object) -> None:
        """Say that something has changed, as the saver was told to; what a person puts (`update_state`) is marked only.

        Raises:
            DriftDetected: It was told to raise.
        """
        if account.taken.counted:
            _check_swallowed(account.taken.counted)
        if account.drift is None or source not in ("input", "loop"):
            return
        if self.on_drift == "raise":
            raise DriftDetected(account.drift)
        warnings.warn(DriftWarning(account.drift), stacklevel=2)

    def stored(self, address: Address, account: Account) -> None:
        """Note that a checkpoint is stored with what it took along."""
        self.waits.stored(address, account.taken, account.run)
        if account.known is not None:
            self._remember(address, account.known)

    # -- what a thread was written with ------------------------------------------------------------------------

    def learn(self, address: Address, about: Mapping[str, Any], calls: Iterable[Any]) -> Known:
        """Remember what a checkpoint that was read says: what it was written with, and calls not yet led anywhere."""
        records = [packed(call) for stored in calls for call in unpacked_all(stored)]  # what fits a record of today
        if records:
            with self._lock:
                self._unfinished[address] = records
                _trim(self._unfinished, address, UNFINISHED)
        if "known" in about and not address.checkpoint_ns:
            known = Known.unpacked(about["known"])
            self._remember(address, known)
            return known
        return NOTHING

    def _remember(self, address: Address, known: Known) -> None:
        with self._lock:
            checkpoints = self._known.setdefault(address.thread_id, OrderedDict())
            checkpoints[str(address.checkpoint_id)] = known
            _trim(checkpoints, str(address.checkpoint_id), CHECKPOINTS)
            _trim(self._known, address.thread_id, THREADS)

    def _remember_run(self, run: object, known: Known) -> None:
        with self._lock:
            self._of_runs[id(run)] = run, known  # which keeps the run alive, so that its address stays its own
            _trim(self._of_runs, id(run), THREADS)

    def _knows(self, thread_id: str, run: object) -> bool:
        return thread_id in self._known or id(run) in self._of_runs

    def _known_at(self, thread_id: str, checkpoint_id: str | None, run: object) -> Known:
        """Return what is known at a checkpoint; of one that is not stored (yet), its run knows, or the one before."""
        if checkpoint_id is None or not self._knows(thread_id, run):
            return NOTHING
        with self._lock:
            checkpoints: Mapping[str, Known] = self._known.get(thread_id, {})
            if checkpoint_id in checkpoints:
                return checkpoints[checkpoint_id]
            if run is not None and id(run) in self._of_runs:
                return self._of_runs[id(run)][1]
            before = [each for each in checkpoints if each < checkpoint_id]
            return checkpoints[max(before)] if before else NOTHING


def last_seen(thread_id: str) -> tuple[Recorder, object] | None:
    """Return the saver on which a thread was last seen to run in this process, and which run that was."""
    found = [(*recorder.seen(thread_id), recorder) for recorder in list(_recorders)]
    moment, run, recorder = max(found, key=lambda each: each[0], default=(0, None, None))
    return (recorder, run) if moment and recorder else None


def replace_id(address: Address, checkpoint_id: str | None) -> Address:
    """Return the address of another checkpoint of the same namespace."""
    return Address(address.thread_id, address.checkpoint_ns, checkpoint_id)


def _check_swallowed(captured: Sequence[Captured]) -> None:
    """Refuse what somebody made of a refusal who has caught it, such as a middleware that tries again.

    Raises:
        DriftDetected: Once more.
    """
    changes = [change for each in captured for change in each.refused]
    if changes:
        raise DriftDetected(DriftReport(captured[0].thread_id, tuple(dict.fromkeys(changes))))


def _stray(each: Captured) -> list[Any]:
    record = each.record if each.is_ended else {**each.record, "error": "Unfinished"}
    return [dict(each.lineage), record]


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
    return set(Known.unpacked(about["known"]).names) if "known" in about else set()
