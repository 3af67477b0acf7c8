"""Namespaces and tenants: a tenant's items are invisible to all other tenants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, Op, PutOp, SearchOp
from support.savers import BACKENDS
from support.store.model import Model, seen
from support.store.opened import Asked, Clock, opened, with_clock
from support.tiers import examples, sized

from langgraph_keel import Keyring, LocalKey

KEY = LocalKey("k", bytes(range(32)))
SEALS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sealed": {"encryption": Keyring(KEY)},
    "nameless": {"encryption": Keyring(KEY, hide_names=True)},
}
TENANTS = ["", "a", "ab", "a.b", "a@b", "A", "0" * 32, "f" * 64]
"""Some are prefixes of others; the long ones look like parts of a key."""
LABELS = st.sampled_from(["a", "ab", "%", "_", "secret-label", "0" * 32])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=4).map(tuple)
VALUES = st.fixed_dictionaries({"n": st.integers(0, 2), "text": st.sampled_from(["secret-text", "other"])})
PUTS = st.builds(PutOp, NAMESPACES, st.sampled_from(["secret-key", "l"]), VALUES, st.none(), st.none())
DELETES = st.builds(PutOp, NAMESPACES, st.sampled_from(["secret-key", "l"]), st.none(), st.none(), st.none())
STEPS = st.lists(st.tuples(st.sampled_from(TENANTS), st.lists(PUTS | PUTS | DELETES, max_size=6)), max_size=8)
TAKEN = [(backend, seal) for backend in sized(["memory"], ["memory", "sqlite"], BACKENDS) for seal in SEALS]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "seal"), TAKEN)
def test_tenants_have_separate_items(backend: str, seal: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with opened(backend, tmp_path, request) as place:

        @settings(
            max_examples=examples(24), suppress_health_check=[*HealthCheck], phases=(Phase.generate, Phase.shrink)
        )
        @given(steps=STEPS, face=st.sampled_from(["sync", "async"]))
        def check(steps: list[tuple[str, list[Op]]], face: str) -> None:
            place.wipe()
            clock, models = Clock(), {tenant: Model() for tenant in TENANTS}

            def ask(tenant: str, ops: list[Op], *, is_cold: bool) -> None:
                clock.now += 1_000
                # With a new process each time, or one with a cache.
                store = stores[tenant]
                if is_cold:
                    store = Asked(savers[tenant].store(), face)
                for op, result, wanted in zip(ops, store.batch(ops), models[tenant].batch(ops, clock.now), strict=True):
                    if isinstance(op, SearchOp):
                        result = [seen(item) for item in result]
                    elif isinstance(op, GetOp):
                        result = seen(result)
                    assert result == wanted, (tenant, op)

            shared = place.open(**SEALS[seal])
            savers = {each: with_clock(shared.for_tenant(each) if each else shared, clock) for each in TENANTS}
            stores = {tenant: Asked(saver.store(), face) for tenant, saver in savers.items()}
            for n, (tenant, ops) in enumerate(steps):
                ask(tenant, ops, is_cold=n % 2 == 0)
            for tenant, model in models.items():
                prefixes = {space[:depth] for space, _ in model.items for depth in range(len(space) + 1)} | {()}
                searches: list[Op] = [SearchOp(each, limit=100) for each in sorted(prefixes)]
                searches += [SearchOp(each, {"text": "secret-text", "n": 1}, 100) for each in sorted(prefixes)]
                ask(tenant, [*searches, SearchOp((), limit=2, offset=1), ListNamespacesOp(limit=100)], is_cold=True)
                ask(tenant, [GetOp(*each) for each in model.items], is_cold=True)
            if seal != "plain":
                assert b"secret-" not in place.raw()

        check()
