"""The data keys of threads and of shared records, and the keys that wrap them.

A master key wraps the key of the store (`storekey`), which wraps the keys of threads. Wrapped keys are in cells, the
only cells that are not sealed. After a renewal of the store's key, a thread gets a new key before its next record is
sealed. Its earlier keys stay, wrapped by the store's new key, to open the records they sealed. A copy of a thread also
has the keys of its source, and the source gets a new key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_bytes, token_hex
from time import monotonic
from typing import Any

from langgraph_keel.engine.cells import Cell, Shelf, check_swapped
from langgraph_keel.engine.encoding.bodies import open_frame, raw_frame
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import AccessDenied, CorruptStore, InvalidInput, KeyMissing, SealBroken
from langgraph_keel.keys.keyring import Keyring
from langgraph_keel.keys.names import Names
from langgraph_keel.keys.sealing import KEY_BYTES, Sealer, pack, place_of, unpack
from langgraph_keel.keys.storekey import FIRST, StoreCell, parse_cell

STORE = Shelf(None, "keyring")
"""The shelf of the identity of the store, and of the keys of tenants."""
KIND = "key"
"""The kind of cells that contain the keys of a thread."""
KEY = "data"
_NO_CELL = Cell("", b"")
_MOST = 10_000
"""Maximum number of threads whose keys are cached."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key that seals records."""

    id: bytes  # four bytes, in each record that it has sealed
    origin: str | None  # the thread named in its records' places; `None` for shared records
    sealer: Sealer
    wrapped: bytes  # the key as it is stored
    wrapper: bytes = FIRST  # the name of the key of the store that wraps it
    since: bytes = FIRST
    """The name of the store's key when this one was made. It is authenticated: a key from before a renewal cannot be
    presented as one from after it."""


@dataclass(frozen=True, slots=True)
class DataKeys:
    """The keys of a thread, or of shared records."""

    keys: Mapping[bytes, DataKey]  # by their ids; the first one seals new records
    cell: Cell = _NO_CELL  # the cell of the thread that contains them

    @property
    def current(self) -> DataKey:
        """The key that seals new records."""
        return next(iter(self.keys.values()))


@dataclass(frozen=True, slots=True)
class _StoreKeys:
    """The keys of the store, which open the keys of threads."""

    store_id: str  # unique: records that are copied by hand do not open in another store
    id: bytes  # the name of its current key
    wrappers: Mapping[bytes, Sealer]  # the current and all earlier keys, by name
    shared: DataKeys
    names: Names | None = None  # `None` if names are not hidden

    @property
    def wrapper(self) -> Sealer:
        """The key that wraps new keys."""
        return self.wrappers[self.id]

    @property
    def marker(self) -> Sealer:
        """The key that hides the marks of threads: always the first shared key."""
        return [*self.shared.keys.values()][-1].sealer


