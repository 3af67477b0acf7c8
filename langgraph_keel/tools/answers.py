"""Which call of a task gets which answer, which is made inside of which, and which are on their way.

All calls of one `ToolNode` are one task of LangGraph, whose n-th `interrupt()` gets the n-th answer, whoever calls it.
A person is shown one question: in a graph of threads that of the first call in the order of the calls, in an async one
the one that was asked first. So the ledger notes which place in the list of answers each call has used, and who asked;
a call is given its own answers again, the new one goes to the call whose question was shown, and nobody else sees it.
Without that, of 60 runs of two tools that ask, 12 gave the approval of one to the other (SQLite: the trips to the store
come back in any order).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from langgraph_keel._langgraph import CONFIG_KEY_SCRATCHPAD, Scratchpad


class Ticket:
    """One call's place among those of its task.

    Args:
        turns: The calls that it is one of.
        nth: How many came before it.
        scratchpad: LangGraph's notes of the task; `None` outside of a graph.
        outer: The call inside of which it is made: by a tool that calls a tool.
    """

    def __init__(self, turns: Turns, nth: int, scratchpad: Any, outer: Ticket | None) -> None:
        self.turns = turns
        self.nth = nth
        self.scratchpad = scratchpad
        self.outer = outer
        self.inside = Turns(turns.used)
        self.taken: set[int] = set()
        self.key = ""
        self._path = ""

    def take(self, places: Collection[int]) -> None:
        """Note answers that it uses, or what is made inside of it."""
        self.taken.update(places)
        self.turns.use(places)
        if self.outer is not None:
            self.outer.take(places)

    def name(self, call_id: str, key: str) -> str:
        """Return what tells the call from the others of its task, beside its id: the same at every attempt."""
        above = self.outer._path if self.outer else ""
        number = "" if call_id else f"#{self.turns.count(key)}"
        self.key, self._path = key, f"{above}{call_id}{number}/"
        return above + number

    @property
    def is_in_itself(self) -> bool:
        """Whether a tool has made its own call: it must not wait for itself."""
        outer = self.outer
        while outer is not None and outer.key != self.key:
            outer = outer.outer
        return outer is not None

    def pass_over(self, answers: int) -> None:
        """Let LangGraph count answers as used that were given to a call which is not made again."""
        for _ in range(answers if self.scratchpad is not None else 0):
            self.scratchpad.interrupt_counter()

    @property
    def may_take_the_new_answer(self) -> bool:
        """Whether an answer that nobody has used yet is for this call, or for what is made inside of it."""
        return self.outer.may_take_the_new_answer if self.outer else self.turns.is_next_to_take(self)


class Turns:
    """The calls of one attempt at a task, in the order in which they came, or those made inside of one of them.

    Args:
        used: The places, in LangGraph's list of answers, that are known to be used by any call of the task.

    Attributes:
        is_shown: Whether the first question was raised.
    """

    def __init__(self, used: set[int] | None = None) -> None:
        self.is_shown = False
        self.used: set[int] = set() if used is None else used
        self._lock = Lock()
        self._unknown: list[Ticket] = []
        self._asks: dict[Ticket, int] = {}
        self._came: Counter[str] = Counter()
        self._arrived = self._asked = 0

    def arrive(self, scratchpad: Scratchpad | None = None, outer: Ticket | None = None) -> Ticket:
        """Return the place of a call that comes now."""
        with self._lock:
            ticket = Ticket(self, self._arrived, scratchpad, outer)
            self._arrived += 1
            self._unknown.append(ticket)
        return ticket

    def count(self, key: str) -> int:
        """Return how many calls with this key were counted before."""
        with self._lock:
            self._came[key] += 1
            return self._came[key] - 1

    def learn(self, ticket: Ticket, asks: int = 0) -> None:
        """Note that the ledger was heard about a call, and which question it asked in its last attempt."""
        with self._lock:
            if ticket in self._unknown:
                self._unknown.remove(ticket)
            if asks:
                self._asks[ticket] = asks

    def use(self, places: Collection[int]) -> None:
        """Note answers that a call uses."""
        with self._lock:
            self.used.update(places)

    def first_free(self) -> int:
        """Return the first place in LangGraph's list of answers that no call is known to have used."""
        with self._lock:
            return next(place for place in count() if place not in self.used)

    def are_known(self) -> bool:
        """Return whether the ledger was heard about all that have come."""
        with self._lock:
            return not self._unknown

    def restore(self, scratchpad: Scratchpad) -> None:
        """Put an answer that was used before a crash, but not stored as such, where LangGraph has those that were used.

        LangGraph would give it to the next question, whoever asks.
        """
        with self._lock:
            while len(scratchpad.resume) < len(self.used) and (answer := scratchpad.get_null_resume(True)) is not None:
                scratchpad.resume.append(answer)

    def is_next_to_take(self, ticket: Ticket) -> bool:
        """Return whether a call's question is the one that was shown, as far as the ledger knows."""
        with self._lock:
            return not self._asks or min(self._asks, key=lambda each: self._asks[each]) is ticket

    def ask(self, ticket: Ticket, by_time: bool) -> int:
        """Return which of the questions of this attempt one is, from 1: the lowest is shown.

        Args:
            ticket: The call that asks.
            by_time: Whether the first in time is shown (async), and not the first in the order of the calls.
        """
        with self._lock:
            self._asked += 1
            return self._asked if by_time else ticket.nth + 1


class _Tasks:
    """The attempts at tasks, and the calls that are made by a tool, as LangGraph's scratchpads tell them apart.

    All calls of a task share its scratchpad's `get_null_resume`; a retry by policy gets a new `interrupt_counter`.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.turns: WeakKeyDictionary[Any, tuple[Any, Turns]] = WeakKeyDictionary()
        self.outer: WeakKeyDictionary[Any, Ticket] = WeakKeyDictionary()

    def arrive(self, scratchpad: Scratchpad) -> Ticket:
        counter = scratchpad.interrupt_counter
        with self.lock:
            outer = self.outer.get(counter) if counter in self.outer else None  # LangGraph's own cannot be referred to
            if outer is not None:
                return outer.inside.arrive(outer.scratchpad, outer)
            known, turns = self.turns.get(scratchpad.get_null_resume, (None, Turns()))
            turns = turns if known is counter else Turns()
            self.turns[scratchpad.get_null_resume] = counter, turns
        return turns.arrive(scratchpad)


_tasks = _Tasks()


def forget() -> None:
    """Begin anew, in a process that was forked: another one's calls have their turns there, and may hold the lock."""
    global _tasks
    _tasks = _Tasks()


# The call that is being made in this context, for configs that are of no task: tools may be called outside of graphs.
_making: ContextVar[Ticket | None] = ContextVar("keel_making", default=None)


def arrive(config: Mapping[str, Any]) -> Ticket:
    """Return the place of a call that comes now, among those of the task that its config is of."""
    scratchpad: Scratchpad | None = (config.get("configurable") or {}).get(CONFIG_KEY_SCRATCHPAD)
    if scratchpad is not None:
        return _tasks.arrive(scratchpad)
    outer = _making.get()
    return outer.inside.arrive(None, outer) if outer else Turns().arrive()


@contextmanager
def making(ticket: Ticket) -> Iterator[None]:
    """Let calls of this context know what they are made inside of."""
    token = _making.set(ticket)
    try:
        yield
    finally:
        _making.reset(token)


def remember(counter: Callable[[], int], ticket: Ticket) -> None:
    """Let calls that find this counter in their scratchpad know what they are made inside of."""
    with _tasks.lock:
        _tasks.outer[counter] = ticket


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
