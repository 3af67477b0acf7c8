"""Values from the leaves and records of `pack`, without running code of classes.

A builder may raise any exception for damaged parts; `serializer` translates it.
"""

from __future__ import annotations

import re
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Flag
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeAlias, cast
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import ormsgpack

from langgraph_keel.engine.serde.moved import PACKAGE
from langgraph_keel.engine.serde.policy import TypePolicy
from langgraph_keel.engine.serde.types import (
    BASE_BY_NAME,
    FACTORIES,
    MESSAGES,
    MOST_ALIKE,
    Leaf,
    Record,
    Shape,
    are_spread,
    base_of,
    error_of,
    is_names,
    pydantic,
    restore,
    shape_of,
)
from langgraph_keel.engine.serde.unread import Unread, unread_of
from langgraph_keel.errors import CorruptStore, RefusedType

_new = object.__new__
_set = object.__setattr__
_of_class: Callable[[Any, str], Any] = type.__getattribute__
"""Returns an attribute of a class without running code of its metaclass."""


Build: TypeAlias = Callable[[list[Any], TypePolicy], Any]
Show: TypeAlias = Callable[[list[Any]], Any]

_FIELDS = [(cls, shape_of(cls).fields, tuple(cast(Any, cls).model_fields)) for cls in MESSAGES]
"""For each message class: the class, its fields, and their usual order."""

_MODEL_SLOTS = [vars(pydantic.BaseModel)[f"__pydantic_{name}__"] for name in ("fields_set", "extra", "private")]

_SCALARS = frozenset({str, int, float, complex, bytes, tuple, frozenset})
_CONTENT_TYPES: dict[type, type] = {kind: kind for kind in (str, int, float, complex, bytes)} | {bytearray: bytes}

_FRACTION_SLOTS = [vars(Fraction)[name] for name in ("_numerator", "_denominator")]

_MADE_OF_TEXT: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(PosixPath, WindowsPath, PurePosixPath, PureWindowsPath),
        *(IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network),
    )
}


class Mark:
    """The first element of a record.

    Builds its object, or shows the parts of a refused one as plain data.
    """

    __slots__ = ("build", "show")

    def __init__(self, build: Build, show: Show = lambda parts: None) -> None:
        self.build = build
        self.show = show

    def build_or_show(self, record: list[Any], policy: TypePolicy) -> Any:
        """Return the object, or a placeholder if it may not be revived."""
        try:
            return self.build(record, policy)
        except RefusedType as error:
            return policy.note(unread_of(record[1:], error, self.show, policy.present_name))


def leaf_or_unread(code: int, data: bytes, policy: TypePolicy) -> Any:
    """Return the value of a leaf, or a placeholder if it may not be revived."""
    try:
        return LEAVES[code](data, policy)
    except RefusedType as error:
        if code == Leaf.ENUM:  # a member's name, or `None` and a number
            stored = ormsgpack.unpackb(data)
            return policy.note(
                unread_of(stored, error, lambda of: int(of[1]) if of[0] is None else of[0], policy.present_name)
            )
        return policy.note(unread_of([_text(data)], error, _show_first, policy.present_name))


def message_or_unread(item: list[Any], policy: TypePolicy) -> Any:
    """Return the message of an item, or a placeholder if LangChain's fields differ."""
    try:
        return message_of(item)
    except RefusedType as error:
        return policy.note(unread_of(item[1:], error, _show_message, policy.present_name))


# --- LangChain messages ---


def message_of(item: list[Any]) -> Any:
    """Return the message of `[mark or tag, code, fields, names set(, extra, private)]`."""
    cls, fields, order = _FIELDS[item[1]]
    state, names = item[2], item[3]
    if type(state) is not dict or type(names) is not list or item[1] < 0:
        raise CorruptStore("a stored message is damaged")
    extra, private = ({}, None) if len(item) == 4 else item[4:]
    if tuple(state) != order and state.keys() != fields:  # another version of LangChain wrote it
        state, extra = _present_fields(cls, state, extra)
    made = _new(cls)
    _set(made, "__dict__", state)
    _set(made, "__pydantic_fields_set__", set(names))
    _set(made, "__pydantic_extra__", extra)
    _set(made, "__pydantic_private__", private)
    return made


