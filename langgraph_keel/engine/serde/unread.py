"""What stands for a stored value that may not be revived here, where somebody only looks: all around it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import RefusedType, UnstorableValue

PLACEHOLDER = (
    "a placeholder for a value that this program may not read, and no value: to go on from a state, read it with its "
    "classes, by the saver itself"
)

LOST = "langgraph_keel.blobs", "Lost"
"""The name of the class that a value seems to have been of whose object is gone (`blobs`). There is no such class."""


@publish
class Unread:
    """Stands for a stored value that may not be revived here (`saver.raw`, `saver.diff`, `saver.timeline`).

    It cannot be stored.

    Attributes:
        module: Where its class was defined when it was stored.
        qualname: The qualified name of the class there.
        reason: Why it was refused, and what would allow it.
    """

    __slots__ = ("_parts", "_show", "module", "qualname", "reason")

    def __init__(self, names: tuple[str, str], reason: str, parts: list[Any], show: Callable[[list[Any]], Any]) -> None:
        self.module, self.qualname = names
        self.reason = reason
        self._parts = parts
        self._show = show
        _ = self.stored  # damaged parts are found now

    @property
    def type_name(self) -> str:
        """The class, as `RefusedType` names it."""
        return f"{self.module}.{self.qualname}"

    @property
    def stored(self) -> Any:
        """What is stored of it, as plain data: the fields of a data object, by name; `None` if that is a secret."""
        return self._show(self._parts)

    @property
    def slots(self) -> dict[str, Any]:
        """What holds the fields of a data object: the edits of a large value are applied to them."""
        fields = next((part for part in self._parts[:2] if type(part) is dict), None)
        if fields is None:
            raise TypeError(f"a {self.qualname} has no fields")
        return fields

    @property
    def mark(self) -> list[Any]:
        """All that is stored of it, to tell it from others."""
        return [self.module, self.qualname, *self._parts]

    def __eq__(self, other: object) -> bool:
        """Return whether the same is stored of both."""
        return self.mark == other.mark if isinstance(other, Unread) else NotImplemented

    def __hash__(self) -> int:
        """Hash the name of the class: it may stand in a set."""
        return hash((self.module, self.qualname))

    def __repr__(self) -> str:
        """Return its class and what is stored of it."""
        return f"Unread({', '.join(f'{name}={part!r}' if name else repr(part) for name, part in self._pairs())})"

    def __rich_repr__(self) -> Iterator[Any]:
        """Yield the same for a terminal."""
        yield from ((name, part) if name else part for name, part in self._pairs())

    def _pairs(self) -> Iterator[tuple[str, Any]]:
        yield "", self.type_name
        if isinstance(stored := self.stored, dict):
            yield from ((str(name), part) for name, part in stored.items())
        elif stored is not None:
            yield "", stored

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, which would store it."""
        raise refuse_placeholder()

    def __deepcopy__(self, memo: Any) -> Unread:
        """Return itself: nothing of it changes."""
        return self


def is_lost(value: Any) -> bool:
    """Return whether a placeholder stands for what is lost."""
    return type(value) is Unread and (value.module, value.qualname) == LOST


def refuse_placeholder() -> UnstorableValue:
    """Return the error for an attempt to store a placeholder."""
    return UnstorableValue("langgraph_keel.Unread", PLACEHOLDER)


def unread_of(
    parts: list[Any], error: RefusedType, show: Callable[[list[Any]], Any], present_name: Callable[[Any, Any], Any]
) -> Unread:
    """Return what stands for a value that was refused."""
    if len(parts) > 1 and type(parts[0]) is type(parts[1]) is str:
        names = present_name(parts[0], parts[1])
        if ".".join(names) == error.type_name:
            return Unread(names, error.reason, parts[2:], show)
    module, _, qualname = error.type_name.partition("(")[0].rpartition(".")
    return Unread((module, qualname), error.reason, parts, show)
