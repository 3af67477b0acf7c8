"""Odd and wrong items: the right answer or a named error, and no partial writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from support.savers import each_backend, each_face
from support.store.opened import Asked, opened

from langgraph_keel import CorruptStore, InvalidInput, MemorySaver
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.tables import Cells
from langgraph_keel.store import items
from langgraph_keel.store.records import ITEMS, StoredItem, cell_key

ODD = ["%", "_", "\\", "*", "a", "A", "a%", "a_", "ab", "a\n", "ä", "\ud800", "x" * 10_000, "'; --", "0" * 32, "\x1f"]
"""Labels that a store could take for a pattern, another label or its prefix."""
REFUSED = [("a.b",), ("a", ""), ("a", 1), ("a\0",), "abc", None, ("a", None)]
DEEP: dict[str, Any] = {}
for _ in range(150):
    DEEP = {"x": DEEP}
NOT_JSON: list[Any] = [
    {"a": (1, 2)},
    {"a": [{"b": (1,)}]},
    {"a": float("nan")},
    {"a": float("-inf")},
    {1: 2},
    {"a": {None: 2}},
    {"a": b"bytes"},
    {"a": {1}},
    {"a": object()},
    DEEP,
    [],
    "text",
    7,
]
JSON: list[dict[str, Any]] = [
    {},
    {"": 1, "$eq": 2, "a.b": 3, "a\0": "\0", "\ud800": "\ud800"},
    {"huge": 10**5000, "small": -(2**63) - 1, "more": 2**64, "exact": 2**53 + 1},
    {"t": True, "f": False, "n": None, "e": 1e308, "z": -0.0, "l": [[], {}, [None]]},
    {f"field {n}": n for n in range(3000)},
    {"text": "y" * 300_000},
]


@each_backend
@each_face
def test_similar_namespace_labels_are_distinct(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    around = [((), ()), (("a",), ()), (("a", "b"), ()), (("a", "b"), ("c",))]
    namespaces: list[tuple[str, ...]] = [(*before, label, *after) for before, after in around for label in ODD]
    with opened(backend, tmp_path, request) as place:
        store = Asked(place.open().store(), face)
        store.batch([PutOp(each, "k", {"n": n}) for n, each in enumerate(namespaces)])
        for n, each in enumerate(namespaces):
            assert store.get(each, "k").value == {"n": n}
        for each in ((), *namespaces):
            found = store.search(each, limit=1000)
            assert [item.namespace for item in found] == [
                other for other in reversed(namespaces) if other[: len(each)] == each
            ]
        assert store.list_namespaces(limit=1000) == sorted(namespaces)
        for each in (("a",), ("a", "b")):
            assert store.list_namespaces(prefix=each, limit=1000) == sorted(
                other for other in namespaces if other[: len(each)] == each
            )
            assert store.list_namespaces(suffix=each, limit=1000) == [
                other for other in sorted(namespaces) if other[-len(each) :] == each
            ]
        store.batch([PutOp(each, "k", None) for each in namespaces[::2]])
        assert store.list_namespaces(limit=1000) == sorted(namespaces[1::2])


@each_backend
@each_face
def test_any_text_is_a_key(backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    keys = [*ODD, "", ".", "a.b", "\0", "a\0", "x" * 9_999 + "y"]
    with opened(backend, tmp_path, request) as place:
        store = Asked(place.open().store(), face)
        store.batch([PutOp(("a",), key, {"n": n}) for n, key in enumerate(keys)])
        assert [store.get(("a",), key).value["n"] for key in keys] == [*range(len(keys))]
        assert {item.key for item in store.search(("a",), limit=100)} == {*keys}
        with pytest.raises(InvalidInput, match="not a key of an item"):
            store.batch([PutOp(("a",), 7, {"n": 1})])  # type: ignore[arg-type]


@each_backend
@each_face
def test_a_refused_batch_stores_nothing(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with opened(backend, tmp_path, request) as place:
        store = Asked(place.open().store(), face)
        good = PutOp(("a",), "good", {"n": 1})
        for namespace in REFUSED:
            for op in (PutOp(namespace, "k", {"n": 1}), SearchOp(namespace)):  # type: ignore[arg-type]
                with pytest.raises(InvalidInput, match="not a namespace") as error:
                    store.batch([good, op])
                assert isinstance(error.value, InvalidNamespaceError)
        for value in NOT_JSON:
            with pytest.raises(InvalidInput, match="item 'k' of"):
                store.batch([good, PutOp(("a",), "k", value)])
        for ttl in (0, -1, float("nan"), float("inf"), "1", True):
            with pytest.raises(InvalidInput, match="time to live"):
                store.batch([good, PutOp(("a",), "k", {"n": 1}, ttl=ttl)])  # type: ignore[arg-type]
        bad: list[Any] = [
            SearchOp(("a",), {"n": {"$in": [1]}}),
            SearchOp(("a",), [("n", 1)]),  # type: ignore[arg-type]
            SearchOp(("a",), limit=-1),
            SearchOp(("a",), offset=1.5),  # type: ignore[arg-type]
            SearchOp(("a",), limit=True),
            ListNamespacesOp(limit=-1),
            ListNamespacesOp(max_depth=0),
            ListNamespacesOp(max_depth="1"),  # type: ignore[arg-type]
            ListNamespacesOp((MatchCondition("infix", ("a",)),)),  # type: ignore[arg-type]
            ListNamespacesOp((MatchCondition("prefix", ("a.b",)),)),
            "get",
        ]
        for op in bad:
            with pytest.raises(InvalidInput):
                store.batch([good, op])
        assert store.search((), limit=1000) == []
        assert store.list_namespaces() == []


@each_backend
@each_face
def test_json_values_are_read_back_unchanged(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with opened(backend, tmp_path, request) as place:
        store = Asked(place.open().store(), face)
        for n, value in enumerate(JSON):
            store.put(("a",), f"k{n}", value)
            read, (found,) = store.get(("a",), f"k{n}"), store.search(("a",), limit=1)
            assert read.value == found.value == value
            assert [*read.value] == [*value]
            # A field that equals a text or a number is found by that value only.
            for field, each in [*value.items()][:5]:
                if type(each) in (str, int) and field != "$eq":
                    assert [item.key for item in store.search(("a",), filter={field: each})] == [f"k{n}"]


@each_backend
def test_later_changes_to_a_value_are_not_stored(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with opened(backend, tmp_path, request) as place:
        store, value = place.open().store(), {"list": [1], "dict": {"a": 1}}
        store.put(("a",), "k", value)
        value["list"].append(2)  # type: ignore[attr-defined]
        read = store.get(("a",), "k").value
        assert read == {"list": [1], "dict": {"a": 1}}
        read["dict"]["a"] = 2
        assert store.get(("a",), "k").value == {"list": [1], "dict": {"a": 1}}


FOUND: list[tuple[Any, str]] = [
    ({"n": 1}, "ABC"),
    ({"n": 1.0}, "ABC"),
    ({"n": "1"}, "D"),
    ({"n": None}, "EFGH"),
    ({"missing": None}, "ABCDEFGH"),
    ({"missing": 1}, ""),
    ({"n": {"$gt": 0}}, "ABC"),
    ({"n": {"$gt": "0"}}, "D"),
    ({"n": {"$gte": None}}, ""),
    ({"n": {"$lt": float("nan")}}, ""),
    ({"n": {"$lt": 10**400}}, "ABC"),
    ({"n": float("nan")}, ""),
    ({"n": {"$ne": 1}}, "DEFGH"),
    ({"missing": {"$lte": 5}}, ""),
    ({"l": [1, 2]}, "F"),
    ({"l": (1, 2)}, "F"),
    ({"l": [1]}, ""),
    ({"d": {"e": "x"}}, "G"),
    ({"d": {"e": {"$lt": "y"}}}, "G"),
    ({"d": {}}, "GH"),
    ({"d": {"e": None}}, "H"),
    ({"\ud800": 1}, ""),
    ({7: 1}, ""),
    ({"n": object()}, ""),
    ({f"f{n}": n for n in range(3000)}, ""),
    ({"n": 1, **{f"f{n}": None for n in range(3000)}}, "ABC"),
]


@each_backend
@each_face
def test_filters_on_missing_fields_and_other_types(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    values: dict[str, dict[str, Any]] = {
        "A": {"n": 1},
        "B": {"n": 1.0},
        "C": {"n": True},
        "D": {"n": "1"},
        "E": {"n": None},
        "F": {"l": [1, 2]},
        "G": {"d": {"e": "x"}},
        "H": {"d": {}},
    }
    with opened(backend, tmp_path, request) as place:
        store = Asked(place.open().store(), face)
        store.batch([PutOp(("a",), key, value) for key, value in values.items()])
        for wanted, keys in FOUND:
            for prefix in ((), ("a",)):
                found = store.search(prefix, filter=wanted, limit=100)
                assert "".join(sorted(item.key for item in found)) == keys, f"{wanted!r:.200}"


class Noted(TypedDict):
    a: int


@each_backend
@each_face
def test_items_of_a_run_survive_the_deletion_of_its_thread(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def remember(state: Noted, *, store: BaseStore) -> dict[str, Any]:
        store.put(("memories", "ada"), "seat", {"text": "window"})
        return {}

    with opened(backend, tmp_path, request) as place:
        saver = place.open()
        store = saver.store()
        graph = StateGraph(Noted).add_node("remember", remember).add_edge(START, "remember")
        compiled = graph.compile(checkpointer=saver, store=store)
        compiled.invoke({"a": 1}, {"configurable": {"thread_id": "t"}})
        assert saver.get_tuple({"configurable": {"thread_id": "t"}})
        saver.delete_thread("t")
        assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is None
        assert Asked(place.open().store(), face).get(("memories", "ada"), "seat").value == {"text": "window"}


def test_an_invalid_ttl_configuration_is_refused() -> None:
    with MemorySaver() as saver:
        for ttl in ("1", {"minutes": 1}, {"default_ttl": 0}, {"omit_expired": False}):
            with pytest.raises(InvalidInput, match="ttl"):
                saver.store(ttl=ttl)  # type: ignore[arg-type]


@each_backend
@each_face
def test_a_damaged_item_is_skipped_by_searches_and_can_be_deleted(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    key = cell_key(("a", "damaged"), "k")
    with opened(backend, tmp_path, request) as place:
        saver = place.open()
        store, engine, shelf = Asked(saver.store(), face), saver.engine, Shelf(None, ITEMS.kind)
        engine.run(
            engine.session.store.swap_cell(shelf, key, None, Cell("x", engine.session.codec.encode([5]), rank=1))
        )
        store.batch([PutOp(("a", "b"), "k", {"n": 1})])
        for query in (None, {"n": 1}):
            assert [item.key for item in store.search(("a",), filter=query)] == ["k"]
        assert "a search skips an item: an item of the store" in caplog.text
        assert store.list_namespaces() == [("a", "b")]
        for op in (GetOp(("a", "damaged"), "k"), PutOp(("a", "damaged"), "k", {"n": 2})):
            with pytest.raises(CorruptStore, match="an item of the store"):
                store.batch([op])
        store.batch([PutOp(("a", "damaged"), "k", None)])
        store.batch([PutOp(("a", "damaged"), "k", {"n": 2})])
        assert store.get(("a", "damaged"), "k").value == {"n": 2}


@pytest.mark.parametrize("rank", [b"a", "a", -5, 1.5, 2**63 - 1])
@each_face
def test_an_item_with_a_damaged_time_is_skipped_by_searches(
    rank: Any, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Columns of SQLite have no types."""
    key = cell_key(("a",), "damaged")
    with opened("sqlite", tmp_path, request) as place:
        saver = place.open()
        saver.store().batch([PutOp(("a",), "damaged", {"n": 1}), PutOp(("a",), "k", {"n": 1})])
        engine, shelf = saver.engine, Shelf(None, ITEMS.kind)
        cell = engine.run(engine.session.store.read_cells(shelf, [key]))[key]
        damaged = replace(cell, token="x", rank=rank)
        assert engine.run(engine.session.store.swap_cell(shelf, key, cell.token, damaged)).done
        store = Asked(place.open().store(), face)
        for query in (None, {"n": 1}):
            assert [item.key for item in store.search(("a",), filter=query)] == ["k"]
        for op in (GetOp(("a",), "damaged"), PutOp(("a",), "damaged", {"n": 2})):
            with pytest.raises(CorruptStore, match=r"has the rank .*, which is not a time"):
                store.batch([op])
        store.batch([PutOp(("a",), "damaged", None)])
        store.batch([PutOp(("a",), "damaged", {"n": 2})])
        assert store.get(("a",), "damaged").value == {"n": 2}


