"""A store that keeps the large bodies of another one in objects: rows of values, and writes of tasks.

The row has a note instead (`engine.encoding.bodies.Absent`): the id of the store, a token, the SHA-256 of the body, and
its size. With a keyring, this store is below the one that seals: digests are of sealed bytes, and tell nothing.

*Order.* An object is written before its row, and deleted after it: a failure leaves an object without a row at most.

*Names.* `<store>/<thread>/<digest>-<token>`. The folder of a thread is named by a hash of its id. Rows are copied
unchanged with a thread: a reader looks into the folder of its own thread.

*No second reference.* No request can delete an object only if nobody refers to it again. So only the put that has
written an object ever refers to it (by the token), and one without a reference is deleted after an hour (`GRACE`). An
object whose row was removed is deleted at once: rows that no entry shows are never shown again.

*A copy* writes objects under names that a deletion may be about to remove. So a deletion first writes a mark beside
them (`_Mark`). A copy looks for marks after its rows are there: if there is one, it is taken back and refused; if not,
nothing else will be removed, and it sees what is missing. A prune sets no mark: it could only harm a thread that was
deleted and copied again between two of its requests.

*The clock* of the hour is this machine's, and an object's time is the place's: buckets refuse requests that are signed
more than 15 minutes away from their own time.
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
"""Bytes above which a body is kept in an object, unless a program says otherwise."""
LEAST = 1024
"""The least that it may say: what says which object takes a hundred."""
GRACE = 3_600_000
"""Milliseconds after which an object that nothing refers to belongs to no put any more that is under way."""
WRITES = 500
"""Writes that are listed at once."""
_ROUNDS = 20
"""How often a thread is read that is pruned meanwhile."""

_REMOVING = "removing-"
"""How the names of objects begin that are no values, but marks."""

_STRAY = re.compile(r"\x1fobjects/([0-9a-f]{32})")
"""Names a folder of objects whose thread is gone: nobody knows its id. No thread has such a name."""


class _Mark(NamedTuple):
    """Says in a folder that objects are being removed there that a copy may write again."""

    name: str  # of an object, which counts for an hour, and is swept if its process died
    written_at: int  # milliseconds since 1970


def _milliseconds() -> int:
    return int(time.time() * 1000)


class BlobStore(Layer):
    """Keeps bodies of another store of more than `limit` bytes in objects, and `room` bytes of them in memory."""

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
        self._can_end = False  # a tenant's can
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._dying: dict[str, dict[RowPlace, str]] = {}

    # -- writing -----------------------------------------------------------------------------------------------

    def write_entry(self, new: NewEntry) -> Plan[Outcome]:
        """See `Store.write_entry`. One request more if something is large; for the first one, up to two trips more."""
        if any(self._is_large(row.body) for rows in new.repacks.values() for row in rows):
            # It would be uploaded with all that is in objects by itself already, and a packed row only saves space.
            small = {name: [row for row in rows if not self._is_large(row.body)] for name, rows in new.repacks.items()}
            new = replace(new, repacks={name: tuple(rows) for name, rows in small.items() if rows})
        if not any(self._is_large(row.body) for rows in new.appends.values() for row in rows):
            return (yield from self.inner.write_entry(new))
        if self._can_end and new.base is None and not (new.checked and new.parent):
            self._id = None  # nothing in it says that the store was not emptied meanwhile: it would have another one
        bodies: dict[str, bytes] = {}
        store, thread_id = (yield from self._make_id()), new.address.thread_id
        appends = {
            name: tuple(self._move_row(row, store, thread_id, bodies) for row in rows)
            for name, rows in new.appends.items()
        }
        outcome: Outcome = yield from self._write(bodies, self.inner.write_entry(replace(new, appends=appends)))
        if not isinstance(outcome, Stored):
            yield from self._remove(bodies)  # nobody else has a name of these
        return outcome

    def write_batch(self, address: Address, batch: Batch) -> Plan[None]:
        """See `Store.write_batch`. As for `write_entry`."""
        if not self._is_large(batch.body):
            yield from self.inner.write_batch(address, batch)
            return
        bodies: dict[str, bytes] = {}
        body = self._move(batch.body, 1, (yield from self._make_id()), address.thread_id, bodies)
        yield from self._write(bodies, self.inner.write_batch(address, replace(batch, body=body)))

    def replace_plain(self, thread_id: str, new: Replacement) -> Plan[None]:
        """See `Store.replace_plain`. What was in objects in plain text is swept after an hour."""
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
        """Return what stands in a row for a body; one that is large is added to `bodies`."""
        if not self._is_large(body):
            return body
        absent = Absent(store, token_bytes(8), hashlib.sha256(body).digest(), len(body), count)
        bodies[_name_of(absent, thread_id)] = body
        return absent_frame(absent)

    def _move_row(self, row: Row, store: bytes, thread_id: str, bodies: dict[str, bytes]) -> Row:
        return Row(row.lo, row.count, self._move(row.body, row.count, store, thread_id, bodies))

    def _write(self, bodies: Mapping[str, bytes], written: Plan[Any]) -> Plan[Any]:
        """Write objects, and then what refers to them."""
        if not bodies:
            return (yield from written)
        began = self._clock()
        yield self._ask(Upload(bodies))
        reply = yield from written
        if self._clock() - began > GRACE // 2:
            # This process stood still for so long that a sweep may have taken them for leftovers.
            yield self._ask(Upload(bodies))
        for name, body in bodies.items():
            self._remember(name, body)
        return reply

    # -- reading -----------------------------------------------------------------------------------------------

    def read_entry(self, address: Address, known: Stamp | None = None) -> Plan[Any]:
        """See `Store.read_entry`. One request more if an object is needed that is not known."""
        found: Found | Unchanged | None = yield from self.inner.read_entry(address, known)
        if isinstance(found, Unchanged):
            bodies = yield from self._fetch(_absent_in(address.thread_id, [batch.body for batch in found.batches]))
            return replace(found, batches=[_fill_batch(each, address.thread_id, bodies) for each in found.batches])
        return None if found is None else (yield from self._fill([found]))[0]

    def read_values(self, entries: Sequence[Entry]) -> Plan[Sequence[Found]]:
        """See `Store.read_values`. One request more for all objects that are needed and not known."""
        asked = {entry.stamp: entry for entry in entries}
        found: Sequence[Found] = yield from self.inner.read_values(entries)
        # No more than was asked for: nobody shall fetch what is in other objects.
        return (yield from self._fill([_narrow(each, asked[each.entry.stamp]) for each in found]))

    def read_history(self, address: Address, channels: Collection[str]) -> Plan[Sequence[Found]]:
        """See `Store.read_history`. As for `read_values`."""
        found: Sequence[Found] = yield from self.inner.read_history(address, channels)
        wanted = [{name: rows for name, rows in each.rows.items() if name in channels} for each in found]
        return (yield from self._fill([replace(each, rows=rows) for each, rows in zip(found, wanted, strict=True)]))

    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> Plan[Sequence[Writes]]:
        """See `Store.list_writes`."""
        page: Sequence[Writes] = yield from self.inner.list_writes(thread_id, after, limit)
        bodies = yield from self._fetch(_absent_in(thread_id, [each.batch.body for each in page]))
        return [replace(each, batch=_fill_batch(each.batch, thread_id, bodies)) for each in page]

    def _fill(self, found: Sequence[Found]) -> Plan[Sequence[Found]]:
        """Return entries with what is in objects in its place; rows that entries share stay shared."""
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
        """Return what objects hold, by their names; of one that is gone or was changed, what says so to a reader."""
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
            what = "is gone" if body is None else "is not what was put there"
            reason = f"a value of {size:,} bytes is lost: the object {name} in {self._objects.place} {what}"
            bodies[name] = absent_frame(replace(absent[name], reason=reason))
        return bodies

    def _remember(self, name: str, body: bytes) -> None:
        # Each step is one of the interpreter's, so that threads need no lock.
        if self._known.setdefault(name, body) is body:
            self._room -= len(body)
        while self._room < 0 and self._known:
            self._room += len(self._known.popitem(last=False)[1])

    # -- removing ----------------------------------------------------------------------------------------------

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> Plan[None]:
        """See `Store.remove_entries`. Of a thread with objects, what goes is read first, as far as it is in rows."""
        dying: Mapping[RowPlace, str | None] = {}
        writes: Sequence[str | None] = ()
        if (yield from self._list(thread_id)):
            graph: Graph = yield from self.inner.read_graph(thread_id)
            removal = Removal(set(gone), {stamp: set(channels) for stamp, channels in ghosts.items()})
            dying, writes = yield from view_removed(self.inner, graph, removal, partial(_name_in, thread_id))
        yield from self.inner.remove_entries(thread_id, gone, ghosts)
        if names := [name for name in writes if name]:
            # A checkpoint that was put again meanwhile has kept its writes; then a sweep finds what is left of others.
            went = {node.address for node in graph.nodes if node.stamp in gone}
            left: Graph = yield from self.inner.read_graph(thread_id)
            if went.isdisjoint(node.address for node in left.nodes):
                yield from self._remove(names)
        if rows := {place: name for place, name in dying.items() if name}:
            self._dying.setdefault(thread_id, {}).update(rows)

    def remove_rows(self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph) -> Plan[int]:
        """See `Store.remove_rows`. Their objects go at once, and with them what is left of puts that failed."""
        removed: int = yield from self.inner.remove_rows(thread_id, live, graph)
        dying = self._dying.pop(thread_id, {})
        # One that was put meanwhile may show a row again, as the entry was there that it builds on.
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
        with suppress(StoreFull):  # there is no space even for that, and what is removed makes some
            yield self._ask(Upload({mark.name: b""}))
        return mark

    def _remove_marked(self, mark: _Mark, names: Collection[str]) -> Plan[None]:
        """Delete objects, and then the mark. If this process stood still meanwhile, a later sweep does it."""
        if names and self._clock() - mark.written_at < GRACE // 2:
            yield from self._remove(names)
        yield self._ask(Remove([mark.name]))

    def _sweep_outside(self, thread_id: str) -> Plan[None]:
        """Delete objects of a thread without a reference, an hour after they were written. One request, or more."""
        old = self._old((yield from self._list(thread_id)))
        if old and (left := old - (yield from self._find_names(thread_id))):
            yield from self._sweep(left)

    def _sweep(self, left: Collection[str]) -> Plan[None]:
        """Delete old objects of one folder that nothing refers to, but for those that a copy has written anew."""
        folder = _folder_in(left)
        mark = yield from self._mark(folder)
        yield from self._remove_marked(mark, self._old((yield self._ask(ListObjects(folder)))).intersection(left))

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> Plan[bool]:
        """See `Store.delete_thread`. Objects go after it; one of a put that may be under way stays, as a stray."""
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
        """See `Store.list_strays`. Folders of objects whose thread is gone come last, each with a name of its own."""
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
        """See `Store.delete_all`. Objects go first: what says where they are goes with the rest."""
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
        """Return the objects of a thread. One request; none if the store has no objects at all."""
        store = yield from self._find_id()
        if store is None:
            return ()
        listed: Sequence[Listed] = yield self._ask(ListObjects(f"{store.hex()}/{_folder_of(thread_id)}"))
        return listed

    def _find_names(self, thread_id: str, upto: Entry | None = None) -> Plan[set[str]]:
        """Return the names of the objects that a thread refers to, or those of its past up to an entry."""
        # An entry that shows rows of an earlier one is asked for both. So all is read again if one was removed, or put
        # again, while it was read.
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
            # Of the last one, what tasks have written is not copied: its step runs anew.
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
        """See `Store.copy_thread`. Objects are copied first, and checked after the rows, which are read twice."""
        if (yield from self._find_id()) is not None:
            entries: Sequence[Entry] = yield from self.inner.scan(Query(target, limit=1))
            if entries or (yield from self.inner.list_writes(target, None, 1)):
                return Occupied()
            if names := (yield from self._find_names(source, upto)):
                yield self._ask(CopyObjects({name: _moved(name, source, target) for name in names}))
        outcome: CopyOutcome = yield from self.inner.copy_thread(source, target, upto)
        # Not taken away again if it is refused: somebody who has copied the same meanwhile refers to the same names.
        if not isinstance(outcome, Copied) or (yield from self._find_id()) is None:
            return outcome
        needed = yield from self._find_names(target)
        listed = yield from self._list(target)
        there = {each.name for each in listed}
        if needed and any(_REMOVING in name for name in there - self._old(listed)):
            yield from self.delete_thread(target)
            raise StoreBusy(
                f"thread {target!r}: objects of the thread that was there before are still being removed: copy "
                f"{source!r} again in a while, or to another thread id"
            )
        if missing := needed - there:
            lost: Collection[str] = yield self._ask(
                CopyObjects({_moved(name, target, source): name for name in missing})
            )
            if lost and not set(lost) <= (yield from self._find_names(source)):
                yield from self.delete_thread(target)
                raise StoreBusy(f"thread {source!r} was pruned while it was copied: copy it again")
        return outcome

    # -- the store's own ---------------------------------------------------------------------------------------

    def of_tenant(self, tenant: str) -> BlobStore:
        """See `Store.of_tenant`. What a tenant has is in a folder of its own."""
        store = BlobStore(self.inner.of_tenant(tenant), self._objects, self._limit, self._most, self._clock)
        store._can_end = True
        return store

    def list_kinds(self, thread_id: str | None) -> Plan[Sequence[str]]:
        """See `Store.list_kinds`. Without this store's own, which is never sealed: it stands below that."""
        kinds: Sequence[str] = yield from self.inner.list_kinds(thread_id)
        return [kind for kind in kinds if kind != OBJECTS.kind]

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> Plan[Mapping[str, Cell]]:
        """See `Store.read_cells`. Without this store's own: who finds it above has no objects at hand."""
        return {} if shelf == OBJECTS else (yield from self.inner.read_cells(shelf, keys))

    def _find_id(self) -> Plan[bytes | None]:
        """Return what tells this store from others in the same place; `None` if it has no objects. At most one trip."""
        if self._id is None:
            cells = yield from self.inner.read_cells(OBJECTS, [OBJECTS_KEY])
            self._id = _parse_id(cells[OBJECTS_KEY]) if OBJECTS_KEY in cells else None
        return self._id

    def _make_id(self) -> Plan[bytes]:
        """As `_find_id`; if there is none, it is made. One trip more then, and a request."""
        found = yield from self._find_id()
        if found is None:
            cell = Cell(token_hex(16), raw_frame(token_bytes(8)))
            # First: who finds the cell and no folder is at another place.
            yield self._ask(MakeFolder(_parse_id(cell).hex()))
            swapped = yield from self.inner.swap_cell(OBJECTS, OBJECTS_KEY, None, cell)
            found = self._id = _parse_id(cell if swapped.done else swapped.cell)
        return found


