"""How one value of a state looks: messages as a conversation, text as text, the rest laid out by `repr`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.pretty import pretty_repr
from rich.table import Table
from rich.text import Text

from langgraph_keel.cli.as_json import as_json
from langgraph_keel.cli.terminal import block, one_line, plain

_LONGEST_TEXT = 2_000
_MOST_MESSAGES = 40
_ROLE_STYLE = {"human": "bold cyan", "ai": "bold green", "tool": "bold yellow", "system": "bold magenta"}


def is_internal(channel: str) -> bool:
    """Tell whether a channel is LangGraph's own bookkeeping, not the user's state."""
    return channel.startswith(("branch:", "join:", "__pregel")) or channel in ("__start__", "__no_writes__")


def value_lines(value: Any, *, full: bool = False, indent: int = 2) -> RenderableType:
    """Return `value` to print; without `full` only so much of it that a page stays readable."""
    if isinstance(value, BaseMessage):
        value = [value]
    conversation = isinstance(value, list) and value and all(isinstance(item, BaseMessage) for item in value)
    body = _conversation(value, full) if conversation else _text(value, full)
    return Padding(body, (0, 0, 0, indent))


def _text(value: Any, full: bool) -> Text:
    shown = value if isinstance(value, str) else pretty_repr(value, max_width=72)
    return block(shown, limit=None if full else _LONGEST_TEXT)


def _conversation(messages: Sequence[BaseMessage], full: bool) -> RenderableType:
    shown = messages if full else messages[-_MOST_MESSAGES:]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for message in shown:
        grid.add_row(Text(plain(message.type), _ROLE_STYLE.get(message.type, "bold")), _message(message, full))
    left_out = len(messages) - len(shown)
    note = [Text(f"… {left_out:,} earlier messages (--full)", "dim")] if left_out else []
    return Group(*note, grid)


def _message(message: BaseMessage, full: bool) -> RenderableType:
    text = content_text(message.content)
    parts = [block(text, limit=None if full else _LONGEST_TEXT)] if text else []
    if isinstance(message, ToolMessage):
        label = Text(plain(message.name or message.tool_call_id), "dim")
        parts.insert(0, label.append(" failed", "red") if message.status == "error" else label)
    if isinstance(message, AIMessage):
        parts += [Text.assemble(("→ ", "dim"), call_text(call["name"], call["args"])) for call in message.tool_calls]
    return Group(*(parts or [Text("(empty)", "dim")]))


def content_text(content: str | list[Any]) -> str:
    """Return a message's content as text: its text blocks, and the others as JSON."""
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(item) for item in content)


def _block_text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, dict) and item.get("type") == "text":
        return str(item.get("text", ""))
    return json.dumps(as_json(item), ensure_ascii=False)


def call_text(name: str, args: Any, limit: int = 300) -> str:
    """Return a tool call as it would be written in Python, on one line."""
    if not isinstance(args, dict):
        return one_line(f"{name}({args!r})", limit)
    given = ", ".join(f"{key}={value!r}" for key, value in args.items())
    return one_line(f"{name}({given})", limit)
