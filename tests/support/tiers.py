"""The tiers of tests: quick, ci (`.ci/run`) or full (`.ci/full`), chosen by KEEL_TIER.

quick   `pytest` alone. Omits slow tests and repeated combinations of parameters. The contract runs in memory with one
        face (blocking and warm, or async and cold, alternating by test). A third of it, without its costly tests, runs
        on SQLite, files, PostgreSQL and Redis, with a keyring, and on two stores in memory. Any other test runs with
        each value of each parameter, on one of its backends. It differs by test, so that all backends are used.
ci      Adds samples of the slow tests: kills, power cuts, LangGraph's own suite, the notebooks. A fast test without a
        backend runs with all combinations of its parameters. The contract runs in memory with both faces, and on
        SQLite, files, PostgreSQL and Redis with one face each (in each test, two stores use the blocking and two the
        async face). With a keyring and on two stores, two thirds of it run in memory with one face. A sixth of it runs
        on stores that differ from these by their client or a layer (SIXTHS).
full    Everything, with the whole matrices and large samples. The contract runs with each face and temperature on the
        stores that keep the data, and with two of these four on the stores on top of them
        (support/contract/brief.py).

A test that is named on the command line (`pytest file.py::test`) runs in any tier.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar
from zlib import crc32

import pytest
from hypothesis import settings

Tier = Literal["quick", "ci", "full"]
TIERS: tuple[Tier, ...] = ("quick", "ci", "full")
T = TypeVar("T")


def _asked() -> Tier:
    asked = os.environ.get("KEEL_TIER", "quick")
    for tier in TIERS:
        if tier == asked:
            return tier
    raise pytest.UsageError(f"KEEL_TIER is {asked!r}, and not one of {', '.join(TIERS)}")


TIER = _asked()

BACKENDS = ("memory", "sqlite", "files", "postgres", "redis")
FACES = ("sync-warm", "async-cold")
"""A face and a temperature each.

A store cannot confuse the other combinations: only the engine knows the difference.
"""
STORES = ("TestSqliteFile", "TestFiles", "TestPostgres", "TestRedis")
LAYERED = ("TestSealedMemory", "TestTieredMemory")
"""A layer on the cheapest store. `.ci/run` takes two thirds of the contract on these, by one face."""
SIXTHS = (
    # The same scripts and statements as another store of the contract, by another client or connection.
    *("TestRedisCluster", "TestSqliteInMemory"),
    *("TestSealedSqlite", "TestSealedPostgres", "TestTieredRedisBeforeSqlite"),
    # Hidden names are a layer beneath the keys; a tenant shares the tables of others; and each backend tests objects by
    # itself (tests/blobs).
    *("TestNamelessMemory", "TestNamelessSqlite", "TestSqliteOfTenant", "TestBlobsMemory"),
)
"""`.ci/run` takes a sixth of the contract on these, by one face and without EVERYWHERE, and nothing on other stores."""
LONGEST = 3600
"""Maximum duration of a large sample, in seconds."""
CONTRACTS = ("test_contract", "test_sealed", "test_of_tenants", "test_of_tiers", "test_with_blobs")
# A fault at every request of an operation, one after another: the requests are the same for every client.
EVERYWHERE = ("break_anywhere", "others_may_write", "an_error_before_sending", "a_lost_reply")
COSTLY = (*EVERYWHERE, "max_bytes_limits")
"""In the quick tier, only the memory store takes these."""

# Random examples must not make a run fail at random: only a full run tries new ones.
settings.register_profile("quick", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("full", deadline=None, print_blob=True)
settings.load_profile("full" if "KEEL_EXAMPLES" in os.environ else TIER)


def sized(quick: T, ci: T, full: T) -> T:
    """Return the value for the tier of this run."""
    return {"quick": quick, "ci": ci, "full": full}[TIER]


def examples(number: int) -> int:
    """Return the number of examples per property in this tier, from a thorough number.

    KEEL_EXAMPLES overrides it, with new examples in every run.
    """
    if asked := os.environ.get("KEEL_EXAMPLES"):
        return int(asked)
    # Below the full tier, each run repeats the same examples.
    return number * 4 if TIER == "full" else max(number // 8, min(number, 10))


def tiers_of(items: Sequence[pytest.Item]) -> Iterator[Tier]:
    """Yield the lowest tier of each test, in order."""
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[item.nodeid.partition("[")[0]].append(item)
    tiers: dict[pytest.Item, Tier] = {}
    for name, group in groups.items():
        is_contract = any(f"contract/{each}.py::" in name for each in CONTRACTS)
        quick, ci = (_of_contract if is_contract else _of_others)(name, group)
        tiers.update((item, "ci") for item in ci)
        tiers.update((item, "quick") for item in quick)
    for item in items:
        tier = tiers.get(item, "full")
        yield "ci" if tier == "quick" and item.get_closest_marker("slow") else tier


def _tier_of_contract(name: str) -> Tier:
    """Return the lowest tier of a function of the contract, by its node id."""
    store = name.split("::")[1]
    turn = crc32(name.encode()) // 2
    is_everywhere = any(words in name for words in EVERYWHERE)
    is_cheap = not any(words in name for words in COSTLY)
    if store == "TestMemory":
        return "quick"
    if store in LAYERED:
        return "quick" if turn % 3 == 0 and is_cheap else "ci" if turn % 3 < 2 else "full"
    if store in SIXTHS:
        return "full" if turn % 6 or is_everywhere else "ci"
    if store not in STORES:
        return "full"
    return "quick" if turn % 3 == 0 and is_cheap else "ci"


def _of_contract(name: str, group: Sequence[pytest.Item]) -> tuple[Iterable[pytest.Item], Iterable[pytest.Item]]:
    """Return the quick tests of a function of the contract, and those of `.ci/run`."""
    store, test = name.split("::")[1], name.rpartition("::")[2]
    by_face = {face: [item for item in group if _params(item).get("rig", face) == face] for face in FACES}
    place = STORES.index(store) if store in STORES else 1
    one = list(_covering(name, by_face[FACES[(crc32(test.encode()) + place) % 2]]))
    if store == "TestMemory":
        both = [item for items in by_face.values() for item in items]
        return one, _covering(name, both) if any(words in name for words in EVERYWHERE) else both
    tier = _tier_of_contract(name)
    return one if tier == "quick" else (), one if tier != "full" else ()


def _of_others(name: str, group: Sequence[pytest.Item]) -> tuple[Iterable[pytest.Item], Iterable[pytest.Item]]:
    """Return the quick tests of any other function, and those of `.ci/run`."""
    backends: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in group:
        backends[_backend(item)].append(item)
    without = backends.pop("", [])
    quick = list(_covering(name, without)) if without else []
    ci = quick if any(item.get_closest_marker("slow") for item in without) else without
    if backends:
        taken = min(backends, key=lambda backend: crc32(f"{name} {backend}".encode()))
        of_backend = list(_covering(name, backends[taken]))
        return [*quick, *of_backend], [*ci, *of_backend]
    return quick, ci


def _backend(item: pytest.Item) -> str:
    """Return the backend of a test, alone or with a face: the first one in its name."""
    words = re.split(r"[-\[\] ]", item.name.partition("[")[2])
    return next((word for word in words if word in BACKENDS), "")


def _params(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _covering(name: str, group: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield tests that cover each value of each parameter.

    The combinations differ by backend.
    """
    turned = crc32(f"{name} {next(iter(group)).name}".encode()) % len(group)
    left = [*group[turned:], *group[:turned]]
    missing = {value for item in left for value in _values(item)}
    while missing:
        best = max(left, key=lambda item: len(missing & _values(item)))
        missing -= _values(best)
        yield best


