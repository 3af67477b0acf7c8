"""Dependencies point one way, and only drivers know a client library (CONTRIBUTING.md, "The house")."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "langgraph_keel"
BACKENDS = ("memory", "sqlite", "files", "redis", "postgres")
CLIENTS = {"sqlite3", "redis", "psycopg", "psycopg_pool"}
FORMATS = {"ormsgpack", "xxhash", "zstandard", "langchain_core", "langgraph", "pydantic", "typing_extensions"}
# Of each part, which others it may import. Not in the list: everything.
MAY_IMPORT = {
    "core": {"core", "errors"},
    "errors": set[str](),
    "holder": set[str](),
    "provenance": {"provenance", "core", "errors"},
    "approvals": {"approvals", "core", "errors", "timeline"},
    "runs": {"runs", "core", "errors", "holder"},
    "running": {"approvals", "core", "errors", "provenance", "runs", "upkeep_thread"},
    "inspection": {"core", "errors", "holder", "provenance", "running"},
    "timeline": {"timeline", "core", "errors"},
    "travel": {"core", "errors", "inspection", "timeline"},
    "upkeep": {"core", "errors", "travel"},
    "upkeep_thread": {"core", "errors"},
    "erasing": {"core", "errors", "upkeep"},
    "summaries": {"summaries", "core", "errors", "timeline"},
    "archiving": {"core", "errors", "erasing", "summaries"},
    "saver": {"archiving", "core", "errors"},
    "tools": {"tools", "core", "errors", "holder", "provenance", "runs", "saver"},
    "cli": {"cli", "core", "errors", "saver", "summaries", "timeline", "tools", ""},
    "testing": {"testing", "core", "errors", "saver", "memory", ""},
    **{backend: {backend, "core", "errors", "saver"} for backend in BACKENDS},
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """The dotted names that a module imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").removeprefix("__init__")


def own(name: str) -> str | None:
    """The part of Keel that a dotted name belongs to, `""` for the package itself."""
    root, _, rest = name.partition(".")
    if root != "langgraph_keel":
        return None
    first = rest.partition(".")[0]
    return first if (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").exists() else ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dependencies_point_one_way(path: Path) -> None:
    allowed = MAY_IMPORT.get(part_of(path))
    if allowed is not None:
        assert {part for name in imported(path) if (part := own(name)) is not None} <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_drivers_know_a_client(path: Path) -> None:
    clients = {name.partition(".")[0] for name in imported(path)} & CLIENTS
    assert not clients or path.stem in ("driver", "connection")


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda path: path.stem)
def test_the_core_does_no_io(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imported(path)}
    assert roots <= set(sys.stdlib_module_names) | FORMATS | {"langgraph_keel"}
    assert not roots & {"asyncio", "socket", "sqlite3", "subprocess", "time", "random", "tempfile"}


def test_every_public_name_is_importable_and_documented() -> None:
    import langgraph_keel

    for name in langgraph_keel.__all__:
        assert getattr(langgraph_keel, name).__doc__
