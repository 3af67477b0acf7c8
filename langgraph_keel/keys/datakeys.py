"""The keys that records are sealed with: one for each thread, one for what threads share, and what wraps them.

A master key wraps the key of the store, that wraps the keys of threads, and these seal records. Wrapped keys stand in
cells, which are the only ones that are not sealed. That of a thread goes with the thread; a backup of before has both.

What a thread has been copied from stays sealed as it was: its cell then holds the key of the other thread, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes, token_hex
from typing import Any

from langgraph_keel.engine.cells import Cell, Shelf, check_swapped
from langgraph_keel.engine.encoding.bodies import open_frame, raw_frame
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, KeyMissing, SealBroken
from langgraph_keel.keys.keyring import Keyring, MasterKey
from langgraph_keel.keys.sealing import KEY_BYTES, Sealer, pack, place_of, unpack

STORE = Shelf(None, "keyring")
"""Holds the identity of the store, and the keys of tenants."""
KIND = "key"
"""The kind of the cells of threads that hold their keys."""
KEY = "data"
_ENDED = b"ended"
"""What says, sealed, that a migration has ended."""
_MOST = 10_000
"""Threads whose keys are remembered."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key that seals records.

    Attributes:
        id: Four bytes that name it, in each record that it has sealed.
        origin: The thread whose records it seals, as their places name it; `None` for what threads share.
        sealer: What seals with it.
        wrapped: The key as it is stored.
    """

    id: bytes
    origin: str | None
    sealer: Sealer
    wrapped: bytes


@dataclass(frozen=True, slots=True)
class DataKeys:
    """The keys of a thread, or of what threads share.

    Attributes:
        keys: By their ids; the first one seals what is new.
        cell: The cell that holds them.
    """

    keys: Mapping[bytes, DataKey]
    cell: Cell

    @property
    def current(self) -> DataKey:
        """The key that seals what is new."""
        return next(iter(self.keys.values()))


@dataclass(frozen=True, slots=True)
class _StoreKeys:
    """What opens the keys of threads.

    Attributes:
        store_id: Tells this store from all others: what is copied to another one by hand does not open there.
        wrapper: Wraps and opens the keys of threads.
        shared: The keys of what threads share.
    """

    store_id: str
    wrapper: Sealer
    shared: DataKeys


class KeyChest:
    """Finds and makes the keys of one store.

    Args:
        store: The store itself, which does not seal.
        keyring: The master keys.
    """

    def __init__(self, store: Store[Any, Any], keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring
        self._own: _StoreKeys | None = None
        self._threads: OrderedDict[str, DataKeys] = OrderedDict()

    @property
    def current(self) -> str:
        """The name of the master key that wraps what is new."""
        return self._keyring.current.id

    @property
    def store_id(self) -> str:
        """What tells this store from all others. Only after keys were found."""
        assert self._own is not None
        return self._own.store_id

    def forget(self, thread_id: str) -> None:
        """Forget the keys of a thread: it is gone, or another one of this name has come."""
        self._threads.pop(thread_id, None)

    def forget_all(self) -> None:
        """Forget all keys: they are looked for again, and made anew if they are gone."""
        self._own = None
        self._threads.clear()

    # -- finding -----------------------------------------------------------------------------------------------

    def shared(self) -> Plan[DataKeys]:
        """Return the keys of what threads share. No trip, but for the first time: one, and one to make them."""
        return (yield from self._open_store()).shared

    def find(self, thread_id: str) -> Plan[DataKeys | None]:
        """Return the keys of a thread; `None` if it has none. No trip if they are known; one if not."""
        if (known := self._threads.get(thread_id)) is not None:
            return known
        own = yield from self._open_store()
        cells = yield from self._store.read_cells(Shelf(thread_id, KIND), [KEY])
        return self._learn(own, thread_id, cells[KEY]) if KEY in cells else None

    def make(self, thread_id: str) -> Plan[DataKeys]:
        """Return the keys of a thread, made if it has none. No trip if they are known; two if they are made."""
        if (known := (yield from self.find(thread_id))) is not None:
            return known
        own = yield from self._open_store()
        key = self._new_key(own, thread_id)
        return (yield from self._swap(own, thread_id, None, [key]))

    def keep(self, thread_id: str) -> Plan[None]:
        """See that a thread has the keys that it was just put with: it may have been deleted in between. One trip."""
        keys = self._threads.get(thread_id)
        if keys is not None:
            yield from self._store.swap_cell(Shelf(thread_id, KIND), KEY, None, keys.cell)

    def adopt(self, source: str, target: str) -> Plan[tuple[DataKeys | None, DataKeys | None]]:
        """Give a thread the keys of another one, before it gets its records. Up to four trips.

        Returns:
            The keys that the target had before, and those of the source; `None` where there are none.
        """
        found = yield from self.find(source)
        before = yield from self.find(target)
        if found is None:
            return before, None
        own = yield from self._open_store()
        held = before
        while True:
            keys = [*held.keys.values()] if held else [self._new_key(own, target)]
            missing = [key for key in found.keys.values() if key.id not in {each.id for each in keys}]
            if not missing:
                return before, found
            adopted = [self._rewrap(own, key, source, target) for key in missing]
            swapped = yield from self._swap(own, target, held.cell.token if held else None, [*keys, *adopted])
            if all(key.id in swapped.keys for key in missing):
                return before, found
            held = swapped

    def restore(self, thread_id: str, before: DataKeys | None) -> Plan[None]:
        """Take the keys of another thread from one again that did not get its records. At most one trip."""
        now = self._threads.get(thread_id)
        if now is not None and now is not before:
            self.forget(thread_id)
            yield from self._store.swap_cell(
                Shelf(thread_id, KIND), KEY, now.cell.token, before.cell if before else None
            )

    # -- making ------------------------------------------------------------------------------------------------

    def _new_key(self, own: _StoreKeys, thread_id: str) -> DataKey:
        secret, id = token_bytes(KEY_BYTES), token_bytes(4)
        wrapped = own.wrapper.seal(secret, _context(own.store_id, thread_id, thread_id, id))
        return DataKey(id, thread_id, Sealer(secret), wrapped)

    def _rewrap(self, own: _StoreKeys, key: DataKey, source: str, target: str) -> DataKey:
        secret = own.wrapper.open(key.wrapped, _context(own.store_id, source, key.origin, key.id))
        wrapped = own.wrapper.seal(secret, _context(own.store_id, target, key.origin, key.id))
        return DataKey(key.id, key.origin, key.sealer, wrapped)

    def _swap(self, own: _StoreKeys, thread_id: str, expected: str | None, keys: Sequence[DataKey]) -> Plan[DataKeys]:
        """Store the keys of a thread; return what stands there now, which somebody else may have made."""
        cell = _cell([[key.id, key.origin, key.wrapped] for key in keys], thread_id)
        shelf = Shelf(thread_id, KIND)
        swapped = yield from self._store.swap_cell(shelf, KEY, expected, cell)
        check_swapped(expected, swapped, f"thread {thread_id!r}: its keys")
        held = cell if swapped.done else swapped.cell
        if held is None:  # somebody has deleted the thread
            return (yield from self._swap(own, thread_id, None, keys))
        return self._learn(own, thread_id, held)

    def _learn(self, own: _StoreKeys, thread_id: str, cell: Cell) -> DataKeys:
        found = _open_keys(cell, own.wrapper, own.store_id, thread_id)
        self._threads[thread_id] = found
        while len(self._threads) > _MOST:
            self._threads.popitem(last=False)
        return found

    # -- the master key ------------------------------------------------------------------------------------------

    def read_master(self) -> Plan[str | None]:
        """Return the name of the master key that the store needs; `None` if nothing is sealed yet. One trip."""
        cells = yield from self._store.read_cells(STORE, [KEY])
        return _parse_store(cells[KEY])[1] if KEY in cells else None

    def accepts_plain(self) -> Plan[bool]:
        """Return whether records in plain text are read: the keyring is for a migration, and that has not ended.

        No trip if the keyring is for none, else one: whoever has the store open is to know at once that it has ended.
        """
        if not self._keyring.migrate:
            return False
        return not (yield from self.is_migrated())

    def is_migrated(self) -> Plan[bool]:
        """Return whether a migration of the store has ended. One trip."""
        cells = yield from self._store.read_cells(STORE, [KEY])
        if (cell := cells.get(KEY)) is None:
            return False
        self._own = self._own or self._read_store(cell)
        return _is_ended(cell, self._own)

    def end_migration(self, *, is_ended: bool = True) -> Plan[None]:
        """Note that nothing stands in the store in plain text any more, or that it may again. Two trips."""
        while True:
            own = yield from self._open_store()
            cell = (yield from self._store.read_cells(STORE, [KEY]))[KEY]
            if _is_ended(cell, own) is is_ended:
                return
            parts = unpack(open_frame(cell.header))[:3]
            new = _cell([*parts, own.wrapper.seal(_ENDED, _migration_context(own.store_id))] if is_ended else parts, "")
            if (yield from self._store.swap_cell(STORE, KEY, cell.token, new)).done:
                return

    def rotate(self) -> Plan[tuple[str | None, str]]:
        """Wrap what the master key wraps with the current one; return the names of the key before, and of that one.

        Two trips, and two for each who was quicker; one if there is nothing to do. No record is touched, and whoever
        has the store open goes on. Cut off anywhere, it was done or it was not.
        """
        current = self._keyring.current
        while True:
            cells = yield from self._store.read_cells(STORE, [KEY])
            if (cell := cells.get(KEY)) is None:
                return None, current.id
            store_id, master_id, (tenant, wrapped), shared, *rest = _parse_store(cell)
            if master_id == current.id:
                return master_id, current.id
            context = _tenant_context(store_id, tenant)
            secret = _unwrap(self._keyring.get(master_id), wrapped, context)
            new = _cell([store_id, [tenant, current.id, current.wrap(secret, context)], shared, *rest], "")
            swapped = yield from self._store.swap_cell(STORE, KEY, cell.token, new)
            if swapped.done:
                return master_id, current.id

    # -- the store's own ---------------------------------------------------------------------------------------

    def _open_store(self) -> Plan[_StoreKeys]:
        if self._own is None:
            cells = yield from self._store.read_cells(STORE, [KEY])
            cell = cells.get(KEY)
            if cell is None:
                cell = self._new_store()
                swapped = yield from self._store.swap_cell(STORE, KEY, None, cell)
                cell = cell if swapped.done else swapped.cell
            assert cell is not None
            self._own = self._read_store(cell)
        return self._own

    def _new_store(self) -> Cell:
        store_id, secret, master = token_hex(16), token_bytes(KEY_BYTES), self._keyring.current
        shared, id = token_bytes(KEY_BYTES), token_bytes(4)
        tenant = ["", master.id, master.wrap(secret, _tenant_context(store_id, ""))]
        wrapped = Sealer(secret).seal(shared, _context(store_id, None, None, id))
        return _cell([store_id, tenant, [[id, None, wrapped]]], "")

    def _read_store(self, cell: Cell) -> _StoreKeys:
        store_id, master_id, (tenant, wrapped), shared, *_ = _parse_store(cell)
        wrapper = Sealer(_unwrap(self._keyring.get(master_id), wrapped, _tenant_context(store_id, tenant)))
        return _StoreKeys(store_id, wrapper, _keys_of(shared, wrapper, store_id, None, cell))


def _parse_store(cell: Cell) -> tuple[Any, ...]:
    """Return the identity of a store, the name of its master key, the tenant with its wrapped key, and what is shared.

    And, where a migration has ended, what says so.

    Raises:
        CorruptStore: It holds something else.
    """
    try:
        store_id, (tenant, master_id, wrapped), shared, *rest = unpack(open_frame(cell.header))
    except (ValueError, TypeError) as error:
        raise CorruptStore(f"the keys of the store do not decode: {error}") from None
    kinds = [type(part) for part in (store_id, tenant, master_id, wrapped, *rest)]
    if kinds not in ([str, str, str, bytes], [str, str, str, bytes, bytes]):
        raise CorruptStore("the keys of the store are not what they should be")
    return store_id, master_id, (tenant, wrapped), shared, *rest


def _is_ended(cell: Cell, own: _StoreKeys) -> bool:
    """Return whether the cell of a store says that a migration has ended.

    Raises:
        SealBroken: What says so was changed.
    """
    _, _, _, _, *rest = _parse_store(cell)
    return bool(rest) and own.wrapper.open(rest[0], _migration_context(own.store_id)) == _ENDED


def _migration_context(store_id: str) -> bytes:
    return place_of(store_id, "migration")


def _unwrap(master: MasterKey, wrapped: bytes, context: bytes) -> bytes:
    try:
        return master.unwrap(wrapped, context)
    except Exception as error:
        raise KeyMissing(
            f"the master key {master.id!r} does not open what was wrapped with a key of that name "
            f"({type(error).__name__}): it is another key, or the record was changed"
        ) from error


def _cell(parts: Sequence[Any], origin: str) -> Cell:
    return Cell(token_hex(16), raw_frame(pack(parts)), origin=origin)


def _open_keys(cell: Cell, wrapper: Sealer, store_id: str, thread_id: str) -> DataKeys:
    return _keys_of(unpack(open_frame(cell.header)), wrapper, store_id, thread_id, cell)


def _keys_of(parts: Any, wrapper: Sealer, store_id: str, thread_id: str | None, cell: Cell) -> DataKeys:
    """Return the keys of a thread from what its cell holds.

    Raises:
        SealBroken: One of them was changed, or stood elsewhere.
        CorruptStore: It holds something else.
    """
    whose = "what threads share" if thread_id is None else f"thread {thread_id!r}"
    try:
        keys = [_open_key(wrapper, store_id, thread_id, *part) for part in parts]
    except (ValueError, TypeError) as error:
        raise CorruptStore(f"{whose}: its keys do not decode: {error}") from None
    except SealBroken as error:
        raise SealBroken(f"{whose}: a key of it is not sealed as it was: {error}") from None
    if not keys:
        raise CorruptStore(f"{whose}: it has no key")
    return DataKeys({key.id: key for key in keys}, cell)


def _open_key(wrapper: Sealer, store_id: str, thread_id: str | None, id: Any, origin: Any, wrapped: Any) -> DataKey:
    if not isinstance(id, bytes) or not isinstance(wrapped, bytes):
        raise TypeError("a key is no bytes")
    secret = wrapper.open(wrapped, _context(store_id, thread_id, origin, id))
    return DataKey(id, origin, Sealer(secret), wrapped)


def _context(store_id: str, thread_id: str | None, origin: str | None, id: bytes) -> bytes:
    return place_of(store_id, "data key", thread_id, origin, id)


def _tenant_context(store_id: str, tenant: str) -> bytes:
    return place_of(store_id, "tenant key", tenant)
