"""What is in a store of files and was not written so: damage, leftovers, conflicts of git. And its repair.

The command line shows what is found here (`keel check`, `keel repair`). Nothing is ever thrown away: what cannot be
read is moved aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from langgraph_keel.errors import CorruptStore, NewerFormat
from langgraph_keel.files.branches import Decision, cell_conflicts, decisions
from langgraph_keel.files.cell_check import cell_findings, cell_put_aside, conflict_of_cell
from langgraph_keel.files.findings import Finding, left
from langgraph_keel.files.lines import Bodies, Line, blobs_in, line_of, parsed
from langgraph_keel.files.listing import id_of
from langgraph_keel.files.log import Replica, lines_in
from langgraph_keel.files.shapes import checked
from langgraph_keel.files.shelves import SHARED, Shelves
from langgraph_keel.files.threads import BLOBS, CELLS, LOG, ThreadFiles, first_line, new_epoch


@dataclass(slots=True)
class Salvage:
    """What of a log can be read, whatever stands between.

    Attributes:
        kept: Lines that a sound log can be made of.
        changed: Where lines stand that are whole but for their checksum: somebody has edited them, or a letter has
            flipped. They are kept as they are now.
        dropped: Lines that are damaged, or say what cannot be without one that is.
    """

    kept: list[Line]
    changed: list[int]
    dropped: list[tuple[int, str]]


def salvaged(files: ThreadFiles, data: bytes) -> Salvage:
    """Return the lines of a log that still make sense together: whole transactions, and no item that is missing."""
    replica, salvage, bodies = Replica(files.thread_id), Salvage([], [], []), Bodies(files.load, str(files.log))
    items: set[tuple[str, str, int]] = set()
    for line in _beginning(files, data):
        try:
            fields, line = _whole(line, salvage.changed)
            _require_items(fields, items)
            bodies.check(fields, line)
            replica.apply(fields, line)
        except (ValueError, CorruptStore, KeyError, TypeError, AttributeError) as error:
            salvage.dropped.append((line.offset, str(error)))
            continue
        salvage.kept.append(line)
        if fields["k"] == "item":
            items.add((fields.get("ns", ""), fields["ch"], fields["n"]))
    return salvage


def _whole(line: Line, changed: list[int]) -> tuple[dict[str, Any], Line]:
    """Return a record and its line; one that is whole but for its checksum gets another one."""
    try:
        return parsed(line), line
    except ValueError:
        fields = checked(orjson.loads(memoryview(line)))
        fields.pop("crc", None)
        anew = Line(line_of(fields)[:-1])
        anew.offset = line.offset
        changed.append(line.offset)
        return fields, anew


def _beginning(files: ThreadFiles, data: bytes) -> Iterator[Line]:
    """Return the lines of a log; before them what it should begin with, if it does not."""
    lines = lines_in(data)
    first = next(lines, None)
    try:
        is_there = first is not None and parsed(first)["k"] == "thread"
    except (ValueError, KeyError):
        is_there = False
    if not is_there:
        line = Line(first_line(files.thread_id, new_epoch())[:-1])
        line.offset = 0
        yield line
    if first is not None:
        yield first
    yield from lines


def _require_items(fields: Mapping[str, Any], items: set[tuple[str, str, int]]) -> None:
    if fields["k"] != "ckpt":
        return
    for channel, ref in fields["ch"].items():
        runs = [run for runs in ref.values() for run in runs] if isinstance(ref, dict) else ()
        for number in (number for lo, hi in runs for number in range(lo, hi)):
            if (fields.get("ns", ""), channel, number) not in items:
                raise CorruptStore(f"checkpoint {fields['id']!r} needs item {number} of {channel!r}, which is missing")


class Check:
    """A look at all of a store.

    Args:
        root: Its directory.
        timeout: Seconds that a repair waits for a log.
    """

    def __init__(self, root: Path, timeout: float) -> None:
        self._root = root
        self._threads = root / "threads"
        self._timeout = timeout

    def findings(self) -> Iterator[Finding]:
        """Look at everything, and change nothing.

        Raises:
            NewerFormat: A newer Keel wrote one of the logs.
        """
        unmerged = {decision.path: decision for decision in decisions(self._root)}
        yield from map(_conflict, unmerged.values())
        yield from map(conflict_of_cell, cell_conflicts(self._root))
        for path in sorted(self._threads.iterdir()) if self._threads.exists() else ():
            if path.name in (".gitattributes", ".gitignore"):
                continue
            thread_id = id_of(path) if path.is_dir() else None
            if path.name.startswith(".") or thread_id is None:
                yield from self._nameless(path)
            else:
                yield from self._thread(path, thread_id)
        yield from left(self._root / SHARED)
        yield from cell_findings(Shelves(self._root, (SHARED,), self._timeout))

    def _thread(self, path: Path, thread_id: str) -> Iterator[Finding]:
        files = ThreadFiles(path, thread_id, self._timeout)
        yield from left(path, thread_id)
        yield from cell_findings(files.cells, thread_id)
        if not files.log.exists():
            # Cells are there without one, and an empty directory is what comes before the first of them.
            if any(each.name != CELLS for each in path.iterdir()):
                yield Finding("decide", thread_id, str(path), "there is no log in it", "remove it, or bring it back")
            return
        data = files.log.read_bytes()
        replica = Replica(thread_id)
        try:
            replica.read(data, str(files.log))
        except NewerFormat:
            raise
        except CorruptStore as error:
            yield from _damage(files, data, error)
            return
        yield from _values(files, data[: replica.end])
        if replica.end < len(data):
            size = len(data) - replica.end
            message = f"an interrupted write has left {size} bytes; the next put to this thread cuts them off"
            yield Finding("harmless", thread_id, str(files.log), message, offset=replica.end)

    def _nameless(self, path: Path) -> Iterator[Finding]:
        """Look at what is no thread's; or is one's with a long id, which only its log would tell, but there is none."""
        if not path.name.startswith(".") and (path / CELLS).is_dir():
            yield from left(path)
            yield from cell_findings(ThreadFiles(path, "", self._timeout).cells)
        elif path.name.startswith((".new-", ".gone-")):
            message = "a thread that was being made, or deleted, when that was interrupted"
            yield Finding("harmless", None, str(path), message)
        else:
            yield Finding("harmless", None, str(path), "this is no thread's, and is left alone")

    def repair(self) -> Iterator[Finding]:
        """Make every damaged log anew of what can be read, beside the damaged one; put damaged cells aside.

        Returns:
            What was found, as of before the repair; those that are `repairable` are repaired.
        """
        for finding in list(self.findings()):
            if finding.kind == "repairable":
                yield replace(finding, advice=self._repaired(Path(finding.path), finding.thread_id or ""))
            else:
                yield finding

    def _repaired(self, path: Path, thread_id: str) -> str:
        if path.name == LOG:
            return _repair(ThreadFiles(path.parent, thread_id, self._timeout))
        return cell_put_aside(self._root, path)


def _conflict(decision: Decision) -> Finding:
    sides = {"ours": decision.ours, "theirs": decision.theirs}
    lines = [f"two branches have both gone on with this thread after {decision.shared} checkpoints:"]
    for name, side in sides.items():
        what = "has deleted it" if side is None else f"has put {side.checkpoints} more, the last at {side.updated_at}"
        broken = "" if side is None or side.is_sound else " (its log is damaged)"
        lines.append(f"  {name} {what}{broken}")
    advice = "\n".join(f"to keep {name}: {command}" for name, command in decision.commands.items())
    return Finding("decide", decision.thread_id or None, decision.path, "\n".join(lines), advice)


def _damage(files: ThreadFiles, data: bytes, error: CorruptStore) -> Iterator[Finding]:
    salvage = salvaged(files, data)
    offset = min([*salvage.changed, *(at for at, _ in salvage.dropped)], default=None)
    message = f"{error}\n{len(salvage.kept)} lines can be read"
    if salvage.changed:
        message += (
            f", {len(salvage.changed)} of them changed since they were written (repair keeps them as they are now)"
        )
    if salvage.dropped:
        message += f"; {len(salvage.dropped)} cannot, or not without those:"
    shown = [f"  byte {at}: {why}" for at, why in salvage.dropped[:10]]
    more = [f"  and {len(salvage.dropped) - 10} more"] if len(salvage.dropped) > 10 else []
    advice = "a copy from git or from a backup loses least; otherwise `keel repair` keeps what can be read"
    yield Finding("repairable", files.thread_id, str(files.log), "\n".join([message, *shown, *more]), advice, offset)


def _values(files: ThreadFiles, data: bytes) -> Iterator[Finding]:
    bodies, named = Bodies(files.load, str(files.log)), set[str]()
    for line in lines_in(data):
        fields = parsed(line)
        named.update(f"{blob}.json" for blob in blobs_in(fields))
        try:
            bodies.check(fields, line)
        except CorruptStore as error:
            yield Finding("lost", files.thread_id, str(files.log), str(error), "bring the file back", line.offset)
    folder = files.directory / BLOBS
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        if path.name not in named and path.suffix != ".tmp":
            yield Finding("harmless", files.thread_id, str(path), "a value that no line of the log refers to")


def _repair(files: ThreadFiles) -> str:
    """Put a log in place that holds what can be read; return where the old one is now."""
    with files.writing() as handle:
        if handle is None:
            return "it is gone by now"
        data = files.log.read_bytes()
        salvage = salvaged(files, data)
        aside = files.put_aside(data)
        with files.replaced(handle, _log_of(files, salvage)):
            return f"repaired; the damaged log is {aside}"


def _log_of(files: ThreadFiles, salvage: Salvage) -> bytes:
    return b"".join(line + b"\n" for line in salvage.kept)
