"""The calls of one task: their answers from people, nesting, and state.

All calls of a `ToolNode` are one task, whose n-th `interrupt()` gets the n-th answer, and threads reach the ledger in
any order. So the ledger records which answers each call has used, and which call's question was shown. Without that, 12
of 60 runs of two asking tools swapped the answers.
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

from langgraph.errors import GraphInterrupt

from langgraph_keel._langgraph import CONFIG_KEY_SCRATCHPAD, CONFIG_KEY_SEND, RESUME, Scratchpad
from langgraph_keel.tools.ledger import Shown


class CallSlot:
    """One call among the calls of its task."""

    def __init__(self, calls: TaskCalls, nth: int, scratchpad: Any, outer: CallSlot | None) -> None:
        self.calls = calls
        self.nth = nth
        self.scratchpad = scratchpad  # LangGraph's scratchpad of the task; `None` outside of a graph
        self.outer = outer  # the enclosing call, if a tool calls a tool
        self.inside = TaskCalls(calls.used)
        self.taken: set[int] = set()
        self.id = ""  # names the call in `Shown`
        self.key = ""
        self._path = ""

    def use(self, places: Collection[int]) -> None:
        """Record that the call, or a nested one, uses these answers."""
        self.taken.update(places)
        self.calls.use(places)
        if self.outer is not None:
            self.outer.use(places)

    def name(self, call_id: str, key: str) -> str:
        """Return what distinguishes the call in its task in addition to its id.

        It is stable over attempts.
        """
        above = self.outer._path if self.outer else ""
        number = "" if call_id else f"#{self.calls.count(key)}"
        self.id = call_id or f"#{self.nth}"
        self.key, self._path = key, f"{above}{call_id}{number}/"
        return above + number

    @property
    def places(self) -> list[int]:
        """The sorted places of the answers used by the call and its nested calls."""
        return sorted(self.taken)

    @property
    def is_in_itself(self) -> bool:
        """Whether an enclosing call is equal: the call must not wait for it."""
        outer = self.outer
        while outer is not None and outer.key != self.key:
            outer = outer.outer
        return outer is not None

    def pass_over(self, answers: int) -> None:
        """Let LangGraph count answers of a call that is not repeated as used."""
        for _ in range(answers if self.scratchpad is not None else 0):
            self.scratchpad.interrupt_counter()

    def may_use(self, place: int) -> bool:
        """Return whether a new question of this call or a nested one may use an answer."""
        if self.outer:
            return self.outer.may_use(place)
        shown = self.calls.shown
        return shown is None or (shown == Shown(self.id, place) and place not in self.calls.used)

    @property
    def next_place(self) -> int:
        """The place of the answer to a new question of this call, if it exists."""
        if self.outer:
            return self.outer.next_place
        place = max(self.scratchpad.interrupt_counter(), self.calls.first_free())
        return self.calls.shown.place if self.calls.shown else place


class TaskCalls:
    """The calls of one attempt at a task, or nested in one call, by arrival."""

    def __init__(self, used: set[int] | None = None) -> None:
        self.shown: Shown | None = None  # an earlier attempt's last shown question, if answered
        self.question: tuple[Any, ...] = ()  # this attempt's first question: the args of its `GraphInterrupt`
        self.is_raised = False
        # The places in LangGraph's list of answers that any call of the task has used.
        self.used: set[int] = set() if used is None else used
        self._lock = Lock()
        self._unknown: list[CallSlot] = []
        self._ended: set[str] = set()
        self._came: Counter[str] = Counter()
        self._arrived = 0

    def add(self, scratchpad: Scratchpad | None = None, outer: CallSlot | None = None) -> CallSlot:
        """Add a call and return its slot."""
        with self._lock:
            slot = CallSlot(self, self._arrived, scratchpad, outer)
            self._arrived += 1
            self._unknown.append(slot)
        return slot

    def count(self, key: str) -> int:
        """Count a call with this key. Return the number of earlier ones."""
        with self._lock:
            self._came[key] += 1
            return self._came[key] - 1

    def learn(self, slot: CallSlot) -> None:
        """Note that the ledger's record of a call was read."""
        with self._lock:
            if slot in self._unknown:
                self._unknown.remove(slot)

    def end(self, slot: CallSlot) -> None:
        """Note that a call has ended or is waiting."""
        self.learn(slot)
        with self._lock:
            self._ended.add(slot.id)

    def use(self, places: Collection[int]) -> None:
        """Note the places of answers that a call uses."""
        with self._lock:
            self.used.update(places)

    def first_free(self) -> int:
        """Return the first unused place in LangGraph's list of answers."""
        with self._lock:
            return next(place for place in count() if place not in self.used)

    def are_known(self) -> bool:
        """Return whether the ledger's records of all calls so far were read."""
        with self._lock:
            return not self._unknown

    def restore(self, scratchpad: Scratchpad) -> None:
        """Mark used answers in LangGraph's list that a crash left unmarked."""
        # Otherwise LangGraph gives them to the next question of any call.
        with self._lock:
            while len(scratchpad.resume) < len(self.used) and (answer := scratchpad.get_null_resume(True)) is not None:
                scratchpad.resume.append(answer)

    def is_waiting(self, slot: CallSlot) -> bool:
        """Return whether another call may use the shown question's answer, or ask again."""
        with self._lock:
            shown = self.shown
            if shown is None or self.question or shown.call in (slot.id, *self._ended) or shown.place in self.used:
                return False
        return shown.place <= count_answers(slot.scratchpad)

    def ask(self, question: GraphInterrupt) -> bool:
        """Note a question; return whether it is the attempt's first, which is shown."""
        with self._lock:
            is_first = not self.question
            self.question = self.question or question.args
            return is_first


