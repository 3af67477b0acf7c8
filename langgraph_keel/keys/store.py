"""A store layer that seals headers, rows, writes and cells, bound to their places.

Not sealed are: ids of threads, checkpoints, runs and tasks, names of namespaces and channels (unless `NamelessStore`
hides them), which items a version shows, keys and tokens of cells, times, and padded sizes. Marks by which threads are
found are keyed hashes. The store below numbers the items, so a row cannot be bound to its number. Instead, the sealed
header of each entry contains a digest of each channel's items, in order. Two attacks are not detected: resetting a
whole thread or cell to an earlier state, and removing the last entries or writes of a thread.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from langgraph_keel.engine.cells import OBJECTS, Cell, Search, Shelf, Swap, Swapped
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import ABSENT, contents_of, resolve
from langgraph_keel.engine.layers import Layer
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import (
    NEW,
    Batch,
    Copied,
    CopyOutcome,
    Entry,
    Found,
    Graph,
    Listed,
    NewEntry,
    Node,
    Outcome,
    Page,
    Query,
    Ref,
    Row,
    Run,
    Stamp,
    Stored,
    Unchanged,
    Writes,
)
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, KeyMissing, SealBroken
from langgraph_keel.keys.datakeys import KIND, STORE, DataKeys, KeyChest
from langgraph_keel.keys.keyring import Keyring
from langgraph_keel.keys.names import NamelessStore
from langgraph_keel.keys.sealing import key_in, open_sealed, pack, place_of, seal_frame, unpack

T = TypeVar("T")
P = ParamSpec("P")
_log = logging.getLogger(__name__)
_DIGEST = 20
"""Stored length of a digest, in bytes."""
_MOST = 10_000
"""Maximum number of channels and namespaces whose latest state is cached."""
_ENTRIES = 1000
"""Maximum number of entries whose digests are cached until their values are read."""
_PLAIN = (
    "it is stored in plain text, and this store is encrypted. If the store is older than its encryption, open it with "
    "Keyring(..., migrate=True) and run `keel keys migrate`; otherwise a process without keys wrote it"
)
_OTHER = "its parent or its run id was changed"

Digests: TypeAlias = dict[str, tuple[int, bytes]]
"""By channel, in order: the kind of the value, and the digest of its items, empty if it has none. `None` in place of a
mapping means that the entry is in plain text."""


def _again(read: Callable[Concatenate[SealedStore, P], Plan[T]]) -> Callable[Concatenate[SealedStore, P], Plan[T]]:
    """Retry a verb once, as the thread may have been deleted or migrated in between."""

    @wraps(read)
    def twice(self: SealedStore, /, *args: P.args, **more: P.kwargs) -> Plan[T]:
        try:
            return (yield from read(self, *args, **more))
        except (KeyMissing, SealBroken):
            return (yield from read(self, *args, **more))

    return twice


class SealedStore(Layer):
    """Seals the records of another store.

    In a tenant's store, `root` has the keys of the root store.
    """

    def __init__(
        self, store: Store[Any, Any], keyring: Keyring, tenant: str = "", root: KeyChest | None = None
    ) -> None:
        self._store, self._keyring = store, keyring
        self.chest = KeyChest(store, keyring, tenant, root)
        super().__init__(store if keyring.hide_names is False else NamelessStore(store, self.chest.names))
        self._sums: OrderedDict[tuple[str, str, str], tuple[Ref, Any]] = OrderedDict()
        self._digests: OrderedDict[tuple[str, Stamp], tuple[Mapping[str, Ref], Digests | None]] = OrderedDict()
        self._latest: OrderedDict[tuple[str, str], tuple[Stamp, Address, str | None]] = OrderedDict()

    @property
    def migrates(self) -> bool:
        """Whether the keyring allows a migration."""
        return self._keyring.migrate

    # -- checkpoints -------------------------------------------------------------------------------------------

    def write_entry(self, new: NewEntry) -> Plan[Outcome]:
        """See `Store.write_entry`. Up to four more trips for the first entry of a thread."""
        address = new.address
        if new.read_known is not None:
            old = [name for name, ref in new.refs.items() if any(lo < NEW for lo, _ in ref.runs)]
            if unproved := [name for name in old if self._goes_on(new, name) is None]:
                new = replace(new, known=(yield from new.read_known(unproved)))
        sums = {name: found for name, ref in new.refs.items() if ref.runs and (found := self._sum(new, name))}
        missing = [name for name, ref in new.refs.items() if ref.runs and name not in sums]
        again = (yield from self._again(new, missing)) if missing else {}
        digests = {
            name: again[name] if ref.runs and name not in sums else (int(ref.kind), digest_of(sums.get(name)))
            for name, ref in new.refs.items()
        }
        if is_first := new.base is None and not (new.checked and new.parent):
            # The thread may not be the one that this process knows: read its keys.
            self.chest.forget(address.thread_id)
        seals = yield from self.seals(address.thread_id)
        sealed = replace(
            new,
            header=seals.header(new.header, address, new.parent, new.run_id, digests),
            appends={name: seals.rows(rows, address, name) for name, rows in new.appends.items()},
            repacks={name: seals.rows(rows, address, name) for name, rows in new.repacks.items()},
            terms=(yield from self._hide(new.terms)),
        )
        outcome: Outcome = yield from self.inner.write_entry(sealed)
        if isinstance(outcome, Stored):
            for name, found in sums.items():
                ref = new.refs[name]
                self._remember(address, name, Ref(ref.kind, resolve(ref.runs, outcome.first.get(name, 0))), found)
            _keep(self._latest, _namespace(address), (outcome.stamp, address, new.parent))
            if is_first:
                yield from self.chest.keep(address.thread_id)
        return outcome

    def write_batch(self, address: Address, batch: Batch) -> Plan[None]:
        """See `Store.write_batch`. Up to four more trips for the first record of a thread."""
        seals = yield from self.seals(address.thread_id)
        hidden = yield from self._hide(batch.terms)
        yield from self.inner.write_batch(address, replace(seals.batch(batch, address), terms=hidden))

    @_again
    def read_entry(self, address: Address, known: Stamp | None = None) -> Plan[Any]:
        """See `Store.read_entry`. Up to two more trips for the first read of a thread."""
        stamp, latest, parent = self._latest.get(_namespace(address), (None, address, None))
        found: Found | Unchanged | None = yield from self.inner.read_entry(address, known if stamp == known else None)
        if isinstance(found, Unchanged) and found.checkpoint_id not in (None, latest.checkpoint_id):
            found = yield from self.inner.read_entry(address)  # the thread was reset to an earlier state: check it
        if found is None:
            self.chest.forget(address.thread_id)  # if the thread is created again, it has other keys
            return None
        if isinstance(found, Found):
            return (yield from self._open_found(found))
        if found.parent not in (None, parent):
            raise SealBroken(f"{latest}: {_OTHER}")
        if not found.batches:
            return found
        seals = yield from self.opener(address.thread_id, [batch.body for batch in found.batches])
        return replace(found, batches=[seals.open_batch(batch, latest) for batch in found.batches])

    @_again
    def scan(self, query: Query) -> Plan[Sequence[Entry]]:
        """See `Store.scan`. One more trip for each thread whose keys are not known."""
        entries: Sequence[Entry] = yield from self.inner.scan(query)
        accepts_plain = yield from self._accepts_plain(entry.header for entry in entries)
        opened = []
        for entry in entries:
            seals = yield from self.opener(entry.address.thread_id, [entry.header], accepts_plain)
            found, digests = seals.open_entry(entry)
            self._learn(entry, digests)
            opened.append(found)
        return opened

    @_again
    def read_values(self, entries: Sequence[Entry]) -> Plan[Sequence[Found]]:
        """See `Store.read_values`."""
        found: Sequence[Found] = yield from self.inner.read_values(entries)
        asked = {entry.stamp: entry for entry in entries}
        accepts_plain = yield from self._accepts_plain(_bodies_of(found))
        opened = []
        for each in found:
            entry = asked[each.entry.stamp]
            # Some stores return the entry they were passed, which is open.
            is_open = each.entry.header == entry.header
            part = yield from self._open_found(each, accepts_plain, entry.refs, is_part=True, is_open=is_open)
            opened.append(part)
        return opened

    @_again
    def read_history(self, address: Address, channels: Collection[str]) -> Plan[Sequence[Found]]:
        """See `Store.read_history`."""
        found: Sequence[Found] = yield from self.inner.read_history(address, channels)
        accepts_plain = yield from self._accepts_plain(_bodies_of(found))
        opened = []
        for each in found:
            opened.append((yield from self._open_found(each, accepts_plain, channels, is_part=True)))
        return opened

    @_again
    def read_graph(self, thread_id: str) -> Plan[Graph]:
        """See `Store.read_graph`."""
        graph: Graph = yield from self.inner.read_graph(thread_id)
        if not graph.nodes:
            return graph
        seals = yield from self.opener(thread_id, [node.header for node in graph.nodes])
        nodes = []
        for node in graph.nodes:
            header, digests = seals.open_header(node.header, node.address)
            self._learn(node, digests)
            nodes.append(replace(node, header=header))
        return Graph(nodes, graph.ends, graph.epoch)

    # -- threads -----------------------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> Plan[bool]:
        """See `Store.delete_thread`. The thread's keys are deleted, too."""
        try:
            is_deleted: bool = yield from self.inner.delete_thread(thread_id, last)
        finally:
            self.chest.forget(thread_id)
        return is_deleted

    def delete_all(self, limit: int) -> Plan[int]:
        """See `Store.delete_all`. All keys are deleted, including the tenant's."""
        try:
            deleted: int = yield from self.inner.delete_all(limit)
        finally:
            self.chest.forget_all()
        return deleted

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Plan[CopyOutcome]:
        """See `Store.copy_thread`. Up to eight more trips."""
        occupying: Sequence[Entry] = yield from self.inner.scan(Query(target, limit=1))
        if occupying:  # otherwise keys would be copied and removed again
            return (yield from self.inner.copy_thread(source, target, upto))
        # Records stay sealed as they are, so the target gets the keys of the source. Then the source gets a new key,
        # so that the target cannot open its later records.
        before, keys = yield from self.chest.adopt(source, target)
        if upto is not None and keys is not None and upto.address.thread_id == source:
            upto = yield from self._reseal(upto, keys)
        outcome: CopyOutcome = yield from self.inner.copy_thread(source, target, upto)
        if not isinstance(outcome, Copied):
            yield from self.chest.restore(target, before)
        elif keys is not None:
            yield from self.chest.advance(source)
        return outcome

    def _reseal(self, entry: Entry, keys: DataKeys) -> Plan[Entry]:
        """Seal an entry with a changed header, and the stored rest of the header. One trip."""
        query = Query(entry.address.thread_id, entry.address.checkpoint_ns, entry.address.checkpoint_id)
        stored: Sequence[Entry] = yield from self.inner.scan(query)
        if not stored or stored[0].stamp != entry.stamp:
            return entry  # it is gone, which the copy will report
        if key_in(stored[0].header) is None:
            return entry  # the rest of it is in plain text, too
        seals = Seals(self.chest.store_id, keys)
        _, parent, run_id, digests = seals.open_parts(stored[0].header, entry.address)
        return replace(entry, header=seals.header(entry.header, entry.address, parent, run_id, digests))

    def read_threads(self, page: Page) -> Plan[Sequence[Listed]]:
        """See `Store.read_threads`.

        One more trip for each thread whose keys are not known.
        """
        hidden = replace(page, terms=(yield from self._narrow(page.terms)))
        listed: Sequence[Listed] = yield from self.inner.read_threads(hidden)
        if not page.tolerant:
            return (yield from self._open_threads(listed))
        opened: list[Listed] = []
        for each in listed:
            try:
                opened += yield from self._open_threads([each])
            except (CorruptStore, KeyMissing) as error:
                _log.warning("%s", error)
                opened.append((each[0], None))
        return opened

    def _open_threads(self, page: Sequence[Listed]) -> Plan[Sequence[Listed]]:
        accepts_plain = yield from self._accepts_plain(head.header for _, head in page if head)
        opened: list[Listed] = []
        for info, head in page:
            if head:
                seals = yield from self.opener(info.thread_id, [head.header], accepts_plain)
                head, digests = seals.open_entry(sealed := head)
                self._learn(sealed, digests)
            opened.append((info, head))
        return opened

    @_again
    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> Plan[Sequence[Writes]]:
        """See `Store.list_writes`."""
        page: Sequence[Writes] = yield from self.inner.list_writes(thread_id, after, limit)
        if not page:
            return page
        seals = yield from self.opener(thread_id, [each.batch.body for each in page])
        return [replace(each, batch=seals.open_batch(each.batch, each.address)) for each in page]

    def list_kinds(self, thread_id: str | None) -> Plan[Sequence[str]]:
        """See `Store.list_kinds`.

        Omits the internal kinds, which are not sealed: keys and objects.
        """
        kinds: Sequence[str] = yield from self.inner.list_kinds(thread_id)
        return [kind for kind in kinds if kind not in (KIND, STORE.kind, OBJECTS.kind)]

    # -- tenants -----------------------------------------------------------------------------------------------

    def of_tenant(self, tenant: str) -> SealedStore:
        """See `Store.of_tenant`.

        Each tenant has a key, which wraps the keys of its threads.
        """
        return SealedStore(self._store.of_tenant(tenant), self._keyring, tenant, self.chest)

    # -- cells -------------------------------------------------------------------------------------------------

    @_again
    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> Plan[Swapped]:
        """See `Store.swap_cell`."""
        sealed = None if new is None else (yield from self.seal_cell(new, shelf, key))
        swapped: Swapped = yield from self.inner.swap_cell(shelf, key, expected, sealed)
        return (yield from self._open_swapped(swapped, shelf, key))

    @_again
    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> Plan[Sequence[Swapped]]:
        """See `Store.swap_cells`."""
        sealed: list[Swap] = []
        for key, expected, new in swaps:
            sealed.append((key, expected, None if new is None else (yield from self.seal_cell(new, shelf, key))))
        opened: list[Swapped] = []
        replies: Sequence[Swapped] = yield from self.inner.swap_cells(shelf, sealed)
        for (key, _, _), reply in zip(swaps, replies, strict=True):
            opened.append((yield from self._open_swapped(reply, shelf, key)))
        return opened

    def seal_cell(self, new: Cell, shelf: Shelf, key: str) -> Plan[Cell]:
        """Return a cell as it is stored: sealed, with hidden marks.

        No trip if the keys are known.
        """
        sealed = (yield from self.seals(shelf.thread_id)).cell(new, shelf, key)
        return replace(sealed, marks=(yield from self._hide(new.marks))) if new.marks else sealed

    def _open_swapped(self, swapped: Swapped, shelf: Shelf, key: str) -> Plan[Swapped]:
        if swapped.cell is None:
            return swapped
        seals = yield from self.opener(shelf.thread_id, [swapped.cell.header])
        return Swapped(swapped.done, seals.open_cell(swapped.cell, shelf, key, has_body=True))

    @_again
    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> Plan[Mapping[str, Cell]]:
        """See `Store.read_cells`."""
        cells: Mapping[str, Cell] = yield from self.inner.read_cells(shelf, keys)
        if not cells or shelf == OBJECTS:
            return cells
        seals = yield from self.opener(shelf.thread_id, [cell.header for cell in cells.values()])
        return {key: seals.open_cell(cell, shelf, key, has_body=True) for key, cell in cells.items()}

    @_again
    def list_cells(self, shelf: Shelf, prefix: str, after: str | None, limit: int) -> Plan[Sequence[tuple[str, Cell]]]:
        """See `Store.list_cells`."""
        cells: Sequence[tuple[str, Cell]] = yield from self.inner.list_cells(shelf, prefix, after, limit)
        return (yield from self._open_page(cells, shelf))

    @_again
    def find_cells(self, shelf: Shelf, search: Search) -> Plan[Sequence[tuple[str, Cell]]]:
        """See `Store.find_cells`.

        Cells without a header (`is_bare`) are not authenticated.
        """
        hidden = replace(search, marks=(yield from self._narrow(search.marks)))
        cells: Sequence[tuple[str, Cell]] = yield from self.inner.find_cells(shelf, hidden)
        if search.is_bare:
            return [(key, replace(cell, header=b"", marks=())) for key, cell in cells]
        return (yield from self._open_page(cells, shelf))

    def _open_page(self, cells: Sequence[tuple[str, Cell]], shelf: Shelf) -> Plan[Sequence[tuple[str, Cell]]]:
        if not cells:
            return cells
        seals = yield from self.opener(shelf.thread_id, [cell.header for _, cell in cells])
        return [(key, seals.open_cell(cell, shelf, key, has_body=False)) for key, cell in cells]

    # -- keys and digests --------------------------------------------------------------------------------------

    def seals(self, thread_id: str | None) -> Plan[Seals]:
        """Return the `Seals` to seal records of a thread, or shared ones.

        No trip if the keys are cached.
        """
        keys = yield from (self.chest.shared_to_seal() if thread_id is None else self.chest.make(thread_id))
        return Seals(self.chest.store_id, keys)

    def _hide(self, marks: Sequence[str]) -> Plan[tuple[str, ...]]:
        """Return the stored form of marks by which threads are found. No trip, except the first time."""
        if not marks:
            return ()
        marker = yield from self.chest.marker()
        return tuple(marker.hide(mark) for mark in marks)

    def _narrow(self, marks: Sequence[str]) -> Plan[tuple[str, ...]]:
        """Return the stored form of a filter; empty in a migration, as plain text has other marks."""
        if marks and (yield from self.chest.accepts_plain()):
            return ()
        return (yield from self._hide(marks))

    def _accepts_plain(self, bodies: Iterable[bytes]) -> Plan[bool]:
        """Return whether there are plain-text records, and they are accepted."""
        return any(key_in(body) is None for body in bodies) and (yield from self.chest.accepts_plain())

    def opener(self, thread_id: str | None, bodies: Sequence[bytes], accepts_plain: bool | None = None) -> Plan[Seals]:
        """Return the `Seals` to open records of a thread, or shared ones.

        No trip if the keys are cached.
        """
        bodies = [body for body in bodies if not body.startswith(ABSENT)]  # they are not sealed
        found = {key_in(body) for body in bodies}
        names = {name for name in found if name is not None}
        if accepts_plain is None:
            accepts_plain = yield from self._accepts_plain(bodies)
        if not names:
            if accepts_plain or not found:
                return Seals("", None, accepts_plain=accepts_plain)
            raise SealBroken(f"{'shared records' if thread_id is None else f'thread {thread_id!r}'}: {_PLAIN}")
        keys = yield from (self.chest.shared_of(names) if thread_id is None else self.chest.find(thread_id))
        if thread_id is not None and keys is not None and not names <= keys.keys.keys():
            self.chest.forget(thread_id)  # it was deleted and created again, or got the keys of a copied thread
            keys = yield from self.chest.find(thread_id)
        if keys is None:
            raise KeyMissing(f"thread {thread_id!r}: its key was destroyed, so its data cannot be read any more")
        return Seals(self.chest.store_id, keys, accepts_plain=accepts_plain)

    def _open_found(
        self,
        found: Found,
        accepts_plain: bool | None = None,
        only: Collection[str] | None = None,
        *,
        is_part: bool = False,
        is_open: bool = False,
    ) -> Plan[Found]:
        """Open an entry, and verify that it is the entry that was written."""
        entry, address = found.entry, found.entry.address
        bodies = [*_bodies_of([found])][is_open:]
        seals = yield from self.opener(address.thread_id, bodies, accepts_plain)
        rows = {name: seals.open_rows(each, address, name) for name, each in found.rows.items()}
        batches = [seals.open_batch(batch, address) for batch in found.batches]
        if is_open:
            opened, (refs, digests) = entry, (yield from self._digests_of(entry))
        else:
            opened, digests = seals.open_entry(entry, is_part=is_part)
            self._learn(entry, digests)
            refs = entry.refs
            if not is_part:
                parent = entry.parent if digests is None else seals.open_parts(entry.header, address)[1]
                _keep(self._latest, _namespace(address), (entry.stamp, address, parent))
        for name, ref in entry.refs.items():
            # If only a part of a value is read, as by a timeline, each row is verified, but not their order. The order
            # is not verified either if an object with some of the rows is missing: read-only views show the others.
            if (
                ref.runs
                and (only is None or name in only)
                and refs.get(name) == ref
                and not any(row.body.startswith(ABSENT) for row in rows.get(name, ()))
            ):
                found_sum = sum_items(ref, rows.get(name, ()))
                if digests is not None and (name not in digests or digest_of(found_sum) != digests[name][1]):
                    raise SealBroken(f"{address}, channel {name!r}: its items are not the ones that were written")
                if not is_part:
                    self._remember(address, name, ref, found_sum)
        return Found(opened, rows, batches)

    def _digests_of(self, entry: Entry) -> Plan[tuple[Mapping[str, Ref], Digests | None]]:
        """Return the refs and digests of an entry that was read before. One trip if they are no longer cached."""
        key = entry.address.thread_id, entry.stamp
        if key not in self._digests:
            address = entry.address
            yield from self.scan(Query(address.thread_id, address.checkpoint_ns, address.checkpoint_id))
        return self._digests.get(key, ({}, {}))

    def _again(self, new: NewEntry, missing: Sequence[str]) -> Plan[Digests]:
        """Return the digests of channels that an entry takes from its `base`. One trip, or two."""
        thread_id = new.address.thread_id
        graph: Graph = yield from self.inner.read_graph(thread_id)
        node = next((node for node in graph.nodes if node.stamp == new.base), None)
        if node is None:
            return dict.fromkeys(new.refs, (0, b""))  # it is gone, which the write will report
        seals = yield from self.opener(thread_id, [node.header])
        digests = seals.open_header(node.header, node.address)[1]
        changed = {name: new.refs[name] for name in missing if new.refs[name] != node.refs.get(name)}
        if digests is not None and not changed:
            return digests
        entry = Entry(node.address, node.parent, node.stamp, node.header, node.refs, node.run_id)
        read = yield from self.read_values([entry])
        if not read:
            return dict.fromkeys(new.refs, (0, b""))
        rows = {name: [*of, *new.appends.get(name, ())] for name, of in read[0].rows.items()}
        return digests_of({**entry.refs, **changed}, rows) if digests is None else digests | digests_of(changed, rows)

    def _learn(self, entry: Entry | Node, digests: Digests | None) -> None:
        """Cache the digests of an entry, whose values may be read next."""
        _keep(self._digests, (entry.address.thread_id, entry.stamp), (entry.refs, digests), _ENTRIES)

    def _sum(self, new: NewEntry, channel: str) -> Any:
        """Return the sum of a channel's new items; `None` if the items are not known."""
        ref, fresh = new.refs[channel], new.appends.get(channel, ())
        if (known := self._goes_on(new, channel)) is not None:
            found = known[1].copy()
            _add_items(found, ref.runs[len(known[0].runs) :], fresh)
            return found
        if channel not in new.known:
            return sum_items(ref, fresh) if fresh else None
        rows = new.known[channel].rows
        return sum_items(ref, [*rows, *fresh]) if all(row.body for row in rows) else None

    def _goes_on(self, new: NewEntry, channel: str) -> tuple[Ref, Any] | None:
        """Return the last ref and sum of a channel, if the new value only appends to it."""
        known = self._sums.get((*_namespace(new.address), channel))
        return known if known is not None and _goes_on(known[0], new.refs[channel]) else None

    def _remember(self, address: Address, channel: str, ref: Ref, found: Any) -> None:
        _keep(self._sums, (*_namespace(address), channel), (ref, found))


