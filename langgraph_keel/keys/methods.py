"""`saver.keys`: rotation and renewal of keys, and migration of plain-text stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from langgraph_keel.display.text import count_of
from langgraph_keel.engine.faces import Component, faces
from langgraph_keel.engine.layers import Layer
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tenants import read_tenants
from langgraph_keel.errors import InvalidInput
from langgraph_keel.keys.keyring import Keyring
from langgraph_keel.keys.migration import Sealed, migrate
from langgraph_keel.keys.renewal import Renewal, renew
from langgraph_keel.keys.store import SealedStore

_PLAIN_BACKUPS = "Backups of before the store was encrypted hold it in plain text: destroy them."


@publish
class MasterKeys(NamedTuple):
    """The master keys of a store.

    Attributes:
        needed: Name of the key that the store needs now; `None` if nothing is encrypted yet.
        current: Name of the first key of the keyring, which encrypts new keys.
        fault: Reason why the keyring does not open the store; empty if it does.
    """

    needed: str | None
    current: str
    fault: str = ""

    @property
    def is_current(self) -> bool:
        """Whether the other keys of the keyring are no longer needed."""
        return self.needed in (None, self.current) and not self.fault

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of plain data."""
        return {**self._asdict(), "is_current": self.is_current}

    def __str__(self) -> str:
        """Describe the result in words."""
        if self.fault:
            return f"this keyring does not open the store: {self.fault}"
        if self.needed is None:
            return f"nothing is sealed yet; {self.current!r} will be the master key"
        if self.is_current:
            return f"the master key {self.current!r} is current"
        return f"the master key is {self.needed!r}, and the current one is {self.current!r}: run `keel keys rotate`"


Progress: TypeAlias = Callable[[int, int | None], object]
"""Callback that receives the number of threads read so far and their total."""


@publish
class Renewed(NamedTuple):
    """Result of a renewal of keys.

    Attributes:
        threads: Number of threads with a new key.
        failed: Threads whose keys cannot be read, and the reason. They are not changed.
        master: Name of the master key that wraps the store's new key; `None` if nothing is sealed yet.
    """

    threads: int
    failed: Mapping[str, str]
    master: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of plain data."""
        return {**self._asdict(), "failed": dict(self.failed)}

    def __str__(self) -> str:
        """Describe the result in words."""
        if self.master is None:
            return "nothing is sealed yet: the store has no keys"
        failed = f"; the keys of {len(self.failed):,} cannot be read and were not changed" if self.failed else ""
        threads = count_of(self.threads, "thread")
        return f"the store and {threads} have new keys, wrapped with {self.master!r}{failed}"


@publish
class Migrated(NamedTuple):
    """Result of a migration.

    Attributes:
        threads: Number of threads that contained plain text.
        records: Number of records sealed: checkpoints, rows of values, writes, and cells.
        failed: Threads that cannot be read, and the reason. The empty name is for shared records.
        is_done: Whether the store contains no more plain text. From then on plain text is refused.
    """

    threads: int
    records: int
    failed: Mapping[str, str]
    is_done: bool

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of plain data."""
        return {**self._asdict(), "failed": dict(self.failed)}

    def __str__(self) -> str:
        """Describe the result in words."""
        done = f"{count_of(self.records, 'record')} sealed, in {count_of(self.threads, 'thread')}"
        if self.is_done:
            return f"{done}: the store contains no more plain text"
        return f"{done}; records in {count_of(len(self.failed), 'thread')} cannot be read and were not sealed"


def _sum_up(found: Sequence[MasterKeys]) -> MasterKeys:
    """Return the most urgent result: with a fault, else not current, else with a key."""
    if faulty := next((each for each in found if each.fault), None):
        return faulty
    return next((each for each in found if not each.is_current), max(found, key=lambda each: each.needed is not None))


