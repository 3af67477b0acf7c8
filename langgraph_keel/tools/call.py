"""A tool call: its place in the graph, its key, and its answers from people."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.types import interrupt
from pydantic import BaseModel

from langgraph_keel._langgraph import (
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    NS_SEP,
    Scratchpad,
    twin_of,
    var_child_runnable_config,
)
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.config import text_of, thread_id_of
from langgraph_keel.engine.leases import this_holder
from langgraph_keel.errors import InvalidConfig, InvalidInput
from langgraph_keel.tools.answers import CallSlot, call_context, remember, store_answers
from langgraph_keel.tools.invocations import INVOCATIONS
from langgraph_keel.tools.keys import arguments_of, canonical, key_of, key_of_one, version_of
from langgraph_keel.tools.ledger import CLAIMED, OWN, TOOLS, CallRecord
from langgraph_keel.tools.policy import Scope, ToolPolicy

_log = logging.getLogger(__name__)
_VERSIONS = 1000
"""Maximum number of tools whose versions are remembered."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a call is made; fields missing in the config are empty."""

    thread_id: str
    checkpoint_ns: str  # of the graph
    checkpoint_id: str
    task_id: str
    run_id: str
    steps: Mapping[str, str]  # by namespace of the enclosing graphs: the checkpoint from which the step runs


def place_of(config: Mapping[str, Any]) -> Place:
    """Return the place of a call."""
    configurable = config.get("configurable") or {}
    info = getattr(configurable.get(CONFIG_KEY_RUNTIME), "execution_info", None)
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise InvalidConfig(
            "a tool was called without a thread: run it in a graph with a checkpointer and a thread_id in its config"
        )
    # LangGraph removes `config["run_id"]` before a tool sees its config, and keeps it here.
    standard = getattr(info, "run_id", None)
    run_id = (config.get("metadata") or {}).get("run_id") or configurable.get("run_id") or standard
    return Place(
        thread_id_of(thread_id),
        str(getattr(info, "checkpoint_ns", None) or "").rpartition(NS_SEP)[0],
        str(getattr(info, "checkpoint_id", None) or ""),
        str(getattr(info, "task_id", None) or ""),
        "" if run_id is None else text_of(str(run_id), "run_id"),
        dict(configurable.get(CONFIG_KEY_CHECKPOINT_MAP) or {}),
    )


def shelf_of(tool: str, scope: Scope, place: Place, config: RunnableConfig) -> tuple[Shelf, str]:
    """Return the shelf of a call, and the part of its key that comes from its scope."""
    if callable(scope):
        try:
            return Shelf(None, TOOLS), f"of {text_of(scope(config), 'what it returns')}"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise InvalidInput(f"tool {tool!r}: the scope function of its ToolPolicy failed: {why}") from error
    if scope == "run" and not place.run_id:
        raise InvalidConfig(
            f"tool {tool!r}: ToolPolicy(scope='run') needs a run_id in the run's config (in a subgraph: in its "
            "metadata), and the same one to resume it"
        )
    if scope == "shared":
        return Shelf(None, TOOLS), ""
    return Shelf(place.thread_id, TOOLS), f"run {place.run_id}" if scope == "run" else ""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, ready to be claimed."""

    policy: ToolPolicy
    shelf: Shelf
    key: str
    record: CallRecord
    config: RunnableConfig
    args: Mapping[str, Any]  # validated, without ignored ones
    slot: CallSlot
    execute: Callable[[str], Any]  # runs the tool, given the idempotency key

    @property
    def is_alone(self) -> bool:
        """Whether it answers only itself and belongs to a task, which a crash may lose."""
        return OWN in self.key and bool(self.record.task_id)


class CallBuilder:
    """Builds calls. Its arguments are those of `ToolCache`."""

    def __init__(
        self,
        policies: Mapping[str, ToolPolicy | None],
        default: ToolPolicy,
        context: str | Callable[[RunnableConfig], str],
        store_arguments: bool,
    ) -> None:
        self._policies = policies
        self._default = default
        self._context = context
        self._stores_arguments = store_arguments
        self._versions: dict[int, tuple[BaseTool, str]] = {}
        self._names: set[str] = set()
        self._misspelt: set[str] = set()

    def __repr__(self) -> str:
        return f"{self._policies!r}, default={self._default!r}"

    def policy_of(self, name: str) -> ToolPolicy | None:
        """Return the policy of a tool; `None` if its calls are not kept."""
        policy = self._policies.get(name, self._default)
        return None if policy is None or policy.is_volatile else policy

    def context_of(self, config: RunnableConfig) -> str:
        """Return the further text that must be equal for two calls to be equal."""
        return self._context(config) if callable(self._context) else self._context

    def add_names(self, names: Collection[str]) -> None:
        """Add names of tools: policies with these names are not misspelt."""
        self._names.update(names)

    def build(
        self,
        tool: BaseTool,
        args: Mapping[str, Any],
        call_id: str,
        config: RunnableConfig,
        slot: CallSlot,
        secret: bytes,
        execute: Callable[[str], Any],
    ) -> Call:
        """Return a call, ready to be claimed."""
        policy = self.policy_of(tool.name) or self._default
        where = place_of(config)
        version = self._version_of(tool, policy)
        shelf, scope = shelf_of(tool.name, policy.scope, where, config)
        context = self.context_of(config)
        argument = policy.idempotency_argument
        valid = arguments_of(tool, args, {*policy.ignore, *([argument] if argument else [])})
        key = key_of(secret, tool.name, (scope, context), valid)
        is_alone = policy.scope == "call"
        record = CallRecord(
            tool.name,
            version,
            CLAIMED,
            0,
            0,
            this_holder(),
            secrets.token_hex(16),
            where.thread_id,
            where.checkpoint_ns,
            where.checkpoint_id,
            where.task_id,
            where.run_id,
            call_id,
            slot.name(call_id, key),
            cost=policy.cost,
            args=canonical(tool.name, valid) if self._stores_arguments else None,
            steps=where.steps if where.checkpoint_ns else {},
            invocation=INVOCATIONS.name(config) if is_alone else "",
            retries=policy.unknown == "retry",
        )
        key = key_of_one(key, record) if is_alone else key
        return Call(policy, shelf, key, record, config, valid, slot, execute)

    def _version_of(self, tool: BaseTool, policy: ToolPolicy) -> str:
        known = self._versions.get(id(tool))
        if len(self._versions) > _VERSIONS:
            self._versions.clear()  # a program that creates tools for every request must not keep them all
        if known is None or known[0] is not tool:  # the address of a deleted tool may be reused
            _check_names(tool, policy)
            self._warn_of_misspelt()
            known = self._versions[id(tool)] = tool, version_of(tool, policy.version)
        return known[1]

    def _warn_of_misspelt(self) -> None:
        """Warn once about each policy whose name is probably misspelt."""
        # The tools of a `ToolNode` are known from its first call on; others may follow.
        others = sorted(self._names - self._policies.keys())
        for name in sorted(self._policies.keys() - self._names - self._misspelt):
            for near in get_close_matches(name, others, 1, 0.8):
                self._misspelt.add(name)
                _log.warning(
                    "tool %r has no policy, but %r, which is not a tool, has one: is that name misspelt?", near, name
                )


def _check_names(tool: BaseTool, policy: ToolPolicy) -> None:
    """Check that a tool has the arguments named by its policy."""
    known = _arguments_of(tool)
    if known is None:
        return
    for name in policy.ignore:
        if name not in known:
            raise InvalidInput(f"ToolPolicy(ignore=[{name!r}]): {_has(tool, known)}")
    argument = policy.idempotency_argument
    if argument is not None and argument not in known:
        raise InvalidInput(f"ToolPolicy(idempotency_argument={argument!r}): {_has(tool, known)}")


def _has(tool: BaseTool, known: Collection[str]) -> str:
    return f"tool {tool.name!r} has no such argument; it has {', '.join(sorted(known)) or 'none'}"


def _arguments_of(tool: BaseTool) -> set[str] | None:
    """Return all names of a tool's arguments; `None` if it takes any argument."""
    if isinstance(tool.args_schema, dict):
        takes_any = tool.args_schema.get("additionalProperties", False) is not False
        return None if takes_any else set(tool.args_schema.get("properties", ()))
    model = tool.get_input_schema()
    if not issubclass(model, BaseModel):
        return None
    fields = model.model_fields
    takes_any = model.model_config.get("extra") == "allow" or "kwargs" in fields
    return None if takes_any else {*fields, *(field.alias for field in fields.values() if field.alias)}


