"""Items as they are stored: the key of an item's cell, the marks it is found by, and its record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from langgraph_keel.engine.cells import BLOCK
from langgraph_keel.engine.entries import marks_of
from langgraph_keel.engine.tables import CellTable

ABSENT = "0" * BLOCK
"""The block of labels that are not there. No label has a hash of zeros only."""
EXPIRES = "ttl"
"""A mark of every item that expires: sweeps look for it."""


class StoredItem(NamedTuple):
    """An item, as its cell holds it. The rank of the cell is the time of its last change."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    created: int  # microseconds since 1970
    ttl: float | None  # minutes


def _unpack(parts: Sequence[Any]) -> StoredItem:
    namespace, key, value, created, ttl, *_ = parts
    if not (
        (type(namespace), type(key), type(value), type(created)) == (list, str, dict, int)
        and all(type(label) is str for label in namespace)
        and type(ttl) in (int, float, type(None))
    ):
        raise TypeError("it does not hold what it should")
    return StoredItem(tuple(namespace), key, value, created, ttl)


def _pack(item: StoredItem) -> list[Any]:
    return [[*item.namespace], *item[1:]]


ITEMS: CellTable[StoredItem] = CellTable("items", "an item of the store", _pack, _unpack, moves="whole")


@lru_cache(4096)
def _block(*texts: str) -> str:
    found = blake2b(digest_size=BLOCK // 2)
    for text in texts:
        data = text.encode(errors="surrogatepass")
        found.update(b"%d:%b" % (len(data), data))
    return found.hexdigest()


@lru_cache(4096)
def prefix_of(namespace: tuple[str, ...]) -> str:
    """Return what the keys of all cells begin with whose namespaces begin so: at most two blocks."""
    return "".join(map(_block, namespace[:2]))


@lru_cache(4096)
def cell_key(namespace: tuple[str, ...], key: str) -> str:
    """Return the key of an item's cell: a block each for two labels, for the other labels, and for the key."""
    rest = _block(*namespace[2:]) if len(namespace) > 2 else ABSENT
    return prefix_of(namespace).ljust(2 * BLOCK, "0") + rest + _block(key)


def below(namespace: tuple[str, ...]) -> list[str]:
    """Return the term that items below a namespace have, if their keys do not tell: one of three or more labels."""
    return [f"in:{_block(*namespace)}"] if len(namespace) > 2 else []


def term_of(field: str, value: Any) -> str | None:
    """Return what all items have in common in which a field equals a value; `None` if they have nothing."""
    if type(value) is str:
        return f"{field}=s{value}"
    if type(value) in (bool, int, float):
        # Equal numbers have one term: 1, 1.0 and True are equal.
        is_whole = type(value) is not float or value.is_integer()
        return f"{field}=n{int(value) if is_whole else value!r}"
    return None


def marks_of_item(item: StoredItem) -> tuple[str, ...]:
    """Return what an item can be found by: its fields that are texts or numbers, and where it is."""
    fields = (term for field, value in item.value.items() if (term := term_of(field, value)))
    places = (term for depth in range(3, len(item.namespace) + 1) for term in below(item.namespace[:depth]))
    return marks_of([*fields, *places, *([EXPIRES] if item.ttl is not None else [])])
