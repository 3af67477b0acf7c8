"""What there is to tell of a diff: by channel, in the order in which a careful person would say it.

Text, terminal and HTML show the same sections. All that users wrote is made safe here.

A diff as text: plain for a file or a pipe, coloured for a terminal.

A diff as HTML: for a notebook in a light or a dark theme, and for pages that leave out styles.

Every style is inline, every colour is the page's own or see-through. What a page without styles shows is `<del>`,
`<ins>` and the signs at the beginning of the lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby, starmap
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_keel.display.messages import said, who
from langgraph_keel.display.text import is_internal, plain
from langgraph_keel.history.diff import StateDiff
from langgraph_keel.history.edits import NOTHING, Edit, Part, Step, parts_between
from langgraph_keel.history.moment import SHORTEST_ID

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text


Sign: TypeAlias = Literal["+", "-", "~", ">"]
_SIGNS: dict[str, Sign] = {"added": "+", "removed": "-", "changed": "~", "moved": ">"}
_SHORT_VALUE = 60
_MOST_REPR = 100_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is told.

    Attributes:
        items: Most changes of a channel.
        text: Most characters of what went, or came.
        context: Most characters of what stayed, on either side of a change.
        internal: Whether LangGraph's own channels are told of.
    """

    items: int
    text: int
    context: int
    internal: bool = False


SHORT, FULL = Limits(40, 400, 60), Limits(1 << 60, 1 << 60, 1 << 60, internal=True)


@dataclass(frozen=True, slots=True)
class Field:
    """What changed in a part of something.

    Attributes:
        name: Which part; empty for the thing itself.
        parts: What stayed, went and came.
        is_mixed: Whether the parts are pieces of one text, and not an old value and a new one.
        is_code: Whether they are values as Python writes them, and not what somebody says.
    """

    name: str
    parts: Sequence[Part]
    is_mixed: bool = False
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """One change, or all changes of one message.

    Attributes:
        sign: `+` added, `-` removed, `~` changed, `>` moved.
        where: Where in the channel; empty for all of it.
        who: Who says it, if it is a message.
        fields: What changed.
    """

    sign: Sign
    where: str
    who: str
    fields: Sequence[Field]


@dataclass(frozen=True, slots=True)
class Section:
    """What changed in one channel.

    Attributes:
        channel: Its name.
        counts: How much, in words.
        items: What.
        more: How many changes are not shown.
    """

    channel: str
    counts: str
    items: Sequence[Item]
    more: int = 0


def sections(diff: StateDiff, limits: Limits) -> list[Section]:
    """Return what there is to tell."""
    told = []
    for channel, edits in groupby(diff.edits, key=lambda edit: str(edit.path[0])):
        if limits.internal or not is_internal(channel):
            told.append(_section(channel, [each for edit in edits for each in _expanded(edit)], limits))
    return told


def unsaid(diff: StateDiff, limits: Limits) -> list[str]:
    """Return what else there is to say, in sentences."""
    internal = [channel for channel in diff.channels if is_internal(channel) and not limits.internal]
    deltas = ", ".join(map(plain, diff.deltas))
    lines = [f"{deltas}: written between the two; only a graph can tell the values of delta channels"] if deltas else []
    if internal and len(internal) == len(diff.channels):
        return [f"nothing changed but what LangGraph keeps for itself ({', '.join(map(plain, internal))})"]
    return lines if diff else ["nothing changed"]


def title(diff: StateDiff) -> str:
    """Return which two checkpoints these are; ids are shortened as far as they can be told apart."""
    ids = str(diff.before.checkpoint_id), str(diff.after.checkpoint_id)
    longest = max(map(len, ids))
    size = next((n for n in range(SHORTEST_ID, longest) if ids[0][-n:] != ids[1][-n:]), longest)
    if ids[0] == ids[1]:
        size = SHORTEST_ID
    names = [plain(checkpoint[-size:]) for checkpoint in ids]
    places = [_place(side.thread_id, side.checkpoint_ns) for side in (diff.before, diff.after)]
    if places[0] == places[1]:
        return f"{places[0]}: {names[0]} → {names[1]}"
    return f"{places[0]}, {names[0]} → {places[1]}, {names[1]}"


def _place(thread: str, namespace: str) -> str:
    return f"thread {plain(thread)}" + (f", namespace {plain(namespace)}" if namespace else "")


# -- what is told of a channel ---------------------------------------------------------------------------------


def _expanded(edit: Edit) -> Iterator[Edit]:
    """Tell of a list of messages that came or went as a whole message by message."""
    came, went = edit.before is NOTHING, edit.after is NOTHING
    value = edit.after if came else edit.before
    if not (came or went) or not isinstance(value, list) or not any(isinstance(each, BaseMessage) for each in value):
        yield edit
        return
    for place, each in enumerate(value):
        side = {"after": each} if came else {"before": each}
        yield replace(edit, path=(*edit.path, place), **side)


