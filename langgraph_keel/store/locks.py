"""Locks with fencing tokens (`store.lock`), renewed by a thread of the holder.

A lock is free if it was released, if its holder is a dead process of this machine, or if a waiting process saw no
renewal for the whole time to live, by its own clock. The fence of a lock grows each time the lock is taken.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from langgraph_keel.engine.engine import Engine
from langgraph_keel.engine.faces import faces
from langgraph_keel.engine.leases import Keeper, Pause, Watch, is_dead, this_holder
from langgraph_keel.engine.plan import Plan, run
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable
from langgraph_keel.errors import InvalidInput, LockLost, LockTaken, StoreError
from langgraph_keel.store.items import Change, Guard
from langgraph_keel.store.records import Fences, prefix_of

if TYPE_CHECKING:
    from langgraph_keel.runs.worker import PollTimer

_log = logging.getLogger(__name__)
FIRST, LATE = 0.02, 0.5
"""Initial and maximum polling interval of a taken lock, in seconds."""
Update: TypeAlias = Callable[[tuple[str, ...], str, Change, Guard], Plan[dict[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class LockRecord:
    """A lock and its last holder, without the name (which may name a person)."""

    fence: int
    holder: str  # the process (see `langgraph_keel.engine.leases`); empty if the lock was released
    until: int  # milliseconds since 1970, by the holder's clock; it differs with each renewal
    since: str  # ISO time
    ttl: float  # seconds


def _unpack(parts: Sequence[Any]) -> LockRecord:
    if [type(part) for part in parts] != [int, str, int, str, float]:
        raise TypeError("it has fields of unexpected types")
    return LockRecord(*parts)


# A released lock is kept, and moves with the items: its fence must never fall below a fence in an item.
LOCKS: CellTable[LockRecord] = CellTable("locks", "a lock", astuple, _unpack)


@dataclass(slots=True, eq=False)
class _Taken:
    """A lock that this process has taken."""

    name: str
    session: Session
    timer: Callable[[], float]
    record: LockRecord
    token: str
    renewed: float  # when the last stored renewal was sent, by `timer`

    @property
    def work(self) -> str:
        """A description for the log."""
        return f"lock {self.name!r} was taken with fence {self.record.fence}"

    def swap(self, token: str, **changes: Any) -> Plan[bool]:
        """Change the lock if this process holds it; return whether it does. One trip."""
        sent, record = self.timer(), replace(self.record, **changes)
        cells = Cells(self.session, LOCKS, None)
        done, _ = yield from cells.swap(prefix_of((self.name,)), self.token, record, token=token)
        if done:
            self.record, self.renewed = record, sent
        return done

    def renew(self) -> Plan[bool]:
        """Renew the lock; return whether this process still holds it. One trip."""
        until = self.session.milliseconds + int(self.record.ttl * 1000)
        return (yield from self.swap(self.token, until=max(until, self.record.until + 1)))

    def guard(self, found: Fences) -> Plan[Fences]:
        """Return the fences to write to an item; `LockLost` if the lock is lost.

        No trip; one if the last renewal is older than the time to live, as this process may have been stopped.
        """
        mine, fences = self.record, dict(found)
        newest = fences.get(key := prefix_of((self.name,)), 0)
        if newest > mine.fence or (self.timer() - self.renewed >= mine.ttl and not (yield from self.renew())):
            raise LockLost(self.name, mine.fence, max(newest, mine.fence + 1))
        return (*{**fences, key: mine.fence}.items(),)


class Locks:
    """State that the locks of one store share: renewals and observed holders."""

    def __init__(self, timer: Callable[[], float] = monotonic) -> None:
        self.timer = timer
        self.watch = Watch(1.0, lambda: self.timer())
        self._keepers: dict[tuple[int, float], Keeper[_Taken]] = {}

    def keeper(self, ttl: float) -> Keeper[_Taken]:
        """Return the keeper for a time to live; a forked process has its own."""
        keeper = Keeper[_Taken](ttl / 3, lambda each: run(each.renew(), each.session.driver), "the renewal of a lock")
        return self._keepers.setdefault((os.getpid(), ttl), keeper)


@publish
class StoreLock:
    """A lock with a fencing token (`store.lock`), for `with` and `async with`.

    Its holder may be stopped for longer than the time to live and then continue, which no lock can prevent. Its writes
    through the lock are then refused, because `put` and `update` store the fence in the item.

    Attributes:
        name: The name of the lock.
        fence: The fencing token, which grows each time a process takes the lock; 0 before this object takes it.
    """

    def __init__(self, engine: Engine, locks: Locks, update: Update, name: str, ttl: float, wait: PollTimer) -> None:
        self.engine, self._locks, self._change, self._ttl, self._wait = engine, locks, update, ttl, wait
        self._taken: _Taken | None = None
        self._is_used = False  # this object waits for the lock, or holds it
        self.name, self.fence = name, 0

    def __enter__(self) -> Self:
        """Take the lock, waiting for it if necessary."""
        self.engine.run_patiently(self._take())
        return self

    def __exit__(self, *error: object) -> None:
        """Release the lock."""
        self.engine.run_patiently(self._release())

    async def __aenter__(self) -> Self:
        """As `__enter__`, asynchronously."""
        await self.engine.arun_patiently(self._take())
        return self

    async def __aexit__(self, *error: object) -> None:
        """As `__exit__`, asynchronously."""
        await self.engine.arun_patiently(self._release())

    def _take(self) -> Plan[None]:
        if self._is_used:
            raise InvalidInput(f"this object holds lock {self.name!r} or waits for it: use another store.lock(...)")
        self._is_used = True
        try:
            self._taken = taken = yield from self._find_free()
            self.fence = taken.record.fence
            self._locks.keeper(self._ttl).hold(taken)
        finally:
            self._is_used = self._taken is not None

    def _find_free(self) -> Plan[_Taken]:
        """Take the lock once it is free. Two trips, and one per poll while it is taken."""
        session, timer, watch, key = self.engine.session, self._locks.timer, self._locks.watch, prefix_of((self.name,))
        cells, token = Cells(session, LOCKS, None), session.new_token()
        self._wait.poll = FIRST
        self._wait.restart()
        while True:
            asked = timer()
            found = yield from cells.find(key)
            held = found.record if found else LockRecord(0, "", 0, "", self._ttl)
            is_over = found is not None and watch.is_over(found.token, held.until, asked, held.ttl)
            if held.holder and not (is_over or is_dead(held.holder)):
                if not (seconds := self._wait.left):
                    raise LockTaken(self.name, held.holder, held.since)
                yield Pause(seconds)
                self._wait.poll = min(2 * self._wait.poll, LATE)
                continue
            until, asked = session.milliseconds + int(self._ttl * 1000), timer()
            record = LockRecord(held.fence + 1, this_holder(), until, session.now, self._ttl)
            done, _ = yield from cells.swap(key, found.token if found else None, record, token=token)
            if done:
                return _Taken(self.name, session, timer, record, token, asked)

    def _release(self) -> Plan[None]:
        taken, self._taken = self._taken, None
        if taken is None:
            return
        self._locks.keeper(self._ttl).drop(taken)
        try:
            if not (yield from taken.swap(taken.session.new_token(), holder="", until=0)):
                _log.warning("%s, but another holder had taken it before it was released", taken.work)
        except StoreError as error:
            _log.warning("%s and could not be released; it is free in %g s: %s", taken.work, self._ttl, error)
        finally:
            self._is_used = False

    def _update(self, namespace: tuple[str, ...], key: str, fn: Change) -> Plan[dict[str, Any] | None]:
        """Change an item as `KeelStore.update` does, and store the fence in it.

        Raises:
            LockLost: If another holder has taken the lock. Nothing was written.
            InvalidInput: If the lock is not held, or as `KeelStore.update` raises it.
        """
        if self._taken is None:
            raise InvalidInput(f"lock {self.name!r} is not held: write within `with store.lock(...) as lock:`")
        return (yield from self._change(namespace, key, fn, self._taken.guard))

    def _put(self, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> Plan[None]:
        """Store an item with the fence: as `update` with a function that returns `value`."""
        yield from self._update(namespace, key, lambda _: value)

    update, aupdate = faces(_update)
    put, aput = faces(_put)
