"""Names that people give to moments: cells beside the thread, so that no checkpoint changes by it.

A name stands for one checkpoint; a checkpoint may have several. They are deleted with their thread, not copied, and
what has one is kept when the thread is pruned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.checkpoints import where_is
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan, Q, R
from langgraph_keel.engine.records import Address, Query
from langgraph_keel.engine.serde.codec import Codec
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, InvalidInput, NotFound

KIND = "labels"
LONGEST = 200
_PAGE = 200


@dataclass(frozen=True, slots=True)
class Label:
    """A name and the checkpoint it stands for."""

    name: str
    address: Address


def checked_name(name: object) -> str:
    """Return a name that a checkpoint may have.

    Raises:
        InvalidInput: It is no text, empty or blank, too long, or looks like a position.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST:
        raise InvalidInput(f"a label must be a text of 1 to {LONGEST} characters, not {name!r:.60}")
    if name.lstrip("-").isdigit():
        raise InvalidInput(f"{name!r} cannot be a label: it would be taken for a position")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the label {name!r} holds a character that no encoding has") from error
    return name


def _key(name: str) -> str:
    return sha256(name.encode()).hexdigest()


class LabelHook(Hook):
    """Keeps what has a label."""

    def keep(self, session: Session, thread_id: str, policy: Any) -> Plan[Any, Any, Collection[Address]]:
        """Return the checkpoints with a label, if the policy keeps those. One trip for each 200."""
        if not policy.labelled:
            return ()
        labels = yield from labels_of(session, thread_id)
        return {label.address for label in labels}


def give_label(session: Session, address: Address, name: str) -> Plan[Any, Any, None]:
    """Give a checkpoint, or the latest of its namespace, a name; no error if it has that already. Two trips.

    Raises:
        NotFound: There is no such checkpoint.
        InvalidInput: The name cannot be one, or another checkpoint of the thread has it.
    """
    name = checked_name(name)
    address = yield from _found(session.store, address)
    header = session.codec.encode([name, address.checkpoint_ns, address.checkpoint_id])
    swapped = yield from session.store.swap_cell(
        _shelf(address.thread_id), _key(name), None, Cell(session.new_token(), header)
    )
    other = None if swapped.done or swapped.cell is None else _label(address.thread_id, swapped.cell, session.codec)
    if other and other.address != address:
        raise InvalidInput(
            f"thread {address.thread_id!r}: {name!r} is checkpoint {other.address.checkpoint_id} already: "
            "take another name, or take this one back first (unlabel)"
        )


def _found(store: Store[Q, R], address: Address) -> Plan[Any, Any, Address]:
    if address.checkpoint_id is None:
        head = yield from store.read_entry(address)
        entries = [head.entry] if head else []
    else:
        query = Query(address.thread_id, address.checkpoint_ns, address.checkpoint_id, limit=1)
        entries = list((yield from store.scan(query)))
    if not entries:
        raise NotFound(f"{where_is(address)}: there is no such checkpoint to give a label")
    return entries[0].address


def remove_label(store: Store[Q, R], thread_id: str, name: str) -> Plan[Any, Any, None]:
    """Take a name back. Two trips.

    Raises:
        NotFound: No checkpoint of the thread has it.
    """
    shelf, key = _shelf(thread_id), _key(name)
    cells = yield from store.read_cells(shelf, [key])
    if key not in cells:
        raise NotFound(f"thread {thread_id!r} has no label {name!r}")
    yield from store.remove_cells(shelf, {key: cells[key].token})


def labels_of(session: Session, thread_id: str) -> Plan[Any, Any, Sequence[Label]]:
    """Return the labels of a thread, in the order of their checkpoints' ids. A trip for each 200."""
    found: list[Label] = []
    after: str | None = None
    while True:
        page = yield from session.store.list_cells(_shelf(thread_id), "", after, _PAGE)
        found += [_label(thread_id, cell, session.codec) for _, cell in page]
        if len(page) < _PAGE:
            return sorted(found, key=lambda label: (str(label.address.checkpoint_id), label.name))
        after = page[-1][0]


def _shelf(thread_id: str) -> Shelf:
    return Shelf(thread_id, KIND)


def _label(thread_id: str, cell: Cell, codec: Codec) -> Label:
    stored = codec.decode(cell.header)
    if not (isinstance(stored, list) and len(stored) == 3 and all(isinstance(part, str) for part in stored)):
        raise CorruptStore(f"thread {thread_id!r}: a label does not hold what it should")
    name, namespace, checkpoint_id = stored
    return Label(name, Address(thread_id, namespace, checkpoint_id))
