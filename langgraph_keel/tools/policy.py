"""What the user decides about a tool: when a result may be used again, and what becomes of a call that was cut off."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langchain_core.runnables import RunnableConfig

from langgraph_keel.engine.misspelt import check_own_names
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput

Scope: TypeAlias = Literal["call", "thread", "run", "shared"] | Callable[[RunnableConfig], str]
_SCOPES = ("call", "thread", "run", "shared")
_UNKNOWN = ("raise", "retry", "ask")
_MOST = 1e11
"""More than 3,000 years, or 100 GB: not infinite, and what can be shown as a date."""


@publish
@check_own_names
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """How one tool is kept. The defaults suit a tool that acts: each call runs once, and a doubt is yours to settle.

    Attributes:
        unknown: What happens to a call that was begun, and whose end nobody knows, because its process died: `"raise"`
            raises `ToolOutcomeUnknown`; `"retry"` runs the tool again, for those that only read, or that recognize a
            call by its idempotency key; `"ask"` asks a person by an interrupt (see `ToolCache`).
        scope: Which equal calls are answered with one result. `"call"`: none but the very same call, when its step runs
            again. All others are for tools that read: those of the same `"thread"`; of the same `"run"`, the one with
            this `run_id` in its config (for a tool in a subgraph: in the config's `metadata`); all (`"shared"`); or
            those for which a function of the run's config gives the same text, such as a tenant. What may be used in
            several threads is settled by `cache.settle(None, ...)` and `keel settle --shared`.
        ttl: Seconds for which another call may be answered with a result; `None` is as long as the thread lives.
        ignore: Arguments that make no difference.
        version: The tool's version; `None` derives one from its schema and source. Results of others are not used.
        cache_if: Whether a result (as the tool's node gets it) may be used again; `None` is always. If it fails, the
            result is not kept, and the error is logged: the tool has run, and the agent gets its result.
        max_bytes: Results that take more, packed and compressed, are not kept; `None` is no limit.
        offload_bytes: Text results that take more stay out of the conversation: the message carries the beginning, a
            digest and a reference for `ToolCache.result`. `None` is never.
        idempotency_argument: The tool's argument that gets the idempotency key: the same for every attempt at one call.
        cost: What a call costs, in your currency, for the account of what was saved.
        is_volatile: Never keep anything: the tool runs as if there were no ledger.

    Raises:
        InvalidInput: One of them cannot be meant so, or there is none of that name.
    """

    unknown: Literal["raise", "retry", "ask"] = "raise"
    scope: Scope = "call"
    ttl: float | None = None
    ignore: Collection[str] = ()
    version: str | None = None
    cache_if: Callable[[Any], bool] | None = None
    max_bytes: int | None = None
    offload_bytes: int | None = None
    idempotency_argument: str | None = None
    cost: float | None = None
    is_volatile: bool = False

    def __post_init__(self) -> None:
        """Check what can be checked now, before a tool has run."""
        if self.unknown not in _UNKNOWN:
            raise InvalidInput(f"unknown={self.unknown!r}: use 'raise', 'retry' or 'ask'")
        if self.scope not in _SCOPES and not callable(self.scope):
            raise InvalidInput(
                f"scope={self.scope!r}: use 'call', 'thread', 'run', 'shared' or a function of the config"
            )
        is_list = isinstance(self.ignore, Collection) and not isinstance(self.ignore, str | bytes)
        if not is_list or not all(isinstance(name, str) for name in self.ignore):
            raise InvalidInput(f"ignore={self.ignore!r}: pass a list of names of arguments")
        for name in ("ttl", "max_bytes", "offload_bytes", "cost"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least=0, is_more=name != "cost")
        if self.cache_if is not None and not callable(self.cache_if):
            raise InvalidInput(f"cache_if={self.cache_if!r}: pass a function of the result, or None")
        if not isinstance(self.idempotency_argument, str | None) or self.idempotency_argument == "":
            raise InvalidInput(f"idempotency_argument={self.idempotency_argument!r}: pass an argument's name, or None")


def check_number(name: str, value: Any, *, least: float, is_more: bool = False) -> None:
    """Check a number that the user gives."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < _MOST or (is_more and value == least):
        wanted = f"above {least:g}" if is_more else f"of at least {least:g}"
        raise InvalidInput(f"{name}={value!r}: use a number {wanted} (and below {_MOST:g})")
