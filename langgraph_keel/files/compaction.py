"""Logs made anew: without what is gone (compaction), and for another thread (a copy)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from langgraph_keel.core.records import Graph, Run
from langgraph_keel.files.disk import read
from langgraph_keel.files.lines import Bodies, Draft, Line, blobs_in, parsed
from langgraph_keel.files.log import Records, Replica, committed
from langgraph_keel.files.threads import BLOBS, ThreadFiles, first_line, new_epoch

Live = Mapping[tuple[str, str], Sequence[Run]]


def compact(files: ThreadFiles, live: Live, graph: Graph) -> int:
    """Replace the log by one without removed entries, and without items below `graph.ends` that are not live.

    Returns:
        How many items went.
    """
    with files.writing() as handle:
        replica = files.read_on(handle) if handle is not None else None
        if handle is None or replica is None or replica.thread is None or replica.thread.epoch != graph.epoch:
            return 0
        records, _ = committed(read(handle, 0)[: replica.end], 0, str(files.log))
        compaction = _Compaction(replica, live, graph, Bodies(files.load, str(files.log)))
        draft = compaction.of(records)
        files.save(draft.blobs, files.directory)
        with files.replaced(handle, b"".join(draft.lines)):
            _remove_blobs(files, draft.lines)
        return compaction.removed


class _Compaction:
    """Which lines stay, and those that change.

    Attributes:
        removed: How many items were left out.
    """

    def __init__(self, replica: Replica, live: Live, graph: Graph, bodies: Bodies) -> None:
        assert replica.thread is not None
        self._replica, self._thread = replica, replica.thread
        self._live, self._graph, self._bodies = live, graph, bodies
        self._entries = {_offset(record.entry.header): record for record in self._thread.records.values()}
        self._batches = {_offset(batch.body) for batches in self._thread.batches.values() for batch in batches}
        self._ends: dict[tuple[str, str], int] = {}
        self._draft = Draft()
        self.removed = 0

    def of(self, records: Records) -> Draft:
        """Return what the new log is made of."""
        epoch = str(self._thread.epoch)
        self._draft.lines.append(first_line(self._replica.thread_id, epoch, self._replica.seq))
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
            return self._item_stays((fields.get("ns", ""), fields["ch"]), fields["n"])
        if kind == "ckpt":
            return self._entry_stays(line, fields["seq"])
        return kind == "writes" and line.offset in self._batches

    def _item_stays(self, key: tuple[str, str], number: int) -> bool:
        is_live = any(lo <= number < hi for lo, hi in self._live.get(key, ()))
        if is_live or number >= self._graph.ends.get(key, 0):
            self._ends[key] = number + 1
            return True
        self.removed += 1
        return False

    def _entry_stays(self, line: Line, seq: int) -> bool:
        record = self._entries.get(line.offset)
        if record is not None and record.ghost:
            self._draft.checkpoint(record, seq, self._bodies.of(record.entry.header))
        return record is not None and not record.ghost


def _offset(body: bytes) -> int:
    assert isinstance(body, Line)
    return body.offset


def _blobs_of(lines: Sequence[bytes]) -> set[str]:
    return {blob for line in lines for blob in blobs_in(parsed(line[:-1]))}


def _remove_blobs(files: ThreadFiles, lines: Sequence[bytes]) -> None:
    """Remove the files of large values that no line refers to. A reader of the old log looks at the new one then."""
    kept = {f"{blob}.json" for blob in _blobs_of(lines)}
    folder = files.directory / BLOBS
    for path in folder.iterdir() if folder.exists() else ():
        if path.name not in kept:
            with suppress(FileNotFoundError):
                path.unlink()


def copy(source: ThreadFiles, target: ThreadFiles) -> bool:
    """Make a thread of all that another one holds.

    Returns:
        Whether it was made: `False` if there is one already.
    """
    if target.log.exists():
        return False
    with source.writing() as handle:
        if handle is None:
            return True
        replica = source.read_on(handle)
        records, _ = committed(read(handle, 0)[: replica.end], 0, str(source.log))
        lines = [first_line(target.thread_id, new_epoch(), replica.seq), *(line + b"\n" for _, line in records[1:])]
        return target.create(lines, {blob: source.load(blob) for blob in _blobs_of(lines)})
