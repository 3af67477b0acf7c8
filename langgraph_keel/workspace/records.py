"""The options of a workspace, and the results of its operations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from langgraph_keel.display import html
from langgraph_keel.display.text import count_of, plain
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput

_SHOWN = 20
"""Maximum paths of each kind in a text."""
_FATES = {
    "written": "written",
    "removed": "removed",
    "set_aside": "set aside, changed since the last snapshot or never saved",
    "left": "left alone, new since the last snapshot",
    "skipped": "not restored, in a nested repository",
    "not_saved": "not saved",
}


@publish
@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A directory whose files are saved with each root checkpoint.

    Use it as `SqliteSaver("agent.db", workspace=Workspace("w"))`.

    Args:
        directory: The directory; created if it is missing.
        ignore: Patterns of paths that are not saved, as in a `.gitignore` file; they override such files.
        repository: The directory of the shadow repository, a separate one for each store. By default it is next to the
            store, with the suffix `.workspace`; required for stores on servers and in memory.
        largest: Maximum size of a saved file in bytes; 5,000,000 by default.

    Raises:
        InvalidInput: If `ignore` is not a list of patterns, or `largest` is not a positive number.
    """

    directory: str | os.PathLike[str] = field(kw_only=False)
    ignore: Sequence[str] = ()
    repository: str | os.PathLike[str] | None = None
    largest: int = 5_000_000

    def __post_init__(self) -> None:
        """Validate the values."""
        is_list = not isinstance(self.ignore, str)
        if not is_list or not all(isinstance(each, str) and each.isprintable() for each in self.ignore):
            raise InvalidInput(f"ignore must be a list of patterns, such as ['.env'], not {self.ignore!r:.100}")
        if type(self.largest) is not int or self.largest < 1:
            raise InvalidInput(f"largest must be a number of bytes, at least 1, not {self.largest!r:.100}")


class _Shown:
    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def _repr_html_(self) -> str:
        return html.pre(str(self))


@publish
@dataclass(frozen=True, slots=True)
class WorkspaceRestore(_Shown):
    """The result or preview of a restore.

    Paths are relative to the directory (`os.fsencode` gives their bytes).

    Attributes:
        directory: The directory.
        checkpoint_id: The checkpoint whose files are restored.
        written: Files and links that are created or replaced.
        removed: Files and links of the last snapshot that the checkpoint does not have.
        set_aside: Paths in the way that have changed since the last snapshot, or were never saved.
        left: Files that are new since the last snapshot and not in the way. They are not touched.
        skipped: Paths of the checkpoint that are not restored, as they are in a nested repository now.
        not_saved: Paths of the directory that no snapshot contains, with the reason.
        aside: The directory to which `set_aside` was moved; empty if nothing was moved.
        is_done: Whether it was done; false for a preview.
    """

    directory: str
    checkpoint_id: str
    written: Sequence[str] = ()
    removed: Sequence[str] = ()
    set_aside: Sequence[str] = ()
    left: Sequence[str] = ()
    skipped: Sequence[str] = ()
    not_saved: Mapping[str, str] = field(default_factory=dict)
    aside: str = ""
    is_done: bool = False

    def __str__(self) -> str:
        """Return a description of the result, path by path."""
        lines = [f"{self.directory} {'was' if self.is_done else 'would be'} restored to {self.checkpoint_id}"]
        for name, words in _FATES.items():
            paths = getattr(self, name)
            where = f" in {self.aside}" if name == "set_aside" and self.aside else ""
            rows = [f"{path} ({paths[path]})" for path in paths] if name == "not_saved" else paths
            lines += [f"{count_of(len(rows), 'path')} {words}{where}:"] if rows else []
            lines += [f"  {row}" for row in rows[:_SHOWN]]
            lines += [f"  and {len(rows) - _SHOWN:,} more"] if len(rows) > _SHOWN else []
        return "\n".join(map(plain, lines))


@publish
@dataclass(frozen=True, slots=True)
class WorkspaceDiff(_Shown):
    """The differences between the files of two checkpoints.

    Attributes:
        changes: The change of each path that differs: `"added"`, `"removed"` or `"changed"` (content, kind or mode).
        patch: The difference in git's form, with renames; bytes that are not UTF-8 are replaced.
    """

    changes: Mapping[str, str]
    patch: str

    def __str__(self) -> str:
        """Return the patch, safe to print."""
        return plain(self.patch, keep="\n\t") or "nothing differs"
