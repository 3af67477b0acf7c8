"""Errors for unknown options, with the name that was probably meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from langgraph_keel.errors import InvalidInput

T = TypeVar("T")


def check_names(owner: str, given: Iterable[str], known: Collection[str], advice: Mapping[str, str]) -> None:
    """Check that all options are known."""
    for name in given:
        if name not in known:
            near = [f"do you mean {each!r}?" for each in get_close_matches(name, sorted(known), 1)]
            told = advice.get(name) or next(iter(near), f"it has {', '.join(sorted(known))}")
            raise InvalidInput(f"{owner} has no option {name!r}: {told}")


def check_own_names(cls: type[T]) -> type[T]:
    """Decorate a data class to raise `InvalidInput` for unknown fields."""
    made: Any = cls.__init__
    known = [each.name for each in fields(cls)]  # type: ignore[arg-type]

    @wraps(made)
    def init(self: T, *values: Any, **given: Any) -> None:
        check_names(cls.__name__, given, known, {})
        made(self, *values, **given)

    cls.__init__ = init  # type: ignore[assignment]
    return cls
