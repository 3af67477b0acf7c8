"""Word-by-word changes between two texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from langgraph_keel.history.edits import parts_between

TEXTS = st.text("ab \n.", max_size=20)


@given(TEXTS, TEXTS)
def test_a_word_diff_contains_both_texts(before: str, after: str) -> None:
    parts = parts_between(before, after)
    assert "".join(text for kind, text in parts if kind != "added") == before
    assert "".join(text for kind, text in parts if kind != "removed") == after
    assert all(text for _, text in parts)


def test_a_changed_word_is_the_only_change() -> None:
    assert parts_between("the red house.", "the blue house.") == [
        ("same", "the "),
        ("removed", "red"),
        ("added", "blue"),
        ("same", " house."),
    ]


def test_unchanged_words_between_two_changes_are_kept() -> None:
    assert ("same", " and so is ") in parts_between("Ann and so is Bob", "Eve and so is Joe")


def test_adjacent_changed_words_are_one_change() -> None:
    assert parts_between("a red brick house", "a blue wooden house") == [
        ("same", "a "),
        ("removed", "red brick"),
        ("added", "blue wooden"),
        ("same", " house"),
    ]


def test_long_texts_are_compared_by_lines() -> None:
    lines = [f"line {number} of a long text\n" for number in range(3000)]
    parts = parts_between("".join(lines), "".join(lines[:1500]) + "new\n" + "".join(lines[1500:]))
    assert ("added", "new\n") in parts
