"""Text made safe and short to show: content, ids, counts, sizes and amounts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.constants import START

from langgraph_keel._langgraph import BRANCH, JOIN, NO_WRITES, PREGEL

# Control characters, marks that reorder or hide text, and surrogates, which cannot be encoded.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
SHORTEST_ID = 8
"""Minimum number of characters of an id that are shown."""


def plain(text: str, keep: str = "") -> str:
    """Return `text` with control characters escaped, except those in `keep`."""
    return UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def _escape(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def one_line(text: str, limit: int = 200) -> str:
    """Return the start of `text` on one line, safe to print."""
    joined = " ".join(text[: limit * 4].split())
    return plain(joined if len(joined) <= limit else joined[: limit - 1] + "…")


def cut(text: str, limit: int) -> str:
    """Return the start of `text`, safe to print, and a note of the rest."""
    shown = plain(text[:limit], keep="\n\t")
    return shown if len(text) <= limit else f"{shown.rstrip()} … {len(text) - limit:,} more characters"


def represent(value: Any) -> str:
    """Return `repr(value)`, in hexadecimal for an integer that is too long for it."""
    try:
        return repr(value)
    except Exception:  # from an integer inside it, or from a class of the user
        return hex(value) if isinstance(value, int) else object.__repr__(value)


def count_of(count: int, noun: str) -> str:
    """Return a number with its noun: `1 moment`, `2,000 moments`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_size(count: int) -> str:
    """Return a number of bytes with two digits and a unit: `999 B`, `1.0 kB`, `12 kB`."""
    amount, units = float(count), iter(("kB", "MB", "GB", "TB"))
    unit = "B"
    while amount >= 999.5 and unit != "TB":
        amount, unit = amount / 1000, next(units)
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 9.95 else f"{amount:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """Return a duration: `0 ms`, `999 ms`, `1.0 s`."""
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1000:,.0f} ms"


def format_money(amount: float) -> str:
    """Return an amount of money; small amounts with three digits."""
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.3g}"


def short_ids(ids: Iterable[str], least: int = SHORTEST_ID, *, from_start: bool = False) -> Mapping[str, str]:
    """Return a unique end (or start) of each id, all of the same minimum length.

    LangGraph's ids differ at the end.
    """
    wanted = list(dict.fromkeys(ids))
    for length in range(least, max(map(len, wanted), default=0)):
        short = {each: each[:length] if from_start else each[-length:] for each in wanted}
        if len(set(short.values())) == len(wanted):
            return short
    return {each: each for each in wanted}


def is_internal(channel: str) -> bool:
    """Return whether a channel is LangGraph's own, and not part of the user's state."""
    return channel.startswith((BRANCH, JOIN, PREGEL)) or channel in (START, NO_WRITES)
