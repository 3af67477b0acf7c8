"""The serializer, value by value: what comes back, what is refused, and what a stored name can reach."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import ipaddress
import math
import os
import pathlib
import re
import subprocess
import sys
import threading
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import ormsgpack
import pydantic
import pydantic.v1
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item, SearchItem
from langgraph.types import Command, Interrupt, Overwrite, PregelTask, Send, StateSnapshot, TimeoutPolicy

from langgraph_keel.core.serde import KeelSerializer, array_header, encode
from langgraph_keel.core.types import Leaf, Record
from langgraph_keel.errors import CorruptStore, RefusedType, UnstorableValue

KEEL = KeelSerializer()


def there_and_back(value: Any, serde: KeelSerializer = KEEL) -> Any:
    back = serde.loads_typed(serde.dumps_typed(value))
    item = serde.unpack_items(array_header(1) + serde.pack_item(value))
    assert len(item) == 1
    assert_same(item[0], back)
    return back


def assert_same(back: Any, put: Any, path: str = "value") -> None:
    """Fail unless `back` is what `put` is: type for type, part by part, in order."""
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
        assert sorted(map(typed, back), key=repr) == sorted(map(typed, put), key=repr), path
    elif isinstance(put, float):
        assert repr(float(back)) == repr(float(put)), path
    elif isinstance(put, np.ndarray):
        assert back.dtype == put.dtype, path
        assert back.shape == put.shape, path
        assert back.tobytes() == put.tobytes(), path
        assert back.flags.writeable, path
    elif isinstance(put, complex):
        assert repr(back) == repr(put), path
    elif not isinstance(put, (Decimal, np.generic)):
        assert back == put, path
    if hasattr(put, "__dict__") and not isinstance(put, enum.Enum):
        state = {name: part for name, part in vars(put).items() if name != "__orig_class__"}
        assert_same(vars(back), state, f"{path}.__dict__")


def typed(value: Any) -> tuple[str, Any]:
    """A form of `value` that can be sorted, and tells `1` from `True` in nested sets too."""
    if not isinstance(value, frozenset):
        return type(value).__qualname__, repr(value)
    return type(value).__qualname__, tuple(sorted(map(typed, value), key=repr))


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


def basket() -> Basket:
    made = Basket([1, (2,)])
    made.label = "fruit"
    return made


def ai() -> AIMessage:
    call = {"name": "f", "args": {"x": (1, 2)}, "id": "1", "type": "tool_call"}
    return AIMessage("hi", id="1", tool_calls=[call], custom={"deep": 1})


NOW = datetime(2024, 10, 27, 2, 30, 1, 5)
BERLIN = ZoneInfo("Europe/Berlin")

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
    model_with_everything(), Loose(a=1, extra=(1, 2)), Loose(**{"x": bytearray(b"1")}), Aliased(theA=3),
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
    uuid.UUID("12345678123456781234567812345678"), Decimal("1.10"), Decimal("NaN"), Decimal("-0E-9"), Decimal("sNaN1"),
    pathlib.Path("/a/b"), pathlib.PurePosixPath("a|b"), pathlib.PureWindowsPath("C:\\x"), pathlib.Path("\udc80"),
    re.compile("a(?P<x>b)", re.I | re.M), re.compile(b"x", re.S), re.compile("\ud800"),
    ipaddress.ip_address("1.2.3.4"), ipaddress.ip_address("::1%eth0"), ipaddress.ip_network("10.0.0.0/8"),
    ipaddress.ip_interface("10.0.0.1/8"), ipaddress.ip_network("fe80::/64"), ipaddress.ip_interface("fe80::1/64"),
    1 + 2j, complex(-0.0, math.nan), range(3), range(10**30, 0, -7),
    pydantic.SecretStr("s"), pydantic.SecretBytes(b"s"),
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


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}:{ascii(value)[:40]}")
def test_what_comes_back_is_what_was_put(value: Any) -> None:
    calls.clear()
    back = there_and_back(value)
    assert_same(back, value)
    assert calls == []


def test_the_serializer_is_one_to_langgraph() -> None:
    assert isinstance(KEEL, SerializerProtocol)
    assert KEEL.dumps_typed(1)[0] == "keel"


def test_a_dict_subclass_keeps_its_content_past_its_own_methods() -> None:
    table = Table({1: (2,), "a": 3})
    assert_same(there_and_back(table), table)


def test_slots_keep_unset_fields_unset() -> None:
    value = Slotted.__new__(Slotted)
    value.b = "only"
    back = there_and_back_without_compare(value)
    assert back.b == "only"
    assert not hasattr(back, "a")


def there_and_back_without_compare(value: Any, serde: KeelSerializer = KEEL) -> Any:
    return serde.unpack(serde.pack(value))


def test_search_items_keep_their_score() -> None:
    value = SearchItem(("a",), "k", {"v": 1}, NOW, NOW, score=0.5)
    back = there_and_back_without_compare(value)
    assert type(back) is SearchItem
    assert (back.score, back.namespace, back.value, back.created_at) == (0.5, ("a",), {"v": 1}, NOW)


def test_pydantic_state_comes_back_whole() -> None:
    value = model_with_everything()
    back = there_and_back(value)
    assert back._seen == 7
    assert back.model_fields_set == {"a", "b"}
    assert back.__pydantic_extra__ is None
    loose = there_and_back(Loose(x=1))
    assert loose.model_extra == {"x": 1}
    assert loose.model_fields_set == {"x"}


def test_arrays_keep_their_memory_order() -> None:
    assert there_and_back(np.asfortranarray(np.ones((2, 3)))).flags.f_contiguous
    assert there_and_back(np.ones((2, 3))).flags.c_contiguous


def test_an_exception_is_stored_as_langgraph_stores_it() -> None:
    error = ValueError("bad", 1)
    assert there_and_back_without_compare([error]) == [repr(error)]
    theirs = JsonPlusSerializer()
    assert there_and_back_without_compare(error) == theirs.loads_typed(theirs.dumps_typed(error))


def test_neighbours_do_not_change_the_bytes_of_a_value() -> None:
    for value in VALUES:
        assert encode([value, bytearray(b"x")]) == b"\x92" + encode(value) + encode(bytearray(b"x"))


# --- What is made again instead of restored ---


def test_a_client_beside_the_fields_is_made_again() -> None:
    back = there_and_back_without_compare({"m": WithClient(name="n", client=threading.Lock())})["m"]
    assert (back.name, back.client) == ("n", None)
    lock = there_and_back_without_compare((WithLock(5),))[0]
    assert lock.a == 5
    assert lock.lock.acquire(blocking=False)


def test_a_cached_property_is_not_state() -> None:
    value = Derived(1)
    assert value.lock
    assert "lock" not in vars(there_and_back_without_compare(value))


def module_with(monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    module = types.ModuleType("app_state")
    vars(module).update(names)
    for value in names.values():
        value.__module__, value.__qualname__ = "app_state", "State"
    monkeypatch.setitem(sys.modules, "app_state", module)


def test_a_dataclass_that_changed_since_gets_its_new_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    old = dataclasses.make_dataclass("State", [("a", int), ("gone", int)])
    new = dataclasses.make_dataclass("State", [("a", int), ("b", list[int], dataclasses.field(default_factory=list))])
    module_with(monkeypatch, State=old)
    stored = KEEL.pack(old(1, 2))
    module_with(monkeypatch, State=new)
    assert KEEL.unpack(stored) == new(1, [])


def test_a_model_that_changed_since_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    old = pydantic.create_model("State", a=(str, ...))
    new = pydantic.create_model("State", a=(int, ...), b=(int, 5))
    module_with(monkeypatch, State=old)
    good, bad = KEEL.pack(old(a="1")), KEEL.pack(old(a="x"))
    module_with(monkeypatch, State=new)
    assert KEEL.unpack(good) == new(a=1, b=5)
    with pytest.raises(RefusedType, match=r"app_state\.State: the class no longer accepts"):
        KEEL.unpack(bad)


def test_an_enumeration_without_the_member_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = enum.Enum("State", {"A": 1, "B": 2}), enum.Enum("State", {"A": 1})
    module_with(monkeypatch, State=old)
    stored = KEEL.pack(old["B"])
    module_with(monkeypatch, State=new)
    with pytest.raises(RefusedType, match="no member 'B'"):
        KEEL.unpack(stored)


# --- Refusals ---


@pytest.mark.parametrize(
    ("value", "path", "named"),
    [
        (open, "", "builtin_function_or_method open"),
        ([1, lambda: 0], "[1]", "builtins.function"),
        ({"a": [0, {"b": threading.Lock()}]}, "['a'][1]['b']", "lock"),
        ([HumanMessage("x"), ToolMessage("x", tool_call_id="1", artifact=sys)], "[1].artifact", "builtins.module"),
        (AIMessage("x", additional_kwargs={"client": object()}), ".additional_kwargs['client']", "builtins.object"),
        ((Frozen({1: [int]}),), "[0].a[1][0]", "builtins.type int"),
        (Model(a=1, b=iter([])), ".b", "builtins.list_iterator"),
        (Send("n", {"x": object()}), ".arg['x']", "builtins.object"),
        (Command(update={"x": object()}), ".update['x']", "builtins.object"),
        ({object: 1}, " key <class 'object'>", "builtins.type object"),
        ([memoryview(b"x")], "[0]", "builtins.memoryview"),
        (defaultdict(lambda: 0), "", "<lambda>"),
        ([np.array([object()])], "[0]", "dtype object"),
        (deque([{object()}]), "[0]{", "builtins.object"),
        (os.stat("."), "", "os.stat_result"),
        (types.SimpleNamespace(a=1), "", "types.SimpleNamespace"),
    ],
    ids=lambda part: ascii(part)[:30] if not isinstance(part, str) else None,
)
def test_what_cannot_come_back_is_refused_with_its_place(value: Any, path: str, named: str) -> None:
    with pytest.raises(UnstorableValue) as caught:
        KEEL.pack(value)
    assert caught.value.path.startswith(path)
    assert bool(caught.value.path) is bool(path)
    assert named in caught.value.type_name
    assert len(caught.value.reason) > 20


def test_attributes_that_fail_are_refused() -> None:
    class Broken(dict[str, int]):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise OSError("gone")

    with pytest.raises(UnstorableValue, match="gone"):
        KEEL.pack([Broken()])


def nested(levels: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPS: list[Callable[[Any], Any]] = [
    lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}, lambda v: frozenset({v}), Frozen, Slotted,
    lambda v: Model(a=1, b=v), lambda v: Basket([v]), lambda v: HumanMessage("x", additional_kwargs={"v": v}),
    lambda v: Send("n", v), lambda v: deque([v]),
]  # fmt: skip


@pytest.mark.parametrize("wrap", WRAPS)
def test_depth_is_bounded_by_name(wrap: Callable[[Any], Any]) -> None:
    value = nested(60, wrap)
    assert_same(there_and_back(value), value)
    with pytest.raises(UnstorableValue, match="levels deep"):
        KEEL.pack(nested(300, wrap))


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append((loop,))
    with pytest.raises(UnstorableValue, match="contains itself"):
        KEEL.pack(loop)


# --- What a stored name can reach ---


def record(kind: Record, *parts: Any) -> bytes:
    return ormsgpack.packb([ormsgpack.Ext(kind, b""), *parts])


def forged(module: str, name: str) -> list[bytes]:
    return [
        record(Record.DATACLASS, module, name, {"args": "true"}, {}, []),
        record(Record.DATACLASS, module, name, {"args": "true"}, None),
        record(Record.MODEL, module, name, {"args": "true"}, {}, [], [], None, None),
        record(Record.MODEL, module, name, {"args": "true"}, None),
        record(Record.MODEL_V1, module, name, {"args": "true"}, {}, [], []),
        record(Record.NAMEDTUPLE, module, name, ["args"], ["true"], {}),
        record(Record.SLOTTED, module, name, {"args": "true"}),
        record(Record.BUILTIN, module, name, "str", "true", {}),
        record(Record.BUILTIN, module, name, "int", 1, {}),
        ormsgpack.packb(ormsgpack.Ext(Leaf.ENUM, ormsgpack.packb([module, name, "true"]))),
    ]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"), ("posix", "system"), ("subprocess", "Popen"), ("subprocess", "run"), ("builtins", "eval"),
        ("builtins", "bool"), ("builtins", "ValueError"), ("builtins", "type"), ("subprocess", "CalledProcessError"),
        ("os", "environ"), ("os", "stat_result"), ("threading", "Thread"), ("pathlib", "Path"), ("functools", "partial"),
        ("os", "path"), ("os", "path.join"), ("subprocess", "Popen.__init__"), ("never.imported", "Thing"), ("os", ""),
        ("", ""), ("test_serde", "Plain.__class__"), ("test_serde", "calls"), ("langgraph_keel.errors", "KeelError"),
    ],
)  # fmt: skip
def test_a_stored_name_reaches_nothing_but_data(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(os, "system", lambda *a, **k: called.append(a))
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda *a, **k: called.append(a))
    before = set(sys.modules)
    for data in forged(module, name):
        with pytest.raises((RefusedType, CorruptStore)):
            KEEL.unpack(data)
    assert called == []
    assert set(sys.modules) == before


def test_a_module_that_is_not_imported_stays_so() -> None:
    name = "wsgiref.validate"  # nothing here imports it
    assert name not in sys.modules
    with pytest.raises(RefusedType, match="import its module"):
        KEEL.unpack(record(Record.DATACLASS, name, "Thing", {}, {}, []))
    assert name not in sys.modules


def test_a_lazy_module_is_not_asked_for_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazily(name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    module = types.ModuleType("lazy_app")
    module.__getattr__ = lazily  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_app", module)
    with pytest.raises(RefusedType):
        KEEL.unpack(record(Record.DATACLASS, "lazy_app", "Thing", {}, {}, []))


def local_classes() -> list[Any]:
    class Local(pydantic.BaseModel):
        a: int

    @dataclasses.dataclass
    class LocalData:
        a: int

    class LocalEnum(enum.Enum):
        A = 1

    return [Local(a=1), LocalData(1), LocalEnum.A, Generic_[Local](a=Local(a=2))]


def test_classes_made_in_functions_come_back_in_the_process_that_put_them() -> None:
    for value in local_classes():
        assert_same(there_and_back(value), value)


def test_a_class_that_is_gone_is_refused_and_comes_back_with_types() -> None:
    script = """
