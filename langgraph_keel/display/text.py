"""What people wrote, made safe and short enough to be shown: in a terminal, in a notebook."""

from __future__ import annotations

import re

from langgraph.constants import START

from langgraph_keel._langgraph import BRANCH, JOIN, NO_WRITES, PREGEL

# Control characters, the marks that reorder or hide text, and surrogates no encoding can carry.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def plain(text: str, keep: str = "") -> str:
    """Return `text` with all that could steer a terminal spelled out, but for the characters in `keep`."""
    return UNSAFE.sub(lambda match: match[0] if match[0] in keep else _spelled(match[0]), text)


def _spelled(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def one_line(text: str, limit: int = 200) -> str:
    """Return the start of `text` on one line."""
    joined = " ".join(text[: limit * 4].split())
    return plain(joined if len(joined) <= limit else joined[: limit - 1] + "…")


def is_internal(channel: str) -> bool:
    """Tell whether a channel is LangGraph's own bookkeeping, not the user's state."""
    return channel.startswith((BRANCH, JOIN, PREGEL)) or channel in (START, NO_WRITES)
