"""What malformed records of a source raise; each costs the thread that it is of, and no other."""

from __future__ import annotations

import struct

from langgraph_keel.errors import CorruptStore

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


def say_unreadable(error: BaseException) -> str:
    """Return what to say of an error that is not one of Keel's."""
    return f"it holds what no saver writes, and cannot be read: {type(error).__name__}: {error!s:.200}"
