"""Threads that two branches of a repository have both continued: what a person has to decide.

Git lists such a log as unmerged and leaves ours in place (`git.SETTINGS`), so the store works on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from langgraph_keel.errors import CorruptStore
from langgraph_keel.files.log import Records, committed
from langgraph_keel.files.repository import Conflict, conflicts
from langgraph_keel.files.shelves import SHARED
from langgraph_keel.files.threads import CELLS, LOG


@dataclass(frozen=True, slots=True)
class Side:
    """What one branch has of a thread.

    Attributes:
        checkpoints: How many it has put since the branches parted.
        updated_at: ISO time of its last checkpoint, `""` if it has none.
        is_sound: Whether its log can be read.
    """

    checkpoints: int
    updated_at: str
    is_sound: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """A log to choose.

    Attributes:
        path: The log's path from the store's root.
        thread_id: The thread, or `""` if neither log can be read.
        shared: How many checkpoints both branches have.
        ours: The branch that is checked out; `None` if it has deleted the thread.
        theirs: The other one.
    """

    path: str
    thread_id: str
    shared: int
    ours: Side | None
    theirs: Side | None

    @property
    def commands(self) -> dict[str, str]:
        """What to type in the store's root to keep the log of either side, by its name."""
        sides = {"ours": self.ours, "theirs": self.theirs}
        return {name: self._command(name, gone=side is None) for name, side in sides.items()}

    def _command(self, side: str, *, gone: bool) -> str:
        if gone:
            return f"git rm --quiet -r -- {Path(self.path).parent.as_posix()}"
        return f"git checkout --{side} -- {self.path} && git add -- {self.path}"


def decisions(root: Path) -> list[Decision]:
    """Return the threads of a store that git holds in conflict; none where there is no git."""
    return [_decision(conflict) for conflict in conflicts(root) if Path(conflict.path).name == LOG]


def cell_conflicts(root: Path) -> list[Conflict]:
    """Return the cells of a store that git holds in conflict: both branches have changed them, or made them."""
    return [conflict for conflict in conflicts(root) if _is_of_cell(Path(conflict.path).parts)]


def _is_of_cell(parts: Sequence[str]) -> bool:
    return parts[0] == SHARED or parts[2:3] == (CELLS,)


def _decision(conflict: Conflict) -> Decision:
    ours, theirs = (_records(content, conflict.path) for content in (conflict.ours, conflict.theirs))
    pairs = zip(ours or (), theirs or (), strict=False)
    shared = next((place for place, (one, other) in enumerate(pairs) if one[1] != other[1]), None)
    shared = min(len(ours or ()), len(theirs or ())) if shared is None else shared
    first = next((records[0][0] for records in (ours, theirs) if records), {})
    return Decision(
        conflict.path,
        str(first.get("id", "")),
        len(_times((ours or theirs or [])[:shared])),
        _side(conflict.ours, ours, shared),
        _side(conflict.theirs, theirs, shared),
    )


def _records(content: bytes | None, where: str) -> Records | None:
    """Return the records of a log; `None` where there is none, or it cannot be read."""
    try:
        return None if content is None else committed(content, 0, where)[0]
    except CorruptStore:
        return None


def _side(content: bytes | None, records: Records | None, shared: int) -> Side | None:
    if content is None:
        return None
    times = _times(records or ())
    return Side(len(_times((records or [])[shared:])), times[-1] if times else "", records is not None)


def _times(records: Sequence[tuple[dict[str, object], bytes]]) -> list[str]:
    return [str(fields.get("at", "")) for fields, _ in records if fields.get("k") == "ckpt"]
