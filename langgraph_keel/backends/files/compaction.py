"""Makes new logs from old ones: compacted, copied up to an entry, or sealed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from langgraph_keel.backends.files.disk import read
from langgraph_keel.backends.files.log import (
    Bodies,
    Draft,
    Line,
    Records,
    blobs_in,
    format_in,
    line_of,
    parse_line,
    read_committed,
    unseal,
)
from langgraph_keel.backends.files.thread import BLOBS, ThreadFiles
from langgraph_keel.engine.encoding.bodies import SEALED
from langgraph_keel.engine.records import Batch, Graph, Replacement, Row, Run, Stamp
from langgraph_keel.engine.thread import Thread, place_of_writes, sequence_of
from langgraph_keel.errors import CorruptStore

_log = logging.getLogger(__name__)

Live = Mapping[tuple[str, str], Sequence[Run]]
Ends = Mapping[tuple[str, str], int]


def compact(files: ThreadFiles, live: Live, graph: Graph) -> int:
    """Rewrite a log without removed entries and dead items below `graph.ends`."""
    removed = 0

    def draft_of(thread: Thread, seq: int, records: Records) -> Draft:
        nonlocal removed
        compaction = Compaction(thread, live, graph.ends, Bodies(files.load, str(files.log)))
        draft = compaction.of(records, files.first_line(str(thread.epoch), seq))
        removed = compaction.removed
        return draft

    _rewrite(files, graph.epoch, draft_of)
    return removed


def seal(files: ThreadFiles, new: Replacement) -> None:
    """Rewrite a log with sealed records; see `Store.replace_plain`."""

    def draft_of(thread: Thread, seq: int, records: Records) -> Draft:
        return _Sealing(thread, new, Bodies(files.load, str(files.log))).of(records)

    _rewrite(files, new.epoch, draft_of)


def _rewrite(files: ThreadFiles, epoch: Stamp | None, draft_of: Callable[[Thread, int, Records], Draft]) -> None:
    """Replace the log by a draft, unless the epoch of the thread has changed.

    `draft_of` gets the thread, its highest sequence number and its records.
    """
    with files.writing() as handle:
        replica = files.read_on(handle) if handle is not None else None
        if handle is None or replica is None or replica.thread is None or replica.thread.epoch != epoch:
            return
        old = read(handle, 0)[: replica.end]
        records, _ = read_committed(old, 0, str(files.log))
        draft = draft_of(replica.thread, replica.seq, records)
        if b"".join(draft.lines) == old:
            _remove_blobs(files, draft.lines)
            return
        files.save(draft.blobs, files.directory)
        with files.replace_log(handle, b"".join(draft.lines)):
            _remove_blobs(files, draft.lines)


def carry_over(files: ThreadFiles, number: int, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Rewrite a log in another format, unless it has that format or is damaged."""
    with files.writing() as handle:
        data = b"" if handle is None else read(handle, 0)
        if handle is None or (format_in(data) or 0) >= number:
            return
        try:
            records, _ = read_committed(data, 0, str(files.log), unseal)
        except CorruptStore as error:
            _log.warning("not migrated to format %d, and unreadable until it is: %s", number, error)
            return
        kept = [{name: each for name, each in fields.items() if name != "crc"} for fields, _ in records]
        changed = [change(fields) for fields in kept if fields["k"] != "index"]
        lines = [line_of(fields if at else {**fields, "format": number}) for at, fields in enumerate(changed) if fields]
        with files.replace_log(handle, b"".join(lines)):
            pass


