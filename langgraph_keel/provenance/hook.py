"""The hook that stores model calls with their checkpoints, and detects drift.

A record waits for its task's writes or its checkpoint, and is stored with the first of them, so it costs no round trip.
Fingerprints are remembered for a limited number of threads; drift in other threads is not detected.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import count, takewhile
from threading import Lock
from typing import Any, Literal, TypeAlias, TypeVar
from weakref import WeakSet

from langgraph_keel._langgraph import ERROR, NULL_TASK_ID
from langgraph_keel.engine.config import Address, address_of, run_of
from langgraph_keel.engine.entries import Header, pack_batch
from langgraph_keel.engine.events import Copy, Leaving, Put, Reading, Travel, Writes
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import ThreadInfo
from langgraph_keel.engine.runs import find_runs
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CheckpointConflict, DriftDetected, DriftWarning, StoreError
from langgraph_keel.provenance.carryover import CARRYOVERS, carry, copy_carryovers, drop_runs
from langgraph_keel.provenance.drift import GRAPH_VERSION, MARK, Change, DriftReport, Fingerprint, update_fingerprint
from langgraph_keel.provenance.reading import models_of
from langgraph_keel.provenance.records import ModelCall, Record, names_of, pack_call, pack_refusal, unpack_calls

OnDrift: TypeAlias = Literal["ignore", "warn", "raise"]

REFUSED = DriftDetected.__name__
"""The error of a call whose answer the thread must not use."""

_log = logging.getLogger(__name__)
_recorders: WeakSet[Recorder] = WeakSet()

WAITING_THREADS = 1000
"""Maximum threads with waiting stored records; unstored ones are never dropped."""
_EXAMINED = 100

THREADS = 5000
"""Maximum threads, and runs, that are remembered."""
CHECKPOINTS = 8
"""Maximum fingerprints remembered per thread: those of its runs, and some others."""
UNFINISHED = 1000
"""Maximum checkpoints whose calls of unfinished tasks are remembered."""

UNKNOWN = Fingerprint()

K = TypeVar("K")
T = TypeVar("T")

# Read on import: creating a saver in a running loop must not wait for a disk.
PACKAGE_VERSIONS: Mapping[str, str] = {name: version(name) for name in ("langgraph", "langchain-core")}
"""The versions of the packages that every graph runs on."""


def _after_fork() -> None:
    # Another thread of the parent may have held a lock; and the parent stores the waiting records.
    for recorder in list(_recorders):
        recorder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# -- waiting records ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class WaitingRecord:
    """A record that waits for the checkpoint to which its call leads."""

    # That is the run's next checkpoint in the innermost stored namespace. Ids are ordered by time, so it is the first
    # one younger than the checkpoint from which the call started.
    record: Record
    thread_id: str
    lineage: Mapping[str, str]  # per namespace around the call: id of the checkpoint from which its step started
    tasks: Collection[str]  # the ids of its task and of the tasks around it
    run: object = None  # as returned by `run_of`; `None` if LangGraph does not identify the run
    is_guessed: bool = False  # `run` is a guess: it is replaced with the run that writes the task
    is_ended: bool = True
    is_written: bool = False  # among a task's writes
    is_in_header: bool = False
    call: object = None  # completes the record when the call ends; kept alive as long as the record waits
    refused: Sequence[Change] = ()  # why the thread must not continue from its answer

    @property
    def is_stored(self) -> bool:
        """Whether it is stored among writes or in a header."""
        return self.is_written or self.is_in_header


def check_refusals(records: Sequence[WaitingRecord]) -> None:
    """Raise `DriftDetected` again if a record was refused."""
    # A middleware that retries may have caught the first error.
    changes = [change for each in records for change in each.refused]
    if changes:
        raise DriftDetected(DriftReport(records[0].thread_id, tuple(dict.fromkeys(changes))))


@dataclass(frozen=True, slots=True)
class Selection:
    """The records to store with a checkpoint."""

    led: Sequence[WaitingRecord] = ()  # those that led to it, stored or not
    new: Sequence[WaitingRecord] = ()  # those of them that are not in a header yet
    strays: Sequence[WaitingRecord] = ()  # those that cancelled runs left behind


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
        """Return the records that started before a checkpoint."""
        # Stops at the first later record: a checkpoint may be stored thousands of steps late.
        namespace, own = address.checkpoint_ns, str(address.checkpoint_id)
        group = self.by_ns.get(namespace, {}).values()
        return list(takewhile(lambda each: each.lineage[namespace] < own, group))

    def remove(self, each: WaitingRecord, namespaces: Iterable[str] | None = None) -> None:
        """Remove a record from its tasks, and from the given namespaces (default: all)."""
        spaces = each.lineage if namespaces is None else namespaces
        for groups, names in (self.by_task, each.tasks), (self.by_ns, spaces):
            for name in names:
                group = groups.get(name, {})
                group.pop(id(each), None)
                if not group:
                    groups.pop(name, None)


class WaitingRecords:
    """The waiting records of one saver; thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads: OrderedDict[str, _ThreadRecords] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of threads with waiting records."""
        return len(self._threads)

    def add(self, each: WaitingRecord) -> None:
        """Add the record of a call that has started or ended."""
        with self._lock:
            if each.thread_id not in self._threads:
                self._threads[each.thread_id] = _ThreadRecords()
            self._threads[each.thread_id].add(each)
            self._threads.move_to_end(each.thread_id)
            if len(self._threads) <= WAITING_THREADS:
                return
            for thread_id in list(self._threads)[:_EXAMINED]:  # least recently used first
                if all(record.is_stored for record in self._threads[thread_id].all()):
                    del self._threads[thread_id]
                    break

    def find_unstored(self, thread_id: str) -> list[Record]:
        """Return the unstored records of finished calls."""
        with self._lock:
            thread = self._threads.get(thread_id)
            waiting = thread.all() if thread else ()
            return [each.record for each in waiting if each.is_ended and not each.is_stored]

    # -- with the writes of a task -----------------------------------------------------------------------------

    def select_for_task(self, thread_id: str, task_id: str, run: object) -> Sequence[WaitingRecord]:
        """Return the unstored records of a task and of its nested tasks."""
        if thread_id not in self._threads:
            return ()
        with self._lock:
            thread = self._threads.get(thread_id)
            group = thread.by_task.get(task_id, {}) if thread else {}
            for each in group.values():
                each.run, each.is_guessed = run if each.is_guessed else each.run, False
            return [each for each in group.values() if each.is_ended and each.run is run and not each.is_stored]

    def mark_written(self, records: Iterable[WaitingRecord]) -> None:
        """Mark records as stored among the writes of a task."""
        with self._lock:
            for each in records:
                each.is_written = True
                if thread := self._threads.get(each.thread_id):
                    thread.remove(each, ())

    # -- with a checkpoint -------------------------------------------------------------------------------------

    def select_for_entry(self, address: Address, source: object, run: object) -> Selection:
        """Select the records to store with a checkpoint."""
        # Calls lead only to the steps of a run (`source="loop"`).
        if address.thread_id not in self._threads:
            return NOTHING_SELECTED
        with self._lock:
            thread = self._threads.get(address.thread_id)
            group = thread.find_before(address) if thread else []
        if not group:
            return NOTHING_SELECTED
        led = [each for each in group if each.is_ended and each.run is run] if source == "loop" else []
        others = [] if address.checkpoint_ns else [each for each in group if each.run is not run]
        # The calls of an active run may still lead to a checkpoint, or be refused.
        strays = [each for each in others if not each.is_stored and not each.is_guessed and not find_runs(each.run)]
        return Selection(led, [each for each in led if not each.is_in_header], strays)

    def mark_stored(self, address: Address, selection: Selection, run: object) -> None:
        """Mark the records selected for a checkpoint as stored with it."""
        if address.thread_id not in self._threads and not selection.new and not selection.strays:
            return
        with self._lock:
            for each in (*selection.new, *selection.strays):
                each.is_in_header = True
            thread = self._threads.get(address.thread_id)
            if thread is None:
                return
            for each in (*selection.led, *selection.strays):
                # A record stored in a subgraph's namespace still waits for checkpoints of the graphs around it.
                thread.remove(each, [address.checkpoint_ns] if address.checkpoint_ns else None)
            if not address.checkpoint_ns:
                others = [each for each in thread.by_ns.get("", {}).values() if each.run is not run]
                for each in others:
                    if each.is_stored or each.is_guessed:  # the stored copy is enough
                        thread.remove(each)
            if not thread.by_ns:
                del self._threads[address.thread_id]

    def forget_run(self, thread_id: str, run: object) -> Sequence[WaitingRecord]:
        """Remove and return the records of a refused run."""
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
        """Forget the records of a deleted thread, or of some deleted checkpoints of it."""
        with self._lock:
            thread = self._threads.pop(thread_id, None)
            if thread is None or not removed:
                return
            for each in thread.all():
                if not set(removed) & set(each.lineage.values()):
                    self._threads.setdefault(thread_id, _ThreadRecords()).add(each)


# -- remembered threads ------------------------------------------------------------------------------------------------


_order = count(1)  # shared by the runs of all savers


class KnownThreads:
    """Remembers fingerprints, unfinished tasks and last runs of threads; thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._fingerprints: OrderedDict[str, OrderedDict[str, Fingerprint]] = OrderedDict()
        self._of_runs: OrderedDict[int, tuple[object, Fingerprint]] = OrderedDict()
        self._unfinished: OrderedDict[Address, Sequence[Record]] = OrderedDict()
        self._last_runs: OrderedDict[str, tuple[int, object]] = OrderedDict()

    def forget_thread(self, thread_id: str) -> None:
        """Forget a thread's fingerprints and unfinished tasks."""
        with self._lock:
            self._fingerprints.pop(thread_id, None)
            for address in [address for address in self._unfinished if address.thread_id == thread_id]:
                del self._unfinished[address]

    # -- fingerprints ------------------------------------------------------------------------------------------

    def remember(self, address: Address, fingerprint: Fingerprint) -> None:
        """Remember the fingerprint of a thread up to a root checkpoint."""
        with self._lock:
            checkpoints = self._fingerprints.setdefault(address.thread_id, OrderedDict())
            _keep(checkpoints, str(address.checkpoint_id), fingerprint, CHECKPOINTS)
            _keep(self._fingerprints, address.thread_id, checkpoints, THREADS)

    def remember_run(self, run: object, fingerprint: Fingerprint) -> None:
        """Remember the fingerprint of a run's thread up to the run's current position."""
        with self._lock:
            # The run is kept alive, so that no other run gets its address.
            _keep(self._of_runs, id(run), (run, fingerprint), THREADS)

    def has_fingerprint(self, thread_id: str, run: object) -> bool:
        """Return whether a fingerprint of a thread or a run is remembered."""
        return thread_id in self._fingerprints or id(run) in self._of_runs

    def find_fingerprint(self, thread_id: str, checkpoint_id: str | None, run: object) -> Fingerprint:
        """Return the fingerprint of a checkpoint, its run, or the last checkpoint before."""
        if checkpoint_id is None or not self.has_fingerprint(thread_id, run):
            return UNKNOWN
        with self._lock:
            checkpoints: Mapping[str, Fingerprint] = self._fingerprints.get(thread_id, {})
            if checkpoint_id in checkpoints:
                return checkpoints[checkpoint_id]
            if run is not None and id(run) in self._of_runs:
                return self._of_runs[id(run)][1]
            before = [each for each in checkpoints if each < checkpoint_id]
            return checkpoints[max(before)] if before else UNKNOWN

    # -- unfinished tasks --------------------------------------------------------------------------------------

    def remember_unfinished(self, address: Address, records: Sequence[Record]) -> None:
        """Remember the calls of tasks in the unfinished step after a checkpoint."""
        with self._lock:
            _keep(self._unfinished, address, records, UNFINISHED)

    def find_unfinished(self, address: Address) -> Sequence[Record]:
        """Return the calls of tasks in the unfinished step after a checkpoint."""
        return self._unfinished.get(address, ()) if self._unfinished else ()

    # -- runs --------------------------------------------------------------------------------------------------

    def see_run(self, thread_id: str, run: object) -> None:
        """Note that a run has accessed a thread."""
        with self._lock:
            _keep(self._last_runs, thread_id, (next(_order), run), THREADS)

    def last_run(self, thread_id: str) -> tuple[int, object]:
        """Return the number and the run of a thread's last access; `(0, None)` if none."""
        return self._last_runs.get(thread_id, (0, None))


