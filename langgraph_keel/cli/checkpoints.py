"""What a checkpoint says about its run: which nodes ran, what comes next, what waits, where it branched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Interrupt

from langgraph_keel.core.provenance import ModelCall
from langgraph_keel.timeline import steps


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
    """Return the nodes that run from here."""
    return steps.next_nodes(cast(Any, found.checkpoint), found.checkpoint["channel_values"])


def nodes_run(found: CheckpointTuple, parent: CheckpointTuple | None) -> tuple[str, ...]:
    """Return the nodes that ran between the parent and this checkpoint."""
    if parent is None or found.metadata.get("source") != "loop":
        return ()
    before = cast(Any, parent.checkpoint)
    return steps.nodes_run(cast(Any, found.checkpoint), before, before["channel_values"])


def interrupts(found: CheckpointTuple) -> tuple[Interrupt, ...]:
    """Return the questions of tasks that asked and have written nothing since."""
    return steps.interrupts(found.pending_writes or [])


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
    writes = item.pending_writes or []
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
        pending=steps.written(writes) if head else (),
        interrupts=steps.interrupts(writes),
        errors=steps.errors(writes) if head else (),
        models=models,
    )
