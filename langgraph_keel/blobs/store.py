"""A store layer that keeps large rows and writes in objects.

The row contains a reference instead (`engine.encoding.bodies.Absent`): the id of the store, a token, the SHA-256 of the
body, and its size. With a keyring, this layer is below the sealing layer, so the digests are of sealed bytes and reveal
nothing.

*Order.* An object is written before its row, and deleted after it. So a failure can only leave an object without a row.

*Names.* `<store>/<thread>/<digest>-<token>`. The folder of a thread is named by a hash of its id. Rows are copied
unchanged with a thread, and a reader looks in the folder of its own thread.

*No second reference.* A place cannot delete an object on condition that it has no references. So only the write that
created an object ever refers to it (by the token), and an object without a reference is deleted after an hour
(`GRACE`). The object of a removed row is deleted immediately, because rows that no entry shows are never shown again.

*A copy* writes objects under names that a deletion may be about to remove. So a deletion first writes a mark to the
folder (`_Mark`), and a copy looks for marks after its rows are stored. If it finds one, the copy is undone and refused.
If not, no further object will be removed, and the copy checks which objects are missing. A prune sets no mark: it could
only harm a thread that was deleted and copied again between two requests of the prune.

*Clocks.* The hour is measured by this machine's clock, and the age of an object by the clock of the place. Buckets
refuse requests that are signed more than 15 minutes away from their own time.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from secrets import token_bytes, token_hex
from typing import Any, NamedTuple

from langgraph_keel.blobs.objects import (
    Ask,
    CopyObjects,
    Fetch,
    Listed,
    ListObjects,
    MakeFolder,
    Objects,
    Remove,
    Upload,
)
from langgraph_keel.engine.cells import OBJECTS, OBJECTS_KEY, Cell, Shelf
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import (
    BLOB,
    Absent,
    absent_frame,
    open_frame,
    raw_frame,
    read_absent,
    rows_in,
)
from langgraph_keel.engine.layers import Layer
from langgraph_keel.engine.listing import read_names
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import (
    Batch,
    Copied,
    CopyOutcome,
    Entry,
    Found,
    Graph,
    NewEntry,
    Occupied,
    Outcome,
    Query,
    Replacement,
    Row,
    Run,
    Stamp,
    Stored,
    Unchanged,
    Writes,
)
from langgraph_keel.engine.removal import Removal, RowPlace, view_removed
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.thread import touches
from langgraph_keel.errors import CorruptStore, StoreBusy, StoreFull

LIMIT = 1 << 16
"""Default size, in bytes, above which a body is kept in an object."""
LEAST = 1024
"""Minimum of `blob_limit`, in bytes: a reference takes about a hundred."""
GRACE = 3_600_000
"""Age, in milliseconds, at which an object without a reference is a leftover."""
WRITES = 500
"""Writes per page."""
_ROUNDS = 20
"""Maximum number of attempts to read a thread that is being pruned."""

_REMOVING = "removing-"
"""Prefix of the names of objects that are marks, not values."""

_STRAY = re.compile(r"\x1fobjects/([0-9a-f]{32})")
"""Placeholder for the unknown id of a deleted thread that still has objects. No thread has such a name."""


class _Mark(NamedTuple):
    """Marks a folder in which objects are being removed that a copy may write again."""

    name: str  # of its object, which is valid for an hour, and swept if its process died
    written_at: int  # milliseconds since 1970


def _milliseconds() -> int:
    return int(time.time() * 1000)


class BlobStore(Layer):
    """Keeps bodies above `limit` bytes in objects, and caches `room` bytes of them."""

    def __init__(
        self,
        store: Store[Any, Any],
        objects: Objects,
        limit: int,
        room: int,
        clock: Callable[[], int] = _milliseconds,
    ) -> None:
        super().__init__(store)
        self._objects = objects
        self._ask = partial(Ask, objects)
        self._limit = limit
        self._most = self._room = room
        self._clock = clock
        self._id: bytes | None = None
        self._can_end = False  # only a tenant's store can
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._dying: dict[str, dict[RowPlace, str]] = {}

    # -- writing -----------------------------------------------------------------------------------------------

    def write_entry(self, new: NewEntry) -> Plan[Outcome]:
        """See `Store.write_entry`.

        One more request for large bodies; the first time, up to two more trips.
        """
        if any(self._is_large(row.body) for rows in new.repacks.values() for row in rows):
            # A large packed row would upload again what objects already contain, and packing only saves space.
            small = {name: [row for row in rows if not self._is_large(row.body)] for name, rows in new.repacks.items()}
            new = replace(new, repacks={name: tuple(rows) for name, rows in small.items() if rows})
        if not any(self._is_large(row.body) for rows in new.appends.values() for row in rows):
            return (yield from self.inner.write_entry(new))
        if self._can_end and new.base is None and not (new.checked and new.parent):
            self._id = None  # the store may have been emptied, and then has a new id
        bodies: dict[str, bytes] = {}
        store, thread_id = (yield from self._make_id()), new.address.thread_id
        appends = {
            name: tuple(self._move_row(row, store, thread_id, bodies) for row in rows)
            for name, rows in new.appends.items()
        }
        outcome: Outcome = yield from self._write(bodies, self.inner.write_entry(replace(new, appends=appends)))
        if not isinstance(outcome, Stored):
            yield from self._remove(bodies)  # no other process refers to these
        return outcome

    def write_batch(self, address: Address, batch: Batch) -> Plan[None]:
        """See `Store.write_batch`. Requests as for `write_entry`."""
        if not self._is_large(batch.body):
            yield from self.inner.write_batch(address, batch)
            return
        bodies: dict[str, bytes] = {}
        body = self._move(batch.body, 1, (yield from self._make_id()), address.thread_id, bodies)
        yield from self._write(bodies, self.inner.write_batch(address, replace(batch, body=body)))

    def replace_plain(self, thread_id: str, new: Replacement) -> Plan[None]:
        """See `Store.replace_plain`. Plain-text objects are swept after an hour."""
        bodies: dict[str, bytes] = {}
        store = yield from self._make_id()
        rows = {place: [self._move_row(row, store, thread_id, bodies) for row in of] for place, of in new.rows.items()}
        writes = [
            replace(each, batch=replace(each.batch, body=self._move(each.batch.body, 1, store, thread_id, bodies)))
            for each in new.writes
        ]
        yield from self._write(bodies, self.inner.replace_plain(thread_id, replace(new, rows=rows, writes=writes)))

    def _is_large(self, body: bytes) -> bool:
        return len(body) > self._limit

    def _move(self, body: bytes, count: int, store: bytes, thread_id: str, bodies: dict[str, bytes]) -> bytes:
        """Return the body to store in a row. A large body is replaced by a reference and added to `bodies`."""
        if not self._is_large(body):
            return body
        absent = Absent(store, token_bytes(8), hashlib.sha256(body).digest(), len(body), count)
        bodies[_name_of(absent, thread_id)] = body
        return absent_frame(absent)

    def _move_row(self, row: Row, store: bytes, thread_id: str, bodies: dict[str, bytes]) -> Row:
        return Row(row.lo, row.count, self._move(row.body, row.count, store, thread_id, bodies))

    def _write(self, bodies: Mapping[str, bytes], written: Plan[Any]) -> Plan[Any]:
        """Write objects, then the rows that refer to them."""
        if not bodies:
            return (yield from written)
        began = self._clock()
        yield self._ask(Upload(bodies))
        reply = yield from written
        if self._clock() - began > GRACE // 2:
            # This process was suspended so long that a sweep may have removed them as leftovers.
            yield self._ask(Upload(bodies))
        for name, body in bodies.items():
            self._remember(name, body)
        return reply

    # -- reading -----------------------------------------------------------------------------------------------

    def read_entry(self, address: Address, known: Stamp | None = None) -> Plan[Any]:
        """See `Store.read_entry`.

        One more request if an object is needed that is not cached.
        """
        found: Found | Unchanged | None = yield from self.inner.read_entry(address, known)
        if isinstance(found, Unchanged):
            bodies = yield from self._fetch(_absent_in(address.thread_id, [batch.body for batch in found.batches]))
            return replace(found, batches=[_fill_batch(each, address.thread_id, bodies) for each in found.batches])
        return None if found is None else (yield from self._fill([found]))[0]

    def read_values(self, entries: Sequence[Entry]) -> Plan[Sequence[Found]]:
        """See `Store.read_values`.

        One more request for all needed objects that are not cached.
        """
        asked = {entry.stamp: entry for entry in entries}
        found: Sequence[Found] = yield from self.inner.read_values(entries)
        # Only the requested rows, so that no other objects are fetched.
        return (yield from self._fill([_narrow(each, asked[each.entry.stamp]) for each in found]))

    def read_history(self, address: Address, channels: Collection[str]) -> Plan[Sequence[Found]]:
        """See `Store.read_history`. Requests as for `read_values`."""
        found: Sequence[Found] = yield from self.inner.read_history(address, channels)
        wanted = [{name: rows for name, rows in each.rows.items() if name in channels} for each in found]
        return (yield from self._fill([replace(each, rows=rows) for each, rows in zip(found, wanted, strict=True)]))

    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> Plan[Sequence[Writes]]:
        """See `Store.list_writes`."""
        page: Sequence[Writes] = yield from self.inner.list_writes(thread_id, after, limit)
        bodies = yield from self._fetch(_absent_in(thread_id, [each.batch.body for each in page]))
        return [replace(each, batch=_fill_batch(each.batch, thread_id, bodies)) for each in page]

    def _fill(self, found: Sequence[Found]) -> Plan[Sequence[Found]]:
        """Replace references in entries by bodies. Shared rows stay shared."""
        absent: dict[str, Absent] = {}
        for each in found:
            rows = (row.body for of in each.rows.values() for row in of)
            absent |= _absent_in(each.entry.address.thread_id, [*rows, *(batch.body for batch in each.batches)])
        if not absent:
            return found
        bodies = yield from self._fetch(absent)
        filled: dict[int, Row] = {}

        def fill(row: Row, thread_id: str) -> Row:
            if (name := _name_in(thread_id, row.body)) is None:
                return row
            if id(row) not in filled:
                filled[id(row)] = Row(row.lo, row.count, bodies[name])
            return filled[id(row)]

        return [
            Found(
                each.entry,
                {name: [fill(row, thread_id) for row in rows] for name, rows in each.rows.items()},
                [_fill_batch(batch, thread_id, bodies) for batch in each.batches],
            )
            for each in found
            for thread_id in [each.entry.address.thread_id]
        ]

    def _fetch(self, absent: Mapping[str, Absent]) -> Plan[Mapping[str, bytes]]:
        """Return the bodies of objects by name. The body of a lost object reports the loss."""
        bodies = {name: body for name in absent if (body := self._known.get(name)) is not None}
        sizes = {name: each.size for name, each in absent.items() if name not in bodies}
        if not sizes:
            return bodies
        read: Mapping[str, bytes] = yield self._ask(Fetch(sizes))
        for name, size in sizes.items():
            body = read.get(name)
            if body is not None and hashlib.sha256(body).digest() == absent[name].digest:
                self._remember(name, body)
                bodies[name] = body
                continue
            what = "is gone" if body is None else "was changed"
            reason = f"a value of {size:,} bytes is lost: the object {name} in {self._objects.place} {what}"
            bodies[name] = absent_frame(replace(absent[name], reason=reason))
        return bodies

    def _remember(self, name: str, body: bytes) -> None:
        # Each step is atomic in the interpreter, so threads need no lock.
        if self._known.setdefault(name, body) is body:
            self._room -= len(body)
        while self._room < 0 and self._known:
            self._room += len(self._known.popitem(last=False)[1])

    # -- removing ----------------------------------------------------------------------------------------------

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> Plan[None]:
        """See `Store.remove_entries`.

        If a thread has objects, the rows to be removed are read first.
        """
        dying: Mapping[RowPlace, str | None] = {}
        writes: Sequence[str | None] = ()
        if (yield from self._list(thread_id)):
            graph: Graph = yield from self.inner.read_graph(thread_id)
            removal = Removal(set(gone), {stamp: set(channels) for stamp, channels in ghosts.items()})
            dying, writes = yield from view_removed(self.inner, graph, removal, partial(_name_in, thread_id))
        yield from self.inner.remove_entries(thread_id, gone, ghosts)
        if names := [name for name in writes if name]:
            # A checkpoint that was written again concurrently keeps its writes; a sweep finds the leftovers of others.
            went = {node.address for node in graph.nodes if node.stamp in gone}
            left: Graph = yield from self.inner.read_graph(thread_id)
            if went.isdisjoint(node.address for node in left.nodes):
                yield from self._remove(names)
        if rows := {place: name for place, name in dying.items() if name}:
            self._dying.setdefault(thread_id, {}).update(rows)

    def remove_rows(self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph) -> Plan[int]:
        """See `Store.remove_rows`.

        Deletes their objects, too, and leftovers of failed writes.
        """
        removed: int = yield from self.inner.remove_rows(thread_id, live, graph)
        dying = self._dying.pop(thread_id, {})
        # A concurrent write may show a row again, because the entry it builds on still existed.
        dead = [
            name
            for (namespace, channel, lo, count), name in dying.items()
            if not touches(Row(lo, count, b""), live.get((namespace, channel), ()))
        ]
        if dead:
            yield from self._remove(dead)
        yield from self._sweep_outside(thread_id)
        return removed

    def _remove(self, names: Collection[str]) -> Plan[None]:
        for name in names:
            if (body := self._known.pop(name, None)) is not None:
                self._room += len(body)
        yield self._ask(Remove(names))

    def _mark(self, folder: str) -> Plan[_Mark]:
        mark = _Mark(f"{folder}/{_REMOVING}{token_hex(8)}", self._clock())
        with suppress(StoreFull):  # the place is full, and the removal makes space
            yield self._ask(Upload({mark.name: b""}))
        return mark

    def _remove_marked(self, mark: _Mark, names: Collection[str]) -> Plan[None]:
        """Delete objects, then the mark. If this process was suspended, a later sweep deletes the objects."""
        if names and self._clock() - mark.written_at < GRACE // 2:
            yield from self._remove(names)
        yield self._ask(Remove([mark.name]))

    def _sweep_outside(self, thread_id: str) -> Plan[None]:
        """Delete a thread's objects without a reference, an hour after they were written. One request, or more."""
        old = self._old((yield from self._list(thread_id)))
        if old and (left := old - (yield from self._find_names(thread_id))):
            yield from self._sweep(left)

    def _sweep(self, left: Collection[str]) -> Plan[None]:
        """Delete old, unreferenced objects of a folder, unless a copy has written them again."""
        folder = _folder_in(left)
        mark = yield from self._mark(folder)
        yield from self._remove_marked(mark, self._old((yield self._ask(ListObjects(folder)))).intersection(left))

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> Plan[bool]:
        """See `Store.delete_thread`.

        Deletes its objects afterwards. Recent leftovers stay, as a stray.
        """
        if stray := _STRAY.fullmatch(thread_id):
            store = yield from self._find_id()
            if left := self._old((yield self._ask(ListObjects(f"{store.hex()}/{stray[1]}"))) if store else ()):
                yield from self._sweep(left)
            return True
        listed = {each.name for each in (yield from self._list(thread_id))}
        names: Collection[str] = (yield from self._find_names(thread_id)) if listed else ()
        mark = (yield from self._mark(_folder_in(listed))) if names else None
        is_deleted: bool = yield from self.inner.delete_thread(thread_id, last)
        self._dying.pop(thread_id, None)
        if mark is not None:
            yield from self._remove_marked(mark, names if is_deleted else ())
        if is_deleted and listed:
            yield from self._sweep_outside(thread_id)
        return is_deleted

    def list_strays(self, after: str | None, limit: int) -> Plan[Sequence[str]]:
        """See `Store.list_strays`.

        Object folders of deleted threads come last, each with its own name.
        """
        names: list[str] = []
        if after is None or not _STRAY.fullmatch(after):
            names += yield from self.inner.list_strays(after, limit)
            if len(names) == limit:
                return names
            after = None
        store = yield from self._find_id()
        if store is None:
            return names
        listed: Sequence[Listed] = yield self._ask(ListObjects(store.hex()))
        folders = {each.name.split("/")[1] for each in listed}
        if folders:
            folders -= {_folder_of(name) for name in (yield from read_names(self.inner, passes=True))}
        strays = sorted(f"\x1fobjects/{folder}" for folder in folders)
        return [*names, *(name for name in strays if after is None or name > after)][:limit]

    def delete_all(self, limit: int) -> Plan[int]:
        """See `Store.delete_all`.

        Objects are deleted first, because the id of their folder is deleted, too.
        """
        if (store := (yield from self._find_id())) is not None:
            listed: Sequence[Listed] = yield self._ask(ListObjects(store.hex()))
            if listed:
                yield from self._remove([each.name for each in listed])
        deleted: int = yield from self.inner.delete_all(limit)
        if not deleted:
            self._id = None
        return deleted

    def _old(self, listed: Iterable[Listed]) -> set[str]:
        before = self._clock() - GRACE
        return {each.name for each in listed if each.written_at < before}

    def _list(self, thread_id: str) -> Plan[Sequence[Listed]]:
        """Return the objects of a thread. One request; none if the store has no objects."""
        store = yield from self._find_id()
        if store is None:
            return ()
        listed: Sequence[Listed] = yield self._ask(ListObjects(f"{store.hex()}/{_folder_of(thread_id)}"))
        return listed

    def _find_names(self, thread_id: str, upto: Entry | None = None) -> Plan[set[str]]:
        """Return the objects that a thread, or its past up to an entry, refers to."""
        # Entries may show rows of earlier ones, so all is read again if one was removed, or written again, during the
        # read.
        graph: Graph = yield from self.inner.read_graph(thread_id)
        for _ in range(_ROUNDS):
            names = yield from self._find_names_in(thread_id, graph, upto)
            read, graph = graph, (yield from self.inner.read_graph(thread_id))
            shown = {node.stamp: node.refs for node in graph.nodes}
            if all(shown.get(node.stamp) == node.refs for node in read.nodes):
                return names
        raise StoreBusy(f"thread {thread_id!r} was read {_ROUNDS} times, and checkpoints were removed each time")

    def _find_names_in(self, thread_id: str, graph: Graph, upto: Entry | None) -> Plan[set[str]]:
        nodes = [*graph.nodes]
        if upto is not None:
            at = next((number for number, node in enumerate(nodes) if node.stamp == upto.stamp), -1)
            nodes = nodes[: at + 1]
            # The writes of the last entry are not copied: its step runs again.
        view = partial(_name_in, thread_id)
        all_of = Removal(ghosts={node.stamp: set() for node in nodes})
        rows, _ = yield from view_removed(self.inner, replace(graph, nodes=nodes), all_of, view)
        names = {name for name in rows.values() if name}
        copied = {node.address for node in (nodes if upto is None else nodes[:-1])}
        page: Sequence[Writes] = yield from self.inner.list_writes(thread_id, None, WRITES)
        while page:
            names |= {
                name for each in page if (upto is None or each.address in copied) and (name := view(each.batch.body))
            }
            more = len(page) == WRITES
            page = (yield from self.inner.list_writes(thread_id, page[-1], WRITES)) if more else ()
        return names

    # -- copying -----------------------------------------------------------------------------------------------

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Plan[CopyOutcome]:
        """See `Store.copy_thread`.

        Objects are copied before the rows, which are read twice, and checked after.
        """
        if (yield from self._find_id()) is not None:
            entries: Sequence[Entry] = yield from self.inner.scan(Query(target, limit=1))
            if entries or (yield from self.inner.list_writes(target, None, 1)):
                return Occupied()
            if names := (yield from self._find_names(source, upto)):
                yield self._ask(CopyObjects({name: _moved(name, source, target) for name in names}))
        outcome: CopyOutcome = yield from self.inner.copy_thread(source, target, upto)
        # The objects stay if the copy is refused: a concurrent copy of the same thread refers to the same names.
        if not isinstance(outcome, Copied) or (yield from self._find_id()) is None:
            return outcome
        needed = yield from self._find_names(target)
        listed = yield from self._list(target)
        there = {each.name for each in listed}
        if needed and any(_REMOVING in name for name in there - self._old(listed)):
            yield from self.delete_thread(target)
            raise StoreBusy(
                f"thread {target!r}: objects of the former thread of this name are still being removed: copy "
                f"{source!r} again later, or to another thread id"
            )
        if missing := needed - there:
            lost: Collection[str] = yield self._ask(
                CopyObjects({_moved(name, target, source): name for name in missing})
            )
            if lost and not set(lost) <= (yield from self._find_names(source)):
                yield from self.delete_thread(target)
                raise StoreBusy(f"thread {source!r} was pruned while it was copied: copy it again")
        return outcome

    # -- the store's id ----------------------------------------------------------------------------------------

    def of_tenant(self, tenant: str) -> BlobStore:
        """See `Store.of_tenant`. A tenant has its own folder."""
        store = BlobStore(self.inner.of_tenant(tenant), self._objects, self._limit, self._most, self._clock)
        store._can_end = True
        return store

    def list_kinds(self, thread_id: str | None) -> Plan[Sequence[str]]:
        """See `Store.list_kinds`.

        Omits this layer's kind, which is never sealed, as it is below that layer.
        """
        kinds: Sequence[str] = yield from self.inner.list_kinds(thread_id)
        return [kind for kind in kinds if kind != OBJECTS.kind]

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> Plan[Mapping[str, Cell]]:
        """See `Store.read_cells`.

        Hides this layer's cell: a layer above that finds one has no `blobs=`.
        """
        return {} if shelf == OBJECTS else (yield from self.inner.read_cells(shelf, keys))

    def _find_id(self) -> Plan[bytes | None]:
        """Return this store's id in the place; `None` if it has no objects. At most one trip."""
        if self._id is None:
            cells = yield from self.inner.read_cells(OBJECTS, [OBJECTS_KEY])
            self._id = _parse_id(cells[OBJECTS_KEY]) if OBJECTS_KEY in cells else None
        return self._id

    def _make_id(self) -> Plan[bytes]:
        """Return the id, created if needed with one more trip and a request."""
        found = yield from self._find_id()
        if found is None:
            cell = Cell(token_hex(16), raw_frame(token_bytes(8)))
            # The folder first: a cell without a folder means a wrong place.
            yield self._ask(MakeFolder(_parse_id(cell).hex()))
            swapped = yield from self.inner.swap_cell(OBJECTS, OBJECTS_KEY, None, cell)
            found = self._id = _parse_id(cell if swapped.done else swapped.cell)
        return found


