"""What a saver shows of its keys, and the rotation of the master key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import EngineSaver
from langgraph_keel.engine.tenants import read_tenants
from langgraph_keel.errors import InvalidInput
from langgraph_keel.keys.datakeys import KeyChest
from langgraph_keel.keys.store import SealedStore


@publish
class MasterKeys(NamedTuple):
    """The master keys of a store.

    Attributes:
        needed: The name of the key that the store needs now; `None` if nothing is sealed yet.
        current: The name of the one that the keyring wraps with.
    """

    needed: str | None
    current: str

    @property
    def is_current(self) -> bool:
        """Whether the other keys of the keyring are not needed any more."""
        return self.needed in (None, self.current)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**self._asdict(), "is_current": self.is_current}

    def __str__(self) -> str:
        """Say it in words."""
        if self.needed is None:
            return f"nothing is sealed yet; {self.current!r} will be the master key"
        if self.is_current:
            return f"the master key is {self.current!r}, the current one"
        return f"the master key is {self.needed!r}, and {self.current!r} is the current one: rotate"


def _sum_up(found: Sequence[MasterKeys]) -> MasterKeys:
    """Return one for all: of one that is behind, if there is any, else of one that has a key at all."""
    return next((each for each in found if not each.is_current), max(found, key=lambda each: each.needed is not None))


class KeyMethods(EngineSaver):
    """The methods for the keys of a store that is encrypted (`encryption=Keyring(...)`)."""

    def master_keys(self) -> MasterKeys:
        """Return which master key the store needs, and which one is the current one.

        Two round trips, and one for each tenant; of a tenant's saver one. If several keys are needed, the answer is one
        of them that is not the current one.

        Raises:
            InvalidInput: The saver has no keyring.
        """
        return self.engine.run(self._master_keys())

    async def amaster_keys(self) -> MasterKeys:
        """As `master_keys`, asynchronously."""
        return await self.engine.arun(self._master_keys())

    def _master_keys(self) -> Plan[MasterKeys]:
        found: list[MasterKeys] = []
        for chest in (yield from self._chests()):
            found.append(MasterKeys((yield from chest.read_master()), chest.current))
        return _sum_up(found)

    def rotate_keys(self) -> MasterKeys:
        """Make the first key of the keyring the master key of the store, and of all tenants; return what it was.

        Three round trips, whatever the store holds, as what the master key wraps is one small record; and two for each
        tenant. A tenant's own saver does it for that tenant, in two. Cut off, it is done again. Whoever has the store
        open goes on. Whoever opens it needs the new key, and nobody the old one; but who has had it, and a copy of the
        store of that time, can read that copy for ever.

        Raises:
            InvalidInput: The saver has no keyring.
            KeyMissing: The keyring has not the key that the store needs now.
        """
        return self.engine.run(self._rotate_keys())

    async def arotate_keys(self) -> MasterKeys:
        """As `rotate_keys`, asynchronously."""
        return await self.engine.arun(self._rotate_keys())

    def _rotate_keys(self) -> Plan[MasterKeys]:
        found: list[MasterKeys] = []
        for chest in (yield from self._chests()):
            found.append(MasterKeys(*(yield from chest.rotate())))
        return _sum_up(found)

    def _chests(self) -> Plan[Sequence[KeyChest]]:
        """Return the keys of the threads of no tenant, and of each one; of a tenant's saver, that one's."""
        store = self._sealed()
        tenants = () if self.engine.session.tenant else (yield from read_tenants(store))
        return [store.chest, *(store.of_tenant(tenant).chest for tenant in tenants)]

    def _sealed(self) -> SealedStore:
        store = self.engine.session.store
        if not isinstance(store, SealedStore):
            raise InvalidInput("this saver has no keyring: open it with encryption=Keyring(...)")
        return store
