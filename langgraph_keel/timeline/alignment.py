"""Two sequences side by side: what stayed in order, and where they differ."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

_MOST_PAIRS = 1_000_000
"""Pairs of equal elements above which sequences are not aligned; this many take a quarter of a second."""


def alike(was: Sequence[Hashable], now: Sequence[Hashable]) -> int:
    """Return how many elements from the beginning on are the same."""
    return next((n for n, (old, new) in enumerate(zip(was, now, strict=False)) if old != new), min(len(was), len(now)))


def stretches(was: Sequence[Hashable], now: Sequence[Hashable]) -> list[tuple[int, int, int, int]]:
    """Return where two sequences differ: `was[a:b]` became `now[c:d]`. Both are cut where they agree as far as it pays.

    Many equal elements, such as a thousand times `0`, take time with the square of their number; above `_MOST_PAIRS`
    only the ends are cut off.
    """
    head = alike(was, now)
    tail = alike(was[head:][::-1], now[head:][::-1])
    old, new = was[head : len(was) - tail], now[head : len(now) - tail]
    if not old and not new:
        return []
    counts = Counter(new)
    if sum(counts[name] for name in old) > _MOST_PAIRS:
        return [(head, head + len(old), head, head + len(new))]
    found = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(lo + head, hi + head, start + head, stop + head) for kind, lo, hi, start, stop in found if kind != "equal"]


def in_order(places: list[int]) -> set[int]:
    """Return the longest ascending subsequence: what stayed where it was among the others (patience sorting)."""
    if sorted(places) == places:  # nothing moved: a third of the time of a diff that finds little
        return set(places)
    ends: list[int] = []  # of the ascending runs of each length so far, the lowest end
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
