"""Round trips of operations on items."""

from __future__ import annotations

from pathlib import Path

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp
from support.savers import each_backend, each_face
from support.store.opened import Asked, Clock, opened, with_clock

from langgraph_keel.testing.faults import Counter, with_tap

PLACE = ("memories", "ada")


@each_backend
@each_face
def test_item_operations_take_few_round_trips(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with opened(backend, tmp_path, request) as place:
        counter, clock = Counter(), Clock()
        saver = with_tap(with_clock(place.open(), clock), counter)
        warm, cold = Asked(saver.store(), face), Asked(saver.store(), face)
        warm.get(PLACE, "first")  # the first request checks the store itself
        counter.taken()

        def trips(*ops: GetOp | PutOp | SearchOp, by: Asked = warm) -> int:
            by.batch(ops)
            return counter.taken()

        puts = [PutOp(PLACE, f"k{n}", {"n": n, "even": n % 2 == 0}) for n in range(100)]
        assert trips(PutOp(PLACE, "k", {"a": 1})) == 1  # a new item
        assert trips(PutOp(PLACE, "k", {"a": 2})) == 1  # its version is known
        assert trips(PutOp(PLACE, "k", {"a": 3}), by=cold) == 2
        assert trips(PutOp(PLACE, "k", {"a": 4}), by=cold) == 1
        assert trips(PutOp(PLACE, "k", {"a": 5})) == 2  # another store has changed it
        assert trips(*puts) == 1
        assert trips(*puts) == 1
        assert trips(*puts, by=cold) == 2
        assert trips(*puts, *puts, by=cold) == 1
        assert trips(GetOp(PLACE, "k1")) == trips(GetOp(PLACE, "missing")) == 1
        assert trips(*(GetOp(PLACE, f"k{n}") for n in range(100))) == 1
        assert trips(SearchOp(PLACE, limit=10)) == 1
        assert trips(SearchOp(PLACE, limit=50, offset=20)) == 1
        assert trips(SearchOp(PLACE, {"even": True}, limit=10)) == 1
        assert trips(SearchOp(("memories",), {"n": 7}, limit=10)) == 1
        assert trips(*puts[:9], GetOp(PLACE, "k1"), SearchOp(PLACE), by=warm) == 3  # the search returns their versions
        assert trips(PutOp(PLACE, "k1", None)) == 1
        warm.list_namespaces()
        assert counter.taken() <= 2  # one more for a namespace that is new to it
        warm.list_namespaces()
        assert counter.taken() == 1

        # A read writes only if a tenth of the time to live has passed.
        assert trips(PutOp(PLACE, "k", {"a": 1}, None, 10)) == 1
        assert trips(GetOp(PLACE, "k")) == 1
        clock.now += 61_000_000
        assert trips(GetOp(PLACE, "k", refresh_ttl=False)) == 1
        assert trips(GetOp(PLACE, "k")) == 3
        assert trips(GetOp(PLACE, "k")) == 1


@each_backend
def test_items_add_no_trip_to_a_checkpoint(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    from support.checkpoints import put

    with opened(backend, tmp_path, request) as place:
        counter = Counter()
        saver = with_tap(place.open(), counter)
        saver.store().put(PLACE, "k", {"a": 1})
        put(saver, "t", 1)
        counter.taken()
        put(saver, "u", 1)
        assert counter.taken() == 1
