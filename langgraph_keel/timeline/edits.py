"""What changed between two values: the edits that a reader would name, each with its path.

Messages are the same ones if their ids are; what else a list holds is aligned by equality, so that one element put in
front is one edit and not as many as there are elements. Data objects are compared field by field, dicts by key; a set
is one value. What is equal is equal in type too: 1 is not 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_keel.timeline.alignment import in_order, stretches
from langgraph_keel.timeline.plain import DEEPEST, fields_of

Step: TypeAlias = str | int
"""One step of a path: a key or the name of a field, as text; or a place in a list, as a number."""
Kind: TypeAlias = Literal["added", "removed", "changed", "moved"]
Mark: TypeAlias = Callable[[Any], bytes]
"""Returns bytes that are equal for equal values only."""


class Nothing:
    """What stands where one side has something and the other has nothing."""

    def __repr__(self) -> str:
        """Say so."""
        return "nothing"


NOTHING = Nothing()


@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    Attributes:
        kind: `"added"`, `"removed"`, `"changed"`, or `"moved"`: the same message, at another place among the
            others; then `before` and `after` are the places.
        path: Where: keys, names of fields, places in lists: of what was removed where it stood, of all else where it
            stands now.
        before: What stood there; `NOTHING` if nothing did.
        after: What stands there; `NOTHING` if nothing does.
        within: The message that it is a part of, as it stands now, and how many steps of the path lead to it.
    """

    kind: Kind
    path: tuple[Step, ...]
    before: Any
    after: Any
    within: tuple[int, BaseMessage] | None = None


def edits(before: Any, after: Any, mark: Mark, path: tuple[Step, ...] = ()) -> Iterator[Edit]:
    """Yield what changed between two values, in the order in which a reader meets it.

    Args:
        before: The older value.
        after: The newer one.
        mark: Tells equal values (`Codec.fingerprint`).
        path: Where both stand.
    """
    if before is NOTHING or after is NOTHING:
        yield Edit("added" if before is NOTHING else "removed", path, before, after)
    elif mark(before) == mark(after):
        return
    elif type(before) is not type(after) or len(path) > DEEPEST:
        yield Edit("changed", path, before, after)
    elif isinstance(before, list | tuple):
        yield from _of_sequences(before, after, mark, path)
    elif (parts := parts_of(before)) is not None:
        found = _of_mappings(parts, parts_of(after) or {}, mark, path)
        yield from _inside(after, found, len(path)) if isinstance(after, BaseMessage) else found
    else:
        yield Edit("changed", path, before, after)


def _inside(message: BaseMessage, found: Iterator[Edit], depth: int) -> Iterator[Edit]:
    return (edit if edit.within else replace(edit, within=(depth, message)) for edit in found)


def parts_of(value: Any) -> Mapping[Any, Any] | None:
    """Return what a value is made of, by key or field; `None` if it is one thing."""
    return value if isinstance(value, Mapping) else fields_of(value)


def _of_mappings(
    before: Mapping[Any, Any], after: Mapping[Any, Any], mark: Mark, path: tuple[Step, ...]
) -> Iterator[Edit]:
    for key in dict.fromkeys([*before, *after]):
        step = key if type(key) is str else repr(key)
        yield from edits(before.get(key, NOTHING), after.get(key, NOTHING), mark, (*path, step))


# -- lists -----------------------------------------------------------------------------------------------------

Inner: TypeAlias = Callable[[int, int], Iterator[Edit]]
"""Yields the edits between the element at one place before and that at another now."""


def _of_sequences(before: Sequence[Any], after: Sequence[Any], mark: Mark, path: tuple[Step, ...]) -> Iterator[Edit]:
    was, now = ids_of(before), ids_of(after)

    def inner(place: int, other: int) -> Iterator[Edit]:
        return edits(before[place], after[other], mark, (*path, other))

    if was is not None and now is not None:
        return named_edits((was, before), (now, after), inner, path)
    was, now = (list(map(mark, side)) for side in (before, after))
    return aligned_edits((was, before), (now, after), inner, path)


def ids_of(values: Sequence[Any]) -> list[Any] | None:
    """Return the ids of messages; `None` if something else is among them, one has none, or an id is there twice."""
    ids = [value.id for value in values if isinstance(value, BaseMessage) and value.id]
    return ids if len(set(ids)) == len(values) else None


class Places(Protocol):
    """Elements by their places."""

    def __getitem__(self, place: int, /) -> Any:
        """Return the element at a place."""


Side: TypeAlias = tuple[Sequence[Hashable], Places]
"""The names of a list's elements, and the elements."""


def named_edits(before: Side, after: Side, inner: Inner, path: tuple[Step, ...]) -> Iterator[Edit]:
    """Yield the edits between lists whose elements have names of their own: removed, added, moved, changed."""
    (was, old), (now, new) = before, after
    places, stay = {name: place for place, name in enumerate(was)}, set(now)
    kept = in_order([places[name] for name in now if name in places])
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
    """Yield the edits between lists whose equal elements have equal names; of what came instead, each for one."""
    (was, old), (now, new) = before, after
    for lo, hi, start, stop in stretches(was, now):
        both = min(hi - lo, stop - start)
        for place in range(both):
            yield from inner(lo + place, start + place)
        yield from (Edit("removed", (*path, place), old[place], NOTHING) for place in range(lo + both, hi))
        yield from (Edit("added", (*path, place), NOTHING, new[place]) for place in range(start + both, stop))
