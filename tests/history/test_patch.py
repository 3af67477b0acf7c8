"""A JSON Patch of edits, applied by a library that is independent of Keel."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from support.history.states import PLAIN, Order, Place

from langgraph_keel.display.jsonable import as_json
from langgraph_keel.engine.serde.serializer import encode
from langgraph_keel.history.diff import operations
from langgraph_keel.history.edits import edits


def patched(before: Any, after: Any) -> Any:
    patch = jsonpatch.JsonPatch(operations(edits(before, after, encode)))
    return patch.apply(as_json(before))


@given(PLAIN, PLAIN)
def test_a_patch_turns_the_older_value_into_the_newer(before: Any, after: Any) -> None:
    assert canonical(patched({"x": before}, {"x": after})) == canonical(as_json({"x": after}))


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # distinguishes 1 and 1.0


NAMES = st.lists(st.integers(0, 9), unique=True, max_size=9)


def said(names: list[int], words: dict[int, str]) -> dict[str, list[BaseMessage]]:
    return {"messages": [HumanMessage(words.get(name, "so"), id=str(name)) for name in names]}


@given(NAMES, NAMES, st.dictionaries(st.integers(0, 9), st.text("ab", max_size=2)))
def test_a_patch_of_added_removed_moved_and_changed_messages(
    before: list[int], after: list[int], words: dict[int, str]
) -> None:
    older, newer = said(before, {}), said(after, words)
    assert patched(older, newer) == as_json(newer)


def test_a_moved_message_is_one_operation() -> None:
    older, newer = said([1, 2, 3], {}), said([2, 3, 1], {})
    assert operations(edits(older, newer, encode)) == [{"op": "move", "from": "/messages/0", "path": "/messages/2"}]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a/b": {"~": 1}}, {"a/b": {"~": 2}}),
        ({1: "x", (2, 3): "y"}, {1: "z"}),
        ({"s": {1, 2}}, {"s": {2, 3}}),
        ({"o": [Order(item="tea")]}, {"o": [Order(item="tea", count=2), Order(item="rum")]}),
        ({"p": Place("Oslo")}, {"p": Place("Rome", "00100")}),
        ({"m": [AIMessage("a", id="1")]}, {"m": [AIMessage("", id="1", name="x")]}),
        ({"m": [AIMessage("a", id="1")]}, {"m": [HumanMessage("a", id="1")]}),
        ({"t": (1, 2)}, {"t": [1, 2]}),
        ({"l": [[1, 2], [3]]}, {"l": [[0], [1, 2, 4], [3]]}),
        ({"gone": 1}, {}),
    ],
    ids=repr,
)
def test_a_patch_of_every_kind_of_value(before: Any, after: Any) -> None:
    assert patched(before, after) == as_json(after)
