"""The tree of a timeline in box characters, newest moment on top; and text wrapped beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from langgraph_keel.timeline.tree import Line, Row

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
