"""Configs: validation of ids, addresses, and the run and owner behind a config."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig

from langgraph_keel._langgraph import (
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_REPLAY_STATE,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_TASK_ID,
)
from langgraph_keel.engine.tenants import MARK
from langgraph_keel.errors import InvalidConfig, InvalidInput

USER = "user_id"


@dataclass(unsafe_hash=True, slots=True)  # not frozen: see `records.record`
class Address:
    """A thread, a namespace in it, and a checkpoint (`None`: the latest)."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None

    def __str__(self) -> str:
        """Return its name in errors."""
        namespace = f", namespace {self.checkpoint_ns!r}" if self.checkpoint_ns else ""
        return f"thread {self.thread_id!r}{namespace}, checkpoint {self.checkpoint_id or 'latest'}"

    def at(self, checkpoint_id: str | None) -> Address:
        """Return the address of another checkpoint of the same namespace."""
        return Address(self.thread_id, self.checkpoint_ns, checkpoint_id)


Origin = Literal["head", "named"]


class ThreadId(str):
    """A thread id that remembers how its config was read: from the head or by id.

    LangGraph uses the config that `get_tuple` returned for all steps of a run. It is the only way for `put` to
    distinguish a run that continues the latest checkpoint from a run that forks an older one on purpose.
    """

    __slots__ = ("origin",)
    origin: Origin

    def __new__(cls, value: str, origin: Origin) -> ThreadId:
        """Return `value` as read by `origin`."""
        self = str.__new__(cls, value)
        self.origin = origin
        return self

    def __eq__(self, other: object) -> bool:
        """Compare as a plain str does; another subclass of str may define the result."""
        return str.__eq__(self, other) if type(other) in (str, ThreadId) else NotImplemented

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # A copy on another machine is a plain id, and pickles contain no classes of Keel.
        return str, (str(self),)


def configurable(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `configurable` mapping of a config."""
    # `isinstance` with an abstract class takes as long as all the rest.
    values = config.get("configurable") if type(config) is dict or isinstance(config, Mapping) else None
    if type(values) is not dict and not isinstance(values, Mapping):
        raise InvalidConfig(
            f"config has no 'configurable' mapping: pass {{'configurable': {{'thread_id': ...}}}}, not {config!r}"
        )
    return values


def thread_id_of(value: object) -> str:
    """Return a valid thread id; an int or a UUID is accepted, as LangGraph does."""
    if value is None:
        raise InvalidConfig("config has no thread_id: pass {'configurable': {'thread_id': ...}}")
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 4096:
        return str(value)
    text = text_of(value, "thread_id", empty=False)
    if text[0] == MARK:
        raise InvalidConfig(f"a thread_id cannot begin with U+001F, which marks the threads of tenants: {text!r:.80}")
    return text


def text_of(value: object, what: str, empty: bool = True) -> str:
    """Return a name or id that every store can store; a UUID is converted to text."""
    if isinstance(value, str) and value.isascii() and (value or empty):
        return str(value)
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str):
        raise InvalidConfig(f"{what} must be a str, not {type(value).__name__}: {_show(value)}")
    if not value:
        raise InvalidConfig(f"{what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidConfig(
            f"{what} holds a lone surrogate at position {error.start}, which cannot be stored: {value!r:.80}"
        ) from None
    return str(value)


def texts_of(values: Collection[str], what: str) -> set[str]:
    """Return names or ids as `text_of` does for one."""
    if isinstance(values, str):
        raise InvalidInput(f"pass a list of {what}s, not one string: [{values!r}]")
    return {text_of(value, what) for value in values}


def _show(value: object) -> str:
    return "a very large number" if isinstance(value, int) and value.bit_length() >= 4096 else f"{value!r:.80}"


def address_of(config: Mapping[str, Any]) -> Address:
    """Return the address in a config. The default namespace is the root."""
    values = configurable(config)
    checkpoint_id = values.get("checkpoint_id")
    return Address(
        thread_id_of(values.get("thread_id")),
        text_of(values.get("checkpoint_ns") or "", "checkpoint_ns"),
        text_of(checkpoint_id, "checkpoint_id", empty=False) if checkpoint_id else None,
    )


def config_of(address: Address, origin: Origin, checkpoint_id: str | None = None) -> RunnableConfig:
    """Return a config of an address or another checkpoint there, with its origin."""
    return {
        "configurable": {
            "thread_id": ThreadId(address.thread_id, origin),
            "checkpoint_ns": address.checkpoint_ns,
            "checkpoint_id": checkpoint_id or address.checkpoint_id,
        }
    }


def must_follow_head(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Return whether the parent of this `put` must still be the latest checkpoint.

    Not for runs from a checkpoint named by id, subgraphs of such a replay, copies (`as_node="__copy__"` makes a sibling
    of the head), and programs that call `put` with their own config.
    """
    values = config.get("configurable") or {}
    if values.get(CONFIG_KEY_REPLAY_STATE) is not None or metadata.get("source") == "fork":
        return False
    thread_id = values.get("thread_id")
    if isinstance(thread_id, ThreadId):
        return thread_id.origin == "head"
    # A run on a new thread has no `ThreadId`; LangGraph's `ensure_config` sets this key for every run.
    return "recursion_limit" in config


def begins_run(config: Mapping[str, Any]) -> bool:
    """Return whether LangGraph reads the checkpoint from which a root graph begins."""
    values = config.get("configurable") or {}
    return CONFIG_KEY_RUNTIME in values and CONFIG_KEY_TASK_ID not in values and not values.get("checkpoint_ns")


def run_of(config: Mapping[str, Any]) -> object:
    """Return the `RunControl` that a run shares with its subgraphs, or `None`."""
    values = config.get("configurable") or {}
    return getattr(values.get(CONFIG_KEY_RUNTIME), "control", None)


def stores_at_end(config: Mapping[str, Any]) -> bool:
    """Return whether an invocation stores checkpoints only at its end."""
    return (config.get("configurable") or {}).get(CONFIG_KEY_DURABILITY) == "exit"


def is_task(text: str) -> bool:
    """Return whether this is a task id: a UUID."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


Owner: TypeAlias = Callable[[RunnableConfig], str | None]


def owner_in(metadata: Mapping[str, Any]) -> str:
    """Return the owner in the metadata of a checkpoint; empty if it has none."""
    owner = metadata.get(USER)
    return "" if owner is None else str(owner)  # may be a UUID, which LangGraph omits from metadata


def check_owner(owner: object, what: str) -> None:
    """Refuse NUL in the name of an owner: LangGraph removes it from metadata."""
    if isinstance(owner, str) and "\0" in owner:
        raise InvalidConfig(f"{what} contains NUL, without which it would be another user's name: {owner!r:.80}")


def owner_of(config: Mapping[str, Any], ask: Owner | None = None) -> str:
    """Return the owner of a run's thread, from its config or `owner=`; empty if none."""
    for part in (config.get("configurable"), config.get("metadata")):
        if part and (owner := owner_in(part)):
            check_owner(owner, "user_id")
            return owner
    if ask is None:
        return ""
    try:
        returned = ask(cast(RunnableConfig, config))
    except Exception as error:
        raise InvalidInput(f"owner= failed, so nothing was written: {type(error).__name__}: {error}") from error
    if not isinstance(returned, str | None):
        raise InvalidInput(f"owner= must return a str or None, not {returned!r:.100}: nothing was written")
    check_owner(returned, "the result of owner=")
    return returned or ""
