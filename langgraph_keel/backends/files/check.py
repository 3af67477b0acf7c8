"""Checks and repairs a store of files; repairs move unreadable files aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import orjson

from langgraph_keel.backends.files.cells import SHARED, Shelves, key_in, read_cell
from langgraph_keel.backends.files.disk import Folder, directory_of, thread_of
from langgraph_keel.backends.files.git import Conflict, Decision, cell_conflicts, commands_to_keep, decisions
from langgraph_keel.backends.files.index import CHANGED, INDEX
from langgraph_keel.backends.files.listing import id_of
from langgraph_keel.backends.files.log import Bodies, Line, Replica, blobs_in, line_of, lines_in, parse_line
from langgraph_keel.backends.files.mark import Mark
from langgraph_keel.backends.files.thread import BLOBS, CELLS, LOG, ThreadFiles, new_epoch
from langgraph_keel.backends.files.values import check_record
from langgraph_keel.display.text import count_of
from langgraph_keel.errors import CorruptStore, NewerFormat
from langgraph_keel.retention.check import Finding

_DAMAGED = ".damaged-"
_ADVICE = (
    "restore the file from git or a backup to lose nothing; otherwise `keel repair` moves it aside, and its content is "
    "lost: if it recorded a tool call, the tool would be called again"
)


def stray_finding(path: Path, thread_id: str | None = None) -> Finding:
    """Return the finding for a file that is not Keel's."""
    return Finding("harmless", thread_id, str(path), "not a file of Keel's; it is ignored")


def list_leftovers(directory: Path, thread_id: str | None = None) -> list[Finding]:
    """Return a finding for each file that an interrupted write left below a directory."""
    message = "left by an interrupted write"
    return [Finding("harmless", thread_id, str(path), message) for path in sorted(directory.glob("**/*.tmp"))]


def check_cells(shelves: Shelves, thread_id: str | None = None) -> Iterator[Finding]:
    """Check all cells of a thread, or all shared cells."""
    try:
        kinds = shelves.kinds()
    except CorruptStore as error:
        kinds = []
        yield _obstacle(error, shelves.directory, thread_id)
    for kind in kinds:
        try:
            with suppress(FileNotFoundError), shelves.open(kind) as folder:
                yield from _check_folder(folder, thread_id)
        except CorruptStore as error:
            yield _obstacle(error, shelves.directory / directory_of(kind), thread_id)


def _obstacle(error: CorruptStore, path: Path, thread_id: str | None) -> Finding:
    return Finding("decide", thread_id, str(path), str(error), "remove it, or restore it from a backup")


def _check_folder(folder: Folder, thread_id: str | None) -> Iterator[Finding]:
    for name in sorted(folder.names()):
        key, path = key_in(name), folder.path / name
        if key is None and _DAMAGED not in name and not name.endswith(".tmp"):
            yield stray_finding(path, thread_id)
        try:
            if key is not None:
                read_cell(folder, key)
        except CorruptStore as error:
            yield Finding("repairable", thread_id, str(path), str(error), _ADVICE)


def put_cell_aside(root: Path, path: Path) -> str:
    """Empty a damaged cell and move its file aside; return a message."""
    aside = f"{path.name}{_DAMAGED}{token_hex(4)}"
    try:
        with Folder.at(root, path.parent.relative_to(root).parts) as folder:
            folder.move(path.name, aside)
    except FileNotFoundError:
        return "it was removed in the meantime"
    return f"the cell is empty now; the damaged file is {path.with_name(aside)}"


def explain_cell_conflict(conflict: Conflict) -> Finding:
    """Return the finding for a cell that both branches have changed."""
    sides = {"ours": conflict.ours, "theirs": conflict.theirs}
    message = "both branches have changed this cell" + "".join(
        f"\n  {name} has emptied it" for name, content in sides.items() if content is None
    )
    commands = commands_to_keep(conflict.path, sides, f"git rm --quiet -- {conflict.path}")
    advice = "\n".join(f"to keep {name}: {command}" for name, command in commands.items())
    parts, thread_id = Path(conflict.path).parts, None
    with suppress(CorruptStore):
        thread_id = None if parts[0] == SHARED else thread_of(parts[1])
    return Finding("decide", thread_id, conflict.path, message, advice)


