"""Listing: newest first, filtered as the core says, in pages nobody notices."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_keel.errors import InvalidInput
from langgraph_keel.testing.rig import Rig, RigFixtures, at, exact, id_of, values_of

METADATA: dict[str, dict[str, Any]] = {
    "nested": {"deep": {"a": {"b": [1, 2]}}},
    "list": {"tags": ["x", "y"]},
    "tuple": {"pairs": {"a": (1, [(2, 3)])}},
    "true": {"flag": True},
    "false": {"flag": False},
    "one": {"flag": 1},
    "text one": {"flag": "1"},
    "null": {"flag": None},
    "odd keys": {"it's": 1, 'say "x"': 2, "a.b": 3, "a b": 4, "100%": 5, "$.x": 6, "": 7},
    "unicode": {"naïve 😀": "ü"},
}

FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({"deep": {"a": {"b": [1, 2]}}}, {"nested"}),
    ({"deep": {"a": {"b": [2, 1]}}}, set()),
    ({"deep": {"a": {}}}, set()),
    ({"tags": ["x", "y"]}, {"list"}),
    ({"tags": ["x"]}, set()),
    ({"tags": ("x", "y")}, {"list"}),
    ({"pairs": {"a": [1, [[2, 3]]]}}, {"tuple"}),
    ({"pairs": {"a": (1, [(2, 3)])}}, {"tuple"}),
    ({"tags": "x"}, set()),
    ({"flag": True}, {"true", "one"}),
    ({"flag": 1}, {"true", "one"}),
    ({"flag": 0}, {"false"}),
    ({"flag": "1"}, {"text one"}),
    ({"flag": "true"}, set()),
    ({"flag": None}, set(METADATA) - {"true", "false", "one", "text one"}),
    ({"absent": None}, set(METADATA)),
    ({"absent": 0}, set()),
    ({"it's": 1}, {"odd keys"}),
    ({'say "x"': 2}, {"odd keys"}),
    ({"a.b": 3}, {"odd keys"}),
    ({"a b": 4}, {"odd keys"}),
    ({"100%": 5, "$.x": 6}, {"odd keys"}),
    ({"": 7}, {"odd keys"}),
    ({"naïve 😀": "ü"}, {"unicode"}),
    ({"flag": True, "name": "one"}, {"one"}),
    ({"source": "loop"}, set(METADATA)),
    ({"' OR 1=1 --": 1}, set()),
    ({}, set(METADATA)),
]

LONG = 130
"""Checkpoints of a history that takes several pages."""


class ListingContract(RigFixtures):
    """`list`."""

    def test_lists_newest_first(self, rig: Rig) -> None:
        configs = rig.author().follow([{"n": n, "list": list(range(n))} for n in range(5)])
        found = list(rig.face.list(at()))
        assert [each.config for each in found] == configs[::-1]
        assert [each.parent_config for each in found] == [*configs[-2::-1], None]
        assert [values_of(each)["list"] for each in found] == [list(range(n)) for n in range(4, -1, -1)]

    def test_a_listed_checkpoint_is_what_get_tuple_returns(self, rig: Rig) -> None:
        author = rig.author()
        for n in range(4):
            author.put({"list": [n] * n, "tree": {f"k{k}": ["v" * 30, n] for k in range(30)}}, extra=[n])
            rig.face.put_writes(author.config, [("list", n), ("__interrupt__", "ask")], f"task {n}", f"{9 - n}")
        for found in rig.face.list(at()):
            assert exact(found) == exact(rig.face.read(found.config))

    def test_order_is_that_of_putting_not_of_ids(self, rig: Rig) -> None:
        author = rig.author()
        for checkpoint_id in ("m", "z", "a", "k"):
            author.put({}, checkpoint_id=checkpoint_id)
        assert [id_of(found) for found in rig.face.list(at())] == ["k", "a", "z", "m"]

    @pytest.mark.parametrize("wanted", FILTERS, ids=lambda case: str(case[0]))
    def test_filters_by_metadata(self, warm: Rig, wanted: tuple[dict[str, Any], set[str]]) -> None:
        author = warm.author()
        for name, metadata in METADATA.items():
            author.put({}, metadata={"name": name, **metadata})
        found = [str(each.metadata.get("name")) for each in warm.face.list(at(), filter=wanted[0])]
        assert found == [name for name in reversed(METADATA) if name in wanted[1]]

    def test_a_filter_looks_past_many_that_do_not_match(self, rig: Rig) -> None:
        author = rig.author()
        for n in range(70):
            author.put({"n": n}, metadata={"wanted": n in (3, 66)})
        found = rig.face.list(at(), filter={"wanted": True}, limit=2)
        assert [values_of(each)["n"] for each in found] == [66, 3]

    def test_before_is_exclusive(self, rig: Rig) -> None:
        configs = rig.author().follow([{"n": n} for n in range(5)])
        found = rig.face.list(at(), before=configs[3])
        assert [each.config for each in found] == configs[2::-1]
        assert list(rig.face.list(at(), before=configs[0])) == []
        assert [each.config for each in rig.face.list(at(), before=configs[4], limit=1)] == [configs[3]]

    def test_before_means_put_before_though_the_clock_went_back(self, rig: Rig) -> None:
        author = rig.author()
        for checkpoint_id in ("5", "9", "1", "7"):
            author.put({}, checkpoint_id=checkpoint_id)
        found = rig.face.list(at(), before=at("t", "", "1"))
        assert [id_of(each) for each in found] == ["9", "5"]

    def test_before_may_name_a_checkpoint_of_the_parent_graph(self, rig: Rig) -> None:
        for checkpoint_id in ("1", "5", "9"):
            rig.author().put({}, checkpoint_id=checkpoint_id)
        author = rig.author("t", "sub")
        for checkpoint_id in ("2", "4", "6"):
            author.put({}, checkpoint_id=checkpoint_id)
        found = rig.face.list(at("t", "sub"), before=at("t", "", "5"))
        assert [id_of(each) for each in found] == ["4", "2"]
        assert [id_of(each) for each in rig.face.list(at("t", "sub"), before=at("t", "", "9"), limit=1)] == ["6"]

    def test_limits(self, rig: Rig) -> None:
        configs = rig.author().follow([{"n": n} for n in range(3)])
        assert list(rig.face.list(at(), limit=0)) == []
        assert [each.config for each in rig.face.list(at(), limit=1)] == configs[:1:-1]
        assert [each.config for each in rig.face.list(at(), limit=9)] == configs[::-1]
        with pytest.raises(InvalidInput, match="limit"):
            list(rig.face.list(at(), limit=-1))

    def test_without_a_namespace_lists_all_of_them(self, rig: Rig) -> None:
        rig.author("t", "sub").put({"n": 0})
        rig.author().put({"n": 1})
        rig.author("t", "sub|deep").put({"n": 2})
        rig.author("other").put({"n": 3})
        assert [values_of(each)["n"] for each in rig.face.list(at("t", None))] == [2, 1, 0]
        assert [values_of(each)["n"] for each in rig.face.list(at("t", "sub"))] == [0]
        assert [values_of(each)["n"] for each in rig.face.list(at("t", ""))] == [1]

    def test_without_a_config_lists_all_threads_newest_id_first(self, rig: Rig) -> None:
        for n in range(70):
            rig.author(f"thread {n % 3}", f"ns {n % 2}").put({"n": n})
        assert [values_of(each)["n"] for each in rig.face.list(None)] == list(range(69, -1, -1))
        assert [values_of(each)["n"] for each in rig.face.list(None, limit=2)] == [69, 68]

    def test_equal_ids_in_all_threads_are_each_listed_once(self, rig: Rig) -> None:
        for n in range(LONG):
            rig.author(f"thread {n}").put({"n": n}, checkpoint_id=f"same {n % 2}")
        assert sorted(values_of(each)["n"] for each in rig.face.list(None)) == list(range(LONG))

    def test_lists_one_checkpoint_by_id(self, rig: Rig) -> None:
        configs = rig.author().follow([{"n": n} for n in range(3)])
        assert [each.config for each in rig.face.list(configs[1])] == [configs[1]]
        assert list(rig.face.list(at("t", "", "unknown"))) == []

    def test_a_long_history_comes_complete_and_in_order(self, rig: Rig) -> None:
        rig.author().follow([{"n": n, "list": [*range(n)]} for n in range(LONG)])
        found = [values_of(each) for each in rig.face.list(at())]
        assert found == [{"n": n, "list": [*range(n)]} for n in range(LONG - 1, -1, -1)]
        assert len(list(rig.face.list(at(), limit=LONG - 3))) == LONG - 3

    def test_an_abandoned_listing_holds_nothing(self, rig: Rig) -> None:
        author = rig.author()
        author.follow([{"n": n} for n in range(60)])
        listing = rig.face.list(at())
        next(listing)
        listing.close()
        author.put({"n": 60})
        listing = rig.face.list(at())
        next(listing)
        author.put({"n": 61})
        assert values_of(rig.face.read(at())) == {"n": 61}
        listing.close()

    def test_checkpoints_put_while_listing_do_not_disturb_it(self, warm: Rig) -> None:
        author = warm.author()
        author.follow([{"n": n} for n in range(LONG)])
        listing = warm.face.list(at())
        found = [values_of(next(listing))["n"] for _ in range(10)]
        author.put({"n": "meanwhile"})
        found += [values_of(each)["n"] for each in listing]
        assert found == list(range(LONG - 1, -1, -1))

    @pytest.mark.parametrize("config", [at(), None], ids=["one thread", "all threads"])
    def test_checkpoints_removed_while_listing_do_not_end_it(self, warm: Rig, config: Any) -> None:
        author = warm.author()
        for n in range(LONG):
            # What is removed is where a page of any size could end, as far as is known here.
            author.put({"n": n}, metadata={"run_id": "gone" if n > LONG // 2 else "kept"})
        listing = warm.face.list(config)
        assert values_of(next(listing)) == {"n": LONG - 1}
        warm.face.delete_for_runs(["gone"])
        found = [values_of(each)["n"] for each in listing]
        assert [n for n in found if n <= LONG // 2] == list(range(LONG // 2, -1, -1))
