"""Edits between two values name the content at their places, and are complete."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from support.history.states import PLAIN, Order, Place

from langgraph_keel.engine.serde.serializer import encode
from langgraph_keel.history.edits import NOTHING, Edit, edits, parts_of


def told(before: Any, after: Any) -> list[tuple[str, tuple[Any, ...], Any, Any]]:
    return [(edit.kind, edit.path, edit.before, edit.after) for edit in edits(before, after, encode)]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        parts = parts_of(value)
        value = value[step] if parts is None else parts[step]
    return value


@given(PLAIN, PLAIN)
def test_there_are_edits_exactly_when_values_differ(before: Any, after: Any) -> None:
    found = list(edits(before, after, encode))
    assert bool(found) == (encode(before) != encode(after))
    for edit in found:
        if edit.kind != "removed":
            assert encode(at(after, edit.path)) == encode(edit.after)


def replayed(before: Any, found: list[Edit]) -> Any:
    """Apply edits of lists of numbers: removals from the end, then additions."""
    value = list(before)
    for edit in sorted((each for each in found if each.kind == "removed"), key=lambda each: -int(each.path[0])):
        assert value.pop(int(edit.path[0])) == edit.before
    for edit in (each for each in found if each.kind != "removed"):
        (place,) = map(int, edit.path)
        if edit.kind == "added":
            value.insert(place, edit.after)
        else:
            assert value[place] == edit.before
            value[place] = edit.after
    return value


@given(st.lists(st.integers(0, 4), max_size=8), st.lists(st.integers(0, 4), max_size=8))
def test_applying_the_edits_of_a_list_gives_the_newer_list(before: list[int], after: list[int]) -> None:
    assert replayed(before, list(edits(before, after, encode))) == after


def test_inserting_an_element_at_the_front_is_one_edit() -> None:
    assert told([1, 2, 3], [0, 1, 2, 3]) == [("added", (0,), NOTHING, 0)]


def test_unchanged_elements_between_two_changes_have_no_edits() -> None:
    assert told([1, 5, 2, 3], [0, 5, 2, 2, 4]) == [
        ("changed", (0,), 1, 0),
        ("changed", (3,), 3, 2),
        ("added", (4,), NOTHING, 4),
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (1, 1.0, ("changed", (), 1, 1.0)),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ("changed", ("a", "b"), 1, 2)),
        ({"a": 1}, {}, ("removed", ("a",), 1, NOTHING)),
        ({(1, 2): 1}, {(1, 2): 2}, ("changed", ("(1, 2)",), 1, 2)),
        ({1, 2}, {1}, ("changed", (), {1, 2}, {1})),
        (Order(item="tea"), Order(item="tea", count=2), ("changed", ("count",), 1, 2)),
        (Place("Oslo"), Place("Rome"), ("changed", ("city",), "Oslo", "Rome")),
    ],
    ids=repr,
)
def test_edits_of_every_kind_of_value(before: Any, after: Any, expected: Any) -> None:
    assert told(before, after) == [expected]


# -- messages --------------------------------------------------------------------------------------------------


def messages(*said: str) -> list[BaseMessage]:
    """Return messages such as "1 hello": an id and a text."""
    return [HumanMessage(text, id=name) for name, _, text in (each.partition(" ") for each in said)]


def test_messages_are_matched_by_id() -> None:
    before, after = messages("1 a", "2 b", "3 c"), messages("2 b", "3 C", "4 d")
    assert told(before, after) == [
        ("removed", (0,), before[0], NOTHING),
        ("changed", (1, "content"), "c", "C"),
        ("added", (2,), NOTHING, after[2]),
    ]


def test_a_moved_message_is_one_edit() -> None:
    before, after = messages("1 a", "2 b", "3 c"), messages("3 c", "1 a", "2 b")
    assert told(before, after) == [("moved", (0,), 2, 0)]


def test_a_different_message_with_the_same_id_is_changed() -> None:
    human, machine = HumanMessage("a", id="1"), AIMessage("a", id="1")
    assert told([human], [machine]) == [("changed", (0,), human, machine)]


def test_messages_without_ids_are_matched_by_content() -> None:
    before, after = [HumanMessage("a"), HumanMessage("b")], [HumanMessage("b")]
    assert told(before, after) == [("removed", (0,), before[0], NOTHING)]
