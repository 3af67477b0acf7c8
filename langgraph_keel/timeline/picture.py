"""The tree of a timeline as pictures, one a row, that join into one: a row is as tall as what stands beside it."""

from __future__ import annotations

from collections.abc import Iterator

from langgraph_keel.timeline.markup import LANES
from langgraph_keel.timeline.tree import Line, Row

LANE = 16
"""Pixels from one lane to the next."""
_MIDDLE = 16
_BEND = 8


def picture(row: Row, lanes: int) -> str:
    """Return the SVG of a row, newest moments above it; it fills a cell of `width(lanes)` pixels that it stands in."""
    parts = [*_lines(row), *map(_cut, row.cuts), *(_join(line, row.line) for line in row.joins), *_dot(row)]
    style = "position:absolute;left:0;top:-1px;height:calc(100% + 1px);max-width:none;display:block;overflow:hidden"
    size = f'width="{width(lanes)}" height="32"'
    return f'<svg {size} style="{style}" aria-hidden="true" fill="none">{"".join(parts)}</svg>'


def width(lanes: int) -> int:
    """Return the pixels that a tree takes."""
    return LANE * lanes + 6


def _lines(row: Row) -> Iterator[str]:
    yield from (_upright(line, "0", "100%") for line in row.through)
    if row.is_newer:
        yield _upright(row.line, "0", str(_MIDDLE))
    if row.is_older:
        yield _upright(row.line, str(_MIDDLE), "100%")


def _upright(line: Line, start: str, end: str) -> str:
    return f'<line x1="{_x(line)}" x2="{_x(line)}" y1="{start}" y2="{end}" {_stroke(line)}/>'


def _cut(line: Line) -> str:
    x = _x(line)
    return f'<line x1="{x}" x2="{x}" y1="0" y2="{_MIDDLE}" {_stroke(line)} stroke-dasharray="1 4" opacity=".7"/>'


def _join(line: Line, own: Line) -> str:
    x, towards = _x(line), -_BEND if line.lane > own.lane else _BEND
    bend = f"V{_MIDDLE - _BEND}Q{x} {_MIDDLE} {x + towards} {_MIDDLE}H{_x(own)}"
    return f'<path d="M{x} 0{bend}" {_stroke(line)}/>'


def _dot(row: Row) -> Iterator[str]:
    x, fill = _x(row.line), LANES[row.line.lane]
    yield f'<circle cx="{x}" cy="{_MIDDLE}" r="{3.5 if row.line.is_call else 4.5}" fill="{fill}"/>'
    if row.moment.is_head and not row.line.is_call:
        yield f'<circle cx="{x}" cy="{_MIDDLE}" r="7" stroke="{fill}" stroke-width="1.5"/>'


def _x(line: Line) -> int:
    return LANE * line.lane + 11


def _stroke(line: Line) -> str:
    dashes = ' stroke-dasharray="5 2"' if line.is_call else ""
    return f'stroke="{LANES[line.lane]}" stroke-width="{1.5 if line.is_call else 2}"{dashes}'
