"""Stored items: the key of an item's cell, its search marks, and its record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from langgraph_keel.engine.cells import BLOCK, is_time
from langgraph_keel.engine.entries import marks_of
from langgraph_keel.engine.tables import CellTable

ABSENT = "0" * BLOCK
"""The block for missing labels. No label has a hash of zeros only."""
EXPIRES = "ttl"
"""The mark of every item that expires, for sweeps."""


Fences: TypeAlias = tuple[tuple[str, int], ...]
"""The cell key and highest fence of each lock under which an item was written."""


class StoredItem(NamedTuple):
    """The record of an item; the rank of its cell is the time of the last change."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    created: int  # microseconds since 1970
    ttl: float | None  # minutes
    owner: str = ""  # the owner, in addition to persons in the namespace
    fences: Fences = ()


def _unpack(parts: Sequence[Any]) -> StoredItem:
    namespace, key, value, created, ttl, owner, fences, *_ = parts
    if not (
        (type(namespace), type(key), type(value), type(owner)) == (list, str, dict, str)
        and is_time(created)
        and all(type(label) is str for label in namespace)
        and type(ttl) in (int, float, type(None))
        and all((type(lock), type(fence)) == (str, int) for lock, fence in fences.items())
    ):
        raise TypeError("it has fields of unexpected types")
    return StoredItem(tuple(namespace), key, value, created, ttl, owner, (*fences.items(),))


def _pack(item: StoredItem) -> list[Any]:
    plain = str.__str__  # texts of a subclass, such as `message.text`, would not be read back as `str`
    labels = [plain(label) for label in item.namespace]
    return [labels, plain(item.key), item.value, item.created, item.ttl, plain(item.owner), dict(item.fences)]


ITEMS: CellTable[StoredItem] = CellTable("items", "an item of the store", _pack, _unpack, moves="whole")


class StoredIndex(NamedTuple):
    """The index with which the items of a store are embedded."""

    dims: int
    model: str
    fields: tuple[str, ...]

    def __str__(self) -> str:
        return f"dims={self.dims}, model={self.model!r:.80}, fields={[*self.fields]!r:.200}"


def _pack_index(index: StoredIndex) -> list[Any]:
    return [index.dims, index.model, [*index.fields]]


def _unpack_index(parts: Sequence[Any]) -> StoredIndex:
    dims, model, fields, *_ = parts
    if (type(dims), type(model), type(fields)) != (int, str, list) or {*map(type, fields)} != {str}:
        raise TypeError("it has fields of unexpected types")
    return StoredIndex(dims, model, tuple(fields))


INDEX: CellTable[StoredIndex] = CellTable("itemindex", "the index of the store", _pack_index, _unpack_index)


@lru_cache(4096)
def _block(*texts: str) -> str:
    found = blake2b(digest_size=BLOCK // 2)
    for text in texts:
        data = text.encode(errors="surrogatepass")
        found.update(b"%d:%b" % (len(data), data))
    return found.hexdigest()


@lru_cache(4096)
def prefix_of(namespace: tuple[str, ...]) -> str:
    """Return the common prefix of all cell keys below a namespace: at most two blocks."""
    return "".join(map(_block, namespace[:2]))


@lru_cache(4096)
def cell_key(namespace: tuple[str, ...], key: str) -> str:
    """Return the cell key of an item.

    It has blocks for the first two labels, for all other labels, and for the key.
    """
    rest = _block(*namespace[2:]) if len(namespace) > 2 else ABSENT
    return prefix_of(namespace).ljust(2 * BLOCK, "0") + rest + _block(key)


def below(namespace: tuple[str, ...]) -> list[str]:
    """Return the term of items below a namespace of three or more labels.

    For other namespaces, the key prefix suffices.
    """
    return [f"in:{_block(*namespace)}"] if len(namespace) > 2 else []


def term_of(field: str, value: Any) -> str | None:
    """Return the term of items in which a field equals a value, or `None`."""
    if type(value) is str:
        return f"{field}=s{value}"
    if type(value) in (bool, int, float):
        # Equal numbers have one term: 1, 1.0 and True are equal.
        is_whole = type(value) is not float or value.is_integer()
        return f"{field}=n{int(value):x}" if is_whole else f"{field}=n{value!r}"  # no limit of digits in hexadecimal
    return None


def owner_term(person: str) -> str:
    """Return the term of all items of a person. Other items may have the same mark."""
    return f"owner:{person}"


def owners_of(item: StoredItem) -> set[str]:
    """Return the possible owners of an item: `owner`, and labels of its namespace."""
    return {item.owner, *item.namespace} - {""}


def marks_of_item(item: StoredItem) -> tuple[str, ...]:
    """Return the search marks of an item, for fields, place and owners."""
    fields = (term for field, value in item.value.items() if (term := term_of(field, value)))
    places = (term for depth in range(3, len(item.namespace) + 1) for term in below(item.namespace[:depth]))
    owners = map(owner_term, sorted(owners_of(item)))
    return marks_of([*fields, *places, *owners, *([EXPIRES] if item.ttl is not None else [])])
