"""KeelStore: a LangGraph store (`compile(store=...)`) in the store of a saver."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from langgraph_keel._langgraph import var_child_runnable_config
from langgraph_keel.engine.config import check_owner
from langgraph_keel.engine.engine import Engine, EngineSaver
from langgraph_keel.engine.faces import faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.tables import Kept
from langgraph_keel.errors import InvalidInput, KeelError
from langgraph_keel.retention.owners import OwnerHook
from langgraph_keel.store.checks import (
    InvalidNamespace,
    check_index,
    check_place,
    check_ttl,
    check_ttl_config,
    check_value,
)
from langgraph_keel.store.filters import check_filter
from langgraph_keel.store.items import Change, Guard, Items, Seen, Write
from langgraph_keel.store.locks import Locks, StoreLock
from langgraph_keel.store.records import StoredItem, cell_key

if TYPE_CHECKING:
    from langgraph_keel.store.vectors import Index
    from langgraph_keel.store.watch import ItemFeed

_log = logging.getLogger(__name__)
Place: TypeAlias = tuple[str, ...]
Name: TypeAlias = str | None
_SWEPT = 5.0
"""Default interval between sweeps in minutes, as in LangGraph's stores."""


class OwnedPut(PutOp):
    """A put operation with an owner."""

    owner: Name = None

    def __new__(cls, *fields: Any, owner: Name) -> Self:
        """Return a put operation with these fields."""
        self = super().__new__(cls, *fields)
        self.owner = owner
        return self


