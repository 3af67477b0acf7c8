"""What programs give to a store is checked before anything is stored: namespaces, values, times to live."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph.store.base import InvalidNamespaceError, TTLConfig

from langgraph_keel.errors import InvalidInput

DEEPEST = 100
"""Lists and objects within one another, at most."""


class InvalidNamespace(InvalidInput, InvalidNamespaceError):
    """A namespace that LangGraph's stores refuse, too."""


def check_place(namespace: Any, key: Any = "") -> tuple[str, ...]:
    """Return a namespace with the labels that LangGraph allows; `InvalidInput` for another one, or such a key.

    The cells would tell other labels apart. A program that uses them could move its items to no other store.
    """
    labels = namespace if isinstance(namespace, (tuple, list)) else [None]
    if not all(isinstance(label, str) and label and not {".", "\0"} & {*label} for label in labels):
        raise InvalidNamespace(
            f"{namespace!r:.200} is no namespace: use a tuple of texts, not empty, without '.' and NUL"
        )
    if not isinstance(key, str):
        raise InvalidInput(f"{key!r:.200} is no key of an item: use a text")
    return tuple(namespace)


def check_value(value: Any, what: str) -> dict[str, Any]:
    """Return the value of an item as a dict of its own; `InvalidInput` if it is not JSON, which names the place."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{what}: its value must be a mapping, not a {type(value).__name__}")
    copied: dict[str, Any] = {}
    left: list[tuple[Any, Any, str, int]] = [(dict(value), copied, "value", 0)]
    while left:
        source, target, place, depth = left.pop()
        for name, each in _parts(source, place, what):
            path, kind, part = f"{place}[{name!r:.60}]", type(each), each
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


def _parts(source: Any, place: str, what: str) -> Iterator[tuple[Any, Any]]:
    if type(source) is list:
        yield from enumerate(source)
        return
    for name, each in source.items():
        if type(name) is not str:
            raise InvalidInput(f"{what}: {place:.300} has the key {name!r:.60}, which is not text")
        yield name, each


def check_ttl_config(ttl: Any) -> TTLConfig | None:
    """Return a configuration of times to live; `InvalidInput` if it is none."""
    if ttl is None:
        return None
    if not isinstance(ttl, Mapping) or (unknown := [name for name in ttl if name not in TTLConfig.__annotations__]):
        what = f"it has {unknown[0]!r:.60}" if isinstance(ttl, Mapping) else f"it is a {type(ttl).__name__}"
        raise InvalidInput(f"ttl= is a dict with {', '.join(TTLConfig.__annotations__)}, and {what}")
    if ttl.get("omit_expired") is False:
        raise InvalidInput("ttl={'omit_expired': False}: a KeelStore never returns items that have expired")
    check_ttl(ttl.get("default_ttl"), "ttl=")
    return TTLConfig(**ttl)  # type: ignore[typeddict-item]


def check_ttl(ttl: Any, what: str) -> None:
    """Check a time to live, in minutes; `None` is for ever."""
    is_number = type(ttl) in (int, float) and math.isfinite(ttl) and 0 < ttl < 1e9
    if ttl is not None and not is_number:
        raise InvalidInput(f"{what}: a time to live is a number of minutes greater than 0, not {ttl!r:.60}")


def check_index(index: Any, what: str) -> None:
    """Check which fields of an item are embedded: `None` is those of the store, `False` none."""
    is_list = isinstance(index, list | tuple) and all(isinstance(path, str) for path in index)
    if not (index is None or index is False or is_list):
        raise InvalidInput(f"{what}: index={index!r:.60} is neither False nor a list of fields")
