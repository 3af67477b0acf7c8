"""Reads the records of model calls: each once, at the checkpoint it led to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Header, unpack_batches, unpack_header
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Batch, Entry, Query
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.provenance.carryover import Carryover, may_be_pruned, read_carryovers
from langgraph_keel.provenance.drift import MARK, Fingerprint
from langgraph_keel.provenance.records import ModelCall, refused_in, strays_of, unpack_calls

PAGE = 500
"""Checkpoints per page: headers and pending writes, no values."""


@publish
@dataclass(frozen=True, slots=True, kw_only=True)
class DriftMark:
    """A checkpoint at which a thread continued with a changed model, tool or package.

    Attributes:
        checkpoint_id: The first checkpoint after the change.
        step: Its step.
        call_id: The first model call after the parent of this checkpoint; `None` if there was none.
        changes: A line for each change.
    """

    checkpoint_id: str
    step: int | None
    call_id: str | None
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The headers and model calls of a thread, in the order of storage."""

    entries: Sequence[tuple[Entry, Header]]
    calls: Sequence[ModelCall]
    carryovers: Sequence[Carryover] = ()

    def marks(self) -> list[DriftMark]:
        """Return the marks of drift."""
        places = {entry.address: number for number, (entry, _) in enumerate(self.entries)}
        found: list[DriftMark] = []
        for entry, header in self.entries:
            changes = header.metadata.get(MARK)
            if isinstance(changes, list):
                parent = places.get(replace(entry.address, checkpoint_id=entry.parent), -1)
                call_id = next((call.id for call in self.calls if places.get(_address(call), -1) > parent), None)
                name, step, lines = str(entry.address.checkpoint_id), header.metadata.get("step"), map(str, changes)
                found.append(DriftMark(checkpoint_id=name, step=step, call_id=call_id, changes=tuple(lines)))
        return found


# -- of one header ---------------------------------------------------------------------------------------------


def models_of(about: Mapping[str, Any]) -> set[str]:
    """Return the names of the models that led to a checkpoint, from its header."""
    named = about.get("models")
    called = {name for call in unpack_calls(about.get("calls")) for name in call.names}
    return called | {name for name in (named if isinstance(named, list) else ()) if isinstance(name, str)}


def thread_models_of(about: Mapping[str, Any]) -> set[str]:
    """Return the names of all models of a thread, from a root checkpoint's header."""
    return set(Fingerprint.unpack(about["known"]).names) if "known" in about else set()


# -- of a thread -----------------------------------------------------------------------------------------------


def read_calls(session: Session, query: Query) -> Plan[Sequence[ModelCall]]:
    """Read the calls of a thread, namespace or checkpoint, in checkpoint order."""
    # The whole thread is read: a record in one namespace may belong to a checkpoint of another.
    trace = yield from read_trace(session, str(query.thread_id))
    return [
        call
        for call in trace.calls
        if query.checkpoint_ns in (None, call.checkpoint_ns) and query.checkpoint_id in (None, call.checkpoint_id)
    ]


def read_trace(session: Session, thread_id: str) -> Plan[Trace]:
    """Read the headers and calls of a thread."""
    # Two trips a page, and one more if the thread may be pruned.
    codec = session.codec.with_placeholders()  # other writes of tasks are not used
    found = yield from read_entries(session, Query(thread_id))
    entries = [(entry, unpack_header(entry.header, codec, entry.address)) for entry, _ in found]
    calls: dict[str, ModelCall] = {}
    for entry, header in entries:
        _add(calls, unpack_calls(header.about.get("calls")), entry.address)
    beside = [(entry, unpack_batches(batches, codec, entry.address)[1]) for entry, batches in found]
    # Records that are only among writes belong to tasks that failed or wait, or to an unfinished step. They are shown
    # at the checkpoint from which the task started, unless their run was refused.
    refused = set().union(*(refused_in(stored) for _, stored in beside))
    for entry, stored in beside:
        written = (call for part in stored for call in unpack_calls(part))
        _add(calls, (call for call in written if call.id not in refused), entry.address)
    places = {entry.address: number for number, (entry, _) in enumerate(found)}
    for entry, header in entries:
        for lineage, record in strays_of(header.about):
            _add(calls, unpack_calls([record]), _find_beginning(lineage, places, entry.address))
    is_whole = not any(may_be_pruned(entry, header) for entry, header in entries)
    carryovers = [] if is_whole else (yield from read_carryovers(session, thread_id))
    for call in [call for carryover in carryovers for call in carryover.calls(thread_id)]:
        calls.setdefault(call.id, call)
    ordered = sorted(calls.values(), key=lambda call: (places.get(_address(call), -1), call.started_at))
    return Trace(entries, ordered, carryovers)


def read_entries(session: Session, query: Query) -> Plan[Sequence[tuple[Entry, Sequence[Batch]]]]:
    """Read all matching entries with their batches, in the order they were stored."""
    batches: dict[Address, Sequence[Batch]] = {}
    entries: list[Entry] = []
    while True:
        page = yield from session.store.scan(replace(query, limit=PAGE, after=entries[-1] if entries else None))
        # Without references, no rows are read.
        found = (yield from session.store.read_values([replace(entry, refs={}) for entry in page])) if page else ()
        batches.update((each.entry.address, each.batches) for each in found)
        entries += page
        if len(page) < PAGE:
            return [(entry, batches.get(entry.address, ())) for entry in reversed(entries)]


def _find_beginning(lineage: Mapping[str, str], places: Collection[Address], otherwise: Address) -> Address:
    """Return the innermost stored checkpoint a call started at, or the last before it."""
    began = [Address(otherwise.thread_id, namespace, lineage[namespace]) for namespace in sorted(lineage, reverse=True)]
    if stored := [address for address in began if address in places]:
        return stored[0]
    ids = [str(place.checkpoint_id) for place in places if not place.checkpoint_ns]
    before = [each for each in ids if each <= lineage.get("", "")]
    return Address(otherwise.thread_id, "", max(before)) if before else otherwise


def _add(calls: dict[str, ModelCall], records: Iterable[ModelCall], at: Address) -> None:
    for call in records:
        here = replace(call, thread_id=at.thread_id, checkpoint_ns=at.checkpoint_ns, checkpoint_id=at.checkpoint_id)
        calls.setdefault(call.id, here)


def _address(call: ModelCall) -> Address:
    return Address(call.thread_id, call.checkpoint_ns, call.checkpoint_id)
