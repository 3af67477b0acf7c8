"""Histories: what a channel may go through from one checkpoint to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

TREE: dict[str, Any] = {
    f"branch {n}": {"name": f"name {n}", "leaves": {f"leaf {k}": {"n": k, "text": "t" * 20} for k in range(8)}}
    for n in range(6)
}


def chat(count: int, start: int = 0) -> list[Any]:
    """Return messages of which no two are equal."""
    return [
        HumanMessage(f"question {n} " + "why " * 20, id=f"h{n}")
        if n % 2
        else AIMessage(f"answer {n} " + "so " * 30, id=f"a{n}", additional_kwargs={"n": n})
        for n in range(start, start + count)
    ]


def _changed(value: dict[str, Any], *changes: tuple[Sequence[str], Any]) -> dict[str, Any]:
    """Return a copy with the values at these paths set, or deleted where the value is `...`."""
    result = deepcopy(value)
    for (*path, key), new in changes:
        place = result
        for step in path:
            place = place[step]
        if new is ...:
            del place[key]
        else:
            place[key] = new
    return result


def _edited() -> list[Any]:
    messages = chat(12)
    edited = [*messages[:5], HumanMessage("edited", id="h5"), *messages[6:]]
    return [messages, edited, [*edited, *chat(1, 20)], messages]


def _tree_steps() -> list[Any]:
    leaf = ("branch 2", "leaves", "leaf 3")
    steps = [TREE, _changed(TREE, ((*leaf, "n"), "set"))]
    steps.append(_changed(steps[-1], ((*leaf, "new"), {"deep": [1, (2,)]}), (("branch 4", "name"), None)))
    steps.append(_changed(steps[-1], (leaf, ...), (("branch 0",), ...)))
    steps.append(_changed(steps[-1], (("branch 0",), TREE["branch 0"])))
    steps.append(_changed(steps[-1], (("branch 3",), "no longer a dict")))
    steps.append(_changed(steps[-1], (("branch 3",), TREE["branch 5"])))
    steps.append(_changed(steps[-1], (("branch 1", "leaves"), {})))
    return steps


def _snapshots() -> list[Any]:
    """Return so many changes that no chain of differences is worth reading any more."""
    steps = [TREE]
    for n in range(40):
        path = (f"branch {n % 6}", "leaves", f"leaf {n % 8}", "text")
        steps.append(_changed(steps[-1], (path, f"{n} " * 10)))
    return steps


def _appended(count: int) -> list[Any]:
    return [chat(n) for n in range(1, count)]


def _counted() -> list[Any]:
    """Return lists of many elements too small to be worth a row of their own."""
    return [list(range(n)) for n in (1, 2, 30, 31, 33, 64, 65, 1500, 1501, 1502, 3000)]


def _windows() -> list[Any]:
    return [chat(min(n, 20), max(0, n - 20)) for n in range(1, 60)]


LISTS: Mapping[str, Sequence[Any]] = {
    "appended one by one": _appended(46),
    "many small ones": _counted(),
    "edited in the middle": _edited(),
    "removed": [chat(9), [*chat(4), *chat(4, 5)], chat(4, 1), chat(1, 3), chat(1, 3) + chat(2, 30)],
    "a window that moves": _windows(),
    "reordered": [chat(6), chat(6)[::-1], chat(3, 3) + chat(3), chat(6)],
    "equal elements": [["a"], ["a", "a"], ["a", "b", "a", "a"], ["a", "a", "b"], ["b"] * 40, ["a", *["b"] * 40]],
    "emptied and grown again": [chat(5), [], chat(2), [], [], chat(5)],
    "summarized": [chat(40), [SystemMessage("summary", id="s"), *chat(4, 36)], chat(40)],
    "1000 elements": [chat(1000), [*chat(500), *chat(501, 501)], chat(3, 998)],
    "inserted at the front": [chat(n, 20 - n) for n in range(1, 20)],
    "almost equal": [[1], [True], [1.0], ["1"], [(1,)], [[1]], [{"a": 1}], [{"a": True}], [-0.0], [0.0], [None]],
    "keys moved inside": [[{"a": 1, "b": 2}], [{"b": 2, "a": 1}]],
}

DICTS: Mapping[str, Sequence[Any]] = {
    "set, deleted, replaced": _tree_steps(),
    "many snapshots": _snapshots(),
    "keys moved": [TREE, dict(reversed(TREE.items())), {**TREE, "z": 1}, {"z": 1, **TREE}],
    "keys moved inside": [TREE, {**TREE, "branch 2": dict(reversed(TREE["branch 2"].items()))}],
    "deleted and added again": [TREE, {k: v for k, v in TREE.items() if k != "branch 1"}, TREE],
    "emptied": [TREE, {}, TREE],
    "almost equal": [{**TREE, "x": x} for x in (1, True, 1.0, "1", (1,), [1], None, -0.0, 0.0, b"1")],
    "odd keys": [{**TREE, key: 1} for key in ("", "a.b", "it's", "\x00", "😀", "__x__")],
    "keys that are no text": [{**TREE, 1: "one"}, {**TREE, 1: "two", (1, 2): 3}, {**TREE, None: 1}],
    "many keys": [{f"k{n}": n + (n == changed) for n in range(300)} for changed in (0, 1, 150, 299)],
    "changed everywhere": [{f"k{n}": f"{step} {n} " * 9 for n in range(40)} for step in range(5)],
}

WHOLES: Mapping[str, Sequence[Any]] = {
    "text": ["a", "a" * 64, "a" * 65, "a" * 5000, "", "a" * 5000, "lone \ud800 surrogate"],
    "numbers": [0, False, 0.0, -0.0, 2**63 - 1, 2**63, -(2**63), -(2**70), 1.5, float("inf"), float("nan"), 3 + 4j],
    "bytes": [b"", b"a" * 64, b"a" * 65, bytearray(b"a" * 99), b"a" * 70000],
    "tuples and sets": [(), (1,), ([1], {"a": (2,)}), {1, 2}, frozenset({"a"}), ("x" * 90,) * 9],
    "one kind after another": [chat(3), TREE, None, "text", chat(4), 5, {}, [], TREE, ({"a": 1},), chat(4)],
    "a message": [chat(1)[0], AIMessage("other", id="a0"), chat(1)[0]],
}

HISTORIES: Mapping[str, Sequence[Any]] = {
    **{f"list: {name}": versions for name, versions in LISTS.items()},
    **{f"dict: {name}": versions for name, versions in DICTS.items()},
    **{f"value: {name}": versions for name, versions in WHOLES.items()},
}
