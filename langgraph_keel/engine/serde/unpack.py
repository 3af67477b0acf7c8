"""What the leaves and records of `pack` turn back to.

Nothing is imported, and nothing is called but constructors of the types named in this file and of data
classes that `TypePolicy` lets through. A builder may fail with any exception over damaged parts: `serde`
translates it.
"""

from __future__ import annotations

import ipaddress
import pathlib
import re
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import ormsgpack

from langgraph_keel.engine.serde.types import (
    BASE_BY_NAME,
    FACTORIES,
    MESSAGES,
    Leaf,
    Record,
    TypePolicy,
    base_of,
    construct,
    pydantic,
    shape_of,
)
from langgraph_keel.errors import CorruptStore, RefusedType

_new = object.__new__
_set = object.__setattr__


class Mark:
    """The first element of a record."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[list[Any], TypePolicy], Any]) -> None:
        self.build = build


# --- LangChain messages ---

_FIELDS = [(cls, dict.fromkeys(shape_of(cls).fields).keys()) for cls in MESSAGES]


def message_of(item: list[Any]) -> Any:
    """Return the message described by `[mark or tag, class code, fields, names set(, extra, private)]`."""
    cls, fields = _FIELDS[item[1]]
    state, names = item[2], item[3]
    if type(state) is not dict or type(names) is not list or item[1] < 0:
        raise CorruptStore("a stored message is damaged")
    if state.keys() != fields:  # another version of LangChain wrote it
        return _construct(cls, state | (item[4] or {} if len(item) > 4 else {}))
    made = _new(cls)
    _set(made, "__dict__", state)
    _set(made, "__pydantic_fields_set__", set(names))
    if len(item) == 4:
        _set(made, "__pydantic_extra__", {})
        _set(made, "__pydantic_private__", None)
    else:
        _set(made, "__pydantic_extra__", item[4])
        _set(made, "__pydantic_private__", item[5])
    return made


def _construct(cls: type, fields: dict[str, Any]) -> Any:
    try:
        return construct(cls, fields)
    except Exception as error:
        name = f"{cls.__module__}.{cls.__qualname__}"
        reason = f"the class no longer accepts what was stored: {type(error).__name__}: {error}"
        raise RefusedType(name, reason) from error


# --- Data classes of the program ---


def _dataclass(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, fields, rest, *absent = record
    cls = policy.resolve(module, qualname, Record.DATACLASS)
    if rest is None or not _same_fields(cls, fields, *absent):
        return _construct(cls, fields)
    made = _new(cls)
    _restore(made, fields | rest)
    return made


def _same_fields(cls: type, fields: dict[str, Any], absent: list[str]) -> bool:
    return fields.keys() | set(absent) == shape_of(cls).fields


def _restore(made: Any, state: dict[str, Any]) -> None:
    """Give a bare object its attributes, as they were, past any setter."""
    slots = shape_of(type(made)).slots
    for name in slots:
        if name in state:
            _set(made, name, state[name])
    loose = {name: part for name, part in state.items() if name not in slots} if slots else state
    if loose:
        made.__dict__.update(loose)


def _model(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, fields, rest, *more = record
    cls = policy.resolve(module, qualname, Record.MODEL)
    if rest is None:
        return _construct(cls, fields)
    absent, names, extra, private = more
    if not _same_fields(cls, fields, absent):
        return _construct(cls, fields | (extra or {}))
    made = _new(cls)
    _set(made, "__dict__", {})
    _restore(made, fields | rest)
    _set(made, "__pydantic_fields_set__", set(names))
    _set(made, "__pydantic_extra__", extra)
    _set(made, "__pydantic_private__", private)
    return made


def _model_v1(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, fields, rest, absent, names = record
    cls = policy.resolve(module, qualname, Record.MODEL_V1)
    if not _same_fields(cls, fields, absent):
        return _construct(cls, fields)
    made = _new(cls)
    _restore(made, fields | rest)
    _set(made, "__fields_set__", set(names))
    return made


def _namedtuple(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, names, values, state = record
    cls = policy.resolve(module, qualname, Record.NAMEDTUPLE)
    if tuple(names) != cls._fields:
        known = {name: part for name, part in zip(names, values, strict=True) if name in cls._fields}
        return _call(cls, known)
    made = tuple.__new__(cls, values)
    _restore(made, state)
    return made


def _call(cls: type, fields: dict[str, Any]) -> Any:
    try:
        return cls(**fields)
    except TypeError as error:
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise RefusedType(name, f"the class no longer accepts what was stored: {error}") from error


def _unpack_slots(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, state = record
    made = _new(policy.resolve(module, qualname, Record.SLOTTED))
    _restore(made, state)
    return made


def _enum(data: bytes, policy: TypePolicy) -> Any:
    module, qualname, name, *number = ormsgpack.unpackb(data)
    cls = policy.resolve(module, qualname, Leaf.ENUM)
    if name is None:
        return cls(int(number[0]))
    member = cls.__members__.get(name)
    if member is None:
        raise RefusedType(f"{module}.{qualname}", f"the enumeration has no member {name!r} any more")
    return member


def _extension(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, base_name, content, state = record
    cls, base = policy.resolve(module, qualname, Record.BUILTIN), BASE_BY_NAME[base_name]
    if base_of(cls) is not base:
        raise RefusedType(f"{module}.{qualname}", f"it extended {base_name} when it was stored and does not now")
    made = _new_builtin(cls, base, content)
    _restore(made, state)
    return made


def _new_builtin(cls: type, base: Any, content: Any) -> Any:
    """Return a bare `cls` with the content of its builtin `base`, by the base's own methods."""
    if base in _SCALARS:
        return base.__new__(cls, content)
    made = base.__new__(cls)
    if base is deque:
        deque.__init__(made, content[1:], content[0])
    elif base is defaultdict:
        defaultdict.__init__(made, _factory(content[0]))
        _fill(made, content[1:], dict.__setitem__)
    elif issubclass(base, dict):
        _fill(made, content, base.__setitem__)
    elif base is bytearray:
        bytearray.extend(made, content)
    else:
        (list.extend if base is list else set.update)(made, content)
    return made


