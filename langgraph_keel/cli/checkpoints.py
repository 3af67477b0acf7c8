"""What a checkpoint says about its run: which nodes ran, what comes next, what waits, where it branched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Interrupt, Send

from langgraph_keel.core.provenance import ModelCall

_TO, _JOIN, _SENDS = "branch:to:", "join:", "__pregel_tasks"
_INTERNAL_NODES = ("__input__", "__interrupt__")
_NOT_OUTPUT = ("__interrupt__", "__resume__", "__error__", "__error_source_node__")
_SHORTEST_ID = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One checkpoint in a thread's history.

    Attributes:
        ran: The nodes whose work this checkpoint stores.
        next: The nodes that run from here.
        follows: Whether its parent is the checkpoint put just before it in the same namespace.
        head: Whether nothing continues it.
        pending: Channels written by tasks that finished in a step which did not; only at a head.
        interrupts: Questions that wait for an answer.
        errors: What tasks failed with, as their `repr`; only at a head.
        models: The models that were called on the way here, as served if they said so.
    """

    id: str
    parent: str | None
    ns: str
    step: int | None
    source: str
    ts: str
    ran: tuple[str, ...]
    next: tuple[str, ...]
    follows: bool
    head: bool
    pending: tuple[str, ...]
    interrupts: tuple[Interrupt, ...]
    errors: tuple[str, ...]
    models: tuple[str, ...] = ()


def id_of(found: CheckpointTuple) -> str:
    """Return the checkpoint's id."""
    return found.checkpoint["id"]


def parent_of(found: CheckpointTuple) -> str | None:
    """Return the id of the checkpoint it continues."""
    config = found.parent_config
    return None if config is None else config["configurable"].get("checkpoint_id")


def ns_of(found: CheckpointTuple) -> str:
    """Return the namespace it belongs to; the root graph's is empty."""
    return str(found.config["configurable"].get("checkpoint_ns") or "")


def next_nodes(found: CheckpointTuple) -> tuple[str, ...]:
    """Return the nodes that run from here, as the channels of a `StateGraph` tell it."""
    targets = (_target(found, channel) for channel in found.checkpoint["channel_values"])
    return tuple(sorted({*_sent(found), *(node for node in targets if node)}))


def _target(found: CheckpointTuple, channel: str) -> str | None:
    """Return the node that a filled trigger channel starts, unless it has seen this version already."""
    node = _addressee(channel, found.checkpoint["channel_values"][channel])
    versions: dict[str, Any] = found.checkpoint["channel_versions"]
    if node is None or channel not in versions:
        return None
    seen = found.checkpoint["versions_seen"].get(node, {}).get(channel)
    return node if seen is None or versions[channel] > seen else None


def _addressee(channel: str, value: Any) -> str | None:
    if channel.startswith(_TO):
        return channel.removeprefix(_TO)
    if channel.startswith(_JOIN):
        starts, _, node = channel.removeprefix(_JOIN).partition(":")
        return node if isinstance(value, set) and value >= set(starts.split("+")) else None
    return channel if channel == "__start__" else None


def _sent(found: CheckpointTuple) -> Iterator[str]:
    sends = found.checkpoint["channel_values"].get(_SENDS) or ()
    return (send.node for send in sends if isinstance(send, Send))


def nodes_run(found: CheckpointTuple, parent: CheckpointTuple | None) -> tuple[str, ...]:
    """Return the nodes that ran between the parent and this checkpoint."""
    if parent is None or found.metadata.get("source") != "loop":
        return ()
    before = parent.checkpoint["versions_seen"]
    moved = {node for node, seen in found.checkpoint["versions_seen"].items() if seen != before.get(node)}
    return tuple(sorted((moved | set(_sent(parent))) - set(_INTERNAL_NODES)))


def interrupts(found: CheckpointTuple) -> tuple[Interrupt, ...]:
    """Return the questions of tasks that asked and have written nothing since."""
    writes = found.pending_writes or []
    answered = {task for task, channel, _ in writes if channel not in _NOT_OUTPUT}
    asked = [value for task, channel, value in writes if channel == "__interrupt__" and task not in answered]
    return tuple(item for value in asked for item in _each(value) if isinstance(item, Interrupt))


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def rows(found: Sequence[CheckpointTuple], saver: Any, calls: Iterable[ModelCall] = ()) -> list[Row]:
    """Return the history of `found`, which is newest first; parents outside it are looked up in `saver`.

    Args:
        found: The checkpoints.
        saver: Where they are.
        calls: The calls of models in the thread.
    """
    models = _models(calls)
    known = {(ns_of(item), id_of(item)): item for item in found}
    parents = {(ns_of(item), parent_of(item)) for item in found}
    return [
        _row(
            item,
            _parent(item, known, saver),
            _follows(found, place),
            (ns_of(item), id_of(item)) not in parents,
            tuple(models.get((ns_of(item), id_of(item)), ())),
        )
        for place, item in enumerate(found)
    ]


def _models(calls: Iterable[ModelCall]) -> dict[tuple[str, str | None], dict[str, None]]:
    """Return per place of a checkpoint the names of the models, each once, in the order of the calls."""
    models: dict[tuple[str, str | None], dict[str, None]] = {}
    for call in calls:
        name = call.served_model or call.model
        if name and call.error is None:
            models.setdefault((call.checkpoint_ns, call.checkpoint_id), {})[name] = None
    return models


def _parent(item: CheckpointTuple, known: dict[tuple[str, str], CheckpointTuple], saver: Any) -> CheckpointTuple | None:
    if item.parent_config is None:
        return None
    return known.get((ns_of(item), parent_of(item) or "")) or saver.get_tuple(item.parent_config)


def _follows(found: Sequence[CheckpointTuple], place: int) -> bool:
    item = found[place]
    before = next((other for other in found[place + 1 :] if ns_of(other) == ns_of(item)), None)
    return before is None or parent_of(item) == id_of(before)


def _row(
    item: CheckpointTuple, parent: CheckpointTuple | None, follows: bool, head: bool, models: tuple[str, ...]
) -> Row:
    written = (channel for _, channel, _ in item.pending_writes or [] if channel not in (*_NOT_OUTPUT, "__start__"))
    return Row(
        id=id_of(item),
        parent=parent_of(item),
        ns=ns_of(item),
        step=item.metadata.get("step"),
        source=str(item.metadata.get("source", "")),
        ts=item.checkpoint["ts"],
        ran=nodes_run(item, parent),
        next=next_nodes(item),
        follows=follows,
        head=head,
        pending=tuple(dict.fromkeys(written)) if head else (),
        interrupts=interrupts(item),
        errors=_errors(item) if head else (),
        models=models,
    )


def _errors(item: CheckpointTuple) -> tuple[str, ...]:
    failed = (value for _, channel, value in item.pending_writes or [] if channel == "__error__")
    return tuple(value if isinstance(value, str) else repr(value) for value in failed)


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return each id's shortest end that tells it from the others; LangGraph's ids differ at the end."""
    wanted = list(dict.fromkeys(ids))
    longest = max(map(len, wanted), default=0)
    for length in range(_SHORTEST_ID, longest):
        short = {item: item[-length:] for item in wanted}
        if len(set(short.values())) == len(wanted):
            return short
    return {item: item for item in wanted}