@publish
class KeelStore(BaseStore):
    """Items that all threads and processes share; see `saver.store()`.

        graph = builder.compile(checkpointer=saver, store=saver.store())

    It has the methods of LangGraph's `BaseStore`, blocking and asynchronous, on every backend. Encryption, tenants,
    copies and `keel check` cover items as well as checkpoints. Items belong to no thread: deleting a thread keeps them.

    * `put` returns once the item is as durable as a checkpoint. It is a compare-and-set: no version is overwritten
      unnoticed, and `created_at` is kept. One round trip, or two for an existing item that was not read.
    * A search returns the most recently changed items first. Expired items are never returned.
    * Values are JSON: dicts with text keys, lists, texts, finite numbers, booleans and `None`.
    * A batch reads before it writes; of several puts of one item, the last counts. Each item is written as a whole or
      not at all; a batch that fails may have written some items.

    The store is not part of the transaction of a step: items that a node has stored are kept if the step fails.
    """

    supports_ttl = True

    def __init__(
        self, saver: EngineSaver, ttl: TTLConfig | None = None, *, index: Any = None, is_read_only: bool = False
    ) -> None:
        self._saver = saver
        self.index_config = index
        self._index: Index | None = None
        if index is not None:
            from langgraph_keel.store.vectors import Index  # needs NumPy

            self._index = Index(index)
        self.embeddings = self._index and self._index.embedder.embeddings
        self.ttl_config = check_ttl_config(ttl)
        self._is_read_only = is_read_only
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._sweeper: tuple[Thread, Event] | None = None
        self._locks = Locks()

    @property
    def engine(self) -> Engine:
        """The engine that runs the plans."""
        return self._saver.engine

    def _items(self) -> Items:
        session = self.engine.session
        return self._index.items(session, self._seen) if self._index else Items(session, self._seen)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations: gets, searches and lists of namespaces first, then puts.

        Args:
            ops: LangGraph's `GetOp`, `SearchOp`, `PutOp` and `ListNamespacesOp`.

        Returns:
            The results in the order of the operations; `None` for a put. One round trip for all gets, one or more for
            each search and list, one or two for all puts.

        Raises:
            InvalidInput: If a value is not JSON, a filter has an unknown operator, or a limit is negative. Nothing was
                done.
            CorruptStore: If an item does not decode.
            StoreError: If the store fails (it is busy, cannot be reached, or is read-only).
        """
        return self.engine.run_patiently(self._batch([*ops]))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`, asynchronously."""
        return await self.engine.arun_patiently(self._batch([*ops]))

    def put(
        self, namespace: Place, key: str, value: Any, index: Any = None, *, ttl: Any = NOT_PROVIDED, owner: Name = None
    ) -> None:
        """Store an item, as LangGraph's stores do; see `batch`.

        Args:
            namespace: The namespace: texts without `.`; the first one must not be `langgraph`.
            key: The key of the item in the namespace.
            value: A JSON object.
            index: `None` for the fields of the store's index, `False` for none, or a list of fields.
            ttl: Minutes until the item expires; `None` means never. Default: the store's `default_ttl`.
            owner: The person to whom the item belongs (`retention.erase(what="data")`); `""` for none. Default: the
                owner of the run that stores it; outside of a run, the item keeps its owner.
        """
        self.batch([self._own(namespace, key, value, index, ttl, owner)])

    async def aput(
        self, namespace: Place, key: str, value: Any, index: Any = None, *, ttl: Any = NOT_PROVIDED, owner: Name = None
    ) -> None:
        """As `put`, asynchronously."""
        await self.abatch([self._own(namespace, key, value, index, ttl, owner)])

    def _own(self, namespace: Place, key: str, value: Any, index: Any, ttl: Any, owner: Name) -> OwnedPut:
        if not check_place(namespace) or namespace[0] == "langgraph":
            raise InvalidNamespace(f"{namespace!r:.200}: a namespace cannot be empty or begin with 'langgraph'")
        ttl = (self.ttl_config or {}).get("default_ttl") if ttl is NOT_PROVIDED else ttl
        return OwnedPut(namespace, str(key), value, index, ttl, owner=owner)

    def _find_owner(self) -> str | None:
        """Return the owner of the current run; `None` if there is none."""
        config, session = var_child_runnable_config.get(), self.engine.session
        hook = session.hooks.find(OwnerHook) if config else None
        return (hook.find_owner(session, config) or None) if hook and config else None

    def _batch(self, ops: list[Op]) -> Plan[list[Result]]:
        items = self._items()
        owner = self._find_owner() if any(isinstance(op, PutOp) for op in ops) else None
        writes, results = _check_ops(ops, owner), list[Result]()
        gets = [(op.namespace, op.key) for op in ops if isinstance(op, GetOp)]
        read = (yield from items.read(gets)) if gets else {}
        fading: dict[str, None] = {}
        for op in ops:
            result: Any = None
            found: list[tuple[str, Kept[StoredItem]]] = []
            if isinstance(op, GetOp):
                found = [(key, read[key]) for key in [cell_key(tuple(op.namespace), op.key)] if key in read]
                result = _item_of(found[0][1]) if found else None
            elif isinstance(op, SearchOp):
                place = tuple(op.namespace_prefix)
                near = yield from items.find(place, check_filter(op.filter), op.query, op.limit, op.offset)
                found = [(key, kept) for key, kept, _ in near]
                result = [_item_of(kept, partial(SearchItem, score=score)) for _, kept, score in near]
            elif isinstance(op, ListNamespacesOp):
                result = yield from _list_namespaces(items, op)
            if found and op.refresh_ttl:  # type: ignore[union-attr]
                fading |= dict.fromkeys(items.fading(iter(found)))
            results.append(result)
        if (renewed := [key for key in fading if key not in writes]) and not self._is_read_only:
            yield from items.refresh(renewed)
        if writes:
            yield from items.write(writes)
        return results

    # -- the board -----------------------------------------------------------------------------------------------

    def _update(self, namespace: tuple[str, ...], key: str, fn: Change) -> Plan[dict[str, Any] | None]:
        """Change an item by a function of its value; return the new value.

        No concurrent change is lost.

            store.update(("trips", "7"), "seats", lambda value: {"left": (value or {"left": 9})["left"] - 1})

        Durable when it returns. Two round trips, and one for each writer that was faster. The time to live starts
        again; a new item has the default. If a connection breaks and another writer replaces the item before the
        request is sent again, the change is applied twice.

        Args:
            namespace: The namespace of the item.
            key: The key of the item.
            fn: Receives a copy of the value, or `None` if there is no item, and returns the new value, or `None` to
                delete the item. It is called again if another writer was faster, so it must have no side effects.

        Raises:
            InvalidInput: If the namespace or the key is invalid, or the new value is not JSON. Nothing was written.
            CorruptStore: If the item does not decode.
            StoreError: If the store fails.
        """
        return (yield from self._change(namespace, key, fn, None))

    def _change(
        self, namespace: tuple[str, ...], key: str, fn: Change, guard: Guard | None
    ) -> Plan[dict[str, Any] | None]:
        place, what = check_place(namespace, key), f"item {key!r:.60} of {namespace!r:.200}"

        def change(value: dict[str, Any] | None) -> dict[str, Any] | None:
            new = fn(value)
            return None if new is None else check_value(new, what)

        like = Write(place, key, None, (self.ttl_config or {}).get("default_ttl"), self._find_owner())
        return (yield from self._items().update(like, change, guard))

    update, aupdate = faces(_update)

    def lock(self, name: str, *, ttl: float = 30.0, timeout: float | None = None) -> StoreLock:
        """Return a lock that one process at a time can hold, for use with `with`.

            with store.lock("valuation") as lock:
                lock.put(("trips", "7"), "price", {"euro": 340})

        A background thread renews the lock. The lock is free when it is released, when its process has died on this
        machine, or when a waiting process has seen no renewal for `ttl` seconds. If the former holder then continues,
        `lock.put` and `lock.update` refuse its writes; methods of the store do not. An item loses its fences when it is
        deleted or expires. A lock is neither reentrant nor fair. Three round trips, and one per poll of a taken lock.

        Args:
            name: The name of the lock. A small record for each name remains in the store.
            ttl: Seconds without a renewal after which the lock is free.
            timeout: Seconds to wait for the lock; `None` waits without limit, 0 does not wait.

        Raises:
            InvalidInput: If an argument is invalid.
            LockTaken: If another process still holds it when the timeout ends; raised by `with`.
        """
        from langgraph_keel.runs.worker import PollTimer

        if not (isinstance(name, str) and name):
            raise InvalidInput(f"{name!r:.100} is not a name of a lock: use a non-empty text")
        if type(ttl) not in (int, float) or not 0 < ttl < 1e9:
            raise InvalidInput(f"ttl must be a number of seconds greater than 0, not {ttl!r:.60}")
        return StoreLock(self.engine, self._locks, self._change, name, float(ttl), PollTimer(1.0, timeout))

    def watch(
        self, namespace: tuple[str, ...], since: str | None = None, *, poll: float = 1.0, timeout: float | None = None
    ) -> ItemFeed:
        """Return the changes of items below a namespace (`ItemChange`), as they happen.

            feed = store.watch(("trips", "7"), since=stored_cursor)
            for change in feed:
                stored_cursor = feed.cursor  # first: see below
                handle(change)

        Store the cursor of a change before you handle it. A follower that was killed then gets the change again, or the
        deletion of its item. Changes by any process are reported at least once; of several changes of an item between
        two polls, only the last one. A read that restarts a time to live counts as a change. Writers store and notify
        nothing for a watch: it polls every `poll` seconds, and up to five times slower while nothing changes. A poll is
        one round trip, and one more per 500 changed items.

        Args:
            namespace: The namespace; at most 10,000 items may be below it.
            since: The `cursor` of an earlier watch of this namespace. By default, all items come first.
            poll: Polling interval, in seconds.
            timeout: Seconds without a change after which the feed ends; 0 ends it after one poll, `None` never.

        Raises:
            InvalidInput: If an argument is invalid; while iterating, if more than 10,000 items are below the namespace.
            StoreError: While iterating, if the store fails. If it is busy or unreachable, polls are retried as in
                `saver.history.follow`.
        """
        from langgraph_keel.runs.worker import PollTimer
        from langgraph_keel.store.watch import ItemFeed

        return ItemFeed(self.engine, check_place(namespace), PollTimer(poll, timeout), since)

    alock, awatch = lock, watch  # locks and feeds are also asynchronous: `async with`, `async for`

    # -- expiry --------------------------------------------------------------------------------------------------

    def _sweep_ttl(self) -> Plan[int]:
        """Remove expired items, as `retention.sweep()` does; return their number."""
        return self._items().sweep()

    sweep_ttl, asweep_ttl = faces(_sweep_ttl)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> None:
        """Remove expired items periodically, in a thread of this process, until stopped.

        Args:
            sweep_interval_minutes: Minutes between two sweeps. Default: the interval in `ttl`, or else 5.
        """
        configured = (self.ttl_config or {}).get("sweep_interval_minutes")
        minutes = sweep_interval_minutes or configured or _SWEPT
        if self._sweeper is None:
            stopped = Event()
            thread = Thread(target=self._run_sweeper, args=(stopped, 60 * minutes), name="keel-items", daemon=True)
            self._sweeper = thread, stopped
            thread.start()

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the thread; return whether it ended within `timeout` seconds.

        `True` if there is no thread.
        """
        if self._sweeper is None:
            return True
        thread, stopped = self._sweeper
        stopped.set()
        thread.join(timeout)
        if not thread.is_alive():
            self._sweeper = None
        return self._sweeper is None

    def _run_sweeper(self, stopped: Event, seconds: float) -> None:
        while not stopped.wait(seconds):
            try:
                self.sweep_ttl()
            except KeelError as error:
                _log.warning("expired items were not removed: %s", error)


def _check_ops(ops: list[Op], run_owner: str | None) -> dict[str, Write]:
    """Return the last put of each item in a batch, by cell key."""
    writes: dict[str, Write] = {}
    for op in ops:
        if isinstance(op, PutOp):
            place, what = check_place(op.namespace, op.key), f"item {op.key!r:.60} of {op.namespace!r:.200}"
            value = None if op.value is None else check_value(op.value, what)
            check_ttl(op.ttl, what)
            check_index(op.index, what)
            key = cell_key(place, op.key)
            writes.pop(key, None)  # the last one is also the last changed
            owner = op.owner if isinstance(op, OwnedPut) and op.owner is not None else run_owner
            if not isinstance(owner, str | None):
                raise InvalidInput(f"{what}: owner= must be a text, as in configurable['user_id'], not {owner!r:.60}")
            check_owner(owner, f"the owner of {what}")
            writes[key] = Write(place, op.key, value, op.ttl, owner, op.index)
        elif isinstance(op, GetOp):
            check_place(op.namespace, op.key)
        elif isinstance(op, SearchOp):
            check_place(op.namespace_prefix)
            check_filter(op.filter)
            if not isinstance(op.query, str | None):
                raise InvalidInput(f"query={op.query!r:.60} is not a text")
            _check_bounds(op)
        elif isinstance(op, ListNamespacesOp):
            _check_bounds(op)
            if op.max_depth is not None and not (type(op.max_depth) is int and op.max_depth > 0):
                raise InvalidInput(f"max_depth={op.max_depth!r:.40}: use a whole number of at least 1")
            for condition in op.match_conditions or ():
                check_place(condition.path)
                if condition.match_type not in ("prefix", "suffix"):
                    raise InvalidInput(f"{condition.match_type!r:.60} is not a match type: use prefix or suffix")
        else:
            raise InvalidInput(f"a {type(op).__name__} is not an operation of a store")
    return writes


def _check_bounds(op: SearchOp | ListNamespacesOp) -> None:
    if not all(type(each) is int and each >= 0 for each in (op.limit, op.offset)):
        raise InvalidInput(f"limit={op.limit!r:.40}, offset={op.offset!r:.40}: use whole numbers of at least 0")


def _item_of(kept: Kept[StoredItem], kind: Callable[..., Item] = Item) -> Item:
    item = kept.record
    times = (datetime.fromtimestamp(at / 1e6, UTC) for at in (item.created, kept.cell.rank or item.created))
    created_at, updated_at = times
    return kind(namespace=item.namespace, key=item.key, value=item.value, created_at=created_at, updated_at=updated_at)


def _list_namespaces(items: Items, op: ListNamespacesOp) -> Plan[list[tuple[str, ...]]]:
    """Return namespaces in the order of their labels."""
    conditions = op.match_conditions or ()
    prefix: tuple[str, ...] = ()
    for condition in conditions:
        if condition.match_type == "prefix":
            path = tuple(condition.path)
            known = path[: path.index("*")] if "*" in path else path
            prefix = max(prefix, known, key=len)
    found = yield from items.namespaces(prefix)
    found = {each for each in found if all(_matches(condition, each) for condition in conditions)}
    return sorted({each[: op.max_depth] for each in found})[op.offset : op.offset + op.limit]


def _matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = tuple(condition.path)
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return len(namespace) >= len(path) and all(want in ("*", label) for want, label in zip(path, part, strict=True))