def _present_fields(cls: Any, state: dict[str, Any], extra: Any) -> tuple[dict[str, Any], Any]:
    """Return a message's fields in this version of LangChain, and the extra ones."""
    missing = {}
    for name, field in cls.model_fields.items():
        if name not in state and field.default_factory in (list, dict):
            missing[name] = field.default_factory()
        elif name not in state:
            missing[name] = field.default
    if pydantic.fields.PydanticUndefined in missing.values():
        raise _no_fit(shape_of(cls), [name for name in missing if cls.model_fields[name].is_required()], ())
    more = {name: part for name, part in state.items() if name not in cls.model_fields}
    fields = state | missing
    return {name: fields[name] for name in cls.model_fields}, {**(extra or {}), **more}


# --- Data classes of the program ---


def _no_fit(shape: Shape, missing: Iterable[str], unknown: Iterable[str]) -> RefusedType:
    told = [f"{name!r} is missing" for name in sorted(missing)] + [f"it has no {name!r}" for name in sorted(unknown)]
    reason = f"the class is not the same as when the value was stored: {', '.join(told)}"
    return RefusedType(f"{shape.module}.{shape.qualname}", reason)


def _join_fields(shape: Shape, fields: dict[str, Any], rest: dict[str, Any], absent: list[str]) -> dict[str, Any]:
    """Return an object's attributes after checking its fields against the class."""
    _check_state(fields)
    if fields.keys() == shape.fields and not rest and not absent:
        return fields
    _check_state(rest)
    _check_names(absent)
    missing, unknown = shape.fields.difference(fields, absent), {*fields, *absent} - shape.fields
    if missing or unknown:
        raise _no_fit(shape, missing, unknown)
    if not (shape.fields.isdisjoint(rest) and fields.keys().isdisjoint(absent)):
        raise CorruptStore("a stored value contains a field twice")
    return fields | rest


def _check_names(names: Any) -> None:
    if type(names) is not list or not is_names(names):
        raise CorruptStore("the names of the fields of a stored value are damaged")


def _check_state(state: Any) -> None:
    if type(state) is not dict or not is_names(state):
        raise CorruptStore("the attributes of a stored value are damaged")


