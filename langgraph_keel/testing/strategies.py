"""Strategies: values a channel may hold, and what a node may do to the state it was given."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

State = dict[str, Any]
Edit = tuple[str, Callable[[State], object]]


def texts() -> st.SearchStrategy[str]:
    """Return short texts."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def scalars() -> st.SearchStrategy[Any]:
    """Return values that stand in an entry's header, and some that just do not."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False),
        texts(),
        st.binary(max_size=80),
        st.sampled_from(["x" * 64, "x" * 65, (1, "two"), {1, 2}]),
    )


def elements() -> st.SearchStrategy[Any]:
    """Return what may stand in a list: small, large, equal to each other, or changeable in place."""
    return st.one_of(
        st.sampled_from([1, True, 1.0, "1", None]),
        st.integers(0, 999).map(lambda n: {"n": n, "text": f"{n} " * 40, "parts": [n]}),
        st.integers(0, 999).map(lambda n: HumanMessage(f"question {n} " * 9, id=f"h{n}")),
        st.integers(0, 999).map(lambda n: AIMessage(f"answer {n}", id=f"a{n}", additional_kwargs={"n": [n]})),
    )


def _at(value: list[Any], place: int) -> int:
    return place % len(value) if value else 0


def _changed_in_place(items: list[Any], place: int, text: str) -> None:
    item = items[_at(items, place)] if items else None
    if isinstance(item, dict):
        item["parts"].append(text)
    elif isinstance(item, HumanMessage | AIMessage):
        item.content = f"{item.content} {text}"


def list_edits() -> st.SearchStrategy[Edit]:
    """Return changes to the list of a state."""
    place = st.integers(0, 99)
    few, many = (st.lists(elements(), min_size=size, max_size=size + 2) for size in (1, 33))
    return st.one_of(
        st.one_of(few, many).map(lambda new: ("append", lambda s: s["list"].extend(deepcopy(new)))),
        st.tuples(place, elements()).map(
            lambda a: ("replace", lambda s: s["list"].__setitem__(slice(a[0], a[0] + 1), [deepcopy(a[1])]))
        ),
        st.tuples(place, elements()).map(lambda a: ("insert", lambda s: s["list"].insert(*deepcopy(a)))),
        place.map(lambda n: ("remove", lambda s: s["list"].__delitem__(slice(n, n + 2)))),
        place.map(lambda n: ("trim", lambda s: s["list"].__delitem__(slice(0, n % 20)))),
        place.map(lambda n: ("repeat", lambda s: s["list"].extend(s["list"][n : n + 2]))),
        st.just(("reverse", lambda s: s["list"].reverse())),
        st.just(("clear", lambda s: s["list"].clear())),
        st.tuples(place, texts()).map(lambda a: ("change in place", lambda s: _changed_in_place(s["list"], *a))),
    )


def _branch(state: State, place: int) -> dict[str, Any]:
    branches = [value for value in state["tree"].values() if isinstance(value, dict)]
    found: dict[str, Any] = branches[_at(branches, place)] if branches else state["tree"]
    return found


def tree_edits() -> st.SearchStrategy[Edit]:
    """Return changes to the dict of a state."""
    place, key = st.integers(0, 9), st.sampled_from(["a", "b", "c", "", "a.b"])
    branch = st.integers(0, 9).map(lambda n: {f"k{i}": {"n": n + i, "text": "leaf " * 9} for i in range(12)})
    return st.one_of(
        st.tuples(key, scalars()).map(lambda a: ("set", lambda s: s["tree"].__setitem__(*deepcopy(a)))),
        st.tuples(key, branch).map(lambda a: ("grow", lambda s: s["tree"].__setitem__(*deepcopy(a)))),
        key.map(lambda k: ("delete", lambda s: s["tree"].pop(k, None))),
        key.map(lambda k: ("move", lambda s: k in s["tree"] and s["tree"].update({k: s["tree"].pop(k)}))),
        st.tuples(place, key, scalars()).map(lambda a: ("set deep", lambda s: _branch(s, a[0]).__setitem__(*a[1:]))),
        st.tuples(place, key).map(lambda a: ("delete deep", lambda s: _branch(s, a[0]).pop(a[1], None))),
        st.just(("empty", lambda s: s["tree"].clear())),
    )


def channel_edits() -> st.SearchStrategy[Edit]:
    """Return changes to other channels, which come and go and take any kind of value."""
    channel = st.sampled_from(["x", "y"])
    value = st.one_of(scalars(), st.lists(elements(), max_size=3), st.dictionaries(texts(), scalars(), max_size=3))
    return st.one_of(
        st.tuples(channel, value).map(lambda a: ("set channel", lambda s: s.__setitem__(*deepcopy(a)))),
        channel.map(lambda name: ("empty channel", lambda s: s.pop(name, None))),
    )


def edits() -> st.SearchStrategy[list[Edit]]:
    """Return what one step does to a state."""
    return st.lists(st.one_of(list_edits(), tree_edits(), channel_edits()), min_size=1, max_size=4)
