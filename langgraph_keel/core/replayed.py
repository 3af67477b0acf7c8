"""What a step has taken out of a delta channel of messages, whose value is nowhere but in the writes that made it.

Which reducer adds them up only the graph knows. Those for messages read a write as `add_messages` does: a message is
added, or replaces the one of its id; a `RemoveMessage` takes one out, or all of them; an `Overwrite` begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage

from langgraph_keel.core.archived import is_summary
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.encoding import Unpacker
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.records import Found, Kind
from langgraph_keel.core.store import Store
from langgraph_keel.core.writes import pending_writes

_ALL = "__remove_all__"
_OVERWRITE = "__overwrite__"


def cut_deltas(
    store: Store[Q, R], codec: Codec, found: Found, channels: Mapping[str, list[BaseMessage] | None]
) -> Plan[Q, R, Mapping[str, tuple[list[BaseMessage], list[BaseMessage]]]]:
    """Return the messages before and after the step that goes on from a checkpoint, of those channels that it has cut.

    No trip if it has cut none and there are no snapshots, else one.

    Args:
        store: The store.
        codec: How values are written.
        found: The checkpoint, with the writes of the step.
        channels: The delta channels to look at, each with what it has after the step, if that is known by a snapshot:
            then it may have been cut without a write that says so (`durability="exit"`).
    """
    own = {channel: list(_values(codec, found, channel)) for channel in channels}
    cut = [name for name, values in own.items() if channels[name] is not None or any(map(_removes, values))]
    if not cut:
        return {}
    ancestors = yield from store.read_history(found.entry.address, cut)
    changes = {name: _followed(_before(codec, name, [found, *ancestors]), own[name]) for name in cut}
    return {
        name: (before, left if (told := channels[name]) is None else told) for name, (before, left) in changes.items()
    }


def _values(codec: Codec, found: Found, channel: str) -> Iterator[Any]:
    writes = pending_writes(found.batches, codec, _where(found))
    return (value for _, name, value in writes if name == channel)


def _where(found: Found) -> str:
    return f"thread {found.entry.address.thread_id!r}, checkpoint {found.entry.address.checkpoint_id}"


def _removes(value: Any) -> bool:
    if _overwritten(value) is not None:
        return True
    # A summary may stand in the place, and under the id, of the only message that goes.
    return any(isinstance(each, RemoveMessage) or is_summary(each) for each in _messages(value))


def _overwritten(value: Any) -> list[Any] | None:
    """Return the list that an `Overwrite`, in one of its forms, begins anew with."""
    if isinstance(value, Mapping) and _OVERWRITE in value:
        return list(value[_OVERWRITE] or ())
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if kind != _OVERWRITE:
        return None
    held = value.get("value") if isinstance(value, Mapping) else value.value
    return list(held or ())


def _before(codec: Codec, channel: str, line: Sequence[Found]) -> list[BaseMessage]:
    """Return what a channel held at the first checkpoint of a line, the others being its ancestors."""
    values: list[Any] = []
    for place, found in enumerate(line):
        if place:
            values[:0] = _values(codec, found, channel)
        ref = found.entry.refs.get(channel)
        if ref is not None and ref.kind is not Kind.INLINE:
            seed = Unpacker(codec).values({channel: ref}, found.rows, _where(found))[channel]
            return _followed(_messages(getattr(seed, "value", seed)), values)[1]
    return _followed([], values)[1]


def _messages(value: Any) -> list[BaseMessage]:
    listed = value if isinstance(value, list) else [value]
    return [each for each in listed if isinstance(each, BaseMessage)]


def _followed(before: Sequence[BaseMessage], values: Sequence[Any]) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Return all messages that were there at some time, and those that are left.

    The former are in their last form before a summary took their place.
    """
    left = {_key(message): message for message in before}
    seen = dict(left)
    for value in values:
        anew = _overwritten(value)
        if anew is not None:
            left.clear()
        for message in _messages(value if anew is None else anew):
            _follow(left, message)
            if not isinstance(message, RemoveMessage) and not (is_summary(message) and _key(message) in seen):
                seen[_key(message)] = message
    return list(seen.values()), list(left.values())


def _follow(left: dict[str, BaseMessage], message: BaseMessage) -> None:
    if not isinstance(message, RemoveMessage):
        left[_key(message)] = message
    elif message.id == _ALL:
        left.clear()
    else:
        left.pop(str(message.id), None)


def _key(message: BaseMessage) -> str:
    return message.id or f"unnamed {id(message)}"
