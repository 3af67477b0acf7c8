"""Keys of tool calls: equal for equal arguments only, and they reveal nothing."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from pydantic import BaseModel
from support.tiers import examples
from support.tools.caches import THREAD

from langgraph_keel import InvalidInput, MemorySaver, SqliteSaver, ToolCache
from langgraph_keel.tools.keys import arguments_of, key_of, to_json

SECRET = b"k" * 32
MANY = settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Level(StrEnum):
    LOW = "low"
    HIGH = "high"


class Color(Enum):
    RED = 1
    BLUE = 2


class Size(Enum):
    SMALL = 1


def key(value: Any, *, secret: bytes = SECRET, name: str = "search", scope: str = "", **more: Any) -> str:
    return key_of(secret, name, scope, {"value": value}, **more)


# -- equal arguments ---------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(-3, 3), st.integers(), st.integers(2**53 - 2, 2**53 + 2), st.floats())
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.text(max_size=4),
    st.sampled_from(["", "1", "a", "YQ==", "1970-01-01", "NaN", "low", "null"]),
    st.binary(max_size=3),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.sampled_from([*Level, *Color, PurePosixPath("a"), date(1970, 1, 1), datetime(1970, 1, 1), Decimal(1)]),
)
KINDS = ("bytes", "set", "int", "float", "dict", "enum", "date", "timedelta", "object")


def containers(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.one_of(st.text(max_size=2), st.sampled_from(["$keel", "a", "b"]))
    return st.one_of(
        st.lists(parts, max_size=3),
        st.tuples(parts, parts),
        st.dictionaries(names, parts, max_size=3),
        st.dictionaries(st.one_of(names, st.integers(-2, 2)), parts, max_size=3),
        st.sets(st.one_of(st.integers(-9, 9), st.text(max_size=2)), max_size=4),
        st.builds(lambda kind, value: {"$keel": [kind, value]}, st.sampled_from(KINDS), parts),
    )


VALUES = st.recursive(LEAVES, containers, max_leaves=8)


def same(a: Any, b: Any) -> bool:
    """Compare values of equal types, but list with tuple and int with float."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return len(a) == len(b) and all(any(same(n, m) and same(a[n], b[m]) for m in b) for n in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set) and isinstance(b, set):
        return a == b
    if {type(a), type(b)} <= {int, float}:
        return bool(a == b) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and bool(a == b)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two similar values: any two, or a value and a part or canonical form of it."""
    first = draw(VALUES)
    parts = list(first.values() if isinstance(first, Mapping) else first if isinstance(first, list | tuple) else [])
    near = [str(first), [first], {"value": first}, to_json(first, ""), *parts]
    return first, draw(st.one_of(VALUES, st.sampled_from(near)))


@MANY
@given(pairs())
def test_different_values_have_different_keys(pair: tuple[Any, Any]) -> None:
    assume(not same(*pair))
    assert key(pair[0]) != key(pair[1])


def rewritten(value: Any, chance: random.Random) -> Any:
    """Return an equal value: another order, list for tuple, float for int."""
    if isinstance(value, dict):
        return {name: rewritten(value[name], chance) for name in chance.sample(list(value), len(value))}
    if isinstance(value, list | tuple):
        return chance.choice([list, tuple])(rewritten(part, chance) for part in value)
    if isinstance(value, set):
        return chance.choice([set, frozenset])(chance.sample(sorted(value, key=repr), len(value)))
    if type(value) is int and abs(value) < 2**53:
        return chance.choice([int, float])(value)
    return bytearray(value) if isinstance(value, bytes) else value


@MANY
@given(VALUES, st.randoms(use_true_random=False))
def test_equal_values_have_equal_keys(value: Any, chance: random.Random) -> None:
    assert key(value) == key(rewritten(value, chance))


@MANY
@given(st.dictionaries(st.text(max_size=3), LEAVES, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_arguments_does_not_change_the_key(args: dict[str, Any], chance: random.Random) -> None:
    assert key_of(SECRET, "t", "", args) == key_of(SECRET, "t", "", rewritten(args, chance))


LOOKALIKES: dict[str, tuple[Any, Any]] = {
    "true and 1": (True, 1),
    "an integer and its text": (2**60, str(2**60)),
    "large integers": (2**53, 2**53 + 1),
    "bytes and their base64": (b"a", "YQ=="),
    "bytes and our tag for them": (b"a", {"$keel": ["bytes", "YQ=="]}),
    "our tag and a tag of it": ({"$keel": 1}, {"$keel": ["dict", [["$keel", 1]]]}),
    "a name and a number": ({1: "a"}, {"1": "a"}),
    "a set and a list": ({1, 2}, [1, 2]),
    "a date and midnight": (date(2026, 1, 1), datetime(2026, 1, 1)),
    "a zone and none": (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1)),
    "two zones": (time(12, tzinfo=UTC), time(12, tzinfo=timezone(timedelta(hours=1)))),
    "a UUID and its text": (UUID(int=1), str(UUID(int=1))),
    "a path and a number": (PurePosixPath("1"), Decimal(1)),
    "an enum and its value": (Level.LOW, "low"),
    "two enums of one value": (Color.RED, Size.SMALL),
    "infinities": (math.inf, -math.inf),
    "not a number, and its name": (math.nan, "nan"),
    "missing and null": ({}, {"a": None}),
    "a nested list": ([[1], 2], [1, [2]]),
    "an accent in two ways": ("\u00e9", "e\u0301"),
}


@pytest.mark.parametrize("case", LOOKALIKES)
def test_lookalikes_have_different_keys(case: str) -> None:
    one, other = LOOKALIKES[case]
    assert key(one) != key(other)


@dataclass
class Item:
    name: str


def namesake() -> Any:
    @dataclass
    class Item:
        name: str

    Item.__qualname__, Item.__module__ = "Item", "elsewhere"
    return Item("a")


def test_classes_with_equal_names_have_different_keys() -> None:
    assert key(Item("a")) == key(Item("a"))
    assert key(Item("a")) != key(Item("b"))
    assert key(Item("a")) != key({"name": "a"})
    assert key(Item("a")) != key(namesake())


# -- other parts of a key ----------------------------------------------------------------------------------------------


@MANY
@given(VALUES)
def test_a_key_is_a_digest_that_depends_on_the_secret(value: Any) -> None:
    assert re.fullmatch("[0-9a-f]{64}", key(value))
    assert key(value) == key(value)
    assert key(value, secret=b"l" * 32) != key(value)


def test_tool_name_and_scope_change_the_key() -> None:
    keys = {key(1, name=name, scope=scope) for name in ("a", "ab", "b") for scope in ("", "a", "b", "run b")}
    assert len(keys) == 12


def test_ignored_arguments_do_not_change_the_key() -> None:
    @tool
    def noisy(a: int, noise: Any) -> str:
        """Do something."""
        return "done"

    for noise in ("x", object(), None):
        assert arguments_of(noisy, {"a": "1", "noise": noise}, ["noise"]) == {"a": 1}
    assert arguments_of(noisy, {"a": 1}, ["noise"]) == {"a": 1}
    assert arguments_of(noisy, {"a": 1, "noise": 1}) == {"a": 1, "noise": 1}


def looped() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, object()]}, r"tool 'search', arguments\.value\.a\[1\]: a builtins\.object"),
        ({"b": SimpleNamespace(x=1)}, r"tool 'search', arguments\.value\.b: a types\.SimpleNamespace"),
        ([complex(1, 2)], r"tool 'search', arguments\.value\[0\]: a builtins\.complex"),
        (int, r"tool 'search', arguments\.value: a builtins\.type"),
        (looped(), "the arguments of tool 'search' have no canonical form"),
        ("\ud800", "the arguments of tool 'search' have no canonical form"),
    ],
    ids=["object", "namespace", "complex", "class", "loop", "surrogate"],
)
def test_an_argument_without_a_canonical_form_is_named(value: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        key(value)


SOME = """
from datetime import date
from decimal import Decimal
from langgraph_keel.tools.keys import key_of
words = {"red", "green", "blue", "black", "white"}
args = {"tags": words, "pairs": {(word, 1) for word in words}, "more": {"b": frozenset(words), "a": [b"x", 2**70]},
        "when": date(2026, 1, 2), "price": Decimal("1.50"), "rate": 0.1}
