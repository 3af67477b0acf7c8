"""When a conversation is summarized, and how much of it stays: LangChain's tuples, and `("steps", n)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from langgraph_keel.errors import InvalidInput

Size: TypeAlias = tuple[str, int | float]
"""`("messages", 50)`, `("tokens", 4000)`, `("fraction", 0.8)` of the model's window; in triggers `("steps", 9)`."""

Trigger: TypeAlias = Size | Mapping[str, int | float] | Sequence[Size | Mapping[str, int | float]] | None
"""One size, or a list of which any is enough; a mapping says what must be reached together. `None`: always."""

Clause: TypeAlias = tuple[tuple[str, int], ...]
_COUNTED = ("messages", "tokens")


def clauses_of(trigger: Trigger, window: int | None) -> tuple[Clause, ...]:
    """Return what a trigger says: any of these, all of which must be reached.

    Args:
        trigger: As the user gives it.
        window: Most tokens that the model takes, if that is known.

    Raises:
        InvalidInput: It is no trigger, or a fraction of a window that is not known.
    """
    given: Any = trigger
    if given is None:
        return ((),)
    if isinstance(given, (tuple, Mapping)) and not _is_list(given):
        given = [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidInput(f"trigger must be such as ('messages', 50), or a list of those, not {trigger!r}")
    clauses = tuple(_clause(each, window) for each in given)
    if not clauses:
        raise InvalidInput("trigger is an empty list: None summarizes whenever there is more than `keep`")
    return clauses


def _is_list(given: Any) -> bool:
    return isinstance(given, tuple) and bool(given) and isinstance(given[0], (tuple, Mapping))


def _clause(given: Any, window: int | None) -> Clause:
    sizes = list(given.items()) if isinstance(given, Mapping) else [given]
    if not sizes:
        raise InvalidInput("trigger: an empty mapping says nothing that could be reached")
    return tuple(_size("trigger", size, (*_COUNTED, "steps"), window) for size in sizes)


def kept_size(keep: Size, window: int | None) -> tuple[str, int]:
    """Return how much stays: in messages or in tokens.

    Raises:
        InvalidInput: It says nothing of the kind, or a fraction of a window that is not known.
    """
    return _size("keep", keep, _COUNTED, window)


def _size(what: str, given: Any, kinds: tuple[str, ...], window: int | None) -> tuple[str, int]:
    """Return a kind of `kinds` and a number; a fraction becomes tokens."""
    if not isinstance(given, (tuple, list)) or len(given) != 2 or given[0] not in (*kinds, "fraction"):
        known = ", ".join(repr(kind) for kind in (*kinds, "fraction"))
        raise InvalidInput(f"{what} must be a pair of one of {known} and a number, such as ('messages', 20): {given!r}")
    kind, number = given
    if kind == "fraction":
        return "tokens", _tokens(what, number, window)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidInput(f"{what}: {kind!r} takes an int above 0, not {number!r}")
    return kind, number


def _tokens(what: str, fraction: Any, window: int | None) -> int:
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
        raise InvalidInput(f"{what}: 'fraction' takes a number above 0 and at most 1, not {fraction!r}")
    if window is None:
        raise InvalidInput(
            f"{what}: nothing says how large the model's window is, so ('fraction', {fraction}) means nothing: "
            "use ('tokens', n), or give the model a profile, such as profile={'max_input_tokens': 200_000}"
        )
    return max(1, int(window * fraction))


def check_shrinks(clauses: Sequence[Clause], keep: tuple[str, int]) -> None:
    """See that what stays does not reach the trigger again.

    Raises:
        InvalidInput: It would, at every turn.
    """
    kind, kept = keep
    for clause in filter(None, clauses):
        if all(named == kind and least <= kept for named, least in clause):
            raise InvalidInput(
                f"keep: {kept} {kind} stay, and the trigger is reached at {clause[0][1]}: the conversation would be "
                "shortened at every turn. Keep less, set the trigger higher, or say trigger=None if that is meant"
            )


def is_reached(clauses: Sequence[Clause], sizes: Mapping[str, Callable[[], int]]) -> bool:
    """Return whether a conversation of these sizes is to be summarized."""
    return any(all(sizes[kind]() >= least for kind, least in clause) for clause in clauses)


def says(clauses: Sequence[Clause], kind: str) -> bool:
    """Return whether a trigger looks at this kind of size."""
    return any(kind == named for clause in clauses for named, _ in clause)


def window_of(model: Any) -> int | None:
    """Return how many tokens a model takes, as its profile says; `None` if that says nothing."""
    profile = getattr(model, "profile", None)
    window = profile.get("max_input_tokens") if isinstance(profile, Mapping) else None
    return window if isinstance(window, int) and window > 0 else None
