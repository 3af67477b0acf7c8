"""Fresh copies of a value that was decoded once, faster than decoding it again.

Preparing copies takes up to four times as long as decoding, so it is done only for values that are requested again.
The value was decoded only to be copied, and is a tree: it contains no object twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from sys import getsizeof
from typing import Any, TypeAlias
from uuid import UUID

from langgraph_keel.engine.serde.types import MESSAGE_CODES, Record, Shape, shape_of
from langgraph_keel.engine.serde.unpack import model_parts, set_model

_new = object.__new__

Copier: TypeAlias = tuple[Callable[[Any], Any], Any]
"""A function, and its argument: the data to copy."""

_FIXED = frozenset(
    {str, int, float, bool, type(None), bytes, complex, date, datetime, time, timedelta, Decimal, Fraction, UUID}
)
"""Immutable types."""
DEEPEST = 32
"""Maximum nesting of a copied value; deeper values are decoded each time."""
_CONTAINER, _PART = 200, 40
"""Approximate memory of a container with its copier, and of each part, in bytes."""
_NAME = 100
"""Size in bytes up to which a key counts as a name, an object shared by many dicts."""


class Uncopied(Exception):
    """Raised if a value cannot be copied, and must be decoded each time."""


class Copies:
    """Makes fresh copies of a decoded value.

    Raises `Uncopied` if that takes more than `most` bytes.
    """

    __slots__ = ("_most", "classes", "copier", "nbytes", "value")

    def __init__(self, value: Any, most: int) -> None:
        self._most = most
        self.classes: dict[type, Shape] = {}  # of its objects, except messages
        self.nbytes = getsizeof(value) if type(value) in _FIXED else 0  # approximate memory
        self.value = value
        self.copier = self._copier_of(value)  # `None` if the value is immutable

    def make(self) -> Any:
        """Return a fresh copy; the value itself if it is immutable."""
        copier = self.copier
        return self.value if copier is None else copier[0](copier[1])

    def _copier_of(self, value: Any, depth: int = 0) -> Copier | None:
        """Return the copier of a value; `None` if it is immutable."""
        kind = type(value)
        if kind in _FIXED:
            return None
        if depth > DEEPEST:
            raise Uncopied
        if kind is dict:
            self._weigh(value.values())
            if not _FIXED.issuperset(map(type, value)):
                raise Uncopied
            # Names, which many dicts share, do not count.
            self._add(sum([nbytes for nbytes in map(getsizeof, value) if nbytes > _NAME]))
            is_flat = _FIXED.issuperset(map(type, value.values()))
            return (dict.copy, value) if is_flat else self._copy_parts(value, value.items(), depth)
        if kind is list:
            self._weigh(value)
            is_flat = _FIXED.issuperset(map(type, value))
            return (list.copy, value) if is_flat else self._copy_parts(value, enumerate(value), depth)
        if kind in (tuple, set, frozenset) and _FIXED.issuperset(map(type, value)):
            self._weigh(value)
            return (set.copy, value) if kind is set else None
        return self._copy_object(value, depth)

    def _weigh(self, parts: Collection[Any]) -> None:
        # Never ask an object for its own size: no code of a class may run.
        self._add(
            _CONTAINER + _PART * len(parts) + sum(map(getsizeof, [each for each in parts if type(each) in _FIXED]))
        )

    def _add(self, nbytes: int) -> None:
        self.nbytes += nbytes
        if self.nbytes > self._most:
            raise Uncopied

    def _copy_parts(self, value: Any, parts: Iterable[tuple[Any, Any]], depth: int) -> Copier:
        places = [
            (place, *copier)
            for place, part in parts
            if type(part) not in _FIXED and (copier := self._copier_of(part, depth + 1)) is not None
        ]
        ways = {way for _, way, _ in places}
        if type(value) is list and len(places) == len(value) and len(ways) == 1:
            return _copy_each, (ways.pop(), [part for _, _, part in places])
        return (_copy_with, (value, places)) if places else (type(value).copy, value)

    def _copy_object(self, value: Any, depth: int) -> Copier:
        cls = type(value)
        shape = shape_of(cls)
        if shape.family not in (Record.DATACLASS, Record.MODEL) or shape.slots or shape.attributes is None:
            raise Uncopied
        if cls not in MESSAGE_CODES:
            self.classes[cls] = shape
        state = self._copier_of(shape.attributes(value), depth + 1)
        if shape.family is Record.DATACLASS:
            return _copy_dataclass, (cls, shape.attributes, state)
        names, *beside = model_parts(value)
        rest = [None if each is None else self._copier_of(each, depth + 1) for each in beside]
        return _copy_model, (cls, shape.attributes, state, names, *rest)


# Functions of one argument that make copies. Classes would cost one more call per copy.


def _copy_with(parts: Any) -> Any:
    value, places = parts
    made = value.copy()
    for place, copy, part in places:
        made[place] = copy(part)
    return made


def _copy_each(parts: Any) -> Any:
    copy, values = parts
    return list(map(copy, values))


def _copy_dataclass(parts: Any) -> Any:
    cls, attributes, (copy, state) = parts
    made = _new(cls)
    attributes(made).update(copy(state))
    return made


def _copy_model(parts: Any) -> Any:
    cls, attributes, (copy, state), names, extra, private = parts
    made = _new(cls)
    attributes(made).update(copy(state))
    set_model(made, names.copy(), extra and extra[0](extra[1]), private and private[0](private[1]))
    return made
