"""Notes on imported threads, one for each, in shared cells.

With these notes, a thread that was deleted here is not imported again, and an import finds threads that changed in the
old store.
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
"""The store of another saver: a URL, the path of a SQLite file, or a saver object."""


@dataclass(frozen=True, slots=True)
class MovedThread:
    """The note on a thread that was imported, or must not be."""

    is_whole: bool  # if false, the import is running or was interrupted
    fingerprint: str  # of the source's thread at the time of the import; empty if it was not imported


LEFT = MovedThread(is_whole=True, fingerprint="")
"""The note on a deleted thread, which is not imported again."""


def _unpack(parts: Sequence[Any]) -> MovedThread:
    if [type(part) for part in parts] != [bool, str]:
        raise TypeError("its fields have unexpected types")
    return MovedThread(*parts)


MOVED: CellTable[MovedThread] = CellTable(
    "moved", "the import note of a thread", lambda moved: [moved.is_whole, moved.fingerprint], _unpack
)
"""Shared cells under hashes of thread ids; they survive deletions and hide names."""


class MovedHook(Hook):
    """Declares the cells for `keel check`; it handles no events."""

    shared_tables = (MOVED,)


def key_of(thread_id: str) -> str:
    """Return the key of a thread's note."""
    return blake2b(thread_id.encode(), digest_size=20).hexdigest()


def note(session: Session, thread_id: str, moved: MovedThread) -> Plan[None]:
    """Store the note of a thread. Two trips."""
    yield from Cells(session, MOVED, None).change(key_of(thread_id), lambda _: moved)


def note_begun(session: Session, thread_id: str) -> Plan[None]:
    """Note that the import of a thread starts, unless it was just deleted. Two trips."""
    begun = MovedThread(is_whole=False, fingerprint="")
    yield from Cells(session, MOVED, None).change(key_of(thread_id), lambda held: held if held == LEFT else begun)


def find_note(session: Session, thread_id: str) -> Plan[MovedThread | None]:
    """Return the note of a thread. One trip."""
    found = yield from Cells(session, MOVED, None).find(key_of(thread_id))
    return found.record if found else None
