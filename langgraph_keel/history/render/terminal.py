"""A timeline in a terminal: a tree of box characters, and beside it what each moment says. Plain, and in colour.

The tree of a timeline in box characters, newest moment on top; and text wrapped beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from langgraph_keel.history.moment import Moment
from langgraph_keel.history.render.rows import Line, Note, Row, Told, footing, heading, told, width_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text


Part: TypeAlias = tuple[str, str]
"""Text and its style."""
JOINED = "\u00a0"
"""A space at which no line is broken."""
Parts: TypeAlias = list[Part]

_COLOURS = ("", "magenta", "cyan", "yellow", "blue", "green", "red", "bright_magenta", "dim")
_UP, _LEFT, _RIGHT = 1, 2, 4
_BOXES = {
    _UP | _LEFT: "╯",
    _UP | _RIGHT: "╰",
    _UP | _LEFT | _RIGHT: "┴",
    _LEFT | _RIGHT: "─",
}


def drawn(row: Row, lanes: int) -> Parts:
    """Return the tree beside the first line of a moment: two columns a lane."""
    cells = _standing((*row.through, *row.cuts), "│")
    cells |= {line.lane: ("┊", _colour(line)) for line in row.cuts}
    own, ends = row.line.lane, {line.lane: line for line in row.joins}
    low, high = min((own, *ends)), max((own, *ends))
    for lane in range(low, high + 1):
        if lane in cells:
            cells[lane] = "┼", cells[lane][1]
        elif lane != own:
            cells[lane] = _joint(lane, own, ends, (low, high))
    cells[own] = _mark(row)
    bridge = _colour(ends.get(high, row.line))
    return _laid(cells, lanes, dict.fromkeys(range(low, high), ("─", bridge)))


def continued(row: Row, lanes: int) -> Parts:
    """Return the tree beside a moment's further lines."""
    own = (row.line,) if row.is_older else ()
    return _laid(_standing((*row.through, *own), "│"), lanes, {})


def below(row: Row, lanes: int) -> Parts:
    """Return the tree below the oldest moment."""
    return _laid({row.line.lane: ("┊", _colour(row.line))} if row.is_older else {}, lanes, {})


def _standing(lines: Iterable[Line], char: str) -> dict[int, Part]:
    return {line.lane: (char, _colour(line)) for line in lines}


def _joint(lane: int, own: int, ends: dict[int, Line], span: tuple[int, int]) -> Part:
    line = ends.get(lane) or ends[span[1] if lane > own else span[0]]
    ways = _UP * (lane in ends) | _LEFT * (lane > span[0]) | _RIGHT * (lane < span[1])
    return _BOXES[ways], _colour(line)


def _mark(row: Row) -> Part:
    if row.moment.is_head and not row.line.is_call:
        return "◉", f"bold {_colour(row.line) or 'green'}"
    return "○" if row.line.is_call else "●", _colour(row.line)


def _colour(line: Line) -> str:
    return _COLOURS[line.lane]


def _laid(cells: dict[int, Part], lanes: int, bridges: dict[int, Part]) -> Parts:
    blank = (" ", "")
    return [part for lane in range(lanes) for part in (cells.get(lane, blank), bridges.get(lane, blank))]


# -- text beside it --------------------------------------------------------------------------------------------


def wrapped(parts: Iterable[Part], width: int) -> list[Parts]:
    """Return parts as lines of at most `width` columns, broken between words where that is possible."""
    from rich.cells import cell_len

    lines: list[Parts] = [[]]
    left = width
    for word, style in _words(parts, width):
        if cell_len(word.rstrip()) > left:
            lines.append([])
            left, word = width, word.lstrip()
        word = word if cell_len(word) <= left else word.rstrip()
        lines[-1].append((word.replace(JOINED, " "), style))
        left -= cell_len(word)
    return lines


def filled(line: Parts, width: int, *, is_right: bool = False) -> Parts:
    """Return a line padded to a width."""
    blank = [(" " * (width - columns_of(line)), "")]
    return [*blank, *line] if is_right else [*line, *blank]


def columns_of(line: Sequence[Part]) -> int:
    """Return how many columns a line takes."""
    from rich.cells import cell_len

    return sum(cell_len(text) for text, _ in line)


def _words(parts: Iterable[Part], width: int) -> Iterator[Part]:
    """Yield words, each with the space behind it; those that are too long in pieces."""
    from rich.cells import cell_len, chop_cells

    for text, style in parts:
        for word in text.replace(" ", " \n").split("\n"):
            pieces = [word] if cell_len(word.rstrip()) <= width else chop_cells(word, width)
            yield from ((piece, style) for piece in pieces if piece)


WIDTH = 100
"""Columns of plain text, which does not know where it is printed."""
_WIDE, _STACKED = 96, 64
_NODES, _MODEL = 24, 20
TONES = {
    "label": "bold yellow",
    "origin": "magenta",
    "tool": "cyan",
    "replayed": "dim cyan",
    "pending": "yellow",
    "waits": "bold yellow",
    "asked": "dim yellow",
    "failed": "bold red",
    "drift": "yellow",
    "not read": "yellow",
    "next": "dim",
}


def as_text(moments: Sequence[Moment], older: int | None = None, width: int = WIDTH) -> str:
    """Return a timeline as plain text, newest moment first.

    Args:
        moments: What to show, in order.
        older: How many come before them; `None` if that is not known.
        width: Columns that there are.
    """
    return plain_lines(lines(moments, older, width))


def as_rich(moments: Sequence[Moment], older: int | None = None) -> Page:
    """Return a timeline for a rich console, as wide as that is, newest moment first."""
    return Page(moments, older)


