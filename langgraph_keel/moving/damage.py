"""Checks and errors for malformed records of a source; each fails only its thread."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from langgraph_keel.engine.config import text_of
from langgraph_keel.engine.encoding.bodies import content_size
from langgraph_keel.errors import CorruptStore, KeelError

UNREADABLE = (
    CorruptStore,
    TypeError,  # with ValueRefused
    ValueError,  # with InvalidInput
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
)
_RATIO = 1000
"""Compression ratio of suspicious values; text and JSON reach a tenth of it."""


def say_unreadable(thread_id: str, error: BaseException) -> str:
    """Return the reason why a thread was skipped."""
    if isinstance(error, KeelError):
        return str(error)
    why = f"{type(error).__name__}: {error!s:.200}"
    return f"thread {thread_id!r}: it contains malformed records and cannot be read: {why}"


@contextmanager
def name_damage(thread_id: str) -> Iterator[None]:
    """Convert errors of malformed records to `CorruptStore` with the thread's name."""
    try:
        yield
    except KeelError:
        raise
    except UNREADABLE as error:
        raise CorruptStore(say_unreadable(thread_id, error)) from error


def check_texts(*texts: Any) -> None:
    """Raise an error unless names and ids are strings that every store supports."""
    for text in texts:
        if type(text) is not str:
            raise CorruptStore(f"a name or an id is not a string: {text!r:.40}")
        text_of(text, "a name or an id")


def add_inflated(before: int, bodies: Iterable[bytes], most: int) -> int:
    """Add the sizes of values above `_RATIO` to the sum so far, and check the limit."""
    sizes = ((content_size(body), len(body)) for body in bodies)
    inflated = before + sum(size for size, stored in sizes if size > _RATIO * stored)
    if inflated > most:
        raise CorruptStore(
            f"its values expand to over a thousand times their stored size, to more than {most:,} bytes in total: if "
            "they are your own, open the source with serde=KeelSerializer(max_bytes=...)"
        )
    return inflated