def _parse_id(cell: Cell | None) -> bytes:
    """Return the id in a store's cell."""
    found = open_frame(cell.header) if cell else b""
    if len(found) != 8:
        raise CorruptStore("the record that names the folder of this store's objects is damaged")
    return found


def _folder_of(thread_id: str) -> str:
    return hashlib.sha256(thread_id.encode(errors="surrogatepass")).hexdigest()[:32]


def _folder_in(names: Collection[str]) -> str:
    """Return the folder of objects of one thread."""
    return next(iter(names)).rpartition("/")[0]


def _name_of(absent: Absent, thread_id: str) -> str:
    return f"{absent.store.hex()}/{_folder_of(thread_id)}/{absent.digest.hex()}-{absent.token.hex()}"


def _name_in(thread_id: str, body: bytes) -> str | None:
    """Return the name of the object that a body refers to, or `None`."""
    if not body.startswith(BLOB):
        return None
    try:
        absent = read_absent(body)
    except CorruptStore:
        return None
    return _name_of(absent, thread_id) if absent else None


def _absent_in(thread_id: str, bodies: Iterable[bytes]) -> dict[str, Absent]:
    """Return the references among some bodies, by object name."""
    found: dict[str, Absent] = {}
    for body in bodies:
        if (name := _name_in(thread_id, body)) and (absent := read_absent(body)):
            found[name] = absent
    return found


def _moved(name: str, source: str, target: str) -> str:
    """Return an object's name in another thread."""
    return name.replace(_folder_of(source), _folder_of(target), 1)


def _narrow(found: Found, asked: Entry) -> Found:
    """Return an entry with only the requested rows, if any of its rows is in an object."""
    if not any(row.body.startswith(BLOB) for rows in found.rows.values() for row in rows):
        return found
    rows = {name: rows_in(rows, asked.refs[name].runs) for name, rows in found.rows.items() if name in asked.refs}
    entry = found.entry if found.entry.refs == asked.refs else replace(asked, parent=found.entry.parent)
    return replace(found, entry=entry, rows=rows)


def _fill_batch(batch: Batch, thread_id: str, bodies: Mapping[str, bytes]) -> Batch:
    name = _name_in(thread_id, batch.body)
    return batch if name is None else replace(batch, body=bodies[name])
