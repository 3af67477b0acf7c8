"""`saver.keys`: rotation and renewal of keys, and the migration of a store in plain text."""

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
        needed: The name of the key that the store needs now; `None` if nothing is sealed yet.
        current: The name of the one that the keyring wraps with.
        fault: Why the keyring does not open the store; empty if it does.
    """

    needed: str | None
    current: str
    fault: str = ""

    @property
    def is_current(self) -> bool:
        """Whether the other keys of the keyring are not needed any more."""
        return self.needed in (None, self.current) and not self.fault

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**self._asdict(), "is_current": self.is_current}

    def __str__(self) -> str:
        """Say it in words."""
        if self.fault:
            return f"this keyring does not open the store: {self.fault}"
        if self.needed is None:
            return f"nothing is sealed yet; {self.current!r} will be the master key"
        if self.is_current:
            return f"the master key is {self.current!r}, the current one"
        return f"the master key is {self.needed!r}, and {self.current!r} is the current one: rotate"


Progress: TypeAlias = Callable[[int, int | None], object]
"""Is called with how many threads were looked at, and of how many."""


@publish
class Renewed(NamedTuple):
    """What a renewal of keys has done.

    Attributes:
        threads: How many threads have got another key.
        failed: Threads whose keys cannot be read, and why: they are left as they are.
        master: The name of the master key that wraps the new key of the store; `None` if nothing is sealed yet.
    """

    threads: int
    failed: Mapping[str, str]
    master: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**self._asdict(), "failed": dict(self.failed)}

    def __str__(self) -> str:
        """Say it in words."""
        if self.master is None:
            return "nothing is sealed yet: there are no keys"
        failed = f"; of {len(self.failed):,} the keys cannot be read, and are left as they are" if self.failed else ""
        threads = count_of(self.threads, "thread")
        return f"the store and {threads} have another key, wrapped with {self.master!r}{failed}"


@publish
class Migrated(NamedTuple):
    """What a migration has done.

    Attributes:
        threads: In how many threads something stood in plain text.
        records: How many records were sealed: checkpoints, rows of values, writes, and those beside the checkpoints.
        failed: Threads that cannot be read, and why; of what all threads share, by the empty name.
        is_done: Whether nothing stands in the store in plain text any more, so that plain text is refused from now on.
    """

    threads: int
    records: int
    failed: Mapping[str, str]
    is_done: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**self._asdict(), "failed": dict(self.failed)}

    def __str__(self) -> str:
        """Say it in words."""
        done = f"{count_of(self.records, 'record')} sealed, in {count_of(self.threads, 'thread')}"
        if self.is_done:
            return f"{done}: nothing stands there in plain text any more"
        return f"{done}; of {count_of(len(self.failed), 'thread')} something cannot be read, and is left as it is"


def _sum_up(found: Sequence[MasterKeys]) -> MasterKeys:
    """Return one for all: one that does not open, or one that is behind, or one that has a key at all."""
    if faulty := next((each for each in found if each.fault), None):
        return faulty
    return next((each for each in found if not each.is_current), max(found, key=lambda each: each.needed is not None))


class KeyMethods(Component):
    """`saver.keys`: the keys of a store that is encrypted (`encryption=Keyring(...)`)."""

    def _list(self) -> Plan[MasterKeys]:
        """Return which master key the store needs, and which one is the current one.

        The keys are tried: `fault` says why they do not open the store. Two round trips, and one for each tenant; of a
        tenant's saver one. If several keys are needed, the answer is one that does not open its part of the store, or
        else one that is not the current one.

        Raises:
            InvalidInput: The saver has no keyring.
        """
        found: list[MasterKeys] = []
        for store in (yield from self._stores()):
            needed, fault = yield from store.chest.try_master()
            found.append(MasterKeys(needed, store.chest.current, fault))
        return _sum_up(found)

    list, alist = faces(_list)

    def _rotate(self) -> Plan[MasterKeys]:
        """Make the first key of the keyring the master key of the store, and of all tenants; return what it was.

        Three round trips, whatever the store holds, as what the master key wraps is one small record; and two for each
        tenant. A tenant's own saver does it for that tenant, in two. Cut off, it is done again. Whoever has the store
        open goes on. Whoever opens it needs the new key, and nobody the old one; but who has had it, and a copy of the
        store of that time, has the key of the store: he can read that copy, and later ones, until `renew`.

        Raises:
            InvalidInput: The saver has no keyring.
            KeyMissing: The keyring has not the key that the store needs now.
        """
        found: list[MasterKeys] = []
        for store in (yield from self._stores()):
            found.append(MasterKeys(*(yield from store.chest.rotate())))
        return _sum_up(found)

    rotate, arotate = faces(_rotate)

    def _renew(self, *, on_progress: Progress | None = None) -> Plan[Renewed]:
        """Give the store, all tenants and all threads other keys for what is written from now on; others go on.

        The new key of the store is wrapped with the first key of the keyring, so nobody needs the master key of before.
        It wraps the keys of threads and of what they share, and each gets another one, which seals what is new. What is
        there stays as it is sealed, and is read with the key that has sealed it.

        So who had the master key of before and a copy of the store reads in a later copy what was sealed with the keys
        that his has: records of before the renewal. He reads nothing that is sealed from `Keyring.refresh` seconds
        after it has ended on (60 by default; those of the keyrings of all programs that have the store open). But
        names stand in the clear as before, or their key stays the same if they are hidden, and the hashes by which
        threads and calls of tools are found keep theirs, so that he can try whether a thread is Ada's. If he can write
        to the store, he can still forge records of before. While keyrings have the master key of before, he could put
        back what it wraps: take it away then.

        Three round trips for the store and for each tenant, two for each thread, and two for 200 in their list; in
        memory are the names of all threads. It may be cut off anywhere, and several may do it at once: whoever does it
        again, with the same master key, goes on with what is left. Each renewal adds about 100 bytes to each thread. A
        tenant's saver does it for that tenant.

        Args:
            on_progress: Called with how many threads were looked at, and of how many.

        Raises:
            InvalidInput: The saver has no keyring.
            KeyMissing: The keyring has not the master key that the store needs now.
            CorruptStore: The list of threads cannot be read.
            StoreError: The store fails; what was renewed by then is.
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
        """Seal all that stands in the store in plain text. The keyring needs `migrate=True`; others go on meanwhile.

        Every program that writes to the store needs such a keyring before. It may be cut off anywhere, and several may
        do it at once: whoever does it again goes on with what is left. It ends when all was looked at and nothing was
        left; from then on plain text is refused by every saver, whatever its keyring says. Of what is deleted or
        replaced, bytes are left where the store has freed space: `saver.retention.reclaim_space(full=True)` is for
        that.

        All threads are looked at, twice or more, with six round trips for each, and more for long ones. In memory are
        the names of all threads, and the values of 32 checkpoints at once. Of a tenant's saver it is about that tenant,
        else about all.

        Args:
            again: Whether to do it also where it was done before: what stands there in plain text by now, somebody
                without keys has written, or a backup that was restored.
            on_progress: Called with how many threads were looked at, and of how many.

        Returns:
            What was sealed, and whether that is all.

        Raises:
            InvalidInput: The saver has no keyring, or one that is for no migration; or the store is of a backend that
                cannot do it.
            CorruptStore: The list of threads cannot be read.
            StoreBusy: Somebody goes on writing in plain text.
            StoreError: The store fails; what was sealed by then is, and the next one goes on.
        """
        store = self._sealed_store()
        if not store.migrates:
            raise InvalidInput("this keyring is for no migration: Keyring(..., migrate=True) reads plain text")
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
        """Return what holds the threads of no tenant, and those of each one; of a tenant's saver, that one's."""
        store = self._sealed_store()
        tenants = () if self.engine.session.tenant else (yield from read_tenants(store))
        return [store, *(store.of_tenant(tenant) for tenant in tenants)]

    def _sealed_store(self) -> SealedStore:
        if self._saver.stack.keyring is None:
            raise InvalidInput("this saver has no keyring: open it with encryption=Keyring(...)")
        return sealed_store_of(self.engine.session)


def sealed_store_of(session: Session) -> SealedStore:
    """Return the layer that seals, of a saver with a keyring. It need not be the uppermost one."""
    return cast(Layer, session.store).find(SealedStore)


def describe_backups(session: Session, keyring: Keyring | None) -> Plan[Sequence[str]]:
    """Say in sentences who can read backups of an encrypted store after an erasure. At most two trips."""
    if keyring is None:
        return ()
    store = sealed_store_of(session)
    if (master := (yield from store.chest.read_master())) is None:
        return ()
    was_plain = store.migrates or (yield from store.chest.is_migrated())
    sealed = (
        "What backups and copies of the store hold of it is sealed. The keys went with the threads, but a backup "
        f"has them, wrapped with a key of the store, and that one with the master key (now {master!r}). Whoever "
        "has the backup can read it with the master key of its time, or with this store and its master key; nobody "
        "else can."
    )
    return [sealed, *([_PLAIN_BACKUPS] if was_plain else ())]
