"""KeelStore: LangGraph's store (`compile(store=...)`) in the store of a saver."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from langgraph.store.base import (
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

from langgraph_keel.engine.engine import Engine, EngineSaver
from langgraph_keel.engine.faces import faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.tables import Kept
from langgraph_keel.errors import InvalidInput, KeelError
from langgraph_keel.store.checks import check_index, check_place, check_ttl, check_ttl_config, check_value
from langgraph_keel.store.filters import check_filter
from langgraph_keel.store.items import Items, Seen, Write
from langgraph_keel.store.records import StoredItem, cell_key

if TYPE_CHECKING:
    from langgraph_keel.store.vectors import Index

_log = logging.getLogger(__name__)
_SWEPT = 5.0
"""Minutes between two sweeps, if none are given: as LangGraph's stores do."""


@publish
class KeelStore(BaseStore):
    """Items that all threads and processes share, beside a saver's checkpoints: `saver.store()` makes one.

        graph = builder.compile(checkpointer=saver, store=saver.store())

    It has the methods of LangGraph's `BaseStore`, blocking and asynchronous, on every backend. Encryption, tenants,
    copies and `keel check` cover items as they cover checkpoints. Items belong to no thread: deleting one leaves them.

    * A put returns when the item is as durable as a checkpoint would be. It is a compare-and-set: no version is
      overwritten unseen, and `created_at` stays. One round trip, or two for an item that is there and was not read.
    * A search returns the last changed item first. Items that have expired are never returned.
    * Values are JSON: dicts with text keys, lists, texts, finite numbers, booleans and `None`.
    * A batch reads before it writes; of several puts of one item, the last counts. Each item is stored or not as a
      whole; a batch that fails may have stored some.

    It is not part of the transaction of a step: what a node has put stays if the step fails.
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

    @property
    def engine(self) -> Engine:
        """What its plans are carried out by."""
        return self._saver.engine

    def _items(self) -> Items:
        session = self.engine.session
        return self._index.items(session, self._seen) if self._index else Items(session, self._seen)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations: gets, searches and lists of namespaces first, then puts.

        Args:
            ops: LangGraph's `GetOp`, `SearchOp`, `PutOp` and `ListNamespacesOp`.

        Returns:
            The result of each, in their order; `None` of a put. One round trip for all gets, one or more for each
            search and list, one or two for all puts.

        Raises:
            InvalidInput: A value is not JSON, a filter has an unknown operator, a limit is negative. Nothing was done.
            CorruptStore: An item does not decode.
            StoreError: The store fails (it is busy, cannot be reached, may only be read).
        """
        return self.engine.run_patiently(self._batch([*ops]))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`, asynchronously."""
        return await self.engine.arun_patiently(self._batch([*ops]))

    def _batch(self, ops: list[Op]) -> Plan[list[Result]]:
        items = self._items()
        writes, results = _check_ops(ops), list[Result]()
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

    # -- expiry --------------------------------------------------------------------------------------------------

    def _sweep_ttl(self) -> Plan[int]:
        """Remove items that have expired; return how many. `saver.retention.sweep()` does it, too."""
        return self._items().sweep()

    sweep_ttl, asweep_ttl = faces(_sweep_ttl)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> None:
        """Remove items that have expired, every so many minutes, in a thread of this process, until it is stopped.

        Args:
            sweep_interval_minutes: `None` is that of `ttl`, or 5.
        """
        configured = (self.ttl_config or {}).get("sweep_interval_minutes")
        minutes = sweep_interval_minutes or configured or _SWEPT
        if self._sweeper is None:
            stopped = Event()
            thread = Thread(target=self._run_sweeper, args=(stopped, 60 * minutes), name="keel-items", daemon=True)
            self._sweeper = thread, stopped
            thread.start()

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the thread; return whether it has ended within `timeout` seconds. `True` if there is none."""
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
                _log.warning("items that have expired were not removed: %s", error)


def _check_ops(ops: list[Op]) -> dict[str, Write]:
    """Return the puts of a batch by the keys of their cells, the last of each item."""
    writes: dict[str, Write] = {}
    for op in ops:
        if isinstance(op, PutOp):
            place, what = check_place(op.namespace, op.key), f"item {op.key!r:.60} of {op.namespace!r:.200}"
            value = None if op.value is None else check_value(op.value, what)
            check_ttl(op.ttl, what)
            check_index(op.index, what)
            key = cell_key(place, op.key)
            writes.pop(key, None)  # the last one is also the last changed
            writes[key] = Write(place, op.key, value, op.ttl, fields=op.index)
        elif isinstance(op, GetOp):
            check_place(op.namespace, op.key)
        elif isinstance(op, SearchOp):
            check_place(op.namespace_prefix)
            check_filter(op.filter)
            if not isinstance(op.query, str | None):
                raise InvalidInput(f"query={op.query!r:.60} is no text")
            _check_bounds(op)
        elif isinstance(op, ListNamespacesOp):
            _check_bounds(op)
            for condition in op.match_conditions or ():
                check_place(condition.path)
        else:
            raise InvalidInput(f"a {type(op).__name__} is no operation of a store")
    return writes


def _check_bounds(op: SearchOp | ListNamespacesOp) -> None:
    if not all(type(each) is int and each >= 0 for each in (op.limit, op.offset)):
        raise InvalidInput(f"limit={op.limit!r:.40}, offset={op.offset!r:.40}: use whole numbers from 0 on")


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
    if condition.match_type not in ("prefix", "suffix"):
        raise InvalidInput(f"{condition.match_type!r:.60} is no way to match a namespace: use prefix or suffix")
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return len(namespace) >= len(path) and all(want in ("*", label) for want, label in zip(path, part, strict=True))
