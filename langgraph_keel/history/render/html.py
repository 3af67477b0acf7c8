"""A timeline in a notebook: a table with a drawn tree, without scripts.

New elements unfold on a click. Each row has an image of its part of the tree, as high as the row, so that the images
join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

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
from langgraph_keel.display.messages import value_text
from langgraph_keel.history.records import MomentRecord
from langgraph_keel.history.render.rows import (
    MOST,
    Line,
    Note,
    TimelineRow,
    TreeRow,
    footing,
    heading,
    lane_count,
    timeline_rows,
)

if TYPE_CHECKING:
    from langgraph.types import Interrupt

LANE = 16  # pixels
_MIDDLE = 16
_BEND = 8

_NAMES = ("", "#", "checkpoint", "what happened", "model, stored")
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


def tree_svg(row: TreeRow, lanes: int) -> str:
    """Return a row's part of the tree as SVG, which fills its cell."""
    x, fill = _x(row.line), LANES[row.line.lane]
    parts = [_upright(line, "0", "100%") for line in row.through]
    parts += [_upright(row.line, "0", f"{_MIDDLE}")] if row.is_newer else []
    parts += [_upright(row.line, f"{_MIDDLE}", "100%")] if row.is_older else []
    parts += [_upright(line, "0", f"{_MIDDLE}", ' stroke-dasharray="1 4" opacity=".7"') for line in row.cuts]
    for line in row.joins:
        at, towards = _x(line), -_BEND if line.lane > row.line.lane else _BEND
        bend = f"V{_MIDDLE - _BEND}Q{at} {_MIDDLE} {at + towards} {_MIDDLE}H{x}"
        parts.append(f'<path d="M{at} 0{bend}" {_stroke(line)}/>')
    parts.append(f'<circle cx="{x}" cy="{_MIDDLE}" r="{3.5 if row.line.is_call else 4.5}" fill="{fill}"/>')
    if row.moment.is_head and not row.line.is_call:
        parts.append(f'<circle cx="{x}" cy="{_MIDDLE}" r="7" stroke="{fill}" stroke-width="1.5"/>')
    style = "position:absolute;left:0;top:-1px;height:calc(100% + 1px);max-width:none;display:block;overflow:hidden"
    size = f'width="{tree_width(lanes)}" height="32"'
    return f'<svg {size} style="{style}" aria-hidden="true" fill="none">{"".join(parts)}</svg>'


def tree_width(lanes: int) -> int:
    """Return the width of a tree in pixels."""
    return LANE * lanes + 6


def _upright(line: Line, start: str, end: str, more: str = "") -> str:
    return f'<line x1="{_x(line)}" x2="{_x(line)}" y1="{start}" y2="{end}" {_stroke(line)}{more}/>'


def _x(line: Line) -> int:
    return LANE * line.lane + 11


def _stroke(line: Line) -> str:
    dashes = ' stroke-dasharray="5 2"' if line.is_call else ""
    return f'stroke="{LANES[line.lane]}" stroke-width="{1.5 if line.is_call else 2}"{dashes}'


def timeline_html(
    moments: Sequence[MomentRecord], older: int | None = None, link: Callable[[MomentRecord], str] | None = None
) -> str:
    """Return a timeline as HTML, newest first; `link` returns the URL of a moment."""
    if not moments:
        return tag("div", "no moments", style=FAINT)
    name, shown = heading(moments)
    rows = timeline_rows(moments)
    lanes = lane_count(row.tree for row in rows)
    title = tag("div", "thread ", tag("b", text(name)), tag("span", f" · {text(shown)}", style=FAINT))
    body = tag("tbody", *(_row(row, lanes, link) for row in rows))
    note = footing(moments, older)
    last = [tag("div", text(note), style=f"padding:4px 8px;{FAINT}")] if note else []
    return tag("div", title, table(head(_NAMES), body), *last, style=PAGE)


def _row(row: TimelineRow, lanes: int, link: Callable[[MomentRecord], str] | None) -> str:
    tree = f"position:relative;padding:0;width:{tree_width(lanes)}px;min-width:{tree_width(lanes)}px"
    id_ = code(row.id, "font-weight:700" if row.is_head else "", row.moment.id)
    if link is not None:
        id_ = tag("a", id_, href=link(row.moment))
    wrap = "overflow-wrap:anywhere"
    unbroken = "white-space:nowrap" if len(row.model) <= _UNBROKEN else "min-width:80px"
    model = [tag("div", text(row.model), style=unbroken)] if row.model else []
    return tag(
        "tr",
        cell(tree_svg(row.tree, lanes), style=tree),
        cell(text(row.place), style=f"{_NUMBER};{FAINT}"),
        cell(id_, "<br>", tag("span", text(row.time), style=f"{SMALL};{FAINT}"), style="white-space:nowrap"),
        cell(*happened_html(row), style=f"width:100%;min-width:170px;{wrap}"),
        cell(*model, tag("span", text(row.size), style=f"{SMALL};{FAINT};white-space:nowrap"), style=wrap),
    )


def happened_html(row: TimelineRow) -> Iterator[str]:
    """Yield the nodes that ran, their foldable changes, and notes."""
    where = tag("span", text(f"{row.where} › "), style=FAINT) if row.where else ""
    yield where + tag("b", text(row.nodes))
    yield from (f" {_note_html(note)}" for note in row.notes if note.tone in _BESIDE)
    summary = "".join(text(note.text) for note in row.notes if note.tone == "summary")
    changes = [change for change in row.moment.changes if change.new]
    inner = [tag("div", code(change.channel, FAINT), elements(change.new)) for change in changes]
    if inner:
        yield folded(summary or "more", *inner)
    elif summary:
        yield tag("div", summary)
    asked = [note for note in row.notes if note.tone in _ASKED]
    for note, question in zip_longest(asked, row.moment.interrupts[:MOST]):  # structured ones unfold on a click
        is_text = question is None or isinstance(question.value, str)
        yield tag("div", _note_html(note)) if is_text else folded(_note_html(note), question_html(question))
    yield notes_html(note for note in row.notes if note.tone not in (*_BESIDE, *_ASKED, "summary"))


def question_html(asked: Interrupt) -> str:
    """Return a question as HTML."""
    return pre(value_text(asked.value))


def notes_html(notes: Iterable[Note]) -> str:
    """Return notes side by side; empty if there are none."""
    shown = " ".join(map(_note_html, notes))
    return tag("div", shown) if shown else ""


def _note_html(note: Note) -> str:
    if note.tone in _COLOURS:
        return chip(note.text, *_COLOURS[note.tone], name=_ELEMENTS.get(note.tone, "span"))
    return tag("span", text(note.text), style=f"display:inline-block;{SMALL};{FAINT}")
