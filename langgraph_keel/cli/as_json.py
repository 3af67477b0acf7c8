"""Stored values as JSON: messages by type and content, and what JSON cannot carry as its `repr`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

_DEEPEST = 50


def as_json(value: Any, depth: int = 0) -> Any:
    """Return `value` as something `json.dumps` carries without loss of what a reader looks for."""
    if depth > _DEEPEST:
        return repr(value)
    if isinstance(value, Mapping):
        return {_key(key): as_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item, depth + 1) for item in value]
    fields = _fields(value)
    return _scalar(value) if fields is None else as_json(fields, depth + 1)


def _key(key: Any) -> str:
    return key if type(key) is str else repr(key)


def _scalar(value: Any) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    return value if type(value) is float and math.isfinite(value) else repr(value)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a data object, or `None` if it is something else."""
    if isinstance(value, BaseMessage):
        return message_fields(value)
    if isinstance(value, BaseModel):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def message_fields(message: BaseMessage) -> dict[str, Any]:
    """Return a message's fields, type and content first, empty ones left out."""
    fields = {"type": message.type, "content": message.content}
    return fields | {key: item for key, item in message if key not in fields and item not in (None, {}, [], "")}
