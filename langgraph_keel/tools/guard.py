"""Prevents tools from acting in a replay.

A `ToolCache` answers from the ledger, and a handler stops all other tools.

The replay of a call is found by the context and by the fork's random id. Other fields of a config may come from an
untrusted user, who could use them to read another thread's results. `pay.func(...)` is not stopped, because LangChain
does not treat it as a tool.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from threading import Lock, current_thread, main_thread
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from langgraph_keel._langgraph import register_configure_hook, var_child_runnable_config
from langgraph_keel.errors import ToolNotReplayed
from langgraph_keel.tools.ledger import OWN, CallRecord, speaks_for_one

FORKS = 1000
"""Maximum number of forks remembered after their replay, for threads that outlive it."""

_STRAY = "it was called in a thread without a context, so it may belong to the replay"


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """A tool that was answered with a result of another version of it."""

    step: int
    tool: str
    recorded: str
    now: str


class Refused(BaseException):
    """Ends the run of a refused tool; `RetryPolicy` does not catch it."""


class ToolHandler(BaseCallbackHandler):
    """Is notified before LangChain runs a tool, and can stop it by raising an error."""

    raise_error = run_inline = True
    # Tools are controlled by `ignore_agent`, which must stay False.
    ignore_llm = ignore_chain = ignore_retriever = ignore_retry = ignore_custom_event = True


class ToolGuard(ToolHandler):
    """The tools of one replay, and the handler that stops them.

    It travels in the context, which reaches tools called with `callbacks=[]`, and in the config, which reaches threads
    without a context.
    """

    def __init__(
        self, source: str, fork: str, allowed: Collection[str], step_of: Callable[[CallRecord], int | None]
    ) -> None:
        self.source = source
        self.fork = fork
        self.allowed = frozenset(allowed)
        self._step_of = step_of  # of the source's root graph; `None` if it is not recorded
        self.step = -1
        self.run_id: str | None = None  # of the replayed run
        self.refused: list[ToolNotReplayed] = []
        self.versions: dict[OtherVersion, None] = {}
        self.shelves: dict[int, Mapping[str, CallRecord]] = {}  # the ledger of the source, by store
        self._lock = Lock()
        self._given: dict[tuple[str, str, str], str] = {}

    def on_tool_start(
        self, serialized: dict[str, Any] | None, input_str: str, *, inputs: Any = None, **more: Any
    ) -> None:
        """Stop a tool that would run."""
        name = _name_of(serialized, more)
        if name not in self.allowed:
            raise self.refuse(name, "it is not kept in a ToolCache, so its result was not recorded")

    def refuse(self, tool: str, reason: str, *, is_new: bool = False, called: Any = None) -> Refused:
        """Note a refused call, and return the exception that ends the run."""
        error = ToolNotReplayed(tool, self.source, reason, is_new=is_new, called=called)
        with self._lock:
            self.refused.append(error)
        return Refused(error)

    def note_version(self, tool: str, recorded: str, now: str) -> None:
        """Note that the recorded result is of another version of the tool."""
        if recorded != now:
            self.versions[OtherVersion(self.step, tool, recorded, now)] = None

    def choose(self, call: CallRecord, found: Mapping[str, CallRecord]) -> str | None:
        """Return the key of the recorded call that answers a call, stable over attempts."""
        mine = call.task_id, call.tool_call_id, call.place
        with self._lock:
            if mine not in self._given:
                free = [
                    # The ids of checkpoints are ordered in time.
                    ((record.tool_call_id, record.place) != mine[1:], record.checkpoint_id, record.started_at, key)
                    for key, record in found.items()
                    if self._may_answer(key, record)
                ]
                if not free:
                    return None
                self._given[mine] = min(free)[-1]
            return self._given[mine]

    def _may_answer(self, key: str, record: CallRecord) -> bool:
        if OWN in key:
            return key not in self._given.values()
        if not speaks_for_one(record):
            return True
        # A result that used a person's answer is for one call of its step: the ledger keeps only the last such result.
        return key not in self._given.values() and self._step_of(record) in (None, self.step)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Stop tools in this context and its children, as if outside of other graphs."""
        _watch_threads()
        _forks.add(self)
        token, outer = _guard.set(self), var_child_runnable_config.set(None)
        try:
            yield
        finally:
            var_child_runnable_config.reset(outer)
            _guard.reset(token)

    def close(self, *, is_kept: bool) -> None:
        """Drop the ledger's records; a kept fork becomes an ordinary thread."""
        self.shelves.clear()
        _forks.end(self, is_kept=is_kept)


class _Forks:
    """The forks of this process, by their threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._guards: OrderedDict[str, ToolGuard] = OrderedDict()
        self.active: tuple[ToolGuard, ...] = ()

    def add(self, guard: ToolGuard) -> None:
        with self._lock:
            self._guards[guard.fork] = guard
            if guard not in self.active:
                self.active = (*self.active, guard)
            while len(self._guards) > FORKS:
                self._guards.popitem(last=False)

    def end(self, guard: ToolGuard, *, is_kept: bool) -> None:
        with self._lock:
            self.active = tuple(each for each in self.active if each is not guard)
            if is_kept:
                self._guards.pop(guard.fork, None)

    def of(self, thread_id: object) -> ToolGuard | None:
        return self._guards.get(str(thread_id)) if self._guards else None


_forks = _Forks()
_guard: ContextVar[ToolGuard | None] = ContextVar("keel_holding", default=None)
# Free while nothing is replayed: LangChain only reads the variable.
register_configure_hook(_guard, inheritable=True)


def find_guard(config: Mapping[str, Any]) -> ToolGuard | None:
    """Return the guard of a call's replay; `None` outside of replays."""
    return _guard.get() or _forks.of((config.get("configurable") or {}).get("thread_id"))


class _Strays(ToolHandler):
    """Stops tools in threads without a context or config, during a replay."""

    def on_tool_start(
        self, serialized: dict[str, Any] | None, input_str: str, *, parent_run_id: Any = None, **more: Any
    ) -> None:
        """Stop a tool that may belong to a replay."""
        # In the main thread, a replay has a context.
        has_place = parent_run_id or _guard.get() or var_child_runnable_config.get()
        if has_place or current_thread() is main_thread():
            return
        name = _name_of(serialized, more)
        refused = [guard.refuse(name, _STRAY) for guard in _forks.active if name not in guard.allowed]
        if refused:
            raise refused[0]


def _name_of(serialized: Mapping[str, Any] | None, more: Mapping[str, Any]) -> str:
    return str(more.get("name") or (serialized or {}).get("name") or "")


_STRAYS = _Strays()
_strays: ContextVar[Any] = ContextVar("keel_strays", default=_STRAYS)  # such a thread sees the default


@cache
def _watch_threads() -> None:
    """Register `_Strays` with LangChain, permanently, at the first replay."""
    register_configure_hook(_strays, inheritable=True)
