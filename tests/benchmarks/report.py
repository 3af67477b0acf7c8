"""Rows, their targets, and the table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

Unit = Literal["ms", "B", "/s", "×", " cells"]
TAIL = "99th percentile"


@dataclass(frozen=True)
class Target:
    """A limit on the ratio (Keel's figure over LangGraph's) or on Keel's own figure."""

    limit: float
    text: str
    of: Literal["ratio", "figure"] = "ratio"
    at_least: bool = False

    def met_by(self, row: "Row") -> bool | None:
        value = row.ratio if self.of == "ratio" else row.ours
        if value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Row:
    """A line of the table; `group` is the measure's name, `spread` the quartiles of the ratio over the rounds."""

    group: str
    measure: str
    theirs: float | None
    ours: float | None
    unit: Unit
    target: Target | None = None
    spread: tuple[float, float] | None = None

    @property
    def ratio(self) -> float | None:
        if self.theirs is None or self.ours is None or not self.theirs or self.unit == "×":
            return None
        return self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        return self.target.met_by(self) if self.target else None

    @property
    def slower(self) -> bool | None:
        """Whether Keel is slower than LangGraph's saver; for growth rows, whether it misses its target."""
        if self.unit == "×":
            return None if self.met is None else not self.met
        return None if self.ratio is None or self.unit == "B" else (self.ratio > 1) == (self.unit == "ms")

    def as_json(self) -> dict[str, Any]:
        names = ("group", "measure", "theirs", "ours", "unit", "ratio", "spread", "met", "slower")
        shown = {name: getattr(self, name) for name in names}
        return {**shown, "target": self.target.text if self.target else None}


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def figure(value: float | None, unit: Unit) -> str:
    if value is None:
        return ""
    if unit == "B":
        return _bytes(value)
    return f"{value:.3g}{unit}" if unit != "ms" else f"{value:,.2f} {unit}"


def _ratio(row: Row) -> str:
    low, high = row.spread or (None, None)
    spread = f" ({low:.2f}-{high:.2f})" if low and high else ""
    return _fraction(row.ratio) + spread


def _fraction(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value >= 0.05 else f"1/{1 / value:.0f}" if value > 0 else "0"


_MET = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}


def table(rows: Iterable[Row], title: str) -> Table:
    result = Table(title=title)
    result.add_column("measure")
    for heading in ("LangGraph", "Keel", "ratio", "target"):
        result.add_column(heading, justify="right")
    result.add_column("met?")
    previous = None
    for row in rows:
        if previous not in (None, row.group):
            result.add_section()
        previous = row.group
        result.add_row(*_cells(row))
    return result


def _cells(row: Row) -> tuple[str, ...]:
    target = row.target.text if row.target else ""
    ours, theirs = figure(row.ours, row.unit), figure(row.theirs, row.unit)
    return row.measure, theirs, ours, _ratio(row), target, _MET[row.met]


def markdown(rows: Iterable[Row]) -> str:
    """Return the table as Markdown; ratios that are slower than LangGraph's saver are bold."""
    lines = ["| | LangGraph | Keel | ratio | target |", "|---|---|---|---|---|"]
    for row in rows:
        measure, theirs, ours, ratio, target, _ = _cells(row)
        missed = " **missed**" if row.met is False else ""
        ratio = f"**{ratio}**" if ratio and row.slower else ratio
        lines.append(f"| {measure} | {theirs} | {ours} | {ratio} | {target}{missed} |")
    return "\n".join(lines) + "\n"


def show(rows: Iterable[Row], title: str) -> None:
    """Print the table, wide enough for its columns even into a pipe."""
    console = Console()
    wide = console if console.is_terminal else Console(width=140)
    wide.print(table(rows, title))
