"""Stored values as JSON; values without a JSON form as their `repr`.

A value that may not be revived is `{"not_read": "module.Class", "module", "qualname", "reason", "stored"}`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from langgraph_keel.display.text import represent
from langgraph_keel.engine.serde.unread import Unread

DEEPEST = 50
"""Maximum number of nested levels; a deeper value is shown as its `repr`."""
LONGEST_NUMBER = 14_000
"""Maximum bits of an integer in JSON (Python's limit is 4,300 decimal digits)."""


def as_json(value: Any, depth: int = 0) -> Any:
    """Return `value` in a form that `json.dumps` accepts, readable for people."""
    if depth > DEEPEST:
        return represent(value)
    if isinstance(value, Mapping):
        return {_key(key): as_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return [as_json(item, depth + 1) for item in sorted(value, key=represent)]  # the same in every process
    fields = unread_fields(value) if type(value) is Unread else fields_of(value)
    return _scalar(value) if fields is None else as_json(fields, depth)


def is_text(value: Any) -> bool:
    """Return whether a value is text, also of a subclass such as `message.text`; an enum is not."""
    return isinstance(value, str) and not isinstance(value, Enum)


def _key(key: Any) -> str:
    return str.__str__(key) if is_text(key) else represent(key)


def _scalar(value: Any) -> Any:
    if is_text(value):
        return str.__str__(value)  # of type `str`, by no method of a subclass
    if value is None or type(value) is bool or (type(value) is int and value.bit_length() <= LONGEST_NUMBER):
        return value
    return value if type(value) is float and math.isfinite(value) else represent(value)


def unread_fields(unread: Unread) -> dict[str, Any]:
    """Return the JSON form of a value that may not be revived."""
    names = {"not_read": unread.type_name, "module": unread.module, "qualname": unread.qualname}
    return {**names, "reason": unread.reason, "stored": unread.stored}


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a data object; `None` for other values.

    If it may not be revived, these are its stored fields.
    """
    if type(value) is Unread:
        return value.stored if type(value.stored) is dict else None
    if isinstance(value, BaseMessage):
        return message_fields(value)
    if isinstance(value, BaseModel):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if hasattr(value, each.name)}
    return None


def message_fields(message: BaseMessage) -> dict[str, Any]:
    """Return a message's non-empty fields, type and content first."""
    fields = {"type": message.type, "content": message.content}
    kept = ((key, item) for key, item in message if key not in fields and item is not None)
    return fields | {key: item for key, item in kept if type(item) not in (dict, list, str) or item}
