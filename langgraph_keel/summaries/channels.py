"""What a graph will make of an update: its channels, as far as a node that runs in it can see them.

A state does not say which reducer its messages have, nor which keys its schema lacks; an update that these cannot take
would be lost in silence. LangGraph gives each task a function that reads the channels: it holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.base import BaseChannel

from langgraph_keel.core.address import configurable
from langgraph_keel.errors import InvalidInput

Channels = Mapping[str, BaseChannel[Any, Any, Any]]

_READ = "__pregel_read"


def channels_of(config: RunnableConfig, key: str, messages: Sequence[BaseMessage]) -> Channels:
    """Return the channels of the graph that a node runs in, if these are the messages of its channel `key`.

    None outside of a graph; none for messages of a function's own that calls the node, or that were sent (`Send`).
    """
    known = getattr(configurable(config).get(_READ), "args", ())
    found: Channels = next((each for each in known if isinstance(each, Mapping) and _are_channels(each)), {})
    held = _read(found[key]) if key in found else None
    is_own = isinstance(held, list) and [_id(each) for each in held] == [message.id for message in messages]
    return found if is_own else {}


def _are_channels(found: Mapping[Any, Any]) -> bool:
    return bool(found) and all(isinstance(channel, BaseChannel) for channel in found.values())


def _read(channel: BaseChannel[Any, Any, Any]) -> Any:
    return channel.get() if channel.is_available() else None


def _id(message: object) -> object:
    return getattr(message, "id", None)


def check_messages(messages: Sequence[BaseMessage], key: str) -> None:
    """See that no orders to remove messages stand among them: only a reducer that does not follow them leaves them.

    Raises:
        InvalidInput: Some do.
    """
    if any(isinstance(message, RemoveMessage) for message in messages):
        raise InvalidInput(f"the state holds RemoveMessage objects under {key!r}: {_wanted(key)}")


def check_summary_key(channels: Channels, key: str) -> None:
    """See that the graph has a channel for the summary: LangGraph drops what is for none without a word.

    Raises:
        InvalidInput: It has none.
    """
    if channels and key not in channels:
        raise InvalidInput(
            f"summary_key={key!r}: the graph's state has no such key, so the summary would be lost. Declare it "
            f"({key}: dict), or leave summary_key out: the summary is then a message"
        )


def check_reducer(channels: Channels, key: str, writes: Sequence[BaseMessage], wanted: Sequence[str | None]) -> None:
    """Try an update on a copy of the channel, before anything is written.

    Args:
        channels: The graph's, if they are known.
        key: The channel.
        writes: The update.
        wanted: The ids that the messages must have then.

    Raises:
        InvalidInput: The channel's reducer makes something else of it.
    """
    if key not in channels:
        return
    tried = channels[key].copy()
    try:
        tried.update([list(writes)])
        left = list(tried.get())
    except Exception as error:  # whatever a user's reducer raises
        raise InvalidInput(f"no message can be taken out of {key!r}: {_wanted(key)} ({error})") from error
    if [_id(each) for each in left] != list(wanted) or any(isinstance(each, RemoveMessage) for each in left):
        raise InvalidInput(f"no message can be taken out of {key!r}, and none was: {_wanted(key)}")


def _wanted(key: str) -> str:
    return (
        "its reducer does not follow RemoveMessage. Declare "
        f"`{key}: Annotated[list[AnyMessage], add_messages]`, or use MessagesState"
    )