def test_a_list_of_namespaces_survives_a_concurrent_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemorySaver().store()
    for key in ("first", "second"):
        store.put(("a", "b"), key, {"n": 1})
    first = min(cell_key(("a", "b"), each) for each in ("first", "second"))
    read = Cells.read_raw

    def read_after_a_deletion(cells: Cells[StoredItem], keys: Collection[str]) -> Plan[Mapping[str, Cell]]:
        found = yield from read(cells, keys)
        yield from cells.remove({key: cell.token for key, cell in found.items() if key == first})
        return {key: cell for key, cell in found.items() if key != first}

    monkeypatch.setattr(items, "_HASHED", {})  # private: another process has listed nothing
    monkeypatch.setattr(Cells, "read_raw", read_after_a_deletion)
    assert store.list_namespaces() == [("a", "b")]


def test_the_text_of_a_message_is_accepted_everywhere() -> None:
    """`message.text` is of a subclass of `str`."""
    said = HumanMessage("hi").text
    assert type(said) is not str
    with MemorySaver() as saver:
        saver.store().put((said,), said, {said: [said]}, owner=said)
        saver.store().update((said,), said, lambda value: {**(value or {}), "more": said})
        (item,) = saver.store().search(("hi",), filter={"more": said})
        assert (item.namespace, item.key, item.value) == (("hi",), "hi", {"hi": ["hi"], "more": "hi"})
        assert {*map(type, (*item.namespace, item.key, *item.value))} == {str}
        assert saver.retention.erase("hi", what="data").items == 1
