"""A value of every storable kind, and a check that each is restored unchanged."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import ipaddress
import math
import operator
import os
import pathlib
import re
import threading
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import pydantic
import pydantic.v1
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.errors import GraphInterrupt
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, PregelTask, Send, StateSnapshot, TimeoutPolicy

from langgraph_keel import CheckpointConflict
from langgraph_keel.engine.encoding.bodies import array_header
from langgraph_keel.engine.serde.serializer import KeelSerializer

KEEL = KeelSerializer()


def there_and_back(value: Any, serde: KeelSerializer = KEEL) -> Any:
    back = serde.loads_typed(serde.dumps_typed(value))
    item = serde.unpack_items(array_header(1) + serde.pack_item(value))
    assert len(item) == 1
    assert_same(item[0], back)
    return back


def assert_same(back: Any, put: Any, path: str = "value") -> None:
    """Fail unless `back` equals `put`: type for type, part by part, in order."""
    assert type(back) is type(put), path
    if isinstance(put, dict):
        assert len(back) == len(put), path
        for (key, part), (key_put, part_put) in zip(dict.items(back), dict.items(put), strict=True):
            assert_same(key, key_put, f"{path} key {key_put!r}")
            assert_same(part, part_put, f"{path}[{key_put!r}]")
    elif isinstance(put, (list, tuple, deque)):
        assert len(back) == len(put), path
        for i, (part, part_put) in enumerate(zip(back, put, strict=True)):
            assert_same(part, part_put, f"{path}[{i}]")
    elif isinstance(put, (set, frozenset)):
        assert sorted(map(typed, back)) == sorted(map(typed, put)), path
    elif isinstance(put, float):
        assert repr(float(back)) == repr(float(put)), path
    elif isinstance(put, np.ndarray):
        assert back.dtype == put.dtype, path
        assert back.shape == put.shape, path
        assert back.tobytes() == put.tobytes(), path
        assert back.flags.writeable, path
    elif isinstance(put, complex):
        assert repr(back) == repr(put), path
    elif isinstance(put, BaseException):
        assert_same(back.args, put.args, f"{path}.args")
        assert str(back) == str(put), path
        assert_same(back.__cause__, put.__cause__, f"{path}.__cause__")
        for name in (
            "errno",
            "strerror",
            "filename",
            "filename2",
            "name",
            "path",
            "start",
            "object",
            "lineno",
            "value",
        ):
            assert_same(getattr(back, name, None), getattr(put, name, None), f"{path}.{name}")
    elif not isinstance(put, (Decimal, np.generic)):
        assert back == put, path
    if hasattr(put, "__dict__") and not isinstance(put, enum.Enum):
        state = {name: part for name, part in vars(put).items() if name != "__orig_class__"}
        assert_same(vars(back), state, f"{path}.__dict__")


def typed(value: Any) -> str:
    """Describe a hashable value, independently of the order of the sets in it."""
    if isinstance(value, frozenset):
        parts = sorted(map(typed, value))
    elif isinstance(value, tuple):
        parts = list(map(typed, value))
    elif dataclasses.is_dataclass(value):
        parts = [typed(getattr(value, field.name)) for field in dataclasses.fields(value)]
    else:
        parts = [repr(value)]
    return f"{type(value).__qualname__}({', '.join(parts)})"


class Colour(enum.Enum):
    RED = 1
    ALSO_RED = 1
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class OldWord(str, enum.Enum):  # noqa: UP042 - the form that programs used before StrEnum
    A = "a"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Outer:
    class Shade(enum.Enum):
        DARK = object()  # by member, not by value

    @dataclasses.dataclass
    class Inner:
        x: int

        class Model(pydantic.BaseModel):
            y: int


calls: list[str] = []


@dataclasses.dataclass
class Plain:
    a: int
    b: list[Any] = dataclasses.field(default_factory=list)
    made: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        calls.append("__post_init__")


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: str = "b"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSlotted:
    a: Any


@dataclasses.dataclass
class Derived(Plain):
    c: Any = None

    @functools.cached_property
    def lock(self) -> Any:
        return threading.Lock()


@dataclasses.dataclass(eq=False)
class WithLock:
    a: int

    def __post_init__(self) -> None:
        self.lock = threading.Lock()


T = TypeVar("T")


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


class Point(NamedTuple):
    x: int
    y: Any = None


OldPoint = collections.namedtuple("OldPoint", "x y")


class Basket(list[Any]):
    label: str


class Table(dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("the content is restored by dict's own methods")


class Text(str):
    __slots__ = ()


class Number(int):
    def __new__(cls, value: int, unit: str) -> Number:
        made = super().__new__(cls, value)
        made.unit = unit
        return made

    unit: str


class Real(float):
    pass


class Blob(bytes):
    pass


class Pair(tuple[Any, ...]):
    __slots__ = ()


class Bag(set[Any]):
    pass


class Tally(Counter[str]):
    pass


class Rows(defaultdict[str, list[int]]):
    pass


class Ring(deque[int]):
    pass


class Model(pydantic.BaseModel):
    a: int
    b: Any = None
    c: list[int] = [1]
    _seen: int = pydantic.PrivateAttr(default=0)


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = 0


class Aliased(pydantic.BaseModel):
    a: int = pydantic.Field(alias="theA")


class Generic_(pydantic.BaseModel, Generic[T]):  # noqa: N801
    a: T


class OldModel(pydantic.v1.BaseModel):
    a: int
    b: Any = None


class WithClient(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    name: str
    client: Any = pydantic.Field(default=None, exclude=True)


def model_with_everything() -> Model:
    made = Model(a=1, b={"k": (1, Frozen(2))})
    made._seen = 7
    return made


def loose(**fields: Any) -> Loose:
    return Loose(**fields)


def basket() -> Basket:
    made = Basket([1, (2,)])
    made.label = "fruit"
    return made


def ai() -> AIMessage:
    call = {"name": "f", "args": {"x": (1, 2)}, "id": "1", "type": "tool_call"}
    return AIMessage("hi", id="1", tool_calls=[call], custom={"deep": 1})


NOW = datetime(2024, 10, 27, 2, 30, 1, 5)


BERLIN = ZoneInfo("Europe/Berlin")


class Refused(Exception):
    def __init__(self, what: str, *, code: int) -> None:
        super().__init__(f"refused: {what}")
        self.code = code


class Lost(ConnectionError):
    pass


@dataclasses.dataclass
class Failed(Exception):
    step: int
    cause: Any = None


def with_note(error: BaseException) -> BaseException:
    error.add_note("a note")
    return error


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def attribute_error() -> AttributeError:
    try:
        operator.attrgetter("gone")(os)
    except AttributeError as error:
        return error
    raise AssertionError


ERRORS: list[BaseException] = [
    ValueError("x"), ValueError(), KeyError((1, "k")), Exception("a", 2, [b"x"]), OSError("text"), OSError(2, "g", "f"),
    FileNotFoundError(2, "gone", "f", None, "g"), Lost(104, "reset"), BlockingIOError(11, "busy", 5), StopIteration(5),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeEncodeError("ascii", "\xe9", 0, 1, "bad"),
    SyntaxError("bad", ("f.py", 1, 2, "x =", 1, 3)), ImportError("no", name="mod", path="/p"), SystemExit(3),
    KeyboardInterrupt(), Refused("pay", code=7), Failed(3, ValueError("why")), with_note(RuntimeError("r")),
    ExceptionGroup("some", [ValueError(1), TypeError("t")]), BaseExceptionGroup("all", [KeyboardInterrupt()]),
    caused(ValueError("v"), caused(Refused("pay", code=7), KeyError(1))), NameError("no x", name="x"),
    attribute_error(), GraphInterrupt([Interrupt("?", id="1")]),
    CheckpointConflict("t", "", None, "1", "2"),
]  # fmt: skip


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**63 - 1, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**100, -(10**100),
    0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 5e-324,
    "", "a", "łß🙂", "a\0b", "\ud800", "x" * 70000,
    b"", b"abc", b"\xc4" * 300, bytearray(b""), bytearray(b"abc"), [bytearray(b"a")], {"k": (bytearray(b"a"),)},
    [], [[]], (), ((),), [1, (2, [3, (4,)])], {}, {"a": {}},
    {1: "int", "1": "str", True + 1: "two", None: 0, b"b": 1, 1.5: 2, (1, ("a",)): 3, Colour.RED: 4, NOW: 5,
     uuid.UUID(int=1): 6, frozenset({1}): 7, "\udc80": 8, Word.A: 9, Level.LOW + 5: 10, Point(1, 2): 11},
    {True: 1}, {1.0: 1}, {Level.LOW: 1}, {"b": 1, "a": 2}, {"a": {2: [{3: bytearray(b"x")}]}},
    set(), {1, 2, 3}, {"a", 1, None, (1, 2)}, frozenset(), frozenset({frozenset({1}), "x"}), {1.5}, {True},
    deque(), deque([1, (2,)], maxlen=3), deque([1], maxlen=1),
    OrderedDict([("b", 1), ("a", (2,))]), OrderedDict({1: 2}), Counter("abca"), Counter({1: -1}),
    defaultdict(list, {"a": [1]}), defaultdict(None, {1: 2}), defaultdict(int), defaultdict(dict),
    Colour.RED, Colour.ALSO_RED, Colour.PAIR, Level.LOW, Word.A, OldWord.A, Right.READ, Right.READ | Right.WRITE,
    Right(0), Outer.Shade.DARK, [Word.A, "a", Level.LOW, 1],
    Plain(1, [(2,)]), Frozen((1,)), Slotted({1: 2}), FrozenSlotted(a={1, 2}), Outer.Inner(3), Derived(1, c=b"x"),
    Box[int](5), Frozen(Frozen(Slotted(Plain(1)))), [Frozen(bytearray(b"x"))],
    model_with_everything(), loose(a=1, extra=(1, 2)), loose(x=bytearray(b"1")), Aliased(theA=3),
    Generic_[int](a=1), Outer.Inner.Model(y=1), Model.model_construct(a="not an int"), Model.model_construct(),
    OldModel(a=1, b=(1, 2)),
    Point(1), Point(1, {2: 3}), OldPoint(1, 2), [Point(1, bytearray(b"x"))],
    np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(10)[::2], np.array(5),
    np.zeros((0, 3)), np.array(["2024-01-01", "NaT"], dtype="datetime64[D]"), np.array([1], dtype=">i4"),
    np.array([(1, 2.5, "x")], dtype=[("a", "i4"), ("b", "f8"), ("c", "U3")]), np.array([True]), np.array(["ab"]),
    np.array([(1, [1, 2])], dtype=np.dtype([("a", "u1"), ("b", "<f4", (2,))], align=True)), np.array([1j]),
    np.float64(1.5), np.float32("nan"), np.int8(-3), np.bool_(True), np.datetime64("2024-01-01T00:00", "m"),
    np.str_("a\0"), np.bytes_(b"a\0"), np.timedelta64(5, "s"), np.complex64(1j), {np.int64(1): np.float64(2)},
    NOW, NOW.replace(fold=1), NOW.replace(tzinfo=UTC), NOW.replace(tzinfo=timezone(timedelta(hours=-3, seconds=7))),
    NOW.replace(tzinfo=BERLIN), NOW.replace(tzinfo=BERLIN, fold=1), datetime.min, datetime.max,
    NOW.replace(tzinfo=timezone(timedelta(hours=1), "CET")), date(2024, 2, 29), time(1, 2, 3, 4), time(1, fold=1),
    time(1, tzinfo=UTC), time(1, tzinfo=BERLIN), timedelta(days=-1, microseconds=1), timedelta.max, timedelta.min,
    UTC, timezone(timedelta(hours=1), "a|b"), BERLIN, ZoneInfo("UTC"),
    uuid.UUID("12345678123456781234567812345678"), Decimal("1.10"), Fraction(-1, 3), Fraction(10**40, 7),
    Decimal("NaN"), Decimal("-0E-9"), Decimal("sNaN1"),
    pathlib.Path("/a/b"), pathlib.PurePosixPath("a|b"), pathlib.PureWindowsPath("C:\\x"), pathlib.Path("\udc80"),
    re.compile("a(?P<x>b)", re.I | re.M), re.compile(b"x", re.S), re.compile("\ud800"),
    ipaddress.ip_address("1.2.3.4"), ipaddress.ip_address("::1%eth0"), ipaddress.ip_network("10.0.0.0/8"),
    ipaddress.ip_interface("10.0.0.1/8"), ipaddress.ip_network("fe80::/64"), ipaddress.ip_interface("fe80::1/64"),
    1 + 2j, complex(-0.0, math.nan), range(3), range(10**30, 0, -7),
    *ERRORS,
    Send("n", {"a": (1,)}), Send("n", [HumanMessage("x")], timeout=3.5), Interrupt((1,), id="i"),
    Command(update={"m": [HumanMessage("x")]}, goto=[Send("a", 1), "b"], resume={"i": (1,)}), Command(),
    Overwrite((1, 2)), TimeoutPolicy(run_timeout=1.0), PregelTask("i", "n", ("p",)), _DeltaSnapshot([1, (2,)]),
    StateSnapshot({"a": 1}, ("n",), {"configurable": {}}, None, None, None, (), ()),
    Item(value={"a": (1,)}, key="k", namespace=("a", "b"), created_at=NOW, updated_at=NOW),
    Document("text", metadata={"a": (1,)}, id="1"), HumanMessage("x"), ai(), [ai(), {"m": ai()}],
    ToolMessage("x", tool_call_id="1", artifact={"a": bytearray(b"x")}), ai().text,
    basket(), Text("a\ud800"), Number(10**30, "kg"), Real(-0.0), Blob(b"x"), Pair((1, [2])), Bag({1, (2,)}),
    Tally("aab"), Rows(list, a=[1]), Ring([1, 2], maxlen=5), [Text("a"), "a", Real(1), 1.0],
]  # fmt: skip