class Answers:
    """Gives a call its own answers of people, and no others.

    `interrupt()` reads them from LangGraph's scratchpad, which is replaced by a twin while the call runs.
    """

    def __init__(self, call: Call, known: Sequence[int]) -> None:
        self._configurable: Any = call.config.get("configurable") or {}
        self._config = call.config
        self._slot = call.slot
        self._known = known  # places in LangGraph's list of the answers used in earlier attempts
        self._count = 0
        self.used: list[int] = []

    @contextmanager
    def provide(self) -> Iterator[None]:
        """Answer the call's interrupts with them inside the context."""
        scratchpad = self._configurable.get(CONFIG_KEY_SCRATCHPAD)
        if scratchpad is None:
            with call_context(self._slot):
                yield
            return
        self._configurable[CONFIG_KEY_SCRATCHPAD] = self._twin(scratchpad)
        try:
            yield
        finally:
            self._configurable[CONFIG_KEY_SCRATCHPAD] = scratchpad
            if self.used:
                store_answers(self._config, self._slot)

    def ask(self, question: Any) -> Any:
        """Return the next answer to Keel's question, or interrupt the graph with it."""
        with self.provide():
            token = var_child_runnable_config.set(self._config)
            try:
                return interrupt(question)
            finally:
                var_child_runnable_config.reset(token)

    def _twin(self, scratchpad: Scratchpad) -> Scratchpad:
        def counter() -> int:
            return self._place()

        remember(counter, self._slot)
        return twin_of(scratchpad, counter, self._new_answer)

    def _place(self) -> int:
        """Return the place of the next question's answer: known, or first unused."""
        slot, answered = self._slot, len(self._slot.scratchpad.resume)
        nth, self._count = self._count, self._count + 1
        if nth < len(self._known) and self._known[nth] < answered:
            slot.pass_over(1)
            return self._use(self._known[nth])
        place = slot.next_place
        if not slot.may_use(place):
            return sys.maxsize  # not the next place: another call may have used it before LangGraph looks
        return self._use(place) if place < answered else answered

    def _use(self, place: int) -> int:
        self.used.append(place)
        self._slot.use([place])
        return place

    def _new_answer(self, consume: bool = False) -> Any:
        if not self._slot.may_use(len(self._slot.scratchpad.resume)):
            return None
        answer = self._slot.scratchpad.get_null_resume(consume)
        if consume and answer is not None:
            self._use(len(self._slot.scratchpad.resume))
        return answer
