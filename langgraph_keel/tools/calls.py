"""A call, as the graph's config tells it: whose it is, and the answers of persons that it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from langgraph_keel.core.address import text_of, thread_id_of
from langgraph_keel.core.cells import Shelf
from langgraph_keel.core.ledger import TOOLS, CallRecord
from langgraph_keel.errors import InvalidConfig
from langgraph_keel.tools.policy import Scope, ToolPolicy
from langgraph_keel.tools.turns import SCRATCHPAD, Ticket, making, watched

_RUNTIME = "__pregel_runtime"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call is made. Empty where the config does not say; `checkpoint_ns` is that of the graph."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    run_id: str


def place_of(config: Mapping[str, Any]) -> Place:
    """Return where a call is made.

    Raises:
        InvalidConfig: The config names no thread: the tool runs outside of a graph with a checkpointer.
    """
    configurable = config.get("configurable") or {}
    info = getattr(configurable.get(_RUNTIME), "execution_info", None)
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise InvalidConfig(
            "a tool was called without a thread: run it in a graph with a checkpointer, and a thread_id in its config"
        )
    run_id = (config.get("metadata") or {}).get("run_id") or configurable.get("run_id")
    return Place(
        thread_id_of(thread_id),
        str(getattr(info, "checkpoint_ns", None) or "").rpartition("|")[0],
        str(getattr(info, "checkpoint_id", None) or ""),
        str(getattr(info, "task_id", None) or ""),
        "" if run_id is None else text_of(str(run_id), "run_id"),
    )


def shelf_of(scope: Scope, place: Place, config: RunnableConfig) -> tuple[Shelf, str]:
    """Return where a call is kept, and what of its scope is part of its key.

    Raises:
        InvalidConfig: The scope is the run, and the config names none.
    """
    if callable(scope):
        return Shelf(None, TOOLS), f"of {text_of(scope(config), 'what the scope function returns')}"
    if scope == "run" and not place.run_id:
        raise InvalidConfig("ToolPolicy(scope='run') needs a run_id in the config's metadata, the same when it resumes")
    if scope == "shared":
        return Shelf(None, TOOLS), ""
    return Shelf(place.thread_id, TOOLS), f"run {place.run_id}" if scope == "run" else ""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, ready to be claimed.

    Attributes:
        policy: How the tool is kept.
        shelf: Where the call is kept.
        key: Its key.
        record: What the ledger is to say of it.
        config: The config it runs with.
        ticket: Its place among the calls of its task.
        execute: Runs the tool, given the idempotency key.
    """

    policy: ToolPolicy
    shelf: Shelf
    key: str
    record: CallRecord
    config: RunnableConfig
    ticket: Ticket
    execute: Callable[[str], Any]


class Answers:
    """Counts the answers of persons that a tool asks for, by LangGraph's own counter of `interrupt()`.

    Args:
        call: The call.
        promised: How many it has asked for in an earlier attempt: the next call of the task waits until it has again.
    """

    def __init__(self, call: Call, promised: int) -> None:
        self._configurable: Any = call.config.get("configurable") or {}
        self._ticket = call.ticket
        self._promised = promised
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count while the tool runs. The config is this call's own: LangGraph makes one for each."""
        if not self._promised:
            self._ticket.begin()
        scratchpad = self._configurable.get(SCRATCHPAD)
        if scratchpad is None:
            with making(self._ticket):
                yield
            return
        self._configurable[SCRATCHPAD] = watched(scratchpad, self._ticket, self._note)
        try:
            yield
        finally:
            self._configurable[SCRATCHPAD] = scratchpad

    def _note(self) -> None:
        self.count += 1
        if self.count >= self._promised:
            self._ticket.begin()


def pass_over(config: Mapping[str, Any], answers: int) -> None:
    """Let LangGraph take answers for used: they were given to a call that is not made again.

    Otherwise the next `interrupt()` of the same task would get them. Where none is left, there is nothing to take.
    """
    scratchpad: Any = (config.get("configurable") or {}).get(SCRATCHPAD)
    for _ in range(answers if scratchpad is not None else 0):
        if scratchpad.resume or scratchpad.get_null_resume(False) is not None:
            with suppress(GraphInterrupt):
                interrupt("keel: an answer that was used before")
