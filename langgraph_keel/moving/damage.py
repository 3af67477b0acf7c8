"""Malformed records of a source: what they raise, and what is looked at. Each costs its own thread, and no other."""

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
"""How many times its stored size a value rarely has: zstandard packs ordinary text, and JSON, a tenth of that."""


def say_unreadable(thread_id: str, error: BaseException) -> str:
    """Return why a thread was left out."""
    if isinstance(error, KeelError):
        return str(error)
    why = f"{type(error).__name__}: {error!s:.200}"
    return f"thread {thread_id!r}: it holds what no saver writes, and cannot be read: {why}"


@contextmanager
def name_damage(thread_id: str) -> Iterator[None]:
    """Raise what malformed records raise as a named error."""
    try:
        yield
    except KeelError:
        raise
    except UNREADABLE as error:
        raise CorruptStore(say_unreadable(thread_id, error)) from error


def check_texts(*texts: Any) -> None:
    """See that names and ids are texts that every store can carry."""
    for text in texts:
        if type(text) is not str:
            raise CorruptStore(f"a name or an id is no text: {text!r:.40}")
        text_of(text, "a name or an id")


def add_inflated(before: int, bodies: Iterable[bytes], most: int) -> int:
    """Add the sizes of values that are stored in less than a thousandth of their bytes to the sum so far."""
    sizes = ((content_size(body), len(body)) for body in bodies)
    inflated = before + sum(size for size, stored in sizes if size > _RATIO * stored)
    if inflated > most:
        raise CorruptStore(
            f"its values grow to a thousand times their stored size, in all to more than {most:,} bytes: if they are "
            "your own, open the source with serde=KeelSerializer(max_bytes=...)"
        )
    return inflated
