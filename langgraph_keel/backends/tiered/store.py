"""A store on two: a cold one with all data, and a hot one with copies (`chains`).

Stamps of entries are those of the cold store. Stamps and ids may be used again. Each write therefore adds a random
token to the header (`CopyToken`), and a copy is used only if the cold store has the same header.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypeVar

from langgraph_keel.backends.tiered.chains import (
    HEAVY,
    ID,
    Chain,
    begin_chain,
    chain_of,
    extend_chain,
    link_of,
    link_of_put,
    read_chain,
    room_after,
)
from langgraph_keel.backends.tiered.driver import Hot
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import shrink
from langgraph_keel.engine.events import Put
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.layers import Layer
from langgraph_keel.engine.plan import Plan, map_requests
from langgraph_keel.engine.records import (
    Entry,
    Found,
    Graph,
    NewEntry,
    Outcome,
    Query,
    Replacement,
    Run,
    Stamp,
    Stored,
    Unchanged,
)
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, StoreError, StoreUnavailable

T = TypeVar("T")
_TOKEN = "copy"
"""The name of the token in a header."""
_log = logging.getLogger(__name__)
TENANT = "keel.hot"
"""The tenant that owns the copies in the hot store."""
LIGHT = 1 << 16
"""Maximum bytes of an entry that is not copied.

