"""The archive: messages removed from a thread's state, in cells of the thread.

The head of an *archived part* is the cell under its id, a hash of its messages, so a repeated removal writes the same
cells. Its header describes the part, and its body contains the messages, written by the saver's serializer. For a large
part, the body contains the last megabyte; the pieces before it are in separate cells, which are written first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime

from langchain_core.messages import BaseMessage

from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import body_of
from langgraph_keel.engine.lineage import Ancestry
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Graph, Query
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.serde.unread import Unread
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore, NotFound, ValueRefused
from langgraph_keel.summaries.archive.parts import (
    ID,
    Archived,
    Removal,
    add_starts,
    archive_of,
    digest_of,
    id_of,
    in_order,
    part_in,
    part_of,
)

PIECE = 1 << 20
"""Approximate bytes of messages per cell; a larger message has a cell to itself."""

_PAGE = 200
_MOST_BYTES = 8 << 20

_LOT = 8  # cells per request, each about a megabyte
_ID = 24


# -- writing -------------------------------------------------------------------------------------------------------


def archive_messages(session: Session, removal: Removal, is_first_hand: bool = True) -> Plan[Archived]:
    """Archive messages.

    One trip, and one for each further megabyte; twice as many if repeated.
    """
    items = [session.codec.pack_item(message) for message in removal.messages]
    bodies = [body_of(piece) for piece in _pieces(items)]
    entry = _entry(session.codec, removal, session.clock(), sum(map(len, items)), len(bodies) - 1)
    archive = archive_of(session, removal.thread_id)
    head = archive.cell(entry, body=bodies[-1])  # before the first trip, as the messages may change afterwards
    for key, body in zip(_keys(entry), bodies, strict=False):
        # Overwrite even an equal piece: a concurrent removal of the old one must not remove this one.
        yield from archive.overwrite_raw(key, Cell(session.new_token(), session.codec.encode([]), body))
    swapped = yield from archive.swap_raw(entry.id, None, head)
    while swapped.cell is not None:
        held = part_in(archive, entry.id, swapped.cell)
        if is_first_hand:
            entry = replace(add_starts(entry, held.starts), pinned=held.pinned)
        elif set(entry.starts) - set(held.starts):
            entry = add_starts(held, entry.starts)
        else:
            return held
        if entry == held:
            return held
        swapped = yield from archive.swap_raw(entry.id, swapped.cell.token, archive.cell(entry, body=head.body))
    return entry


def _pieces(items: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start = nbytes = 0
    for end, item in enumerate(items):
        if nbytes and nbytes + len(item) > PIECE:
            yield items[start:end]
            start, nbytes = end, 0
        nbytes += len(item)
    yield items[start:]


def _keys(entry: Archived) -> list[str]:
    return [f"{entry.id}.{number:05d}" for number in range(entry.pieces)]


def _entry(codec: Codec, removal: Removal, now: datetime, nbytes: int, pieces: int) -> Archived:
    same = {each.name: getattr(removal, each.name) for each in fields(removal) if each.name != "messages"}
    return Archived(
        **same,
        at=now,
        message_ids=tuple(map(id_of, removal.messages)),
        count=len(removal.messages),
        bytes=nbytes,
        digests=tuple(digest_of(codec, message) for message in removal.messages),
        pieces=pieces,
        starts=(removal.checkpoint_id,) if removal.checkpoint_id else (),
        inner=tuple((place, part) for place, message in enumerate(removal.messages) if (part := part_of(message))),
    )


# -- reading -------------------------------------------------------------------------------------------------------


def read_archived(session: Session, thread_id: str) -> Plan[list[Archived]]:
    """Return a thread's parts in order (`in_order`). One trip for each 500."""
    archive = archive_of(session, thread_id)
    cells = yield from archive.every_raw()
    return in_order([part_in(archive, key, cell) for key, cell in cells if ID.fullmatch(key)])


def has_part(session: Session, thread_id: str, part: str) -> Plan[bool]:
    """Return whether a part exists. One trip."""
    return bool((yield from archive_of(session, thread_id).read_raw([part])))


