"""What says of a thread that it is a copy, and what it was when it was made: so that it may be brought up to date.

The mark stands in the target, beside the thread. While a thread is being copied, the mark says so, and whoever copies
it again goes on. Afterwards it has a digest of what was copied: as long as that is what is there, nobody has used the
copy, and it may be replaced. From then on it is somebody's own thread, which no copy touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.tables import CellTable

KEY = "mark"
PROBE = "probe"
"""The key of a cell that is there for a moment, to find out whether two stores are one."""


class Mark(NamedTuple):
    """Says that a thread is a copy.

    Attributes:
        digest: Of what it was when it was copied; empty while it is being copied.
        at: When that was, ISO time.
        source: Where it was copied from, as the `repr` of a saver names it; empty if that has no name.
    """

    digest: str
    at: str
    source: str = ""


def _unpack(parts: Sequence[Any]) -> Mark:
    if [type(part) for part in parts] != [str, str, str]:
        raise TypeError("it does not hold what it should")
    return Mark(*parts)


COPIES: CellTable[Mark] = CellTable("copied", "the mark of a copy", list, _unpack, moves="never")


class CopyHook(Hook):
    """Hears nothing; `keel check` finds the marks by it."""

    tables = (COPIES,)
    shared_tables = (COPIES,)
