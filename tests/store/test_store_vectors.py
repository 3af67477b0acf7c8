"""Semantic search for items: exact with any filter, and never by an old text."""

from __future__ import annotations

import random
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from langgraph.store.base import GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from support.savers import SAVERS, each_backend, each_face, needing
from support.store.meaning import DIMS, Recorded, Shelf, cosine, vector_of

from langgraph_keel import FileSaver, InvalidInput, KeelSaver, Keyring, LocalKey, MemorySaver, SqliteSaver
from langgraph_keel.embedding import VectorCache
from langgraph_keel.engine.cells import Shelf as CellShelf
from langgraph_keel.store.records import INDEX, ITEMS, cell_key
from langgraph_keel.testing.faults import Counter, Meanwhile, with_tap

KEY = bytes(range(1, 33))


@pytest.fixture
def saver(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    needing(backend, request)
    with SAVERS[backend](tmp_path) as opened:
        yield opened


@pytest.fixture
def memory() -> Iterator[MemorySaver]:
    with MemorySaver() as opened:
        yield opened


def cells(saver: KeelSaver, kind: str) -> dict[str, Any]:
    store = saver.engine.session.store
    keys = [key for key, _ in saver.engine.run(store.list_cells(CellShelf(None, kind), "", None, 1000))]
    return dict(saver.engine.run(store.read_cells(CellShelf(None, kind), keys)))


# -- searching ---------------------------------------------------------------------------------------------------------


@each_face
@each_backend
def test_search_results_equal_an_exact_search(saver: KeelSaver, face: str) -> None:
    chance = random.Random(7)
    shelf = Shelf(saver, face)
    places = [("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d"), ("a", "x"), ("z",)]
    items: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
        (chance.choice(places), f"k{n}", {"text": f"text {n % 60}", "colour": chance.choice(["red", "blue"]), "n": n})
        for n in range(90)
    ]
    shelf.call(
        "batch", [PutOp(place, key, value, index=None if value["n"] % 7 else False) for place, key, value in items]
    )
    asked: list[dict[str, Any]] = [{}, {"colour": "red"}, {"n": {"$gte": 30}, "colour": "blue"}, {"n": 7}]
    for prefix in [(), ("a",), ("a", "b"), ("a", "b", "c"), ("nothing",)]:
        for wanted in asked:
            below = [each for each in items if each[0][: len(prefix)] == prefix]
            fit = [each for each in below if not wanted or _fits(each[2], wanted)]
            scored = {
                (place, key): cosine(value["text"], "a query") if value["n"] % 7 else None for place, key, value in fit
            }
            best = sorted((score for score in scored.values() if score is not None), reverse=True)
            found = shelf.search("a query", place=prefix, filter=wanted, limit=100)
            assert {(item.namespace, item.key): pytest.approx(item.score, abs=1e-5) for item in found} == scored
            assert [item.score for item in found if item.score is not None] == pytest.approx(best, abs=1e-5)
            assert all(item.score is None for item in found[len(best) :])
            page = shelf.search("a query", place=prefix, filter=wanted, limit=5, offset=3)
            assert [item.key for item in page] == [item.key for item in found[3:8]]


def _fits(value: dict[str, Any], wanted: dict[str, Any]) -> bool:
    if "n" in wanted and isinstance(wanted["n"], int):
        return bool(value["n"] == wanted["n"])
    is_like = value["colour"] == wanted.get("colour", value["colour"])
    return bool(is_like and value["n"] >= (30 if "n" in wanted else 0))


def test_search_results_equal_those_of_langgraphs_store(memory: MemorySaver) -> None:
    theirs = InMemoryStore(index={"dims": DIMS, "embed": Recorded(), "fields": ["text", "more[*].text"]})
    shelf = Shelf(memory, fields=["text", "more[*].text"])
    for store in (theirs, shelf.store):
        for n in range(30):
            more = [{"text": f"more {n} {m}"} for m in range(n % 3)]
            store.put(("a",), f"k{n}", {"text": f"text {n}", "more": more, "n": n % 2})
        store.put(("a",), "other", {"title": "title 9"}, index=["title"])
        store.put(("a",), "nothing", {"no": "text"})
        store.put(("a",), "not", {"text": "text 9"}, index=False)
    for query in ("text 9", "more 20 1", "else"):
        for wanted in (None, {"n": 1}):
            expected = theirs.search(("a",), query=query, filter=wanted, limit=40)
            found = shelf.store.search(("a",), query=query, filter=wanted, limit=40)
            scored: Any = [
                (each.key, pytest.approx(each.score, abs=1e-5)) for each in expected if each.score is not None
            ]
            assert [(item.key, item.score) for item in found if item.score is not None] == scored
            assert {item.key for item in found} == {item.key for item in expected}
    assert [(item.key, item.score) for item in shelf.store.search(("a",), query="title", limit=2, offset=31)] == [
        ("not", None),
        ("nothing", None),
    ]


