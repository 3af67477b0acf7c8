"""What is new in a list, as a person reads it: who said it, what was said, which tools were called.

What a message says, as text: its words, and the tools that it calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import one_line, plain


def who(message: BaseMessage) -> str:
    """Return who speaks: the type of a message, and of a tool's its name."""
    if not isinstance(message, ToolMessage):
        return message.type
    failed = " failed" if message.status == "error" else ""
    return f"{message.type} {message.name or message.tool_call_id}{failed}"


def said(message: BaseMessage) -> str:
    """Return all that a message says: its text, then a line for each tool that it calls."""
    return "\n".join(_lines(message))


def _lines(message: BaseMessage) -> Iterator[str]:
    if text := content_text(message.content):
        yield text
    if isinstance(message, AIMessage):
        yield from (f"→ {call_text(call['name'], call['args'])}" for call in message.tool_calls)


def content_text(content: str | list[Any]) -> str:
    """Return a message's content as text: its text blocks, and the others as JSON."""
    return content if isinstance(content, str) else "\n".join(map(_block_text, content))


def _block_text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, dict) and item.get("type") == "text":
        return str(item.get("text", ""))
    return json.dumps(as_json(item), ensure_ascii=False)


def call_text(name: str, args: Any) -> str:
    """Return a tool call as it would be written in Python."""
    if not isinstance(args, dict):
        return f"{name}({args!r})"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})"


LONGEST = 2_000
"""Characters of one text that are shown."""
MOST = 20
"""New elements of one list that are shown, the last ones."""
_NAME, _CALL = 60, 300


@dataclass(frozen=True, slots=True)
class Spoken:
    """One element of a list; every text is safe to print.

    Attributes:
        who: The kind of message and the name of its author; the type of what is no message.
        text: What it says, on as many lines as it has.
        calls: The calls of tools that it makes, as they would be written in Python.
        has_failed: Whether it tells that a tool failed.
    """

    who: str
    text: str
    calls: tuple[str, ...] = ()
    has_failed: bool = False


def spoken(values: Sequence[Any]) -> Iterator[Spoken]:
    """Yield the last elements of a list."""
    yield from (_message(value) if isinstance(value, BaseMessage) else _value(value) for value in values[-MOST:])


def laid_out(value: Any) -> str:
    """Return a value as text: JSON on several lines for what is made of parts."""
    return cut(value if isinstance(value, str) else json.dumps(as_json(value), indent=2, ensure_ascii=False))


def cut(text: str, limit: int = LONGEST) -> str:
    """Return the start of a text, safe to print, with its lines, and how much is missing."""
    shown = plain(text[:limit], keep="\n\t")
    return shown if len(text) <= limit else f"{shown} … {len(text) - limit:,} more characters"


def _message(message: BaseMessage) -> Spoken:
    names = (message.type, message.name or (message.tool_call_id if isinstance(message, ToolMessage) else ""))
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
    return Spoken(
        who=" ".join(one_line(str(name), _NAME) for name in names if name),
        text=cut(content_text(message.content)),
        calls=tuple(one_line(call_text(call["name"], call["args"]), _CALL) for call in calls[:MOST]),
        has_failed=isinstance(message, ToolMessage) and message.status == "error",
    )


def _value(value: Any) -> Spoken:
    return Spoken(one_line(type(value).__name__, _NAME), laid_out(value))