print(key_of(b"k" * 32, "search", "", args))
"""


@pytest.mark.slow
def test_keys_are_the_same_in_every_process() -> None:
    """Sets of strings have another order in every process."""
    printed = {
        subprocess.check_output([sys.executable, "-c", SOME], env={**os.environ, "PYTHONHASHSEED": seed}, timeout=60)
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert re.fullmatch(rb"[0-9a-f]{64}\n", printed.pop())


# -- the arguments of real tools ---------------------------------------------------------------------------------------


class Filter(BaseModel):
    field: str
    op: Literal["eq", "ne"] = "eq"


@tool
def search(
    query: str,
    limit: int = 10,
    since: date | None = None,
    where: Filter | None = None,
    tags: frozenset[str] = frozenset(),
) -> str:
    """Search."""
    return query


def key_of_call(args: dict[str, Any]) -> str:
    return key_of(SECRET, search.name, "", arguments_of(search, args))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"query": "q", "limit": 10}, {"limit": "10", "query": "q"}),
        ({"query": "q"}, {"query": "q", "limit": 10, "since": None, "where": None, "tags": []}),
        ({"query": "q", "limit": 5.0}, {"query": "q", "limit": 5}),
        ({"query": "q", "since": "2026-01-02"}, {"query": "q", "since": date(2026, 1, 2)}),
        ({"query": "q", "where": {"op": "eq", "field": "f"}}, {"query": "q", "where": {"field": "f"}}),
        ({"query": "q", "where": Filter(field="f")}, {"query": "q", "where": {"field": "f"}}),
        ({"query": "q", "tags": ["a", "b", "a"]}, {"query": "q", "tags": ["b", "a"]}),
        ({"query": "q", "unknown": 1}, {"query": "q"}),
    ],
)
def test_equivalent_forms_of_a_call_have_equal_keys(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of_call(one) == key_of_call(other)
    assert key_of_call(one) != key_of_call({**other, "query": "p"})
    assert key_of_call(one) != key_of_call({**other, "limit": 11})


def test_a_tool_with_a_json_schema_uses_unvalidated_arguments() -> None:
    """Tools of MCP servers have a dict as their schema, which cannot validate."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "default": 1}, "m": {}}}
    remote = StructuredTool(name="remote", description="d", args_schema=schema, func=lambda **args: "x")
    forms: list[dict[str, Any]] = [{"n": 1, "m": [2]}, {"m": [2], "n": 1}, {"n": "1", "m": [2]}, {"m": [2]}]
    keys = [key_of(SECRET, "remote", "", arguments_of(remote, args)) for args in forms]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def node_of(cache: ToolCache, *tools: BaseTool) -> Callable[..., Any]:
    """Return a function that runs a call in a graph with only a `ToolNode`."""
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools, wrap_tool_call=cache.wrap_tool_call))
    graph.add_edge(START, "tools")
    compiled = graph.compile()

    def run(name: str, call_id: str, **args: Any) -> str:
        asked = AIMessage(call_id, tool_calls=[{"name": name, "args": args, "id": call_id}])
        config: RunnableConfig = {"configurable": {"thread_id": "t"}}
        return str(compiled.invoke({"messages": [asked]}, config)["messages"][-1].content)

    return run


