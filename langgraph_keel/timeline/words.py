"""How one text became another, word by word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

from langgraph_keel.timeline.alignment import alike

Part: TypeAlias = tuple[Literal["same", "removed", "added"], str]

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
MOST_WORDS = 2000
"""Words of both texts that differ, above which lines are compared: the time grows with the square, to 25 ms here."""


def parts_between(before: str, after: str) -> list[Part]:
    """Return a text's parts in order: what stayed, what went, what came.

    Those that are not `"added"` make up `before`, those that are not `"removed"` make up `after`.
    """
    was, now = _WORDS.findall(before), _WORDS.findall(after)
    head = alike(was, now)
    tail = alike(was[head:][::-1], now[head:][::-1])
    parts = _parts(was[head : len(was) - tail], now[head : len(now) - tail])
    ends = ("same", "".join(was[:head])), ("same", "".join(was[len(was) - tail :]))
    return list(_joined(part for part in (ends[0], *parts, ends[1]) if part[1]))  # type: ignore[misc]


def _parts(was: Sequence[str], now: Sequence[str]) -> Iterator[Part]:
    if len(was) + len(now) > MOST_WORDS:
        was, now = _LINES.findall("".join(was)), _LINES.findall("".join(now))
    for kind, lo, hi, start, stop in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if kind == "equal":
            yield "same", "".join(was[lo:hi])
            continue
        yield "removed", "".join(was[lo:hi])
        yield "added", "".join(now[start:stop])


def _joined(parts: Iterator[Part]) -> Iterator[Part]:
    """Let a space between two changes be part of them: three changed words read better than six changes."""
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
