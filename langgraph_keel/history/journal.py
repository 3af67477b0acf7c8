"""The journal of threads: what ran, failed, was noted and decided, day by day, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import NamedTuple

from langgraph_keel.approvals.requests import CURRENT, OVER, STATUS_OF, Approvals, thread_prefix
from langgraph_keel.display.text import count_of
from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.entries import UnreadHeader
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.history.handoff import quoted, words_of
from langgraph_keel.history.notes import read_notes
from langgraph_keel.history.reading import Pages
from langgraph_keel.history.threads import ThreadPages, filter_of
from langgraph_keel.tools.ledger import DONE, FAILED, UNKNOWN, CallPages


class Event(NamedTuple):
    """Something that happened in a thread."""

    at: datetime
    thread_id: str
    text: str
    checkpoint_id: str


def read_journal(session: Session, thread_id: str | None, owner: str | None, since: datetime | None) -> Plan[str]:
    """Return the journal of a thread, or of all threads of an owner. For each thread, the trips of a whole timeline."""
    if (thread_id is None) == (owner is None):
        raise InvalidInput("a journal is that of a thread, or of an owner: give one of thread_id and owner")
    if since is not None and not isinstance(since, datetime):
        raise InvalidInput(f"since must be a datetime, not {since!r:.100}")
    names = [] if thread_id is None else [thread_id_of(thread_id)]
    if owner is not None:
        pages = ThreadPages(session, None, filter_of(owner=owner, since=since))
        while (page := (yield from pages.next())) is not None:
            names += [info.thread_id for info in page]
    events: list[Event] = []
    for name in names:
        found = yield from _read_events(session, name)
        events += [each for each in found if since is None or each.at >= since.astimezone(UTC)]
    of = f"thread {quoted(thread_id)}" if owner is None else f"owner {quoted(owner)}"
    return "\n".join([f"# Journal of {of}", *_days(sorted(events), with_thread=owner is not None)]) + "\n"


def _days(events: Sequence[Event], *, with_thread: bool) -> Iterator[str]:
    if not events:
        yield "\nNothing happened in this time."
    for day, group in groupby(events, lambda each: each.at.date()):
        yield f"\n## {day.isoformat()}\n"
        for each in group:
            thread = f" thread {quoted(each.thread_id, 60)}:" if with_thread else ""
            proof = f" ({quoted(each.checkpoint_id[-8:])})" if each.checkpoint_id else ""
            yield f"- {each.at:%H:%M}{thread} {each.text}{proof}"


def _read_events(session: Session, thread_id: str) -> Plan[list[Event]]:
    events: list[Event] = []

    def add(at: datetime | str | None, text: str, checkpoint_id: str = "") -> None:
        try:
            time = datetime.fromisoformat(at) if isinstance(at, str) else at
        except ValueError:
            return
        if time is not None:
            events.append(Event(time.astimezone(UTC), thread_id, text, checkpoint_id))

    pages = Pages(session, thread_id)
    yield from pages.upto(None)
    begun: tuple[str, str] | None = None  # time and id of the first checkpoint of a run
    count, last = 0, ""
    roots = [entry for entry in reversed(pages.entries) if not entry.address.checkpoint_ns]
    if not roots:
        raise NotFound(f"there is no thread {thread_id!r}: `keel threads` lists those there are")
    for entry in [*roots, None]:
        header = UnreadHeader(entry, session.codec) if entry else None  # type: ignore[arg-type]
        source = header.metadata.get("source") if header else "input"
        if source != "loop":
            if begun:
                add(begun[0], f"run of {count_of(count, 'step')}, until {last[11:16]}", begun[1])
            begun, count = None, 0
        if header is None or entry is None:
            break
        at, name = str(header.checkpoint.get("ts", "")), str(entry.address.checkpoint_id)
        if source == "input":
            begun = at, name
        elif source != "loop":
            add(at, "the state was updated" if source == "update" else "a rewind, or a branch, began here", name)
        elif begun is None:
            begun = at, name
        count, last = count + (source == "loop"), at
    for leaf in (yield from pages.moments(range(0, 1))):
        for error in leaf.errors:
            add(leaf.time, f'a step failed: "{quoted(error)}"', leaf.id)
    calls = CallPages(session, thread_id)
    while (page := (yield from calls.next())) is not None:
        for call in page:
            if call.state in (FAILED, UNKNOWN, DONE):
                end = f'failed: "{quoted(call.error)}"' if call.state == FAILED else call.state
                end = "was cut off: nobody knows how it ended" if call.state == UNKNOWN else end
                add(call.started_at, f"tool {words_of(call.tool, call.args)} {end}", call.checkpoint_id)
    for note in (yield from read_notes(session, thread_id)):
        because = f", because: {quoted(note.because)}" if note.because else ""
        outcome = f"; outcome: {quoted(note.outcome)}" if note.outcome else "; no outcome yet" * note.is_open
        add(note.at, f"{note.kind}: {quoted(note.text)}{because}{outcome}", note.checkpoint_id)
    approvals = Approvals(session)
    for shelf in (CURRENT, OVER):
        for held in (yield from approvals.all(shelf, thread_prefix(thread_id))):
            request = held.request
            if request.thread_id == thread_id and (decision := request.decision):
                by = f" by {quoted(decision.by, 60)}" if decision.by else ""
                why = f", because: {quoted(decision.reason)}" if decision.reason else ""
                what = words_of(request.action or "a question", request.args)
                add(decision.at, f"{STATUS_OF[decision.kind]}{by}: {what}{why}", request.checkpoint_id)
    return events
