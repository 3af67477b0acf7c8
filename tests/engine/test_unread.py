"""Placeholders for stored values that may not be revived, and are never stored."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum, Flag
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import ormsgpack
import pydantic
import pydantic.v1
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support.checkpoints import METADATA, checkpoint_of, config_for

from langgraph_keel import (
    CorruptStore,
    InvalidInput,
    KeelSerializer,
    MemorySaver,
    RefusedType,
    Unread,
    UnstorableValue,
)
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import numbers_of
from langgraph_keel.engine.records import Kind
from langgraph_keel.engine.serde.serializer import find_unread
from langgraph_keel.engine.serde.types import Record

WRITER = KeelSerializer()
STRICT = KeelSerializer(strict=True)
SHOWING = STRICT.with_placeholders()


@dataclass
class Order:
    items: list[str]
    total: int = 0


class Customer(pydantic.BaseModel):
    model_config = {"extra": "allow"}
    name: str
    _seen: int = pydantic.PrivateAttr(3)


class Former(pydantic.v1.BaseModel):
    name: str


class Point(NamedTuple):
    x: int
    y: Any


class Size(Enum):
    SMALL = "s"


class Right(Flag):
    READ = 1
    WRITE = 2


class Name(str):
    __slots__ = ()


class Bag(dict):  # type: ignore[type-arg]
    pass


class Ordered(OrderedDict):  # type: ignore[type-arg]
    pass


class Default(defaultdict):  # type: ignore[type-arg]
    pass


class Line(deque):  # type: ignore[type-arg]
    pass


class Failed(Exception):
    pass


class Said(HumanMessage):
    pass


def with_attribute(value: Any) -> Any:
    value.more = 1
    return value


KINDS: list[tuple[Any, str, Any]] = [
    (Order(["tea"], 3), "Order", {"items": ["tea"], "total": 3}),
    (with_attribute(Order([])), "Order", {"items": [], "total": 0, "more": 1}),
    (Customer.model_validate({"name": "Ada", "age": 7}), "Customer", {"name": "Ada", "age": 7, "_seen": 3}),
    (Former(name="Eve"), "Former", {"name": "Eve"}),
    (Point(1, [2]), "Point", {"x": 1, "y": [2]}),
    (Size.SMALL, "Size", "SMALL"),
    (Right.READ | Right.WRITE, "Right", 3),
    (Name("n"), "Name", "n"),
    (Bag(a=1), "Bag", {"a": 1}),
    (Ordered(a=1), "Ordered", {"a": 1}),
    (Default(int, a=1), "Default", {"a": 1}),
    (with_attribute(Bag(a=1)), "Bag", {"content": {"a": 1}, "more": 1}),
    (Line([1, 2], 5), "Line", [1, 2]),
    (Failed("no", 3), "Failed", {"args": ["no", 3]}),
    (Said(content="hello", id="h"), "Said", None),
]


def test_an_error_with_a_cause_is_shown() -> None:
    error = Failed("no")
    error.__cause__ = ValueError("why")
    unread = SHOWING.unpack(WRITER.pack(error))
    assert unread.stored == {"args": ["no"]}


@pytest.mark.parametrize(("value", "name", "stored"), KINDS, ids=lambda each: type(each).__name__)
def test_values_around_a_placeholder_are_read(value: Any, name: str, stored: Any) -> None:
    around = [1, {"a": value, "b": (HumanMessage("hi"), value)}, datetime.now(UTC)]
    packed = WRITER.pack(around)
    with pytest.raises(RefusedType):
        STRICT.unpack(packed)
    back = SHOWING.unpack(packed)
    unread = back[1]["a"]
    assert type(unread) is Unread
    assert (unread.module, unread.qualname, unread.type_name) == (__name__, name, f"{__name__}.{name}")
    assert "types=[...]" in unread.reason
    assert stored is None or unread.stored == stored
    assert back == [1, {"a": unread, "b": (HumanMessage("hi"), unread)}, around[2]]
    assert list(find_unread(back)) == [unread, unread]
    assert f"'{__name__}.{name}'" in repr(unread)
    assert {unread, back[1]["b"][1]} == {unread}
    assert copy.deepcopy(unread) == unread


def test_a_message_of_another_class_shows_its_fields() -> None:
    (unread,) = SHOWING.unpack_items(b"\x91" + WRITER.pack_item(Said(content="hello", id="h")))
    assert unread.stored["content"] == "hello"
    assert unread.stored["id"] == "h"


def test_placeholders_compare_by_stored_content() -> None:
    first, same, other = (SHOWING.unpack(WRITER.pack(Order([name]))) for name in ("tea", "tea", "milk"))
    assert first == same != other
    assert first != SHOWING.unpack(WRITER.pack({"items": ["tea"], "total": 0}))


def test_a_secret_is_not_shown() -> None:
    packed = KeelSerializer(types=[pydantic.SecretStr]).pack({"key": pydantic.SecretStr("s3cret"), "plain": 1})
    back = SHOWING.unpack(packed)
    assert back["plain"] == 1
    assert back["key"].type_name == "pydantic.types.SecretStr"
    assert back["key"].stored is None
    assert "s3cret" not in repr(back)


def test_a_value_becomes_a_placeholder_if_its_parts_cannot() -> None:
    moment = WRITER.pack([datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Paris")), 1])
    back = SHOWING.unpack(moment.replace(b"Europe/Paris", b"Europe/Nowhe"))
    assert back[1] == 1
    assert back[0].type_name == "datetime.datetime"
    assert "no such time zone" in back[0].reason
    assert back[0].stored == datetime(2026, 1, 1)
    group = SHOWING.unpack(WRITER.pack([ExceptionGroup("all", [ValueError("a"), Failed("b")]), 1]))
    assert group[1] == 1
    assert group[0].type_name == "builtins.ExceptionGroup"
    assert f"{__name__}.Failed" in group[0].reason


def test_a_placeholder_of_a_changed_class_shows_stored_fields() -> None:
    packed = WRITER.pack(Order(["tea"])).replace(b"\xa5total", b"\xa5older")
    unread = KeelSerializer(types=[Order]).with_placeholders().unpack(packed)
    assert "'total' is missing" in unread.reason
    assert unread.stored == {"items": ["tea"], "older": 0}


@pytest.mark.parametrize("parts", [[5, {}, []], [], [[], {}, []]])
def test_placeholders_do_not_hide_damage(parts: list[Any]) -> None:
    named = [ormsgpack.Ext(Record.DATACLASS, b""), __name__, "Order", *parts]
    with pytest.raises(CorruptStore):
        SHOWING.unpack(ormsgpack.packb(named))


# -- never stored ----------------------------------------------------------------------------------------------------


def unread_order() -> Any:
    return SHOWING.unpack(WRITER.pack(Order(["tea"])))


@pytest.mark.parametrize(
    "serde",
    [
        KeelSerializer(),
        SHOWING,
        KeelSerializer(types=[Unread]),
        JsonPlusSerializer(),
        JsonPlusSerializer(pickle_fallback=True),
        EncryptedSerializer.from_pycryptodome_aes(KeelSerializer(), key=b"k" * 16),
    ],
    ids=["keel", "showing", "listed", "jsonplus", "pickle", "encrypted"],
)
def test_writing_a_placeholder_is_refused(serde: Any) -> None:
    saver = MemorySaver(serde=serde)
    values = {"deep": [1, {"order": unread_order()}], "plain": 1}
    with pytest.raises(UnstorableValue, match=r"deep|Unread"):
        saver.put(config_for("t"), checkpoint_of("00000001", values), METADATA, {})
    config = saver.put(config_for("t"), checkpoint_of("00000001", {"plain": 1}), METADATA, {})
    with pytest.raises(UnstorableValue):
        saver.put_writes(config, [("deep", [unread_order()])], "task")
    (found,) = saver.list(config_for("t"))
    assert (found.checkpoint["channel_values"], found.pending_writes) == ({"plain": 1}, [])


def test_packing_pickling_or_copying_a_placeholder_is_refused() -> None:
    with pytest.raises(
        UnstorableValue, match=r"\['order'\]\[1\]: langgraph_keel.Unread: a placeholder .* by the saver"
    ):
        WRITER.pack({"order": [1, unread_order()]})
    for store in (pickle.dumps, copy.copy):
        with pytest.raises(UnstorableValue, match="placeholder"):
            store(unread_order())


# -- a read-only view ------------------------------------------------------------------------------------------------


def saver_with(*states: Any) -> MemorySaver:
    saver = MemorySaver(serde=KeelSerializer())
    config = config_for("t")
    for number, values in enumerate(states, 1):
        config = saver.put(config, checkpoint_of(f"{number:08}", values), METADATA, {})
    saver.serde = STRICT
    return saver


def values_of(saver: Any, checkpoint_id: str | None = None) -> Any:
    return saver.get_tuple(config_for("t", checkpoint_id)).checkpoint["channel_values"]


def test_edits_of_a_large_value_are_applied_to_its_stored_fields() -> None:
    """It is stored as a snapshot and edits; their paths use fields of missing classes."""
    texts = [*map(str, range(400))]
    states: list[Any] = [{"one": Order(texts, 0), "all": {f"o{n}": Order([f"item {n} " * 9]) for n in range(60)}}]
    for n in (3, 40, 5):
        last = states[-1]
        new = replace(last["all"][f"o{n}"], total=n + 100)
        states.append({"one": Order(texts, n), "all": {**last["all"], f"o{n}": new}})
    saver = saver_with(*states)
    head = saver.engine.run(saver.engine.session.store.read_entry(Address("t")))
    assert head
    refs = [head.entry.refs[name] for name in ("one", "all")]
    assert [(ref.kind, len([*numbers_of(ref.runs)])) for ref in refs] == [(Kind.TREE, 4)] * 2
    for number, state in enumerate(states, 1):
        back = values_of(saver.raw, f"{number:08}")
        assert back["one"].stored == vars(state["one"])
        assert {name: each.stored for name, each in back["all"].items()} == {
            n: vars(o) for n, o in state["all"].items()
        }


def test_reads_of_a_raw_saver_are_not_remembered() -> None:
    saver = saver_with({"order": Order(["tea"]), "plain": [1]})
    raw = saver.raw
    assert values_of(raw)["order"].stored == {"items": ["tea"], "total": 0}
    assert values_of(raw)["plain"] == [1]
    with pytest.raises(RefusedType):
        values_of(saver)
    saver.serde = KeelSerializer()
    assert values_of(saver) == {"order": Order(["tea"]), "plain": [1]}


def test_a_raw_saver_refuses_writes() -> None:
    saver = saver_with({"plain": 1})
    with pytest.raises(InvalidInput, match="read-only"):
        saver.raw.put(config_for("t"), checkpoint_of("00000002", {"plain": 2}), METADATA, {})
    with pytest.raises(InvalidInput, match="read-only"):
        saver.raw.put_writes(config_for("t", "00000001"), [("plain", 2)], "task")
    assert values_of(saver) == {"plain": 1}


def test_placeholders_work_inside_an_encrypted_serializer() -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(KeelSerializer(), key=b"k" * 16)
    saver = MemorySaver(serde=serde)
    saver.put(
        config_for("t"), checkpoint_of("00000001", {"order": Order(["tea"]), "log": [AIMessage("a")]}), METADATA, {}
    )
    saver.serde = EncryptedSerializer.from_pycryptodome_aes(STRICT, key=b"k" * 16)
    found = values_of(saver.raw)
    assert found["order"].stored == {"items": ["tea"], "total": 0}
    assert found["log"] == [AIMessage("a")]
