"""What a look at a store has found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["harmless", "repairable", "decide", "lost"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as Keel writes it.

    Attributes:
        kind: `harmless`: left by something that was interrupted; `repairable`: by `repair`; `decide`: a person must;
            `lost`: gone, also after a repair.
        thread_id: The thread it is about, if it is about one.
        path: The file or directory.
        offset: The byte in it, if it is about one.
        message: What was found.
        advice: What to do.
    """

    kind: Kind
    thread_id: str | None
    path: str
    message: str
    advice: str = ""
    offset: int | None = None


def stray(path: Path, thread_id: str | None = None) -> Finding:
    """Return what is to be said of a name that Keel has not made."""
    return Finding("harmless", thread_id, str(path), "Keel has not made this, and leaves it alone")


def left(directory: Path, thread_id: str | None = None) -> list[Finding]:
    """Return what writes that were interrupted have left anywhere below a directory."""
    message = "a write that was interrupted has left this file"
    return [Finding("harmless", thread_id, str(path), message) for path in sorted(directory.glob("**/*.tmp"))]