def test_without_an_index_a_query_is_ignored(memory: MemorySaver) -> None:
    for store in (memory.store(), InMemoryStore()):
        store.put(("a",), "1", {"text": "one"}, index=["text"])
        (found,) = store.search(("a",), query="two")
        assert (found.key, found.score) == ("1", None)
    shelf = Shelf(memory)
    assert [(item.key, item.score) for item in shelf.search("one", place=("a",))] == [("1", None)]
    assert shelf.search("one", place=("a",), limit=0) == []
    assert shelf.keys("", place=("a",)) == shelf.keys(None, place=("a",)) == ["1"]
    assert shelf.embed.queries == ["one"]
    with pytest.raises(InvalidInput, match="query=5 is not a text"):
        shelf.store.search(("a",), query=5)  # type: ignore[arg-type]


@each_face
@each_backend
def test_an_item_is_never_found_by_its_old_text(saver: KeelSaver, face: str) -> None:
    shelf, other = Shelf(saver, face), Shelf(saver)
    for n in range(20):
        shelf.put(f"k{n}", f"text {n}", n=n)
    assert shelf.search("text 3")[0].score == pytest.approx(1, abs=1e-5)
    other.put("k3", "something else", n=3)
    other.call("delete", ("a", "b"), "k4")
    other.put("new", "text 4", n=3)
    for each in (shelf, other, Shelf(saver, face)):  # one with old vectors, the writer, and one with an empty cache
        for wanted in (None, {"n": 3}):
            best = each.search("text 3", filter=wanted, limit=3)
            assert max(item.score for item in best) < 0.9
            assert each.keys("something else", filter=wanted, limit=1) == ["k3"]
        assert each.keys("text 4", limit=1) == ["new"]
    assert "k4" not in shelf.keys("text 4", limit=100)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("wanted", [None, {"n": 1}])
def test_a_search_sees_a_concurrent_change_completely_or_not_at_all(memory: MemorySaver, at: int, wanted: Any) -> None:
    other = Shelf(memory)
    for n in range(5):
        other.put(f"k{n}", f"text {n}", n=1)

    def change() -> None:
        other.put("k2", "changed", n=1)
        other.put("k4", "text 2", n=5)
        other.call("delete", ("a", "b"), "k3")

    tap = Meanwhile(at, change)
    found = Shelf(with_tap(memory, tap)).search("text 2", filter=wanted, limit=10)
    for item in found:
        assert item.score == pytest.approx(cosine(item.value["text"], "text 2"), abs=1e-5)
        assert wanted is None or item.value["n"] == 1
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
    assert len(found) in ({5, 4, 3} if wanted else {5, 4})


def test_items_that_expired_or_belong_to_other_tenants_are_not_found(memory: MemorySaver) -> None:
    ours, theirs = Shelf(memory.for_tenant("one")), Shelf(memory.for_tenant("two"), embed=Recorded(model="another"))
    ours.put("k", "text")
    theirs.put("other", "text")
    assert ours.keys("text") == ["k"]
    assert theirs.keys("text") == ["other"]
    ours.store.put(("a", "b"), "brief", {"text": "text"}, ttl=1e-9)
    assert ours.keys("text") == ["k"]


# -- requests and caches -----------------------------------------------------------------------------------------------


