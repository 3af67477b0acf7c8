"""The owners of threads: in checkpoints, and in cells for pruned checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from langgraph_keel.engine.config import USER, Address, owner_in, owner_of
from langgraph_keel.engine.encoding.bodies import HEAD, RAW, array_header, open_frame
from langgraph_keel.engine.entries import Header, unpack_header
from langgraph_keel.engine.events import Copy, Leaving, Put, Reading
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.lineage import NodeAndHeader, instant
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Query, Stamp, ThreadInfo
from langgraph_keel.engine.serde.serializer import KeelSerializer
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable
from langgraph_keel.errors import CorruptStore
from langgraph_keel.retention.holds import HOLDS, Hold, read_holds, refusal

AT, SEEN = "at", "seen"
ENTRIES = 500
"""Headers per request."""

_REMEMBERED = 10_000
"""Number of remembered owners, for runs without a `user_id` that continue a thread."""


def _pack_text(text: str) -> list[str]:
    return [text]


def _unpack_text(parts: Sequence[Any]) -> str:
    (text,) = parts
    if not isinstance(text, str):
        raise TypeError(f"{text!r:.60} is not a text")
    return text


COPY_TIMES = CellTable("made", "the note of its creation time", _pack_text, _unpack_text)
"""The ISO time when a thread was created as a copy or fork, under the key `AT`. Under `SEEN`, if the last entry has a
time in the future, the time when a sweep first saw it; the token names that entry."""
OWNERS = CellTable("owners", "the note of an owner", _pack_text, _unpack_text)
"""The owners named only by removed checkpoints, each under the hash of its id."""

_pack = KeelSerializer().pack
_USER = _pack(USER)
_FOREIGN = array_header(3) + _pack(2)
"""The first bytes of an item that another serializer wrote."""


class OwnerHook(Hook):
    """Writes the owner into checkpoints, and preserves it in copies and prunes."""

    hears_replays = True
    tables = (COPY_TIMES, OWNERS)
    shared_tables = (HOLDS,)

    def __init__(self) -> None:
        # By thread and namespace: the last known checkpoint and its owner. Any Python thread may change it: single dict
        # operations are atomic, and the next read restores a lost entry.
        self._last: dict[tuple[str, str], tuple[str | None, str]] = {}

    def read(self, session: Session, reading: Reading) -> None:
        """Remember a checkpoint's owner."""
        if reading.result is not None:
            checkpoint_id = reading.result.config["configurable"]["checkpoint_id"]
            self._remember(reading.address, checkpoint_id, owner_in(reading.result.metadata))

    def draft_put(self, session: Session, put: Put) -> None:
        """Add the owner, if the config of the run has none."""
        owner = owner_in(put.header.metadata)
        if owner:
            owner_of(put.config)
        else:
            # A run without a `user_id` inherits the owner of its thread: a prune may keep only this checkpoint.
            owner = owner_of(put.config, session.owner) or self._recall(put.parent)
            if owner:
                put.header.metadata[USER] = owner
        if owner:
            put.terms.append(f"owner:{owner}")

    def after_put(self, session: Session, put: Put) -> None:
        """Remember a checkpoint's owner."""
        self._remember(put.address, put.address.checkpoint_id, owner_in(put.header.metadata))

    def after_copy(self, session: Session, copy: Copy) -> Plan[None]:
        """Note the creation time and the owners of a copy or fork; see `note_copy`."""
        yield from note_copy(session, copy.source, copy.target)

    def before_remove(self, session: Session, leaving: Leaving) -> Plan[None]:
        """Note the owners named only by these checkpoints: see `note_owners`."""
        yield from note_owners(session, leaving.thread_id, leaving.moments, leaving.kept)

    def before_delete(self, session: Session, thread_id: str) -> None:
        """Forget a thread."""
        for key in [key for key in list(self._last) if key[0] == thread_id]:
            self._last.pop(key, None)

    def describe_thread(self, info: ThreadInfo, header: Header) -> ThreadInfo:
        """Add the owner of a thread."""
        return replace(info, owner=owner_in(header.metadata))

    def find_owner(self, session: Session, config: Mapping[str, Any]) -> str:
        """Return the owner of a run from the config of one of its tasks; empty if unknown."""
        thread_id = str((config.get("configurable") or {}).get("thread_id", ""))
        ask = session.owner if thread_id else None  # it takes configs of runs
        return owner_of(config, ask) or self._last.get((thread_id, ""), ("", ""))[1]

    def _recall(self, parent: Address) -> str:
        known, owner = self._last.get((parent.thread_id, parent.checkpoint_ns), (None, ""))
        return owner if known == parent.checkpoint_id else ""

    def _remember(self, address: Address, checkpoint_id: str | None, owner: str) -> None:
        key = address.thread_id, address.checkpoint_ns
        self._last.pop(key, None)
        if owner:
            self._last[key] = checkpoint_id, owner
            if len(self._last) > _REMEMBERED:
                self._last.pop(next(iter(list(self._last))), None)


