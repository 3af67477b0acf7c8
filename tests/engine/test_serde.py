"""The serializer's unchanged, rebuilt and refused values."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import subprocess
import sys
import threading
import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ormsgpack
import pydantic
import pydantic.v1
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import SearchItem
from langgraph.types import Command, Send
from support.engine.samples import (
    KEEL,
    NOW,
    VALUES,
    Bag,
    Basket,
    Derived,
    Failed,
    Frozen,
    Generic_,
    Model,
    Refused,
    Slotted,
    Table,
    WithClient,
    WithLock,
    assert_same,
    caused,
    loose,
    model_with_everything,
    there_and_back,
)

from langgraph_keel.engine.serde.serializer import KeelSerializer, encode
from langgraph_keel.engine.serde.types import Leaf, Record
from langgraph_keel.errors import CorruptStore, RefusedType, TypeWarning, UnstorableValue


def test_keel_serializer_satisfies_the_langgraph_protocol() -> None:
    assert isinstance(KEEL, SerializerProtocol)
    assert KEEL.dumps_typed(1)[0] == "keel"


def test_a_dict_subclass_keeps_its_real_content() -> None:
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


def test_pydantic_state_is_restored_completely() -> None:
    value = model_with_everything()
    back = there_and_back(value)
    assert back._seen == 7  # private: the test is about a private attribute of a pydantic model
    assert back.model_fields_set == {"a", "b"}
    assert back.__pydantic_extra__ is None
    open_model = there_and_back(loose(x=1))
    assert open_model.model_extra == {"x": 1}
    assert open_model.model_fields_set == {"x"}


def test_arrays_keep_their_memory_order() -> None:
    assert there_and_back(np.asfortranarray(np.ones((2, 3)))).flags.f_contiguous
    assert there_and_back(np.ones((2, 3))).flags.c_contiguous


def test_exceptions_are_restored_with_type_and_attributes() -> None:
    back = there_and_back_without_compare([ValueError("bad", 1), {"e": Refused("pay", code=7)}, Failed(1)])
    assert_same(back, [ValueError("bad", 1), {"e": Refused("pay", code=7)}, Failed(1)])
    with pytest.raises(Refused, match="refused: pay"):
        raise back[1]["e"]


def test_an_exception_is_stored_with_its_cause_but_not_with_its_context() -> None:
    try:
        try:
            raise KeyError("context")
        except KeyError:
            raise Refused("pay", code=7) from ValueError("cause")
    except Refused as error:
        back = there_and_back_without_compare(error)
    assert (back.args, back.code) == (("refused: pay",), 7)
    assert repr(back.__cause__) == "ValueError('cause')"
    assert back.__suppress_context__
    assert back.__context__ is back.__traceback__ is None


def test_an_unstorable_cause_is_refused_with_its_path() -> None:
    with pytest.raises(UnstorableValue, match="lock") as caught:
        KEEL.pack([caused(ValueError("v"), ValueError(threading.Lock()))])
    assert caught.value.path == "[0].__cause__.args[0]"
    error = ValueError("its own cause")
    with pytest.raises(UnstorableValue, match="contains itself"):
        KEEL.pack(caused(error, error))


@pytest.mark.parametrize("made", [set, frozenset, dict.fromkeys, Counter, Bag, Table], ids=lambda made: made.__name__)
def test_too_many_keys_with_the_same_hash_are_refused(made: Any) -> None:
    """30,000 of them, in 78 kB, took 13 s to read."""
    alike = [number * sys.hash_info.modulus for number in range(1, 300)]
    if made is Table:
        made = lambda keys: Table(dict.fromkeys(keys))  # noqa: E731
    assert_same(there_and_back(made(alike[:256])), made(alike[:256]))
    with pytest.raises(UnstorableValue, match="same hash"):
        KEEL.pack([made(alike)])
    for mark in (Record.SET, Record.FROZENSET, Record.DICT, Record.ORDERED, Record.COUNTER):
        keys = [ormsgpack.Ext(Leaf.BIG_INT, key.to_bytes(12, "little", signed=True)) for key in alike for _ in "12"]
        with pytest.raises(CorruptStore, match="same hash"):
            KEEL.unpack(ormsgpack.packb([ormsgpack.Ext(mark, b""), *keys]))


_WARNED = """
import sys, warnings
from dataclasses import dataclass
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph_keel import KeelSerializer, {saver}
import zoo