@dataclass(slots=True)
class Salvage:
    """The readable part of a damaged log."""

    kept: list[Line]  # the lines of a consistent log
    # Offsets of lines of which only the checksum is wrong: edited by hand, or with a flipped bit. They are kept with
    # their present content.
    changed: list[int]
    # Offsets and defects of damaged lines, and of lines that depend on them.
    dropped: list[tuple[int, str]]


def salvage_log(files: ThreadFiles, data: bytes) -> Salvage:
    """Return the consistent lines of a log: transactions without missing items."""
    replica = Replica(files.thread_id, files.mark.migrations)
    salvage, bodies = Salvage([], [], []), Bodies(files.load, str(files.log))
    items: set[tuple[str, str, int]] = set()
    for line in _complete_lines(files, data):
        try:
            try:
                fields = parse_line(line)
            except ValueError:  # if only its checksum is wrong, it gets a new one
                fields = check_record(orjson.loads(memoryview(line)))
                fields.pop("crc", None)
                offset, line = line.offset, Line(line_of(fields)[:-1])
                line.offset = offset
                salvage.changed.append(offset)
            if fields["k"] == "ckpt":
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


def _complete_lines(files: ThreadFiles, data: bytes) -> Iterator[Line]:
    """Return the lines of a log, with a new first line if that is missing."""
    lines = lines_in(data)
    first = next(lines, None)
    try:
        is_there = first is not None and parse_line(first)["k"] == "thread"
    except (ValueError, KeyError):
        is_there = False
    if not is_there:
        line = Line(files.first_line(new_epoch())[:-1])
        line.offset = 0
        yield line
    if first is not None:
        yield first
    yield from lines


def _require_items(fields: Mapping[str, Any], items: set[tuple[str, str, int]]) -> None:
    for channel, ref in fields["ch"].items():
        runs = [run for runs in ref.values() for run in runs] if isinstance(ref, dict) else ()
        for number in (number for lo, hi in runs for number in range(lo, hi)):
            if (fields.get("ns", ""), channel, number) not in items:
                raise CorruptStore(f"checkpoint {fields['id']!r} needs item {number} of {channel!r}, which is missing")


class Check:
    """A check of a whole store."""

    def __init__(self, root: Path, timeout: float, mark: Mark) -> None:
        self._mark = mark
        self._root = root
        self._threads = root / "threads"
        self._timeout = timeout

    def findings(self) -> Iterator[Finding]:
        """Check everything, and change nothing."""
        yield from map(_explain_conflict, decisions(self._root))
        yield from map(explain_cell_conflict, cell_conflicts(self._root))
        for path in sorted(self._threads.iterdir()) if self._threads.exists() else ():
            if path.name in (".gitattributes", ".gitignore", INDEX, CHANGED):
                continue
            thread_id = id_of(path) if path.is_dir() else None
            if thread_id is not None and not path.name.startswith("."):
                yield from self._check_thread(path, thread_id)
            elif not path.name.startswith(".") and (path / CELLS).is_dir():  # a thread with a long id and no log
                yield from list_leftovers(path)
                yield from check_cells(ThreadFiles(path, "", self._timeout, self._mark).cells)
            elif path.name.startswith((".new-", ".gone-")):
                message = "left by an interrupted creation or deletion of a thread"
                yield Finding("harmless", None, str(path), message)
            else:
                yield Finding("harmless", None, str(path), "not part of a thread; it is ignored")
        yield from list_leftovers(self._root / SHARED)
        yield from check_cells(Shelves(self._root, (SHARED,), self._timeout))

    def _check_thread(self, path: Path, thread_id: str) -> Iterator[Finding]:
        files = ThreadFiles(path, thread_id, self._timeout, self._mark)
        yield from list_leftovers(path, thread_id)
        yield from check_cells(files.cells, thread_id)
        if not files.log.exists():
            # Cells need no log, and before the first cell is written the directory is empty.
            if any(each.name != CELLS for each in path.iterdir()):
                yield Finding("decide", thread_id, str(path), "it contains no log", "remove it, or restore the log")
            return
        data = files.log.read_bytes()
        replica = Replica(thread_id, self._mark.migrations)
        try:
            replica.read(data, str(files.log))
        except NewerFormat:
            raise
        except CorruptStore as error:
            yield from _explain_damage(files, data, error)
            return
        yield from _check_values(files, data[: replica.end])
        if replica.end < len(data):
            size = len(data) - replica.end
            message = f"an interrupted write left {size} bytes; the next write to this thread cuts them off"
            yield Finding("harmless", thread_id, str(files.log), message, offset=replica.end)

    def repair(self) -> Iterator[Finding]:
        """Replace damaged logs by their readable lines; move damaged files aside."""
        for finding in list(self.findings()):
            path = Path(finding.path)
            if finding.kind != "repairable":
                yield finding
            elif path.name == LOG:
                files = ThreadFiles(path.parent, finding.thread_id or "", self._timeout, self._mark)
                yield replace(finding, advice=_repair_log(files))
            else:
                yield replace(finding, advice=put_cell_aside(self._root, path))


