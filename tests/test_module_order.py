"""A module has a docstring, then constants and its logger, then code.

See CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "langgraph_keel"
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|_log")


def names_in(node: ast.AST | None) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} if node else set()


def names_set(node: ast.stmt | None) -> set[str]:
    if isinstance(node, ast.Assign):
        return set().union(*map(names_in, node.targets))
    return names_in(node.target) if isinstance(node, ast.AnnAssign) else set()


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def misplaced(tree: ast.Module) -> Iterator[int]:
    """Return the lines of further docstrings and of misplaced constants.

    A constant may follow the code on which it depends.
    """
    defined = set[str]()
    for before, node in zip([None, *tree.body], tree.body, strict=False):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        if before and is_text(node) and not names_set(before):
            yield node.lineno
        if defined and isinstance(node, ast.Assign | ast.AnnAssign):
            names = names_set(node)
            if not names_in(node.value) & defined and all(map(CONSTANT.fullmatch, names)):
                yield node.lineno
            else:
                defined |= names


def test_modules_have_one_docstring_and_constants_before_code() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): [*misplaced(ast.parse(path.read_text()))]
        for path in PACKAGE.rglob("*.py")
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_misplaced_statements_are_detected() -> None:
    text = '''"""One."""
import logging
A = 1
"""Of A."""
def f(): ...
"""Two."""
B = 2
_log = logging.getLogger("x")
C = f()
D = {C}
'''
    assert [*misplaced(ast.parse(text))] == [6, 7, 8]
