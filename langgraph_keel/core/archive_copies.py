"""An archive that goes with its thread: copied with it, and removed where the thread turns out to be gone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from langgraph_keel.core.archived import ID, Archived, entry_in
from langgraph_keel.core.archives import cells_of, remove_archived, shelf_of
from langgraph_keel.core.cells import Cell
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.records import Address, Graph, Query
from langgraph_keel.core.store import Store
from langgraph_keel.errors import CorruptStore, NotFound

_LOT = 8  # of cells, each a megabyte or somewhat more
_ID = 24


# -- what should not be there ----------------------------------------------------------------------------------------


def has_checkpoint(store: Store[Q, R], thread_id: str) -> Plan[Q, R, bool]:
    """Return whether a thread has a checkpoint, of whatever graph. One trip."""
    return bool((yield from store.scan(Query(thread_id, limit=1))))


def drop_orphans(store: Store[Q, R], thread_id: str) -> Plan[Q, R, None]:
    """Remove the archive of a thread that is gone. A trip; three if there is one.

    What a run archives after its thread was deleted nobody would find, and a new thread of the same id would have it.
    """
    cells = yield from cells_of(store, thread_id)
    # Listed before this look: the cells of a thread that somebody begins from now on are not among them.
    if cells and not (yield from has_checkpoint(store, thread_id)):
        yield from store.remove_cells(shelf_of(thread_id), {key: cell.token for key, cell in cells})


def take_back(store: Store[Q, R], codec: Codec, entry: Archived) -> Plan[Q, R, None]:
    """Remove a part that was just archived, but should not have been. Two trips, or more; see `remove_archived`.

    If it was there before, it stays: other steps have taken the same messages, or somebody has pinned it.
    """
    if not entry.pinned and len(entry.starts) < 2:
        with suppress(NotFound):
            yield from remove_archived(store, codec, entry.thread_id, entry.id)


# -- copying --------------------------------------------------------------------------------------------------------


def copy_archive(store: Store[Q, R], source: str, target: str) -> Plan[Q, R, None]:
    """Copy the archive of a thread to a new one. A trip; if it has one, another, and some more than one for each cell.

    Raises:
        NotFound: The new thread was deleted meanwhile; nothing of the archive stays.
    """
    cells = yield from cells_of(store, source)
    yield from _copied(store, source, target, [key for key, _ in cells])


def fork_archive(
    store: Store[Q, R], codec: Codec, source: str, target: str, fork: Graph, at: Address
) -> Plan[Q, R, None]:
    """Copy to a fork what was archived on its way. A trip; if that is anything, two more, and those of the cells.

    What was taken out since, or on another branch, is left out. Where that cannot be said, since checkpoints were
    pruned or a head does not decode, it is copied.

    Args:
        store: The store.
        codec: How heads are written.
        source: The thread.
        target: The new thread.
        fork: All checkpoints of that.
        at: The one it was made at.

    Raises:
        NotFound: The new thread was deleted meanwhile; nothing of the archive stays.
    """
    cells = yield from cells_of(store, source)
    later = (yield from _later(store, source, fork, at)) if cells else set()
    heads = {key: _starts(codec, source, key, cell) for key, cell in cells if ID.fullmatch(key)}
    parts = {key for key, starts in heads.items() if not starts or starts - later}
    yield from _copied(store, source, target, [key for key, _ in cells if key[:_ID] in parts])


def _starts(codec: Codec, thread_id: str, key: str, cell: Cell) -> set[tuple[str, str | None]]:
    try:
        head = entry_in(codec, thread_id, key, cell)
    except CorruptStore:
        return set()  # copied as it is: who reads it there is told, as here
    return {(head.checkpoint_ns, start) for start in head.starts}


def _copied(store: Store[Q, R], source: str, target: str, keys: Sequence[str]) -> Plan[Q, R, None]:
    """Copy cells as they are, the head of each part last. A trip for each, one for each lot, and one at the end."""
    ordered = sorted(keys, key=lambda key: (key[:_ID], -len(key), key))
    for start in range(0, len(ordered), _LOT):
        lot = ordered[start : start + _LOT]
        found = yield from store.read_cells(shelf_of(source), lot)
        for key in lot:
            if key in found:
                yield from store.swap_cell(shelf_of(target), key, None, found[key])
    if keys and not (yield from has_checkpoint(store, target)):
        yield from drop_orphans(store, target)
        raise NotFound(
            f"thread {target!r} was deleted before the archive of {source!r} was there: nothing of it is left"
        )


def _later(store: Store[Q, R], source: str, fork: Graph, at: Address) -> Plan[Q, R, set[tuple[str, str | None]]]:
    """Return the checkpoints of a thread from which steps began that its fork has not taken."""
    graph = yield from store.read_graph(source)
    taken = {(node.address.checkpoint_ns, node.address.checkpoint_id) for node in fork.nodes}
    every = {(node.address.checkpoint_ns, node.address.checkpoint_id) for node in graph.nodes}
    return every - taken | {(at.checkpoint_ns, at.checkpoint_id)}