_SCALARS = frozenset({str, int, float, complex, bytes, tuple, frozenset})


def _fill(made: Any, flat: list[Any], setitem: Callable[[Any, Any, Any], None] = dict.__setitem__) -> Any:
    for key, part in zip(flat[::2], flat[1::2], strict=True):
        setitem(made, key, part)
    return made


def _factory(name: str | None) -> type | None:
    return None if name is None else FACTORIES[name]


# --- Standard library ---


def _aware(record: list[Any], policy: TypePolicy) -> Any:
    _, moment, tz = record
    if type(moment) not in (datetime, time):
        raise CorruptStore("a time zone without a time")
    return moment.replace(tzinfo=tz)


def _secret(record: list[Any], policy: TypePolicy) -> Any:
    _, content = record
    return pydantic.SecretStr(content) if type(content) is str else pydantic.SecretBytes(content)


def _text(data: bytes) -> str:
    return data.decode(errors="surrogatepass")


def _read_folded(read: Callable[[str], Any], data: bytes) -> Any:
    text = data.decode()
    return read(text[:-1]).replace(fold=1) if text.endswith("f") else read(text)


def _microseconds(text: str) -> timedelta:
    return timedelta(microseconds=int(text))


def _timezone(data: bytes, policy: TypePolicy) -> timezone:
    offset, *name = _text(data).split("|", 1)
    return timezone(_microseconds(offset), *name)


def _zone(data: bytes, policy: TypePolicy) -> ZoneInfo:
    key = data.decode()
    try:
        return ZoneInfo(key)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise RefusedType(f"zoneinfo.ZoneInfo({key!r})", "this system has no such time zone: install tzdata") from error


def _path(data: bytes, policy: TypePolicy) -> Any:
    name, text = _text(data).split("|", 1)
    try:
        return _PATHS[name](text)
    except NotImplementedError as error:
        raise RefusedType(f"pathlib.{name}", "such a path cannot be made on this system: store pure paths") from error


def _ip(data: bytes, policy: TypePolicy) -> Any:
    name, text = data.decode().split("|", 1)
    return _ADDRESSES[name](text)