@dataclass(frozen=True, slots=True)
class Page:
    """A timeline for a rich console."""

    moments: Sequence[Moment]
    older: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        yield from map(rich_line, lines(self.moments, self.older, options.max_width))


def rich_line(line: Parts) -> Text:
    """Return a line for a rich console, taken literally."""
    from rich.text import Text

    return Text.assemble(*line, no_wrap=True, overflow="ignore")


def plain_lines(found: Iterator[Parts]) -> str:
    """Return lines without their styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in found)


def lines(moments: Sequence[Moment], older: int | None, width: int) -> Iterator[Parts]:
    """Yield the lines of a timeline, each as wide as `width` at most."""
    name, shown = heading(moments)
    if not moments:
        yield [("no moments", "dim")]
        return
    yield from wrapped([("thread ", ""), (name, "bold"), (f" · {shown}", "dim")], width)
    rows = told(moments)
    lanes = width_of(row.row for row in rows)
    table = _table(rows, width - 2 * lanes)
    if table.has_head:
        yield [("  " * lanes, ""), *table.head()]
    for row in rows:
        yield from _row(row, table, lanes)
    if note := footing(moments, older):
        tree = below(rows[-1].row, lanes)
        yield from ([*tree, *line] for line in wrapped([(note, "dim")], table.width))


def _row(row: Told, table: _Table, lanes: int) -> Iterator[Parts]:
    for number, line in enumerate(table.lines(row)):
        tree = continued(row.row, lanes) if number else drawn(row.row, lanes)
        yield [*tree, *line]


# -- columns ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    width: int
    is_right: bool = False


@dataclass(frozen=True, slots=True)
class _Table:
    """The columns that a width has room for.

    Attributes:
        columns: Their names and widths.
        is_wide: Whether nodes, model and size have columns of their own.
        is_stacked: Whether what happened stands below the rest.
        width: The columns that there are.
    """

    columns: tuple[_Column, ...]
    is_wide: bool
    is_stacked: bool
    width: int

    @property
    def has_head(self) -> bool:
        return not self.is_stacked

    def head(self) -> Parts:
        """Return the names of the columns."""
        names = [[(column.name, "dim")] for column in self.columns]
        return self._beside(names)

    def lines(self, row: Told) -> Iterator[Parts]:
        """Yield the lines of a moment."""
        cells = _cells(row, is_wide=self.is_wide)
        if self.is_stacked:
            yield from wrapped(_spaced(cells[:-1]), self.width)
            yield from wrapped(cells[-1], self.width)
            return
        pairs = zip(cells, self.columns, strict=False)
        columns = [wrapped(cell, column.width) for cell, column in pairs]
        for number in range(max(map(len, columns), default=0)):
            yield self._beside([column[number] if number < len(column) else [] for column in columns])

    def _beside(self, cells: Sequence[Parts]) -> Parts:
        pairs = zip(cells, self.columns, strict=True)
        padded = (filled(cell, column.width, is_right=column.is_right) for cell, column in pairs)
        return [part for cell in padded for part in (*cell, ("  ", ""))][:-1]


def _table(rows: Sequence[Told], width: int) -> _Table:
    """Return the table that fits: what happened has whatever the others leave."""
    is_wide = width >= _WIDE
    cells = [_cells(row, is_wide=is_wide) for row in rows]
    names = ["#", "step", "checkpoint", "time", *["nodes"] * is_wide, "what happened", *["model", "stored"] * is_wide]
    widths = [max([len(name), *(columns_of(row[place]) for row in cells)]) for place, name in enumerate(names)]
    most = {"nodes": _NODES, "model": _MODEL, "what happened": 0}
    found = [_Column(name, min(most.get(name, 40), size)) for name, size in zip(names, widths, strict=True)]
    left = width - sum(column.width + 2 for column in found) + 2
    return _Table(tuple(_fitted(column, left) for column in found), is_wide, width < _STACKED, max(width, 16))


def _fitted(column: _Column, left: int) -> _Column:
    if column.name == "what happened":
        return _Column(column.name, max(left, 16))
    return _Column(column.name, column.width, column.name in ("#", "step", "stored"))


def _cells(row: Told, *, is_wide: bool) -> list[Parts]:
    mark = "bold green" if row.is_head else "green"
    first: list[Parts] = [[(row.place, "dim")], [(row.step, "")], [(row.id, mark)], [(row.time, "dim")]]
    if is_wide:
        return [*first, _ran(row), _joined(map(_said, row.notes)), [(row.model, "cyan")], [(row.size, "dim")]]
    return [*first, [*said(row), (" · ", "dim"), (row.size.replace(" ", JOINED), "dim")]]


def said(row: Told) -> Parts:
    """Return what happened, in one text."""
    model = [[(row.model.replace(" ", JOINED), "dim")]] if row.model else []
    return _joined([_ran(row), *map(_said, row.notes), *model])


def _ran(row: Told) -> Parts:
    return [(f"{row.where} › ", "dim"), (row.nodes, "bold")] if row.where else [(row.nodes, "bold")]


def _said(note: Note) -> Parts:
    text = f"[{note.text}]" if note.tone == "label" else note.text
    return [(text, TONES.get(note.tone, ""))]


def _joined(groups: Iterable[Parts]) -> Parts:
    """Return parts with a dot between the groups; it stays with the group before it."""
    parts: Parts = []
    for group in groups:
        parts += [*[(" · ", "dim")] * bool(parts), *group]
    return parts


def _spaced(cells: Sequence[Parts]) -> list[Part]:
    return [part for cell in cells for part in (*cell, ("  ", "")) if part[0]]
