"""A diff as plain text, for terminals and as HTML, in a section per channel.

The output is safe to print. In HTML, styles are inline, for light and dark pages; if a page drops them, `<del>`,
`<ins>` and the signs remain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, starmap
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_keel.display import html
from langgraph_keel.display.messages import message_text, speaker
from langgraph_keel.display.text import count_of, cut, is_internal, plain, represent, short_ids
from langgraph_keel.history.edits import NOTHING, Edit, Part, Step, parts_between
from langgraph_keel.history.records import DiffRecord

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text


Sign: TypeAlias = Literal["+", "-", "~", ">"]
_SIGNS: dict[str, Sign] = {"added": "+", "removed": "-", "changed": "~", "moved": ">"}
_SHORT_VALUE = 60
_MOST_REPR = 100_000

_STYLES = {"added": "green", "removed": "red", "struck": "red strike"}
_SIGN_STYLES = {"+": "bold green", "-": "bold red", "~": "bold yellow", ">": "bold blue"}
_BRACKETS = {"added": ("{+", "+}"), "removed": ("[-", "-]")}
_VERBS = {"+": "added ", "-": "removed "}

_LINES = {"+": "46,160,67", "-": "248,81,73", "~": "187,128,9", ">": "56,139,253"}
_PAGE = "font-size:13px;line-height:1.5;max-width:72em;text-align:left;overflow-wrap:anywhere"
_TEXT = "white-space:pre-wrap"
_FAINT = "opacity:.7"
_TAGS = {"removed": ("del", "248,81,73"), "added": ("ins", "46,160,67")}


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum changes per channel, and characters of changed and of unchanged text."""

    items: int
    text: int
    context: int
    internal: bool = False


SHORT, FULL = Limits(40, 400, 60), Limits(1 << 60, 1 << 60, 1 << 60, internal=True)


@dataclass(frozen=True, slots=True)
class Field:
    """The change of a part, or of the whole value if `name` is empty."""

    name: str
    parts: Sequence[Part]
    is_mixed: bool = False  # pieces of one text, not an old value and a new one
    is_code: bool = False  # values as Python writes them, not text


@dataclass(frozen=True, slots=True)
class Item:
    """One change, or all changes of one message; `where` is its path in the channel."""

    sign: Sign
    where: str
    who: str
    fields: Sequence[Field]


@dataclass(frozen=True, slots=True)
class Section:
    """The changes of one channel, of which `more` are not shown."""

    channel: str
    counts: str
    items: Sequence[Item]
    more: int = 0


def sections(diff: DiffRecord, limits: Limits) -> list[Section]:
    """Return a section for each channel that changed."""
    found = []
    for channel, edits in groupby(diff.edits, key=lambda edit: str(edit.path[0])):
        if limits.internal or not is_internal(channel):
            found.append(_section(channel, [each for edit in edits for each in _expand(edit)], limits))
    return found


def remarks(diff: DiffRecord, limits: Limits) -> list[str]:
    """Return sentences about delta channels, or that nothing changed."""
    internal = [channel for channel in diff.channels if is_internal(channel) and not limits.internal]
    deltas = ", ".join(map(plain, diff.deltas))
    lines = [f"{deltas}: written between the two; only a graph can tell the values of delta channels"] if deltas else []
    if internal and len(internal) == len(diff.channels):
        return [f"nothing changed but what LangGraph keeps for itself ({', '.join(map(plain, internal))})"]
    return lines if diff else ["nothing changed"]


def title(diff: DiffRecord) -> str:
    """Return the names of the two checkpoints, with short ids."""
    ids = str(diff.before.checkpoint_id), str(diff.after.checkpoint_id)
    short = short_ids(ids)
    names = [plain(short[checkpoint]) for checkpoint in ids]
    places = []
    for side in (diff.before, diff.after):
        namespace = f", namespace {plain(side.checkpoint_ns)}" if side.checkpoint_ns else ""
        places.append(f"thread {plain(side.thread_id)}{namespace}")
    if places[0] == places[1]:
        return f"{places[0]}: {names[0]} → {names[1]}"
    return f"{places[0]}, {names[0]} → {places[1]}, {names[1]}"