@each_face
def test_round_trips_and_embedding_calls(memory: MemorySaver, face: str) -> None:
    counter = Counter()
    shelf = Shelf(with_tap(memory, counter), face)
    shelf.put("a", "one")
    assert counter.taken() == 3  # a check for another index; this index; the item
    shelf.put("b", "two")
    assert counter.taken() == 1
    shelf.call("batch", [PutOp(("a", "b"), f"k{n}", {"text": f"text {n % 10}"}) for n in range(100)])
    assert counter.taken() == 1
    assert shelf.embed.calls == [["one"], ["two"], [f"text {n}" for n in range(10)]]
    assert shelf.search("one", limit=3)[0].key == "a"
    assert counter.taken() == 3  # keys; vectors; the best
    for _ in range(2):
        assert shelf.search("one", limit=3)[0].key == "a"
        assert counter.taken() == 2
    assert shelf.embed.queries == ["one"]
    assert shelf.embed.awaited == (4 if face == "async" else 0)


def test_an_unchanged_text_is_not_embedded_again(memory: MemorySaver) -> None:
    Shelf(memory).put("a", "one", n=1)
    counter = Counter()
    later = Shelf(with_tap(memory, counter), fields=["text"])
    assert later.call("get", ("a", "b"), "a").value["n"] == 1
    counter.taken()
    later.put("a", "one", n=2)
    assert later.embed.calls == []
    assert counter.taken() == 3  # the index; the earlier version; the new version
    later.put("a", "one", n=3)
    assert (later.embed.calls, counter.taken()) == ([], 1)
    later.put("a", "three", n=3)
    assert (later.embed.calls, counter.taken()) == ([["three"]], 2)
    assert later.search("three")[0].score == pytest.approx(1, abs=1e-5)


def test_the_last_thousand_texts_are_remembered(memory: MemorySaver) -> None:
    shelf = Shelf(memory)
    shelf.call("batch", [PutOp(("a",), f"k{n}", {"text": f"text {n}"}) for n in range(1200)])
    assert [len(call) for call in shelf.embed.calls] == [1200]
    shelf.call("batch", [PutOp(("b",), f"k{n}", {"text": f"text {n}"}) for n in range(100, 300)])
    assert [len(call) for call in shelf.embed.calls] == [1200, 100]
    assert len(shelf.keys("text 1", place=("a",), limit=2000)) == 1200


@pytest.mark.parametrize("room", [1, 7, 40, 1000])
def test_results_do_not_depend_on_the_memory_limit(memory: MemorySaver, room: int) -> None:
    shelf = Shelf(memory, memory=room * 4 * DIMS)
    for place in (("a", "b"), ("c",)):
        shelf.call("batch", [PutOp(place, f"k{n}", {"text": f"{place} {n}"}) for n in range(30)])
    for round in range(3):
        for place in (("a", "b"), ("c",)):
            query = f"{place} {round}"
            found = shelf.search(query, place=place, limit=30)
            assert [item.key for item in found[:1]] == [f"k{round}"]
            expected = sorted((cosine(f"{place} {n}", query) for n in range(30)), reverse=True)
            assert [item.score for item in found] == pytest.approx(expected, abs=1e-5)
        shelf.put("k29", f"{('a', 'b')} 29")


def test_the_vector_cache_keeps_needed_rows_and_frees_old_ones() -> None:
    cache = VectorCache(2, 10 * 8)
    row, unit = np.eye(2, dtype=np.float32)[:1], np.eye(2, dtype=np.float32)[0]
    cache.add({f"a{n}": ("1", row) for n in range(10)}, ())
    assert cache.rank({f"a{n}": "1" for n in range(10)}, {}, unit, 1) == ([], [("a0", 1.0)])
    cache.add({"b": ("1", row), "c": ("1", np.concatenate([row, row]))}, {"a9": "1"})
    missing, _ = cache.rank({**{f"a{n}": "1" for n in range(10)}, "b": "1", "c": "1"}, {}, unit, 1)
    assert missing == ["a0", "a1", "a2"]
    assert cache.rank({"b": "2"}, {}, unit, 1)[0] == ["b"]
    for n in range(50):  # the rows of old versions are reused
        cache.add({"b": (str(n), row)}, {"b": str(n)})
        assert cache.rank({"b": str(n), "c": "1", "a9": "1"}, {}, unit, 3)[0] == []


