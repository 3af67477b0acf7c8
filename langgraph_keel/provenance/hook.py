"""The hook that gives each checkpoint the records of the model calls that led to it, and notices drift.

A record waits until something is stored that it can go with (`waiting`). What a checkpoint takes along are the records
that led to it, the names of their models, and what its thread was written with so far (`drift`), which this process
remembers from one put to the next (`known_threads`). A prune carries records of what it removes to what stays
(`carryover`).
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

from langgraph_keel._langgraph import ERROR, NULL_TASK_ID
from langgraph_keel.engine.config import Address, address_of, run_of
from langgraph_keel.engine.entries import Header, pack_batch
from langgraph_keel.engine.hooks import Copy, Hook, Leaving, Put, Reading, Travel, Writes
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import ThreadInfo
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CheckpointConflict, DriftDetected, DriftWarning, InvalidInput, StoreError
from langgraph_keel.provenance.carryover import CARRYOVERS, carry, copy_carryovers, drop_runs
from langgraph_keel.provenance.drift import GRAPH_VERSION, MARK, DriftReport, Fingerprint, update_fingerprint
from langgraph_keel.provenance.known_threads import UNKNOWN, KnownThreads
from langgraph_keel.provenance.reading import models_of, thread_models_of
from langgraph_keel.provenance.records import ModelCall, Record, names_of, pack_call, pack_refusal, unpack_calls
from langgraph_keel.provenance.waiting import (
    NOTHING_SELECTED,
    Selection,
    WaitingRecord,
    WaitingRecords,
    check_refusals,
)

OnDrift: TypeAlias = Literal["ignore", "warn", "raise"]

REFUSED = DriftDetected.__name__
"""The error of a call whose answer the thread must not go on with."""

_log = logging.getLogger(__name__)
_recorders: WeakSet[Recorder] = WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held a lock; and what waits here is the parent's to store.
    for recorder in list(_recorders):
        recorder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(slots=True)
class EntryRecord:
    """What a checkpoint that is about to be put takes along.

    Attributes:
        about: For its header.
        metadata: For its metadata.
        drift: What has changed since the checkpoint it continues; `None` if nothing has.
        fingerprint: What its thread was written with, up to and with it; `None` if nothing is known.
        selection: The records that go with it.
        run: The run that puts it.
    """

    about: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    drift: DriftReport | None = None
    fingerprint: Fingerprint | None = None
    selection: Selection = NOTHING_SELECTED
    run: object = None


class Recorder(Hook):
    """The records of one saver, shared by its copies. Any thread may call.

    Args:
        versions: The versions of the packages that the graph runs on.
        graph_version: The application's own version.
        on_drift: What to do where a thread goes on with something else than what it was written with.
        captures: Whether calls are captured; if not, what is known of a thread is carried on all the same.

    Attributes:
        waiting: The records that are not stored yet.
        known: What is remembered of threads.
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

    # -- calls of models (`capture`) ---------------------------------------------------------------------------

    def end(self, waiting: WaitingRecord) -> None:
        """Note that a call is over, and its record complete.

        Raises:
            DriftDetected: The thread was not written with what has answered, and the saver was told to raise. So the
                node fails that has called, before anything acts on the answer.
        """
        if self.on_drift == "raise":
            before = self.known.find_fingerprint(waiting.thread_id, waiting.lineage.get(""), waiting.run)
            waiting.refused = update_fingerprint(before, [waiting.record], {})[1]
        if waiting.refused:
            waiting.record["error"] = REFUSED
        waiting.is_ended = True
        check_refusals([waiting])

    def find_waiting(self, thread_id: str) -> list[ModelCall]:
        """Return the calls of a thread whose records are not stored yet."""
        return [replace(call, thread_id=thread_id) for call in unpack_calls(self.waiting.find_unstored(thread_id))]

    # -- reading -----------------------------------------------------------------------------------------------

    def begin(self, session: Session, reading: Reading) -> None:
        """Note that a run begins."""
        self._see_run(reading.address.thread_id, run_of(reading.config))

    def read(self, session: Session, reading: Reading) -> None:
        """Learn what a checkpoint says from which a run begins.

        Raises:
            DriftDetected: A run begins from it, of other versions, and the saver was told to raise. LangGraph would
                notice the refusal of its first checkpoint only when it has run further, to the end of the run perhaps.
        """
        if not (reading.beside or reading.about) or reading.result is None:
            return
        address = address_of(reading.result.config)
        fingerprint = self._learn(address, reading.about, reading.beside)
        if self.on_drift == "raise" and run_of(reading.config) is not None:
            _, changes = update_fingerprint(fingerprint, [], self._versions_beside(fingerprint))
            if changes:
                raise DriftDetected(DriftReport(address.thread_id, tuple(changes)))

    def _learn(self, address: Address, about: Mapping[str, Any], beside: Iterable[Any]) -> Fingerprint:
        """Remember what is stored with a checkpoint: what its thread was written with, and calls that led nowhere yet.

        Returns:
            What the thread was written with.
        """
        records = [pack_call(call) for stored in beside for call in unpack_calls(stored)]  # what fits a record of today
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
        """Add the records of a task to what it has written.

        Raises:
            DriftDetected: Somebody has caught the refusal of one of its calls.
        """
        records = self.waiting.select_for_task(writes.address.thread_id, writes.task_id, run_of(writes.config))
        if not records:
            return
        if ERROR not in (channel for channel, _ in writes.writes):
            check_refusals(records)
        writes.beside += [each.record for each in records]
        writes.notes[self] = records

    def after_writes(self, session: Session, writes: Writes) -> None:
        """Note that the records of a task are stored among its writes."""
        if self in writes.notes:
            self.waiting.mark_written(writes.notes[self])

    # -- with a checkpoint -------------------------------------------------------------------------------------

    def draft_put(self, session: Session, put: Put) -> None:
        """Add to a checkpoint what it takes along.

        Raises:
            DriftDetected: The thread goes on with something else, and the saver was told to raise; or somebody has
                caught the refusal of a call that led here.
        """
        entry = self._record_entry(put)
        check_refusals(entry.selection.led)
        if entry.drift and put.source in ("input", "loop"):  # what a person puts (`update_state`) is marked only
            if self.on_drift == "raise":
                raise DriftDetected(entry.drift)
            warnings.warn(DriftWarning(entry.drift), stacklevel=2)
        put.header.metadata.update(entry.metadata)
        put.header.about.update(entry.about)
        put.notes[self] = entry

    def after_put(self, session: Session, put: Put) -> None:
        """Note that a checkpoint is stored with what it took along."""
        entry: EntryRecord = put.notes[self]
        self.waiting.mark_stored(put.address, entry.selection, entry.run)
        if entry.fingerprint is not None:
            self.known.remember(put.address, entry.fingerprint)

    def put_failed(self, session: Session, put: Put, error: BaseException) -> Plan[None]:
        """Forget what a run has called whose checkpoint was refused. No trip, or one to say so of what is stored."""
        run, parent = run_of(put.config), put.parent
        if run is None or parent.checkpoint_ns or not isinstance(error, CheckpointConflict):
            return
        calls = [each.record["id"] for each in self.waiting.forget_run(parent.thread_id, run)]
        if not calls or parent.checkpoint_id is None:
            return
        batch = pack_batch([], NULL_TASK_ID, "", session.codec, parent, [pack_refusal(calls)])
        try:
            yield from session.store.write_batch(parent, batch)
        except StoreError as failure:  # the run must hear why it was refused
            _log.warning("%s: calls of a run that was refused count as the thread's own: %s", parent, failure)

    def _record_entry(self, put: Put) -> EntryRecord:
        address, run, is_root = put.address, run_of(put.config), not put.address.checkpoint_ns
        self._see_run(address.thread_id, run)
        selection = self.waiting.select_for_entry(address, put.source, run)
        entry = EntryRecord(selection=selection, run=run)
        if is_root and self.graph_version:
            entry.metadata[GRAPH_VERSION] = self.graph_version
        unfinished = self.known.find_unfinished(put.parent) if put.source == "loop" else ()
        is_known = is_root and self.known.has_fingerprint(address.thread_id, run)
        if selection is NOTHING_SELECTED and not unfinished and not is_known:
            return entry
        new = {each.record["id"]: each.record for each in selection.new}
        records = [*(record for record in unfinished if record["id"] not in new), *new.values()]
        if records:
            entry.about["calls"] = records
        if selection.strays:
            entry.about["strays"] = [_pack_stray(each) for each in selection.strays]
        if is_root:
            led = {record["id"]: record for record in [*records, *(each.record for each in selection.led)]}
            self._add_fingerprint(entry, put, list(led.values()))
        return entry

    def _add_fingerprint(self, entry: EntryRecord, put: Put, records: Sequence[Record]) -> None:
        thread_id, parent = put.address.thread_id, put.parent.checkpoint_id
        if names := set().union(*map(names_of, records)):
            entry.about["models"] = sorted(names)
        before = self.known.find_fingerprint(thread_id, parent, entry.run)
        fingerprint, changes = update_fingerprint(before, records, self._versions_beside(before))
        if fingerprint.nodes:
            self.known.remember_run(entry.run, fingerprint)
            entry.fingerprint, entry.about["known"] = fingerprint, fingerprint.pack()
        if entry.about and parent is None:  # else nobody could tell it from one whose ancestors were pruned
            entry.about["first"] = True
        if changes and self.on_drift != "ignore":
            entry.metadata[MARK] = [str(change) for change in changes]
            entry.drift = DriftReport(thread_id, tuple(changes))

    def _versions_beside(self, before: Fingerprint) -> Mapping[str, str]:
        """Return the versions of today, to be compared with those that a thread was written with."""
        if not self.captures:
            return {}
        is_given_up = GRAPH_VERSION in before.versions and not self.graph_version
        return {**self.versions, GRAPH_VERSION: ""} if is_given_up else self.versions

    # -- what becomes of a thread ------------------------------------------------------------------------------

    def after_travel(self, session: Session, travel: Travel) -> None:
        """Learn of a twin what is true of the thread there."""
        if travel.twin is not None and travel.about:
            self._learn(travel.twin, travel.about, ())

    def after_copy(self, session: Session, copy: Copy) -> Plan[None]:
        """Copy what prunes have carried: of a fork, what led to its checkpoints."""
        names = None
        if copy.graph is not None:
            names = [node.address.checkpoint_id for node in copy.graph.nodes if not node.address.checkpoint_ns]
        yield from copy_carryovers(session, copy.source, copy.target, names)

    def before_remove(self, session: Session, leaving: Leaving) -> Plan[None]:
        """Carry on the records that led to what stays; remove those of runs that go."""
        if leaving.run_ids:
            yield from drop_runs(session, leaving.thread_id, leaving.run_ids, leaving.moments, leaving.kept)
        else:
            yield from carry(session, leaving.thread_id, leaving.moments, leaving.kept)

    def after_remove(self, session: Session, leaving: Leaving) -> None:
        """Forget what waits of checkpoints that are gone."""
        if leaving.removed:
            ids = {node.address.checkpoint_id for node, _ in leaving.moments if node.stamp in leaving.removed}
            self._forget_thread(leaving.thread_id, ids)

    def before_delete(self, session: Session, thread_id: str) -> None:
        """Forget a thread."""
        self._forget_thread(thread_id)

    def _forget_thread(self, thread_id: str, removed: Collection[str | None] = frozenset()) -> None:
        self.waiting.forget_thread(thread_id, removed)
        self.known.forget_thread(thread_id)

    # -- what lists say ----------------------------------------------------------------------------------------

    def find_terms(self, header: Header) -> Mapping[str, Collection[Any]]:
        """Let a filter ask for the models that led to a checkpoint: `filter={"model": "gpt-5"}`."""
        return {"model": models_of(header.about)}

    def describe_thread(self, info: ThreadInfo, header: Header) -> ThreadInfo:
        """Say which models wrote a thread."""
        return replace(info, models=tuple(sorted(thread_models_of(header.about))))


