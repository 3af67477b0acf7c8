"""What there is to tell of a diff: by channel, in the order in which a careful person would say it.

Text, terminal and HTML show the same sections. All that users wrote is made safe here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_keel.timeline.diff import StateDiff
from langgraph_keel.timeline.edits import NOTHING, Edit, Step
from langgraph_keel.timeline.moment import SHORTEST_ID
from langgraph_keel.timeline.safe import is_internal, plain
from langgraph_keel.timeline.said import said, who
from langgraph_keel.timeline.words import Part, parts_between

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
