"""LangGraph's own tests pass with our savers in place of LangGraph's."""

import os
from pathlib import Path

import pytest
from savers import needing

from upstream.suite import Outcome, fetch, run

pytestmark = [pytest.mark.upstream, pytest.mark.slow, pytest.mark.timeout(1500)]

# One saver has this many to pass at the least: those that are given a saver, both faces together (langgraph 1.2.22 has
# 648, 1.2.0 fewer), and those that make one themselves (290).
FEWEST, FEWEST_OWN = 350, 100


@pytest.fixture(scope="session")
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In pytest's cache (or the directory KEEL_UPSTREAM_CACHE names), so that the index is asked once."""
    if named := os.environ.get("KEEL_UPSTREAM_CACHE"):
        cache = Path(named)
    elif hasattr(request.config, "cache"):
        cache = request.config.cache.mkdir("upstream")
    else:
        cache = tmp_path_factory.mktemp("upstream")
    cache.mkdir(parents=True, exist_ok=True)
    return fetch(cache)


BACKENDS = ["keel_memory", "keel_sqlite", "keel_files", "keel_postgres", "keel_redis"]
# What strictness changes is the serializer, which every backend has in common: two of them tell. They run, as SQLite
# in memory does, where KEEL_FULL=1.
VARIANTS = [("keel_memory", True), ("keel_sqlite_aes", True), ("keel_sqlite-memory", False)]
RUNS = [*((backend, False) for backend in BACKENDS), *(VARIANTS if os.environ.get("KEEL_FULL") == "1" else ())]


@pytest.mark.parametrize(("saver", "strict"), RUNS, ids=[f"{s}-{'strict' if t else 'default'}" for s, t in RUNS])
def test_langgraphs_own_tests_pass(
    suite: Path, saver: str, strict: bool, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    needing(saver.removeprefix("keel_"), request)
    outcome = run(suite, saver, strict=strict)
    with capsys.disabled():
        print(f"\n{saver}, {'strict' if strict else 'default settings'}: {outcome}")
    assert not outcome.failed, listed(outcome)
    assert not outcome.idle, "taken for tests that make a saver; they did not"
    assert min(outcome.passed["sync"], outcome.passed["async"]) > 0
    assert outcome.passed["sync"] + outcome.passed["async"] >= FEWEST
    assert outcome.passed["own"] >= FEWEST_OWN


def listed(outcome: Outcome) -> str:
    return "\n".join(f"{test}\n    {why}" for test, why in outcome.failed.items())
