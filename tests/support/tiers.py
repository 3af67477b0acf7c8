"""The tiers of tests: quick, ci (`.ci/run`) or full (`.ci/full`), chosen by KEEL_TIER.

quick   `pytest` alone. Omits tests that are marked slow, and repeated combinations of parameters. The contract runs in
        memory by the blocking face, warm, and the async face, cold; on SQLite by one of these, in turn. A third of it
        runs on files, PostgreSQL and Redis, with a keyring, and on two stores in memory. Any other test that takes a
        backend runs with all combinations on its first backend, and once on two others.
ci      Adds the slow tests, on samples: kills, power cuts, LangGraph's own suite, the notebooks. The contract runs in
        memory by each face with each temperature, on SQLite, files, PostgreSQL and Redis by one face each (of each
        test, two stores take the blocking and two the async face), with a keyring and on two stores by one face in
        memory. A third of it runs on stores that differ from these by their client or a layer (THIRDS). Any other test
        runs with all combinations on its first backend, on another one so that each parameter has each of its values,
        and once on a third one. A slow or heavy test runs on its first backend, and once on one other.
full    Everything, with the whole matrices and large samples. The contract runs by each face with each temperature on
        the stores that keep the data, and by two of these four on the stores upon them (support/contract/brief.py).

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
"""Each face, and each temperature: which of the two a store could mistake for another is the engine's business."""
STORES = ("TestSqliteFile", "TestFiles", "TestPostgres", "TestRedis")
LAYERED = ("TestSealedMemory", "TestTieredMemory")
"""A layer upon the cheapest store: all of the contract, by one face."""
THIRDS = (
    # The same scripts and statements as another store of the contract, by another client or connection.
    *("TestRedisCluster", "TestSqliteInMemory"),
    *("TestSealedSqlite", "TestSealedPostgres", "TestTieredRedisBeforeSqlite"),
    # Hidden names are a layer beneath the keys; a tenant shares the tables of others; what objects hold, each backend
    # is tested with by itself (tests/blobs).
    *("TestNamelessMemory", "TestNamelessSqlite", "TestSqliteOfTenant", "TestBlobsMemory"),
)
"""`.ci/run` takes a third of the contract on these, by one face and without EVERYWHERE, and nothing on other stores."""
TAKEN = frozenset({"TestMemory", *STORES, *LAYERED, *THIRDS})
"""The stores of the contract in the tiers before the full one."""
LONGEST = 3600
"""Seconds that a large sample may take."""
CONTRACTS = ("test_contract", "test_sealed", "test_of_tenants", "test_of_tiers", "test_with_blobs")
# A fault at every request of an operation, one after another: the same requests, whoever sends them.
EVERYWHERE = ("break_anywhere", "others_may_write", "an_error_before_sending", "a_lost_reply")

