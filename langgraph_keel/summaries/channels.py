"""The channels of a graph as visible to nodes, and the effects of updates.

A state does not show its reducers, nor keys that its schema lacks, so an unsuitable update would be lost silently.
LangGraph passes each task a function that reads the channels, and that function refers to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.base import BaseChannel

from langgraph_keel._langgraph import (
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_READ,
    METADATA_NODE,
    METADATA_STEP,
    NS_SEP,
    PREGEL,
)
from langgraph_keel.engine.config import configurable, thread_id_of
from langgraph_keel.engine.serde.serializer import encode
from langgraph_keel.errors import InvalidInput, UnstorableValue
from langgraph_keel.summaries.archive.parts import By, Removal, removal_id

Channels = Mapping[str, BaseChannel[Any, Any, Any]]


def channels_of(config: RunnableConfig, key: str, messages: Sequence[BaseMessage]) -> Channels:
    """Return a node's channels, if these are the messages of channel `key`."""
    for found in getattr(configurable(config).get(CONFIG_KEY_READ), "args", ()):
        if isinstance(found, Mapping) and found and all(isinstance(each, BaseChannel) for each in found.values()):
            channel = found.get(key)
            held = channel.get() if channel is not None and channel.is_available() else None
            is_own = isinstance(held, list) and [_id(each) for each in held] == [message.id for message in messages]
            return found if is_own else {}  # otherwise they come from a function or a `Send`
    return {}


def _id(message: object) -> object:
    return getattr(message, "id", None)


def check_messages(messages: Sequence[BaseMessage], key: str) -> None:
    """Check for `RemoveMessage` objects, which remain only if a reducer ignores them."""
    if any(isinstance(message, RemoveMessage) for message in messages):
        raise InvalidInput(f"the state contains RemoveMessage objects under {key!r}: {_wanted(key)}")


def check_summary_key(channels: Channels, key: str) -> None:
    """Check that the graph has a channel for the summary.

    LangGraph silently drops unknown keys.
    """
    if channels and key not in channels:
        raise InvalidInput(
            f"summary_key={key!r}: the graph's state has no such key, so the summary would be lost. Declare it "
            f"({key}: dict), or leave summary_key out: the summary is then a message"
        )


def check_reducer(channels: Channels, key: str, writes: Sequence[BaseMessage], wanted: Sequence[str | None]) -> None:
    """Try an update on a copy of the channel, before anything is written."""
    if key not in channels:
        return
    tried = channels[key].copy()
    try:
        tried.update([list(writes)])
        left = list(tried.get())
    except Exception as error:  # a user's reducer may raise anything
        raise InvalidInput(f"no message can be removed from {key!r}: {_wanted(key)} ({error})") from error
    if [_id(each) for each in left] != list(wanted) or any(isinstance(each, RemoveMessage) for each in left):
        raise InvalidInput(f"no message can be removed from {key!r}, and none was: {_wanted(key)}")


def _wanted(key: str) -> str:
    return (
        "its reducer does not support RemoveMessage. Declare "
        f"`{key}: Annotated[list[AnyMessage], add_messages]`, or use MessagesState"
    )


def removal(config: RunnableConfig, messages: Sequence[BaseMessage], *, channel: str, by: By, **known: Any) -> Removal:
    """Describe messages for removal, under an id that is stable over runs."""
    if not messages:
        raise InvalidInput("there is nothing to archive: no message is removed")
    given, metadata = configurable(config), config.get("metadata") or {}
    namespace = str(given.get("checkpoint_ns") or "")
    if METADATA_NODE in metadata:  # inside a task: the last part of the namespace names the task
        namespace = namespace.rpartition(NS_SEP)[0]
    thread_id = thread_id_of(given.get("thread_id"))
    checkpoints = given.get(CONFIG_KEY_CHECKPOINT_MAP)
    checkpoint_id = given.get("checkpoint_id")
    if any(name.startswith(PREGEL) for name in given):
        is_stored = given.get(CONFIG_KEY_CHECKPOINTER) is not None
    else:
        is_stored = bool(checkpoint_id or checkpoints)
    if isinstance(checkpoints, Mapping):
        checkpoint_id = checkpoints.get(namespace) or checkpoint_id
    step = metadata.get(METADATA_STEP)
    if not is_stored:
        raise InvalidInput(
            f"messages of thread {thread_id!r} cannot be archived here: the graph stores no checkpoints, so sweeps and "
            "erasures would not find the archive. Run it in a graph with checkpointer=saver, or pass archive=False"
        )
    try:
        own_id = removal_id(channel, namespace, messages, [encode(message) for message in messages])
    except UnstorableValue:  # only another serializer can store it: at worst archived twice
        own_id = token_hex(12)
    return Removal(
        id=own_id,
        thread_id=thread_id,
        checkpoint_ns=namespace,
        checkpoint_id=None if checkpoint_id is None else str(checkpoint_id),
        step=step if isinstance(step, int) else None,
        channel=channel,
        by=by,
        messages=tuple(messages),
        **{"node": metadata.get(METADATA_NODE), **known},
    )