def read_messages(session: Session, thread_id: str, part: str) -> Plan[list[BaseMessage]]:
    """Return the messages of a part. One trip; two if it is large."""
    entry, head = yield from _read_head(session, thread_id, part)
    keys = _keys(entry)
    cells = (yield from archive_of(session, thread_id).read_raw(keys)) if keys else {}
    return _read_messages(session.codec, entry, {**cells, part: head})


def read_parts(session: Session, thread_id: str, entries: Sequence[Archived]) -> Plan[dict[str, list[BaseMessage]]]:
    """Return the messages of existing parts by id. One trip for several megabytes."""
    found: dict[str, list[BaseMessage]] = {}
    for page in pages_of(entries):
        keys = [key for entry in page for key in (*_keys(entry), entry.id)]
        cells = yield from archive_of(session, thread_id).read_raw(keys)
        found |= {entry.id: _read_messages(session.codec, entry, cells) for entry in page if entry.id in cells}
    return found


def pages_of(entries: Sequence[Archived]) -> Iterator[list[Archived]]:
    """Yield parts in pages that fit into one request."""
    page: list[Archived] = []
    for entry in entries:
        if page and (sum(each.bytes for each in page) + entry.bytes > _MOST_BYTES or len(page) >= _PAGE):
            yield page
            page = []
        page.append(entry)
    if page:
        yield page


def _read_messages(codec: Codec, entry: Archived, cells: Mapping[str, Cell]) -> list[BaseMessage]:
    where = f"thread {entry.thread_id!r}, archived part {entry.id}"
    keys = [*_keys(entry), entry.id]
    if missing := [key for key in keys if key not in cells]:
        raise CorruptStore(f"{where}: its piece {missing[0]} is missing")
    messages: list[BaseMessage] = []
    for key in keys:
        try:
            messages += codec.decode(cells[key].body)
        except ValueRefused as error:
            raise error.at(where) from error
        except CorruptStore as error:
            raise CorruptStore(f"{where}: its messages do not decode: {error}") from error
    if not all(isinstance(message, BaseMessage | Unread) for message in messages):
        raise CorruptStore(f"{where}: it contains values that are not messages")
    # The id of an unread message (`saver.raw`) is only in the head.
    said = zip(messages, entry.message_ids, strict=False)
    ids = [name if isinstance(message, Unread) else id_of(message) for message, name in said]
    if len(messages) != len(entry.message_ids) or tuple(ids) != entry.message_ids:
        raise CorruptStore(f"{where}: it contains other messages than its head lists")
    return messages


def _read_head(session: Session, thread_id: str, part: str) -> Plan[tuple[Archived, Cell]]:
    archive = archive_of(session, thread_id)
    cells = (yield from archive.read_raw([part])) if ID.fullmatch(part) else {}
    if part not in cells:
        raise NotFound(f"the archive of thread {thread_id!r} has no part {part!r:.60}: `keel archive` lists its parts")
    return part_in(archive, part, cells[part]), cells[part]


# -- keeping -------------------------------------------------------------------------------------------------------


def pin(session: Session, thread_id: str, part: str, pinned: bool) -> Plan[Archived]:
    """Mark a part for keeping, or remove the mark. Two trips."""
    archive = archive_of(session, thread_id)
    while True:
        entry, cell = yield from _read_head(session, thread_id, part)
        if entry.pinned is pinned:
            return entry
        entry = replace(entry, pinned=pinned)
        new = archive.cell(entry, body=cell.body, origin=cell.origin, expires_at=cell.expires_at)
        if (yield from archive.swap_raw(part, cell.token, new)).done:
            return entry


def remove_archived(session: Session, thread_id: str, part: str) -> Plan[None]:
    """Remove a part permanently, its head first.

    Two trips; for a large part three, and its pieces one by one.
    """
    entry, cell = yield from _read_head(session, thread_id, part)
    archive = archive_of(session, thread_id)
    pieces = (yield from archive.every_raw(f"{part}.")) if entry.pieces else ()
    yield from archive.remove({part: cell.token})
    if pieces:
        yield from archive.remove({key: piece.token for key, piece in pieces})