def _section(channel: str, edits: Sequence[Edit], limits: Limits) -> Section:
    groups = sorted((list(group) for _, group in groupby(edits, key=_group)), key=_place_in_list)
    shown = [_item(group, limits) for group in groups[: limits.items]]
    counts = _counts(groups) if len(groups) > 1 or shown[0].where else ""
    return Section(plain(channel), counts, shown, len(groups) - len(shown))


def _group(edit: Edit) -> tuple[object, ...]:
    """Return what edits have in common that are told together: the message that they are in."""
    return (edit.path[: edit.within[0]],) if edit.within else (edit.kind, edit.path)


def _place_in_list(edits: Sequence[Edit]) -> int:
    """Return where in a list edits are, so that they are told from its beginning to its end."""
    return next((step for step in edits[0].path[1:2] if isinstance(step, int)), 0)


def _counts(groups: Sequence[Sequence[Edit]]) -> str:
    told = Counter("edited" if group[0].within else group[0].kind for group in groups)
    return ", ".join(f"{count:,} {kind}" for kind, count in told.items())


def _item(edits: Sequence[Edit], limits: Limits) -> Item:
    first = edits[0]
    if not first.within:
        return _of_one(first, limits)
    depth, message = first.within
    fields = [
        _field(edit, "" if edit.path[depth:] == ("content",) else path_text(edit.path[depth:]), limits)
        for edit in edits
    ]
    return Item("~", path_text(first.path[1:depth]), plain(who(message)), fields)


def _of_one(edit: Edit, limits: Limits) -> Item:
    where = path_text(edit.path[1:])
    value = edit.before if edit.after is NOTHING else edit.after
    is_message = isinstance(value, BaseMessage)
    return Item(_SIGNS[edit.kind], where, plain(who(value)) if is_message else "", [_field(edit, "", limits)])


def path_text(path: Sequence[Step]) -> str:
    """Return a path as it would be written in Python."""
    return "".join(map(_step, path)).removeprefix(".")


def _step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() else f"[{plain(repr(step))}]"


# -- what is told of a value -----------------------------------------------------------------------------------


def _field(edit: Edit, name: str, limits: Limits) -> Field:
    came, went = edit.before is NOTHING, edit.after is NOTHING
    if edit.kind == "moved":
        return Field(name, [("same", f"moved here from [{edit.before}]")])
    if came or went:
        value = edit.after if came else edit.before
        parts = _cut("added" if came else "removed", _text(value), limits)
        return Field(name, parts, is_code=not isinstance(value, str | BaseMessage))
    if type(edit.before) is type(edit.after):
        if isinstance(edit.before, str):
            return _edited(name, edit.before or "''", edit.after or "''", limits, is_code=False)
        if isinstance(edit.before, set | frozenset):
            return _of_sets(name, edit.before, edit.after)
    was, now = (_text(each, quoted=True) for each in (edit.before, edit.after))
    return _edited(name, was, now, limits, is_code=not isinstance(edit.after, BaseMessage))


def _edited(name: str, was: str, now: str, limits: Limits, *, is_code: bool) -> Field:
    """Return how one text became another: by words if it reads as an edit, else as an old and a new one."""
    if was == now:
        told = f"{_shortened(was, limits.text)} (another one that reads the same)"
        return Field(name, [("same", told)], is_code=is_code)
    if not is_code or len(was) + len(now) > 2 * _SHORT_VALUE:
        parts = parts_between(was, now)
        if _is_edited(parts, max(len(was), len(now))):
            return Field(name, list(_abridged(parts, limits)), is_mixed=True, is_code=is_code)
    has_lines = "\n" in was + now
    gap = "\n" if has_lines or max(len(was), len(now)) > _SHORT_VALUE else " "
    parts = [*_cut("removed", was, limits), ("same", f"{gap}→ "), *_cut("added", now, limits)]
    return Field(name, [("same", "\n"), *parts] if has_lines and is_code else parts, is_code=is_code)


def _of_sets(name: str, before: AbstractSet[Any], after: AbstractSet[Any]) -> Field:
    parts = [*_members("removed", before - after), *_members("added", after - before)]
    return Field(name, parts[:-1], is_mixed=True, is_code=True)


def _members(kind: Literal["removed", "added"], members: Iterable[Any]) -> Iterator[Part]:
    for text in sorted(_text(each, quoted=True) for each in members):
        yield kind, plain(text)
        yield "same", " "


def _is_edited(parts: Sequence[Part], longest: int) -> bool:
    """Return whether one text reads as an edit of the other: a good part of the words, not of the spaces, stayed."""
    return sum(len("".join(text.split())) for kind, text in parts if kind == "same") > 0.3 * longest


