"""Notes of people and agents on a thread: decisions, findings, goals, next steps.

If a decision has no outcome, its act may or may not have happened. The notes of all threads share a shelf. So open
notes can be read without the threads, and a note may be older than the first checkpoint of its thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from langgraph_keel.approvals.requests import thread_prefix
from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable, record_of
from langgraph_keel.errors import InvalidInput, NotFound

NoteKind = Literal["decision", "finding", "goal", "next"]
LONGEST = 10_000
"""Maximum characters of a note's text."""
SHORTEST_PART = 6
"""Minimum characters of a shortened id."""


@publish
@dataclass(frozen=True, slots=True)
class Note:
    """A decision, a finding, a goal or a next step, stored with a thread.

    Attributes:
        id: 24 hexadecimal digits.
        thread_id: The thread.
        kind: `"decision"`, `"finding"`, `"goal"` or `"next"`.
        text: The decision, the finding, the goal or the step.
        because: The reason.
        outcome: The outcome of a decision; `None` until it is written.
        at: ISO time of the note.
        checkpoint_id: The root checkpoint that was stored last before the note; empty if there was none.
    """

    id: str
    thread_id: str
    kind: NoteKind
    text: str
    because: str = ""
    outcome: str | None = None
    at: str = ""
    checkpoint_id: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it is a decision without an outcome."""
        return self.kind == "decision" and self.outcome is None


def _pack(note: Note) -> list[dict[str, Any]]:
    return [{name: value for name, value in asdict(note).items() if value not in ("", None)}]


def _thread_of(key: str, note: Note) -> str:
    return note.thread_id if key == note.id and key.startswith(thread_prefix(note.thread_id)) else ""


NOTES: CellTable[Note] = CellTable(
    "notes", "the note {key}", _pack, lambda parts: record_of(Note, parts[0]), thread_of=_thread_of
)


class NoteHook(Hook):
    """Declares the table of notes."""

    shared_tables = (NOTES,)


def write_note(
    session: Session, thread_id: str, text: str, kind: NoteKind, because: str, outcome: str | None
) -> Plan[Note]:
    """Store a note. Two trips; durable at the end."""
    thread_id = thread_id_of(thread_id)
    if not (isinstance(kind, str) and kind in get_args(NoteKind)):
        raise InvalidInput(f"the kind of a note must be one of {', '.join(get_args(NoteKind))}, not {kind!r:.60}")
    given = {"because": because} if because != "" else {}
    _check(kind, {"text": text, **given, **({} if outcome is None else {"outcome": outcome})})
    heads = yield from session.store.scan(Query(thread_id, "", limit=1))
    head = str(heads[0].address.checkpoint_id) if heads else ""
    id_ = thread_prefix(thread_id) + session.new_token()[:16]
    note = Note(id_, thread_id, kind, text, because, outcome, session.clock().isoformat(), head)
    yield from Cells(session, NOTES, None).swap(id_, None, note, origin=thread_id)
    return note


def _check(kind: str, texts: Mapping[str, Any]) -> None:
    if "outcome" in texts and kind != "decision":
        raise InvalidInput(f"only a decision has an outcome, and this note is a {kind}")
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
            raise InvalidInput(f"{name} of a note must be a text of 1 to {LONGEST:,} characters, not {text!r:.60}")
        if re.search("[\ud800-\udfff]", text):
            raise InvalidInput(f"{name} of a note contains a character that cannot be encoded: {text!r:.60}")


def set_outcome(session: Session, name: str, outcome: str) -> Plan[Note]:
    """Store the outcome of a decision; no error if it is stored already."""
    if not isinstance(name, str) or len(name) < SHORTEST_PART:
        raise InvalidInput(f"{name!r:.60} is not a note id: give at least {SHORTEST_PART} characters of an id")
    cells = Cells(session, NOTES, None)
    # The ids of one thread share a prefix, so accept the beginning or the end of an id.
    found = [kept for key, kept in (yield from cells.every()) if key.startswith(name) or key.endswith(name)]
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} notes have ids that begin or end with {name!r:.60}: `keel notes` lists them")
    held = found[0] if found else None
    while held is not None:
        note = held.record
        _check(note.kind, {"outcome": outcome})
        if note.outcome == outcome:
            return note
        if note.outcome is not None:
            raise InvalidInput(f"note {note.id} already has an outcome, which is not replaced: {note.outcome!r:.200}")
        new = replace(note, outcome=outcome)
        done, held = yield from cells.swap(note.id, held.token, new, origin=note.thread_id)
        if done:
            return new
    raise NotFound(f"there is no note with the id {name!r:.60}: `keel notes` lists them")


def read_notes(session: Session, thread_id: str | None, *, is_open: bool = False) -> Plan[Sequence[Note]]:
    """Return the notes of a thread, or of all, oldest first. A trip for each 500."""
    prefix = "" if thread_id is None else thread_prefix(thread_id_of(thread_id))
    notes = [kept.record for _, kept in (yield from Cells(session, NOTES, None).every(prefix))]
    wanted = [note for note in notes if thread_id in (None, note.thread_id) and (note.is_open or not is_open)]
    return sorted(wanted, key=lambda note: (note.at, note.id))
