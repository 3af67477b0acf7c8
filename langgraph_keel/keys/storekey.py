"""The key of a store, which wraps the keys of its threads, and its cell.

A renewed store has a new key, which wraps the earlier keys. These open data keys that are not wrapped again yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_bytes, token_hex
from typing import Any

from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.encoding.bodies import open_frame, raw_frame
from langgraph_keel.errors import CorruptStore, KeyMissing, SealBroken
from langgraph_keel.keys.keyring import Keyring, MasterKey
from langgraph_keel.keys.names import Names
from langgraph_keel.keys.sealing import KEY_BYTES, Sealer, pack, place_of, unpack

FIRST = b""
"""The name of the first key of a store."""
_ENDED = b"ended"
"""Marker, stored sealed, of a migration that has ended."""
_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoreCell:
    """The content of a store's cell."""

    store_id: str  # unique: records that are copied by hand do not open in another store
    tenant: str  # empty for none; authenticated
    master_id: str  # the name of the master key that wraps the store's
    wrapped: bytes  # the key of the store
    shared: Sequence[Any]  # the data keys of shared records, each as its parts, the current one first
    id: bytes = FIRST  # the name of the key of the store
    earlier: Sequence[tuple[bytes, bytes]] = ()  # by name, wrapped by the current one, the latest first
    is_renewing: bool = False  # whether the keys of threads are being wrapped again
    ended: bytes | None = None  # the sealed marker of a migration that has ended
    names: bytes | None = None  # the key of names, wrapped by the store's key, if names are hidden

    @property
    def context(self) -> bytes:
        """Data that is authenticated when the master key wraps the store's key."""
        renewed = () if self.id == FIRST else (self.id, self.is_renewing)
        # Otherwise an attacker with write access could remove the key of names, and later names would be in the clear.
        hides = ("names",) if self.names else ()
        return place_of(self.store_id, "tenant key", self.tenant, *renewed, *hides)

    def unwrap(self, keyring: Keyring) -> Sealer:
        """Return the key of the store."""
        master = keyring.get(self.master_id)
        try:
            secret = master.unwrap(self.wrapped, self.context)
        except Exception as error:
            raise KeyMissing(
                f"the master key {master.id!r} does not open the store's key, wrapped with a key of that name "
                f"({type(error).__name__}): it is a different key, or the record was changed"
            ) from error
        return Sealer(secret)

    def wrap(self, key: Sealer, master: MasterKey) -> StoreCell:
        """Return a copy whose key is wrapped by a master key."""
        return replace(self, master_id=master.id, wrapped=master.wrap(key.secret, self.context))

    def to_cell(self) -> Cell:
        """Return the cell to store."""
        renewed = [] if self.id == FIRST else [self.id, [list(each) for each in self.earlier], self.is_renewing]
        rest = [self.ended, self.names] if self.names else [self.ended] if self.ended else []
        parts = [self.store_id, [self.tenant, self.master_id, self.wrapped, *renewed], list(self.shared), *rest]
        return Cell(token_hex(16), raw_frame(pack(parts)))

    @property
    def end_place(self) -> bytes:
        """The place of the marker of a migration that has ended."""
        return place_of(self.store_id, "migration")

    def is_ended(self, key: Sealer) -> bool:
        """Return whether a migration has ended."""
        return self.ended is not None and key.open(self.ended, self.end_place) == _ENDED

    def end(self, key: Sealer, *, is_ended: bool) -> StoreCell:
        """Return a copy with or without the marker of a migration that has ended."""
        return replace(self, ended=key.seal(_ENDED, self.end_place) if is_ended else None)

    def with_names(self, key: Sealer, names: Names) -> StoreCell:
        """Return a copy with a key of names."""
        return replace(self, names=key.seal(names.secret, self._names_place))

    def open_names(self, key: Sealer) -> Names | None:
        """Return the `Names` that hide names; `None` if names are not hidden."""
        return None if self.names is None else Names(key.open(self.names, self._names_place))

    @property
    def _names_place(self) -> bytes:
        return place_of(self.store_id, "names")

    def open_earlier(self, key: Sealer) -> Mapping[bytes, Sealer]:
        """Return all keys of the store by their names, the current one first."""
        keys = {self.id: key}
        for id, sealed in self.earlier:
            try:
                keys[id] = Sealer(key.open(sealed, self._earlier_place(id)))
            except SealBroken as error:
                raise SealBroken(f"an earlier key of the store was tampered with: {error}") from None
        return keys

    def renew(self, keys: Mapping[bytes, Sealer], master: MasterKey) -> tuple[StoreCell, Sealer]:
        """Return a copy with a new key, and the key, which must wrap the shared keys next."""
        key, was_ended = Sealer(token_bytes(KEY_BYTES)), self.is_ended(keys[self.id])
        names = self.open_names(keys[self.id])
        new = replace(self, id=token_bytes(_ID_BYTES), is_renewing=True)
        earlier = tuple((id, key.seal(old.secret, new._earlier_place(id))) for id, old in keys.items())
        new = replace(new, earlier=earlier).wrap(key, master).end(key, is_ended=was_ended)
        return (new if names is None else new.with_names(key, names)), key

    def _earlier_place(self, id: bytes) -> bytes:
        return place_of(self.store_id, "store key", self.id, id)


def parse_cell(cell: Cell) -> StoreCell:
    """Return the content of a store's cell."""
    try:
        store_id, (tenant, master_id, wrapped, *renewed), shared, *rest = unpack(open_frame(cell.header))
        id, earlier, is_renewing = renewed or (FIRST, (), False)
        earlier = tuple((name, sealed) for name, sealed in earlier)
    except (ValueError, TypeError) as error:
        raise CorruptStore(f"the keys of the store cannot be decoded: {error}") from None
    kinds = [type(part) for part in (store_id, tenant, master_id, wrapped, id, is_renewing, *rest)]
    of_rest: list[list[type]] = [[], [bytes], [bytes, bytes], [type(None), bytes]]
    if kinds[:6] != [str, str, str, bytes, bytes, bool] or kinds[6:] not in of_rest:
        raise CorruptStore("the keys of the store have an unexpected format")
    if {type(part) for each in earlier for part in each} - {bytes} or (id == FIRST) is bool(renewed):
        raise CorruptStore("the earlier keys of the store have an unexpected format")
    return StoreCell(store_id, tenant, master_id, wrapped, shared, id, earlier, is_renewing, *rest)
