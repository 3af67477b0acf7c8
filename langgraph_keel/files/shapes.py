"""Which fields each kind of record has, and a cell, and of what type: stored bytes are untrusted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Test = Callable[[Any], bool]
MOST = 1 << 53
"""Numbers in a log are below: what JSON holds exactly everywhere."""
_EPOCH = re.compile(r"[0-9a-f]{8,64}")


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_time(value: Any) -> bool:
    return type(value) is int


def _is_list(value: Any) -> bool:
    return type(value) is list


def _is_dict(value: Any) -> bool:
    return type(value) is dict


def _is_true(value: Any) -> bool:
    return value is True


def _is_epoch(value: Any) -> bool:
    return _is_text(value) and _EPOCH.fullmatch(value) is not None


def _is_blob(value: Any) -> bool:
    return type(value) is dict and len(value) == 1 and _is_text(value.get("$blob"))


def _is_head(value: Any) -> bool:
    return _is_blob(value) or (type(value) is list and len(value) in (3, 4) and all(map(_is_dict, value)))


def _is_value(value: Any) -> bool:
    return not (type(value) is dict and "$blob" in value) or _is_blob(value)


def _is_write(value: Any) -> bool:
    if not (type(value) is list and len(value) == 3):
        return False
    channel, index, written = value
    return _is_text(channel) and type(index) is int and _is_value(written)


def _are_writes(value: Any) -> bool:
    return type(value) is list and all(map(_is_write, value))


def _are_items(value: Any) -> bool:
    return _is_list(value) or _is_blob(value)


def _are_numbers(value: Any) -> bool:
    return type(value) is list and all(map(_is_number, value))


def _are_ghosts(value: Any) -> bool:
    return type(value) is dict and all(number.isdecimal() and _is_list(names) for number, names in value.items())


REQUIRED: dict[str, dict[str, Test]] = {
    "thread": {"format": _is_number, "epoch": _is_epoch, "seq": _is_number},
    "item": {"ch": _is_text, "n": _is_number},
    "ckpt": {"id": _is_text, "seq": _is_number, "at": _is_text, "ch": _is_dict, "head": _is_head},
    "writes": {"id": _is_text, "task": _is_text, "path": _is_text},
    "gone": {"seq": _are_numbers, "ghosts": _are_ghosts},
    "end": {"ch": _is_text, "n": _is_number},
}
# Of these, a record has one.
_ONE_OF: dict[str, set[str]] = {**{kind: {"k"} for kind in REQUIRED}, "item": {"v"}, "writes": {"w", "items"}}
OPTIONAL: dict[str, Test] = {
    "ns": _is_text,
    "v": _is_value,
    "parent": _is_text,
    "run": _is_text,
    "fork": _is_true,
    "ghost": _is_true,
    "span": _is_number,
    "w": _are_writes,
    "items": _are_items,
}


def checked(fields: Any) -> dict[str, Any]:
    """Return a record.

    Raises:
        ValueError: It is none: a kind that is not known, a field that is missing or of another type.
    """
    kind = fields.get("k") if type(fields) is dict else None
    required = REQUIRED.get(kind) if isinstance(kind, str) else None
    if not isinstance(kind, str) or required is None:
        raise ValueError(f"{kind!r:.40} is no kind of record")
    wrong = [name for name, test in required.items() if name not in fields or not test(fields[name])]
    wrong += [name for name in fields if name in OPTIONAL and not OPTIONAL[name](fields[name])]
    wrong += [] if _ONE_OF[kind] & fields.keys() else sorted(_ONE_OF[kind])
    if wrong:
        raise ValueError(f"the field {wrong[0]!r} of a record {kind!r} is missing or not what it should be")
    record: dict[str, Any] = fields
    return record


_CELL: dict[str, Test] = {"key": _is_text, "token": _is_text}
_CELL_MAY: dict[str, Test] = {"origin": _is_text, "expires": _is_time}


def checked_cell(fields: Any) -> dict[str, Any]:
    """Return the fields of a cell.

    Raises:
        ValueError: It is none.
    """
    if type(fields) is not dict or fields.get("k") != "cell" or "head" not in fields:
        raise ValueError("it is no cell")
    wrong = [name for name, test in _CELL.items() if not test(fields.get(name))]
    wrong += [name for name, test in _CELL_MAY.items() if name in fields and not test(fields[name])]
    if wrong:
        raise ValueError(f"the field {wrong[0]!r} of a cell is missing or not what it should be")
    return fields
