"""What is in the directories of cells and was not written so: a part of `check`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from langgraph_keel.errors import CorruptStore
from langgraph_keel.files.cells import key_in
from langgraph_keel.files.findings import Finding, stray
from langgraph_keel.files.folders import Folder
from langgraph_keel.files.names import directory_of, thread_of
from langgraph_keel.files.repository import Conflict
from langgraph_keel.files.shelves import SHARED, Shelves, held

_DAMAGED = ".damaged-"
_ADVICE = (
    "a copy from git or from a backup loses nothing; otherwise `keel repair` puts the file aside, and what it told is "
    "forgotten: a tool whose call stood there would be called again"
)


def cell_findings(shelves: Shelves, thread_id: str | None = None) -> Iterator[Finding]:
    """Look at all cells of a thread, or at those that all share."""
    try:
        kinds = shelves.kinds()
    except CorruptStore as error:
        kinds = []
        yield _in_the_way(error, shelves.directory, thread_id)
    for kind in kinds:
        try:
            with suppress(FileNotFoundError), shelves.open(kind) as folder:
                yield from _in_folder(folder, thread_id)
        except CorruptStore as error:
            yield _in_the_way(error, shelves.directory / directory_of(kind), thread_id)


def _in_the_way(error: CorruptStore, path: Path, thread_id: str | None) -> Finding:
    return Finding("decide", thread_id, str(path), str(error), "remove it, or bring back what was there")


def _in_folder(folder: Folder, thread_id: str | None) -> Iterator[Finding]:
    for name in sorted(folder.names()):
        key, path = key_in(name), folder.path / name
        if key is None and _DAMAGED not in name and not name.endswith(".tmp"):
            yield stray(path, thread_id)
        try:
            if key is not None:
                held(folder, key)
        except CorruptStore as error:
            yield Finding("repairable", thread_id, str(path), str(error), _ADVICE)


def cell_put_aside(root: Path, path: Path) -> str:
    """Take a damaged cell for empty from now on, and keep its file beside; return what came of it."""
    aside = f"{path.name}{_DAMAGED}{token_hex(4)}"
    try:
        with Folder.at(root, path.parent.relative_to(root).parts) as folder:
            folder.move(path.name, aside)
    except FileNotFoundError:
        return "it is gone by now"
    return f"the cell is empty now; the damaged file is {path.with_name(aside)}"


def conflict_of_cell(conflict: Conflict) -> Finding:
    """Return what a person must decide where two branches have both changed a cell."""
    sides = {"ours": conflict.ours, "theirs": conflict.theirs}
    message = "two branches have both changed this cell" + "".join(
        f"\n  {name} has emptied it" for name, content in sides.items() if content is None
    )
    advice = "\n".join(f"to keep {name}: {_command(conflict.path, name, side)}" for name, side in sides.items())
    return Finding("decide", _thread_in(Path(conflict.path)), conflict.path, message, advice)


def _command(path: str, side: str, content: bytes | None) -> str:
    if content is None:
        return f"git rm --quiet -- {path}"
    return f"git checkout --{side} -- {path} && git add -- {path}"


def _thread_in(path: Path) -> str | None:
    with suppress(CorruptStore):
        return None if path.parts[0] == SHARED else thread_of(path.parts[1])
    return None
