"""The kinds of stored values, and the facts about classes stored by name.

Inspecting a class and setting attributes on a bare object never run code of the class, because stored bytes can cause
both.
"""

from __future__ import annotations

import builtins
import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum, IntEnum
from functools import cached_property
from inspect import isabstract
from itertools import chain
from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any
from weakref import finalize

from langchain_core import messages

# Loaded by langchain-core, and not imported, because the engine only depends on LangChain's messages.
pydantic: Any = sys.modules["pydantic"]

# The content of their subclasses is read with the base's methods. The first matching base is used, so subclasses of
# dict precede dict.
BASES: tuple[type, ...] = (
    *(OrderedDict, defaultdict, Counter, dict),
    *(list, deque, set, frozenset, tuple),
    *(str, int, float, complex, bytes, bytearray),
)
BASE_BY_NAME = {base.__name__: base for base in BASES}

FACTORIES: dict[str, type] = {
    factory.__name__: factory for factory in (*BASES, bool, object) if factory is not defaultdict
}

REQUIRED: Any = ...
"""Default of required fields. msgpack cannot pack it, so a message without the field is refused."""

_AI: dict[str, Any] = {"tool_calls": [], "invalid_tool_calls": [], "usage_metadata": None}
_CHUNK: dict[str, Any] = {"tool_call_chunks": [], "chunk_position": None}
_TOOL: dict[str, Any] = {"tool_call_id": REQUIRED, "artifact": None, "status": "success"}
_CHAT: dict[str, Any] = {"role": REQUIRED}
_FUNCTION: dict[str, Any] = {"name": REQUIRED}

# Part of the format: the code of a class is its position here, so append only. Each class has its form in JSON: the
# role, the `type`, and the defaults of the fields that not all messages have. They are not read from LangChain at run
# time, because the meaning of an omitted field must not depend on the reading version.
MESSAGE_FORMS: dict[type, tuple[str, str, dict[str, Any]]] = {
    messages.HumanMessage: ("human", "human", {}),
    messages.AIMessage: ("ai", "ai", _AI),
    messages.SystemMessage: ("system", "system", {}),
    messages.ToolMessage: ("tool", "tool", _TOOL),
    messages.ChatMessage: ("chat", "chat", _CHAT),
    messages.FunctionMessage: ("function", "function", _FUNCTION),
    messages.RemoveMessage: ("remove", "remove", {}),
    messages.HumanMessageChunk: ("human_chunk", "HumanMessageChunk", {}),
    messages.AIMessageChunk: ("ai_chunk", "AIMessageChunk", _AI | _CHUNK),
    messages.SystemMessageChunk: ("system_chunk", "SystemMessageChunk", {}),
    messages.ToolMessageChunk: ("tool_chunk", "ToolMessageChunk", _TOOL),
    messages.ChatMessageChunk: ("chat_chunk", "ChatMessageChunk", _CHAT),
    messages.FunctionMessageChunk: ("function_chunk", "FunctionMessageChunk", _FUNCTION),
}
MESSAGES: tuple[type, ...] = tuple(MESSAGE_FORMS)
MESSAGE_CODES: dict[type, int] = {cls: code for code, cls in enumerate(MESSAGES)}

# Plain classes of LangGraph that are neither dataclasses nor pydantic models, and have only slots.
SLOTTED: frozenset[tuple[str, str]] = frozenset(
    {
        ("langgraph.types", "Send"),
        ("langgraph.store.base", "Item"),
        ("langgraph.store.base", "SearchItem"),
    }
)

# Attributes that Python or a library sets on an instance, and that are not state of the program.
_BOOKKEEPING = frozenset({"__orig_class__", "__dict__", "__weakref__"})

BUILTIN_ERRORS = frozenset(
    error for error in vars(builtins).values() if isinstance(error, type) and issubclass(error, BaseException)
)

# Not data: `obj` of an AttributeError may be any object. The members of _FIXED are set by the constructor.
_NOT_DATA = frozenset({"obj"})
_FIXED = frozenset({BaseExceptionGroup, ExceptionGroup})
_HEAP_TYPE = 1 << 9  # in `type.__flags__`: a class created at run time