def _expand(edit: Edit) -> Iterator[Edit]:
    """Yield an edit; for a list of messages added or removed as a whole, one for each."""
    came, went = edit.before is NOTHING, edit.after is NOTHING
    value = edit.after if came else edit.before
    if not (came or went) or not isinstance(value, list) or not any(isinstance(each, BaseMessage) for each in value):
        yield edit
        return
    for place, each in enumerate(value):
        side = {"after": each} if came else {"before": each}
        yield replace(edit, path=(*edit.path, place), **side)


def _section(channel: str, edits: Sequence[Edit], limits: Limits) -> Section:
    # Edits within one message are shown together.
    together = groupby(edits, lambda edit: (edit.path[: edit.within[0]],) if edit.within else (edit.kind, edit.path))
    groups = _order_as_hunks([list(group) for _, group in together])
    shown = [_item(group, limits) for group in groups[: limits.items]]
    counts = ""
    if len(groups) > 1 or shown[0].where:
        kinds = Counter("edited" if group[0].within else group[0].kind for group in groups)
        counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    return Section(plain(channel), counts, shown, len(groups) - len(shown))


def _order_as_hunks(groups: Sequence[Sequence[Edit]]) -> list[Sequence[Edit]]:
    """Order the edits of a list by place; at equal places, removals come first."""
    places = [next((step for step in group[0].path[1:2] if isinstance(step, int)), None) for group in groups]
    kinds = [group[0].kind for group in groups]
    # The index of a removed element refers to the old list, all others to the new one. So edits are ordered by the
    # number of unchanged elements before them.
    gone, came = (
        sorted(place for place, each in zip(places, kinds, strict=True) if place is not None and each == kind)
        for kind in ("removed", "added")
    )

    def key(number: int) -> tuple[int, int]:
        place, kind = places[number], kinds[number]
        if place is None:
            return 0, 0
        if kind == "removed":
            return place - bisect_left(gone, place), 0
        return place - bisect_left(came, place), 1 if kind == "added" else 2

    return [groups[number] for number in sorted(range(len(groups)), key=key)]


def _item(edits: Sequence[Edit], limits: Limits) -> Item:
    first = edits[0]
    if not first.within:
        value = first.before if first.after is NOTHING else first.after
        who = plain(speaker(value)) if isinstance(value, BaseMessage) else ""
        return Item(_SIGNS[first.kind], path_text(first.path[1:]), who, [_field(first, "", limits)])
    depth, message = first.within
    fields = [
        _field(edit, "" if edit.path[depth:] == ("content",) else path_text(edit.path[depth:]), limits)
        for edit in edits
    ]
    return Item("~", path_text(first.path[1:depth]), plain(speaker(message)), fields)


def path_text(path: Sequence[Step]) -> str:
    """Return a path as it would be written in Python."""
    return "".join(map(_step, path)).removeprefix(".")


def _step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() else f"[{plain(repr(step))}]"


def _field(edit: Edit, name: str, limits: Limits) -> Field:
    came, went = edit.before is NOTHING, edit.after is NOTHING
    if edit.kind == "moved":
        return Field(name, [("same", f"moved here from [{edit.before}]")])
    if came or went:
        value = edit.after if came else edit.before
        parts: list[Part] = [("added" if came else "removed", cut(_value_text(value), limits.text))]
        return Field(name, parts, is_code=not isinstance(value, str | BaseMessage))
    if type(edit.before) is type(edit.after):
        if isinstance(edit.before, str):
            return _changed_field(name, edit.before or "''", edit.after or "''", limits, is_code=False)
        if isinstance(edit.before, set | frozenset):
            members = [*_members("removed", edit.before - edit.after), *_members("added", edit.after - edit.before)]
            return Field(name, members[:-1], is_mixed=True, is_code=True)
    was, now = (_value_text(each, quoted=True) for each in (edit.before, edit.after))
    return _changed_field(name, was, now, limits, is_code=not isinstance(edit.after, BaseMessage))