# Looked up with the module: a running loop, in which a saver may be made, must not wait for a disk.
PACKAGE_VERSIONS: Mapping[str, str] = {name: version(name) for name in ("langgraph", "langchain-core")}
"""The versions of the packages that every graph runs on."""


def build_recorder(graph_version: str | None, on_drift: OnDrift, captures: bool) -> Recorder:
    """Return the recorder of a saver.

    Raises:
        InvalidInput: There is no such way to treat drift, or the version is no text.
    """
    if on_drift not in ("ignore", "warn", "raise"):
        raise InvalidInput(f"on_drift must be 'ignore', 'warn' or 'raise', not {on_drift!r}")
    if not isinstance(graph_version, str | None):
        raise InvalidInput(f"graph_version must be a str, such as '1.4' or a commit's hash, not {graph_version!r}")
    if on_drift == "raise" and captures is not True:
        raise InvalidInput("on_drift='raise' needs provenance=True: what is not recorded cannot be compared")
    return Recorder(PACKAGE_VERSIONS, graph_version, on_drift, captures)


def find_last_run(thread_id: str) -> tuple[Recorder, object] | None:
    """Return the saver on which a thread was last seen to run in this process, and which run that was."""
    found = [(*recorder.known.last_run(thread_id), recorder) for recorder in list(_recorders)]
    place, run, recorder = max(found, key=lambda each: each[0], default=(0, None, None))
    return (recorder, run) if place and recorder else None


def _pack_stray(waiting: WaitingRecord) -> list[Any]:
    record = waiting.record if waiting.is_ended else {**waiting.record, "error": "Unfinished"}
    return [dict(waiting.lineage), record]
