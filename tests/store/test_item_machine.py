"""Random histories of two stores on one place, compared with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, Op, PutOp, SearchOp
from support.savers import BACKENDS
from support.store.model import Model, seen
from support.store.opened import START, Asked, Clock, opened, with_clock
from support.tiers import sized

LABELS = st.sampled_from(["a", "b", "%", "_"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=4).map(tuple)
PREFIXES = st.lists(LABELS, max_size=4).map(tuple)
PATHS = st.lists(st.sampled_from(["a", "b", "*"]), max_size=3).map(tuple)
KEYS = st.sampled_from(["", "k", "K", "%", "k\0"])
SCALARS = st.sampled_from([0, 1, 1.0, True, 1.5, -2, 2**53 + 1, float(2**53), "1", "b", "", None])
VALUES = st.dictionaries(st.sampled_from(["x", "y"]), SCALARS | st.lists(SCALARS, max_size=2) | st.just({"z": 1}))
COMPARED = st.dictionaries(
    st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), SCALARS, min_size=1, max_size=2
)
FILTERS = st.dictionaries(
    st.sampled_from(["x", "y", "missing"]),
    SCALARS | COMPARED | st.lists(SCALARS, max_size=2) | st.just({"z": 1}) | st.just({"z": {"$gt": 0}}),
    max_size=2,
)
MINUTES = st.sampled_from([None, 0.5, 0.5, 1, 10])
"""Times to live, in minutes."""
BOUNDS = st.sampled_from([0, 1, 2, 3, 10])
GETS = st.builds(GetOp, NAMESPACES, KEYS, st.booleans())
SEARCHES = st.builds(SearchOp, PREFIXES, FILTERS, BOUNDS, BOUNDS, st.none(), st.booleans())
CONDITIONS = st.lists(st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), PATHS), max_size=2).map(tuple)
LISTS = st.builds(ListNamespacesOp, CONDITIONS, st.sampled_from([None, 1, 2, 3]), st.just(100), BOUNDS)
PUTS = st.builds(PutOp, NAMESPACES, KEYS, VALUES, st.none(), MINUTES)
DELETES = st.builds(PutOp, NAMESPACES, KEYS, st.none(), st.none(), st.none())
SKEW = 2_000_000
"""Microseconds by which the clock of the second store is behind."""


class ItemMachine(RuleBasedStateMachine):
    """Two stores of two savers with different clocks, with or without cached versions."""

    place: Any
    face = "sync"

    def __init__(self) -> None:
        super().__init__()
        self.place.wipe()
        self.clocks = Clock(START), Clock(START - SKEW)
        self.savers = [with_clock(self.place.open(), clock) for clock in self.clocks]
        self.stores = [Asked(saver.store(), self.face) for saver in self.savers]
        self.model = Model()

    @initialize(ops=st.lists(PUTS, max_size=12))
    def fill(self, ops: list[Op]) -> None:
        self.do(0, ops)

    def do(self, which: int, ops: list[Op]) -> None:
        results = self.stores[which].batch(ops)
        expected = self.model.batch(ops, self.clocks[which].now)
        for op, result, wanted in zip(ops, results, expected, strict=True):
            if isinstance(op, SearchOp):
                result = [seen(item) for item in result]
            elif isinstance(op, GetOp):
                result = seen(result)
            assert result == wanted, op
        for clock in self.clocks:
            clock.now += 1_000

    @rule(which=st.integers(0, 1), op=PUTS | DELETES | GETS | SEARCHES | LISTS)
    def one(self, which: int, op: Op) -> None:
        self.do(which, [op])

    @rule(which=st.integers(0, 1), ops=st.lists(PUTS | DELETES | GETS | SEARCHES | LISTS, max_size=8))
    def several(self, which: int, ops: list[Op]) -> None:
        self.do(which, ops)

    @rule(which=st.integers(0, 1), nth=st.integers(0, 20), value=VALUES | st.none(), minutes=MINUTES)
    def change(self, which: int, nth: int, value: dict[str, Any] | None, minutes: float | None) -> None:
        """Put or remove an existing item."""
        for place in sorted(self.model.items)[nth : nth + 1]:
            self.do(which, [PutOp(*place, value, None, None if value is None else minutes)])

    @rule(which=st.integers(0, 1), nth=st.integers(0, 5), seconds=st.sampled_from([0, 20]))
    def read(self, which: int, nth: int, seconds: int) -> None:
        """Read existing items, perhaps later; reads renew items that expire."""
        self.wait(seconds)
        self.do(which, [GetOp(*place) for place in sorted(self.model.items)[nth::4]])

    @rule(which=st.integers(0, 1))
    def begin_cold(self, which: int) -> None:
        """Start a process, which knows no version."""
        self.stores[which] = Asked(self.savers[which].store(), self.face)

    @rule(seconds=st.sampled_from([1, 20, 20, 31, 61]))
    def wait(self, seconds: int) -> None:
        for clock in self.clocks:
            clock.now += seconds * 1_000_000

    @rule(which=st.integers(0, 1))
    def sweep(self, which: int) -> None:
        assert self.stores[which].sweep() == self.model.sweep(self.clocks[which].now)

    def teardown(self) -> None:
        self.do(0, [SearchOp((), limit=1000, refresh_ttl=False), ListNamespacesOp(limit=1000)])


TAKEN = [(backend, face) for backend in sized(["memory"], ["memory", "sqlite"], BACKENDS) for face in ("sync", "async")]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "face"), TAKEN)
def test_random_operations_match_the_model(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with opened(backend, tmp_path, request) as place:
        machine = type("Machine", (ItemMachine,), {"place": place, "face": face})
        count = sized(10, {"memory": 40}.get(backend, 10), {"memory": 400}.get(backend, 80))
        asked = settings(max_examples=count, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])
        run_state_machine_as_test(machine, settings=asked)
