"""What a checkpoint says about its run: which nodes ran, what comes next, what waits, what failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from langgraph.checkpoint.base import PendingWrite
from langgraph.types import Interrupt, Send

Checkpoint: TypeAlias = Mapping[str, Any]
"""A checkpoint's `channel_versions` and `versions_seen`; its values are passed beside it."""
Values: TypeAlias = Mapping[str, Any]

_TO, _JOIN, SENDS = "branch:to:", "join:", "__pregel_tasks"
_INTERNAL_NODES = ("__input__", "__interrupt__")
_NOT_OUTPUT = ("__interrupt__", "__resume__", "__error__", "__error_source_node__")


def is_trigger(channel: str) -> bool:
    """Return whether a channel's value is needed to tell which nodes run."""
    return channel.startswith((_TO, _JOIN)) or channel in (SENDS, "__start__")


def next_nodes(checkpoint: Checkpoint, values: Values) -> tuple[str, ...]:
    """Return the nodes that run from here, as the channels of a `StateGraph` tell it."""
    targets = (_target(checkpoint, channel, value) for channel, value in values.items())
    return tuple(sorted({*_sent(values), *(node for node in targets if node)}))


def _target(checkpoint: Checkpoint, channel: str, value: Any) -> str | None:
    """Return the node that a filled trigger channel starts, unless it has seen this version already."""
    node = _addressee(channel, value)
    versions: Mapping[str, Any] = checkpoint["channel_versions"]
    if node is None or channel not in versions:
        return None
    seen = checkpoint["versions_seen"].get(node, {}).get(channel)
    return node if seen is None or versions[channel] > seen else None


def _addressee(channel: str, value: Any) -> str | None:
    if channel.startswith(_TO):
        return channel.removeprefix(_TO)
    if channel.startswith(_JOIN):
        starts, _, node = channel.removeprefix(_JOIN).partition(":")
        return node if isinstance(value, set) and value >= set(starts.split("+")) else None
    return channel if channel == "__start__" else None


def _sent(values: Values) -> Iterator[str]:
    return (send.node for send in values.get(SENDS) or () if isinstance(send, Send))


def nodes_run(checkpoint: Checkpoint, before: Checkpoint, sent_before: Values) -> tuple[str, ...]:
    """Return the nodes that ran between two checkpoints, the second of which has `source="loop"`."""
    seen = before["versions_seen"]
    moved = {node for node, now in checkpoint["versions_seen"].items() if now != seen.get(node)}
    return tuple(sorted((moved | set(_sent(sent_before))) - set(_INTERNAL_NODES)))


def interrupts(writes: Sequence[PendingWrite]) -> tuple[Interrupt, ...]:
    """Return the questions of tasks that asked and have written nothing since."""
    answered = {task for task, channel, _ in writes if channel not in _NOT_OUTPUT}
    return asked([write for write in writes if write[0] not in answered])


def asked(writes: Sequence[PendingWrite]) -> tuple[Interrupt, ...]:
    """Return the questions of tasks, answered or not."""
    values = (value for _, channel, value in writes if channel == "__interrupt__")
    return tuple(item for value in values for item in _each(value) if isinstance(item, Interrupt))


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def written(writes: Sequence[PendingWrite]) -> tuple[str, ...]:
    """Return the channels that tasks have written, each once."""
    return tuple(dict.fromkeys(channel for _, channel, _ in writes if channel not in (*_NOT_OUTPUT, "__start__")))


def errors(writes: Sequence[PendingWrite]) -> tuple[str, ...]:
    """Return what tasks failed with."""
    failed = (value for _, channel, value in writes if channel == "__error__")
    return tuple(value if isinstance(value, str) else repr(value) for value in failed)
