"""A diff as HTML: for a notebook in a light or a dark theme, and for pages that leave out styles.

Every style is inline, every colour is the page's own or see-through. What a page without styles shows is `<del>`,
`<ins>` and the signs at the beginning of the lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import starmap

from langgraph_keel.timeline.diff import StateDiff
from langgraph_keel.timeline.sections import Field, Item, Limits, Section, sections, title, unsaid

_SHORT, _LONG = Limits(100, 400, 80), Limits(100, 20_000, 1 << 60)
_LINES = {"+": "46,160,67", "-": "248,81,73", "~": "187,128,9", ">": "56,139,253"}
_PAGE = "font-size:13px;line-height:1.5;max-width:72em;text-align:left;overflow-wrap:anywhere"
_TEXT = "white-space:pre-wrap"
_FAINT = "opacity:.7"
_TAGS = {"removed": ("del", "248,81,73"), "added": ("ins", "46,160,67")}


def as_html(diff: StateDiff) -> str:
    """Return a diff as HTML; what is long can be unfolded."""
    both = zip(sections(diff, _SHORT), sections(diff, _LONG), strict=True)
    body = "".join(starmap(_section, both))
    notes = "".join(f'<div style="{_FAINT}">{escape(line)}</div>' for line in unsaid(diff, _SHORT))
    return f'<div style="{_PAGE}"><div><b>{escape(title(diff))}</b></div>{body}{notes}</div>'


def _section(short: Section, long: Section) -> str:
    counts = f' <span style="{_FAINT}">{escape(short.counts)}</span>' if short.counts else ""
    items = "".join(_item(*both) for both in zip(short.items, long.items, strict=True))
    more = f'<div style="{_FAINT}">… {short.more:,} more changes</div>' if short.more else ""
    return f'<div style="margin-top:.7em"><b>{escape(short.channel)}</b>{counts}{items}{more}</div>'


def _item(short: Item, long: Item) -> str:
    style = f"border-left:3px solid rgba({_LINES[short.sign]},.9);margin:.2em 0;padding:0 0 0 .6em"
    head = f"{short.sign} {_code(short.where)}" + (f"<b>{escape(short.who)}</b> " if short.who else "")
    both = list(zip(short.fields, long.fields, strict=True))
    if len(both) == 1 and not short.fields[0].name:
        return f'<div style="{style}">{_field(head, *both[0])}</div>'
    fields = "".join(f"<div>{_field(_code(field.name or 'content'), field, other)}</div>" for field, other in both)
    return f'<div style="{style}">{head}{fields}</div>'


def _code(text: str) -> str:
    return f'<code style="{_FAINT};background:none">{escape(text)}</code> ' if text else ""


def _field(head: str, short: Field, long: Field) -> str:
    """Return what changed, behind what it is; all of it can be unfolded if it is long."""
    style = f"{_TEXT};font-family:monospace" if short.is_code else _TEXT
    shown = f'{head}<span style="{style}">{"".join(_parts(short))}</span>'
    if short.parts == long.parts:
        return shown
    whole = f'<div style="{style};margin:.3em 0 .6em 1em">{"".join(_parts(long))}</div>'
    return f'<details><summary style="cursor:pointer">{shown}</summary>{whole}</details>'


def _parts(field: Field) -> Iterator[str]:
    for kind, text in field.parts:
        lines = escape(text).replace("\n", "<br>")  # a page without styles would join them
        if kind == "same":
            yield lines
            continue
        tag, colour = _TAGS[kind]
        line = "line-through" if kind == "removed" and field.is_mixed else "none"
        yield f'<{tag} style="background:rgba({colour},.22);color:inherit;text-decoration:{line}">{lines}</{tag}>'