def _dataclass(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, fields, rest, absent = record
    cls, shape = policy.resolve(module, qualname, Record.DATACLASS)
    if shape.module == PACKAGE and type(fields) is dict and fields.keys() < shape.fields:
        # A class of Keel may have gained fields since the value was stored, with plain defaults.
        defaults = {name: _of_class(cls, "__dataclass_fields__")[name].default for name in shape.fields}
        later = {name: part for name, part in defaults.items() if type(part) in (str, int, bool, tuple, type(None))}
        fields = later | fields
    state = _join_fields(shape, fields, rest, absent)
    made = _new(cls)
    restore(made, state, shape)
    return made


def _model(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, fields, rest, absent, names, extra, private = record
    cls, shape = policy.resolve(module, qualname, Record.MODEL)
    state = _join_fields(shape, fields, rest, absent)
    _check_names(names)
    if extra is not None:
        _check_state(extra)
        if extra and _of_class(cls, "model_config").get("extra") != "allow":
            raise _no_fit(shape, (), extra)
    if private is not None:
        _check_state(private)
        if unknown := private.keys() - _of_class(cls, "__private_attributes__").keys():
            raise _no_fit(shape, (), unknown)
    made = _new(cls)
    restore(made, state, shape)
    set_model(made, set(names), extra, private)
    return made


def set_model(made: Any, names: set[str], extra: dict[str, Any] | None, private: dict[str, Any] | None) -> None:
    """Set the data of a bare model other than fields, bypassing setters."""
    _set_names(made, names)
    _set_extra(made, extra)
    _set_private(made, private)


def model_parts(value: Any) -> list[Any]:
    """Return the data that `set_model` sets, without running code of the class."""
    return [slot.__get__(value) for slot in _MODEL_SLOTS]


_set_names, _set_extra, _set_private = (slot.__set__ for slot in _MODEL_SLOTS)


def _model_v1(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, fields, rest, absent, names = record
    cls, shape = policy.resolve(module, qualname, Record.MODEL_V1)
    state = _join_fields(shape, fields, rest, absent)
    _check_names(names)
    made = _new(cls)
    restore(made, state, shape)
    vars(sys.modules["pydantic.v1.main"].BaseModel)["__fields_set__"].__set__(made, set(names))
    return made


def _namedtuple(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, names, values, state = record
    cls, shape = policy.resolve(module, qualname, Record.NAMEDTUPLE)
    _check_names(names)
    _check_type(values, list)
    _check_state(state)
    if tuple(names) != _of_class(cls, "_fields"):
        raise _no_fit(shape, shape.fields.difference(names), {*names} - shape.fields)
    if len(values) != len(names):
        raise CorruptStore("a stored named tuple is damaged")
    made = tuple.__new__(cls, values)
    restore(made, state, shape)
    return made


def _unpack_slots(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, state = record
    cls, shape = policy.resolve(module, qualname, Record.SLOTTED)
    _check_state(state)
    if state.keys() != shape.slots.keys():
        raise _no_fit(shape, shape.slots.keys() - state.keys(), state.keys() - shape.slots.keys())
    made = _new(cls)
    restore(made, state, shape)
    return made


def _exception(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, args, state, *cause = record
    cls, shape = policy.resolve(module, qualname, Record.EXCEPTION)
    _check_type(args, list)
    _check_state(state)
    base = error_of(cls)
    if issubclass(cls, BaseExceptionGroup):
        message, parts = args
        _check_type(message, str)
        _check_type(parts, list, tuple)
        _check_read(f"{module}.{qualname}", *parts)
        if not all(issubclass(type(part), BaseException) for part in parts):
            raise CorruptStore("a stored group of exceptions contains other values")
        made = base.__new__(cls, message, parts)
    else:
        made = base.__new__(cls)
        _set_args(made, args)
    restore(made, state, shape)
    if cause:
        (source,) = cause
        _check_read(f"{module}.{qualname}", source)
        _set_cause(made, source)
    return made


_set_args, _set_cause = (vars(BaseException)[name].__set__ for name in ("args", "__cause__"))


def _enum(data: bytes, policy: TypePolicy) -> Any:
    module, qualname, name, *number = ormsgpack.unpackb(data)
    cls, shape = policy.resolve(module, qualname, Leaf.ENUM)
    if name is None:
        return _flag(cls, shape, number)
    member = _of_class(cls, "_member_map_").get(name)
    if member is None:
        raise RefusedType(f"{module}.{qualname}", f"the enumeration no longer has a member {name!r}")
    return member


def _flag(cls: Any, shape: Shape, number: list[str]) -> Any:
    """Return a combination of flags, using code of `Flag` and not of the class."""
    value = int(number[0])
    if not issubclass(cls, Flag):
        raise CorruptStore(f"{shape.qualname} does not support combinations")
    found = _of_class(cls, "_value2member_map_").get(value)
    if found is None:
        found = _combine_flags(cls, value)
    if type(found) is not cls:
        raise CorruptStore(f"{value} is not a combination of flags of {shape.qualname}")
    return found


_combine_flags = vars(Flag)["_missing_"].__func__


def _extension(record: list[Any], policy: TypePolicy) -> Any:
    _, module, qualname, base_name, content, state = record
    cls, shape = policy.resolve(module, qualname, Record.BUILTIN)
    base = BASE_BY_NAME[base_name]
    _check_state(state)
    if base_of(cls) is not base:
        raise RefusedType(f"{module}.{qualname}", f"it extended {base_name} when it was stored, and no longer does")
    made = _new_builtin(cls, base, content)
    restore(made, state, shape)
    return made


def _new_builtin(cls: type, base: Any, content: Any) -> Any:
    """Return a bare object with the content of its builtin base, set by base methods."""
    _check_type(content, _CONTENT_TYPES.get(base, list))
    if base in (set, frozenset):
        _check_spread(content)
    if base in _SCALARS:
        return base.__new__(cls, content)
    made = base.__new__(cls)
    if base is deque:
        deque.__init__(made, content[1:], _length(content[0]))
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


def _fill(made: Any, flat: list[Any], setitem: Callable[[Any, Any, Any], None] = dict.__setitem__) -> Any:
    for key, part in zip(_check_spread(flat[::2]), flat[1::2], strict=True):
        setitem(made, key, part)
    return made


def _check_spread(keys: list[Any]) -> list[Any]:
    """Return keys, or members of a set; raise an error if too many have the same hash."""
    if not are_spread(keys):
        raise CorruptStore(f"more than {MOST_ALIKE} keys of a stored value have the same hash")
    return keys


def _factory(name: str | None) -> type | None:
    return None if name is None else FACTORIES[name]


def _length(value: Any) -> int | None:
    return None if value is None else _number(value)


def _number(value: Any) -> int:
    _check_type(value, int)
    return int(value)


def _check_type(value: Any, *kinds: type) -> None:
    """Raise an error unless a value has one of these types, whose code is safe to run."""
    if type(value) not in kinds:
        raise CorruptStore(f"found a {type(value).__name__} instead of a {kinds[0].__name__}")


def _check_read(name: str, *parts: Any) -> None:
    """Raise an error if a part is a placeholder in a place that does not allow one."""
    for part in parts:
        if type(part) is Unread:
            raise RefusedType(name, f"it contains a {part.type_name}: {part.reason}")


# --- Standard library ---


def _aware(record: list[Any], policy: TypePolicy) -> Any:
    _, moment, tz = record
    _check_read("datetime.datetime", tz)
    _check_type(moment, datetime, time)
    _check_type(tz, timezone, ZoneInfo)
    return moment.replace(tzinfo=tz)


def _fraction(record: list[Any], policy: TypePolicy) -> Fraction:
    """Return a fraction without reducing it, which may take minutes for long numbers."""
    _, numerator, denominator = record
    if _number(denominator) < 1:
        raise CorruptStore("the denominator of a stored fraction is not positive")
    made = _new(Fraction)
    for slot, number in zip(_FRACTION_SLOTS, (_number(numerator), denominator), strict=True):
        slot.__set__(made, number)
    return made


def _pattern(record: list[Any], policy: TypePolicy) -> re.Pattern[Any]:
    _, pattern, flags = record
    _check_type(pattern, str, bytes)
    return re.compile(pattern, _number(flags) & ~re.DEBUG)  # the flag DEBUG would print


def _secret(record: list[Any], policy: TypePolicy) -> Any:
    _, content = record
    _check_type(content, str, bytes)
    cls = pydantic.SecretStr if type(content) is str else pydantic.SecretBytes
    if not policy.allows_secrets(cls):
        raise RefusedType(f"{cls.__module__}.{cls.__qualname__}", f"not allowed here: pass types=[{cls.__name__}]")
    return cls(content)


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


def _path_or_address(data: bytes, policy: TypePolicy) -> Any:
    name, text = _text(data).split("|", 1)
    try:
        return _MADE_OF_TEXT[name](text)
    except NotImplementedError as error:
        raise RefusedType(f"pathlib.{name}", "this system does not support such a path: store pure paths") from error


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
        _check_type(data, str, bytes)
        return (_numpy().str_ if type(data) is str else _numpy().bytes_)(data)
    return _from_buffer(described, [], "C", data)[()]


def _from_buffer(described: Any, shape: list[int], order: str, data: bytes) -> Any:
    numpy = _numpy()
    if not _is_description(described):
        raise CorruptStore("the kind of a stored array is damaged")
    dtype = numpy.lib.format.descr_to_dtype(described)
    # The number of elements without bytes would be unlimited.
    if dtype.hasobject or not dtype.itemsize or type(data) is not bytes or any(_number(length) < 0 for length in shape):
        raise CorruptStore("a stored array is damaged")
    # A bytearray makes the array writable, as it was.
    made = numpy.ndarray(tuple(shape), dtype, bytearray(data), order=order)
    if made.nbytes != len(data):
        raise CorruptStore("the length of a stored array does not match its shape")
    return made


def _is_description(described: Any) -> bool:
    """Return whether a dtype's description has only types that numpy reads safely."""
    if type(described) in (list, tuple):
        return all(map(_is_description, described))
    return type(described) in (str, int)


# --- Showing refused values as plain data ---


def _show_first(parts: list[Any]) -> Any:
    return parts[0]


def _show_fields(parts: list[Any]) -> dict[str, Any]:
    """Return fields and other attributes: undeclared, extra and private ones."""
    _check_state(parts[0])
    shown: dict[str, Any] = {}
    for part in parts:
        shown |= part if type(part) is dict else {}
    return shown


def _show_namedtuple(parts: list[Any]) -> dict[str, Any]:
    names, values, state = parts
    return {**dict(zip(names, values, strict=True)), **state}


def _show_extension(parts: list[Any]) -> Any:
    base_name, content, state = parts
    if base_name in ("defaultdict", "deque"):  # their first part is the factory or the maximum length
        content = content[1:]
    if issubclass(BASE_BY_NAME[base_name], dict):
        content = _fill({}, content)
    return {"content": content, **state} if state else content


def _show_array(parts: list[Any]) -> dict[str, Any]:
    return {"dtype": parts[0], "shape": parts[1] if len(parts) == 4 else []}


def _show_message(parts: list[Any]) -> dict[str, Any]:
    return _show_fields(parts[1:])


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
    Leaf.PATH: _path_or_address,
    Leaf.IP: _path_or_address,
    Leaf.COMPLEX: lambda data, _: complex(*struct.unpack("<dd", data)),
    Leaf.ENUM: _enum,
}

RECORDS: dict[int, Mark] = {
    Record.TUPLE: Mark(lambda record, _: tuple(record[1:])),
    Record.SET: Mark(lambda record, _: set(_check_spread(record[1:]))),
    Record.FROZENSET: Mark(lambda record, _: frozenset(_check_spread(record[1:]))),
    Record.DEQUE: Mark(lambda record, _: deque(record[2:], _length(record[1]))),
    Record.DICT: Mark(lambda record, _: _fill({}, record[1:])),
    Record.ORDERED: Mark(lambda record, _: _fill(OrderedDict(), record[1:], OrderedDict.__setitem__)),
    Record.DEFAULT: Mark(lambda record, _: _fill(defaultdict(_factory(record[1])), record[2:])),
    Record.COUNTER: Mark(lambda record, _: _fill(Counter(), record[1:])),
    Record.RANGE: Mark(lambda record, _: range(*map(_number, record[1:]))),
    Record.FRACTION: Mark(_fraction),
    Record.AWARE: Mark(_aware, _show_first),
    Record.PATTERN: Mark(_pattern),
    Record.SECRET: Mark(_secret),
    Record.NDARRAY: Mark(_array, _show_array),
    Record.SCALAR: Mark(_scalar, _show_array),
    Record.NAMEDTUPLE: Mark(_namedtuple, _show_namedtuple),
    Record.DATACLASS: Mark(_dataclass, _show_fields),
    Record.MODEL: Mark(_model, _show_fields),
    Record.MODEL_V1: Mark(_model_v1, _show_fields),
    Record.BUILTIN: Mark(_extension, _show_extension),
    Record.SLOTTED: Mark(_unpack_slots, _show_fields),
    Record.MESSAGE: Mark(lambda record, _: message_of(record), _show_message),
    Record.EXCEPTION: Mark(_exception, lambda parts: {"args": parts[0], **parts[1]}),
}
