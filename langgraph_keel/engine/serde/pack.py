"""The stored form of values that msgpack does not support; `unpack` reverses it.

For such a value, ormsgpack calls a `Describer`, which returns a leaf (an Ext that contains the value) or a record (an
array of an empty Ext and the parts, which are packed in C again).
"""

from __future__ import annotations

import re
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Flag
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from itertools import chain
from operator import attrgetter
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

import ormsgpack
from ormsgpack import Ext, Fragment

from langgraph_keel.engine.config import ThreadId
from langgraph_keel.engine.serde.types import (
    FACTORIES,
    MESSAGE_CODES,
    MOST_ALIKE,
    Leaf,
    Record,
    are_spread,
    base_of,
    error_of,
    shape_of,
    state_of,
)
from langgraph_keel.engine.serde.unread import Unread
from langgraph_keel.errors import UnstorableValue

CODE_REASON = (
    "it cannot be stored and read back equal. Keep it out of the state: create it inside the node, or "
    "pass it through context= or the config. Keep data in builtin types, dataclasses, pydantic models or "
    "named tuples"
)

MARKS: dict[Record, Ext] = {kind: Ext(kind, b"") for kind in Record}
_MESSAGE = MARKS[Record.MESSAGE]
_SORTABLE = frozenset({str, int, bytes})


Form: TypeAlias = Callable[[Any], Any]
"""Returns the stored form of a value of one class."""


class Describer:
    """Describes values that msgpack does not support.

    `admit` may refuse a class (`UnstorableValue`).
    """

    __slots__ = ("_admit", "_forms")

    def __init__(self, admit: Callable[[type], None]) -> None:
        self._admit = admit
        self._forms: WeakKeyDictionary[type, Form] = WeakKeyDictionary()

    def describe(self, value: Any) -> Any:
        """Return the leaf or record of a value."""
        cls = type(value)
        kind = _MESSAGE_KINDS.get(cls)
        if kind is None:
            form = _EXACT.get(cls) or self._forms.get(cls)
            if form is None:
                self._admit(cls)
                # An `Unread` is described only for comparison; policies refuse to store it.
                form = attrgetter("mark") if cls is Unread else _FAMILIES.get(shape_of(cls).family, _refuse)
                self._forms[cls] = form
            return form(value)
        # Inlined, because this runs for each message of a conversation, at every checkpoint.
        state = value.__dict__
        if len(state) != kind.count:
            return _model(value)
        names, last = value.__pydantic_fields_set__, kind.names_set
        if names != last[0]:
            # A set has no order, so its names are sorted. Neighbouring messages mostly have the same names set.
            # One assignment, so that another thread never sees only half of the pair.
            last = kind.names_set = (set(names), Fragment(ormsgpack.packb(sorted(names))))
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        if private is None and extra is not None and not extra:
            return [_MESSAGE, kind.code, state, last[1]]
        return [_MESSAGE, kind.code, state, last[1], extra, private]


describe = Describer(lambda cls: None).describe
"""Returns the form of a value of any class, only for comparing values."""


def _refuse(value: Any) -> Any:
    kind = type(value)
    if kind is memoryview:
        raise UnstorableValue(name_of(kind), "a view of memory that may change: store bytes(view)")
    if isinstance(value, BaseException):
        raise UnstorableValue(name_of(kind), "an exception that does not consist of data only: store str(error)")
    name = getattr(value, "__qualname__", None)
    what = f" {name}" if isinstance(name, str) else ""
    raise UnstorableValue(name_of(kind) + what, CODE_REASON)


def name_of(kind: type) -> str:
    """Return the full name of a type, for messages."""
    return f"{kind.__module__}.{kind.__qualname__}"


class _MessageKind:
    """A message class: its code, its number of fields, and the last set of names."""

    __slots__ = ("code", "count", "names_set")

    def __init__(self, cls: type, code: int) -> None:
        self.code = code
        self.count = len(shape_of(cls).fields)
        self.names_set: tuple[set[str], Fragment] = (set(), Fragment(ormsgpack.packb([])))


_MESSAGE_KINDS = {cls: _MessageKind(cls, code) for cls, code in MESSAGE_CODES.items()}


def flat(value: dict[Any, Any]) -> Iterable[Any]:
    """Return keys and values alternately."""
    _check_spread(value)
    return chain.from_iterable(OrderedDict.items(value) if isinstance(value, OrderedDict) else dict.items(value))


def _check_spread(value: Collection[Any]) -> None:
    if not are_spread(value):
        raise UnstorableValue(name_of(type(value)), f"more than {MOST_ALIKE} of its keys have the same hash")


