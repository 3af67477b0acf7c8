"""The difference between two values as edits with paths, of texts word by word.

Two messages with the same id are the same message; other elements of lists are aligned by equality. Data objects are
compared field by field, dicts key by key; a set is one value. Equal values have equal types: 1 is not 1.0.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_keel.display.jsonable import DEEPEST, fields_of
from langgraph_keel.display.text import represent
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.unread import Unread

_MOST_PAIRS = 1_000_000
"""Maximum pairs of equal elements to align (0.25 s); above, only equal ends match."""

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
MOST_WORDS = 2000
"""Maximum differing words (25 ms; quadratic); longer texts are compared by line."""


def common_prefix(was: Sequence[Hashable], now: Sequence[Hashable]) -> int:
    """Return the length of the common prefix."""
    return next((n for n, (old, new) in enumerate(zip(was, now, strict=False)) if old != new), min(len(was), len(now)))


def stretches(was: Sequence[Hashable], now: Sequence[Hashable]) -> list[tuple[int, int, int, int]]:
    """Return the differences as `(a, b, c, d)`: `was[a:b]` became `now[c:d]`."""
    head = common_prefix(was, now)
    tail = common_prefix(was[head:][::-1], now[head:][::-1])
    old, new = was[head : len(was) - tail], now[head : len(now) - tail]
    if not old and not new:
        return []
    counts = Counter(new)
    # The time grows with the square of the number of equal elements, such as a thousand zeros.
    if sum(counts[name] for name in old) > _MOST_PAIRS:
        return [(head, head + len(old), head, head + len(new))]
    found = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(lo + head, hi + head, start + head, stop + head) for kind, lo, hi, start, stop in found if kind != "equal"]


def longest_ascending(places: list[int]) -> set[int]:
    """Return the longest ascending subsequence (patience sorting)."""
    if sorted(places) == places:  # nothing moved: a third of the time of a diff that finds little
        return set(places)
    ends: list[int] = []  # the lowest end of the ascending runs of each length so far
    before: dict[int, int | None] = {}
    for place in places:
        length = bisect_left(ends, place)
        before[place] = ends[length - 1] if length else None
        ends[length : length + 1] = [place]
    found: set[int] = set()
    last = ends[-1] if ends else None
    while last is not None:
        found.add(last)
        last = before[last]
    return found


Step: TypeAlias = str | int
"""One step of a path: a key or field name as text, or a place in a list."""
Kind: TypeAlias = Literal["added", "removed", "changed", "moved"]
Mark: TypeAlias = Callable[[Any], bytes]
"""Returns bytes that are equal for equal values only."""


class Nothing:
    """The type of `NOTHING`, which marks a missing value."""

    def __repr__(self) -> str:
        """Return its name."""
        return "nothing"


NOTHING = Nothing()


@publish
@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    Attributes:
        kind: `"added"`, `"removed"`, `"changed"`, or `"moved"`: a message has another place among the others, and
            `before` and `after` are the places.
        path: Its keys, field names and places in lists: in the newer value, or for removals in the older one.
        before: The old value; `NOTHING` if there was none.
        after: The new value; `NOTHING` if there is none.
        within: The message that contains it, in its newer version, and the number of path steps to that message.
    """

    kind: Kind
    path: tuple[Step, ...]
    before: Any
    after: Any
    within: tuple[int, BaseMessage] | None = None


def edits(before: Any, after: Any, mark: Mark, path: tuple[Step, ...] = ()) -> Iterator[Edit]:
    """Yield the changes between two values, in the order of the values."""
    if before is NOTHING or after is NOTHING:
        yield Edit("added" if before is NOTHING else "removed", path, before, after)
    elif mark(before) == mark(after):
        return
    elif _kind_of(before) != _kind_of(after) or len(path) > DEEPEST:
        yield Edit("changed", path, before, after)
    elif isinstance(before, list | tuple):
        yield from _sequence_edits(before, after, mark, path)
    elif (parts := parts_of(before)) is not None:
        others = parts_of(after) or {}
        for key in dict.fromkeys([*parts, *others]):
            step = key if type(key) is str else represent(key)
            for edit in edits(parts.get(key, NOTHING), others.get(key, NOTHING), mark, (*path, step)):
                is_part = isinstance(after, BaseMessage) and not edit.within
                yield replace(edit, within=(len(path), after)) if is_part else edit
    else:
        yield Edit("changed", path, before, after)


