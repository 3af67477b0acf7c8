"""What a message says, as text: its words, and the tools that it calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langgraph_keel.timeline.plain import as_json


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
