"""HTML that shows stored content, escaped, readable on light and dark pages.

Styles are attributes of elements, because pages that host notebooks drop `<style>`. Some drop the attributes, too; then
plain tables remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from langgraph_keel.display.messages import Element, last_elements
from langgraph_keel.display.text import plain

FAINT = "opacity:.65"
PAGE = "font-size:13px;line-height:1.45"
SMALL = "font-size:.86em"
NUMBERS = ("#", "step")
"""The names of the columns of numbers."""
LANES = ("currentColor", "#c45fc4", "#2f9fb3", "#bf8318", "#4f86e8", "#3f9f5c", "#e0605e", "#8f74e8", "#8a8a8a")
"""The colours of tree lanes, with a contrast of 3:1 or more on white and black."""
_CELL = "text-align:left;vertical-align:top;padding:5px 8px;border:0;border-top:1px solid rgba(127,127,127,.22)"
_BLOCK = "margin:3px 0 3px 2px;padding:2px 0 2px 8px;border-left:3px solid rgba(127,127,127,.35)"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere"
_PRE = f"margin:2px 0;padding:0;border:0;background:none;color:inherit;font-size:.92em;{_TEXT}"


def text(text: str) -> str:
    """Return text as escaped HTML."""
    return escape(plain(text, keep="\n\t"))


def tag(name: str, /, *inner: str, **attributes: str) -> str:
    """Return an element; `inner` is HTML. Empty attributes are left out."""
    given = "".join(f' {key}="{text(value)}"' for key, value in attributes.items() if value)
    return f"<{name}{given}>{''.join(inner)}</{name}>"


def cell(*inner: str, style: str = "", name: str = "td") -> str:
    """Return a table's cell."""
    return tag(name, *inner, style=f"{_CELL};{style}" if style else _CELL)


def head(names: Iterable[str]) -> str:
    """Return a table's head; `names` are text."""
    style = f"border-top:0;font-weight:600;{SMALL};{FAINT}"
    aligned = ((name, "text-align:right;" if name in NUMBERS else "") for name in names)
    return tag("thead", tag("tr", *(cell(text(name), style=align + style, name="th") for name, align in aligned)))


def table(*inner: str) -> str:
    """Return a table of full width, which scrolls on a narrow page."""
    style = f"border-collapse:collapse;table-layout:auto;width:100%;margin:0;{PAGE}"
    return tag("div", tag("table", *inner, style=style), style="overflow-x:auto;max-width:100%")


def chip(label: str, colour: str = "127,127,127", alpha: str = ".16", name: str = "span") -> str:
    """Return a few words with a background.

    `name` is the element, which matters where styles are dropped.
    """
    broken = "-webkit-box-decoration-break:clone;box-decoration-break:clone;overflow-wrap:anywhere"
    style = f"padding:1px 6px;margin:0 3px 0 0;border-radius:4px;{broken}"
    return tag(name, text(label), style=f"{style};font:inherit;color:inherit;background:rgba({colour},{alpha})")


def folded(summary: str, *inner: str, is_open: bool = False) -> str:
    """Return HTML that opens when its summary (also HTML) is clicked."""
    return f"<details{' open' * is_open}>{tag('summary', summary, style='cursor:pointer')}{''.join(inner)}</details>"


def code(name: str, style: str = "", title: str = "") -> str:
    """Return a name in the style of code."""
    return tag("code", text(name), style=f"background:none;padding:0;color:inherit;{style}", title=title)


def pre(lines: str) -> str:
    """Return preformatted text."""
    return tag("pre", text(lines), style=_PRE)


def elements(values: Sequence[object]) -> str:
    """Return the new elements of a list, each as a block."""
    more = len(values) - len(shown := list(last_elements(values)))
    note = [tag("div", f"… {more:,} before these", style=FAINT)] if more else []
    return "".join([*note, *map(_block, shown)])


def _block(element: Element) -> str:
    who = tag("span", text(element.who), style=f"font-weight:600;{SMALL}")
    failed = [" ", chip("failed", "224,64,64", ".22")] if element.has_failed else []
    words = [tag("div", text(element.text), style=_TEXT)] if element.text else []
    calls = [
        tag("div", tag("code", "→ ", text(call), style=f"{_TEXT};background:none;padding:0")) for call in element.calls
    ]
    return tag("div", who, *failed, *(words + calls or [tag("div", "(empty)", style=FAINT)]), style=_BLOCK)
