"""Marks of copied threads, in cells of the target: a copy that nobody has used since may be updated or replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.tables import CellTable

KEY = "mark"
PROBE = "probe"
"""The key of a cell that is there for a moment, to find out whether two stores are one."""


class Mark(NamedTuple):
    """Says that a thread is a copy."""

    digest: str  # of the thread when it was copied; empty while it is being copied
    at: str  # when it was copied, ISO time
    source: str = ""  # where it was copied from, as the `repr` of a saver names it, or empty


def _unpack(parts: Sequence[Any]) -> Mark:
    if [type(part) for part in parts] != [str, str, str]:
        raise TypeError("it does not hold what it should")
    return Mark(*parts)


COPIES: CellTable[Mark] = CellTable("copied", "the mark of a copy", list, _unpack, moves="never")


class CopyHook(Hook):
    """Hears nothing; `keel check` finds the marks by it."""

    tables = (COPIES,)
    shared_tables = (COPIES,)
