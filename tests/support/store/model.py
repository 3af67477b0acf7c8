"""A dictionary that acts like LangGraph's stores: the reference for `KeelStore`.

It follows LangGraph's `InMemoryStore`, and otherwise the README of the room (`created_at`, times to live, order of a
search).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp

from langgraph_keel.store.records import cell_key

Place = tuple[tuple[str, ...], str]
Seen = tuple[tuple[str, ...], str, Any, int, int]
"""An item as tests compare it: place, value, and microseconds of creation and last change."""
MINUTE = 60_000  # milliseconds
ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def seen(item: Item | None) -> Seen | None:
    """Return an item that a store has returned, in the model's form."""
    if item is None:
        return None
    times = (int(at.timestamp()) * 1_000_000 + at.microsecond for at in (item.created_at, item.updated_at))
    created, updated = times
    return tuple(item.namespace), item.key, item.value, created, updated


@dataclass
class Held:
    """A stored item, perhaps expired."""

    value: dict[str, Any]
    created: int
    updated: int
    ttl: float | None
    expires_at: int | None


class Model:
    """The items of one place. `now` is the store's time, in microseconds."""

    def __init__(self) -> None:
        self.items: dict[Place, Held] = {}

    def batch(self, ops: Iterable[Op], now: int) -> list[Any]:
        """Perform operations; return the result of each, items as `Seen`."""
        ops, read, results = list(ops), dict[Place, None](), list[Any]()
        puts: dict[Place, PutOp] = {}
        for op in ops:
            found: list[Place] = []
            result: Any = None
            if isinstance(op, PutOp):
                place = tuple(op.namespace), op.key
                puts.pop(place, None)
                puts[place] = op
            elif isinstance(op, GetOp):
                place = tuple(op.namespace), op.key
                found = [place] if self._lives(place, now) else []
                result = self._seen(place) if found else None
            elif isinstance(op, SearchOp):
                found = self._search(op, now)
                result = [self._seen(place) for place in found]
            elif isinstance(op, ListNamespacesOp):
                result = self._list(op, now)
            if isinstance(op, (GetOp, SearchOp)) and op.refresh_ttl:
                read |= dict.fromkeys(found)
            results.append(result)
        for place in read:
            if place not in puts:
                self._refresh(self.items[place], now)
        for n, (place, put) in enumerate(puts.items()):
            self._put(place, put, now + n)
        return results

    def sweep(self, now: int) -> int:
        """Remove expired items; return their number."""
        over = [place for place in self.items if not self._lives(place, now)]
        for place in over:
            del self.items[place]
        return len(over)

    def _lives(self, place: Place, now: int) -> bool:
        held = self.items.get(place)
        return held is not None and (held.expires_at is None or held.expires_at > now // 1000)

    def _seen(self, place: Place) -> Seen:
        held = self.items[place]
        return *place, deepcopy(held.value), held.created, held.updated

    def _put(self, place: Place, put: PutOp, now: int) -> None:
        held = self.items.get(place)
        if put.value is None:
            self.items.pop(place, None)
            return
        created = held.created if held is not None and self._lives(place, now) else now
        updated = now if held is None else max(now, held.updated + 1)
        expires_at = None if put.ttl is None else now // 1000 + int(put.ttl * MINUTE)
        self.items[place] = Held(deepcopy(dict(put.value)), created, updated, put.ttl, expires_at)

    def _refresh(self, held: Held, now: int) -> None:
        if held.ttl is not None and held.expires_at is not None:
            is_fading = held.expires_at - now // 1000 < 0.9 * held.ttl * MINUTE
            held.expires_at = now // 1000 + int(held.ttl * MINUTE) if is_fading else held.expires_at

    def _search(self, op: SearchOp, now: int) -> list[Place]:
        prefix, wanted = tuple(op.namespace_prefix), op.filter or {}
        found = [
            place
            for place, held in self.items.items()
            if place[0][: len(prefix)] == prefix
            and self._lives(place, now)
            and all(is_like(held.value.get(field), each) for field, each in wanted.items())
        ]
        found.sort(key=lambda place: (-self.items[place].updated, cell_key(*place)))
        return found[op.offset : op.offset + op.limit]

    def _list(self, op: ListNamespacesOp, now: int) -> list[tuple[str, ...]]:
        found = {
            place[0]
            for place in self.items
            if self._lives(place, now) and all(_matches(each, place[0]) for each in op.match_conditions or ())
        }
        return sorted({each[: op.max_depth] for each in found})[op.offset : op.offset + op.limit]


def _matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = tuple(condition.path)
    if condition.match_type == "suffix":
        path, namespace = path[::-1], namespace[::-1]
    return len(namespace) >= len(path) and all(
        wanted in ("*", label) for wanted, label in zip(path, namespace, strict=False)
    )


def is_like(value: Any, wanted: Any) -> bool:
    """Return whether a value matches a filter."""
    if isinstance(wanted, dict) and any(name.startswith("$") for name in wanted):
        return all(_applies(value, name, each) for name, each in wanted.items())
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(is_like(value.get(name), each) for name, each in wanted.items())
    if isinstance(wanted, (list, tuple)):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(is_like, value, wanted))
    return bool(value == wanted)


def _applies(value: Any, name: str, wanted: Any) -> bool:
    if name not in ORDERS:
        return bool(value == wanted) is (name == "$eq")
    for kind in ((int, float), (str,)):
        if isinstance(value, kind) and isinstance(wanted, kind):
            return ORDERS[name](value, wanted)
    return False
