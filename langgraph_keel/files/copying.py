"""Logs made for another thread: of all that one holds, or of what it was at an entry."""

from __future__ import annotations

from langgraph_keel.core.model import as_of, graph_of
from langgraph_keel.core.records import BaseGone, Copied, CopyOutcome, Occupied, Stamp
from langgraph_keel.core.removing import live_runs
from langgraph_keel.files.compaction import Compaction, blobs_of
from langgraph_keel.files.disk import read
from langgraph_keel.files.lines import Bodies, Draft
from langgraph_keel.files.log import Records, Replica, committed
from langgraph_keel.files.threads import ThreadFiles, first_line, new_epoch


def copy(source: ThreadFiles, target: ThreadFiles, upto: Stamp | None, header: bytes | None) -> CopyOutcome:
    """See `Store.copy_thread`. Up to an entry, no item is copied that no entry shows."""
    if target.log.exists():
        return Occupied()
    with source.writing() as handle:
        if handle is None:
            return Copied() if upto is None else BaseGone()
        replica = source.read_on(handle)
        records, _ = committed(read(handle, 0)[: replica.end], 0, str(source.log))
        begin = first_line(target.thread_id, new_epoch(), replica.seq)
        if upto is None:
            draft = Draft()
            draft.lines = [begin, *(line + b"\n" for _, line in records[1:])]
        elif (part := _upto(replica, records, begin, Bodies(source.load, str(source.log)), upto, header)) is None:
            return BaseGone()
        else:
            draft = part
        blobs = {blob: source.load(blob) for blob in blobs_of(draft.lines) if blob not in draft.blobs}
        return Copied() if target.create(draft.lines, blobs | draft.blobs) else Occupied()


def _upto(
    replica: Replica, records: Records, begin: bytes, bodies: Bodies, upto: Stamp, header: bytes | None
) -> Draft | None:
    thread = as_of(replica.thread, upto, header) if replica.thread else None
    if thread is None:
        return None
    return Compaction(thread, live_runs(graph_of(thread)), None, bodies, {upto}).of(records, begin)