def _parse_id(cell: Cell | None) -> bytes:
    """Return what tells a store from others."""
    found = open_frame(cell.header) if cell else b""
    if len(found) != 8:
        raise CorruptStore("what names the folder of this store's objects is damaged")
    return found


def _folder_of(thread_id: str) -> str:
    return hashlib.sha256(thread_id.encode(errors="surrogatepass")).hexdigest()[:32]


def _folder_in(names: Collection[str]) -> str:
    """Return the folder that objects of one thread are in."""
    return next(iter(names)).rpartition("/")[0]


def _name_of(absent: Absent, thread_id: str) -> str:
    return f"{absent.store.hex()}/{_folder_of(thread_id)}/{absent.digest.hex()}-{absent.token.hex()}"


def _name_in(thread_id: str, body: bytes) -> str | None:
    """Return the name of the object that a body says; `None` if it says none, or is damaged."""
    if not body.startswith(BLOB):
        return None
    try:
        absent = read_absent(body)
    except CorruptStore:
        return None
    return _name_of(absent, thread_id) if absent else None


def _absent_in(thread_id: str, bodies: Iterable[bytes]) -> dict[str, Absent]:
    """Return what bodies say of objects, by the names of these."""
    found: dict[str, Absent] = {}
    for body in bodies:
        if (name := _name_in(thread_id, body)) and (absent := read_absent(body)):
            found[name] = absent
    return found


def _moved(name: str, source: str, target: str) -> str:
    """Return what an object of one thread is named in another."""
    return name.replace(_folder_of(source), _folder_of(target), 1)


def _narrow(found: Found, asked: Entry) -> Found:
    """Return an entry as it was asked for, with no other rows, if there are objects at all."""
    if not any(row.body.startswith(BLOB) for rows in found.rows.values() for row in rows):
        return found
    rows = {name: rows_in(rows, asked.refs[name].runs) for name, rows in found.rows.items() if name in asked.refs}
    entry = found.entry if found.entry.refs == asked.refs else replace(asked, parent=found.entry.parent)
    return replace(found, entry=entry, rows=rows)


def _fill_batch(batch: Batch, thread_id: str, bodies: Mapping[str, bytes]) -> Batch:
    name = _name_in(thread_id, batch.body)
    return batch if name is None else replace(batch, body=bodies[name])
