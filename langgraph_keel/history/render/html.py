"""A timeline in a notebook: a table with a drawn tree. What is new in a moment opens by a click, without scripts.

The tree of a timeline as pictures, one a row, that join into one: a row is as tall as what stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from langgraph.types import Interrupt

from langgraph_keel.display.html import (
    FAINT,
    LANES,
    PAGE,
    SMALL,
    cell,
    chip,
    code,
    elements,
    folded,
    head,
    pre,
    table,
    tag,
    text,
)
from langgraph_keel.display.messages import laid_out
from langgraph_keel.history.moment import Change, Moment
from langgraph_keel.history.render.rows import MOST, Line, Note, Row, Told, footing, heading, told, width_of

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


_NAMES = ("", "#", "step", "checkpoint", "what happened", "model, stored")
_COLOURS = {
    "label": ("222,170,0", ".30"),
    "tool": ("47,159,179", ".20"),
    "replayed": ("47,159,179", ".10"),
    "pending": ("230,140,20", ".18"),
    "waits": ("230,140,20", ".28"),
    "asked": ("230,140,20", ".12"),
    "failed": ("224,64,64", ".24"),
    "drift": ("200,90,200", ".18"),
    "not read": ("200,90,200", ".18"),
}
_ELEMENTS = {"label": "mark", "tool": "code", "replayed": "code", "failed": "strong"}
_ASKED = ("waits", "asked")
_BESIDE = ("label", "origin")
_UNBROKEN = 16
_NUMBER = "text-align:right;font-variant-numeric:tabular-nums"


def as_html(moments: Sequence[Moment], older: int | None = None) -> str:
    """Return a timeline as HTML, newest moment first.

    Args:
        moments: What to show, in order.
        older: How many come before them; `None` if that is not known.
    """
    if not moments:
        return tag("div", "no moments", style=FAINT)
    name, shown = heading(moments)
    rows = told(moments)
    lanes = width_of(row.row for row in rows)
    title = tag("div", "thread ", tag("b", text(name)), tag("span", f" · {text(shown)}", style=FAINT))
    body = tag("tbody", *(_row(row, lanes) for row in rows))
    note = footing(moments, older)
    last = [tag("div", text(note), style=f"padding:4px 8px;{FAINT}")] if note else []
    return tag("div", title, table(head(_NAMES), body), *last, style=PAGE)


def _row(row: Told, lanes: int) -> str:
    tree = f"position:relative;padding:0;width:{width(lanes)}px;min-width:{width(lanes)}px"
    weight = "font-weight:700" if row.is_head else ""
    id_ = code(row.id, weight, row.moment.id)
    return tag(
        "tr",
        cell(picture(row.row, lanes), style=tree),
        cell(text(row.place), style=f"{_NUMBER};{FAINT}"),
        cell(text(row.step), style=_NUMBER),
        cell(id_, "<br>", tag("span", text(row.time), style=f"{SMALL};{FAINT}"), style="white-space:nowrap"),
        cell(*happened(row), style="width:100%;min-width:170px;overflow-wrap:anywhere"),
        cell(*_model(row), style="overflow-wrap:anywhere"),
    )


def _model(row: Told) -> Iterator[str]:
    is_short = len(row.model) <= _UNBROKEN
    if row.model:
        yield tag("div", text(row.model), style="white-space:nowrap" if is_short else "min-width:80px")
    yield tag("span", text(row.size), style=f"{SMALL};{FAINT};white-space:nowrap")


def happened(row: Told) -> Iterator[str]:
    """Yield what happened: what ran; what that changed, which opens by a click; what else is to be known."""
    where = tag("span", text(f"{row.where} › "), style=FAINT) if row.where else ""
    yield where + tag("b", text(row.nodes))
    yield from (f" {_said(note)}" for note in row.notes if note.tone in _BESIDE)
    summary = "".join(text(note.text) for note in row.notes if note.tone == "summary")
    inner = [news(change) for change in row.moment.changes if change.new]
    yield folded(summary or "more", *inner) if inner else tag("div", summary) * bool(summary)
    yield from _questions(row)
    yield notes(note for note in row.notes if note.tone not in (*_BESIDE, *_ASKED, "summary"))


def _questions(row: Told) -> Iterator[str]:
    """Yield what waits for an answer, or has got one; what is more than text opens by a click."""
    asked = [note for note in row.notes if note.tone in _ASKED]
    for note, question in zip_longest(asked, row.moment.interrupts[:MOST]):
        is_text = question is None or isinstance(question.value, str)
        yield tag("div", _said(note)) if is_text else folded(_said(note), question_of(question))


def news(change: Change) -> str:
    """Return the new elements of a channel."""
    return tag("div", code(change.channel, FAINT), elements(change.new))


def question_of(asked: Interrupt) -> str:
    """Return what a question asks."""
    return pre(laid_out(asked.value))


def notes(said: Iterable[Note]) -> str:
    """Return notes side by side; nothing if there are none."""
    shown = " ".join(map(_said, said))
    return tag("div", shown) if shown else ""


def _said(note: Note) -> str:
    if note.tone in _COLOURS:
        return chip(note.text, *_COLOURS[note.tone], name=_ELEMENTS.get(note.tone, "span"))
    return tag("span", text(note.text), style=f"display:inline-block;{SMALL};{FAINT}")
