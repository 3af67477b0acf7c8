"""Placeholders for stored values that may not be revived, in read-only views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import RefusedType, UnstorableValue

PLACEHOLDER = (
    "a placeholder for a value that this program may not read: to continue from a state, import its classes and read "
    "it by the saver itself"
)

LOST = "langgraph_keel.blobs", "Lost"
"""The class name shown for a value whose object is lost (`blobs`). The class does not exist."""


@publish
class Unread:
    """Placeholder for a stored value that may not be revived, as in `saver.raw`.

    It cannot be stored.

    Attributes:
        module: Module of the value's class when it was stored.
        qualname: Qualified name of the class in that module.
        reason: Reason why it was refused, with advice.
    """

    __slots__ = ("_parts", "_show", "module", "qualname", "reason")

    def __init__(self, names: tuple[str, str], reason: str, parts: list[Any], show: Callable[[list[Any]], Any]) -> None:
        self.module, self.qualname = names
        self.reason = reason
        self._parts = parts
        self._show = show
        _ = self.stored  # raises an error now if parts are damaged

    @property
    def type_name(self) -> str:
        """Full name of the class, as in `RefusedType`."""
        return f"{self.module}.{self.qualname}"

    @property
    def stored(self) -> Any:
        """The stored value as plain data: fields by name, or `None` for a secret."""
        return self._show(self._parts)

    @property
    def slots(self) -> dict[str, Any]:
        """The dict of a data object's fields, to which edits of a large value are applied."""
        fields = next((part for part in self._parts[:2] if type(part) is dict), None)
        if fields is None:
            raise TypeError(f"a {self.qualname} has no fields")
        return fields

    @property
    def mark(self) -> list[Any]:
        """All of its stored data, for comparison."""
        return [self.module, self.qualname, *self._parts]

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same stored data."""
        return self.mark == other.mark if isinstance(other, Unread) else NotImplemented

    def __hash__(self) -> int:
        """Hash the name of the class, so that a set can contain it."""
        return hash((self.module, self.qualname))

    def __repr__(self) -> str:
        """Show the class and the stored data."""
        return f"Unread({', '.join(f'{name}={part!r}' if name else repr(part) for name, part in self._pairs())})"

    def __rich_repr__(self) -> Iterator[Any]:
        """Yield the same parts for a terminal."""
        yield from ((name, part) if name else part for name, part in self._pairs())

    def _pairs(self) -> Iterator[tuple[str, Any]]:
        yield "", self.type_name
        if isinstance(stored := self.stored, dict):
            yield from ((str(name), part) for name, part in stored.items())
        elif stored is not None:
            yield "", stored

    def __reduce__(self) -> NoReturn:
        """Refuse pickling, which would store it."""
        raise refuse_placeholder()

    def __deepcopy__(self, memo: Any) -> Unread:
        """Return itself, because it is immutable."""
        return self


def is_lost(value: Any) -> bool:
    """Return whether a value is a placeholder for a lost object."""
    return type(value) is Unread and (value.module, value.qualname) == LOST


def refuse_placeholder() -> UnstorableValue:
    """Return the error for an attempt to store a placeholder."""
    return UnstorableValue("langgraph_keel.Unread", PLACEHOLDER)


def unread_of(
    parts: list[Any], error: RefusedType, show: Callable[[list[Any]], Any], present_name: Callable[[Any, Any], Any]
) -> Unread:
    """Return the placeholder for a refused value."""
    if len(parts) > 1 and type(parts[0]) is type(parts[1]) is str:
        names = present_name(parts[0], parts[1])
        if ".".join(names) == error.type_name:
            return Unread(names, error.reason, parts[2:], show)
    module, _, qualname = error.type_name.partition("(")[0].rpartition(".")
    return Unread((module, qualname), error.reason, parts, show)
