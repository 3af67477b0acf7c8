"""What is noted beside a thread, in cells: when it was made of another one, and whom it named before a prune."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.config import USER, address_of, owner_in, owner_of
from langgraph_keel.engine.encoding.frames import HEAD, RAW, unframe
from langgraph_keel.engine.hooks import Copy, Hook, Leaving, Put, Reading
from langgraph_keel.engine.lineage import Moment, instant
from langgraph_keel.engine.plan import Plan, Q, R
from langgraph_keel.engine.records import Address, Stamp
from langgraph_keel.engine.serde.codec import Codec
from langgraph_keel.engine.serde.serializer import KeelSerializer, array_header
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, ValueRefused

MADE, AT = "made", "at"
OWNERS = "owners"

_pack = KeelSerializer().pack
_USER = _pack(USER)
_FOREIGN = array_header(3) + _pack(2)
"""What an item begins with that another serializer has written."""


_REMEMBERED = 10_000
"""Of so many threads it is known whose they are, as a run that names nobody goes on for them."""


class OwnerHook(Hook):
    """Writes into each checkpoint whose it is, and keeps that through copies and prunes."""

    hears_replays = True

    def __init__(self) -> None:
        # By thread and namespace: the last checkpoint known of it, and whom that names. Any thread may change it: a
        # single operation on a dict is atomic, and what is lost in between is found by the next read.
        self._last: dict[tuple[str, str], tuple[str | None, str]] = {}

    def read(self, session: Session, reading: Reading) -> Plan[Any, Any, None]:
        """Remember whom a checkpoint names."""
        yield from ()
        if reading.result is not None:
            self._remember(address_of(reading.result.config), owner_in(reading.result.metadata))

    def draft_put(self, session: Session, put: Put) -> Plan[Any, Any, None]:
        """Name the owner, if the config of the run does not.

        Raises:
            InvalidInput: The program's own function failed, or returned something else than text.
        """
        yield from ()
        if owner_in(put.header.metadata):
            return
        # A run that names nobody goes on with a thread of somebody's, of which a prune may leave this alone.
        owner = owner_of(put.config, session.owner) or self._recall(put.parent)
        if owner:
            put.header.metadata[USER] = owner

    def after_put(self, session: Session, put: Put) -> Plan[Any, Any, None]:
        """Remember whom a checkpoint names."""
        yield from ()
        self._remember(put.address, owner_in(put.header.metadata))

    def after_copy(self, session: Session, copy: Copy) -> Plan[Any, Any, None]:
        """Note when a copy was made, and whom its source named: see `note_copy`."""
        made = Cell(session.new_token(), session.codec.encode([session.now]))
        yield from note_copy(session.store, copy.source, copy.target, made)

    def before_remove(self, session: Session, leaving: Leaving) -> Plan[Any, Any, None]:
        """Note whom only checkpoints name that go: see `note_owners`."""
        yield from note_owners(session, leaving.thread_id, leaving.moments, leaving.kept)

    def before_delete(self, session: Session, thread_id: str) -> Plan[Any, Any, None]:
        """Forget a thread."""
        yield from ()
        for key in [key for key in list(self._last) if key[0] == thread_id]:
            self._last.pop(key, None)

    def _recall(self, parent: Address) -> str:
        known, owner = self._last.get((parent.thread_id, parent.checkpoint_ns), (None, ""))
        return owner if known == parent.checkpoint_id else ""

    def _remember(self, address: Address, owner: str) -> None:
        key = address.thread_id, address.checkpoint_ns
        self._last.pop(key, None)
        if owner:
            self._last[key] = address.checkpoint_id, owner
            if len(self._last) > _REMEMBERED:
                self._last.pop(next(iter(list(self._last))), None)


def note_copy(store: Store[Any, Any], source: str, target: str, made: Cell) -> Plan[Any, Any, None]:
    """Note beside a copy or a fork when it was made, and whom its source named. Two trips, one more for each of those.

    Its checkpoints have the times of the source: by them alone, it would be as old as that.
    """
    yield from store.swap_cell(Shelf(target, MADE), AT, None, made)
    for key, cell in (yield from _owner_cells(store, source)):
        yield from store.swap_cell(Shelf(target, OWNERS), key, None, cell)


def made_at(session: Session, thread_id: str) -> Plan[Any, Any, float | None]:
    """Return when a thread was made of another one, in milliseconds since 1970; `None` if it was not. One trip.

    Raises:
        CorruptStore: The note does not decode.
    """
    cells = yield from session.store.read_cells(Shelf(thread_id, MADE), [AT])
    if AT not in cells:
        return None
    return instant(_said(session.codec, cells[AT], thread_id))


def note_owners(
    session: Session, thread_id: str, moments: Sequence[Moment], kept: Collection[Stamp]
) -> Plan[Any, Any, None]:
    """Note whom only checkpoints name that go: the state that stays may be made of what they said.

    No trip, if there are none; else one for each.
    """
    for owner in owners_lost(moments, kept):
        # Of one owner it is always the same note, so whoever has written it has done it for all.
        key = sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()
        yield from session.store.swap_cell(
            Shelf(thread_id, OWNERS), key, None, Cell(key[:32], session.codec.encode([owner]))
        )


def noted_owners(session: Session, thread_id: str) -> Plan[Any, Any, set[str]]:
    """Return whom checkpoints have named that are gone. One trip.

    Raises:
        CorruptStore: A note does not decode.
    """
    cells = yield from _owner_cells(session.store, thread_id)
    return {str(_said(session.codec, cell, thread_id)) for _, cell in cells}


def _owner_cells(store: Store[Q, R], thread_id: str) -> Plan[Any, Any, list[tuple[str, Cell]]]:
    found: list[tuple[str, Cell]] = []
    yield from store.every_cell(Shelf(thread_id, OWNERS), lambda *pair: found.append(pair))
    return found


def _said(codec: Codec, cell: Cell, thread_id: str) -> object:
    try:
        (said,) = codec.decode(cell.header)
    except (CorruptStore, ValueRefused, ValueError) as error:
        raise CorruptStore(f"thread {thread_id!r}: a note beside it does not decode: {error}") from error
    return said


def owners_lost(moments: Sequence[Moment], kept: Collection[Stamp]) -> list[str]:
    """Return whom only checkpoints name that are not kept, sorted; nobody if none is kept."""
    if not kept:
        return []
    seen: dict[bytes, str] = {}
    lost = {_owner(moment, seen) for moment in moments if moment[0].stamp not in kept} - {""}
    for node, header in moments:
        if lost and node.stamp in kept and _may_name(node.header, lost, seen):
            # Decoded: a channel of the state may hold the same words, and then nobody would be noted.
            lost.discard(owner_in(header.metadata))
    return sorted(lost)


def _may_name(header: bytes, lost: Collection[str], seen: Mapping[bytes, str]) -> bool:
    """Return whether a header that is kept can name one of these, whose packed entries were seen."""
    data = _bytes(header)
    is_legible = bool(data) and not data.startswith(_FOREIGN, HEAD + 1)
    return not is_legible or any(packed in data for packed, owner in seen.items() if owner in lost)


def _owner(moment: Moment, seen: dict[bytes, str]) -> str:
    """Return whom a checkpoint names that goes, or perhaps whom a channel of its names: then too much is noted.

    Of a thousand that name the same one, the metadata of one is decoded.

    Args:
        moment: The checkpoint.
        seen: The owners by their packed entry of metadata; what is decoded is added.
    """
    node, header = moment
    data = _bytes(node.header)
    if not data.startswith(_FOREIGN, HEAD + 1):
        times = data.count(_USER)
        if not times and data:
            return ""
        known = next((owner for packed, owner in seen.items() if packed in data), None) if times == 1 else None
        if known is not None:
            return known
    owner = owner_in(header.metadata)
    if owner:
        seen[_USER + _pack(header.metadata[USER])] = owner
    return owner


def _bytes(body: bytes) -> bytes:
    """Return a frame as it is if it were not compressed; nothing of one that is damaged, whose own error says where."""
    if body.startswith(RAW):
        return body
    try:
        return body[:HEAD] + unframe(body)
    except CorruptStore:
        return b""
