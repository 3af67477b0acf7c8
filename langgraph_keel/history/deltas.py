"""Messages in delta channels (deepagents): LangGraph stores writes, not the list."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import count
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel._langgraph import DeltaSnapshot
from langgraph_keel.display.messages import as_message
from langgraph_keel.engine.checkpoints import delta_history
from langgraph_keel.engine.config import Address, address_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import ValueRefused
from langgraph_keel.history.changes import delta_channels
from langgraph_keel.provenance.export import replay_messages


def rebuild_messages(
    session: Session, address: Address, metadata: Mapping[str, Any], stored: Collection[str]
) -> Plan[dict[str, list[BaseMessage]]]:
    """Return the message lists of delta channels that a checkpoint does not store.

    One trip if there are any.

    Channels with other values are left out: only the graph knows their reducers.
    """
    channels = [channel for channel in delta_channels(metadata) if channel not in stored]
    try:
        histories = (yield from delta_history(session, address, channels)) if channels else {}
    except ValueRefused:  # of a class that this process does not know
        return {}
    found = {}
    for channel, history in histories.items():
        numbers = count()
        try:
            writes = [(task, name, _named(value, numbers)) for task, name, value in history["writes"]]
            messages = replay_messages({**history, "writes": writes})
        except (TypeError, ValueError):  # a value is not a message, or removes a message that does not exist
            continue
        if all(isinstance(each, BaseMessage) for each in messages):
            found[channel] = messages
    return found


def read_values(session: Session, found: CheckpointTuple) -> Plan[dict[str, Any]]:
    """Return the state of a checkpoint, with the messages of delta channels."""
    values = found.checkpoint["channel_values"]
    rebuilt = yield from rebuild_messages(session, address_of(found.config), found.metadata, values)
    whole = {name: value.value if isinstance(value, DeltaSnapshot) else value for name, value in values.items()}
    return {**whole, **{channel: messages for channel, messages in rebuilt.items() if messages}}


def _named(value: Any, numbers: Iterator[int]) -> list[BaseMessage]:
    """Return written messages, each with an id."""
    # LangGraph would assign a new id to a message without one each time it reads the list.
    messages = [as_message(each) for each in (value if isinstance(value, list) else [value])]
    if not all(isinstance(each, BaseMessage) for each in messages):
        raise TypeError("these are not messages")
    return [each if each.id else each.model_copy(update={"id": f"written-{next(numbers)}"}) for each in messages]