class Compaction:
    """Selects the lines of a log to keep, and rewrites those of changed entries.

    `thread` is the new thread, a part of the old log's; `bodies` reads the lines of the old log. The new log keeps the
    `live` items and, if `ends` is given, all items from there on. Ghosts and the entries in `anew` get new lines.
    """

    def __init__(
        self, thread: Thread, live: Live, ends: Ends | None, bodies: Bodies, anew: Collection[Stamp] = frozenset()
    ) -> None:
        self._thread, self._live, self._upto, self._bodies = thread, live, ends, bodies
        self._entries = {sequence_of(stamp): record for stamp, record in thread.records.items()}
        self._anew = {stamp for stamp, record in thread.records.items() if record.ghost or stamp in anew}
        self._batches = {_offset(batch.body) for batches in self._thread.batches.values() for batch in batches}
        self._ends: dict[tuple[str, str], int] = {}
        self._draft = Draft()
        self.removed = 0

    def of(self, records: Records, begin: bytes) -> Draft:
        """Return the lines and blobs of the new log; `begin` is its first line."""
        self._draft.lines.append(begin)
        for fields, line in records:
            if self._stays(fields, line):
                self._draft.lines.append(line + b"\n")
        for (ns, channel), log in self._thread.logs.items():
            if self._ends.get((ns, channel), 0) < log.end:
                self._draft.add("end", ns, ch=channel, n=log.end)
        return self._draft

    def _stays(self, fields: Mapping[str, Any], line: Line) -> bool:
        kind = fields["k"]
        if kind == "item":
            key, number, count = (fields.get("ns", ""), fields["ch"]), fields["n"], fields.get("c", 1)
            is_live = any(lo < number + count and number < hi for lo, hi in self._live.get(key, ()))
            if is_live or (self._upto is not None and number >= self._upto.get(key, 0)):
                self._ends[key] = number + count
                return True
            self.removed += count
            return False
        if kind == "ckpt":
            record = self._entries.get(fields["seq"])
            if record is not None and record.entry.stamp in self._anew:
                self._draft.checkpoint(record, fields["seq"], self._bodies.of(record.entry.header))
                return False
            return record is not None
        return kind == "writes" and line.offset in self._batches


class _Sealing:
    """Copies the lines of a log that need no sealing, and seals the others."""

    def __init__(self, thread: Thread, new: Replacement, bodies: Bodies) -> None:
        self._thread, self._headers, self._draft = thread, new.headers, Draft()
        self._stamps = {sequence_of(stamp): stamp for stamp in thread.records}
        self._bodies = bodies
        self._rows: dict[tuple[str, str], dict[int, Row]] = {}
        for key, rows in new.rows.items():
            log = thread.log(*key)
            there = [row for row in rows if (old := log.rows.get(row.lo)) and self._is_same(old, row)]
            self._rows[key] = {number: row for row in there for number in range(row.lo, row.lo + row.count)}
        self._batches: dict[int, Batch] = {}
        for each in new.writes:
            ns, checkpoint_id, number = place_of_writes(each)
            batches = thread.batches.get((ns, checkpoint_id), [])
            if number < len(batches) and self._is_plain(batches[number].body):
                self._batches[_offset(batches[number].body)] = each.batch

    def _is_plain(self, body: bytes) -> bool:
        return not self._bodies.of(body).startswith(SEALED)

    def _is_same(self, old: Row, row: Row) -> bool:
        return old.count == row.count and self._is_plain(old.body)

    def of(self, records: Records) -> Draft:
        """Return the lines and blobs of the new log."""
        for fields, line in records:
            if not self._seal(fields, line):
                self._draft.lines.append(line + b"\n")
        return self._draft

    def _seal(self, fields: Mapping[str, Any], line: Line) -> bool:
        """Draft the replacement of a line; return `False` if the line stays."""
        kind, ns, draft = fields["k"], fields.get("ns", ""), Draft()
        if kind == "item" and (row := self._rows.get((ns, fields["ch"]), {}).get(fields["n"])):
            if fields["n"] == row.lo:
                draft.items(ns, fields["ch"], row.lo, [row])
        elif kind == "ckpt" and (stamp := self._stamps.get(fields["seq"], "")) in self._headers:
            record = self._thread.records[stamp]
            if not self._is_plain(record.entry.header):
                return False
            draft.checkpoint(record, fields["seq"], self._headers[stamp])
        elif kind == "writes" and line.offset in self._batches:
            draft.writes(ns, fields["id"], self._batches[line.offset])
        else:
            return False
        self._draft.lines += draft.lines
        self._draft.blobs |= draft.blobs
        return True


def _offset(body: bytes) -> int:
    assert isinstance(body, Line)
    return body.offset


def blobs_of(lines: Sequence[bytes]) -> set[str]:
    """Return the names of the blobs that lines refer to."""
    return {blob for line in lines if b'"$blob"' in line for blob in blobs_in(parse_line(line[:-1]))}


def _remove_blobs(files: ThreadFiles, lines: Sequence[bytes]) -> None:
    """Remove blobs that no line refers to.

    A reader of the old log that misses one reads the new log.
    """
    kept = {f"{blob}.json" for blob in blobs_of(lines)}
    folder = files.directory / BLOBS
    for path in folder.iterdir() if folder.exists() else ():
        if path.name not in kept:
            with suppress(FileNotFoundError):
                path.unlink()
