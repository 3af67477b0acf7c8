"""Which classes a stored name may stand for, and what is known about each.

A stored value names its class as `(module, qualname)`. The name is looked up among what the program has
already imported and leads to no import, but for the names in a list that stands here (`_IMPORTABLE`). It must turn out
to be a data class: a class whose instances are rebuilt without running code of its own. Anything else is refused by
name.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, IntEnum
from functools import cached_property
from importlib import import_module
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from langchain_core import messages

from langgraph_keel._langgraph import DELTA_SNAPSHOT, SAFE_MSGPACK_TYPES
from langgraph_keel.engine.serde.moved import MOVED_NAMES, present_name
from langgraph_keel.errors import RefusedType

# Loaded by langchain-core; taken from there because the engine itself depends on LangChain's messages only.
pydantic: Any = sys.modules["pydantic"]


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
    """Ext codes that stand first in an array and say what the rest of it describes. Never renumber.

    An array is used, and not an Ext that holds packed bytes, so that the parts are packed and unpacked in C
    with the rest, and so that the depth of a value is bounded once and not once a record.
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


# Subclasses of these keep their content by the base's own methods. The first base that fits counts, so the
# derived dicts stand before dict.
BASES: tuple[type, ...] = (
    OrderedDict,
    defaultdict,
    Counter,
    dict,
    list,
    deque,
    set,
    frozenset,
    tuple,
    str,
    int,
    float,
    complex,
    bytes,
    bytearray,
)
BASE_BY_NAME = {base.__name__: base for base in BASES}

FACTORIES: dict[str, type] = {
    factory.__name__: factory for factory in (*BASES, bool, object) if factory is not defaultdict
}

# The order is part of the format: append only.
MESSAGES: tuple[type, ...] = (
    messages.HumanMessage,
    messages.AIMessage,
    messages.SystemMessage,
    messages.ToolMessage,
    messages.ChatMessage,
    messages.FunctionMessage,
    messages.RemoveMessage,
    messages.HumanMessageChunk,
    messages.AIMessageChunk,
    messages.SystemMessageChunk,
    messages.ToolMessageChunk,
    messages.ChatMessageChunk,
    messages.FunctionMessageChunk,
)
MESSAGE_CODES: dict[type, int] = {cls: code for code, cls in enumerate(MESSAGES)}

# Plain classes of LangGraph that are neither dataclass nor pydantic, and hold nothing but their slots.
SLOTTED: frozenset[tuple[str, str]] = frozenset(
    {
        ("langgraph.types", "Send"),
        ("langgraph.store.base", "Item"),
        ("langgraph.store.base", "SearchItem"),
    }
)

# Plain data that LangGraph's own list leaves out because its serializer never names it.
_SAFE_TOO: frozenset[tuple[str, str]] = SLOTTED | {
    DELTA_SNAPSHOT,
    ("langchain_core.messages.base", "TextAccessor"),
}
SAFE_TYPES: frozenset[tuple[str, ...]] = SAFE_MSGPACK_TYPES | _SAFE_TOO

# Data of LangGraph, LangChain and Keel: revived whatever the program has imported. To import all of it beforehand would
# take longer than a command of `keel` does.
_IMPORTABLE: frozenset[tuple[str, ...]] = SAFE_TYPES.union(MOVED_NAMES.values())

# Attributes that Python or a library puts on an instance and that are not the program's state.
_BOOKKEEPING = frozenset({"__orig_class__", "__dict__", "__weakref__"})

