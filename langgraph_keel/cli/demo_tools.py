"""The demo agent's tools: they search, compute and write real files in the demo's directory."""

from __future__ import annotations

import ast
import csv
import operator
import re
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool

from langgraph_keel.cli.demo_notes import NOTES

LEDGER, LETTER, REPORT = "ledger.csv", "letter.md", "report.md"


def search_notes(query: str) -> str:
    """Return the names of the notes that share a word with the query, best first."""
    words = {word for word in re.findall(r"\w+", query.lower()) if len(word) > 3}
    scores = {name: sum(word in text.lower() for word in words) for name, text in NOTES.items()}
    best = max(scores.values())
    return "\n".join(name for name, score in scores.items() if score == best and best)


def read_note(name: str) -> str:
    """Return a note."""
    return NOTES[name]


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(expression: str) -> str:
    """Return the value of an arithmetic expression with `+`, `*`, `/` and `ceil`."""
    return f"{_value(ast.parse(expression, mode='eval').body):.2f}"


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp):
        return float(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ceil":
        return ceil(_value(node.args[0]))
    raise ValueError(f"not arithmetic: {ast.dump(node)}")


def ledger(folder: Path, customer: str) -> list[str]:
    """Return the amounts booked for a customer."""
    return [amount for name, amount, _ in _bookings(folder) if name == customer]


def _bookings(folder: Path) -> list[list[str]]:
    path = folder / LEDGER
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


class Desk:
    """The tools that leave marks: a ledger, a letter and a report in a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def book_credit(self, customer: str, amount: str, key: Annotated[str, InjectedToolArg] = "") -> str:
        """Book a credit: append a line to the ledger, which is money given away, unless one with this key is there."""
        if not key or key not in [known for _, _, known in _bookings(self._folder)]:
            with open(self._folder / LEDGER, "a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow([customer, amount, key])
        return f"booked {amount} EUR for {customer}"

    def write_letter(self, text: str) -> str:
        """Write the letter to the customer."""
        (self._folder / LETTER).write_text(text, encoding="utf-8")
        return f"wrote {LETTER}, {len(text)} characters"

    def check_ledger(self, customer: str) -> str:
        """Return how often and how much was booked for a customer."""
        booked = ledger(self._folder, customer)
        return f"{len(booked)} booking, {sum(map(float, booked)):.2f} EUR"

    def write_report(self, text: str) -> str:
        """Write the report."""
        (self._folder / REPORT).write_text(text, encoding="utf-8")
        return f"wrote {REPORT}, {len(text)} characters"


def tools(folder: Path) -> list[BaseTool]:
    """Return the agent's tools, which leave their marks in `folder`."""
    desk = Desk(folder)
    reading = (search_notes, read_note, calculate, desk.check_ledger)
    writing = (desk.book_credit, desk.write_letter, desk.write_report)
    return [StructuredTool.from_function(function) for function in (*reading, *writing)]
