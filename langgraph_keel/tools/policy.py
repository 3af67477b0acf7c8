"""The settings of a tool: reuse of its results, and calls that were cut off."""

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
"""Upper limit of numbers: 3,000 years or 100 GB, still finite and displayable as a date."""


@publish
@check_own_names
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """How the calls of one tool are kept.

    The defaults suit a tool that acts: each call runs once, and you settle unknown outcomes.

    Attributes:
        unknown: What happens if the process died during a call, so that its outcome is unknown. `"raise"` raises
            `ToolOutcomeUnknown`. `"retry"` runs the tool again; use it for tools that only read, or that recognize a
            call by its idempotency key. `"ask"` asks a person by an interrupt (see `ToolCache`).
        unknown_errors: Errors of the tool after which it may have acted, such as a timeout: an exception class, or a
            tuple of classes. The outcome of the call is unknown then, as if the process had died. After all other
            errors the tool runs again with its step.
        scope: Which equal calls share one result. `"call"`: only the same call, when its step runs again. All other
            scopes are for tools that read: calls of the same `"thread"`; of the same `"run"`, by the `run_id` in the
            config (in a subgraph: in the config's `metadata`); all calls (`"shared"`); or those for which a function
            of the run's config returns the same text, such as a tenant. Settle calls that threads share with
            `cache.settle(None, ...)` or `keel settle --shared`.
        ttl: Seconds for which a result may answer other calls; `None`: as long as the thread exists.
        ignore: Names of arguments that are not compared.
        version: The tool's version; `None` derives one from its schema and source. Results of other versions are not
            used.
        cache_if: A function of the result (as the tool's node gets it) that returns whether it may be reused; `None`:
            always. If it raises, the error is logged and the result is not kept, but the agent still gets it.
        max_bytes: Maximum size of a kept result, packed and compressed; `None`: no limit.
        offload_bytes: Size in bytes above which a text result stays out of the conversation. Its message contains the
            beginning, a digest and a reference for `ToolCache.result`. `None`: never.
        idempotency_argument: The argument in which the tool receives the idempotency key, which is the same for every
            attempt at one call.
        cost: The cost of a call, in your currency, for the savings in `ToolCache.stats`.
        is_volatile: Whether to keep nothing: the tool runs as if there were no ledger.

    Raises:
        InvalidInput: If a value is invalid, or an option does not exist.
    """

    unknown: Literal["raise", "retry", "ask"] = "raise"
    unknown_errors: type[Exception] | tuple[type[Exception], ...] = ()
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
        """Validate the options, before a tool has run."""
        if self.unknown not in _UNKNOWN:
            raise InvalidInput(f"unknown={self.unknown!r}: use 'raise', 'retry' or 'ask'")
        errors = self.unknown_errors if isinstance(self.unknown_errors, tuple) else (self.unknown_errors,)
        if not all(isinstance(error, type) and issubclass(error, Exception) for error in errors):
            raise InvalidInput(
                f"unknown_errors={self.unknown_errors!r}: pass a class of exceptions, or a tuple of classes"
            )
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
    """Validate a number from the user."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < _MOST or (is_more and value == least):
        wanted = f"above {least:g}" if is_more else f"of at least {least:g}"
        raise InvalidInput(f"{name}={value!r}: use a number {wanted} (and below {_MOST:g})")