MOST_ALIKE = 256
"""Maximum number of set members or dict keys with the same hash. A lookup compares all of them."""


class Leaf(IntEnum):
    """Ext codes whose payload is the value itself. Part of the format: never renumber."""

    BIG_INT = 1
    SURROGATES = 2
    BYTEARRAY = 3
    DATETIME = 4
    DATE = 5
    TIME = 6
    TIMEDELTA = 7
    TIMEZONE = 8
    ZONE = 9
    UUID = 10
    DECIMAL = 11
    PATH = 12
    IP = 13
    COMPLEX = 14
    ENUM = 15


class Record(IntEnum):
    """Msgpack Ext codes that begin an array and give the type of its value.

    Never renumber.

    A record is an array, not an Ext with packed bytes. So its parts are packed and unpacked in C with the rest of the
    value, and the limit of depth applies to the whole value, not to each record.
    """

    TUPLE = 32
    SET = 33
    FROZENSET = 34
    DEQUE = 35
    DICT = 36
    ORDERED = 37
    DEFAULT = 38
    COUNTER = 39
    RANGE = 40
    AWARE = 41
    PATTERN = 42
    SECRET = 43
    NDARRAY = 44
    SCALAR = 45
    NAMEDTUPLE = 46
    DATACLASS = 47
    MODEL = 48
    MODEL_V1 = 49
    BUILTIN = 50
    SLOTTED = 51
    MESSAGE = 52
    EXCEPTION = 53
    FRACTION = 54


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """The facts about a class that the serializer needs."""

    module: str
    qualname: str
    family: Record | Leaf | None  # `None` if its instances are not stored
    fields: frozenset[str]  # empty for classes without declared fields
    slots: Mapping[str, MemberDescriptorType]  # get and set attributes in slots, without code of the class
    attributes: Callable[[Any], dict[str, Any]] | None  # returns the `__dict__` of an instance, without its code
    derived: frozenset[str]  # names in `__dict__` that can be computed again


# By `id`, because comparing classes may run their code.
_shapes: dict[int, Shape] = {}


def shape_of(cls: type) -> Shape:
    """Return the facts about `cls`."""
    shape = _shapes.get(id(cls))
    if shape is None:
        family = next((family for family, fits in _FAMILIES if fits(cls)), None)
        dicts = (vars(base).get("__dict__") for base in cls.__mro__)
        attributes = next((each.__get__ for each in dicts if type(each) is GetSetDescriptorType), None)
        named = chain.from_iterable(vars(base).items() for base in cls.__mro__)
        derived = _BOOKKEEPING | {name for name, value in named if issubclass(type(value), cached_property)}
        names = cls.__module__, cls.__qualname__
        shape = Shape(*names, family, _fields(cls, family), dict(_slots(cls)), attributes, derived)
        _shapes[id(cls)] = shape
        finalize(cls, _shapes.pop, id(cls), None).atexit = False
    return shape


def state_of(value: object, shape: Shape) -> dict[str, Any]:
    """Return the attributes of `value`: its `__dict__` and slots, except derived ones."""
    held = getattr(value, "__dict__", {})
    state = {**held} if shape.derived.isdisjoint(held) else {k: v for k, v in held.items() if k not in shape.derived}
    for name, slot in shape.slots.items():
        with suppress(AttributeError):  # it is not set
            state[name] = slot.__get__(value)
    return state


def restore(made: Any, state: dict[str, Any], shape: Shape) -> None:
    """Set the attributes of a bare object, bypassing setters."""
    loose = state
    if shape.slots:
        loose = {name: part for name, part in state.items() if name not in shape.slots}
        for name in state.keys() & shape.slots.keys():
            shape.slots[name].__set__(made, state[name])
    if loose:
        attributes_of(made, shape).update(loose)