def _keep(kept: OrderedDict[K, T], key: K, value: T, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)


# -- the hook ----------------------------------------------------------------------------------------------------------


class Recorder(Hook):
    """Records the model calls of one saver and its copies.

    Without `captures` no calls are recorded, but fingerprints are still passed on to new checkpoints.
    """

    tables = (CARRYOVERS,)

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
        """Forget everything."""
        self.waiting = WaitingRecords()
        self.known = KnownThreads()

    # -- model calls (`capture`) -------------------------------------------------------------------------------

    def end(self, waiting: WaitingRecord) -> None:
        """Note that a call has ended and its record is complete."""
        if self.on_drift == "raise":
            before = self.known.find_fingerprint(waiting.thread_id, waiting.lineage.get(""), waiting.run)
            waiting.refused = update_fingerprint(before, [waiting.record], {})[1]
        if waiting.refused:
            waiting.record["error"] = REFUSED
        waiting.is_ended = True
        check_refusals([waiting])

    def find_waiting(self, thread_id: str) -> list[ModelCall]:
        """Return the unstored calls of a thread."""
        return [replace(call, thread_id=thread_id) for call in unpack_calls(self.waiting.find_unstored(thread_id))]

    # -- reading -----------------------------------------------------------------------------------------------

    def begin(self, session: Session, reading: Reading) -> None:
        """Note that a run starts."""
        self._see_run(reading.address.thread_id, run_of(reading.config))

    def read(self, session: Session, reading: Reading) -> None:
        """Learn the fingerprint and unfinished calls of the checkpoint that was read."""
        if not (reading.beside or reading.about) or reading.result is None:
            return
        address = address_of(reading.result.config)
        fingerprint = self._learn(address, reading.about, reading.beside)
        if self.on_drift == "raise" and run_of(reading.config) is not None:
            _, changes = update_fingerprint(fingerprint, [], self._versions_beside(fingerprint))
            if changes:
                raise DriftDetected(DriftReport(address.thread_id, tuple(changes)))

    def _learn(self, address: Address, about: Mapping[str, Any], beside: Iterable[Any]) -> Fingerprint:
        """Remember a checkpoint's fingerprint, and its calls without a later checkpoint."""
        records = [pack_call(call) for stored in beside for call in unpack_calls(stored)]  # drops unknown fields
        if records:
            self.known.remember_unfinished(address, records)
        if "known" not in about or address.checkpoint_ns:
            return UNKNOWN
        fingerprint = Fingerprint.unpack(about["known"])
        self.known.remember(address, fingerprint)
        return fingerprint

    def _see_run(self, thread_id: str, run: object) -> None:
        if run is not None and self.captures:
            self.known.see_run(thread_id, run)

    # -- with the writes of a task -----------------------------------------------------------------------------

    def draft_writes(self, session: Session, writes: Writes) -> None:
        """Add the records of a task to its writes."""
        records = self.waiting.select_for_task(writes.address.thread_id, writes.task_id, run_of(writes.config))
        if not records:
            return
        if ERROR not in (channel for channel, _ in writes.writes):
            check_refusals(records)
        writes.beside += [each.record for each in records]
        writes.notes[self] = records

    def after_writes(self, session: Session, writes: Writes) -> None:
        """Mark the records of a task as stored among its writes."""
        if self in writes.notes:
            self.waiting.mark_written(writes.notes[self])

    # -- with a checkpoint -------------------------------------------------------------------------------------

    def draft_put(self, session: Session, put: Put) -> None:
        """Add calls, model names and the thread's fingerprint to a checkpoint."""
        address, run, is_root = put.address, run_of(put.config), not put.address.checkpoint_ns
        self._see_run(address.thread_id, run)
        selection = self.waiting.select_for_entry(address, put.source, run)
        put.notes[self] = selection, run, None
        if is_root and self.graph_version:
            put.header.metadata[GRAPH_VERSION] = self.graph_version
        unfinished = self.known.find_unfinished(put.parent) if put.source == "loop" else ()
        is_known = is_root and self.known.has_fingerprint(address.thread_id, run)
        if selection is NOTHING_SELECTED and not unfinished and not is_known:
            return
        about: dict[str, Any] = {}
        changes: Sequence[Change] = ()
        new = {each.record["id"]: each.record for each in selection.new}
        records = [*(record for record in unfinished if record["id"] not in new), *new.values()]
        if records:
            about["calls"] = records
        if selection.strays:
            about["strays"] = [
                [dict(each.lineage), each.record if each.is_ended else {**each.record, "error": "Unfinished"}]
                for each in selection.strays
            ]
        if is_root:
            led = {record["id"]: record for record in [*records, *(each.record for each in selection.led)]}
            fingerprint, changes = self._add_fingerprint(put, about, list(led.values()), run)
            put.notes[self] = selection, run, fingerprint
        check_refusals(selection.led)
        if changes and put.source in ("input", "loop"):  # an `update_state` is only marked
            drift = DriftReport(address.thread_id, tuple(changes))
            if self.on_drift == "raise":
                raise DriftDetected(drift)
            warnings.warn(DriftWarning(drift), stacklevel=2)
        put.header.about.update(about)

    def after_put(self, session: Session, put: Put) -> None:
        """Mark the records of a stored checkpoint as stored."""
        selection, run, fingerprint = put.notes[self]
        self.waiting.mark_stored(put.address, selection, run)
        if fingerprint is not None:
            self.known.remember(put.address, fingerprint)

    def put_failed(self, session: Session, put: Put, error: BaseException) -> Plan[None]:
        """Discard the calls of a run whose checkpoint was refused."""
        # One trip if there are any, else none.
        run, parent = run_of(put.config), put.parent
        if run is None or parent.checkpoint_ns or not isinstance(error, CheckpointConflict):
            return
        calls = [each.record["id"] for each in self.waiting.forget_run(parent.thread_id, run)]
        if not calls or parent.checkpoint_id is None:
            return
        batch = pack_batch([], NULL_TASK_ID, "", session.codec, parent, [pack_refusal(calls)])
        try:
            yield from session.store.write_batch(parent, batch)
        except StoreError as failure:  # the run must get its own refusal, not this error
            _log.warning("%s: model calls of a refused run could not be excluded from the thread: %s", parent, failure)

    def _add_fingerprint(
        self, put: Put, about: dict[str, Any], records: Sequence[Record], run: object
    ) -> tuple[Fingerprint | None, Sequence[Change]]:
        """Add the fingerprint to a checkpoint; return it, if known, and drift to report."""
        parent = put.parent.checkpoint_id
        if names := set().union(*map(names_of, records)):
            about["models"] = sorted(names)
        before = self.known.find_fingerprint(put.address.thread_id, parent, run)
        fingerprint, changes = update_fingerprint(before, records, self._versions_beside(before))
        if fingerprint.nodes:
            self.known.remember_run(run, fingerprint)
            about["known"] = fingerprint.pack()
            put.terms += [f"model:{name}" for name in fingerprint.names]
        if about and parent is None:  # else it could not be distinguished from one whose ancestors were pruned
            about["first"] = True
        changes = [] if self.on_drift == "ignore" else changes
        if changes:
            put.header.metadata[MARK] = [str(change) for change in changes]
        return fingerprint if fingerprint.nodes else None, changes

    def _versions_beside(self, before: Fingerprint) -> Mapping[str, str]:
        """Return the current versions, for comparison with the thread's fingerprint."""
        if not self.captures:
            return {}
        is_given_up = GRAPH_VERSION in before.versions and not self.graph_version
        return {**self.versions, GRAPH_VERSION: ""} if is_given_up else self.versions

    # -- copies and removals -----------------------------------------------------------------------------------

    def after_travel(self, session: Session, travel: Travel) -> None:
        """Learn the fingerprint of a twin."""
        if travel.twin is not None and travel.about:
            self._learn(travel.twin, travel.about, ())

    def after_copy(self, session: Session, copy: Copy) -> Plan[None]:
        """Copy the carryovers of prunes; for a fork, only those of its checkpoints."""
        names = None
        if copy.graph is not None:
            names = [node.address.checkpoint_id for node in copy.graph.nodes if not node.address.checkpoint_ns]
        yield from copy_carryovers(session, copy.source, copy.target, names)

    def before_remove(self, session: Session, leaving: Leaving) -> Plan[None]:
        """Carry the records of remaining checkpoints; remove those of deleted runs."""
        if leaving.run_ids:
            yield from drop_runs(session, leaving.thread_id, leaving.run_ids, leaving.moments, leaving.kept)
        elif any(header.about for _, header in leaving.moments):
            yield from carry(session, leaving.thread_id, leaving.moments, leaving.kept)

    def after_remove(self, session: Session, leaving: Leaving) -> None:
        """Forget the waiting records of removed checkpoints."""
        if leaving.removed:
            ids = {node.address.checkpoint_id for node, _ in leaving.moments if node.stamp in leaving.removed}
            self._forget_thread(leaving.thread_id, ids)

    def before_delete(self, session: Session, thread_id: str) -> None:
        """Forget a thread."""
        self._forget_thread(thread_id)

    def _forget_thread(self, thread_id: str, removed: Collection[str | None] = frozenset()) -> None:
        self.waiting.forget_thread(thread_id, removed)
        self.known.forget_thread(thread_id)

    # -- listings ----------------------------------------------------------------------------------------------

    def find_terms(self, header: Header) -> Mapping[str, Collection[Any]]:
        """Return the models that led to a checkpoint, for `filter={"model": "gpt-5"}`."""
        return {"model": models_of(header.about)}

    def describe_thread(self, info: ThreadInfo, header: Header) -> ThreadInfo:
        """Add a thread's models, tokens and cost."""
        known = Fingerprint.unpack(header.about["known"]) if "known" in header.about else UNKNOWN
        return replace(info, models=tuple(sorted(known.names)), tokens=known.spent.tokens, cost=known.spent.cost)


def find_last_run(thread_id: str) -> tuple[Recorder, object] | None:
    """Return the saver and the run of the last access to a thread in this process."""
    found = [(*recorder.known.last_run(thread_id), recorder) for recorder in list(_recorders)]
    place, run, recorder = max(found, key=lambda each: each[0], default=(0, None, None))
    return (recorder, run) if place and recorder else None