def _explain_conflict(decision: Decision) -> Finding:
    sides = {"ours": decision.ours, "theirs": decision.theirs}
    lines = [f"both branches have continued this thread after {count_of(decision.shared, 'checkpoint')}:"]
    for name, side in sides.items():
        what = "has deleted it" if side is None else f"has added {side.checkpoints} more, the last at {side.updated_at}"
        broken = "" if side is None or side.is_sound else " (its log is damaged)"
        lines.append(f"  {name} {what}{broken}")
    advice = "\n".join(f"to keep {name}: {command}" for name, command in decision.commands.items())
    return Finding("decide", decision.thread_id or None, decision.path, "\n".join(lines), advice)


def _explain_damage(files: ThreadFiles, data: bytes, error: CorruptStore) -> Iterator[Finding]:
    salvage = salvage_log(files, data)
    offset = min([*salvage.changed, *(at for at, _ in salvage.dropped)], default=None)
    message = f"{error}\n{len(salvage.kept)} lines can be read"
    if salvage.changed:
        message += (
            f", {len(salvage.changed)} of them changed since they were written (repair keeps their present content)"
        )
    if salvage.dropped:
        message += f"; {len(salvage.dropped)} are damaged, or depend on damaged ones:"
    shown = [f"  byte {at}: {why}" for at, why in salvage.dropped[:10]]
    more = [f"  and {len(salvage.dropped) - 10} more"] if len(salvage.dropped) > 10 else []
    advice = "restore the log from git or a backup to lose least; otherwise `keel repair` keeps the readable lines"
    yield Finding("repairable", files.thread_id, str(files.log), "\n".join([message, *shown, *more]), advice, offset)


def _check_values(files: ThreadFiles, data: bytes) -> Iterator[Finding]:
    bodies, named = Bodies(files.load, str(files.log)), set[str]()
    for line in lines_in(data):
        fields = parse_line(line)
        named.update(f"{blob}.json" for blob in blobs_in(fields))
        try:
            bodies.check(fields, line)
        except CorruptStore as error:
            yield Finding("lost", files.thread_id, str(files.log), str(error), "restore the file", line.offset)
    folder = files.directory / BLOBS
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        if path.name not in named and path.suffix != ".tmp":
            yield Finding("harmless", files.thread_id, str(path), "a value that no line of the log refers to")


def _repair_log(files: ThreadFiles) -> str:
    """Replace a log by one with its readable lines; return a message."""
    with files.writing() as handle:
        if handle is None:
            return "it was removed in the meantime"
        data = files.log.read_bytes()
        salvage = salvage_log(files, data)
        aside = files.put_aside(data)
        with files.replace_log(handle, b"".join(line + b"\n" for line in salvage.kept)):
            return f"repaired; the damaged log is {aside}"
