"""The records of model calls as people read them: each once, at the checkpoint it led to."""

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
"""Checkpoints to a page: headers and pending writes, no values."""


@publish
@dataclass(frozen=True, slots=True, kw_only=True)
class DriftMark:
    """A checkpoint that says that its thread went on with something else than it was written with.

    Attributes:
        checkpoint_id: The first checkpoint after the change.
        step: Its step.
        call_id: The first call of a model after the checkpoint that it continues; `None` if there was none.
        changes: A line for each change.
    """

    checkpoint_id: str
    step: int | None
    call_id: str | None
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What the checkpoints of a thread say of how it was written, in the order in which they were put."""

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
    """Return the names of the models that a header says led to its checkpoint."""
    named = about.get("models")
    called = {name for call in unpack_calls(about.get("calls")) for name in call.names}
    return called | {name for name in (named if isinstance(named, list) else ()) if isinstance(name, str)}


def thread_models_of(about: Mapping[str, Any]) -> set[str]:
    """Return the names of all models that a root checkpoint's header says wrote its thread."""
    return set(Fingerprint.unpack(about["known"]).names) if "known" in about else set()


# -- of a thread -----------------------------------------------------------------------------------------------


def read_calls(session: Session, query: Query) -> Plan[Sequence[ModelCall]]:
    """Read the records of a thread, or of a namespace or checkpoint in it, in the order of the checkpoints."""
    # All of the thread: what stands in one namespace may have led to a checkpoint of another.
    trace = yield from read_trace(session, str(query.thread_id))
    return [
        call
        for call in trace.calls
        if query.checkpoint_ns in (None, call.checkpoint_ns) and query.checkpoint_id in (None, call.checkpoint_id)
    ]


def read_trace(session: Session, thread_id: str) -> Plan[Trace]:
    """Read the headers of a thread and the records of its calls. Two trips a page, and one if it may be pruned."""
    codec = session.codec.with_placeholders()  # what tasks have written beside the records is not looked at
    found = yield from read_entries(session, Query(thread_id))
    entries = [(entry, unpack_header(entry.header, codec, entry.address)) for entry, _ in found]
    calls: dict[str, ModelCall] = {}
    for entry, header in entries:
        _add(calls, unpack_calls(header.about.get("calls")), entry.address)
    beside = [(entry, unpack_batches(batches, codec, entry.address)[1]) for entry, batches in found]
    # Records that are stored among writes alone are of tasks that have failed or ask, or whose step is not over. They
    # are shown at the checkpoint that the task began from, unless their run was refused.
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
    """Read all entries that a query asks for with their batches, in the order they were put."""
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
    """Return the checkpoint that a call began from: the innermost that is stored, or the last one before it that is."""
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