def _sort(value: set[Any] | frozenset[Any]) -> Iterable[Any]:
    _check_spread(value)
    # Equal sets may iterate in different orders. Sorted where that is cheap, they give equal bytes.
    kinds = set(map(type, value))
    return sorted(value) if len(kinds) == 1 and kinds <= _SORTABLE else value


def _factory_name(factory: Any) -> str | None:
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if FACTORIES.get(name) is not factory:
        described = f"collections.defaultdict with the factory {getattr(factory, '__qualname__', factory)!s}"
        raise UnstorableValue(described, f"a default factory must be None or one of {', '.join(FACTORIES)}")
    return str(name)


def _moment(value: datetime | time) -> Any:
    tz = value.tzinfo
    if tz is not None and not (type(tz) is timezone and len(_offset_and_name(tz)) == 1):
        return [MARKS[Record.AWARE], value.replace(tzinfo=None), tz]
    code = Leaf.DATETIME if isinstance(value, datetime) else Leaf.TIME
    return Ext(code, (value.isoformat() + "f" * value.fold).encode())


def _offset_and_name(value: timezone) -> tuple[Any, ...]:
    arguments: tuple[Any, ...] = value.__getinitargs__()  # type: ignore[attr-defined]
    return arguments


def _microseconds(value: timedelta) -> int:
    return value // timedelta(microseconds=1)


def _timezone(value: timezone) -> Any:
    offset, *name = _offset_and_name(value)
    return _text(Leaf.TIMEZONE, "|".join((str(_microseconds(offset)), *name)))


def _zone(value: ZoneInfo) -> Any:
    if value.key is None:
        raise UnstorableValue("zoneinfo.ZoneInfo", "it was read from a file and has no key: use ZoneInfo('Area/City')")
    return _text(Leaf.ZONE, value.key)


def _text(code: Leaf, text: str) -> Ext:
    return Ext(code, text.encode(errors="surrogatepass"))


def _named_text(code: Leaf) -> Callable[[Any], Ext]:
    return lambda value: _text(code, f"{type(value).__name__}|{value}")


_EXACT: dict[type, Callable[[Any], Any]] = {
    ThreadId: str,  # the value does not depend on how its config was read
    tuple: lambda value: [MARKS[Record.TUPLE], *value],
    set: lambda value: [MARKS[Record.SET], *_sort(value)],
    frozenset: lambda value: [MARKS[Record.FROZENSET], *_sort(value)],
    deque: lambda value: [MARKS[Record.DEQUE], value.maxlen, *value],
    OrderedDict: lambda value: [MARKS[Record.ORDERED], *flat(value)],
    defaultdict: lambda value: [MARKS[Record.DEFAULT], _factory_name(value.default_factory), *flat(value)],
    Counter: lambda value: [MARKS[Record.COUNTER], *flat(value)],
    range: lambda value: [MARKS[Record.RANGE], value.start, value.stop, value.step],
    int: lambda value: Ext(Leaf.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)),
    complex: lambda value: Ext(Leaf.COMPLEX, struct.pack("<dd", value.real, value.imag)),
    datetime: _moment,
    time: _moment,
    date: lambda value: _text(Leaf.DATE, value.isoformat()),
    timedelta: lambda value: _text(Leaf.TIMEDELTA, str(_microseconds(value))),
    timezone: _timezone,
    ZoneInfo: _zone,
    UUID: lambda value: Ext(Leaf.UUID, value.bytes),
    Decimal: lambda value: _text(Leaf.DECIMAL, str(value)),
    Fraction: lambda value: [MARKS[Record.FRACTION], value.numerator, value.denominator],
    re.Pattern: lambda value: [MARKS[Record.PATTERN], value.pattern, int(value.flags & ~re.DEBUG)],
    **dict.fromkeys((PosixPath, WindowsPath, PurePosixPath, PureWindowsPath), _named_text(Leaf.PATH)),
    **dict.fromkeys(
        (IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network),
        _named_text(Leaf.IP),
    ),
}


def _enum(value: Any) -> Ext:
    shape = shape_of(type(value))
    if type(value)._member_map_.get(value._name_) is value:
        return Ext(Leaf.ENUM, ormsgpack.packb([shape.module, shape.qualname, value._name_]))
    if not isinstance(value, Flag):
        raise UnstorableValue(name_of(type(value)), "this instance is not a member of its enumeration")
    return Ext(Leaf.ENUM, ormsgpack.packb([shape.module, shape.qualname, None, str(value._value_)]))


def _namedtuple(value: Any) -> Any:
    shape = shape_of(type(value))
    names = list(type(value)._fields)
    return [MARKS[Record.NAMEDTUPLE], shape.module, shape.qualname, names, list(value), state_of(value, shape)]