_PATHS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}
_ADDRESSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        ipaddress.IPv4Address,
        ipaddress.IPv4Interface,
        ipaddress.IPv4Network,
        ipaddress.IPv6Address,
        ipaddress.IPv6Interface,
        ipaddress.IPv6Network,
    )
}


# --- numpy ---


def _numpy() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise RefusedType("numpy.ndarray", "this program has not imported numpy: import it before reading")
    return numpy


def _array(record: list[Any], policy: TypePolicy) -> Any:
    _, described, shape, order, data = record
    return _from_buffer(described, shape, order, data)


def _scalar(record: list[Any], policy: TypePolicy) -> Any:
    _, described, data = record
    if described is None:
        return (_numpy().str_ if type(data) is str else _numpy().bytes_)(data)
    return _from_buffer(described, [], "C", data)[()]


def _from_buffer(described: Any, shape: list[int], order: str, data: bytes) -> Any:
    numpy = _numpy()
    dtype = numpy.lib.format.descr_to_dtype(described)
    if dtype.hasobject or type(data) is not bytes or any(length < 0 for length in shape):
        raise CorruptStore("a stored array is damaged")
    # Over a bytearray, so that the array is writable as it was.
    made = numpy.ndarray(tuple(shape), dtype, bytearray(data), order=order)
    if made.nbytes != len(data):
        raise CorruptStore("a stored array is not as long as its shape says")
    return made


# --- The tables ---

LEAVES: dict[int, Callable[[bytes, TypePolicy], Any]] = {
    Leaf.BIG_INT: lambda data, _: int.from_bytes(data, "little", signed=True),
    Leaf.SURROGATES: lambda data, _: _text(data),
    Leaf.BYTEARRAY: lambda data, _: bytearray(data),
    Leaf.DATETIME: lambda data, _: _read_folded(datetime.fromisoformat, data),
    Leaf.DATE: lambda data, _: date.fromisoformat(data.decode()),
    Leaf.TIME: lambda data, _: _read_folded(time.fromisoformat, data),
    Leaf.TIMEDELTA: lambda data, _: _microseconds(data.decode()),
    Leaf.TIMEZONE: _timezone,
    Leaf.ZONE: _zone,
    Leaf.UUID: lambda data, _: UUID(bytes=data),
    Leaf.DECIMAL: lambda data, _: Decimal(data.decode()),
    Leaf.PATH: _path,
    Leaf.IP: _ip,
    Leaf.COMPLEX: lambda data, _: complex(*struct.unpack("<dd", data)),
    Leaf.ENUM: _enum,
}

RECORDS: dict[int, Mark] = {
    Record.TUPLE: Mark(lambda record, _: tuple(record[1:])),
    Record.SET: Mark(lambda record, _: set(record[1:])),
    Record.FROZENSET: Mark(lambda record, _: frozenset(record[1:])),
    Record.DEQUE: Mark(lambda record, _: deque(record[2:], record[1])),
    Record.DICT: Mark(lambda record, _: _fill({}, record[1:])),
    Record.ORDERED: Mark(lambda record, _: _fill(OrderedDict(), record[1:], OrderedDict.__setitem__)),
    Record.DEFAULT: Mark(lambda record, _: _fill(defaultdict(_factory(record[1])), record[2:])),
    Record.COUNTER: Mark(lambda record, _: _fill(Counter(), record[1:])),
    Record.RANGE: Mark(lambda record, _: range(*record[1:])),
    Record.AWARE: Mark(_aware),
    Record.PATTERN: Mark(lambda record, _: re.compile(*record[1:])),
    Record.SECRET: Mark(_secret),
    Record.NDARRAY: Mark(_array),
    Record.SCALAR: Mark(_scalar),
    Record.NAMEDTUPLE: Mark(_namedtuple),
    Record.DATACLASS: Mark(_dataclass),
    Record.MODEL: Mark(_model),
    Record.MODEL_V1: Mark(_model_v1),
    Record.BUILTIN: Mark(_extension),
    Record.SLOTTED: Mark(_unpack_slots),
    Record.MESSAGE: Mark(lambda record, _: message_of(record)),
}
