"""LangGraph's own tests pass with our savers in place of LangGraph's."""

import os
from pathlib import Path

import pytest
from savers import needing

from upstream.suite import Outcome, fetch, run

pytestmark = [pytest.mark.upstream, pytest.mark.slow, pytest.mark.timeout(900)]

# One saver has this many to pass at the least, both faces together (langgraph 1.2.22 has 648, 1.2.0 fewer).
FEWEST = 350


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


# What strictness changes is the serializer, which every backend has in common: two of them tell.
RUNS = [
    ("keel_memory", False),
    ("keel_memory", True),
    ("keel_sqlite", False),
    ("keel_sqlite_aes", True),
    ("keel_files", False),
    ("keel_postgres", False),
    ("keel_redis", False),
]


@pytest.mark.parametrize(("saver", "strict"), RUNS, ids=[f"{s}-{'strict' if t else 'default'}" for s, t in RUNS])
def test_langgraphs_own_tests_pass(
    suite: Path, saver: str, strict: bool, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    needing(saver.removeprefix("keel_"), request)
    outcome = run(suite, saver, strict=strict)
    with capsys.disabled():
        print(f"\n{saver}, {'strict' if strict else 'default settings'}: {outcome}")
    assert not outcome.failed, listed(outcome)
    assert min(outcome.passed["sync"], outcome.passed["async"]) > 0
    assert sum(outcome.passed.values()) >= FEWEST


def listed(outcome: Outcome) -> str:
    return "\n".join(f"{test}\n    {why}" for test, why in outcome.failed.items())