class KeyMethods(Component):
    """`saver.keys`: the keys of an encrypted store (`encryption=Keyring(...)`)."""

    def _list(self) -> Plan[MasterKeys]:
        """Return which master key the store needs, and which key is current.

        The keys are tried: if they do not open the store, `fault` gives the reason. It takes two round trips, and one
        for each tenant; a tenant's saver takes one. If the store and its tenants need different keys, the result is a
        key that does not open its part, or else a key that is not current.

        Raises:
            InvalidInput: If the saver has no keyring.
        """
        found: list[MasterKeys] = []
        for store in (yield from self._stores()):
            needed, fault = yield from store.chest.try_master()
            found.append(MasterKeys(needed, store.chest.current, fault))
        return _sum_up(found)

    list, alist = faces(_list)

    def _rotate(self) -> Plan[MasterKeys]:
        """Make the keyring's first key the master key of all; return the former one.

        The master key wraps one small record, so a rotation takes three round trips for a store of any size, and two
        for each tenant. A tenant's saver rotates that tenant's key, in two. An interrupted rotation can be repeated.
        Savers that have the store open continue; savers that open it later need only the new key. An attacker with the
        old key and a copy of the store has the store's key, and can read that copy and later ones until `renew`.

        Raises:
            InvalidInput: If the saver has no keyring.
            KeyMissing: If the keyring does not have the key that the store needs now.
        """
        found: list[MasterKeys] = []
        for store in (yield from self._stores()):
            found.append(MasterKeys(*(yield from store.chest.rotate())))
        return _sum_up(found)

    rotate, arotate = faces(_rotate)

    def _renew(self, *, on_progress: Progress | None = None) -> Plan[Renewed]:
        """Give the store, all tenants and all threads new keys for later writes.

        Runs continue.

        The store's new key is wrapped with the first key of the keyring, so the old master key is no longer needed. It
        wraps the data keys of threads and shared records, each of which gets an additional key for new records.
        Existing records are not changed, and are read with the keys that sealed them.

        An attacker with the old master key and an old copy of the store can read, in a later copy, records sealed with
        the keys in the old copy, but no record sealed later than `Keyring.refresh` seconds after the renewal (60 by
        default; of the keyrings of all programs that have the store open). Names remain in the clear, or keep their key
        if they are hidden. The hashes that find threads and tool calls keep their keys, so the attacker can test
        whether a thread is Ada's. With write access, the attacker can still forge records as of before the renewal,
        and, while keyrings contain the old master key, restore the store key that it wraps. So remove the old key.

        It takes three round trips for the store and for each tenant, two for each thread, and two for every 200 threads
        listed. The names of all threads are held in memory. It may be interrupted, and run concurrently. Calling it
        again with the same master key resumes with the remaining threads. Each renewal adds about 100 bytes to each
        thread. A tenant's saver renews that tenant's keys.

        Args:
            on_progress: Called with the number of threads read so far and their total.

        Raises:
            InvalidInput: If the saver has no keyring.
            KeyMissing: If the keyring does not have the master key that the store needs now.
            CorruptStore: If the list of threads cannot be read.
            StoreError: If the store fails. Keys renewed until then stay renewed.
        """
        done: list[Renewal] = []
        masters: list[str | None] = []
        for store in (yield from self._stores()):
            done.append((yield from renew(store, on_progress or (lambda looked, total: None))))
            masters.append((yield from store.chest.read_master()))
        failed = {thread_id: why for each in done for thread_id, why in each.failed.items()}
        return Renewed(sum(each.threads for each in done), failed, next(filter(None, masters), None))

    renew, arenew = faces(_renew)

    def _migrate(self, *, again: bool = False, on_progress: Progress | None = None) -> Plan[Migrated]:
        """Seal all records of the store that are in plain text. Runs continue.

        First restart every program that writes to the store with a keyring that has `migrate=True`. The migration may
        be interrupted, and run concurrently; calling it again resumes with the remaining records. It ends when all
        threads were read and no plain text was found. From then on every saver refuses plain text, whatever its
        keyring's options. Deleted and replaced plain text may remain in freed space of the store:
        `saver.retention.reclaim_space(full=True)` overwrites it.

        All threads are read, twice or more, with six round trips for each, and more for long ones. The names of all
        threads and the values of 32 checkpoints are held in memory. A tenant's saver migrates that tenant, any other
        saver the whole store.

        Args:
            again: Whether to repeat a migration that has ended. Plain text found then was written by a process without
                keys, or comes from a restored backup.
            on_progress: Called with the number of threads read so far and their total.

        Returns:
            The number of sealed records, and whether the migration is complete.

        Raises:
            InvalidInput: If the saver has no keyring, or a keyring without `migrate=True`, or if the backend does not
                support migration.
            CorruptStore: If the list of threads cannot be read.
            StoreBusy: If another process keeps writing plain text.
            StoreError: If the store fails. Records sealed until then stay sealed, and the next call resumes.
        """
        store = self._sealed_store()
        if not store.migrates:
            raise InvalidInput("this keyring does not allow a migration: use Keyring(..., migrate=True)")
        done: list[Sealed] = []
        for each in (yield from self._stores()):
            if (yield from each.chest.is_migrated()):
                if not again:
                    continue
                yield from each.chest.end_migration(is_ended=False)
            done.append((yield from migrate(each, on_progress or (lambda looked, total: None))))
        return Migrated(
            sum(len(each.threads) for each in done),
            sum(each.records for each in done),
            {thread_id: why for each in done for thread_id, why in each.failed.items()},
            all(each.is_done for each in done),
        )

    migrate, amigrate = faces(_migrate)

    def _stores(self) -> Plan[Sequence[SealedStore]]:
        """Return the root store and all tenants' stores, or only the saver's tenant's."""
        store = self._sealed_store()
        tenants = () if self.engine.session.tenant else (yield from read_tenants(store))
        return [store, *(store.of_tenant(tenant) for tenant in tenants)]

    def _sealed_store(self) -> SealedStore:
        if self._saver.stack.keyring is None:
            raise InvalidInput("this saver has no keyring: open it with encryption=Keyring(...)")
        return sealed_store_of(self.engine.session)


def sealed_store_of(session: Session) -> SealedStore:
    """Return the sealing layer of a saver with a keyring."""
    return cast(Layer, session.store).find(SealedStore)


def describe_backups(session: Session, keyring: Keyring | None) -> Plan[Sequence[str]]:
    """Return sentences about access to backups after an erasure.

    At most two round trips.
    """
    if keyring is None:
        return ()
    store = sealed_store_of(session)
    if (master := (yield from store.chest.read_master())) is None:
        return ()
    was_plain = store.migrates or (yield from store.chest.is_migrated())
    sealed = (
        "Backups and copies of the store contain the data in encrypted form. The keys of the threads were deleted "
        f"here, but a backup contains them, wrapped with the store's key, which the master key (now {master!r}) wraps. "
        "The backup can be read with the master key of its time, or with this store and its master key."
    )
    return [sealed, *([_PLAIN_BACKUPS] if was_plain else ())]