def _text(value: Any, *, quoted: bool = False) -> str:
    """Return a value as text."""
    if isinstance(value, BaseMessage):
        return said(value) or "(empty)"
    if isinstance(value, str) and value and not quoted:
        return value
    if isinstance(value, bytes | bytearray):
        return repr(bytes(value[:_MOST_REPR]))
    try:
        return repr(value)[:_MOST_REPR]
    except Exception:  # of a class of the user's
        return object.__repr__(value)


def _cut(kind: Literal["removed", "added"], text: str, limits: Limits) -> list[Part]:
    return [(kind, _shortened(text, limits.text))]


def _shortened(text: str, limit: int) -> str:
    shown = plain(text[:limit], keep="\n\t")
    return shown if len(text) <= limit else f"{shown.rstrip()} … {len(text) - limit:,} more characters"


def _abridged(parts: Sequence[Part], limits: Limits) -> Iterator[Part]:
    """Yield the parts; of long ones that stayed, only the ends that are beside a change."""
    for place, (kind, text) in enumerate(parts):
        if kind != "same":
            yield kind, _shortened(text, limits.text)
            continue
        head = limits.context if place else 0
        tail = limits.context if place < len(parts) - 1 else 0
        yield kind, plain(text if len(text) <= head + tail + 20 else _ends(text, head, tail), keep="\n\t")


def _ends(text: str, head: int, tail: int) -> str:
    """Return the beginning and the end of a text, cut between words."""
    first = text[:head].rpartition(" ")[0] or text[:head]
    last = text[len(text) - tail :]
    return f"{first} … " * bool(head) + "… " * (not head) + (last.partition(" ")[2] or last) * bool(tail)


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
_SIGN_STYLES = {"+": "bold green", "-": "bold red", "~": "bold yellow", ">": "bold blue"}
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
        verb = (_VERBS.get(item.sign, ""), _SIGN_STYLES[item.sign])
        told = ((_indented(text, 2), name) for text, name in _spans(item, brackets=brackets))
        yield _rich_text([*_heading(section), (": ", "counts")]).append(*verb).append(_rich_text(told))
        return
    yield _rich_text(_heading(section))
    grid = Table.grid(padding=(0, 1))
    for item in section.items:
        grid.add_row(Text(item.sign, _SIGN_STYLES[item.sign]), _rich_text(_spans(item, brackets=brackets)))
    yield Padding(grid, (0, 0, 0, 2))
    yield from (Text(line, style="dim") for line in _more(section))


def _rich_text(spans: Iterator[Span] | Sequence[Span]) -> Text:
    from rich.text import Text

    text = Text(overflow="fold")
    for each, name in spans:
        text.append(each, _STYLES.get(name, ""))
    return text


_SHORT, _LONG = Limits(100, 400, 80), Limits(100, 20_000, 1 << 60)
_LINES = {"+": "46,160,67", "-": "248,81,73", "~": "187,128,9", ">": "56,139,253"}
_PAGE = "font-size:13px;line-height:1.5;max-width:72em;text-align:left;overflow-wrap:anywhere"
_TEXT = "white-space:pre-wrap"
_FAINT = "opacity:.7"
_TAGS = {"removed": ("del", "248,81,73"), "added": ("ins", "46,160,67")}


def as_html(diff: StateDiff) -> str:
    """Return a diff as HTML; what is long can be unfolded."""
    both = zip(sections(diff, _SHORT), sections(diff, _LONG), strict=True)
    body = "".join(starmap(_section_html, both))
    notes = "".join(f'<div style="{_FAINT}">{escape(line)}</div>' for line in unsaid(diff, _SHORT))
    return f'<div style="{_PAGE}"><div><b>{escape(title(diff))}</b></div>{body}{notes}</div>'


def _section_html(short: Section, long: Section) -> str:
    counts = f' <span style="{_FAINT}">{escape(short.counts)}</span>' if short.counts else ""
    items = "".join(_item_html(*both) for both in zip(short.items, long.items, strict=True))
    more = f'<div style="{_FAINT}">… {short.more:,} more changes</div>' if short.more else ""
    return f'<div style="margin-top:.7em"><b>{escape(short.channel)}</b>{counts}{items}{more}</div>'


def _item_html(short: Item, long: Item) -> str:
    style = f"border-left:3px solid rgba({_LINES[short.sign]},.9);margin:.2em 0;padding:0 0 0 .6em"
    head = f"{short.sign} {_code(short.where)}" + (f"<b>{escape(short.who)}</b> " if short.who else "")
    both = list(zip(short.fields, long.fields, strict=True))
    if len(both) == 1 and not short.fields[0].name:
        return f'<div style="{style}">{_field_html(head, *both[0])}</div>'
    fields = "".join(f"<div>{_field_html(_code(field.name or 'content'), field, other)}</div>" for field, other in both)
    return f'<div style="{style}">{head}{fields}</div>'


def _code(text: str) -> str:
    return f'<code style="{_FAINT};background:none">{escape(text)}</code> ' if text else ""


def _field_html(head: str, short: Field, long: Field) -> str:
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
