"""References to archived parts and messages: search results, or printed ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_keel.display.messages import message_text, speaker
from langgraph_keel.display.text import one_line
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.summaries.archive.parts import Archived, keys_of

LEAST = 6
"""Minimum number of digits in a prefix of a part's id."""
_DIGITS = re.compile(f"[0-9a-f]{{{LEAST},24}}")


@publish
@dataclass(frozen=True, slots=True, repr=False)
class FoundMessage:
    """A message found by a search.

    Attributes:
        entry: The archived part that contains it.
        index: Its position in the part.
        message: The message.
        score: The cosine similarity to the query, if it was found by meaning.
    """

    entry: Archived
    index: int
    message: BaseMessage
    score: float | None = None

    def __str__(self) -> str:
        """Return its place, speaker and text, on one line."""
        line = f"{speaker(self.message)}: {one_line(message_text(self.message), 80)}"
        return f"{self.entry.id[:12]} #{self.index}  {one_line(str(getattr(self.message, 'id', None) or ''))}  {line}"

    def __repr__(self) -> str:
        """As `str`, in brackets."""
        return f"<FoundMessage {self}>"


Part: TypeAlias = Archived | FoundMessage | str | int
"""A reference to a part: the part, a message found in it, its id, at least six first digits, or its position."""
Which: TypeAlias = Part | BaseMessage
"""A reference to something to restore: a part, a message, or the id of one."""


def id_in(which: Part) -> str:
    """Return the id of a part, or a prefix of it. A position is refused."""
    named = which.entry if isinstance(which, FoundMessage) else which
    name = named.id if isinstance(named, Archived) else named
    if isinstance(name, str):
        return name
    raise InvalidInput(f"a part is named by an entry of the archive, its id or its position, not by {_kind(which)}")


def part_in(entries: Sequence[Archived], which: Part) -> Archived:
    """Return the part of a reference."""
    if type(which) is int:
        if not -len(entries) <= which < len(entries):
            raise NotFound(f"the archive has no part {which}: it has {len(entries)} parts, counted from 0")
        return entries[which]
    name = id_in(which)
    found = _find_by_name(entries, name)
    if not found:
        few = f" (use at least {LEAST} digits of an id)" if len(name) < LEAST else ""
        raise NotFound(f"the archive has no part {name!r:.60}: `keel archive` lists its parts{few}")
    return found


def _find_by_name(entries: Sequence[Archived], name: str) -> Archived | None:
    fits = [entry for entry in entries if entry.id.startswith(name)] if _DIGITS.fullmatch(name) else []
    if len(fits) > 1:
        raise InvalidInput(f"{name!r} fits {len(fits)} parts ({', '.join(entry.id for entry in fits[:3])}): give more")
    return fits[0] if fits else None


def position_of(entry: Archived, message_id: str) -> int | None:
    """Return a message's position in a part, not that of a summary with its id."""
    inner = {place for place, _ in entry.inner}
    places = [place for place, name in enumerate(entry.message_ids) if name == message_id and name]
    return min(places, key=lambda place: (place in inner, place), default=None)


def holder_of(entries: Sequence[Archived], message_id: str) -> tuple[Archived, int] | None:
    """Return the last part that contains a message, and the message's position."""
    found = [(entry, place) for entry in entries if (place := position_of(entry, message_id)) is not None]
    first = [(entry, place) for entry, place in found if place not in {each for each, _ in entry.inner}]
    return (first or found)[-1] if found else None


def named_in(entries: Sequence[Archived], which: Which) -> tuple[Archived, Sequence[str]]:
    """Return the part of a reference, and the keys of the referenced messages."""
    if isinstance(which, FoundMessage):
        entry = part_in(entries, which.entry)
        return entry, keys_of(entry)[which.index : which.index + 1]
    if isinstance(which, Archived) or type(which) is int:
        entry = part_in(entries, which)
        return entry, keys_of(entry)
    name = which.id if isinstance(which, BaseMessage) else which
    if not isinstance(name, str):
        wanted = "parts, their ids or positions, messages, or ids of those"
        raise InvalidInput(f"what to restore is named by {wanted}, not by {_kind(which)}")
    exact = next((entry for entry in entries if entry.id == name), None)
    if exact is None and (held := holder_of(entries, name)) is not None:
        return held[0], [keys_of(held[0])[held[1]]]
    if found := exact or _find_by_name(entries, name):
        return found, keys_of(found)
    raise NotFound(f"the archive has no part or message {name!r:.60}: `keel archive` lists its parts")


def _kind(value: Any) -> str:
    lacks = " without an id" if isinstance(value, BaseMessage) and not value.id else ""
    return f"{value!r:.40}" if isinstance(value, int | bytes) or value is None else f"a {type(value).__name__}{lacks}"
