"""The history checker, tested: silent about a right store, never about a wrong one."""

from __future__ import annotations

from random import Random

import pytest
from histories import anomalies
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_lists import WRONG, List, can_be, simulated
from tiers import examples

SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=examples(300), deadline=None)
@given(SEEDS, st.integers(1, 8), st.integers(0, 40))
def test_a_right_list_shows_no_anomaly(seed: int, clients: int, turns: int) -> None:
    history, final = simulated(List, Random(seed), clients, turns)
    assert anomalies(history, final) == []


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_list_is_found(kind: type[List]) -> None:
    for seed in range(50):
        history, final = simulated(kind, Random(seed), clients=6, turns=40)
        found = anomalies(history, final)
        assert found, f"{kind.__name__} went unseen with seed {seed}"
    assert WRONG[kind] in {anomaly.kind for anomaly in found}


@settings(max_examples=examples(2000), deadline=None)
@given(st.sampled_from([List, *WRONG]), SEEDS, st.sampled_from([(2, 2), (3, 1), (3, 2), (4, 1)]))
def test_the_checker_agrees_with_a_search_of_all_orders(kind: type[List], seed: int, size: tuple[int, int]) -> None:
    history, final = simulated(kind, Random(seed), *size)
    assert (anomalies(history, final) == []) == can_be(history, final)
