"""Space that returns, in files: a removed thread or cell is gone at once, so only what was interrupted is left over."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from langgraph_keel.core.reclaiming import Reclaimed
from langgraph_keel.files.driver import FileDriver

MADE = 60.0
"""Seconds after which a thread that is still being made is not: it takes milliseconds. Who is late gets an error."""


def reclaim(driver: FileDriver) -> Reclaimed:
    """Remove what interrupted writes have left: threads that were being made or removed, and new contents of cells."""
    driver.prepare(writes=True)
    before = size(driver.root)
    driver.clean(MADE)
    cells = driver.cells(None)
    for kind in cells.kinds():
        with suppress(FileNotFoundError), cells.open(kind) as folder:
            folder.clear()
    return Reclaimed(
        before,
        size(driver.root),
        "no interrupted write has left anything; deleted threads gave their space back at once",
    )


def elsewhere(root: Path) -> Sequence[str]:
    """Return where else the content of a store may be: a sentence each."""
    return ["Backups and copies of the directory.", *_in_git(root), *_damaged(root)]


def _in_git(root: Path) -> Iterator[str]:
    for directory in (root, *root.parents):
        if (directory / ".git").exists():
            yield (
                f"The history of the git repository at {directory}: it keeps what was ever committed, in every clone, "
                "until it is rewritten (git filter-repo) and collected (git gc --prune=now)."
            )
            return


def _damaged(root: Path) -> Iterator[str]:
    found = [*root.glob("shared/*/*.damaged-*")]
    if found:
        yield f"Damaged cells that a repair has put aside, such as {found[0]}: read them, and remove them by hand."


def size(root: Path) -> int:
    """Return how many bytes all files of a store take."""
    return sum(_size_of(Path(at, name)) for at, _, names in os.walk(root) for name in names)


def _size_of(path: Path) -> int:
    with suppress(FileNotFoundError):  # removed at this moment
        return path.stat(follow_symlinks=False).st_size
    return 0