def _kind_of(value: Any) -> Any:
    return (value.module, value.qualname) if type(value) is Unread else type(value)


def parts_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the parts of a value by key or field; `None` if it has no parts."""
    return value if isinstance(value, Mapping) else fields_of(value)


# -- lists -----------------------------------------------------------------------------------------------------

Inner: TypeAlias = Callable[[int, int], Iterator[Edit]]
"""Yields the edits between an old and a new element, given their places."""


def _sequence_edits(before: Sequence[Any], after: Sequence[Any], mark: Mark, path: tuple[Step, ...]) -> Iterator[Edit]:
    was, now = ids_of(before), ids_of(after)

    def inner(place: int, other: int) -> Iterator[Edit]:
        return edits(before[place], after[other], mark, (*path, other))

    if was is not None and now is not None:
        return named_edits((was, before), (now, after), inner, path)
    was, now = (list(map(mark, side)) for side in (before, after))
    return aligned_edits((was, before), (now, after), inner, path)


def ids_of(values: Sequence[Any]) -> list[Any] | None:
    """Return the ids of values; `None` unless all are messages with unique ids."""
    ids = [value.id for value in values if isinstance(value, BaseMessage) and value.id]
    return ids if len(set(ids)) == len(values) else None


Side: TypeAlias = tuple[Sequence[Hashable], Any]
"""Names for the elements of a list, and the elements by their places."""


def named_edits(before: Side, after: Side, inner: Inner, path: tuple[Step, ...]) -> Iterator[Edit]:
    """Yield the edits between lists whose elements have unique names."""
    (was, old), (now, new) = before, after
    places, stay = {name: place for place, name in enumerate(was)}, set(now)
    kept = longest_ascending([places[name] for name in now if name in places])
    yield from (
        Edit("removed", (*path, place), old[place], NOTHING) for place, name in enumerate(was) if name not in stay
    )
    for place, name in enumerate(now):
        if name not in places:
            yield Edit("added", (*path, place), NOTHING, new[place])
            continue
        if places[name] not in kept:
            yield Edit("moved", (*path, place), places[name], place)
        yield from inner(places[name], place)


def aligned_edits(before: Side, after: Side, inner: Inner, path: tuple[Step, ...]) -> Iterator[Edit]:
    """Yield the edits between lists, aligned by names; replacements are paired."""
    (was, old), (now, new) = before, after
    for lo, hi, start, stop in stretches(was, now):
        both = min(hi - lo, stop - start)
        for place in range(both):
            yield from inner(lo + place, start + place)
        yield from (Edit("removed", (*path, place), old[place], NOTHING) for place in range(lo + both, hi))
        yield from (Edit("added", (*path, place), NOTHING, new[place]) for place in range(start + both, stop))


Part: TypeAlias = tuple[Literal["same", "removed", "added"], str]


def parts_between(before: str, after: str) -> list[Part]:
    """Return the same, removed and added parts of two texts, in order."""
    was, now = _WORDS.findall(before), _WORDS.findall(after)
    head = common_prefix(was, now)
    tail = common_prefix(was[head:][::-1], now[head:][::-1])
    old, new = was[head : len(was) - tail], now[head : len(now) - tail]
    if len(old) + len(new) > MOST_WORDS:
        old, new = _LINES.findall("".join(old)), _LINES.findall("".join(new))
    parts: list[Part] = [("same", "".join(was[:head]))]
    for kind, lo, hi, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(("same", "".join(old[lo:hi])))
        else:
            parts += [("removed", "".join(old[lo:hi])), ("added", "".join(new[start:stop]))]
    parts.append(("same", "".join(was[len(was) - tail :])))
    return list(_merge_spaces(part for part in parts if part[1]))


def _merge_spaces(parts: Iterator[Part]) -> Iterator[Part]:
    """Merge a space between two changes into them, so they read as one change."""
    removed = added = ""
    for kind, text in parts:
        if kind == "same" and not (text.isspace() and "\n" not in text and (removed or added)):
            yield from _changes(removed, added)
            removed = added = ""
            yield kind, text
            continue
        removed += text if kind != "added" else ""
        added += text if kind != "removed" else ""
    yield from _changes(removed, added)


def _changes(removed: str, added: str) -> Iterator[Part]:
    if removed != added:
        yield from ((kind, text) for kind, text in (("removed", removed), ("added", added)) if text)  # type: ignore[misc]
    elif removed:
        yield "same", removed