def _goes_on(before: Ref, ref: Ref) -> bool:
    """Return whether a value only appends new items to the one before."""
    count = len(before.runs)
    is_same = ref.kind is before.kind and ref.runs[:count] == before.runs
    return is_same and all(lo >= NEW for lo, _ in ref.runs[count:])


def _bodies_of(found: Sequence[Found]) -> Iterator[bytes]:
    """Yield the bodies of entries, header first, except those kept in objects."""
    for each in found:
        yield each.entry.header
        yield from (row.body for rows in each.rows.values() for row in rows if not row.body.startswith(ABSENT))
        yield from (batch.body for batch in each.batches if not batch.body.startswith(ABSENT))


def _namespace(address: Address) -> tuple[str, str]:
    return address.thread_id, address.checkpoint_ns


def _keep(remembered: OrderedDict[Any, Any], key: Any, value: Any, most: int = _MOST) -> None:
    # Each step is atomic in the interpreter, so threads need no lock.
    remembered.pop(key, None)
    remembered[key] = value
    while len(remembered) > most:
        remembered.popitem(last=False)


def sum_items(ref: Ref, rows: Sequence[Row]) -> Any:
    """Return an extensible SHA-256 over the items of a channel, in order."""
    found = hashlib.sha256(bytes([ref.kind]))
    _add_items(found, ref.runs, rows)
    return found


