"""What a node is about to take out of its state, described for the archive: `saver._archive(removal(...))`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from langgraph_keel.core.address import configurable, thread_id_of
from langgraph_keel.core.archived import By, Removal, places_of, removal_id
from langgraph_keel.core.serde import encode
from langgraph_keel.errors import InvalidInput, UnstorableValue


def removal(
    config: RunnableConfig,
    messages: Sequence[BaseMessage],
    *,
    channel: str,
    by: By,
    model: str | None = None,
    summary: str | None = None,
    summary_id: str | None = None,
    previous: str | None = None,
    node: str | None = None,
    among: Sequence[BaseMessage] | None = None,
) -> Removal:
    """Return a description of messages that a node is about to take out of its state.

    Its `id` is known before anything is written, and the same when the node runs again on the same messages.

    Args:
        config: The config that the node was given: it says which thread, namespace, checkpoint and step.
        messages: What goes, in order.
        channel: The channel of the state.
        by: What takes them: "summary" or "window".
        model: The model that wrote the summary.
        summary: Its text.
        summary_id: The id of the message that stands for them.
        previous: The id of the archived part that the summary builds on.
        node: The node, if the config does not say.
        among: The whole list before: with it, what goes can be put back exactly where it stood, between others.

    Raises:
        InvalidInput: There is nothing to remove, or no checkpoint: the archive would be of a thread that is not there.
        InvalidConfig: The config names no usable thread.
    """
    if not messages:
        raise InvalidInput("nothing is to be removed: there is nothing to archive")
    given, told = configurable(config), config.get("metadata") or {}
    namespace = graph_of(str(given.get("checkpoint_ns") or ""), told)
    thread_id = thread_id_of(given.get("thread_id"))
    if not _is_stored(given):
        raise InvalidInput(
            f"nothing of thread {thread_id!r} can be archived here: this is no run of a graph that stores checkpoints, "
            "and no sweep and no erase would find it. Run it in a graph with checkpointer=saver, or say archive=False"
        )
    return Removal(
        id=_id(channel, namespace, messages),
        thread_id=thread_id,
        checkpoint_ns=namespace,
        checkpoint_id=_checkpoint(given, namespace),
        step=_whole(told.get("langgraph_step")),
        node=node or told.get("langgraph_node"),
        channel=channel,
        by=by,
        messages=tuple(messages),
        model=model,
        summary=summary,
        summary_id=summary_id,
        previous=previous,
        places=() if among is None else places_of(messages, among),
    )


def _is_stored(given: Mapping[str, Any]) -> bool:
    """Return whether a config is of a run that stores checkpoints."""
    if any(name.startswith("__pregel_") for name in given):
        return given.get("__pregel_checkpointer") is not None
    return bool(given.get("checkpoint_id") or given.get("checkpoint_map"))


def graph_of(namespace: str, told: Mapping[str, Any]) -> str:
    """Return the namespace of the graph that a node belongs to: inside a task, the last part names the task."""
    return namespace.rpartition("|")[0] if "langgraph_node" in told else namespace


def _checkpoint(given: Mapping[str, Any], namespace: str) -> str | None:
    known = given.get("checkpoint_map")
    found = (known.get(namespace) if isinstance(known, Mapping) else None) or given.get("checkpoint_id")
    return None if found is None else str(found)


def _whole(step: object) -> int | None:
    return step if isinstance(step, int) else None


def _id(channel: str, namespace: str, messages: Sequence[BaseMessage]) -> str:
    try:
        return removal_id(channel, namespace, messages, [encode(message) for message in messages])
    except UnstorableValue:  # only another serializer can store it: archived twice, at worst
        return token_hex(12)
