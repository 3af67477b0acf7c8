"""A diff as text: plain for a file or a pipe, coloured for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from langgraph_keel.timeline.diff import StateDiff
from langgraph_keel.timeline.sections import FULL, SHORT, Field, Item, Limits, Section, sections, title, unsaid

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text

Span: TypeAlias = tuple[str, str]
"""Some text, and what it is: a name in `_STYLES`."""

_STYLES = {
    "added": "green",
    "removed": "red",
    "struck": "red strike",
    "where": "dim",
    "who": "bold",
    "counts": "dim",
    "channel": "bold cyan",
}
_SIGNS = {"+": "bold green", "-": "bold red", "~": "bold yellow", ">": "bold blue"}
_BRACKETS = {"added": ("{+", "+}"), "removed": ("[-", "-]")}
_VERBS = {"+": "added ", "-": "removed "}


def as_text(diff: StateDiff, *, full: bool = False) -> str:
    """Return a diff as plain text."""
    limits = FULL if full else SHORT
    body = [_section_text(section) for section in sections(diff, limits)]
    return "\n".join([title(diff), *body, *unsaid(diff, limits)])


def as_rich(diff: StateDiff, *, full: bool = False) -> RenderableType:
    """Return a diff for a terminal."""
    return _Coloured(diff, FULL if full else SHORT)


# -- what both say ---------------------------------------------------------------------------------------------


def _heading(section: Section) -> Iterator[Span]:
    """Yield the line over the changes of a channel; it is all there is if the channel is one value."""
    yield section.channel, "channel"
    if section.counts:
        yield f": {section.counts}", "counts"


def _is_one_value(section: Section) -> bool:
    return [item.where for item in section.items] == [""]


def _spans(item: Item, *, brackets: bool) -> Iterator[Span]:
    """Yield what is said of one change, in one line or more."""
    named = " ".join([item.where] * bool(item.where) + [item.who] * bool(item.who))
    yield named, "who" if item.who else "where"
    if len(item.fields) == 1 and not item.fields[0].name:
        yield ": " * bool(named), "where"
        yield from _field_spans(item.fields[0], brackets)
        return
    for field in item.fields:
        yield f"\n{field.name or 'content'}: ", "where"
        yield from _field_spans(field, brackets)


def _field_spans(field: Field, brackets: bool) -> Iterator[Span]:
    for kind, text in field.parts:
        style = "struck" if field.is_mixed and kind == "removed" else kind
        yield _bracketed(kind, text) if field.is_mixed and brackets else text, style


def _bracketed(kind: str, text: str) -> str:
    """Return a part in its brackets, the spaces around it outside."""
    left, right = _BRACKETS.get(kind, ("", ""))
    word = text.strip(" ")
    return text.replace(word, f"{left}{word}{right}", 1) if word else f"{left}{text}{right}"


# -- plain -----------------------------------------------------------------------------------------------------


def _section_text(section: Section) -> str:
    heading = "".join(text for text, _ in _heading(section))
    if _is_one_value(section):
        verb = _VERBS.get(section.items[0].sign, "")
        return _indented(f"{heading}: {verb}{_plain(section.items[0])}", 2)
    lines = [f"  {item.sign} {_indented(_plain(item), 4)}" for item in section.items]
    return "\n".join([heading, *lines, *_more(section)])


def _more(section: Section) -> list[str]:
    return [f"  … {section.more:,} more changes"] if section.more else []


def _plain(item: Item) -> str:
    return "".join(text for text, _ in _spans(item, brackets=True))


def _indented(text: str, by: int) -> str:
    first, *others = text.split("\n")
    return "\n".join([first, *(" " * by + line if line else "" for line in others)])


# -- coloured --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Coloured:
    diff: StateDiff
    limits: Limits

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show it; where there are no colours, brackets tell what went and what came."""
        from rich.text import Text

        brackets = console.color_system is None or console.no_color
        yield Text(title(self.diff), style="bold", overflow="fold")
        for section in sections(self.diff, self.limits):
            yield from _section_rich(section, brackets)
        yield from (Text(line, style="dim", overflow="fold") for line in unsaid(self.diff, self.limits))


def _section_rich(section: Section, brackets: bool) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if _is_one_value(section):
        item = section.items[0]
        verb = (_VERBS.get(item.sign, ""), _SIGNS[item.sign])
        told = ((_indented(text, 2), name) for text, name in _spans(item, brackets=brackets))
        yield _text([*_heading(section), (": ", "counts")]).append(*verb).append(_text(told))
        return
    yield _text(_heading(section))
    grid = Table.grid(padding=(0, 1))
    for item in section.items:
        grid.add_row(Text(item.sign, _SIGNS[item.sign]), _text(_spans(item, brackets=brackets)))
    yield Padding(grid, (0, 0, 0, 2))
    yield from (Text(line, style="dim") for line in _more(section))


def _text(spans: Iterator[Span] | Sequence[Span]) -> Text:
    from rich.text import Text

    text = Text(overflow="fold")
    for each, name in spans:
        text.append(each, _STYLES.get(name, ""))
    return text