def find_way(session: Session, at: Address) -> Plan[tuple[set[str], set[str]]]:
    """Return the path to a checkpoint, and those known to be elsewhere. One trip."""
    graph = yield from session.store.read_graph(at.thread_id)
    nodes = [node for node in graph.nodes if node.address.checkpoint_ns == at.checkpoint_ns]
    ids = [str(node.address.checkpoint_id) for node in nodes]
    if at.checkpoint_id not in ids:
        return set(), set()
    # If checkpoints were pruned, the path may have included any earlier one.
    way = [str(node.address.checkpoint_id) for node in Ancestry(nodes).way(nodes[ids.index(at.checkpoint_id)])]
    return set(way), set(ids[ids.index(way[-1]) :]).difference(way)


# -- orphans ---------------------------------------------------------------------------------------------------------


def has_checkpoint(session: Session, thread_id: str) -> Plan[bool]:
    """Return whether a thread has a checkpoint of any graph. One trip."""
    return bool((yield from session.store.scan(Query(thread_id, limit=1))))


def remove_orphans(session: Session, thread_id: str) -> Plan[None]:
    """Remove the archive of a deleted thread. One trip; three if there is an archive."""
    archive = archive_of(session, thread_id)
    cells = yield from archive.every_raw()
    # The cells were listed before this check, so they exclude those of a thread that is created now.
    if cells and not (yield from has_checkpoint(session, thread_id)):
        yield from archive.remove({key: cell.token for key, cell in cells})


def take_back(session: Session, entry: Archived) -> Plan[None]:
    """Remove a part archived by mistake, unless it existed before."""
    if not entry.pinned and len(entry.starts) < 2:
        with suppress(NotFound):
            yield from remove_archived(session, entry.thread_id, entry.id)


# -- copying --------------------------------------------------------------------------------------------------------


def copy_archive(session: Session, source: str, target: str) -> Plan[None]:
    """Copy a thread's archive to a new thread.

    One trip if it is empty, otherwise two and some for each cell.
    """
    cells = yield from archive_of(session, source).every_raw()
    yield from _copy_cells(session, source, target, [key for key, _ in cells])


def fork_archive(session: Session, source: str, target: str, fork: Graph, at: Address) -> Plan[None]:
    """Copy to a fork the parts archived on its path.

    One trip; with parts, two more and those of the cells.
    """
    archive = archive_of(session, source)
    cells = yield from archive.every_raw()
    graph = (yield from session.store.read_graph(source)) if cells else fork
    # The checkpoints whose steps are not in the fork. Parts that started only from these are skipped. All others are
    # copied, including those without a known start and unreadable ones.
    later = _places(graph) - _places(fork) | {(at.checkpoint_ns, at.checkpoint_id)}
    parts = set[str]()
    for key, cell in cells:
        if ID.fullmatch(key):
            starts = set[tuple[str, str | None]]()
            with suppress(CorruptStore):  # copied as it is, and reported by its reader
                head = part_in(archive, key, cell)
                starts = {(head.checkpoint_ns, start) for start in head.starts}
            if not starts or starts - later:
                parts.add(key)
    yield from _copy_cells(session, source, target, [key for key, _ in cells if key[:_ID] in parts])


def _places(graph: Graph) -> set[tuple[str, str | None]]:
    return {(node.address.checkpoint_ns, node.address.checkpoint_id) for node in graph.nodes}


def _copy_cells(session: Session, source: str, target: str, keys: Sequence[str]) -> Plan[None]:
    """Copy cells undecoded, each part's head last.

    One trip for each cell, one for each lot, and one at the end.
    """
    ordered = sorted(keys, key=lambda key: (key[:_ID], -len(key), key))
    for start in range(0, len(ordered), _LOT):
        lot = ordered[start : start + _LOT]
        found = yield from archive_of(session, source).read_raw(lot)
        for key in lot:
            if key in found:
                yield from archive_of(session, target).swap_raw(key, None, found[key])
    if keys and not (yield from has_checkpoint(session, target)):
        yield from remove_orphans(session, target)
        raise NotFound(
            f"thread {target!r} was deleted while the archive of {source!r} was copied to it: nothing of it is left"
        )