def test_threads_may_search_and_put_concurrently(memory: MemorySaver) -> None:
    shelf, failed = Shelf(memory, memory=20 * 4 * DIMS), list[object]()

    def work(name: str) -> None:
        for n in range(30):
            shelf.put(f"{name}{n}", f"{name} {n}")
            found = shelf.search(f"{name} {n}", limit=1)[0]
            if found.key != f"{name}{n}" or abs(found.score - 1) > 1e-5:
                failed.append((found, name, n))

    threads = [Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# -- failures ----------------------------------------------------------------------------------------------------------


@each_face
@each_backend
def test_a_failed_embedding_stores_nothing(saver: KeelSaver, face: str) -> None:
    shelf = Shelf(saver, face)
    ops = [PutOp(("a",), f"k{n}", {"text": "poison" if n == 5 else f"text {n}"}) for n in range(9)]
    with pytest.raises(RuntimeError, match="the model is down"):
        shelf.call("batch", [*ops, PutOp(("a",), "plain", {"text": "x"}, index=False)])
    assert cells(saver, ITEMS.kind) == cells(saver, INDEX.kind) == {}
    shelf.call("batch", ops[:5])
    with pytest.raises(RuntimeError, match="the model is down"):
        shelf.call("batch", [PutOp(("a",), "k1", None), GetOp(("a",), "k1"), ops[5]])
    assert sorted(shelf.keys("text 1", place=("a",))) == ["k0", "k1", "k2", "k3", "k4"]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda texts: [[1.0] * DIMS] * (len(texts) - 1), "1 x 16 numbers for 2 texts"),
        (lambda texts: [[1.0] * 3 for _ in texts], "2 x 3 numbers for 2 texts: 2 x 16 are needed"),
        (lambda texts: [[1.0] * 3, [1.0] * DIMS], "not lists of numbers"),
        (lambda texts: [[float("nan")] * DIMS for _ in texts], "not finite"),
        (lambda texts: [[1e300] * DIMS for _ in texts], "not finite"),
        (lambda texts: [["x"] * DIMS for _ in texts], "not lists of numbers"),
        (lambda texts: None, "numbers for 2 texts"),
    ],
)
def test_invalid_vectors_are_refused_and_nothing_is_stored(
    memory: MemorySaver, returned: Callable[[Any], Any], message: str
) -> None:
    shelf = Shelf(memory, embed=returned)
    with pytest.raises(InvalidInput, match=message):
        shelf.call("batch", [PutOp(("a",), f"k{n}", {"text": f"text {n}"}) for n in range(2)])
    assert cells(memory, ITEMS.kind) == cells(memory, INDEX.kind) == {}
    zeros = Shelf(memory, embed=lambda texts: [[0] * DIMS for _ in texts])
    zeros.put("zero", "text")
    assert [item.score for item in zeros.search("text")] == [0]


@each_backend
def test_a_different_index_is_refused_before_any_change(saver: KeelSaver) -> None:
    Shelf(saver).put("k", "text")
    before = cells(saver, ITEMS.kind), cells(saver, INDEX.kind)
    others: list[dict[str, Any]] = [
        {"embed": Recorded(5), "dims": 5},
        {"embed": Recorded(model="another")},
        {"model": "named"},
        {"fields": ["title"]},
    ]
    for index in others:
        other = Shelf(saver, **index)
        for refused in (partial(other.put, "new", "text"), partial(other.keys, "text")):
            with pytest.raises(InvalidInput, match=r"model='recorded', fields=\['text'\], but index= has dims="):
                refused()
        assert other.embed.calls == other.embed.queries == []
        other.put("new", "text", index=False)  # it is not embedded
        other.call("delete", ("a", "b"), "new")
    assert (cells(saver, ITEMS.kind), cells(saver, INDEX.kind)) == before
    same = Shelf(saver, embed=lambda texts: [vector_of(text) for text in texts], model="recorded")
    assert same.keys("text") == ["k"]


