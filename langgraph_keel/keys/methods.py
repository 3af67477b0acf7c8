"""What a saver shows of its keys, and the rotation of the master key."""

from __future__ import annotations

from typing import Any, NamedTuple

from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import EngineSaver
from langgraph_keel.errors import InvalidInput
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


class KeyMethods(EngineSaver):
    """The methods for the keys of a store that is encrypted (`encryption=Keyring(...)`)."""

    def master_keys(self) -> MasterKeys:
        """Return which master key the store needs, and which one is the current one. One round trip.

        Raises:
            InvalidInput: The saver has no keyring.
        """
        return self.engine.run(self._master_keys())

    async def amaster_keys(self) -> MasterKeys:
        """As `master_keys`, asynchronously."""
        return await self.engine.arun(self._master_keys())

    def _master_keys(self) -> Plan[MasterKeys]:
        store = self._sealed()
        needed = yield from store.chest.read_master()
        return MasterKeys(needed, store.chest.current)

    def rotate_keys(self) -> MasterKeys:
        """Make the first key of the keyring the master key of the store; return what it was.

        Two round trips, whatever the store holds: what the master key wraps is one small record. Whoever has the store
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
        before, current = yield from self._sealed().chest.rotate()
        return MasterKeys(before, current)

    def _sealed(self) -> SealedStore:
        store = self.engine.session.store
        if not isinstance(store, SealedStore):
            raise InvalidInput("this saver has no keyring: open it with encryption=Keyring(...)")
        return store
