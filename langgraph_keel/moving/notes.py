"""Notes on the threads that were moved in from the store of another saver, one for each, beside all threads.

So a thread that was deleted here is not moved in again, and an import finds threads that changed in the old store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable

SourceLike: TypeAlias = str | os.PathLike[str] | BaseCheckpointSaver[Any]
"""How the store of another saver is named: by a URL, the path of a file of SQLite, or a saver object."""


@dataclass(frozen=True, slots=True)
class MovedThread:
    """The note on a thread that was moved in, or is not to be."""

    is_whole: bool  # if not, its process may have died on the way
    fingerprint: str  # of the source's thread when it was moved; empty if nothing was, or is to be


LEFT = MovedThread(is_whole=True, fingerprint="")
"""Of a thread that was deleted: nothing of it moves in any more."""


def _unpack(parts: Sequence[Any]) -> MovedThread:
    if [type(part) for part in parts] != [bool, str]:
        raise TypeError("it does not hold what it should")
    return MovedThread(*parts)


MOVED: CellTable[MovedThread] = CellTable(
    "moved", "the note that a thread was moved in", lambda moved: [moved.is_whole, moved.fingerprint], _unpack
)
"""Shared by all threads, each under a hash of its id: the note stays when the thread is deleted, and names nobody."""


class MovedHook(Hook):
    """Says which cells there are, to `keel check`; it hears nothing."""

    shared_tables = (MOVED,)


def key_of(thread_id: str) -> str:
    """Return under which key it is noted that a thread was moved."""
    return blake2b(thread_id.encode(), digest_size=20).hexdigest()


def note(session: Session, thread_id: str, moved: MovedThread) -> Plan[None]:
    """Note that a thread was moved in. Two trips."""
    yield from Cells(session, MOVED, None).change(key_of(thread_id), lambda _: moved)


def note_begun(session: Session, thread_id: str) -> Plan[None]:
    """Note that a thread begins to move in, unless it was deleted a moment ago. Two trips."""
    begun = MovedThread(is_whole=False, fingerprint="")
    yield from Cells(session, MOVED, None).change(key_of(thread_id), lambda held: held if held == LEFT else begun)


def find_note(session: Session, thread_id: str) -> Plan[MovedThread | None]:
    """Return what is noted of a thread. One trip."""
    found = yield from Cells(session, MOVED, None).find(key_of(thread_id))
    return found.record if found else None