def attributes_of(made: Any, shape: Shape) -> dict[str, Any]:
    """Return the `__dict__` of an object without running code of its class."""
    if shape.attributes is None:
        raise TypeError(f"a {shape.qualname} has no attributes")
    return shape.attributes(made)


def are_spread(keys: Collection[Any]) -> bool:
    """Return whether at most `MOST_ALIKE` keys have the same hash."""
    return len(keys) <= MOST_ALIKE or max(Counter(map(hash, keys)).values()) <= MOST_ALIKE


def is_names(names: Iterable[Any]) -> bool:
    """Return whether all names are `str`, as hashing other objects could run code."""
    return {str}.issuperset(map(type, names))


def _fields(cls: Any, family: Record | Leaf | None) -> frozenset[str]:
    if family is Record.MODEL:
        return frozenset(cls.model_fields)
    if family is Record.MODEL_V1:
        return frozenset(cls.__fields__)
    if family is Record.DATACLASS:
        return frozenset(field.name for field in dataclasses.fields(cls))
    return frozenset(cls._fields) if family is Record.NAMEDTUPLE else frozenset()


def _slots(cls: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    # Including attributes of builtin exceptions other than their arguments, such as `OSError.filename`.
    for base in reversed(cls.__mro__):
        # From Python 3.13 on, defaultdict is a heap type, too; its factory is part of its content.
        if (base.__flags__ & _HEAP_TYPE and base not in BASES) or base in BUILTIN_ERRORS - _FIXED:
            for name, each in vars(base).items():
                if type(each) is MemberDescriptorType and name not in _NOT_DATA and not name.startswith("__"):
                    yield name, each


def base_of(cls: type) -> Any:
    """Return the builtin that `cls` extends, or `None`."""
    return next((base for base in BASES if issubclass(cls, base)), None)


def error_of(cls: type) -> Any:
    """Return the builtin exception that `cls` is or extends."""
    return next(base for base in cls.__mro__ if base in BUILTIN_ERRORS)


_extends = type.__subclasscheck__
"""Replaces `issubclass`, which may visit thousands of subclasses and run their code."""


def _can_be_bare(cls: type, base: Any) -> bool:
    # Predicts whether `base.__new__(cls)` works, without an instance whose `__del__` would run. Types written in C
    # (os.stat_result, numpy's scalars) refuse the constructor of their base.
    made_by: Any = cls
    while type(made_by.__new__) is not BuiltinFunctionType:
        made_by = made_by.__base__
    return made_by.__new__ is base.__new__ and not isabstract(cls)


# The first match is used: an enumeration may also be a str, and a dataclass may also be a dict.
_FAMILIES: tuple[tuple[Record | Leaf, Callable[[type], bool]], ...] = (
    (Leaf.ENUM, lambda cls: issubclass(cls, Enum)),
    (Record.EXCEPTION, lambda cls: issubclass(cls, BaseException) and _can_be_bare(cls, error_of(cls))),
    (Record.SECRET, lambda cls: cls in (pydantic.SecretStr, pydantic.SecretBytes)),
    (Record.NDARRAY, lambda cls: cls is getattr(sys.modules.get("numpy"), "ndarray", None)),
    (Record.SCALAR, lambda cls: (numpy := sys.modules.get("numpy")) is not None and issubclass(cls, numpy.generic)),
    (Record.NAMEDTUPLE, lambda cls: issubclass(cls, tuple) and hasattr(cls, "_fields") and _can_be_bare(cls, tuple)),
    (Record.BUILTIN, lambda cls: (base := base_of(cls)) is not None and base is not cls and _can_be_bare(cls, base)),
    (Record.MODEL, lambda cls: _extends(pydantic.BaseModel, cls)),
    (
        Record.MODEL_V1,
        lambda cls: (v1 := sys.modules.get("pydantic.v1.main")) is not None and _extends(v1.BaseModel, cls),
    ),
    (Record.DATACLASS, lambda cls: dataclasses.is_dataclass(cls) and _can_be_bare(cls, object)),
    (Record.SLOTTED, lambda cls: (cls.__module__, cls.__qualname__) in SLOTTED),
)