def note_copy(session: Session, source: str, target: str) -> Plan[None]:
    """Note the creation time and the owners of a copy or fork.

    Two trips, and one for each owner.
    """
    # Without it, the times of its checkpoints would make it as old as its source.
    yield from Cells(session, COPY_TIMES, target).swap(AT, None, session.now)
    yield from Cells(session, OWNERS, source).copy_raw(target)  # a damaged note is reported by its reader


def read_copy_time(session: Session, thread_id: str) -> Plan[float | None]:
    """Return when a thread was copied or forked, in milliseconds since 1970. One trip."""
    held = yield from Cells(session, COPY_TIMES, thread_id).find(AT)
    return None if held is None else instant(held.record)


def note_owners(
    session: Session, thread_id: str, moments: Sequence[NodeAndHeader], kept: Collection[Stamp]
) -> Plan[None]:
    """Note the owners that no remaining checkpoint names. One trip for each."""
    cells = Cells(session, OWNERS, thread_id)
    for owner in find_lost_owners(moments, kept):
        # The note of an owner is always the same, so one write is enough.
        key = sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()
        yield from cells.swap(key, None, owner, token=key[:32])


def read_noted_owners(session: Session, thread_id: str) -> Plan[set[str]]:
    """Return the owners named only by removed checkpoints. A trip for each 500."""
    return {held.record for _, held in (yield from Cells(session, OWNERS, thread_id).every())}


def read_thread_owners(session: Session, thread_id: str) -> Plan[tuple[set[str], int]]:
    """Return a thread's owners and number of checkpoints.

    A trip for each 500, and one for notes.
    """
    owners, count, query, size = set[str](), 0, Query(thread_id, limit=ENTRIES), ENTRIES
    while size == ENTRIES:
        entries = yield from session.store.scan(query)
        for entry in entries:
            owner = owner_in(unpack_header(entry.header, session.codec, entry.address).metadata)
            owners |= {owner} if owner else set()
        count += len(entries)
        size, query = len(entries), Query(thread_id, after=entries[-1] if entries else None, limit=ENTRIES)
    return owners | (yield from read_noted_owners(session, thread_id)), count


def check_threads(session: Session, thread_ids: Collection[str], holds: Mapping[str, Hold] | None = None) -> Plan[None]:
    """Raise `OnHold` if a thread names a person on hold.

    One trip; more only if there are holds.
    """
    holds = (yield from read_holds(session)) if holds is None else holds
    for thread_id in thread_ids if holds else ():
        owners, _ = yield from read_thread_owners(session, thread_id)
        for owner in sorted(owners & holds.keys()):
            raise refusal(f"thread {thread_id!r}", holds[owner])


def find_lost_owners(moments: Sequence[NodeAndHeader], kept: Collection[Stamp]) -> list[str]:
    """Return the sorted owners named only by removed checkpoints.

    It returns none if no checkpoint is kept.
    """
    if not kept:
        return []
    seen: dict[bytes, str] = {}
    lost = {_find_owner(moment, seen) for moment in moments if moment[0].stamp not in kept} - {""}
    for node, header in moments:
        if lost and node.stamp in kept:
            data = _read_frame(node.header)
            is_legible = bool(data) and not data.startswith(_FOREIGN, HEAD + 1)
            if not is_legible or any(packed in data for packed, owner in seen.items() if owner in lost):
                # Decode it: a channel of the state may contain the same bytes, and then no owner would be noted.
                lost.discard(owner_in(header.metadata))
    return sorted(lost)


def _find_owner(moment: NodeAndHeader, seen: dict[bytes, str]) -> str:
    """Return a checkpoint's owner, or one in a channel: then too many are noted."""
    node, header = moment
    data = _read_frame(node.header)
    if not data.startswith(_FOREIGN, HEAD + 1):
        times = data.count(_USER)  # only one of a thousand checkpoints with one owner has its metadata decoded
        if not times and data:
            return ""
        known = next((owner for packed, owner in seen.items() if packed in data), None) if times == 1 else None
        if known is not None:
            return known
    owner = owner_in(header.metadata)
    if owner:
        seen[_USER + _pack(header.metadata[USER])] = owner
    return owner


def _read_frame(body: bytes) -> bytes:
    """Return a frame uncompressed; empty if damaged, as its decoder reports that."""
    if body.startswith(RAW):
        return body
    try:
        return body[:HEAD] + open_frame(body)
    except CorruptStore:
        return b""