def count_answers(scratchpad: Scratchpad) -> int:
    """Return the number of answers of people that a task has."""
    return len(scratchpad.resume) + (scratchpad.get_null_resume(False) is not None)


def store_answers(config: Mapping[str, Any], slot: CallSlot) -> None:
    """Write all answers of the task.

    `interrupt()` writes only those up to its own, and the last write wins.
    """
    config["configurable"][CONFIG_KEY_SEND]([(RESUME, list(slot.scratchpad.resume))])


class _Tasks:
    """The attempts at tasks and the nested calls, keyed by LangGraph's scratchpads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.calls: WeakKeyDictionary[Any, tuple[Any, TaskCalls]] = WeakKeyDictionary()
        self.outer: WeakKeyDictionary[Any, CallSlot] = WeakKeyDictionary()

    def take_slot(self, scratchpad: Scratchpad) -> CallSlot:
        # All calls of a task share its scratchpad's `get_null_resume`; a retry by policy has a new `interrupt_counter`.
        counter = scratchpad.interrupt_counter
        with self.lock:
            outer = self.outer.get(counter) if counter in self.outer else None  # LangGraph's has no weak refs
            if outer is not None:
                return outer.inside.add(outer.scratchpad, outer)
            known, calls = self.calls.get(scratchpad.get_null_resume, (None, TaskCalls()))
            calls = calls if known is counter else TaskCalls()
            self.calls[scratchpad.get_null_resume] = counter, calls
        return calls.add(scratchpad)


_tasks = _Tasks()


def forget() -> None:
    """Start empty in a forked process: a call of the parent may hold the lock."""
    global _tasks
    _tasks = _Tasks()


# The call running in this context, for configs without a task: tools may be called outside of graphs.
_current: ContextVar[CallSlot | None] = ContextVar("keel_making", default=None)


def take_slot(config: Mapping[str, Any]) -> CallSlot:
    """Add a call to the task of its config, and return its slot."""
    scratchpad: Scratchpad | None = (config.get("configurable") or {}).get(CONFIG_KEY_SCRATCHPAD)
    if scratchpad is not None:
        return _tasks.take_slot(scratchpad)
    outer = _current.get()
    return outer.inside.add(None, outer) if outer else TaskCalls().add()


@contextmanager
def call_context(slot: CallSlot) -> Iterator[None]:
    """Make a call the enclosing call of those in this context."""
    token = _current.set(slot)
    try:
        yield
    finally:
        _current.reset(token)


def remember(counter: Callable[[], int], slot: CallSlot) -> None:
    """Make a call the enclosing call of those whose scratchpad has this counter."""
    with _tasks.lock:
        _tasks.outer[counter] = slot


class CallsUnderWay:
    """A cache's running calls in this process, except those that wait and nested ones."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: dict[CallSlot, tuple[str, str]] = {}

    def begin(self, slot: CallSlot, thread_id: str, checkpoint_id: str) -> None:
        """Note that a call is running."""
        if slot.outer is None:
            with self._lock:
                self._calls[slot] = thread_id, checkpoint_id

    def end(self, slot: CallSlot) -> None:
        """Note that a call has ended or is waiting."""
        with self._lock:
            self._calls.pop(slot, None)

    def has_any(self, thread_id: str, checkpoint_id: str) -> bool:
        """Return whether calls of a checkpoint's step are running."""
        with self._lock:
            return (thread_id, checkpoint_id) in self._calls.values()
