"""How a LangChain message is shown as JSON: by role, without the fields that are as the class makes them.

The table is part of the format (`FORMAT.md`) and is not read from LangChain at run time: what a field that is not
written means must not depend on the version that reads. A message whose fields are not exactly those of the table, in
that order, is written out in full as `$message`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

REQUIRED: Any = ...
"""Stands for a field that is always written; msgpack cannot pack it, so a message without that field is refused."""


class MessageForm:
    """How messages of one class are shown.

    Attributes:
        code: Number of the class in `core.types.MESSAGES`.
        role: What `$role` says.
        defaults: Its fields in order, each with the value that is meant where it is not written.
    """

    __slots__ = ("code", "defaults", "names", "role")

    def __init__(self, code: int, role: str, kind: str, more: dict[str, Any]) -> None:
        self.code = code
        self.role = role
        common = {"content": REQUIRED, "additional_kwargs": {}, "response_metadata": {}, "type": kind}
        self.defaults: dict[str, Any] = common | {"name": None, "id": None} | more
        self.names = list(self.defaults)

    def written(self, state: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
        """Return the fields that are written: those that differ from the defaults, and those that the program set."""
        defaults = self.defaults
        return {name: part for name, part in state.items() if name in names or part != defaults[name]}

    @staticmethod
    def implied(fields: dict[str, Any], more: list[Any]) -> list[str]:
        """Return the names of what is taken for set where nothing is said: all that is written, extra fields included.

        Args:
            fields: The fields that are written.
            more: Extra fields and private attributes, if the message has any.
        """
        if more and type(more[0]) is dict:
            return sorted({*fields, *more[0]})
        return sorted(fields)

    def completed(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Return all fields of the message of which these are written; `None` if one of them is not in the table."""
        state = self.defaults | fields
        return state if len(state) == len(self.names) else None


_AI: dict[str, Any] = {"tool_calls": [], "invalid_tool_calls": [], "usage_metadata": None}
_CHUNK: dict[str, Any] = {"tool_call_chunks": [], "chunk_position": None}
_TOOL: dict[str, Any] = {"tool_call_id": REQUIRED, "artifact": None, "status": "success"}
_CHAT: dict[str, Any] = {"role": REQUIRED}
_FUNCTION: dict[str, Any] = {"name": REQUIRED}

# By number: the order of `core.types.MESSAGES`. Append only.
FORMS: tuple[MessageForm, ...] = (
    MessageForm(0, "human", "human", {}),
    MessageForm(1, "ai", "ai", _AI),
    MessageForm(2, "system", "system", {}),
    MessageForm(3, "tool", "tool", _TOOL),
    MessageForm(4, "chat", "chat", _CHAT),
    MessageForm(5, "function", "function", _FUNCTION),
    MessageForm(6, "remove", "remove", {}),
    MessageForm(7, "human_chunk", "HumanMessageChunk", {}),
    MessageForm(8, "ai_chunk", "AIMessageChunk", _AI | _CHUNK),
    MessageForm(9, "system_chunk", "SystemMessageChunk", {}),
    MessageForm(10, "tool_chunk", "ToolMessageChunk", _TOOL),
    MessageForm(11, "chat_chunk", "ChatMessageChunk", _CHAT),
    MessageForm(12, "function_chunk", "FunctionMessageChunk", _FUNCTION),
)
BY_ROLE: dict[str, MessageForm] = {form.role: form for form in FORMS}
