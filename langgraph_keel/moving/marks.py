"""Marks of copied threads, in cells of the target: unused copies can be replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.tables import CellTable

KEY = "mark"
PROBE = "probe"
"""The key of a temporary cell, to detect that both stores are the same."""


class Mark(NamedTuple):
    """The mark of a copied thread."""

    digest: str  # of the thread when it was copied; empty while it is being copied
    at: str  # when it was copied, ISO time
    source: str = ""  # the store it was copied from, as in the `repr` of a saver, or empty


def _unpack(parts: Sequence[Any]) -> Mark:
    if [type(part) for part in parts] != [str, str, str]:
        raise TypeError("its fields have unexpected types")
    return Mark(*parts)


COPIES: CellTable[Mark] = CellTable("copied", "the mark of a copy", list, _unpack, moves="never")


class CopyHook(Hook):
    """Declares the marks for `keel check`; it handles no events."""

    tables = (COPIES,)
    shared_tables = (COPIES,)
