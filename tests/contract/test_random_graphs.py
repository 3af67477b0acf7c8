"""Whole random graphs with random histories, beside LangGraph's InMemorySaver: in every moment the same is seen."""

from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from random_graphs import ACTS, SPECS, Act, Spec, World
from savers import SAVERS, needing
from tiers import examples, sized

TWO = ("memory", "sqlite")


@pytest.mark.parametrize("backend", sized(TWO, TWO, (*TWO, "files", "postgres", "redis")))
def test_random_graphs_do_what_they_do_beside_it(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    needing(backend, request)
    threads = count()

    @settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(SPECS, st.lists(ACTS, min_size=1, max_size=8))
    def check(spec: Spec, acts: list[Act]) -> None:
        thread = f"t{next(threads)}"
        ours, theirs = World(spec, saver, thread), World(spec, InMemorySaver(), thread)
        for act in acts:
            note(f"{act}")
            assert ours.do(act) == theirs.do(act)
            assert ours.see() == theirs.see()

    with SAVERS[backend](tmp_path) as saver:
        check()
