"""Reclaiming space: removes unreferenced records, and reports returned space."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from langgraph_keel.display import html
from langgraph_keel.display.text import count_of
from langgraph_keel.engine.checkpoints import delete_thread
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Page
from langgraph_keel.engine.removal import sweep_rows
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore
from langgraph_keel.retention.erase import Tell, each_stray

THREADS = 200
"""Threads per request."""
FEW = 5
"""Maximum number of damaged threads in a note."""


@publish
@dataclass(frozen=True, slots=True)
class Reclaimed:
    """The space that `reclaim_space` returned.

    Attributes:
        before: Size of the store before, in bytes; `None` if unknown.
        after: Size of the store after, in bytes; `None` if unknown.
        note: The work done, and the work that was not possible.
    """

    before: int | None
    after: int | None
    note: str

    def __str__(self) -> str:
        """Return it in words."""
        if self.before is None or self.after is None:
            return self.note
        return f"{self.before:,} bytes before, {self.after:,} after: {self.note}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return html.pre(str(self))


@dataclass(slots=True)
class Leftovers:
    """Counts of removed records that no checkpoint references."""

    rows: int = 0
    strays: int = 0  # threads without a checkpoint
    damaged: list[str] = field(default_factory=list)  # unreadable threads, which stay

    def __str__(self) -> str:
        """Describe the removals, for a note; empty if there were none."""
        parts = [f"{count_of(self.strays, 'thread')} without a checkpoint removed"] if self.strays else []
        if self.damaged:
            named = ", ".join(map(repr, self.damaged[:FEW])) + ("" if len(self.damaged) <= FEW else ", ...")
            parts.append(f"{count_of(len(self.damaged), 'damaged thread')} left alone: {named}")
        return "; ".join(parts)


def sweep_all(session: Session, tell: Tell, *, rows: bool, strays: bool) -> Plan[Leftovers]:
    """Delete unreferenced rows, and strays. Two trips for each thread."""
    # A thread may be about to get its first checkpoint, so delete only those that had none both before and after the
    # other threads were read.
    removed, before, after = Leftovers(), set[str](), list[str]()
    if strays:
        yield from each_stray(session.store, before.add)
    seen, last, page = 0, None, THREADS if rows or before else 0
    while page == THREADS:
        infos = yield from session.store.read_threads(Page(last, THREADS))
        for info, _ in infos:
            try:
                removed.rows += yield from sweep_rows(session, info.thread_id)
            except CorruptStore:
                removed.damaged.append(info.thread_id)
            seen += 1
            tell(seen, None)
        page, last = len(infos), (infos[-1][0].updated_at, infos[-1][0].thread_id) if infos else None
    if before:
        yield from each_stray(session.store, after.append)
    for thread_id in before.intersection(after):
        yield from delete_thread(session, thread_id)
        removed.strays += 1
    return removed