def _changed_field(name: str, was: str, now: str, limits: Limits, *, is_code: bool) -> Field:
    """Return a text change: by word if it reads as an edit, else old and new text."""
    if was == now:
        same = f"{cut(was, limits.text)} (a different value with the same text)"
        return Field(name, [("same", same)], is_code=is_code)
    if not is_code or len(was) + len(now) > 2 * _SHORT_VALUE:
        parts = parts_between(was, now)
        stayed = sum(len("".join(text.split())) for kind, text in parts if kind == "same")
        if stayed > 0.3 * max(len(was), len(now)):  # it reads as an edit
            return Field(name, list(_abridge(parts, limits)), is_mixed=True, is_code=is_code)
    has_lines = "\n" in was + now
    gap = "\n" if has_lines or max(len(was), len(now)) > _SHORT_VALUE else " "
    parts = [("removed", cut(was, limits.text)), ("same", f"{gap}→ "), ("added", cut(now, limits.text))]
    return Field(name, [("same", "\n"), *parts] if has_lines and is_code else parts, is_code=is_code)


def _members(kind: Literal["removed", "added"], members: Iterable[Any]) -> Iterator[Part]:
    for text in sorted(_value_text(each, quoted=True) for each in members):
        yield kind, plain(text)
        yield "same", " "


def _value_text(value: Any, *, quoted: bool = False) -> str:
    if isinstance(value, BaseMessage):
        return message_text(value) or "(empty)"
    if isinstance(value, str) and value and not quoted:
        return value
    if isinstance(value, bytes | bytearray):
        return repr(bytes(value[:_MOST_REPR]))
    return represent(value)[:_MOST_REPR]


def _abridge(parts: Sequence[Part], limits: Limits) -> Iterator[Part]:
    """Yield the parts; of a long unchanged part, only the ends next to a change."""
    for place, (kind, text) in enumerate(parts):
        if kind != "same":
            yield kind, cut(text, limits.text)
            continue
        head = limits.context if place else 0
        tail = limits.context if place < len(parts) - 1 else 0
        if len(text) > head + tail + 20:  # it is cut between words
            start, end = text[:head], text[len(text) - tail :]
            start = start.rpartition(" ")[0] or start
            text = (f"{start} … " if start else "… ") + (end.partition(" ")[2] or end)
        yield kind, plain(text, keep="\n\t")


@dataclass(frozen=True, slots=True)
class _Block:
    """A paragraph: styled pieces of text, a sign, and the indent of further lines."""

    parts: Sequence[tuple[str, str]]
    sign: str = ""
    indent: int = 0


def diff_text(diff: DiffRecord, *, full: bool = False) -> str:
    """Return a diff as plain text."""
    return "\n".join(map(_block_text, _blocks(diff, FULL if full else SHORT, brackets=True)))


def _block_text(block: _Block) -> str:
    first, *others = "".join(text for text, _ in block.parts).split("\n")
    start = f"  {block.sign} " if block.sign else ""
    return "\n".join([start + first, *(" " * block.indent + line if line else "" for line in others)])