def test_injected_arguments_do_not_change_the_key() -> None:
    seen: list[tuple[Any, ...]] = []

    @tool
    def look(
        x: int,
        state: Annotated[Any, InjectedState],
        call_id: Annotated[str, InjectedToolCallId],
        runtime: ToolRuntime,
    ) -> str:
        """Look."""
        seen.append((x, state["messages"][0].content, call_id, runtime.tool_call_id))
        return call_id

    run = node_of(ToolCache(MemorySaver()), look)
    assert [run("look", "first", x=1), run("look", "second", x="1"), run("look", "third", x=2)] == [
        "first",
        "first",
        "third",
    ]
    assert seen == [(1, "first", "first", "first"), (2, "third", "third", "third")]


# -- stored data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stores", [False, True])
def test_arguments_are_stored_only_with_store_arguments(tmp_path: Path, stores: bool) -> None:
    @tool
    def length(word: str) -> str:
        """Return the length of a word."""
        return str(len(word))

    with SqliteSaver(tmp_path / "keel.db") as saver, ToolCache(saver, store_arguments=stores) as cache:
        assert node_of(cache, length)("length", "1", word="hunter2hunter2") == "14"
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"length" in raw
    assert (b"hunter2hunter2" in raw) is stores


@pytest.mark.parametrize(("one", "other"), [(b"a" * 16, b"b" * 16), (None, None)], ids=["given", "made"])
def test_stores_with_different_secrets_have_different_keys(one: bytes | None, other: bytes | None) -> None:
    """Each store has other keys, so the keys of two customers cannot be compared."""

    def key(secret: bytes | None) -> str:
        saver = MemorySaver()
        node_of(ToolCache(saver, default=THREAD, secret=secret), search)("search", "1", query="q")
        (call,) = saver.tools.calls("t")
        return call.key

    assert key(one) != key(other)
    assert one is None or key(one) == key(one)
