"""Diffs of random states: the store's edits equal the values' edits.

The patch turns one state into the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jsonpatch
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pydantic import BaseModel
from support.history.states import PLAIN, stored
from support.tiers import examples

from langgraph_keel import MemorySaver
from langgraph_keel.display.jsonable import DEEPEST, as_json
from langgraph_keel.engine.serde.serializer import encode
from langgraph_keel.history.edits import Edit, edits


class Order(BaseModel):
    item: str
    parts: list[Any] = []


@dataclass
class Place:
    city: str
    notes: Any = None


WORDS = st.text("ab ~/\n<", max_size=6)
CALLS = st.lists(st.fixed_dictionaries({"name": WORDS, "args": st.dictionaries(WORDS, PLAIN, max_size=2)}), max_size=2)


def message(name: int, kind: int, said: Any, calls: list[Any]) -> BaseMessage:
    if kind == 0:
        return HumanMessage(said, id=str(name))
    if kind == 1:
        return ToolMessage(said, tool_call_id=str(name), id=str(name), artifact=said)
    return AIMessage(said, id=str(name), tool_calls=[{**call, "id": "c", "type": "tool_call"} for call in calls])


NAMED = st.lists(
    st.builds(message, st.integers(0, 9), st.integers(0, 2), WORDS, CALLS), max_size=9, unique_by=lambda each: each.id
)
UNNAMED = st.lists(st.builds(HumanMessage, WORDS), max_size=5)
VALUES = st.one_of(
    PLAIN,
    NAMED,
    UNNAMED,
    st.sets(st.integers(0, 5) | WORDS, max_size=4),
    st.builds(Order, item=WORDS, parts=st.lists(PLAIN, max_size=2)),
    st.builds(Place, WORDS, NAMED),
    st.binary(max_size=80),
    st.tuples(PLAIN, WORDS),
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.integers(0, 30), max_size=30, unique=True),
    st.dictionaries(WORDS, PLAIN | NAMED, max_size=30),
)
STATES = st.dictionaries(st.sampled_from(["messages", "a/b", "~", "<c>", "d"]), VALUES, max_size=4)


def told(found: Any) -> list[tuple[Any, ...]]:
    return [(edit.kind, edit.path, repr(edit.before), repr(edit.after)) for edit in found]


def marks(state: dict[str, Any]) -> dict[str, bytes]:
    return {channel: encode(value) for channel, value in state.items()}


def has_twins(state: dict[str, Any]) -> bool:
    """Whether a list has equal elements, which only the store can distinguish."""
    lists = [[encode(each) for each in value] for value in state.values() if type(value) is list]
    return any(len(set(each)) < len(each) for each in lists)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # distinguishes 1 and 1.0


@given(STATES, STATES)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_patch_turns_one_state_into_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    with MemorySaver() as saver:
        a, b = stored(saver, [before, after])
        for first, last, here, there in ((a, b, before, after), (b, a, after, before)):
            found = saver.diff(first, last)
            patched = jsonpatch.apply_patch(as_json(here), found.to_patch())
            assert canonical(patched) == canonical(as_json(there))
            assert bool(found) == (marks(here) != marks(there))
            json.dumps(found.plain(), allow_nan=False)
            assert len(list(found)) == len(found)


@pytest.mark.slow
@given(STATES, STATES)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_edits_of_the_store_equal_edits_of_the_values(before: dict[str, Any], after: dict[str, Any]) -> None:
    assume(not has_twins(before) and not has_twins(after))
    with MemorySaver() as saver:
        a, b = stored(saver, [before, after])
        older, newer = (saver.get_tuple(config) for config in (a, b))
        assert older
        assert newer
        expected = told(edits(older.checkpoint["channel_values"], newer.checkpoint["channel_values"], encode))
        (other,) = stored(saver, [after], "another")
        assert told(saver.diff(a, b)) == expected
        assert told(saver.diff(a, other)) == expected
        assert told(saver.diff(a, a)) == []


@pytest.mark.slow
@given(STATES, STATES)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_diff_can_be_shown(before: dict[str, Any], after: dict[str, Any]) -> None:
    with MemorySaver() as saver:
        found = saver.diff(*stored(saver, [before, after]))
        assert all(channel in found.to_text() for channel in found.channels)
        assert found.to_html().count("<div") == found.to_html().count("</div")
        assert "<c>" not in found.to_html()


def changed(before: Any, after: Any) -> list[Edit]:
    """Return the edits between two values of a channel, as the store finds them."""
    with MemorySaver() as saver:
        return list(saver.diff(*stored(saver, [{"x": before}, {"x": after}])))


def test_an_array_is_compared_as_one_value() -> None:
    before, after = np.arange(6.0), np.arange(6.0) * 2
    (edit,) = changed({"a": before, "b": before}, {"a": before, "b": after})
    assert (edit.kind, edit.path) == ("changed", ("x", "b"))
    assert np.array_equal(edit.after, after)


def test_a_message_with_an_array_can_be_compared() -> None:
    old = ToolMessage("a", tool_call_id="1", id="1", artifact=np.zeros(3))
    assert [edit.path for edit in changed([old], [old.model_copy(update={"content": "b"})])] == [("x", 0, "content")]


def test_an_edit_names_the_message_that_contains_it() -> None:
    inner = HumanMessage("a", id="in")
    outer = ToolMessage("-", tool_call_id="1", id="out", artifact={"history": [inner]})
    newer = outer.model_copy(update={"artifact": {"history": [inner.model_copy(update={"content": "b"})]}})
    (edit,) = changed([outer], [newer])
    assert edit.path == ("x", 0, "artifact", "history", 0, "content")
    assert edit.within
    assert (edit.within[0], edit.within[1].id) == (5, "in")


@pytest.mark.parametrize(
    "wrap", [lambda inner: [inner], lambda inner: {"k": inner}, Place], ids=["list", "dict", "data"]
)
def test_too_deep_values_are_compared_as_json(wrap: Any) -> None:
    """Parts below the deepest level are compared as one value, in its JSON form."""
    sides: list[Any] = [1, 2]
    for _ in range(DEEPEST + 20):
        sides = [wrap(each) for each in sides]
    before, after = ({"x": each} for each in sides)
    with MemorySaver() as saver:
        patch = saver.diff(*stored(saver, [before, after])).to_patch()
    assert jsonpatch.apply_patch(as_json(before), patch) == as_json(after)


def test_an_object_with_a_missing_field_can_be_compared() -> None:
    less = Place("Oslo", 1)
    del less.city
    sides: list[Mapping[str, Any]] = [{"x": Place("Oslo", 1)}, {"x": less}]
    for before, after in (sides, sides[::-1]):
        with MemorySaver() as saver:
            patch = saver.diff(*stored(saver, [dict(before), dict(after)])).to_patch()
        assert jsonpatch.apply_patch(as_json(before), patch) == as_json(after)
