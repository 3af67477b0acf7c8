"""Messages in delta channels, such as those of deepagents: LangGraph stores what was written, and no value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


def rebuild_messages(
    session: Session, address: Address, metadata: Mapping[str, Any], stored: Collection[str]
) -> Plan[dict[str, list[BaseMessage]]]:
    """Return the messages in delta channels that are not stored in a checkpoint. One trip if there are any.

    They are put together as `add_messages` does. Of channels with other values only their graph knows the reducer.
    """
    channels = [channel for channel in delta_channels(metadata) if channel not in stored]
    try:
        histories = (yield from delta_history(session, address, channels)) if channels else {}
    except ValueRefused:  # of a class that this process does not know
        return {}
    found = {}
    for channel, history in histories.items():
        seed: Any = history.get("seed")
        values = [seed.value if isinstance(seed, DeltaSnapshot) else seed, *(write[2] for write in history["writes"])]
        elements = [each for value in values for each in (value if isinstance(value, list) else [value])]
        messages = _fold([as_message(each) for each in elements if each is not None])
        if messages is not None:
            found[channel] = messages
    return found


def read_values(session: Session, found: CheckpointTuple) -> Plan[dict[str, Any]]:
    """Return the state of a checkpoint, with the messages of delta channels. One trip if there are any."""
    values = found.checkpoint["channel_values"]
    rebuilt = yield from rebuild_messages(session, address_of(found.config), found.metadata, values)
    whole = {name: value.value if isinstance(value, DeltaSnapshot) else value for name, value in values.items()}
    return {**whole, **{channel: messages for channel, messages in rebuilt.items() if messages}}


def _fold(elements: Sequence[Any]) -> list[BaseMessage] | None:
    """Return messages as they are in a state; `None` if something else is among them."""
    from langgraph.graph.message import add_messages

    if not all(isinstance(each, BaseMessage) for each in elements):
        return None
    # LangGraph gives a message that has none another id each time: by its place it has the same one in all states.
    named = [each if each.id else each.model_copy(update={"id": f"written-{n}"}) for n, each in enumerate(elements)]
    try:
        messages: Any = add_messages([], named)
    except ValueError:  # one removes a message that is not there
        return None
    return list(messages)