def _values(item: pytest.Item) -> set[tuple[str, int]]:
    """Return the parameters of a test with the identities of their values.

    All tests of a function share the values.
    """
    return {("", 0), *((name, id(value)) for name, value in _params(item).items())}


def deal(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return tests in the order of a run, slow ones first.

    Otherwise a worker would run the last of them alone. `--dist worksteal` first gives each worker a slice, so each
    slice begins with a share of the slow tests. The others keep their order, because tests of a module share its
    fixtures.
    """
    long = [item for item in items if item.get_closest_marker("slow")]
    long.sort(key=lambda item: "upstream" not in item.path.parts)
    rest = [item for item in items if not item.get_closest_marker("slow")]
    size = -(-len(rest) // workers)
    return [item for nth in range(workers) for item in (*long[nth::workers], *rest[nth * size : (nth + 1) * size])]


def is_named(config: pytest.Config) -> bool:
    """Return whether the command line names single tests."""
    return any("::" in argument for argument in config.args)


class Tiers:
    """A plugin that selects the tests of this tier and reports the number of others."""

    def __init__(self) -> None:
        self.others: Counter[Tier] = Counter()

    @pytest.hookimpl
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
        """Do not collect functions of the contract that only later tiers take, half of all tests; count each once."""
        is_contract = isinstance(collector, pytest.Class) and collector.path.stem in CONTRACTS
        if not is_contract or not name.startswith("test_") or is_named(collector.config):
            return None
        tier = _tier_of_contract(f"{collector.nodeid}::{name}")
        if TIERS.index(tier) <= TIERS.index(TIER):
            return None
        self.others[tier] += 1
        return []

    @pytest.hookimpl(tryfirst=True)  # before -k and -m, which would hide representative tests
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect tests of other tiers, unless the command line names them."""
        if is_named(config):
            return
        if TIER == "full":  # 300 damages of a store took over ten minutes (other tiers' limit) under load
            for item in items:
                if not item.get_closest_marker("timeout"):
                    item.add_marker(pytest.mark.timeout(LONGEST))
        taken, others = [], []
        for item, tier in zip(items, tiers_of(items), strict=True):
            if TIERS.index(tier) <= TIERS.index(TIER):
                taken.append(item)
            else:
                others.append(item)
                self.others[tier] += 1
        items[:] = deal(taken, getattr(config, "workerinput", {}).get("workercount", 1))
        config.hook.pytest_deselected(items=others)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Have a worker of xdist report how many tests it did not run."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["tiers"] = dict(self.others)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive a worker's report; all workers have collected the same tests."""
        self.others = Counter(getattr(node, "workeroutput", {}).get("tiers", self.others))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the number of tests of other tiers, and how to run them."""
        for tier, count in self.others.items():
            terminalreporter.write_sep("=", f"tier {TIER}: {count} tests are run by KEEL_TIER={tier} only", yellow=True)