class KeyChest:
    """Finds and creates the keys of a store; for a tenant, `root` is the root store's chest."""

    def __init__(
        self, store: Store[Any, Any], keyring: Keyring, tenant: str = "", root: KeyChest | None = None
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._tenant = tenant
        self._root = root
        self._own: _StoreKeys | None = None
        self._looked = 0.0
        self._token: str | None = None
        self._no_names = Names(token_bytes(KEY_BYTES)) if keyring.hide_names else None
        self._threads: OrderedDict[str, DataKeys] = OrderedDict()

    @property
    def current(self) -> str:
        """The name of the master key that wraps new keys."""
        return self._keyring.current.id

    @property
    def store_id(self) -> str:
        """The unique id of this store. Known only after keys were found."""
        assert self._own is not None
        return self._own.store_id

    def forget(self, thread_id: str) -> None:
        """Forget the keys of a thread that was deleted, or deleted and created again."""
        self._threads.pop(thread_id, None)

    def forget_all(self) -> None:
        """Forget all keys. They are read again, or created if they are gone."""
        self._own = None
        self._threads.clear()

    # -- finding -----------------------------------------------------------------------------------------------

    def shared(self) -> Plan[DataKeys]:
        """Return the keys of shared records.

        No trip, except the first time: one, and one to create them.
        """
        return (yield from self._open_store()).shared

    def shared_of(self, ids: Collection[bytes]) -> Plan[DataKeys]:
        """Return the keys of shared records, including those with these ids.

        One trip if one is new.
        """
        found = yield from self.shared()
        if set(ids) <= found.keys.keys():
            return found
        return (yield from self._look()).shared

    def shared_to_seal(self) -> Plan[DataKeys]:
        """Return the keys that seal shared records. One trip after `refresh` seconds."""
        own = yield from self._open_store_to_seal()
        if own.shared.current.since != own.id:
            raise SealBroken("shared records: the current key was replaced by an earlier one")
        return own.shared

    def marker(self) -> Plan[Sealer]:
        """Return the key that hides the marks of threads, which never changes.

        Trips as for `shared`.
        """
        return (yield from self._open_store()).marker

    def names(self, to_write: bool) -> Plan[Names | None]:
        """Return the `Names` that hide names; `None` if they are not hidden.

        Trips as for `shared`.
        """
        if self._own is None and not to_write:
            if (cell := (yield from self._read_cell())) is None:
                return self._no_names
            return self._take(parse_cell(cell)).names
        return (yield from self._open_store()).names

    def find(self, thread_id: str) -> Plan[DataKeys | None]:
        """Return the keys of a thread; `None` if it has none.

        One trip if they are not cached.
        """
        if (known := self._threads.get(thread_id)) is not None:
            return known
        yield from self._open_store()
        cells = yield from self._store.read_cells(Shelf(thread_id, KIND), [KEY])
        return (yield from self._learn(thread_id, cells[KEY])) if KEY in cells else None

    def find_to_seal(self, thread_id: str) -> Plan[DataKeys | None]:
        """Return the keys of a thread, renewed if the store's are.

        Up to three trips more than `find`.
        """
        yield from self._open_store_to_seal()
        found = yield from self.find(thread_id)
        if found is None or self._is_renewed(found.current):
            return found
        return (yield from self.renew_thread(thread_id))[0]

    def make(self, thread_id: str) -> Plan[DataKeys]:
        """Return the keys that seal a thread's records, created if needed.

        No trip if cached; two to create.
        """
        while (found := (yield from self.find_to_seal(thread_id))) is None:
            own = yield from self._open_store()
            yield from self._swap(thread_id, None, [_new_key(own, thread_id)])
        return found

    def keep(self, thread_id: str) -> Plan[None]:
        """Store a thread's keys again if it was deleted during its first write. One trip."""
        keys = self._threads.get(thread_id)
        if keys is not None:
            yield from self._store.swap_cell(Shelf(thread_id, KIND), KEY, None, keys.cell)

    def adopt(self, source: str, target: str) -> Plan[tuple[DataKeys | None, DataKeys | None]]:
        """Copy the keys of one thread to another, before its records. Up to four trips."""
        found = yield from self.find_to_seal(source)
        before = yield from self.find_to_seal(target)
        if found is None:
            return before, None
        held = before
        while True:
            own = yield from self._open_store()
            keys = [*held.keys.values()] if held else [_new_key(own, target)]
            missing = [key for key in found.keys.values() if key.id not in {each.id for each in keys}]
            if not missing:
                return before, found
            adopted = [_wrap_key(own, key, target) for key in missing]
            swapped = yield from self._swap(target, held.cell.token if held else None, [*keys, *adopted])
            if all(key.id in swapped.keys for key in missing):
                return before, found
            held = swapped

    def advance(self, thread_id: str) -> Plan[None]:
        """Give a thread a new key for new records, as a copy has its earlier ones.

        Four trips, or more.
        """
        while (found := (yield from self.find(thread_id))) is not None:
            own = yield from self._open_store()
            cell = _cell_of([_new_key(own, thread_id), *found.keys.values()], thread_id)
            self.forget(thread_id)
            if (yield from self._store.swap_cell(Shelf(thread_id, KIND), KEY, found.cell.token, cell)).done:
                yield from self._learn(thread_id, cell)
                yield from self._change(lambda stored, own: stored)  # other processes notice the new cell
                return

    def restore(self, thread_id: str, before: DataKeys | None) -> Plan[None]:
        """Undo `adopt` if the records were not copied. At most one trip."""
        now = self._threads.get(thread_id)
        if now is not None and now is not before:
            self.forget(thread_id)
            yield from self._store.swap_cell(
                Shelf(thread_id, KIND), KEY, now.cell.token, before.cell if before else None
            )

    def _swap(self, thread_id: str, expected: str | None, keys: Sequence[DataKey]) -> Plan[DataKeys]:
        """Store a thread's keys, and return the stored ones, maybe of another process."""
        cell, shelf = _cell_of(keys, thread_id), Shelf(thread_id, KIND)
        swapped = yield from self._store.swap_cell(shelf, KEY, expected, cell)
        check_swapped(expected, swapped, f"thread {thread_id!r}: its keys")
        held = cell if swapped.done else swapped.cell
        if held is None:  # the thread was deleted
            return (yield from self._swap(thread_id, None, keys))
        return (yield from self._learn(thread_id, held))

    def _learn(self, thread_id: str, cell: Cell) -> Plan[DataKeys]:
        """Return the keys in a cell, and cache them. One trip if one is wrapped by an unknown key of the store."""
        own, parts = (yield from self._open_store()), _parse_keys(unpack(open_frame(cell.header)), thread_id)
        if not {wrapper for _, _, _, wrapper, _ in parts} <= own.wrappers.keys():
            own = yield from self._look()
        found = _open_keys(parts, own.wrappers, own.store_id, thread_id, cell)
        self._threads[thread_id] = found
        while len(self._threads) > _MOST:
            self._threads.popitem(last=False)
        return found

    # -- the master key ------------------------------------------------------------------------------------------

    def read_master(self) -> Plan[str | None]:
        """Return the name of the needed master key; `None` if nothing is sealed. One trip."""
        return (yield from self.try_master())[0]

    def try_master(self) -> Plan[tuple[str | None, str]]:
        """Return `read_master`, and why the keyring does not open the store, or "".

        One trip.
        """
        if (cell := (yield from self._read_cell())) is None:
            return None, ""
        stored = parse_cell(cell)
        try:
            stored.unwrap(self._keyring)
            self._take(stored)
        except (KeyMissing, SealBroken) as error:
            return stored.master_id, str(error)
        return stored.master_id, ""

    def accepts_plain(self) -> Plan[bool]:
        """Return whether plain text is read, that is until a migration ends.

        At most one trip.
        """
        # It is read each time, because an open saver must notice immediately that a migration has ended.
        return self._keyring.migrate and not (yield from self.is_migrated())

    def is_migrated(self) -> Plan[bool]:
        """Return whether a migration of the store has ended. One trip."""
        cell = yield from self._read_cell()
        if cell is None:
            return False
        stored = parse_cell(cell)
        return stored.is_ended(self._take(stored).wrappers[stored.id])

    def end_migration(self, *, is_ended: bool = True) -> Plan[None]:
        """Record whether a migration has ended, so that the store has no plain text.

        Two trips.
        """
        yield from self._open_store()

        def end(stored: StoreCell, own: _StoreKeys) -> StoreCell | None:
            is_as_it_should = stored.is_ended(own.wrapper) is is_ended
            return None if is_as_it_should else stored.end(own.wrapper, is_ended=is_ended)

        yield from self._change(end)

    def rotate(self) -> Plan[tuple[str | None, str]]:
        """Wrap the store's key with the current master key; return both names, the former first."""
        current = self._keyring.current

        def wrap(stored: StoreCell, own: _StoreKeys) -> StoreCell | None:
            return None if stored.master_id == current.id else stored.wrap(own.wrapper, current)

        before = yield from self._change(wrap)
        return None if before is None else before.master_id, current.id

    # -- renewing the store's key --------------------------------------------------------------------------------

    def begin_renewal(self) -> Plan[bytes | None]:
        """Give the store and the shared records a new key.

        Two trips; one if that was done already.
        """
        current = self._keyring.current

        def renew(stored: StoreCell, own: _StoreKeys) -> StoreCell | None:
            if stored.is_renewing and stored.master_id == current.id:
                return None
            new, key = stored.renew(own.wrappers, current)
            renewed = replace(own, id=new.id, wrappers={new.id: key, **own.wrappers})
            shared = [_wrap_key(renewed, each, None) for each in own.shared.keys.values()]
            return replace(new, shared=_parts_of([_new_key(renewed, None), *shared]))

        if (yield from self._change(renew)) is None:
            return None
        return (yield from self._look()).id

    def renew_thread(self, thread_id: str) -> Plan[tuple[DataKeys | None, bool]]:
        """Wrap a thread's keys with the store's key, and renew its key if older.

        Two trips.
        """
        while True:
            cell: Cell | None = (yield from self._store.read_cells(Shelf(thread_id, KIND), [KEY])).get(KEY)
            if cell is None:
                self.forget(thread_id)
                return None, False
            found = yield from self._learn(thread_id, cell)
            own = yield from self._open_store()
            keys, is_renewed = [*found.keys.values()], self._is_renewed(found.current)
            if is_renewed and all(key.wrapper == own.id for key in keys):
                return found, False
            new = [key if key.wrapper == own.id else _wrap_key(own, key, thread_id) for key in keys]
            if not is_renewed:
                new.insert(0, _new_key(own, thread_id))
            renewed = _cell_of(new, thread_id)
            swapped = yield from self._store.swap_cell(Shelf(thread_id, KIND), KEY, cell.token, renewed)
            if swapped.done:
                return (yield from self._learn(thread_id, renewed)), True

    def end_renewal(self, id: bytes) -> Plan[None]:
        """Record that the store's key of that name wraps all keys of threads. Two trips."""

        def end(stored: StoreCell, own: _StoreKeys) -> StoreCell | None:
            if stored.id != id or not stored.is_renewing:
                return None
            return replace(stored, is_renewing=False).wrap(own.wrapper, self._keyring.get(stored.master_id))

        yield from self._change(end)

    def _is_renewed(self, key: DataKey) -> bool:
        return self._own is not None and key.since == self._own.id

    # -- the store's keys --------------------------------------------------------------------------------------

    def _open_store(self) -> Plan[_StoreKeys]:
        """Return the keys of the store. No trip, except the first time: one, and one to create them."""
        return self._own or (yield from self._look())

    def _open_store_to_seal(self) -> Plan[_StoreKeys]:
        """Return the keys of the store, read again after `refresh` seconds. One trip in that case."""
        if self._own is None or monotonic() - self._looked >= self._keyring.refresh:
            return (yield from self._look())
        return self._own

    def _look(self) -> Plan[_StoreKeys]:
        """Read the keys of the store, or create them. One trip, and one to create them."""
        began = monotonic()
        cell = yield from self._read_cell()
        if cell is None:
            if self._root is not None:
                # They show savers without keys that the store is encrypted, also for future tenants.
                with suppress(AccessDenied):  # a tenant's role may not write shared records
                    yield from self._root.shared()
            key = Sealer(token_bytes(KEY_BYTES))
            stored = StoreCell(token_hex(16), self._tenant, "", b"", ())
            keys = _StoreKeys(stored.store_id, FIRST, {FIRST: key}, DataKeys({}))
            stored = replace(stored, shared=_parts_of([_new_key(keys, None)]))
            if self._no_names is not None:
                stored = stored.with_names(key, self._no_names)
            made = stored.wrap(key, self._keyring.current).to_cell()
            swapped = yield from self._store.swap_cell(STORE, KEY, None, made)
            cell = made if swapped.done else swapped.cell
        assert cell is not None
        own = self._take(parse_cell(cell))
        if self._token not in (None, cell.token):
            self._threads.clear()  # a thread that was copied has a new key
        self._token = cell.token
        self._looked = began  # not the time of the reply: a renewal may have happened in between
        return own

    def _read_cell(self) -> Plan[Cell | None]:
        return (yield from self._store.read_cells(STORE, [KEY])).get(KEY)

    def _take(self, stored: StoreCell) -> _StoreKeys:
        """Return the keys of the store, cached unless newer keys are, as replies may be late."""
        if stored.tenant != self._tenant:
            raise SealBroken(
                f"the keys of {_store_of(stored.tenant)} are stored in place of those of {_store_of(self._tenant)}: "
                "records of one tenant were moved to another in the database. Restore both from a backup"
            )
        own = self._own
        if own is not None and own.store_id != stored.store_id:  # the store was emptied and created again
            self.forget_all()
            own = None
        hides = self._keyring.hide_names
        if hides is not None and hides is not bool(stored.names):
            raise InvalidInput(
                f"the store {'hides' if stored.names else 'does not hide'} names, but the keyring has "
                f"hide_names={hides}: open it with Keyring(..., hide_names={not hides}). This is fixed by the first "
                "write to a store"
            )
        if own is None or stored.id not in own.wrappers:
            self._own = own = _keys_in(stored, stored.unwrap(self._keyring))
        return own

    def _change(self, change: Callable[[StoreCell, _StoreKeys], StoreCell | None]) -> Plan[StoreCell | None]:
        """Change the content of the store's cell; return the former content. Two trips; one if nothing changes."""
        while (cell := (yield from self._read_cell())) is not None:
            stored = parse_cell(cell)
            if (new := change(stored, _keys_in(stored, self._take(stored).wrappers[stored.id]))) is None:
                return stored
            if (yield from self._store.swap_cell(STORE, KEY, cell.token, new.to_cell())).done:
                return stored
        return None


def _keys_in(stored: StoreCell, key: Sealer) -> _StoreKeys:
    """Return the keys in a store's cell, opened with the store's key."""
    wrappers = stored.open_earlier(key)
    shared = _open_keys(_parse_keys(stored.shared, None), wrappers, stored.store_id, None, _NO_CELL)
    return _StoreKeys(stored.store_id, stored.id, wrappers, shared, stored.open_names(key))


def _new_key(own: _StoreKeys, thread_id: str | None) -> DataKey:
    """Return a new data key of a thread, or of shared records."""
    key = DataKey(token_bytes(4), thread_id, Sealer(token_bytes(KEY_BYTES)), b"", since=own.id)
    return _wrap_key(own, key, thread_id)


def _wrap_key(own: _StoreKeys, key: DataKey, thread_id: str | None) -> DataKey:
    """Return a data key wrapped by the store's key."""
    context = _context(own.store_id, thread_id, key.origin, key.id, key.since)
    return replace(key, wrapped=own.wrapper.seal(key.sealer.secret, context), wrapper=own.id)


def _parts_of(keys: Sequence[DataKey]) -> list[list[Any]]:
    """Return the stored form of keys, without the wrapper if it is `FIRST`."""
    return [
        [key.id, key.origin, key.wrapped, *([] if key.wrapper == FIRST else [key.wrapper, key.since])] for key in keys
    ]


def _cell_of(keys: Sequence[DataKey], thread_id: str) -> Cell:
    return Cell(token_hex(16), raw_frame(pack(_parts_of(keys))), origin=thread_id)


def _parse_keys(parts: Any, thread_id: str | None) -> list[tuple[bytes, Any, bytes, bytes, bytes]]:
    """Return the parts of keys: id, origin, wrapped key, wrapper, and `since`."""
    try:
        found = [(*part, FIRST, FIRST) if len(part) == 3 else tuple(part) for part in parts]
        kinds = {tuple(type(part) for part in (id, *rest)) for id, _, *rest in found}
    except (ValueError, TypeError) as error:
        raise CorruptStore(f"{_whose(thread_id)}: its keys cannot be decoded: {error}") from None
    if kinds != {(bytes,) * 4}:
        raise CorruptStore(f"{_whose(thread_id)}: {'its keys have an unexpected format' if kinds else 'it has no key'}")
    return found


def _open_keys(
    parts: Iterable[tuple[bytes, Any, bytes, bytes, bytes]],
    wrappers: Mapping[bytes, Sealer],
    store_id: str,
    thread_id: str | None,
    cell: Cell,
) -> DataKeys:
    """Open the keys of a thread, or of shared records."""
    keys, names = {}, [*wrappers]
    for id, origin, wrapped, wrapper, since in parts:
        try:
            # Otherwise an attacker with an earlier key of the store could pass off its own key as a new one.
            if wrapper not in names or since not in names[names.index(wrapper) :]:
                raise SealBroken("it is wrapped by a key that the store did not have at that time")
            secret = wrappers[wrapper].open(wrapped, _context(store_id, thread_id, origin, id, since))
        except SealBroken as error:
            raise SealBroken(f"{_whose(thread_id)}: one of its keys was tampered with: {error}") from None
        keys[id] = DataKey(id, origin, Sealer(secret), wrapped, wrapper, since)
    return DataKeys(keys, cell)


def _context(store_id: str, thread_id: str | None, origin: str | None, id: bytes, since: bytes) -> bytes:
    return place_of(store_id, "data key", thread_id, origin, id, *([] if since == FIRST else [since]))


def _store_of(tenant: str) -> str:
    return f"tenant {tenant!r}" if tenant else "the store without a tenant"


def _whose(thread_id: str | None) -> str:
    return "shared records" if thread_id is None else f"thread {thread_id!r}"
