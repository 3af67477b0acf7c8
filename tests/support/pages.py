"""A page as a browser parses it: its elements, their attributes, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br"}
ALLOWED = {
    *("div", "span", "b", "strong", "mark", "code", "pre", "details", "summary", "br"),
    *("table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "line", "path", "circle", "rect", "text", "tspan", "title"),
}


@dataclass
class Element:
    name: str
    attributes: dict[str, str]
    inside: list[Element | str] = field(default_factory=list)

    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text() for part in self.inside if not _is_svg(part))

    def all(self, name: str) -> list[Element]:
        inner = [part for part in self.inside if isinstance(part, Element)]
        return [found for part in inner for found in ([part] if part.name == name else []) + part.all(name)]


def _is_svg(part: Element | str) -> bool:
    return isinstance(part, Element) and part.name == "svg"


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("page", {})]

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().name == tag

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)


def page(html: str) -> Element:
    """Read a well-formed page."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert [element.name for element in reader.open] == ["page"]
    return reader.open[0]


def every(element: Element) -> list[Element]:
    inner = [part for part in element.inside if isinstance(part, Element)]
    return [found for part in inner for found in [part, *every(part)]]


def check_harmless(html: str) -> Element:
    """Check that a page runs and loads nothing and suits both themes; return the page."""
    read = page(html)
    for element in every(read):
        assert element.name in ALLOWED
        assert not [
            name for name in element.attributes if name.startswith("on") or name in ("href", "src", "class", "id")
        ]
        style = element.attributes.get("style", "")
        assert "url(" not in style
        assert "expression" not in style
        assert "script" not in style
    html.encode("utf-8")
    return read
