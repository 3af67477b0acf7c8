"""The line of runs that wait for a thread (`on_busy="wait"`), one cell per thread.

Clocks of different hosts are not compared. A waiting run regularly increases the beat of its ticket. A run behind it
removes a ticket whose process is dead, or whose beat has not changed for a lease by the observer's own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from langgraph_keel.engine.leases import Watch, is_dead
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable

KEY = "line"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The place of a waiting run."""

    token: str
    holder: str  # the run's process (see `langgraph_keel.engine.leases`)
    since: str  # ISO time
    beat: int = 0


Line: TypeAlias = Sequence[Ticket]


def _pack(line: Line) -> list[Any]:
    return [[ticket.token, ticket.holder, ticket.since, ticket.beat] for ticket in line]


def _unpack(parts: Sequence[Any]) -> Line:
    if any([type(part) for part in ticket] != [str, str, str, int] for ticket in parts):
        raise TypeError("it has parts of the wrong type")
    return tuple(Ticket(*ticket) for ticket in parts)


LINES: CellTable[Line] = CellTable("turns", "the line of runs that wait", _pack, _unpack, moves="never")


class Place:
    """The place of a run in the line. `lease` and `timer` are in seconds, local."""

    def __init__(
        self, session: Session, thread_id: str, ticket: Ticket, lease: float, timer: Callable[[], float]
    ) -> None:
        self._cells = Cells(session, LINES, thread_id)
        self._ticket = ticket
        self._lease = lease
        self._timer = timer
        self._watch = Watch(lease, timer)
        self._dead: set[str] = set()
        self._is_in = False
        self._beat_at = 0.0

    @property
    def is_to_leave(self) -> bool:
        """Whether the line contains tickets that `leave` would remove."""
        return self._is_in or bool(self._dead)

    def look(self) -> Plan[Line]:
        """Return the tickets ahead, in order. One trip."""
        asked = self._timer()
        kept = yield from self._cells.find(KEY)
        line = kept.record if kept else ()
        tokens = [ticket.token for ticket in line]
        self._is_in = self._ticket.token in tokens
        ahead = line[: tokens.index(self._ticket.token)] if self._is_in else line
        self._dead = {
            ticket.token
            for ticket in ahead
            if is_dead(ticket.holder) or self._watch.is_over(ticket.token, ticket.beat, asked)
        }
        return [ticket for ticket in ahead if ticket.token not in self._dead]

    def stay(self) -> Plan[None]:
        """Keep the place in the line, or join it. Two trips to join or renew, else none."""
        if self._is_in and self._timer() < self._beat_at:
            return
        self._is_in = True
        self._beat_at = self._timer() + self._lease / 3
        self._ticket = mine = replace(self._ticket, beat=self._ticket.beat + 1)

        def change(line: Line | None) -> Line:
            left = self._without_dead(line)
            if mine.token not in [ticket.token for ticket in left]:
                return (*left, mine)
            return tuple(mine if ticket.token == mine.token else ticket for ticket in left)

        yield from self._cells.change(KEY, change)

    def leave(self) -> Plan[None]:
        """Leave the line. Two trips."""

        def change(line: Line | None) -> Line | None:
            return tuple(each for each in self._without_dead(line) if each.token != self._ticket.token) or None

        yield from self._cells.change(KEY, change)

    def _without_dead(self, line: Line | None) -> Line:
        return tuple(ticket for ticket in line or () if ticket.token not in self._dead)
