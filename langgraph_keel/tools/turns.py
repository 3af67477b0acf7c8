"""Whose turn it is: which call of a task gets which answer, which is made inside of which, which are on their way.

All calls of one `ToolNode` are one task of LangGraph, and its n-th `interrupt()` gets the n-th answer, whoever calls
it. Without a ledger the tools begin in the order of the calls, nearly always; with one, each makes a trip to the store
first, and those come back in any order: of 60 runs, 12 gave one tool's approval to another. So calls begin in the order
in which they came, and one that is known to have asked comes to its question before the next one begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

SCRATCHPAD = "__pregel_scratchpad"


class Ticket:
    """One call's place among those of its task.

    Args:
        turns: The calls that it is one of.
        outer: The call inside of which it is made: by a tool that calls a tool. Such a call waits for no turn: in which
            order a tool does its work is the tool's business.
    """

    def __init__(self, turns: Turns, outer: Ticket | None = None) -> None:
        self._turns = turns
        self.outer = outer
        self.has_begun = outer is not None
        self.inside = Turns()
        self.key = ""
        self._path = ""

    def name(self, call_id: str, key: str) -> str:
        """Return what tells the call from the others of its task, beside its id: the same at every attempt."""
        above = self.outer._path if self.outer else ""
        number = "" if call_id else f"#{self._turns.count(key)}"
        self.key, self._path = key, f"{above}{call_id}{number}/"
        return above + number

    @property
    def is_in_itself(self) -> bool:
        """Whether a tool has made its own call: it must not wait for itself."""
        outer = self.outer
        while outer is not None and outer.key != self.key:
            outer = outer.outer
        return outer is not None

    @property
    def is_next(self) -> bool:
        """Whether all that came before it have begun, or are over."""
        return self.has_begun or self._turns.is_next(self)

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

    def arrive(self, outer: Ticket | None = None) -> Ticket:
        """Return the place of a call that comes now."""
        ticket = Ticket(self, outer)
        with self._lock:
            self._tickets.append(ticket)
        return ticket

    def count(self, key: str) -> int:
        """Return how many calls with this key were counted before."""
        with self._lock:
            self._came[key] += 1
            return self._came[key] - 1

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


class _Tasks:
    """The attempts at tasks, and the calls that are made by a tool, as LangGraph's scratchpads tell them apart.

    All calls of a task share its scratchpad's `get_null_resume`; a retry by policy gets a new `interrupt_counter`.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.turns: WeakKeyDictionary[Any, tuple[Any, Turns]] = WeakKeyDictionary()
        self.outer: WeakKeyDictionary[Any, Ticket] = WeakKeyDictionary()

    def arrive(self, scratchpad: Any) -> Ticket:
        counter = scratchpad.interrupt_counter
        with self.lock:
            outer = self.outer.get(counter) if counter in self.outer else None  # LangGraph's own cannot be referred to
            if outer is not None:
                return outer.inside.arrive(outer)
            known, turns = self.turns.get(scratchpad.get_null_resume, (None, Turns()))
            turns = turns if known is counter else Turns()
            self.turns[scratchpad.get_null_resume] = counter, turns
        return turns.arrive()


_tasks = _Tasks()


def forget() -> None:
    """Begin anew, in a process that was forked: another one's calls have their turns there, and may hold the lock."""
    global _tasks
    _tasks = _Tasks()


# The call that is being made in this context, for configs that are of no task: tools may be called outside of graphs.
_making: ContextVar[Ticket | None] = ContextVar("keel_making", default=None)


def arrive(config: Mapping[str, Any]) -> Ticket:
    """Return the place of a call that comes now, among those of the task that its config is of."""
    scratchpad: Any = (config.get("configurable") or {}).get(SCRATCHPAD)
    if scratchpad is not None:
        return _tasks.arrive(scratchpad)
    outer = _making.get()
    return outer.inside.arrive(outer) if outer else Turns().arrive()


@contextmanager
def making(ticket: Ticket) -> Iterator[None]:
    """Let calls of this context know what they are made inside of."""
    token = _making.set(ticket)
    try:
        yield
    finally:
        _making.reset(token)


def watched(scratchpad: Any, ticket: Ticket, noted: Callable[[], None]) -> Any:
    """Return a scratchpad that tells of every `interrupt()`, and in which calls know what they are made inside of."""

    def counter() -> int:
        place: int = scratchpad.interrupt_counter()
        noted()
        return place

    twin = copy(scratchpad)
    object.__setattr__(twin, "interrupt_counter", counter)
    with _tasks.lock:
        _tasks.outer[counter] = ticket
    return twin


class Running:
    """The calls of a cache that are on their way in this process, from their claim to their stored result.

    Not among them: those that wait for somebody else, are about to raise a doubt, or are made inside of another.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: dict[Ticket, tuple[str, str]] = {}

    def begin(self, ticket: Ticket, thread_id: str, checkpoint_id: str) -> None:
        """Note a call that is on its way from now on."""
        if ticket.outer is None:
            with self._lock:
                self._calls[ticket] = thread_id, checkpoint_id

    def end(self, ticket: Ticket) -> None:
        """Note that it is over, or waits."""
        with self._lock:
            self._calls.pop(ticket, None)

    def is_any(self, thread_id: str, checkpoint_id: str) -> bool:
        """Return whether calls are on their way at a checkpoint."""
        with self._lock:
            return (thread_id, checkpoint_id) in self._calls.values()