@dataclass(frozen=True)
class DiffPage:
    """A diff for a rich console; `full` shows long values and LangGraph's channels."""

    diff: DiffRecord
    full: bool = False
    has_title: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the paragraphs; without colours, brackets mark removed and added text."""
        from rich.table import Table
        from rich.text import Text

        brackets = console.color_system is None or console.no_color
        blocks = _blocks(self.diff, FULL if self.full else SHORT, brackets=brackets)
        for number, block in enumerate(blocks):
            if number == 0 and not self.has_title:
                continue
            if block.sign:
                grid = Table.grid()
                grid.add_row(Text(f"  {block.sign} ", _SIGN_STYLES[block.sign]), _rich_text(block.parts, 0))
                yield grid
            else:
                yield _rich_text(block.parts, block.indent)


def _rich_text(parts: Sequence[tuple[str, str]], indent: int) -> Text:
    from rich.text import Text

    lines = [(text.replace("\n", "\n" + " " * indent), style) for text, style in parts]
    return Text.assemble(*lines, overflow="fold")


def _blocks(diff: DiffRecord, limits: Limits, *, brackets: bool) -> Iterator[_Block]:
    yield _Block([(title(diff), "bold")])
    for section in sections(diff, limits):
        heading = [(section.channel, "bold cyan")]
        if section.counts:
            heading.append((f": {section.counts}", "dim"))
        if [item.where for item in section.items] == [""]:  # the channel is one value
            (item,) = section.items
            verb = (_VERBS.get(item.sign, ""), _SIGN_STYLES[item.sign])
            yield _Block([*heading, (": ", "dim"), verb, *_item_parts(item, brackets)], indent=2)
            continue
        yield _Block(heading)
        yield from (_Block(list(_item_parts(item, brackets)), item.sign, 4) for item in section.items)
        if section.more:
            yield _Block([(f"  … {count_of(section.more, 'more change')}", "dim")])
    yield from (_Block([(line, "dim")]) for line in remarks(diff, limits))


def _item_parts(item: Item, brackets: bool) -> Iterator[tuple[str, str]]:
    """Yield one change: its path, and its fields, each on its own line if several."""
    name = " ".join(part for part in (item.where, item.who) if part)
    yield name, "bold" if item.who else "dim"
    is_single = len(item.fields) == 1 and not item.fields[0].name
    for field in item.fields:
        if not is_single:
            yield f"\n{field.name or 'content'}: ", "dim"
        elif name:
            yield ": ", "dim"
        for kind, text in field.parts:
            style = "struck" if field.is_mixed and kind == "removed" else kind
            if field.is_mixed and brackets:  # the spaces around it stay outside
                left, right = _BRACKETS.get(kind, ("", ""))
                word = text.strip(" ") or text
                text = text.replace(word, f"{left}{word}{right}", 1)
            yield text, _STYLES.get(style, "")


_SHORT, _LONG = Limits(100, 400, 80), Limits(100, 20_000, 1 << 60)


def diff_html(diff: DiffRecord, *, has_title: bool = True) -> str:
    """Return a diff as HTML; long values can be unfolded."""
    parts = [html.tag("div", html.tag("b", html.text(title(diff))))] if has_title else []
    for short, long in zip(sections(diff, _SHORT), sections(diff, _LONG), strict=True):
        inner = [html.tag("b", html.text(short.channel))]
        inner += [" ", html.tag("span", html.text(short.counts), style=_FAINT)] if short.counts else []
        inner += starmap(_item_html, zip(short.items, long.items, strict=True))
        inner += [html.tag("div", f"… {count_of(short.more, 'more change')}", style=_FAINT)] if short.more else []
        parts.append(html.tag("div", *inner, style="margin-top:.7em"))
    parts += (html.tag("div", html.text(line), style=_FAINT) for line in remarks(diff, _SHORT))
    return html.tag("div", *parts, style=_PAGE)


def _item_html(short: Item, long: Item) -> str:
    who = html.tag("b", html.text(short.who)) + " " if short.who else ""
    head = f"{short.sign} {_code(short.where)}{who}"
    both = list(zip(short.fields, long.fields, strict=True))
    if len(both) == 1 and not short.fields[0].name:
        inner = [_field_html(head, *both[0])]
    else:
        inner = [head]
        inner += (html.tag("div", _field_html(_code(field.name or "content"), field, all_)) for field, all_ in both)
    style = f"border-left:3px solid rgba({_LINES[short.sign]},.9);margin:.2em 0;padding:0 0 0 .6em"
    return html.tag("div", *inner, style=style)


def _code(name: str) -> str:
    return html.tag("code", html.text(name), style=f"{_FAINT};background:none") + " " if name else ""


def _field_html(head: str, short: Field, long: Field) -> str:
    """Return a field after its name, which is HTML; long fields can be unfolded."""
    style = f"{_TEXT};font-family:monospace" if short.is_code else _TEXT
    shown = head + html.tag("span", *_parts(short), style=style)
    if short.parts == long.parts:
        return shown
    return html.folded(shown, html.tag("div", *_parts(long), style=f"{style};margin:.3em 0 .6em 1em"))


def _parts(field: Field) -> Iterator[str]:
    for kind, piece in field.parts:
        lines = html.text(piece).replace("\n", "<br>")  # a page without styles would join them
        if kind == "same":
            yield lines
            continue
        name, colour = _TAGS[kind]
        line = "line-through" if kind == "removed" and field.is_mixed else "none"
        yield html.tag(name, lines, style=f"background:rgba({colour},.22);color:inherit;text-decoration:{line}")