# What is found by chance must not fail by chance: only a full run looks at examples that nobody has seen.
settings.register_profile("quick", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("full", deadline=None, print_blob=True)
settings.load_profile("full" if "KEEL_EXAMPLES" in os.environ else TIER)


def sized(quick: T, ci: T, full: T) -> T:
    """Return what is for the tier of this run."""
    return {"quick": quick, "ci": ci, "full": full}[TIER]


def examples(number: int) -> int:
    """Return how many examples of a property are tried in this tier, of a number that is thorough.

    KEEL_EXAMPLES is how many somebody wants to see of each, new ones in every run.
    """
    if asked := os.environ.get("KEEL_EXAMPLES"):
        return int(asked)
    return sized(max(number // 8, min(number, 10)), max(number // 4, min(number, 10)), number * 4)


def tiers_of(items: Sequence[pytest.Item]) -> Iterator[Tier]:
    """Yield the lowest tier of each test, in order."""
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[item.nodeid.partition("[")[0]].append(item)
    tiers: dict[pytest.Item, Tier] = {}
    for name, group in groups.items():
        is_contract = any(f"contract/{each}.py::" in name for each in CONTRACTS)
        quick, ci = _of_contract(name, group) if is_contract else _of_backends(name, group)
        tiers.update((item, "ci") for item in ci)
        tiers.update((item, "quick") for item in quick)
    for item in items:
        tier = tiers.get(item, "full")
        yield "ci" if tier == "quick" and item.get_closest_marker("slow") else tier


def _of_contract(name: str, group: Sequence[pytest.Item]) -> tuple[Iterable[pytest.Item], Iterable[pytest.Item]]:
    """Return the tests of a function of the contract that are quick, and those that `.ci/run` takes."""
    store = name.split("::")[1]
    by_face = {face: [item for item in group if _params(item).get("rig", face) == face] for face in FACES}
    both = [item for items in by_face.values() for item in items]
    turn = crc32(name.encode())
    place = STORES.index(store) if store in STORES else 0
    one = list(_covering(name, by_face[FACES[(turn + place) % 2]]))
    is_third, is_everywhere = turn // 2 % 3 == 0, any(words in name for words in EVERYWHERE)
    if store == "TestMemory":
        covering = list(_covering(name, both))
        return (covering, covering) if is_everywhere else (both, group)
    if store in LAYERED:
        return one if is_third else (), one
    if store in THIRDS:
        return (), one if is_third and not is_everywhere else ()
    if store not in STORES:
        return (), ()
    return one if is_third or store == STORES[0] else (), one


def _of_backends(name: str, group: Sequence[pytest.Item]) -> tuple[Iterable[pytest.Item], Iterable[pytest.Item]]:
    """Return the tests of another function that are quick, and those that `.ci/run` takes."""
    backends: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in group:
        backends[_backend(item)].append(item)
    first = next((one for one in BACKENDS if one in backends), "")
    whole = backends.pop("", []) + backends.pop(first, [])
    others = [list(_covering(name, those)) for those in backends.values()]
    if not others:
        return whole, whole
    start = crc32(name.encode()) % len(others)
    turn = [*others[start:], *others[:start]]
    if any(item.get_closest_marker(mark) for item in group for mark in ("heavy", "slow")):
        return [*whole, turn[0][0]], [*whole, turn[0][0]]
    others_once = [each[0] for each in turn[:2]]
    return [*whole, *others_once], [*whole, *turn[0], *others_once]


def _backend(item: pytest.Item) -> str:
    """Return the backend that a test is given, alone or with a face: the first one in its name."""
    words = re.split(r"[-\[\] ]", item.name.partition("[")[2])
    return next((word for word in words if word in BACKENDS), "")


def _params(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _covering(name: str, group: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield tests until each parameter has had each of its values; on each backend others meet."""
    turned = crc32(f"{name} {next(iter(group)).name}".encode()) % len(group)
    left = [*group[turned:], *group[:turned]]
    missing = {value for item in left for value in _values(item)}
    while missing:
        best = max(left, key=lambda item: len(missing & _values(item)))
        missing -= _values(best)
        yield best


def _values(item: pytest.Item) -> set[tuple[str, int]]:
    """Return the parameters of a test, each with the identity of its value, which all tests of a function share."""
    return {("", 0), *((name, id(value)) for name, value in _params(item).items())}


def deal(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return tests in the order of a run: what takes long comes first, or a worker is left with the last of them alone.

    `--dist worksteal` gives each worker a stretch to begin with, so each stretch begins with a share of the long ones.
    The others stand as they were found, for tests of a module share its fixtures.
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
    """The plugin: takes the tests of this tier, and says loudly how many there are in the others."""

    def __init__(self) -> None:
        self.others: Counter[Tier] = Counter()

    @pytest.hookimpl
    def pytest_pycollect_makeitem(
        self, collector: pytest.Collector, name: str, obj: object
    ) -> list[pytest.Item] | None:
        """Do not even collect the contract on stores of the full tier alone: a quarter of all tests.

        They are counted once for each function.
        """
        is_taken = TIER == "full" or collector.path.stem not in CONTRACTS or name in TAKEN
        if is_taken or not isinstance(obj, type) or not name.startswith("Test") or is_named(collector.config):
            return None
        self.others["full"] += sum(each.startswith("test_") for each in dir(obj))
        return []

    @pytest.hookimpl(tryfirst=True)  # before -k and -m, which would hide tests that others stand for
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what is not of this tier, unless somebody has named it."""
        if is_named(config):
            return
        if TIER == "full":  # 300 damages of a store took more than the ten minutes of other tiers, among other work
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
        """Have a worker of xdist tell how many tests it did not take."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["tiers"] = dict(self.others)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Hear what a worker tells; all of them have seen the same tests."""
        self.others = Counter(getattr(node, "workeroutput", {}).get("tiers", self.others))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which tests of other tiers were not run, and how to run them."""
        for tier, count in self.others.items():
            terminalreporter.write_sep("=", f"tier {TIER}: {count} tests are run by KEEL_TIER={tier} only", yellow=True)