import dataclasses, sys
from langgraph_keel.core.serde import KeelSerializer
from langgraph_keel.errors import RefusedType
def make():
    @dataclasses.dataclass
    class Local:
        a: int
    Local.__module__ = "test_serde"
    Local.__qualname__ = "local_classes.<locals>.LocalData"
    return Local
data = bytes.fromhex(sys.argv[1])
try:
    KeelSerializer().unpack(data)
except RefusedType as error:
    assert "types=[...]" in str(error), error
else:
    raise SystemExit("revived")
cls = make()
assert KeelSerializer(types=[cls]).unpack(data) == cls(1)
"""
    data = KEEL.pack(local_classes()[1]).hex()
    done = subprocess.run([sys.executable, "-c", script, data], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- Allowlists ---


def test_a_narrow_serializer_revives_the_safe_and_the_named() -> None:
    stored = {name: KEEL.pack(value) for name, value in (("plain", Plain(1)), ("model", Model(a=1)))}
    narrow = KeelSerializer(types=[Plain])
    assert narrow.unpack(stored["plain"]) == Plain(1)
    with pytest.raises(RefusedType, match=r"test_serde\.Model: not allowed here") as caught:
        narrow.unpack(stored["model"])
    assert caught.value.type_name == "test_serde.Model"
    assert KeelSerializer(types=[("test_serde", "Model")]).unpack(stored["model"]) == Model(a=1)


SAFE = [
    value
    for value in VALUES
    if type(value).__module__ not in (__name__, "pydantic.main") and "test_serde" not in ascii(value)
]


@pytest.mark.parametrize("value", [ai(), Send("n", 1), Command(), Interrupt(1), Document("x"), NOW, _DeltaSnapshot(1),
                                   np.arange(3), OrderedDict(a=1), pydantic.SecretStr("x"), ai().text])  # fmt: skip
def test_a_strict_serializer_revives_plain_data(value: Any) -> None:
    assert_same(there_and_back(value, KeelSerializer(strict=True)), value)
    assert_same(there_and_back(value, KeelSerializer(types=[])), value)


def test_a_strict_serializer_takes_what_langgraph_adds() -> None:
    strict = KeelSerializer(strict=True)
    stored = KEEL.pack([Outer.Inner(1), Colour.RED])
    with pytest.raises(RefusedType):
        strict.unpack(stored)
    wider = strict.with_msgpack_allowlist([("test_serde", "Inner"), Colour])
    assert wider.unpack(stored) == [Outer.Inner(1), Colour.RED]
    with pytest.raises(RefusedType):
        strict.unpack(stored)
    assert wider.with_msgpack_allowlist([Colour]) is wider
    assert strict.with_msgpack_allowlist([]) is strict


def test_a_permissive_serializer_is_not_narrowed() -> None:
    assert KEEL.with_msgpack_allowlist([Plain]) is KEEL


def test_strict_follows_langgraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", True)
    with pytest.raises(RefusedType):
        KeelSerializer().unpack(KEEL.pack(Plain(1)))
    assert KeelSerializer(strict=False).unpack(KEEL.pack(Plain(1))) == Plain(1)


# --- Damage ---


def test_another_serializers_value_is_named() -> None:
    with pytest.raises(CorruptStore, match=r"'msgpack'.*JsonPlusSerializer"):
        KEEL.loads_typed(JsonPlusSerializer().dumps_typed({"a": 1}))
    with pytest.raises(CorruptStore, match="'msgpack\\+aes'"):
        KEEL.loads_typed(("msgpack+aes", b""))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x01\x01", b"\x92\x01", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xa1\xff",
        b"\x91" * 5000, b"\xc7\x00\x20" * 3, b"\x92\x01\xc7\x00\x20",
        b"\x81\xa1a\xc7\x00\x20", b"\xd4\x7fa", ormsgpack.packb(ormsgpack.Ext(Leaf.UUID, b"x")),
        ormsgpack.packb(ormsgpack.Ext(Leaf.PATH, b"Popen|x")), record(Record.SET, []), record(Record.DICT, "odd"),
        record(Record.DICT, [], 1), record(Record.RANGE, 1, 2, 0), record(Record.PATTERN, "(", 0),
        record(Record.DEFAULT, "eval"), record(Record.AWARE, 1, None), record(Record.MESSAGE, 99, {}, []),
        record(Record.MESSAGE, -1, {}, []), record(Record.MESSAGE, 0, [], []), record(Record.MESSAGE),
        record(Record.NDARRAY, "|O", [1], "C", b"12345678"), record(Record.NDARRAY, "<i4", [2], "C", b"1234"),
        record(Record.NDARRAY, "<i4", [1], "C", b"12345678"), record(Record.NDARRAY, "<i4", [-1], "C", b""),
        record(Record.NDARRAY, "<i4", [2**62, 2**62], "C", b""), record(Record.SCALAR, "<i4", b""),
        record(Record.DATACLASS, 1, 2, {}, {}, []), record(Record.DATACLASS, "test_serde", "Plain", 5, {}, []),
    ],
)  # fmt: skip
def test_damage_is_named(data: bytes) -> None:
    with pytest.raises(CorruptStore):
        KEEL.unpack(data)
    with pytest.raises(CorruptStore):
        KEEL.unpack_items(array_header(1) + b"\x92\x00" + data)


def test_a_nest_of_records_as_deep_as_bytes_allow_is_no_crash() -> None:
    for head in (b"\x92\xc7\x00\x20", b"\x92\xc7\x00\x23", b"\x93\xc7\x00\x23\xc0"):
        try:
            KEEL.unpack(head * 1000 + b"\x01")
        except CorruptStore:
            continue


@pytest.mark.parametrize("body", [b"\x91\x01", b"\x91\x90", b"\x91\x92\x03\x01", b"\x91\xa11", b"\x91\x93\x00\x01\x02",
                                  b"\x80", b"\x01", b"\x91\x81\xa1a\x01", b"\x91\x92\x01\x00", b"\x91\xc0"])  # fmt: skip
def test_damaged_items_are_named(body: bytes) -> None:
    with pytest.raises(CorruptStore):
        KEEL.unpack_items(body)


def test_foreign_items_go_to_their_serializer() -> None:
    theirs = JsonPlusSerializer()
    kind, data = theirs.dumps_typed(("a", 1))
    body = array_header(2) + KEEL.pack_item((1, 2)) + KEEL.pack([2, kind, data])
    assert KEEL.unpack_items(body, loads=theirs.loads_typed) == [(1, 2), ["a", 1]]
    with pytest.raises(CorruptStore, match="'msgpack'"):
        KEEL.unpack_items(body)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 65535, 65536])
def test_array_headers(n: int) -> None:
    assert ormsgpack.unpackb(array_header(n) + b"\x01" * n) == [1] * n
    assert array_header(n) == ormsgpack.packb([1] * n)[: len(array_header(n))]