class State(TypedDict):
    pet: zoo.Animal

with {saver}({place!r}) as saver:
    graph = StateGraph(State).add_node("n", lambda state: {{}}).add_edge(START, "n").compile(checkpointer=saver)
    for thread in "12":
        config = {{"configurable": {{"thread_id": thread}}}}
        graph.invoke({{"pet": zoo.Lion("leo", [zoo.Cub(), zoo.Mane.LONG])}}, config)
        graph.invoke({{"pet": zoo.Animal("cat")}}, config)
"""
_ZOO = """
import enum
from dataclasses import dataclass, field
from pydantic import BaseModel
class Cub(BaseModel): age: int = 1
class Mane(enum.Enum): LONG = 1
@dataclass
class Animal: name: str
@dataclass
class Lion(Animal): parts: list = field(default_factory=list)
"""


@pytest.mark.slow
@pytest.mark.parametrize("saver", ["SqliteSaver", "FileSaver"])
def test_an_unlisted_class_is_stored_with_one_warning(tmp_path: Path, saver: str) -> None:
    """A subclass of an annotated class, a value in it, a model and an enumeration.

    The annotated class itself causes no warning.
    """
    (tmp_path / "zoo.py").write_text(_ZOO)
    script = tmp_path / "script.py"
    script.write_text(_WARNED.format(saver=saver, place=str(tmp_path / "store")))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    told = re.findall(r"TypeWarning: (\S+) is stored, but is not on the allow-list.*types=\[\.\.\.\]", done.stderr)
    assert sorted(told) == ["zoo.Cub", "zoo.Lion", "zoo.Mane"]


def test_neighbours_do_not_change_the_bytes_of_a_value() -> None:
    for value in VALUES:
        assert encode([value, bytearray(b"x")]) == b"\x92" + encode(value) + encode(bytearray(b"x"))


# --- Values that are restored in another form ---


@pytest.mark.parametrize(
    ("value", "path"), [(WithClient(name="n", client=threading.Lock()), ".client"), (WithLock(5), ".lock")]
)
def test_a_client_outside_the_fields_is_refused(value: Any, path: str) -> None:
    with pytest.raises(UnstorableValue, match="lock") as caught:
        KEEL.pack({"m": value})
    assert caught.value.path == f"['m']{path}"


def test_cached_properties_are_not_stored() -> None:
    value = Derived(1)
    assert value.lock
    assert "lock" not in vars(there_and_back_without_compare(value))


def module_with(monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    module = types.ModuleType("app_state")
    vars(module).update(names)
    for value in names.values():
        value.__module__, value.__qualname__ = "app_state", "State"
    monkeypatch.setitem(sys.modules, "app_state", module)


def changed_dataclasses() -> list[Any]:
    old = dataclasses.make_dataclass("State", [("a", int), ("gone", int)])
    new = dataclasses.make_dataclass("State", [("a", int), ("b", list[int], dataclasses.field(default_factory=list))])
    return [old, new, old(1, 2)]


def changed_models() -> list[Any]:
    old = pydantic.create_model("State", a=(int, ...), gone=(int, ...))
    return [old, pydantic.create_model("State", a=(int, ...), b=(int, 5)), old(a=1, gone=2)]


def changed_named_tuples() -> list[Any]:
    class Old(NamedTuple):
        a: int
        gone: int

    class New(NamedTuple):
        a: int
        b: int = 5

    return [Old, New, Old(1, 2)]


@pytest.mark.parametrize("changed", [changed_dataclasses, changed_models, changed_named_tuples])
def test_a_changed_class_is_refused_and_its_fields_named(
    changed: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, value = changed()
    module_with(monkeypatch, State=old)
    stored = KEEL.pack(value)
    module_with(monkeypatch, State=new)
    with pytest.raises(RefusedType, match=r"app_state\.State: the class is not .*: 'b' is missing, it has no 'gone'"):
        KEEL.unpack(stored)


def state_enum(**members: int) -> Any:
    made: Callable[..., Any] = enum.Enum
    return made("State", members)


def test_an_enumeration_without_the_member_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = state_enum(A=1, B=2), state_enum(A=1)
    module_with(monkeypatch, State=old)
    stored = KEEL.pack(old.B)
    module_with(monkeypatch, State=new)
    with pytest.raises(RefusedType, match="no longer has a member 'B'"):
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
    ids=lambda part: type(part).__name__ if not isinstance(part, str) else None,
)
def test_unrestorable_values_are_refused_with_their_path(value: Any, path: str, named: str) -> None:
    with pytest.raises(UnstorableValue) as caught:
        KEEL.pack(value)
    assert caught.value.path.startswith(path)
    assert bool(caught.value.path) is bool(path)
    assert named in caught.value.type_name
    assert len(caught.value.reason) > 20


class Broken(dict[str, int]):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise OSError("gone")


def test_attributes_that_raise_are_refused() -> None:
    with pytest.raises(UnstorableValue, match="gone"):
        KEEL.pack([Broken()])


def test_secrets_are_stored_only_if_their_types_are_listed() -> None:
    asked = KeelSerializer(types=[pydantic.SecretStr, pydantic.SecretBytes])
    for secret in (pydantic.SecretStr("s"), pydantic.SecretBytes(b"s")):
        with pytest.raises(UnstorableValue, match="in plain text") as caught:
            KEEL.pack({"key": secret})
        assert caught.value.path == "['key']"
        stored = asked.pack(secret)
        assert_same(asked.unpack(stored), secret)
        with pytest.raises(RefusedType, match="Secret"):
            KEEL.unpack(stored)


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
def test_values_nested_too_deeply_are_refused(wrap: Callable[[Any], Any]) -> None:
    value = nested(60, wrap)
    assert_same(there_and_back(value), value)
    with pytest.raises(UnstorableValue, match="levels deep"):
        KEEL.pack(nested(300, wrap))


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append((loop,))
    with pytest.raises(UnstorableValue, match="contains itself"):
        KEEL.pack(loop)


def local_classes() -> list[Any]:
    class Local(pydantic.BaseModel):
        a: int

    @dataclasses.dataclass
    class LocalData:
        a: int

    class LocalEnum(enum.Enum):
        A = 1

    return [Local(a=1), LocalData(1), LocalEnum.A, Generic_[Local](a=Local(a=2))]


def test_classes_made_in_functions_are_refused() -> None:
    for value in local_classes():
        with pytest.raises(UnstorableValue, match="defined inside a function") as caught:
            KEEL.pack([value])
        assert "<locals>" in caught.value.type_name
        assert caught.value.path.startswith("[0]")


def test_listed_classes_made_in_functions_are_restored() -> None:
    values = local_classes()
    listed = KeelSerializer(types=[*map(type, values), type(values[-1].a)])
    for value in values:
        assert_same(there_and_back(value, listed), value)


def test_a_class_of_the_script_is_stored_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    made = dataclasses.make_dataclass("OfAScript", [("a", int)])
    made.__module__ = "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "OfAScript", made, raising=False)
    with pytest.warns(TypeWarning, match="OfAScript is stored, .* define OfAScript in a module"):
        assert_same(there_and_back(made(1)), made(1))
    there_and_back(made(2), KeelSerializer())


_SCRIPT = """
import threading
from dataclasses import dataclass
from langgraph_keel import KeelSerializer

@dataclass
class Order:
    a: int

@dataclass
class Other:
    a: int

KeelSerializer().pack(Order(1))  # line 14
storing = threading.Thread(target=KeelSerializer().pack, args=(Other(1),))
storing.start()
storing.join()
"""


def test_the_type_warning_points_at_the_script(tmp_path: Path) -> None:
    """It points at the running line.

    In a thread of a library, such as LangGraph's, it points at the script.
    """
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    places = re.findall(r"^(.*?):(\d+): TypeWarning: (\w+)", done.stderr, re.MULTILINE)
    assert places[0] == (str(script), "14", "Order")
    assert (places[1][0], places[1][2]) == (str(script), "Other")
    assert len(places) == 2