A cold store returns 100 messages as fast as a hot one (0.66 ms each, PostgreSQL and Redis on one machine)."""
_MOST = 10_000
"""Maximum number of namespaces whose chain is remembered."""


class CopyToken(Hook):
    """Gives each checkpoint a random token that identifies its copy."""

    def draft_put(self, session: Session, put: Put) -> None:
        """Add the token."""
        put.header.about[_TOKEN] = session.new_token()


class TieredStore(Layer):
    """Keeps threads in one store, and copies of large latest entries in another.

    Entries of more than `light` bytes are copied. Batches and cells are in the cold store alone, because effects that
    must happen once need certainty.
    """

    def __init__(self, cold: Store[Any, Any], hot: Store[Any, Any], light: int = LIGHT, tenant: str = "") -> None:
        super().__init__(cold)
        self.cold = cold
        self._light = light
        self._all_hot = hot
        # Copies keep their thread ids, in a tenant of this module, apart from the threads of other savers.
        digest = blake2b(tenant.encode(), digest_size=16).hexdigest()  # the tenant's whole name could be too long
        self.hot = hot.of_tenant(f"{TENANT}.{digest}" if tenant else TENANT)
        self._chains: OrderedDict[tuple[str, str], Chain] = OrderedDict()

    # -- checkpoints -------------------------------------------------------------------------------------------

    def write_entry(self, new: NewEntry) -> Plan[Outcome]:
        """One round trip to the cold store; one to the hot store to extend a chain."""
        outcome: Outcome = yield from self.cold.write_entry(new)
        chain = self._chains.pop(_namespace(new.address), None)
        # An entry without a base shows no items of the chain. If the cold store has lost the end of the chain, the
        # numbers of its items could collide with the chain's.
        if isinstance(outcome, Stored) and chain is not None and new.base == chain.end:
            yield from self._extend(chain, new, outcome)
        return outcome

    def _extend(self, chain: Chain, new: NewEntry, stored: Stored) -> Plan[None]:
        link = link_of_put(new, stored, chain.end)
        room = chain.room - len(link)
        if room < 0:
            return  # much of the chain may be obsolete; the next reader starts a new one
        entry = extend_chain(new.address, chain, link, new.updated_at)
        outcome = yield from self._try(self.hot.write_entry(entry))
        if isinstance(outcome, Stored):
            self._remember(_namespace(new.address), chain_of(entry, outcome, stored.stamp, room))

    def read_entry(self, address: Address, known: Stamp | None = None) -> Plan[Any]:
        """Two round trips for the latest; three with a copy, four or five to make one."""
        if address.checkpoint_id is not None:
            return (yield from self.cold.read_entry(address, known))
        key = _namespace(address)
        chain, copy = self._chains.get(key), None
        copied = chain.stamp if chain is not None and chain.end == known else None
        kept = yield from self._try(self.hot.read_entry(address.at(ID), copied))
        if not isinstance(kept, Unchanged):
            chain, copy = _open(address, kept)
        end = known if chain is None else chain.end
        latest = yield from self.cold.read_entry(address, end)
        if isinstance(latest, Unchanged):
            if copy is not None and not (yield from self._is_copy(copy.entry)):
                latest = yield from self.cold.read_entry(address)
            else:
                if chain is not None:
                    self._remember(key, chain)
                if copy is None or end == known:
                    return latest
                return Found(replace(copy.entry, parent=latest.parent), copy.rows, latest.batches)
        yield from self._begin(address, latest, replaces=kept is not None)
        return latest

    def _is_copy(self, copied: Entry) -> Plan[bool]:
        """Return whether the cold store has this entry, with the same header.

        Stamps and ids may be used again; headers are unique.
        """
        there = copied.address
        found = yield from self.cold.scan(Query(there.thread_id, there.checkpoint_ns, there.checkpoint_id, limit=1))
        return any(
            (entry.stamp, entry.address, entry.refs, shrink(entry.header))
            == (copied.stamp, there, copied.refs, shrink(copied.header))
            for entry in found
        )

    def _begin(self, address: Address, found: Found | None, *, replaces: bool) -> Plan[None]:
        """Start the chain of an entry from the cold store; `_remove` explains the order."""
        thread_id = address.thread_id
        self._chains.pop(_namespace(address), None)
        if replaces:
            yield from self._try(self.hot.delete_thread(thread_id))
        if found is None:
            return
        weight = len(found.entry.header) + sum(len(row.body) for rows in found.rows.values() for row in rows)
        if weight <= self._light:
            return
        link = link_of(found.entry, found.rows)
        if len(link) > HEAVY:
            return
        new = begin_chain(address, link)
        end = found.entry.stamp
        try:
            outcome = yield from self._try(self.hot.write_entry(new))
            if not isinstance(outcome, Stored):
                return
            now = yield from self.cold.read_entry(address, end)
        except (Exception, CancelledError):
            yield from self._try(self.hot.delete_thread(thread_id))  # because the check below is skipped
            raise
        if isinstance(now, Unchanged):
            self._remember(_namespace(address), chain_of(new, outcome, end, room_after(link)))
        else:
            yield from self._try(self.hot.delete_thread(thread_id))

    # -- removing ----------------------------------------------------------------------------------------------

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> Plan[None]:
        """Two more round trips than in the cold store."""
        return self._remove(thread_id, self.cold.remove_entries(thread_id, gone, ghosts))

    def remove_rows(self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph) -> Plan[int]:
        """Two more round trips than in the cold store."""
        if graph.epoch is None:
            return self.cold.remove_rows(thread_id, live, graph)
        return self._remove(thread_id, self.cold.remove_rows(thread_id, live, graph))

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> Plan[bool]:
        """Two more round trips than in the cold store."""
        return self._remove(thread_id, self.cold.delete_thread(thread_id, last))

    def replace_plain(self, thread_id: str, new: Replacement) -> Plan[None]:
        """Two more round trips, to remove plain text from the hot store, too."""
        return self._remove(thread_id, self.cold.replace_plain(thread_id, new))

    def _remove(self, thread_id: str, removal: Plan[T]) -> Plan[T]:
        """Remove from both stores; clear the hot store before and after the cold one.

        The first clearing covers a process that dies before the second. The second covers a reader that read the entry
        before the removal and then starts a chain. After starting it, the reader checks whether the cold store still
        has the entry, and removes the chain if not. Either the chain was started before the second clearing, or the
        reader checks after the removal. A write that adds a link names the end of the chain, and is refused if the
        chain was removed. A chain can only stay behind if the reader dies, or loses the hot store, before its check.
        It is never shown, and the next removal, or the next reader of a large entry, removes it.
        """
        yield from self._forget(thread_id, "nothing was removed")
        result = yield from removal
        yield from self._forget(thread_id, "it was removed from the cold store only")
        return result

    def _forget(self, thread_id: str, so_far: str) -> Plan[None]:
        for namespace in [each for each in list(self._chains) if each[0] == thread_id]:
            self._chains.pop(namespace, None)
        with _explain_failure(f"thread {thread_id!r}: {so_far}"):
            yield from _send_to_hot(self.hot.delete_thread(thread_id), must=True)

    def delete_all(self, limit: int) -> Plan[int]:
        """Clear the hot store before and after the cold one."""
        self._chains.clear()
        yield from self._forget_all("nothing was removed")
        deleted: int = yield from self.cold.delete_all(limit)
        yield from self._forget_all("the tenant's data was removed from the cold store only")
        return deleted

    def _forget_all(self, so_far: str) -> Plan[None]:
        with _explain_failure(so_far):
            while (yield from _send_to_hot(self.hot.delete_all(_MOST), must=True)):
                pass

    # -- tenants -----------------------------------------------------------------------------------------------

    def of_tenant(self, tenant: str) -> TieredStore:
        return type(self)(self.cold.of_tenant(tenant), self._all_hot, self._light, tenant)

    # -- the hot store -----------------------------------------------------------------------------------------

    def _try(self, plan: Plan[T]) -> Plan[T | None]:
        """Carry out a plan on the hot store; return `None` if it fails."""
        try:
            return (yield from _send_to_hot(plan))
        except CorruptStore as error:
            _log.warning("a record of the hot store is damaged, so the cold store answers: %s", error)
        except StoreError:
            pass  # logged by the driver
        return None

    def _remember(self, key: tuple[str, str], chain: Chain) -> None:
        # Each step is atomic in the interpreter, so threads need no lock.
        self._chains.pop(key, None)
        self._chains[key] = chain
        while len(self._chains) > _MOST:
            self._chains.popitem(last=False)


def _send_to_hot(plan: Plan[T], *, must: bool = False) -> Plan[T]:
    return map_requests(plan, lambda request: Hot(request, must))


@contextmanager
def _explain_failure(so_far: str) -> Iterator[None]:
    """Add to an error of the hot store the state of the removal."""
    try:
        yield
    except StoreError as error:
        raise StoreUnavailable(
            f"the hot store fails, so its copies cannot be removed ({so_far}): remove again when it answers, "
            f"or use a saver for the cold store alone: {error}"
        ) from error


def _open(address: Address, kept: Found | None) -> tuple[Chain, Found] | tuple[None, None]:
    """Return the chain and entry of the hot store; `None` if missing or damaged."""
    try:
        return read_chain(address, kept) if kept is not None else (None, None)
    except CorruptStore as error:
        _log.warning("%s", error)
        return None, None


def _namespace(address: Address) -> tuple[str, str]:
    return address.thread_id, address.checkpoint_ns
