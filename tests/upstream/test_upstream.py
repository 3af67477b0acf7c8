"""LangGraph's own tests, and those of its packages, pass with our savers."""

import os
from pathlib import Path

import pytest
from support.savers import BACKENDS, needing
from support.tiers import sized

from upstream.suite import LANGGRAPH, PACKAGES, STORES, Suite, run

pytestmark = [pytest.mark.upstream, pytest.mark.slow, pytest.mark.timeout(1500)]

# Minimum number of tests that must pass with one saver: those that receive a saver, both faces together (langgraph
# 1.2.22 has 648, 1.2.0 fewer), and those that create one (290).
FEWEST, FEWEST_OWN = 350, 100
FEWEST_OF_STORES = 15


@pytest.fixture(scope="session")
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory in pytest's cache, so that the index is asked only once.

    KEEL_UPSTREAM_CACHE may name another directory.
    """
    if named := os.environ.get("KEEL_UPSTREAM_CACHE"):
        cache = Path(named)
    elif hasattr(request.config, "cache"):
        cache = request.config.cache.mkdir("upstream")
    else:
        cache = tmp_path_factory.mktemp("upstream")
    return cache


RUNS = [("keel_sqlite", False)]
"""One saver for `.ci/run`: the engine is the same for all of them, and the contract tests the stores."""
if sized(False, False, True):
    RUNS += [(f"keel_{name}", False) for name in ("memory", "files", "postgres", "redis", "sqlite-memory")]
    # Strictness changes the serializer, which all backends share: two of them are enough.
    RUNS += [("keel_memory", True), ("keel_sqlite_aes", True)]


@pytest.mark.parametrize(("saver", "strict"), RUNS, ids=[f"{s}-{'strict' if t else 'default'}" for s, t in RUNS])
def test_langgraphs_own_tests_pass(
    cache: Path, saver: str, strict: bool, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    needing(saver.removeprefix("keel_"), request)
    outcome = run(LANGGRAPH, cache, saver, strict=strict)
    with capsys.disabled():
        print(f"\n{saver}, {'strict' if strict else 'default settings'}: {outcome}")
    assert not outcome.failed, listed(outcome.failed)
    assert not outcome.idle, "taken for tests that make a saver; they did not"
    assert min(outcome.passed["sync"], outcome.passed["async"]) > 0
    assert outcome.passed["sync"] + outcome.passed["async"] >= FEWEST
    assert outcome.passed["own"] >= FEWEST_OWN


@pytest.mark.parametrize("suite", PACKAGES, ids=lambda suite: suite.package)
def test_suites_of_langgraphs_packages_pass(cache: Path, suite: Suite, request: pytest.FixtureRequest) -> None:
    """`python tests/write.py suites` also runs them with LangGraph's own savers.

    It also runs the suites of dependent packages.
    """
    needing("postgres", request)
    outcome = run(suite, cache, "keel_sqlite")
    assert not outcome.failed, listed(outcome.failed)
    assert outcome.passed


STORE_RUNS = [(suite, "sqlite") for suite in STORES[:2]] + [(STORES[0], "postgres"), (STORES[0], "redis")]
"""The runs of `.ci/run`: a full run takes all of them, on each backend."""
if sized(False, False, True):
    STORE_RUNS = [(suite, backend) for suite in STORES for backend in BACKENDS]


@pytest.mark.parametrize(
    ("suite", "saver"),
    [(suite, f"keel_{backend}") for suite, backend in STORE_RUNS],
    ids=[f"{suite.package}-{backend}" for suite, backend in STORE_RUNS],
)
def test_suites_of_langgraphs_stores_pass(
    cache: Path, suite: Suite, saver: str, request: pytest.FixtureRequest
) -> None:
    needing("postgres", request)
    needing(saver.removeprefix("keel_"), request)
    outcome = run(suite, cache, saver)
    assert not outcome.failed, listed(outcome.failed)
    assert not outcome.idle, "taken for tests that make a store; they did not"
    assert outcome.passed["own"] >= FEWEST_OF_STORES


def listed(failed: dict[str, str]) -> str:
    return "\n".join(f"{test}\n    {why}" for test, why in failed.items())
