"""Rooms import only lower ones, without cycles; only drivers import clients.

See CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "langgraph_keel"
FLOORS = (
    {"errors", "_langgraph"},
    {"display", "engine", "git"},
    {"blobs", "embedding", "keys"},
    {"tools", "provenance", "approvals", "runs", "summaries", "retention", "upgrades", "workspace"},
    {"history", "tenants"},
    {"moving", "recovery", "store"},
    {"options"},
    {"stack"},
    {"saver"},
    {"backends"},
    {"opening"},
    {""},  # the package itself: public names
    {"cli", "testing", "serving", "tracing", "web"},
    {"__main__"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# Rooms on one level that may import each other. A replay answers from the ledger of tools, and a placeholder may
# represent a stored value in views. A decision finds the run that holds the thread, and the end of a run closes
# questions. `keel web` serves the page.
NEIGHBOURS = {("provenance", "tools"), ("display", "engine"), ("approvals", "runs"), ("runs", "approvals")}
NEIGHBOURS |= {("cli", "web")}

PRIVATE = "_langgraph"
"""The only module that uses private names of LangGraph and LangChain."""
HIDDEN = {
    "langchain_core.runnables.config.var_child_runnable_config",
    "langchain_core.tracers.context.register_configure_hook",
    *(f"langgraph.checkpoint.serde.types.{name}" for name in ("ERROR", "INTERRUPT", "RESUME", "SCHEDULED", "TASKS")),
}
"""Names without `_` that are private, or in no reference."""
RESERVED = re.compile(r"__pregel|branch:|join:|(langgraph|langchain)[\w.]*\._|langgraph_(?!keel)\w+$")
"""The beginnings of LangGraph's own keys, channels and private names."""

