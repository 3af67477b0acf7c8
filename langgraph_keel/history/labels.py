"""Labels: names of checkpoints, in cells of their thread.

A checkpoint may have several. Labels are deleted with their thread and not copied; a prune keeps labelled checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Query
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable
from langgraph_keel.errors import InvalidInput, NotFound

LONGEST = 200  # characters


@publish
@dataclass(frozen=True, slots=True)
class Label:
    """A name and its checkpoint."""

    name: str
    address: Address


class StoredLabel(NamedTuple):
    """A label, as it is stored in a cell of its thread."""

    name: str
    checkpoint_ns: str
    checkpoint_id: str


def _unpack(parts: Sequence[Any]) -> StoredLabel:
    if not (isinstance(parts, list) and len(parts) == 3 and all(isinstance(part, str) for part in parts)):
        raise TypeError("it has parts of the wrong type")
    return StoredLabel(*parts)


LABELS: CellTable[StoredLabel] = CellTable("labels", "a label", list, _unpack)


def _key(name: str) -> str:
    return sha256(name.encode()).hexdigest()


class LabelHook(Hook):
    """Keeps labelled checkpoints in prunes."""

    tables = (LABELS,)

    def keep(self, session: Session, thread_id: str, policy: Any) -> Plan[Collection[Address]]:
        """Return the checkpoints with a label, if the policy keeps them. A trip per 500."""
        if not policy.labelled:
            return ()
        labels = yield from read_labels(session, thread_id)
        return {label.address for label in labels}


def find_entry(session: Session, address: Address, why: str = "") -> Plan[Entry]:
    """Read a checkpoint, or the latest one if the address has no id."""
    if address.checkpoint_id is None:  # only `read_entry` knows the latest; it reads the values, too
        found = yield from session.store.read_entry(address)
        entries: Sequence[Entry] = [found.entry] if found else ()
    else:
        query = Query(address.thread_id, address.checkpoint_ns, address.checkpoint_id, limit=1)
        entries = yield from session.store.scan(query)
    if not entries:
        raise NotFound(f"{address}: there is no such checkpoint{why}")
    return entries[0]


def give_label(session: Session, address: Address, name: str) -> Plan[None]:
    """Name a checkpoint, or the latest; no error if it has the name. Two trips."""
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST:
        raise InvalidInput(f"a label must be a text of 1 to {LONGEST} characters, not {name!r:.60}")
    if name.lstrip("-").isdigit():
        raise InvalidInput(f"{name!r} cannot be a label: numbers are positions")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the label {name!r} contains a character that cannot be encoded") from error
    address = (yield from find_entry(session, address, " to give a label")).address
    cells = Cells(session, LABELS, address.thread_id)
    new = StoredLabel(name, address.checkpoint_ns, str(address.checkpoint_id))
    _, held = yield from cells.swap(_key(name), None, new)
    if held is not None and held.record != new:
        raise InvalidInput(
            f"thread {address.thread_id!r}: {name!r} is checkpoint {held.record.checkpoint_id} already: "
            "use another name, or remove this one first (`labels.remove`, `keel unlabel`)"
        )


def remove_label(session: Session, thread_id: str, name: str) -> Plan[None]:
    """Remove a name. Two trips."""
    labels, key = Cells(session, LABELS, thread_id), _key(name)
    cells = yield from labels.read_raw([key])
    if key not in cells:
        raise NotFound(f"thread {thread_id!r} has no label {name!r}")
    yield from labels.remove({key: cells[key].token})


def read_labels(session: Session, thread_id: str) -> Plan[Sequence[Label]]:
    """Return the labels of a thread, by the ids of their checkpoints. A trip per 500."""
    stored = yield from Cells(session, LABELS, thread_id).every()
    labels = [Label(name, Address(thread_id, *place)) for name, *place in (held.record for _, held in stored)]
    return sorted(labels, key=lambda label: (str(label.address.checkpoint_id), label.name))
