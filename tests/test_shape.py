"""The house style that can be counted: short functions, shallow nesting, files one can read in a sitting."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "langgraph_keel").rglob("*.py"))
FILES = PACKAGE + sorted((ROOT / "tests").rglob("*.py"))
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
FORBIDDEN = {"utils", "util", "helper", "helpers", "manager", "managers", "misc", "common"}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of code, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body and body[-1].end_lineno else 0


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Blocks in blocks; an `elif` is no deeper than its `if`, and a function inside starts anew."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        is_elif = isinstance(node, ast.If) and child in node.orelse and isinstance(child, ast.If)
        deepest = max(deepest, nesting(child, depth + (isinstance(child, BLOCKS) and not is_elif)))
    return deepest


def name_of(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"


def test_functions_are_short() -> None:
    lengths = sorted(length(function) for path in PACKAGE for function in functions(path))
    assert statistics.median(lengths) <= 8
    assert lengths[len(lengths) * 9 // 10] <= 25


def test_nesting_is_shallow() -> None:
    deep = [name_of(path, function) for path in FILES for function in functions(path) if nesting(function) > 3]
    assert deep == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_can_be_read_in_a_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_no_module_is_called_for_nothing() -> None:
    assert [path for path in FILES if path.stem in FORBIDDEN] == []
