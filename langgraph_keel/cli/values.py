"""How one value of a state looks: messages as a conversation, text as text, the rest laid out by `repr`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.pretty import pretty_repr
from rich.table import Table
from rich.text import Text

from langgraph_keel.cli.terminal import block
from langgraph_keel.timeline.safe import one_line, plain
from langgraph_keel.timeline.said import call_text, content_text

_LONGEST_TEXT = 2_000
_MOST_MESSAGES = 40
_ROLE_STYLE = {"human": "bold cyan", "ai": "bold green", "tool": "bold yellow", "system": "bold magenta"}


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
        parts += [Text.assemble(("→ ", "dim"), _called(call)) for call in message.tool_calls]
    return Group(*(parts or [Text("(empty)", "dim")]))


def _called(call: ToolCall) -> str:
    return one_line(call_text(call["name"], call["args"]), 300)
