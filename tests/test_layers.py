"""Rooms import downwards only, there is no circle, and only drivers know a client library (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "langgraph_keel"
FLOORS = (
    {"errors", "_langgraph"},
    {"display", "engine"},
    {"tools", "provenance", "approvals", "summaries", "retention"},
    {"history"},
    {"running", "inspection", "saver"},
    {"backends"},
    {""},  # the package itself: public names
    {"cli", "testing"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# Rooms on one floor that may know each other: a replay answers with what the ledger of tools says.
NEIGHBOURS = {("provenance", "tools"), ("inspection", "running"), ("saver", "inspection"), ("saver", "running")}
# What still points upwards, from file to file; it shrinks, and then it goes.
EXCEPTIONS = {
    ("approvals.run_claims", "provenance.hook"),
    ("engine.checkpoints", "approvals.requests"),
    ("engine.checkpoints", "provenance.hook"),
    ("engine.checkpoints", "summaries.archive.hook"),
    ("engine.writes", "provenance.records"),
    ("history.methods", "inspection"),
    ("provenance.carryover", "retention.owners"),
    ("provenance.carryover", "summaries.archive.storage"),
    ("provenance.replay.run", "retention.policy"),
    ("retention.erase", "approvals.requests"),
    ("retention.methods", "history.methods"),
    ("retention.prune", "approvals.requests"),
    ("retention.prune", "history.labels"),
    ("retention.prune", "provenance.carryover"),
    ("retention.prune", "tools.ledger"),
    ("summaries.methods", "retention.methods"),
    ("tools.cache", "saver"),
    ("tools.node_cache", "retention.erase"),
    ("tools.node_cache", "saver"),
    ("tools.stats", "saver"),
}
CIRCLES = 1
"""As many groups of modules import each other, counting imports inside functions; none at the end."""

CLIENTS = {"sqlite3", "redis", "psycopg", "psycopg_pool"}
FORMATS = {"ormsgpack", "xxhash", "zstandard", "langchain_core", "langgraph", "pydantic", "typing_extensions"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imported(path: Path) -> frozenset[str]:
    """The dotted names that a module imports, also inside functions and for types only."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def modules_of_ours(path: Path) -> Iterator[str]:
    """The modules of this package that a module imports."""
    for name in imported(path):
        root, _, rest = name.partition(".")
        while root == "langgraph_keel" and rest not in MODULES:
            rest = rest.rpartition(".")[0]
        if root == "langgraph_keel":
            yield rest


def room_of(module: str) -> str:
    return module.partition(".")[0]


def points_upwards(module: str, other: str) -> bool:
    here, there = room_of(module), room_of(other)
    if here == there or (here, there) in NEIGHBOURS:
        return False
    return FLOOR[there] >= FLOOR[here]


def test_rooms_import_downwards_only() -> None:
    edges = {(module, other) for module, path in MODULES.items() for other in modules_of_ours(path)}
    assert {edge for edge in edges if points_upwards(*edge)} == EXCEPTIONS


def circles() -> list[list[str]]:
    """Groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in modules_of_ours(MODULES[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            found.append(stack[at:])
            del stack[at:]

    for module in MODULES:
        if module not in index:
            visit(module)
    return [sorted(group) for group in found if len(group) > 1]


def test_there_is_no_circle() -> None:
    assert len(circles()) == CIRCLES, circles()


@pytest.mark.parametrize("path", MODULES.values(), ids=list(MODULES))
def test_only_drivers_know_a_client(path: Path) -> None:
    clients = {name.partition(".")[0] for name in imported(path)} & CLIENTS
    assert not clients or path.stem in ("driver", "connection")


@pytest.mark.parametrize("path", sorted((PACKAGE / "engine").rglob("*.py")), ids=lambda path: path.stem)
def test_the_engine_does_no_io(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imported(path)}
    assert roots <= set(sys.stdlib_module_names) | FORMATS | {"langgraph_keel"}
    if path.stem != "leases":  # renews what is held, in a thread; says who this process is
        assert not roots & {"asyncio", "socket", "sqlite3", "subprocess", "time", "random", "tempfile"}


def test_every_public_name_is_importable_and_documented() -> None:
    import langgraph_keel

    for name in langgraph_keel.__all__:
        assert getattr(langgraph_keel, name).__doc__
