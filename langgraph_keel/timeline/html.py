"""A timeline in a notebook: a table with a drawn tree. What is new in a moment opens by a click, without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from langgraph.types import Interrupt

from langgraph_keel.timeline.columns import MOST, Note, Told, footing, heading, told
from langgraph_keel.timeline.markup import (
    FAINT,
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
from langgraph_keel.timeline.moment import Change, Moment
from langgraph_keel.timeline.picture import picture, width
from langgraph_keel.timeline.spoken import laid_out
from langgraph_keel.timeline.tree import width_of

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
