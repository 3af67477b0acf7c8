"""Checks of arguments before writes: namespaces, values, times to live."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph.store.base import InvalidNamespaceError, TTLConfig

from langgraph_keel.display.jsonable import is_text
from langgraph_keel.errors import InvalidInput

DEEPEST = 100
"""Maximum depth of nested lists and objects."""


class InvalidNamespace(InvalidInput, InvalidNamespaceError):
    """A namespace that LangGraph's stores also refuse."""


def check_place(namespace: Any, key: Any = "") -> tuple[str, ...]:
    """Return a namespace; `InvalidInput` if it or the key is invalid.

    Cells could store other labels, too, but then the items could not be moved to another LangGraph store.
    """
    labels = namespace if isinstance(namespace, (tuple, list)) else [None]
    if not all(isinstance(label, str) and label and not {".", "\0"} & {*label} for label in labels):
        raise InvalidNamespace(
            f"{namespace!r:.200} is not a namespace: use a tuple of non-empty texts without '.' and NUL"
        )
    if not isinstance(key, str):
        raise InvalidInput(f"{key!r:.200} is not a key of an item: use a text")
    return tuple(namespace)


def check_value(value: Any, what: str) -> dict[str, Any]:
    """Return a copy of an item's value; `InvalidInput` if it is not JSON."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{what}: its value must be a mapping, not a {type(value).__name__}")
    copied: dict[str, Any] = {}
    left: list[tuple[Any, Any, str, int]] = [(dict(value), copied, "value", 0)]
    while left:
        source, target, place, depth = left.pop()
        for name, each in _parts(source, place, what):
            path, part = f"{place}[{name!r:.60}]", _plain(each)
            kind = type(part)
            if kind in (dict, list):
                if depth == DEEPEST:
                    raise InvalidInput(f"{what}: {path:.300} is nested more than {DEEPEST} deep")
                part = kind()
                left.append((each, part, path, depth + 1))
            elif kind not in (str, int, float, bool, type(None)) or (kind is float and not math.isfinite(each)):
                shown = f"{each!r}" if kind is float else f"a {kind.__name__}"
                raise InvalidInput(
                    f"{what}: {path:.300} is {shown}, which is not JSON: use dict, list, str, int, float, bool or None"
                )
            if type(target) is list:
                target.append(part)
            else:
                target[name] = part
    return copied


def _plain(value: Any) -> Any:
    """Return a text of a subclass, such as `message.text`, as `str`."""
    return str.__str__(value) if is_text(value) else value


def _parts(source: Any, place: str, what: str) -> Iterator[tuple[Any, Any]]:
    if type(source) is list:
        yield from enumerate(source)
        return
    for key, each in source.items():
        if type(name := _plain(key)) is not str:
            raise InvalidInput(f"{what}: {place:.300} has the key {key!r:.60}, which is not text")
        yield name, each


def check_ttl_config(ttl: Any) -> TTLConfig | None:
    """Return a TTL configuration; `InvalidInput` if it is not valid."""
    if ttl is None:
        return None
    if not isinstance(ttl, Mapping) or (unknown := [name for name in ttl if name not in TTLConfig.__annotations__]):
        what = f"it has {unknown[0]!r:.60}" if isinstance(ttl, Mapping) else f"it is a {type(ttl).__name__}"
        raise InvalidInput(f"ttl= must be a dict with {', '.join(TTLConfig.__annotations__)}, but {what}")
    if ttl.get("omit_expired") is False:
        raise InvalidInput("ttl={'omit_expired': False}: a KeelStore never returns expired items")
    check_ttl(ttl.get("default_ttl"), "ttl=")
    return TTLConfig(**ttl)  # type: ignore[typeddict-item]


def check_ttl(ttl: Any, what: str) -> None:
    """Check a time to live, in minutes; `None` means no expiry."""
    is_number = type(ttl) in (int, float) and math.isfinite(ttl) and 0 < ttl < 1e9
    if ttl is not None and not is_number:
        raise InvalidInput(f"{what}: a time to live must be a number of minutes greater than 0, not {ttl!r:.60}")


def check_index(index: Any, what: str) -> None:
    """Check the fields to embed: `None` for the store's fields, `False` for none."""
    is_list = isinstance(index, list | tuple) and all(isinstance(path, str) for path in index)
    if not (index is None or index is False or is_list):
        raise InvalidInput(f"{what}: index={index!r:.60} is neither False nor a list of fields")
