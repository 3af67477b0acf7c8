"""Checks of arguments before anything is stored: questions, plain data, times."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from langgraph_keel.display.jsonable import DEEPEST, as_json, is_text
from langgraph_keel.engine.config import text_of
from langgraph_keel.errors import InvalidInput

_CENTURY = 100 * 365 * 86_400
"""Maximum duration, in seconds."""


def check_question(action: object, description: object, on_expiry: object, revalidate: object) -> None:
    """Check the arguments of a question."""
    if not isinstance(action, str) or not action.strip():
        raise InvalidInput(f"action must name the action of the agent, not {action!r}")
    text_of(action, "action")
    if not isinstance(description, str):
        raise InvalidInput(f"description must be a text, not {description!r:.80}")
    if on_expiry not in ("reject", "wait"):
        raise InvalidInput(f"on_expiry must be 'reject' or 'wait', not {on_expiry!r}")
    if revalidate is not None and not callable(revalidate):
        raise InvalidInput(f"revalidate must be a function of the approved and the current facts, not {revalidate!r}")


def mapping_of(what: str, given: object) -> Mapping[str, Any]:
    """Return a mapping, empty for `None`."""
    if given is not None and not isinstance(given, Mapping):
        raise InvalidInput(f"{what} must be a dict of names and values, not {given!r:.80}")
    return given or {}


def names_of(what: str, names: object, known: Collection[str] | None = None) -> Sequence[str]:
    """Check and return names, which must all be known."""
    listed = None if isinstance(names, str | Mapping) or not isinstance(names, Iterable) else list(names)
    if listed is None or not all(isinstance(name, str) and name.strip() for name in listed):
        raise InvalidInput(
            f"{what} must be a list of texts, such as {what}={list(known or ['ann'])[:1]!r}, not {names!r:.80}"
        )
    if known is not None and (not listed or not set(listed) <= set(known)):
        raise InvalidInput(f"{what} must be some of {', '.join(known)}, not {listed!r:.80}")
    return listed


def plain_data(what: str, value: Any) -> Any:
    """Return data as plain JSON, which compares in the same way in every process."""
    if not _is_plain(value):
        raise InvalidInput(
            f"{what} must be plain JSON data (dicts with text keys, lists, texts, numbers, True, False, None), as it "
            f"is compared with the approved value; not {value!r:.80}"
        )
    return as_json(value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    if depth > DEEPEST:
        return False
    if isinstance(value, Mapping):
        return all(_is_text(key) and _is_plain(item, depth + 1) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(_is_plain(item, depth + 1) for item in value)
    is_number = type(value) is int or (type(value) is float and math.isfinite(value))
    return value is None or type(value) is bool or is_number or _is_text(value)


def _is_text(value: Any) -> bool:
    return is_text(value) and not any("\ud800" <= char <= "\udfff" for char in value)


def time_after(what: str, seconds: object, now: datetime, sign: int = 1) -> str:
    """Return the ISO time `seconds` after `now`, or before it if `sign` is -1."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _CENTURY:
        raise InvalidInput(f"{what} must be a number of seconds, 0 or more, not {seconds!r}")
    return (now + sign * timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def find_misfits(asked: Any, given: Any, schema: Any = None) -> Sequence[str]:
    """Return the differences in shape of edited arguments; empty if they fit."""
    if not isinstance(asked, Mapping) or not isinstance(given, Mapping):
        wrong = asked is not None and _json_type(asked) != _json_type(given)
        return [f"the arguments are {_json_type(given)}, and must be {_json_type(asked)}"] if wrong else ()
    known = schema if isinstance(schema, Mapping) and isinstance(schema.get("properties"), Mapping) else None
    types: Mapping[str, Any] = known["properties"] if known else {}
    required = known.get("required") or () if known else asked
    missing = [name for name in required if name not in given]
    unknown = [name for name in given if name not in asked and name not in types]
    found = [f"missing: {', '.join(missing)}"] if missing else []
    found += [f"unknown: {', '.join(unknown)}"] if unknown else []
    for name in [name for name in given if name not in unknown]:
        allowed = _types_in(types.get(name)) or ({_json_type(asked[name])} if asked.get(name) is not None else set())
        if allowed and _json_type(given[name]) not in allowed:
            found.append(f"{name} is {_json_type(given[name])}, and must be {' or '.join(sorted(allowed))}")
    return found


def _json_type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    for kind, name in ((int | float, "number"), (str, "string"), (Mapping, "object")):
        if isinstance(value, kind):
            return name
    return "array"


def _types_in(schema: Any) -> Collection[str]:
    """Return the JSON types of a schema; empty if it has none."""
    if not isinstance(schema, Mapping):
        return set()
    if isinstance(choices := schema.get("anyOf"), list):
        each = [_types_in(choice) for choice in choices]
        return {name for names in each for name in names} if all(each) else set()
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    return {"number" if name == "integer" else name for name in names if isinstance(name, str)}
