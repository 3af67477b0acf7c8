"""Whose turn it is: which call of a task gets which answer, and which calls are under way.

All calls of one `ToolNode` are one task of LangGraph, and its n-th `interrupt()` gets the n-th answer, whoever calls
it. Without a ledger the tools begin in the order of the calls, nearly always; with one, each makes a trip to the store
first, and those come back in any order: of 60 runs, 12 gave one tool's approval to another. So calls begin in the order
in which they came, and one that is known to have asked comes to its question before the next one begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

SCRATCHPAD = "__pregel_scratchpad"


class Ticket:
    """One call's place among those of its task."""

    def __init__(self, turns: Turns, nth: int) -> None:
        self._turns = turns
        self.nth = nth
        """How many equal calls of this task came before it."""
        self.has_begun = False

    @property
    def is_next(self) -> bool:
        """Whether all that came before it have begun, or are over."""
        return self._turns.is_next(self)

    def begin(self) -> None:
        """Let the next one begin."""
        self.has_begun = True

    def leave(self) -> None:
        """Be over."""
        self._turns.leave(self)


class Turns:
    """The calls of one attempt at a task, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tickets: list[Ticket] = []
        self._came: Counter[str] = Counter()

    def arrive(self, name: str) -> Ticket:
        """Return the place of a call, which is called `name` by the model, or by its key if it has no name."""
        with self._lock:
            ticket = Ticket(self, self._came[name])
            self._came[name] += 1
            self._tickets.append(ticket)
            return ticket

    def is_next(self, ticket: Ticket) -> bool:
        """Return whether all that came before a call have begun, or are over."""
        with self._lock:
            before = self._tickets[: self._tickets.index(ticket)] if ticket in self._tickets else []
            return all(other.has_begun for other in before)

    def leave(self, ticket: Ticket) -> None:
        """Forget a call."""
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)


# LangGraph makes this function anew for each attempt at a task, and all of the task's calls share it.
_turns: WeakKeyDictionary[Any, Turns] = WeakKeyDictionary()
_turns_lock = Lock()


def turns_of(config: Mapping[str, Any]) -> Turns:
    """Return the calls of the task that a config is of; those of no task have no others beside them."""
    scratchpad: Any = (config.get("configurable") or {}).get(SCRATCHPAD)
    if scratchpad is None:
        return Turns()
    with _turns_lock:
        return _turns.setdefault(scratchpad.get_null_resume, Turns())


class Running:
    """The calls of a cache that are on their way in this process, from their claim to their stored result.

    Not among them: those that wait for somebody else, or are about to raise a doubt.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: dict[Ticket, tuple[str, str, str]] = {}

    def begin(self, ticket: Ticket, thread_id: str, checkpoint_id: str, key: str) -> None:
        """Note a call that is on its way from now on."""
        with self._lock:
            self._calls[ticket] = thread_id, checkpoint_id, key

    def end(self, ticket: Ticket) -> None:
        """Note that it is over, or waits."""
        with self._lock:
            self._calls.pop(ticket, None)

    def is_any(self, thread_id: str, checkpoint_id: str, midst: Collection[str]) -> bool:
        """Return whether calls are on their way at a checkpoint, but for those in whose midst the caller is."""
        with self._lock:
            calls = list(self._calls.values())
        return any(call[:2] == (thread_id, checkpoint_id) and call[2] not in midst for call in calls)