# Classes by name as this process saw them: the only way back to a class made inside a function.
_learned: WeakValueDictionary[tuple[str, str], type] = WeakValueDictionary()


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What the serializer needs to know about a class.

    Attributes:
        module: Where the class says it was defined.
        qualname: Its qualified name there.
        family: How its instances are stored; `None` if they are not.
        fields: Names of its fields; empty for classes without declared fields.
        slots: Attribute names kept in slots.
        derived: Names in an instance's `__dict__` that can be computed again.
    """

    module: str
    qualname: str
    family: Record | Leaf | None
    fields: frozenset[str]
    slots: tuple[str, ...]
    derived: frozenset[str]


_shapes: WeakKeyDictionary[type, Shape] = WeakKeyDictionary()


def shape_of(cls: type) -> Shape:
    """Return what is known about `cls`, and learn its name for loads in this process."""
    shape = _shapes.get(cls)
    if shape is None:
        family, slots = family_of(cls), tuple(_slots(cls))
        shape = Shape(cls.__module__, cls.__qualname__, family, _fields(cls, family), slots, _derive(cls))
        _shapes[cls] = shape
        learn(cls)
    return shape


def learn(cls: type) -> None:
    """Remember `cls` by name, so that it can be revived even if no module holds it."""
    _learned[cls.__module__, cls.__qualname__] = cls


def state_of(value: object, shape: Shape) -> dict[str, Any]:
    """Return the attributes that make up `value`: its `__dict__` and its slots, without what is derived."""
    state = {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in shape.derived}
    for name in shape.slots:
        if hasattr(value, name):
            state[name] = getattr(value, name)
    return state


def construct(cls: Any, fields: dict[str, Any]) -> Any:
    """Call the data class `cls` with those of the stored `fields` that it takes today."""
    family = shape_of(cls).family
    if family is Record.MODEL:
        return cls(**{_input_name(cls, name): part for name, part in fields.items()})
    if family is not Record.DATACLASS:
        return cls(**fields)
    declared = {field.name: field.init for field in dataclasses.fields(cls) if field.name in fields}
    made = cls(**{name: fields[name] for name, is_argument in declared.items() if is_argument})
    for name, is_argument in declared.items():
        if not is_argument:
            object.__setattr__(made, name, fields[name])
    return made


def _input_name(cls: Any, name: str) -> str:
    alias = getattr(cls.model_fields.get(name), "validation_alias", None)
    return alias if isinstance(alias, str) else name


def _fields(cls: Any, family: Record | Leaf | None) -> frozenset[str]:
    if family is Record.MODEL:
        return frozenset(cls.model_fields)
    if family is Record.MODEL_V1:
        return frozenset(cls.__fields__)
    if family is Record.DATACLASS:
        return frozenset(field.name for field in dataclasses.fields(cls))
    return frozenset(cls._fields) if family is Record.NAMEDTUPLE else frozenset()


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        declared = vars(base).get("__slots__", ())
        for name in (declared,) if isinstance(declared, str) else declared:
            if name.startswith("__") and not name.endswith("__"):
                yield f"_{base.__name__.lstrip('_')}{name}"
            elif not (name.startswith("__") and name.endswith("__")):
                yield name


def _derive(cls: type) -> frozenset[str]:
    attributes = chain.from_iterable(vars(base).items() for base in cls.__mro__)
    return _BOOKKEEPING | {name for name, value in attributes if isinstance(value, cached_property)}


def family_of(cls: type) -> Record | Leaf | None:
    """Return how instances of a class that has no code of its own are stored; `None` if they are not."""
    if issubclass(cls, BaseException):
        return None
    return next((family for family, fits in _FAMILIES if fits(cls)), None)


def base_of(cls: type) -> Any:
    """Return the builtin that `cls` extends, or `None`."""
    return next((base for base in BASES if issubclass(cls, base)), None)


def _is_array(cls: type) -> bool:
    return cls is getattr(sys.modules.get("numpy"), "ndarray", None)


def _is_scalar(cls: type) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(cls, numpy.generic)


def _is_model(cls: type) -> bool:
    return issubclass(cls, pydantic.BaseModel)


def _is_model_v1(cls: type) -> bool:
    module = sys.modules.get("pydantic.v1.main")  # pydantic 2 still ships it
    return module is not None and issubclass(cls, module.BaseModel)


def _is_dataclass(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) and _can_be_bare(cls, object)


def _is_enum(cls: type) -> bool:
    return issubclass(cls, Enum)


def _is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and _can_be_bare(cls, tuple)


def _has_slots(cls: type) -> bool:
    return (cls.__module__, cls.__qualname__) in SLOTTED


def _is_extension(cls: type) -> bool:
    base = base_of(cls)
    return base is not None and base is not cls and _can_be_bare(cls, base)


def _can_be_bare(cls: type, base: Any) -> bool:
    # Types written in C (os.stat_result, numpy's scalars) refuse to be made by the constructor of their base.
    try:
        base.__new__(cls)
    except TypeError:
        return False
    return True


# The first that fits counts: an enumeration may also be a str, and a dataclass may also be a dict.
_FAMILIES: tuple[tuple[Record | Leaf, Callable[[type], bool]], ...] = (
    (Leaf.ENUM, _is_enum),
    (Record.NDARRAY, _is_array),
    (Record.SCALAR, _is_scalar),
    (Record.NAMEDTUPLE, _is_namedtuple),
    (Record.BUILTIN, _is_extension),
    (Record.MODEL, _is_model),
    (Record.MODEL_V1, _is_model_v1),
    (Record.DATACLASS, _is_dataclass),
    (Record.SLOTTED, _has_slots),
)


class TypePolicy:
    """Which named classes may be revived.

    Attributes:
        allowed: Names as `(module, name)`, next to the safe ones; `None` allows every data class there is.
    """

    __slots__ = ("allowed",)

    def __init__(self, allowed: frozenset[tuple[str, ...]] | None) -> None:
        self.allowed = allowed

    @classmethod
    def of(cls, types: Iterable[type | tuple[str, ...]] | None, strict: bool) -> TypePolicy:
        """Return the policy for the arguments of a serializer."""
        if types is None:
            return cls(frozenset() if strict else None)
        return cls(frozenset(chain.from_iterable(map(_names, types))))

    def merge(self, extra: Iterable[type | tuple[str, ...]]) -> TypePolicy:
        """Return this policy with more names allowed; itself if that changes nothing."""
        if self.allowed is None:
            return self
        allowed = self.allowed.union(chain.from_iterable(map(_names, extra)))
        return self if allowed == self.allowed else TypePolicy(allowed)

    def resolve(self, module: Any, qualname: Any, family: Record | Leaf) -> Any:
        """Return the class that a stored name stands for.

        Args:
            module: The stored module name.
            qualname: The stored qualified name.
            family: How its instances were stored; the class must still be of that kind.

        Raises:
            RefusedType: The name is not allowed, not there, or not a data class of that kind.
        """
        module, qualname = present_name(module, qualname)
        name = f"{module}.{qualname}"
        if not self._allows(module, qualname):
            raise RefusedType(name, f"not allowed here: add it to the serializer's types=[...], as {name}")
        found = _find(module, qualname)
        if found is None:
            reason = "this program has no such class: import its module before reading, or pass it in types=[...]"
            raise RefusedType(name, reason)
        if not isinstance(found, type) or shape_of(found).family is not family:
            raise RefusedType(name, "it is not (or no longer) a data class of the kind that was stored")
        return found

    def _allows(self, module: str, qualname: str) -> bool:
        if self.allowed is None:
            return True
        # LangGraph's allowlists hold the bare name of a nested class.
        names = ((module, qualname), (module, qualname.rpartition(".")[2]))
        return any(name in SAFE_TYPES or name in self.allowed for name in names)


def _names(entry: type | tuple[str, ...]) -> list[tuple[str, ...]]:
    if not isinstance(entry, type):
        return [present_name(*entry) if len(entry) == 2 else tuple(entry)]
    learn(entry)
    return [(entry.__module__, entry.__qualname__), (entry.__module__, entry.__name__)]


def _find(module: Any, qualname: Any) -> Any:
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise TypeError("a class name must be text")
    found = _walk(sys.modules.get(module), qualname)
    if found is None:
        found = _learned.get((module, qualname))
    if found is None and (module, qualname) in _IMPORTABLE:
        found = _import(module, qualname)
    return found


def _import(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name, None)
    except ImportError:  # another version of a library, or one that is not installed
        return None


def _walk(holder: Any, qualname: str) -> Any:
    # Not `getattr`: a module's `__getattr__` may import, and a descriptor may run code.
    if holder is None:
        return None
    names = object.__getattribute__(holder, "__dict__")
    if qualname in names:  # first, because pydantic's `Model[a.B]` has dots of its own
        return names[qualname]
    head, _, rest = qualname.partition(".")
    inner = names.get(head)
    return _walk(inner, rest) if rest and isinstance(inner, type) else None
