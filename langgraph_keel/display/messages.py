"""Messages and other list elements as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage, convert_to_messages

from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import cut, one_line
from langgraph_keel.engine.serde.unread import Unread

LONGEST = 2_000  # characters of a text
MOST = 20  # new elements of a list, the last ones
_NAME, _CALL = 60, 300


def speaker(message: BaseMessage | Unread) -> str:
    """Return the speaker: the type of a message, and for a tool its name."""
    if isinstance(message, Unread):
        return _unread_name(message)
    if not isinstance(message, ToolMessage):
        return message.type
    failed = " failed" if message.status == "error" else ""
    return f"{message.type} {message.name or message.tool_call_id}{failed}"


def as_message(value: Any) -> Any:
    """Return a pair of role and text, or a dictionary, as a message object."""
    is_short = isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value)
    if not is_short and not (isinstance(value, dict) and {"role", "content"} <= value.keys()):
        return value
    try:
        (message,) = convert_to_messages([value])
    except Exception:  # stored values are unchecked, and LangChain raises errors of many kinds
        return value
    return message


def message_text(message: BaseMessage | Unread) -> str:
    """Return the text of a message, and a line for each tool call.

    For an unread message, return its stored content.
    """
    if isinstance(message, Unread):
        return json.dumps(as_json(message.stored), indent=2, ensure_ascii=False)
    text = content_text(message.content)
    return "\n".join([*([text] if text else []), *(f"→ {call}" for call in calls_of(message))])


def _unread_name(value: Unread) -> str:
    return f"{value.qualname}, not read"


def content_text(content: str | list[Any]) -> str:
    """Return a message's content as text; blocks other than text are written as JSON."""
    return "\n".join(map(_block_text, content if isinstance(content, list) else [content]))


def _block_text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, dict) and item.get("type") == "text":
        return str(item.get("text", ""))
    return json.dumps(as_json(item), ensure_ascii=False)


def calls_of(message: BaseMessage) -> list[str]:
    """Return the tool calls of a message as they would be written in Python.

    A stored message is unchecked: its calls may not be a list, and a call may not be a dictionary.
    """
    calls = getattr(message, "tool_calls", None)
    return [*map(_call_text, calls)] if isinstance(calls, list) else []


def _call_text(call: Any) -> str:
    if not isinstance(call, dict):
        return repr(call)
    name, args = call.get("name"), call.get("args")
    if not isinstance(args, dict):
        return f"{name}({args!r})"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})"


@dataclass(frozen=True, slots=True)
class Element:
    """A list element, safe to print, with its author or type (`who`)."""

    who: str
    text: str
    calls: tuple[str, ...] = ()
    has_failed: bool = False


def last_elements(values: Sequence[Any]) -> Iterator[Element]:
    """Yield the last elements of a list, at most `MOST`."""
    yield from (_message(value) if isinstance(value, BaseMessage) else _value(value) for value in values[-MOST:])


def value_text(value: Any) -> str:
    """Return a value as text, safe to print: strings as they are, others as JSON."""
    return cut(value if isinstance(value, str) else json.dumps(as_json(value), indent=2, ensure_ascii=False), LONGEST)


def _message(message: BaseMessage) -> Element:
    names = (message.type, message.name or (message.tool_call_id if isinstance(message, ToolMessage) else ""))
    return Element(
        who=" ".join(one_line(str(name), _NAME) for name in names if name),
        text=cut(content_text(message.content), LONGEST),
        calls=tuple(one_line(call, _CALL) for call in calls_of(message)[:MOST]),
        has_failed=isinstance(message, ToolMessage) and message.status == "error",
    )


def _value(value: Any) -> Element:
    name = _unread_name(value) if isinstance(value, Unread) else type(value).__name__
    return Element(one_line(name, _NAME), value_text(value))
