"""A call, as the graph's config tells it: whose it is, and the answers of persons that it uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt

from langgraph_keel._langgraph import (
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    NS_SEP,
    Scratchpad,
    twin_of,
    var_child_runnable_config,
)
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.config import text_of, thread_id_of
from langgraph_keel.errors import InvalidConfig, InvalidInput
from langgraph_keel.tools.answers import Ticket, making, remember
from langgraph_keel.tools.ledger import TOOLS, CallRecord
from langgraph_keel.tools.policy import Scope, ToolPolicy


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
    info = getattr(configurable.get(CONFIG_KEY_RUNTIME), "execution_info", None)
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise InvalidConfig(
            "a tool was called without a thread: run it in a graph with a checkpointer, and a thread_id in its config"
        )
    # LangGraph takes `config["run_id"]` away before a tool sees its config, and leaves it here.
    standard = getattr(info, "run_id", None)
    run_id = (config.get("metadata") or {}).get("run_id") or configurable.get("run_id") or standard
    return Place(
        thread_id_of(thread_id),
        str(getattr(info, "checkpoint_ns", None) or "").rpartition(NS_SEP)[0],
        str(getattr(info, "checkpoint_id", None) or ""),
        str(getattr(info, "task_id", None) or ""),
        "" if run_id is None else text_of(str(run_id), "run_id"),
    )


def shelf_of(tool: str, scope: Scope, place: Place, config: RunnableConfig) -> tuple[Shelf, str]:
    """Return where a call is kept, and what of its scope is part of its key.

    Raises:
        InvalidInput: The scope is a function, and it fails or returns no text.
        InvalidConfig: The scope is the run, and the config names none.
    """
    if callable(scope):
        return Shelf(None, TOOLS), f"of {_told(tool, scope, config)}"
    if scope == "run" and not place.run_id:
        raise InvalidConfig(
            f"tool {tool!r}: ToolPolicy(scope='run') needs a run_id in the run's config (in a subgraph: in its "
            "metadata), the same when it resumes"
        )
    if scope == "shared":
        return Shelf(None, TOOLS), ""
    return Shelf(place.thread_id, TOOLS), f"run {place.run_id}" if scope == "run" else ""


def _told(tool: str, scope: Callable[[RunnableConfig], str], config: RunnableConfig) -> str:
    try:
        return text_of(scope(config), "what it returns")
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"tool {tool!r}: the scope function of its ToolPolicy failed: {why}") from error


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, ready to be claimed.

    Attributes:
        policy: How the tool is kept.
        shelf: Where the call is kept.
        key: Its key.
        record: What the ledger is to say of it.
        config: The config it runs with.
        args: Its validated arguments, those that are ignored left out.
        ticket: Its place among the calls of its task.
        execute: Runs the tool, given the idempotency key.
    """

    policy: ToolPolicy
    shelf: Shelf
    key: str
    record: CallRecord
    config: RunnableConfig
    args: Mapping[str, Any]
    ticket: Ticket
    execute: Callable[[str], Any]


class Answers:
    """The answers of persons that a call uses: its own, and no others.

    `interrupt()` finds them through LangGraph's scratchpad, which a twin stands in for while the call is made.

    Args:
        call: The call.
        known: The places, in LangGraph's list of answers, of those that it used in earlier attempts.
    """

    def __init__(self, call: Call, known: Sequence[int]) -> None:
        self._configurable: Any = call.config.get("configurable") or {}
        self._config = call.config
        self._ticket = call.ticket
        self._known = known
        self._count = 0
        self.used: list[int] = []

    @contextmanager
    def given(self) -> Iterator[None]:
        """Give them to who asks meanwhile. The config is this call's own: LangGraph makes one for each."""
        scratchpad = self._configurable.get(CONFIG_KEY_SCRATCHPAD)
        if scratchpad is None:
            with making(self._ticket):
                yield
            return
        self._configurable[CONFIG_KEY_SCRATCHPAD] = self._twin(scratchpad)
        try:
            yield
        finally:
            self._configurable[CONFIG_KEY_SCRATCHPAD] = scratchpad

    def to(self, question: Any) -> Any:
        """Return the next answer to a question of ours, or interrupt the graph with it."""
        with self.given():
            token = var_child_runnable_config.set(self._config)
            try:
                return interrupt(question)
            finally:
                var_child_runnable_config.reset(token)

    def _twin(self, scratchpad: Scratchpad) -> Scratchpad:
        def counter() -> int:
            return self._place()

        remember(counter, self._ticket)
        return twin_of(scratchpad, counter, self._new_answer)

    def _place(self) -> int:
        """Return the place of the answer to the next question: a known one, or the first that nobody has used."""
        ticket, answered = self._ticket, len(self._ticket.scratchpad.resume)
        nth, self._count = self._count, self._count + 1
        if nth < len(self._known) and self._known[nth] < answered:
            ticket.pass_over(1)
            return self._use(self._known[nth])
        if not ticket.may_take_the_new_answer:
            return sys.maxsize  # not the next one: whoever may take it may have done so before LangGraph looks
        place: int = max(ticket.scratchpad.interrupt_counter(), ticket.turns.first_free())
        return self._use(place) if place < answered else answered

    def _use(self, place: int) -> int:
        self.used.append(place)
        self._ticket.take([place])
        return place

    def _new_answer(self, consume: bool = False) -> Any:
        if not self._ticket.may_take_the_new_answer:
            return None
        answer = self._ticket.scratchpad.get_null_resume(consume)
        if consume and answer is not None:
            self._use(len(self._ticket.scratchpad.resume))
        return answer
