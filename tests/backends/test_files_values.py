"""Values as readable JSON in a thread's log, restored byte for byte."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import ormsgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from ormsgpack import Ext
from support.engine.messages import CLASSES, messages, messages_of
from support.engine.samples import VALUES, Colour, Plain
from support.engine.values import values
from support.tiers import examples

from langgraph_keel.backends.files.values import FORMS, items_to_json, pack_item, pack_items
from langgraph_keel.engine.encoding.bodies import array_header, element_end, open_frame, split_array
from langgraph_keel.engine.serde.serializer import Codec, KeelSerializer
from langgraph_keel.engine.serde.types import MESSAGES, Leaf, Record, shape_of
from langgraph_keel.errors import CorruptStore
from langgraph_keel.testing.machine import HISTORIES, elements, scalars

KEEL = KeelSerializer()


def content_of(*put: Any) -> bytes:
    return array_header(len(put)) + b"".join(map(KEEL.pack_item, put))


def assert_kept(content: bytes) -> list[Any]:
    """Fail unless JSON restores the content, in both ways; return the readable form."""
    shown = items_to_json(content)
    text = orjson.dumps(shown)
    read = orjson.loads(text)
    assert pack_items(read) == pack_items(read, text) == content
    packed = split_array(content)
    assert array_header(len(packed)) + b"".join(packed) == content
    assert [pack_item(each) for each in read] == packed
    assert [pack_item(each, orjson.dumps(each)) for each in read] == packed
    return shown


def shown(value: Any) -> Any:
    return assert_kept(content_of(value))[0]


def is_opaque(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == ["$mp"]


# --- The format ---

GOLDEN: list[tuple[Any, str]] = [
    (None, "null"),
    ([True, 1, 1.0, -0.0, 2**64 - 1, "ł\0\n🙂"], '[true,1,1.0,-0.0,18446744073709551615,"ł\\u0000\\n🙂"]'),
    ({"b": {"x": []}, "a": {}}, '{"b":{"x":[]},"a":{}}'),
    ([2**64, -(2**63) - 1], '[{"$big_int":"18446744073709551616"},{"$big_int":"-9223372036854775809"}]'),
    ([float("nan"), -float("inf")], '[{"$float":"nan"},{"$float":"-inf"}]'),
    ([b"abc", bytearray(b"a")], '[{"$bytes":"YWJj"},{"$bytearray":"YQ=="}]'),
    ("\ud800", '{"$surrogates":"7aCA"}'),
    ((1, {"a"}), '{"$tuple":[1,{"$set":["a"]}]}'),
    ({1: "x"}, '{"$dict":[1,"x"]}'),
    ({"$role": "ai", "b": 1}, '{"$map":[["$role","ai"],["b",1]]}'),
    (
        [datetime(2026, 1, 1, tzinfo=UTC), UUID(int=1), Colour.RED],
        '[{"$datetime":"2026-01-01T00:00:00+00:00"},{"$uuid":"00000000-0000-0000-0000-000000000001"},'
        '{"$enum":["support.engine.samples","Colour","RED"]}]',
    ),
    (Plain(1, [2]), '{"$dataclass":["support.engine.samples","Plain",{"a":1,"b":[2]},{},["made"]]}'),
    (HumanMessage("hi", id="h"), '{"$role":"human","content":"hi","id":"h"}'),
    (
        AIMessage("", additional_kwargs={}, tool_calls=[{"name": "f", "args": {"x": (1,)}, "id": "c"}]),
        '{"$role":"ai","content":"","additional_kwargs":{},'
        '"tool_calls":[{"name":"f","args":{"x":{"$tuple":[1]}},"id":"c","type":"tool_call"}]}',
    ),
    (
        ToolMessage("42", tool_call_id="c", name="f", lang="en"),
        '{"$role":"tool","content":"42","name":"f","tool_call_id":"c","$extra":{"lang":"en"},"$private":null}',
    ),
    (RemoveMessage(id="h"), '{"$role":"remove","content":"","id":"h"}'),
    ({"m": HumanMessage("hi")}, '{"m":{"$role":"human","content":"hi"}}'),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), GOLDEN, ids=range(len(GOLDEN)))
def test_the_json_is_part_of_the_format(value: Any, text: str) -> None:
    assert orjson.dumps(shown(value)).decode() == text


def test_an_unset_field_is_not_listed_as_set() -> None:
    message = HumanMessage("hi", id="h")
    message.__pydantic_fields_set__.discard("id")
    assert shown(message) == {"$role": "human", "content": "hi", "id": "h", "$set": ["content"]}


def test_private_attributes_are_kept() -> None:
    message = HumanMessage("hi")
    object.__setattr__(message, "__pydantic_private__", {"_p": (1,)})
    assert shown(message)["$private"] == {"_p": {"$tuple": [1]}}


def test_a_message_of_another_langchain_version_is_written_in_full() -> None:
    state = vars(HumanMessage("hi")) | {"mood": "good"}
    content = array_header(1) + ormsgpack.packb([1, 0, state, ["content"]])
    assert assert_kept(content) == [{"$message": [0, state, ["content"]]}]


def test_a_message_of_an_unknown_class_is_written_in_full() -> None:
    assert assert_kept(array_header(1) + ormsgpack.packb([1, 99, {}, []])) == [{"$message": [99, {}, []]}]


@pytest.mark.parametrize("code", range(len(MESSAGES)), ids=lambda code: MESSAGES[code].__name__)
def test_the_table_of_messages_matches_the_installed_langchain(code: int) -> None:
    form, fields = FORMS[code], MESSAGES[code].model_fields  # type: ignore[attr-defined]
    assert form.code == code
    assert form.names == list(fields)
    assert set(form.names) == shape_of(MESSAGES[code]).fields
    for name, field in fields.items():
        expected = ... if field.is_required() else field.get_default(call_default_factory=True)
        assert form.defaults[name] == expected


def test_every_leaf_and_record_has_a_tag() -> None:
    samples = json.dumps([shown(value) for value in VALUES])
    missing = [kind.name for kind in (*Leaf, *Record) if f'"${kind.name.lower()}"' not in samples]
    assert missing == ["SECRET", "MESSAGE"]  # the first is not stored unless a program asks for it


@pytest.mark.parametrize(("kind", "payload"), [("json", "text"), ("msgpack", {"$bytes": "dGV4dA=="})])
def test_items_of_another_serializer_are_kept(kind: str, payload: Any) -> None:
    content = array_header(1) + ormsgpack.packb([2, kind, b"text"])
    assert assert_kept(content) == [{"$foreign": [kind, payload]}]


def test_bodies_of_the_serializer_of_langgraph_are_kept() -> None:
    body = open_frame(Codec(JsonPlusSerializer()).encode([None, {"a": (1,)}, HumanMessage("x"), b"bytes", "text"]))
    assert [list(each) for each in assert_kept(body)] == [["$foreign"]] * 5


# --- Nothing is lost ---


@pytest.mark.parametrize("value", VALUES, ids=[f"{n}-{type(value).__name__}" for n, value in enumerate(VALUES)])
def test_sample_values_are_readable(value: Any) -> None:
    opaque = repr(value) == repr(Path("\udc80"))  # its name on disk is not valid UTF-8
    assert is_opaque(shown(value)) is opaque
    assert is_opaque(shown([value, {"k": (value,)}])) is opaque


@pytest.mark.parametrize("name", HISTORIES)
def test_histories_are_readable(name: str) -> None:
    for version in HISTORIES[name][-3:]:
        assert not is_opaque(shown(version))
        if isinstance(version, list):
            assert_kept(content_of(*version))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.one_of(scalars(), elements(), values), max_size=4))
def test_random_values_are_kept(put: list[Any]) -> None:
    assert_kept(content_of(*put))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(messages, max_size=3), st.sampled_from([lambda part: part, lambda part: [part], lambda part: {"m": part}])
)
def test_random_messages_are_kept(put: list[BaseMessage], within: Any) -> None:
    assert_kept(content_of(*map(within, put)))


@pytest.mark.parametrize("cls", CLASSES)
def test_messages_of_every_class_are_readable(cls: type[BaseMessage]) -> None:
    @settings(max_examples=examples(40), deadline=None)
    @given(messages_of(cls))
    def holds(message: BaseMessage) -> None:
        seen = shown(message)
        assert seen["$role"] == FORMS[MESSAGES.index(cls)].role
        assert ("$extra" in seen) == bool(message.__pydantic_extra__)
        assert "$set" not in seen or set(seen["$set"]) == message.model_fields_set

    holds()


dollars = st.dictionaries(
    st.sampled_from(["$role", "$set", "$extra", "$map", "$mp", "$tuple", "$", "$blob", "content", "a$"]),
    st.sampled_from(["ai", "$role", 'say "$role"', "\\u0024role", 1, [], {}, [["$map", 1]]]),
    max_size=3,
)  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(st.recursive(dollars, lambda inner: st.dictionaries(st.sampled_from(["$map", "k", "$role"]), inner, max_size=2)))
@example({"$role": "ai"})
@example({"$map": [["a", 1]]})
@example({"k": {"$mp": "wA=="}})
def test_values_that_look_like_a_tag_are_readable(value: dict[str, Any]) -> None:
    assert not is_opaque(shown(value))
    assert not is_opaque(shown(HumanMessage("x", additional_kwargs=value, extra=value)))


def nested(levels: int, wrap: Any, core: Any = "core") -> Any:
    for _ in range(levels):
        core = wrap(core)
    return core


WRAPS: dict[str, Any] = {
    "list": lambda part: [part], "dict": lambda part: {"a": part}, "tuple": lambda part: (part,),
    "$": lambda part: {"$": part}, "message": lambda part: HumanMessage("x", additional_kwargs={"a": part}),
}  # fmt: skip


@pytest.mark.parametrize("levels", [1, 20, 32, 33, 49, 50, 51, 99, 100, 101, 125, 253])
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
@pytest.mark.parametrize("core", ["core", [], {}], ids=repr)
def test_values_of_moderate_depth_are_readable(wrap: Any, levels: int, core: Any) -> None:
    # A message is an array that contains a map that contains a map: three levels of 255.
    value = nested(levels if wrap is not WRAPS["message"] else min(levels, 84), wrap, core)
    seen = shown(value)
    assert levels > 20 or not is_opaque(seen)
    assert levels < 101 or is_opaque(seen)
    assert len(orjson.loads(orjson.dumps({"w": [["channel", 0, seen]], "crc": ""}))["w"]) == 1


def as_json(packed: bytes) -> list[Any]:
    return [{"$mp": base64.b64encode(packed).decode()}]


UNUSUAL: dict[str, bytes] = {
    "32-bit float": b"\x92\x00\xca\x3f\x80\x00\x00",
    "int wider than it need be": b"\x92\x00\xcd\x00\x01",
    "text with a long header": b"\x92\x00\xd9\x01a",
    "map with a key twice": b"\x92\x00\x82\xa1a\x01\xa1a\x02",
    "map with a key that is no text": b"\x92\x00\x81\x01\x02",
    "text that is no UTF-8": b"\x92\x00\xa1\xff",
    "unknown ext": b"\x92\x00" + ormsgpack.packb(Ext(99, b"x")),
    "unknown record": b"\x92\x00" + ormsgpack.packb([Ext(60, b""), 1]),
    "mark with content": b"\x92\x00" + ormsgpack.packb([Ext(32, b"x"), 1]),
    "mark that is not first": b"\x92\x00" + ormsgpack.packb([1, Ext(32, b"")]),
    "mark in a map": b"\x92\x00" + ormsgpack.packb({"a": Ext(32, b"")}),
    "path that is no UTF-8": b"\x92\x00" + ormsgpack.packb(Ext(11, b"PosixPath|\xff")),
    "big integer with zeros": b"\x92\x00" + ormsgpack.packb(Ext(1, b"\x01\x00")),
    "enum that is no array": b"\x92\x00" + ormsgpack.packb(Ext(15, b"\x01")),
    "nan with a sign": b"\x92\x00\xcb\xff\xf8" + bytes(6),
    "message as a value": b"\x92\x00" + ormsgpack.packb([Ext(52, b""), 0, vars(HumanMessage("x")), []]),
    "message of class true": ormsgpack.packb([1, True, vars(AIMessage("x")), []]),
    "unknown kind of item": ormsgpack.packb([3, 1]),
    "negative kind of item": ormsgpack.packb([-1, "json", b""]),
    "no item": ormsgpack.packb("text"),
    "item too long": ormsgpack.packb([0, 1, 2]),
    "empty item": b"\x90",
}


@pytest.mark.parametrize("packed", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_encodings_are_kept_unchanged(packed: bytes) -> None:
    assert assert_kept(array_header(1) + packed) == as_json(packed)
    neighbours = KEEL.pack_item("before"), KEEL.pack_item(HumanMessage("after"))
    seen = assert_kept(array_header(3) + neighbours[0] + packed + neighbours[1])
    assert pack_item(seen[1]) == packed


# --- Invalid content, and invalid values ---


NO_ARRAYS = [
    b"", b"\x01", b"\x91", b"\x90\x00", b"\x91\xc1", b"\x91\xa5abc", b"\xdd\xff\xff\xff\xff", b"\xdc", b"\x92\x01",
    b"\x91\xc6\xff\xff\xff\xff", b"\x81\x01\x01",
]  # fmt: skip


@pytest.mark.parametrize("content", NO_ARRAYS, ids=bytes.hex)
def test_content_that_is_not_an_array_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptStore):
        split_array(content)
    with pytest.raises(CorruptStore):
        items_to_json(content)


bodies = st.binary(max_size=40)


@pytest.mark.parametrize("content", [b"\xa5abc", b"\xcb\0", b"\xd9", b"\xda\0", b"\xc7\1", b"\x92\1"], ids=bytes.hex)
def test_a_truncated_element_has_no_end(content: bytes) -> None:
    with pytest.raises(CorruptStore, match="end within"):
        element_end(content, 0)


@settings(max_examples=examples(400), deadline=None)
@given(bodies | bodies.map(b"\x91".__add__) | values.map(lambda value: content_of(value)[:-1]))
def test_any_bytes_are_an_array_or_refused(content: bytes) -> None:
    try:
        parts = split_array(content)
    except CorruptStore:
        return
    header = len(content) - sum(map(len, parts))
    assert content[header:] == b"".join(parts)
    assert header in (1, 3, 5)
    back = pack_items(orjson.loads(orjson.dumps(items_to_json(content))))
    assert back == array_header(len(parts)) + b"".join(parts)


DAMAGED = [
    '{"$object":1}', '{"$tuple":[1],"b":1}', '{"$tuple":[],"$set":[]}', '[{"$mp":"wA=="}]',
    '[{"$foreign":["json",""]}]', '{"$blob":"00"}', '{"$bytes":"?"}', '{"$bytes":1}',
    '{"$bytes":"é"}', '{"$float":"1"}', '{"$float":[]}',
    '{"$map":{"a":1}}', '{"$map":[["a"]]}', '{"$map":[[1,2]]}', '{"$map":[["a",1],["a",2]]}', '{"$map":[[[],2]]}',
    '{"$tuple":1}', '{"$tuple":{"a":1}}', '{"$uuid":"1"}', '{"$uuid":null}', '{"$big_int":"x"}', '{"$big_int":1}',
    '{"$big_int":"' + "9" * 5000 + '"}', '{"$date":[]}', '{"$enum":"a"}', '{"$enum":[1]}', '{"$role":"user"}',
    '{"$role":["ai"]}', '{"$role":"ai","content":"","mood":1}', '{"$role":"ai"}', '{"$role":"tool","content":""}',
    '{"$role":"ai","content":"","$set":"content"}', '{"$role":"ai","content":"","$set":[1]}',
    '{"$role":"ai","content":"","$extra":{}}', '{"$role":"ai","content":"","$private":null}',
    '{"$role":"ai","content":{"$x":1}}', '{"$message":1}', '{"$message":{}}', '{"$foreign":["json"]}',
    '{"$foreign":["json",1]}', '{"$foreign":[1,""]}', '{"$mp":"wMA="}', '{"$mp":""}', '{"$mp":"kQ=="}', '{"$mp":{}}',
    '{"\\u0024x":1}', '[' * 300 + ']' * 300,
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_json_values_are_refused(text: str) -> None:
    value = orjson.loads(text)
    with pytest.raises(CorruptStore):
        pack_item(value)
    with pytest.raises(CorruptStore):
        pack_item(value, text.encode())
    with pytest.raises(CorruptStore):
        pack_items(["before", value])


tags = st.sampled_from(
    ["$role", "$set", "$extra", "$private", "$message", "$mp", "$foreign", "$bytes", "$float", "$map"]
)
kinds = st.sampled_from([f"${kind.name.lower()}" for kind in (*Leaf, *Record)])
json_texts = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.sampled_from(["ai", "tool", "nan", "YQ==", "wA==", "1", "content"]),
)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-1e300, 1e300) | json_texts,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(tags | kinds | json_texts, inner, max_size=3),
        st.tuples(kinds | tags, inner).map(lambda pair: {pair[0]: pair[1]}),
        st.lists(st.tuples(json_texts, inner).map(list), max_size=2).map(lambda pairs: {"$map": pairs}),
        inner.map(lambda part: {"$role": "ai", "content": part}),
    ),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(1000), deadline=None)
@given(any_json)
def test_any_json_is_an_item_or_refused(value: Any) -> None:
    text = orjson.dumps(value)
    read = orjson.loads(text)
    try:
        packed = pack_item(read)
    except CorruptStore:
        with pytest.raises(CorruptStore):
            pack_item(read, text)
        return
    assert pack_item(read, text) == packed
    assert split_array(b"\x91" + packed) == [packed]
    assert pack_items(orjson.loads(orjson.dumps(items_to_json(b"\x91" + packed)))) == b"\x91" + packed
