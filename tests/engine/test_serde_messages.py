"""LangChain messages: fast packing and unpacking, and fingerprints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support.engine.messages import CLASSES, messages, messages_of, plain
from support.engine.samples import Colour, Frozen, Level, assert_same
from support.tiers import examples

from langgraph_keel.engine.encoding.bodies import array_header
from langgraph_keel.engine.serde.serializer import KeelSerializer
from langgraph_keel.engine.serde.serializer import encode as fingerprint
from langgraph_keel.engine.serde.types import MESSAGES
from langgraph_keel.errors import UnstorableValue

KEEL = KeelSerializer()
LANGGRAPH = JsonPlusSerializer()


def test_every_message_class_has_a_fast_path() -> None:
    assert set(CLASSES) == set(MESSAGES)


@pytest.mark.parametrize("cls", CLASSES)
def test_messages_are_packed_by_the_fast_path(cls: type[BaseMessage]) -> None:
    specific = {"tool_call_id": "1", "role": "r", "name": "n"}
    given_fields = {k: v for k, v in specific.items() if k in cls.model_fields}
    message = RemoveMessage(id="1") if cls is RemoveMessage else cls(content="x", **given_fields)
    item = KEEL.pack_item(message)
    assert item[1] == 1
    assert KEEL.pack_item([message])[:2] == b"\x92\x00"
    assert_same(KEEL.unpack_items(array_header(1) + item), [message])


@pytest.mark.parametrize("cls", CLASSES)
def test_a_revived_message_equals_langgraphs(cls: type[BaseMessage]) -> None:
    @settings(max_examples=examples(40), deadline=None)
    @given(messages_of(cls))
    def holds(message: BaseMessage) -> None:
        theirs = LANGGRAPH.loads_typed(LANGGRAPH.dumps_typed(message))
        for ours in (KEEL.unpack(KEEL.pack(message)), items_of([message])[0]):
            assert type(ours) is type(theirs) is cls
            assert ours == theirs == message
            assert ours.model_dump() == theirs.model_dump()
            assert_same(vars(ours), vars(message))
            assert ours.__pydantic_extra__ == message.__pydantic_extra__
            assert ours.__pydantic_fields_set__ == message.__pydantic_fields_set__
            assert ours.__pydantic_private__ == message.__pydantic_private__

    holds()


def items_of(values: list[Any]) -> list[Any]:
    return KEEL.unpack_items(array_header(len(values)) + b"".join(map(KEEL.pack_item, values)))


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(messages | plain, max_size=5))
def test_items_are_fresh_and_equal(values: list[Any]) -> None:
    first, second = items_of(values), items_of(values)
    assert_same(first, values)
    for one, other, put in zip(first, second, values, strict=True):
        if isinstance(put, BaseMessage):
            assert one is not other is not put
            assert one.additional_kwargs is not other.additional_kwargs
            one.additional_kwargs["new"] = 1
            assert "new" not in other.additional_kwargs


def test_a_revived_message_works_like_a_constructed_one() -> None:
    back = items_of([AIMessage("hi", id="1", tool_calls=[{"name": "f", "args": {}, "id": "c"}])])[0]
    assert back.model_copy(update={"content": "ho"}).content == "ho"
    assert back.text == "hi"
    assert back.tool_calls[0]["name"] == "f"
    back.id = "2"
    assert back.id == "2"
    assert "id" in back.model_fields_set


def test_a_message_of_another_langchain_is_validated() -> None:
    item = KEEL.pack_item(HumanMessage("x", id="1", custom=(1, 2)))
    assert b"\xa4name" in item
    older = item.replace(b"\x86\xa7content", b"\x85\xa7content").replace(b"\xa4name\xc0", b"")
    back = KEEL.unpack_items(array_header(1) + older)[0]
    assert back == HumanMessage("x", id="1", custom=(1, 2))


def test_the_fields_of_a_message_may_have_another_order() -> None:
    message = HumanMessage("x", id="1")
    state = vars(message)
    state["content"] = state.pop("content")
    assert_same(items_of([message]), [message])


def test_a_message_class_of_the_program_keeps_its_type() -> None:
    message = Remark(content="x", mood="good")
    assert KEEL.pack_item(message)[1] == 0
    assert_same(items_of([message]), [message])


class Remark(HumanMessage):
    mood: str


# --- Fingerprints ---


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(messages | plain | st.binary(max_size=3).map(bytearray) | st.tuples(plain), max_size=5))
def test_the_fingerprint_of_a_list_joins_those_of_its_elements(values: list[Any]) -> None:
    parts = [fingerprint(value) for value in values]
    assert fingerprint(values) == array_header(len(values)) + b"".join(parts)
    body = fingerprint(values)[len(array_header(len(values))) :]
    for n in range(len(values)):
        assert body.startswith(fingerprint(values[:n])[len(array_header(n)) :])


@settings(max_examples=examples(60), deadline=None)
@given(messages)
def test_an_untouched_copy_has_the_same_fingerprint(message: BaseMessage) -> None:
    assert fingerprint(message) == fingerprint(message.model_copy(deep=True)) == fingerprint(items_of([message])[0])


def call() -> AIMessage:
    calls = [{"name": "f", "args": {"x": {"y": [1]}}, "id": "1", "type": "tool_call"}]
    kwargs = {"n": 5, "t": (1, 2), "e": Level.LOW, "b": b"x", "m": {"a": 1, "b": 2}, "f": Frozen(Colour.RED)}
    return AIMessage("text", id="1", tool_calls=calls, additional_kwargs=kwargs, custom={"deep": [1]})


def reorder(message: AIMessage) -> None:
    message.additional_kwargs["m"]["a"] = message.additional_kwargs["m"].pop("a")


MUTATIONS: dict[str, Callable[[AIMessage], Any]] = {
    "content": lambda m: setattr(m, "content", "text "),
    "content blocks": lambda m: setattr(m, "content", ["text"]),
    "nested tool call": lambda m: m.tool_calls[0]["args"]["x"]["y"].append(2),
    "tool call added": lambda m: m.tool_calls.append(m.tool_calls[0]),
    "metadata": lambda m: m.response_metadata.update(stop=1),
    "pydantic extra": lambda m: m.__pydantic_extra__["custom"]["deep"].append(2),  # type: ignore[index]
    "extra key": lambda m: m.__pydantic_extra__.update(more=None),  # type: ignore[union-attr]
    "fields set": lambda m: m.__pydantic_fields_set__.add("name"),
    "fields unset": lambda m: m.__pydantic_fields_set__.discard("id"),
    "private": lambda m: object.__setattr__(m, "__pydantic_private__", {"_p": 1}),
    "int to float": lambda m: m.additional_kwargs.update(n=5.0),
    "int to bool": lambda m: m.additional_kwargs.update(n=True),
    "int to str": lambda m: m.additional_kwargs.update(n="5"),
    "tuple to list": lambda m: m.additional_kwargs.update(t=[1, 2]),
    "enum to value": lambda m: m.additional_kwargs.update(e=1),
    "bytes to bytearray": lambda m: m.additional_kwargs.update(b=bytearray(b"x")),
    "bytes to str": lambda m: m.additional_kwargs.update(b="x"),
    "str key to int key": lambda m: m.additional_kwargs.update(m={1: 1, "b": 2}),
    "key order": reorder,
    "dataclass": lambda m: m.additional_kwargs.update(f=Frozen(Colour.PAIR)),
    "none to missing": lambda m: m.additional_kwargs.pop("n"),
    "id": lambda m: setattr(m, "id", "2"),
}


@pytest.mark.parametrize("mutate", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_change_in_place_changes_the_fingerprint(mutate: Callable[[AIMessage], Any]) -> None:
    history = [HumanMessage("x"), call(), HumanMessage("y")]
    before, packed = fingerprint(history), KEEL.pack(history)
    assert before == fingerprint([HumanMessage("x"), call(), HumanMessage("y")])
    mutate(history[1])  # type: ignore[arg-type]
    assert fingerprint(history) != before
    assert KEEL.pack(history) != packed
    back = items_of(history)
    assert_same(vars(back[1]), vars(history[1]))
    assert back[1].__pydantic_private__ == history[1].__pydantic_private__
    assert back[1].model_fields_set == history[1].model_fields_set


def test_a_message_is_not_mistaken_for_its_parts() -> None:
    message = HumanMessage("x")
    fakes: list[Any] = [vars(message), [vars(message)], [0, vars(message), ["content"]], KEEL.pack(message)]
    assert fingerprint(message) not in [fingerprint(fake) for fake in fakes]


@pytest.mark.parametrize("n", [0, 1, 15, 16, 70000])
def test_fingerprints_of_long_lists(n: int) -> None:
    assert fingerprint([1] * n) == array_header(n) + b"\x01" * n


def test_an_unstorable_value_has_no_fingerprint() -> None:
    with pytest.raises(UnstorableValue) as caught:
        fingerprint([1, {"a": (object(),)}])
    assert caught.value.path == "[1]['a'][0]"