def _add_items(found: Any, runs: Sequence[Run], rows: Sequence[Row]) -> None:
    for content in contents_of(runs, rows):
        found.update(content)


def digests_of(refs: Mapping[str, Ref], rows: Mapping[str, Sequence[Row]]) -> Digests:
    """Return the digests of all channels of an entry, computed from their rows."""
    return {
        name: (int(ref.kind), digest_of(sum_items(ref, rows.get(name, ()))) if ref.runs else b"")
        for name, ref in refs.items()
    }


def digest_of(found: Any) -> bytes:
    """Return the digest to store in a header; empty if a value has no items."""
    return b"" if found is None else found.digest()[:_DIGEST]


class Seals:
    """Seals and opens the records of one thread, or shared records."""

    __slots__ = ("_accepts_plain", "_keys", "_store_id")

    def __init__(self, store_id: str, keys: DataKeys | None, *, accepts_plain: bool = False) -> None:
        self._store_id = store_id
        self._keys = keys  # `None` if only plain-text records are opened
        self._accepts_plain = accepts_plain

    def _seal(self, frame: bytes, *place: Any) -> bytes:
        assert self._keys is not None
        key = self._keys.current
        return seal_frame(frame, key.id, key.sealer, place_of(self._store_id, key.origin, *place))

    def _open(self, body: bytes, where: str, *place: Any) -> bytes:
        name = key_in(body)
        if name is None:
            self._check_plain(where)
            return body
        key = self._keys.keys.get(name) if self._keys else None
        if key is None:
            raise SealBroken(f"{where}: its key is not here: it is from another store, or its key was destroyed")
        try:
            return open_sealed(body, key.sealer, place_of(self._store_id, key.origin, *place))
        except CorruptStore as error:
            raise SealBroken(f"{where}: {error}") from None

    def _open_value(self, body: bytes, where: str, *place: Any) -> bytes:
        """Open a row or writes. A reference to an object is in plain text, and returned unchanged."""
        # Forging a reference has the same effect as deleting the record: a named error at the value. Cells are never
        # kept in objects.
        return body if body.startswith(ABSENT) else self._open(body, where, *place)

    def _check_plain(self, where: str) -> None:
        if not self._accepts_plain:
            raise SealBroken(f"{where}: {_PLAIN}")

    # -- checkpoints -------------------------------------------------------------------------------------------

    def header(self, frame: bytes, address: Address, parent: str | None, run_id: str | None, digests: Digests) -> bytes:
        """Return a sealed header, including the parent, the run and the digests."""
        parts = pack([frame, parent, run_id, [[name, *each] for name, each in digests.items()]])
        return self._seal(parts, "entry", address.checkpoint_ns, address.checkpoint_id)

    def open_parts(self, body: bytes, address: Address) -> tuple[bytes, str | None, str | None, Digests]:
        """Return the parts that were passed to `header`."""
        parts = self._open(body, f"{address}: its header", "entry", address.checkpoint_ns, address.checkpoint_id)
        frame, parent, run_id, digests = unpack(parts)
        return frame, parent, run_id, {name: (kind, digest) for name, kind, digest in digests}

    def open_header(self, body: bytes, address: Address) -> tuple[bytes, Digests | None]:
        """Return an opened header, and the digests of the channels."""
        if key_in(body) is None:
            self._check_plain(f"{address}: its header")
            return body, None
        frame, _, _, digests = self.open_parts(body, address)
        return frame, digests

    def open_entry(self, entry: Entry, *, is_part: bool = False) -> tuple[Entry, Digests | None]:
        """Return an opened entry, and the digests of its channels."""
        if key_in(entry.header) is None:
            self._check_plain(f"{entry.address}: its header")
            return entry, None
        frame, parent, run_id, digests = self.open_parts(entry.header, entry.address)
        shown = {name: int(ref.kind) for name, ref in entry.refs.items()}
        put = {name: kind for name, (kind, _) in digests.items()}
        if entry.parent not in (None, parent) or entry.run_id != run_id:
            raise SealBroken(f"{entry.address}: {_OTHER}")
        if not (shown.items() <= put.items() if is_part else list(shown.items()) == list(put.items())):
            raise SealBroken(f"{entry.address}: its channels are not the ones that were written")
        return replace(entry, header=frame), digests

    def rows(self, rows: Sequence[Row], address: Address, channel: str) -> tuple[Row, ...]:
        """Return sealed rows."""
        ns = address.checkpoint_ns
        return tuple(Row(row.lo, row.count, self._seal(row.body, "row", ns, channel, row.count)) for row in rows)

    def open_rows(self, rows: Sequence[Row], address: Address, channel: str) -> Sequence[Row]:
        """Return opened rows."""
        ns, where = address.checkpoint_ns, f"{address}, channel {channel!r}: a row"
        return [
            Row(row.lo, row.count, self._open_value(row.body, where, "row", ns, channel, row.count)) for row in rows
        ]

    def batch(self, batch: Batch, address: Address) -> Batch:
        """Return sealed writes."""
        return replace(batch, body=self._seal(batch.body, *_place_of_batch(batch, address)))

    def open_batch(self, batch: Batch, address: Address) -> Batch:
        """Return opened writes."""
        where = f"{address}: writes of task {batch.task_id}"
        return replace(batch, body=self._open_value(batch.body, where, *_place_of_batch(batch, address)))

    # -- cells -------------------------------------------------------------------------------------------------

    def cell(self, cell: Cell, shelf: Shelf, key: str) -> Cell:
        """Return a sealed cell. Its header includes its marks, and whether it has a body."""
        place = _place_of_cell(cell, shelf, key)
        marks = [list(cell.marks)] if cell.marks else []
        header = self._seal(pack([cell.header, bool(cell.body), *marks]), "cell", *place)
        return replace(cell, header=header, body=self._seal(cell.body, "body", *place) if cell.body else b"")

    def open_cell(self, cell: Cell, shelf: Shelf, key: str, *, has_body: bool) -> Cell:
        """Return an opened cell."""
        place = _place_of_cell(cell, shelf, key)
        whose = "shared records" if shelf.thread_id is None else f"thread {shelf.thread_id!r}"
        where = f"{whose}: the {shelf.kind} {key}"
        if key_in(cell.header) is None:
            self._check_plain(where)
            return cell
        header, had_body, *marks = unpack(self._open(cell.header, where, "cell", *place))
        if has_body and had_body is not bool(cell.body):
            raise SealBroken(f"{where}: its body was removed, or added")
        body = self._open(cell.body, where, "body", *place) if cell.body else b""
        return replace(cell, header=header, body=body, marks=tuple(marks[0]) if marks else ())


def _place_of_batch(batch: Batch, address: Address) -> tuple[Any, ...]:
    return "writes", address.checkpoint_ns, address.checkpoint_id, batch.task_id, batch.task_path


def _place_of_cell(cell: Cell, shelf: Shelf, key: str) -> tuple[Any, ...]:
    ranked = () if cell.rank is None else (cell.rank,)
    return shelf.thread_id is None, shelf.kind, key, cell.token, cell.origin, cell.expires_at, *ranked