CLIENTS = {"obstore", "sqlite3", "redis", "psycopg", "psycopg_pool"}
FORMATS = {"ormsgpack", "xxhash", "zstandard", "langchain_core", "langgraph", "pydantic", "typing_extensions"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the dotted names that a module imports, also in functions and for types."""
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def modules_of_ours(path: Path) -> Iterator[str]:
    """Return the modules of this package that a module imports."""
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
    assert {here, there} <= FLOOR.keys(), f"put the rooms {here!r} and {there!r} in FLOORS"
    if here == there or (here, there) in NEIGHBOURS:
        return False
    return FLOOR[there] >= FLOOR[here]


def test_modules_import_only_lower_layers() -> None:
    edges = {(module, other) for module, path in MODULES.items() for other in modules_of_ours(path)}
    assert {edge for edge in edges if points_upwards(*edge)} == set()


def test_the_contributing_page_lists_all_layers() -> None:
    page = (TESTS.parent / "CONTRIBUTING.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("errors <-"))
    written = [set(floor.split(", ")) for floor in line.split(" <- ")]
    assert written == [floor - {PRIVATE} for floor in FLOORS if floor - {"", "__main__"}]


def test_imports_have_no_cycle() -> None:
    edges = {module: {*modules_of_ours(path)} - {module} for module, path in MODULES.items()}
    TopologicalSorter(edges).prepare()  # or `CycleError`, which names one


def roots_of(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def test_only_drivers_import_a_client() -> None:
    others = [path for path in MODULES.values() if path.stem not in ("driver", "connection", "exchange")]
    assert {path.stem: known for path in others if (known := roots_of(path) & CLIENTS)} == {}


@pytest.mark.parametrize("path", sorted((PACKAGE / "engine").rglob("*.py")), ids=lambda path: path.stem)
def test_the_engine_does_no_io(path: Path) -> None:
    roots = roots_of(path)
    assert roots <= set(sys.stdlib_module_names) | FORMATS | {"langgraph_keel"}
    # Leases are renewed in a thread and identify this process; schemas measure their own time.
    if path.stem not in ("leases", "schemas"):
        assert not roots & {"socket", "sqlite3", "subprocess", "time", "random", "tempfile"}
        # A loop that runs a plan checks whether its task was cancelled; errands that block have their own thread.
        assert "asyncio" not in roots or path.stem in ("plan", "errands")


def is_private(name: str) -> bool:
    root, *parts = name.split(".")
    is_theirs = root.startswith(("langgraph", "langchain")) and root != "langgraph_keel"
    return is_theirs and (name in HIDDEN or any(part.startswith("_") for part in parts))


def texts_of(path: Path) -> Iterator[str]:
    """Return the literals of a module, without docstrings and other bare texts."""
    alone = {node.value for node in nodes_of(path) if isinstance(node, ast.Expr)}
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in alone:
            yield node.value


def reserved() -> frozenset[str]:
    """Return the names that LangGraph reserves and Keel uses, except short separators."""
    from langgraph_keel import _langgraph

    held = {value for name, value in vars(_langgraph).items() if name.isupper() and isinstance(value, str)}
    return frozenset({text for text in held if len(text) > 1} | {"__start__", "__remove_all__", "_DeltaSnapshot"})


def test_only_one_module_uses_private_names_of_langgraph() -> None:
    kept = reserved()
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        texts = set(texts_of(path))
        found[module] = {name for name in imported(path) if is_private(name)} | texts & kept
        found[module] |= {text for text in texts if RESERVED.match(text)}
    assert found.pop(PRIVATE)
    assert {module: names for module, names in found.items() if names} == {}


def test_private_names_of_langgraph_still_exist() -> None:
    from langgraph._internal import _constants
    from langgraph._internal._scratchpad import PregelScratchpad
    from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS
    from langgraph.graph import state

    from langgraph_keel import _langgraph as ours

    elsewhere = ("BRANCH", "DELTA", "JOIN", "METADATA", "PREGEL", "SAFE", "SCHEDULED")
    named = [name for name, value in vars(ours).items() if name.isupper() and isinstance(value, str)]
    names = [name for name in named if not name.startswith(elsewhere)]
    # The first versions of 1.2 may not know CONFIG_KEY_STRICT_RESUME.
    theirs = {name: getattr(_constants, name) for name in names if name in vars(_constants) or "STRICT" not in name}
    assert theirs == {name: getattr(ours, name) for name in theirs}
    assert {ours.METADATA_STEP, ours.METADATA_NODE, ours.METADATA_NS} <= EXCLUDED_METADATA_KEYS
    assert state._CHANNEL_BRANCH_TO.format("") == ours.BRANCH_TO  # private: what Keel relies on, and is tested here
    assert (ours.DeltaSnapshot.__module__, ours.DeltaSnapshot.__qualname__) == ours.DELTA_SNAPSHOT
    fields = {field.name for field in dataclasses.fields(PregelScratchpad)}
    assert {name for name in vars(ours.Scratchpad) if isinstance(vars(ours.Scratchpad)[name], property)} <= fields


CELL_VERBS = {"swap_cell", "swap_cells", "read_cells", "list_cells", "find_cells", "remove_cells"}


def test_features_access_cells_only_through_cell_tables() -> None:
    """Only `engine.tables.Cells` decodes cells, pages shelves, and retries swaps."""
    # Wrapping stores are below that class, and a copy of a store copies cells of unknown kinds unchanged.
    stores = ("engine", "backends", "testing", "keys", "blobs", "moving")
    features = [path for name, path in MODULES.items() if room_of(name) not in stores]
    nodes = ((path, node) for path in features for node in nodes_of(path))
    named = [(path.name, node.attr) for path, node in nodes if isinstance(node, ast.Attribute)]
    assert [each for each in named if each[1] in CELL_VERBS] == []


OPEN = {"_exit", "_replace", "_make", "_fields", "_name_", "_value_", "_member_map_"}
"""Public names of the standard library that begin with `_`; those of notebooks do too (`_repr_html_`)."""
THEIRS = {
    "_writer": "redis-py has no way to close an asynchronous connection whose loop is dead",
    "_reader": "redis-py has no way to close an asynchronous connection whose loop is dead",
    "_sock": "asyncio has no way to close a transport whose loop is dead",
    "_initialize": "redis-py's cluster client does not connect again after it was closed",
    "_get_running_loop": "asyncio's own way to ask without an exception",
    "_getframe": "the standard library's way to find who has called",
    "_run": "LangChain's tools are told to override it, so a stand-in has to call it",
}
"""Private names of other libraries in the package, and the reasons."""


def private_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the private names of other objects that a module uses.

    Names that a class of the module defines are omitted.
    """
    own = {node.name for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    reached = []
    for node in nodes_of(path):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("langgraph_keel"):
            reached += [(node.lineno, alias.name) for alias in node.names if alias.name != PRIVATE]
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                own.add(node.attr)
            else:
                reached.append((node.lineno, node.attr))
    for line, name in reached:
        if re.match(r"_(?!_|repr_)", name) and name not in own and name not in OPEN:
            yield line, name


def test_no_module_uses_private_names_of_other_objects() -> None:
    found = [(path.name, *each) for path in MODULES.values() for each in private_names(path)]
    assert [each for each in found if each[2] not in THEIRS] == []


@pytest.mark.slow
def test_tests_that_use_private_names_give_a_reason() -> None:
    unsaid = []
    for path in sorted(TESTS.rglob("*.py")):
        lines = path.read_text().splitlines()
        reached = [number for number, _ in private_names(path)]
        unsaid += [(path.name, at) for at in reached if "# private: " not in lines[at - 1] + lines[at - 2]]
    assert unsaid == []


def test_every_public_name_is_importable_and_documented() -> None:
    import langgraph_keel

    for name in langgraph_keel.__all__:
        assert getattr(langgraph_keel, name).__doc__
