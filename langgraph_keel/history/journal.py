"""The journal of threads: runs, failures, notes and decisions by day, as Markdown."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, TypeAlias

from langgraph_keel.display.text import count_of
from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.entries import UnreadHeader
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.history.handoff import quoted, read_decisions, words_of, words_of_note
from langgraph_keel.history.notes import read_notes
from langgraph_keel.history.reading import Pages
from langgraph_keel.history.threads import ThreadPages, filter_of
from langgraph_keel.tools.ledger import DONE, FAILED, UNKNOWN, CallPages

Event: TypeAlias = tuple[datetime, str, str, str]
"""Time, thread, text and checkpoint."""


def read_journal(session: Session, thread_id: str | None, owner: str | None, since: datetime | None) -> Plan[str]:
    """Return the journal of a thread or an owner. Reads each thread's whole timeline."""
    if (thread_id is None) == (owner is None):
        raise InvalidInput("a journal needs either thread_id or owner, not both")
    if since is not None and not isinstance(since, datetime):
        raise InvalidInput(f"since must be a datetime, not {since!r:.100}")
    names = [] if thread_id is None else [thread_id_of(thread_id)]
    if owner is not None:
        pages = ThreadPages(session, None, filter_of(owner=owner, since=since))
        while (page := (yield from pages.next())) is not None:
            names += [info.thread_id for info in page]
    events: list[Event] = []
    for name in names:
        events += yield from _read_events(session, name)
    events = sorted(each for each in events if since is None or each[0] >= since.astimezone(UTC))
    lines = [f"# Journal of {f'thread {quoted(thread_id)}' if owner is None else f'owner {quoted(owner)}'}"]
    for day, group in groupby(events, lambda each: each[0].date()):
        lines += ["", f"## {day.isoformat()}", ""]
        for at, name, text, checkpoint_id in group:
            thread = "" if owner is None else f" thread {quoted(name, 60)}:"
            proof = f" ({quoted(checkpoint_id[-8:])})" if checkpoint_id else ""
            lines.append(f"- {at:%H:%M}{thread} {text}{proof}")
    return "\n".join(lines if events else [*lines, "", "Nothing happened in this time."]) + "\n"


def _read_events(session: Session, thread_id: str) -> Plan[list[Event]]:
    events: list[Event] = []

    def add(at: str, text: str, checkpoint_id: str) -> None:
        with suppress(ValueError, OverflowError):  # an ill-formed time in a stored record
            events.append((datetime.fromisoformat(at).astimezone(UTC), thread_id, text, checkpoint_id))

    pages = Pages(session, thread_id)
    yield from pages.upto(None)
    roots = [entry for entry in reversed(pages.entries) if not entry.address.checkpoint_ns]
    if not roots:
        raise NotFound(f"there is no thread {thread_id!r}: `keel threads` lists all threads")
    runs: list[tuple[str, str, list[str]]] = []  # the first checkpoint of each, its time, and the times of its steps
    before: Any = None
    for entry in roots:
        header, name = UnreadHeader(entry, session.codec), str(entry.address.checkpoint_id)  # type: ignore[arg-type]
        at, source = str(header.checkpoint.get("ts", "")), header.metadata.get("source")
        if source == "input" or (source == "loop" and before not in ("input", "loop")):
            runs.append((name, at, []))
        elif source != "loop":
            add(at, "the state was updated" if source == "update" else "a rewind, or a branch, started here", name)
        if source == "loop" and before != "input":  # the first one only applies the input
            runs[-1][2].append(at)
        before = source
    for name, at, times in runs:
        add(at, f"run of {count_of(len(times), 'step')}, until {quoted([at, *times][-1][11:16])}", name)
    for moment in (yield from pages.moments(range(0, 1))):
        for error in moment.errors:
            add(str(moment.time), f'a step failed: "{quoted(error)}"', moment.id)
    calls = CallPages(session, thread_id)
    while (page := (yield from calls.next())) is not None:
        for call in page:
            ends = {DONE: "done", FAILED: f'failed: "{quoted(call.error)}"', UNKNOWN: "was cut off, outcome unknown"}
            if call.state in ends:
                add(call.started_at, f"tool {words_of(call.tool, call.args)} {ends[call.state]}", call.checkpoint_id)
    for note in (yield from read_notes(session, thread_id)):
        add(note.at, words_of_note(note) + "; no outcome yet" * note.is_open, note.checkpoint_id)
    for decided_at, text, name in (yield from read_decisions(session, thread_id)):
        add(decided_at, text, name)
    return events