def test_an_item_of_another_embedding_model_is_refused(memory: MemorySaver) -> None:
    """A copy brings items from another store, sometimes without their index."""
    other, store = Shelf(memory.for_tenant("t"), embed=Recorded(model="another")), memory.engine.session.store
    other.put("k", "text")
    key = cell_key(("a", "b"), "k")
    (cell,) = cells(memory.for_tenant("t"), ITEMS.kind).values()
    Shelf(memory).put("mine", "text")
    memory.engine.run(store.swap_cell(CellShelf(None, ITEMS.kind), key, None, cell))
    with pytest.raises(
        InvalidInput, match=rf"item of the store \({key}\) was embedded with another model: put it again"
    ):
        Shelf(memory).keys("text")
    again = Shelf(memory)
    assert again.call("get", ("a", "b"), "k").value == {"text": "text"}
    again.put("k", "text")
    assert again.embed.calls == [["text"]]
    assert sorted(again.keys("text")) == ["k", "mine"]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (5, "it is a int"),
        ({"dims": 3, "embed": vector_of, "ann_index_config": {}}, "it has 'ann_index_config'"),
        ({"embed": vector_of}, "dims=None"),
        ({"dims": True, "embed": vector_of}, "dims=True"),
        ({"dims": 3, "embed": vector_of, "memory": 0}, "memory=0"),
        ({"dims": 3}, "embed=None"),
        ({"dims": 3, "embed": 5}, "embed=5 cannot embed"),
        ({"dims": 3, "embed": "nobody:knows"}, "embed='nobody:knows' cannot embed"),
        ({"dims": 3, "embed": vector_of, "fields": "text"}, "fields='text'"),
        ({"dims": 3, "embed": vector_of, "model": 5}, "model=5"),
    ],
)
def test_invalid_index_configurations_are_refused(memory: MemorySaver, index: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        memory.store(index=index)


@pytest.mark.parametrize("index", [True, "text", [5], 0])
def test_invalid_index_fields_of_a_put_are_refused(memory: MemorySaver, index: Any) -> None:
    with pytest.raises(InvalidInput, match="neither False nor a list of fields"):
        memory.store().put(("a",), "k", {"text": "x"}, index=index)


def test_damaged_vectors_are_reported(memory: MemorySaver) -> None:
    shelf, session = Shelf(memory), memory.engine.session
    shelf.put("k", "text")
    ((key, cell),) = cells(memory, ITEMS.kind).items()
    tag, texts, numbers = session.codec.decode(cell.body)
    for body in ([tag, texts, numbers[:-1]], [tag, texts * 2, numbers], [tag, 5, numbers], [tag], [tag, texts, "x"]):
        cell.body = session.codec.encode(body)
        cell.token = f"{cell.token[:-1]}{len(str(body)) % 10}"
        memory.engine.run(session.store.remove_cells(CellShelf(None, ITEMS.kind), {key: shelf_token(memory, key)}))
        memory.engine.run(session.store.swap_cell(CellShelf(None, ITEMS.kind), key, None, cell))
        with pytest.raises(Exception, match=r"the vectors of an item of the store .* do not decode"):
            Shelf(memory).keys("text")
        assert Shelf(memory).call("get", ("a", "b"), "k").value == {"text": "text"}


def shelf_token(saver: KeelSaver, key: str) -> str:
    token: str = cells(saver, ITEMS.kind)[key].token
    return token


def test_an_index_without_numpy_is_refused() -> None:
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "from langgraph_keel import InvalidInput, MemorySaver\n"
        "with MemorySaver() as saver:\n"
        "    saver.store().put(('a',), 'k', {'text': 'x'})\n"
        "    for ask in (lambda: saver.store(index={'dims': 3, 'embed': list}), "
        "lambda: saver.archive('t').search('x', semantic=list)):\n"
        "        try: ask()\n"
        "        except InvalidInput as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("needs the package numpy: pip install 'numpy>=1.26' (Keel's extra 'search')") == 2


# -- storage of vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("kind", [SqliteSaver, FileSaver])
def test_vectors_are_encrypted_like_bodies(kind: Any, is_sealed: bool, tmp_path: Path) -> None:
    options = {"encryption": Keyring(LocalKey("one", KEY))} if is_sealed else {}
    with kind(tmp_path / "store", **options) as saver:
        shelf = Shelf(saver)
        shelf.put("k", "a secret text")
        assert shelf.keys("a secret text") == ["k"]
        assert all(cell.body for cell in cells(saver, ITEMS.kind).values())
        assert [*saver.check()] == []
    stored = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    numbers = np.array(vector_of("a secret text"), "<f4").tobytes()
    as_text = [b64encode(numbers[n:])[:-8] for n in range(3)]  # files are text
    assert any(part in stored for part in (numbers, *as_text)) is not is_sealed


def test_removing_an_item_removes_its_vectors(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        shelf = Shelf(saver)
        shelf.put("k", "text")
        shelf.call("delete", ("a", "b"), "k")
        assert shelf.keys("text") == []
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert np.array(vector_of("text"), "<f4").tobytes() not in stored