def _extension(value: Any) -> Any:
    shape = shape_of(type(value))
    base = base_of(type(value))
    content = _CONTENT[base](value)
    return [MARKS[Record.BUILTIN], shape.module, shape.qualname, base.__name__, content, state_of(value, shape)]


def _pack_slots(value: Any) -> Any:
    shape = shape_of(type(value))
    return [MARKS[Record.SLOTTED], shape.module, shape.qualname, state_of(value, shape)]


def _exception(value: Any) -> Any:
    shape, base = shape_of(type(value)), error_of(type(value))
    state = state_of(value, shape)
    # Unset attributes of a builtin exception are None. Setting them to None would show them.
    state = {name: part for name, part in state.items() if part is not None or not hasattr(base, name)}
    cause = [] if value.__cause__ is None else [value.__cause__]
    return [MARKS[Record.EXCEPTION], shape.module, shape.qualname, list(value.args), state, *cause]


def _dataclass(value: Any) -> Any:
    shape = shape_of(type(value))
    fields, rest, absent = _split(state_of(value, shape), shape.fields)
    return [MARKS[Record.DATACLASS], shape.module, shape.qualname, fields, rest, absent]


def _split(state: dict[str, Any], fields: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    if state.keys() == fields:
        return state, {}, []
    declared = {name: part for name, part in state.items() if name in fields}
    rest = {name: part for name, part in state.items() if name not in fields}
    return declared, rest, sorted(fields - state.keys())


def _model(value: Any) -> Any:
    shape = shape_of(type(value))
    fields, rest, absent = _split(state_of(value, shape), shape.fields)
    names = sorted(value.__pydantic_fields_set__)
    extra, private = value.__pydantic_extra__, value.__pydantic_private__
    return [MARKS[Record.MODEL], shape.module, shape.qualname, fields, rest, absent, names, extra, private]


def _model_v1(value: Any) -> Any:
    shape = shape_of(type(value))
    fields, rest, absent = _split(state_of(value, shape), shape.fields)
    return [MARKS[Record.MODEL_V1], shape.module, shape.qualname, fields, rest, absent, sorted(value.__fields_set__)]


# The content of a subclass, read with its base's methods, because the subclass may have overridden them.
_CONTENT: dict[type, Callable[[Any], Any]] = {
    OrderedDict: lambda value: list(flat(value)),
    defaultdict: lambda value: [_factory_name(value.default_factory), *flat(value)],
    Counter: lambda value: list(flat(value)),
    dict: lambda value: list(flat(value)),
    list: lambda value: list(list.__iter__(value)),
    deque: lambda value: [value.maxlen, *deque.__iter__(value)],
    set: lambda value: list(_sort({*set.__iter__(value)})),
    frozenset: lambda value: list(_sort({*frozenset.__iter__(value)})),
    tuple: lambda value: list(tuple.__iter__(value)),
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytes(value),
}


# --- numpy ---


def _array(value: Any) -> Any:
    if value.dtype.hasobject:
        reason = "it holds Python objects: store value.tolist() or use a numeric, text or structured dtype"
        raise UnstorableValue(f"numpy.ndarray of dtype {value.dtype}", reason)
    if not value.dtype.itemsize:
        raise UnstorableValue(f"numpy.ndarray of dtype {value.dtype}", "its elements have size 0: store its shape")
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return [MARKS[Record.NDARRAY], _dtype(value.dtype), list(value.shape), order, value.tobytes(order)]


def _scalar(value: Any) -> Any:
    if isinstance(value, (str, bytes)):  # an array would strip trailing NULs
        content = str.__str__(value) if isinstance(value, str) else bytes.__getitem__(value, slice(None))
        return [MARKS[Record.SCALAR], None, content]
    if value.dtype.hasobject:
        return _refuse(value)
    return [MARKS[Record.SCALAR], _dtype(value.dtype), value.tobytes()]


def _dtype(dtype: Any) -> Any:
    return sys.modules["numpy"].lib.format.dtype_to_descr(dtype)


_FAMILIES: dict[Record | Leaf | None, Callable[[Any], Any]] = {
    Leaf.ENUM: _enum,
    Record.NDARRAY: _array,
    Record.SCALAR: _scalar,
    Record.NAMEDTUPLE: _namedtuple,
    Record.BUILTIN: _extension,
    Record.MODEL: _model,
    Record.MODEL_V1: _model_v1,
    Record.DATACLASS: _dataclass,
    Record.SLOTTED: _pack_slots,
    Record.EXCEPTION: _exception,
    Record.SECRET: lambda value: [MARKS[Record.SECRET], value.get_secret_value()],
}
