"""When to summarize, and which messages to remove."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from langgraph_keel.errors import InvalidInput

Size: TypeAlias = tuple[str, int | float]
"""`("messages", 50)`, `("tokens", 4000)`, `("fraction", 0.8)` of the model's window; in triggers `("steps", 9)`."""

Trigger: TypeAlias = Size | Mapping[str, int | float] | Sequence[Size | Mapping[str, int | float]] | None
"""One size; a list: any item; a mapping: all items together; `None`: always."""

Clause: TypeAlias = tuple[tuple[str, int], ...]
_COUNTED = ("messages", "tokens")

PINNED = "keel_pinned"
"""Key in `additional_kwargs`: a message with a true value always stays."""


def clauses_of(trigger: Trigger, window: int | None) -> tuple[Clause, ...]:
    """Return the clauses of a trigger: any clause is enough, and needs all its sizes."""
    given: Any = trigger
    if given is None:
        return ((),)
    is_list = isinstance(given, tuple) and bool(given) and isinstance(given[0], (tuple, Mapping))
    if isinstance(given, (tuple, Mapping)) and not is_list:
        given = [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidInput(f"trigger must be a pair such as ('messages', 50), or a list of pairs, not {trigger!r}")
    listed = [list(each.items()) if isinstance(each, Mapping) else [each] for each in given]
    if not all(listed):
        raise InvalidInput("trigger: a mapping must not be empty")
    clauses = tuple(tuple(_size("trigger", size, (*_COUNTED, "steps"), window) for size in sizes) for sizes in listed)
    if not clauses:
        raise InvalidInput("trigger is an empty list: None summarizes whenever there is more than `keep`")
    return clauses


def kept_size(keep: Size, window: int | None) -> tuple[str, int]:
    """Return the kept size, in messages or tokens."""
    return _size("keep", keep, _COUNTED, window)


def _size(what: str, given: Any, kinds: tuple[str, ...], window: int | None) -> tuple[str, int]:
    """Return a kind of `kinds` and a number. A fraction becomes tokens."""
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
            f"{what}: the size of the model's window is unknown, so ('fraction', {fraction}) cannot be computed: "
            "use ('tokens', n), or give the model a profile, such as profile={'max_input_tokens': 200_000}"
        )
    return max(1, int(window * fraction))


def check_shrinks(clauses: Sequence[Clause], keep: tuple[str, int]) -> None:
    """Check that the kept messages alone do not reach the trigger."""
    kind, kept = keep
    for clause in filter(None, clauses):
        if all(named == kind and least <= kept for named, least in clause):
            raise InvalidInput(
                f"keep={kept} {kind} reaches the trigger at {clause[0][1]}: the conversation would be shortened at "
                "every turn. Keep less, raise the trigger, or pass trigger=None if that is intended"
            )


def is_reached(clauses: Sequence[Clause], sizes: Mapping[str, Callable[[], int]]) -> bool:
    """Return whether a conversation of these sizes reaches the trigger."""
    return any(all(sizes[kind]() >= least for kind, least in clause) for clause in clauses)


def says(clauses: Sequence[Clause], kind: str) -> bool:
    """Return whether a trigger uses this kind of size."""
    return any(kind == named for clause in clauses for named, _ in clause)


def window_of(model: Any) -> int | None:
    """Return the model's window in tokens from its profile; `None` if unknown."""
    profile = getattr(model, "profile", None)
    window = profile.get("max_input_tokens") if isinstance(profile, Mapping) else None
    return window if isinstance(window, int) and window > 0 else None


@dataclass(frozen=True, slots=True)
class Cut:
    """A conversation in two parts."""

    gone: Sequence[BaseMessage]  # in order
    kept: Sequence[BaseMessage]  # in order
    at: int  # the place of a summary: the number of kept messages before the first removed one

    def with_summary(self, summary: BaseMessage | None) -> list[BaseMessage]:
        """Return the kept messages, with the summary in its place, if any."""
        return [*self.kept[: self.at], *([summary] if summary else []), *self.kept[self.at :]]

    def writes(self, summary: BaseMessage | None, by_id: bool) -> list[BaseMessage]:
        """Return the update by which `add_messages` makes `with_summary`'s messages."""
        # Name each removed message: `REMOVE_ALL_MESSAGES` would also remove messages that other nodes write in the same
        # step. The summary has the id of the first removed message: with a new id it would be appended at the end.
        if not by_id:
            return [RemoveMessage(REMOVE_ALL_MESSAGES), *self.with_summary(summary)]
        removed = [RemoveMessage(str(message.id)) for message in self.gone[1 if summary else 0 :]]
        return [*removed, *([summary] if summary else [])]


def cut(
    messages: Sequence[BaseMessage],
    keep: tuple[str, int],
    count: Callable[[Sequence[BaseMessage]], int],
    is_pinned: Callable[[BaseMessage], bool],
) -> Cut:
    """Split a conversation into kept and removed messages.

    Kept are its last messages, first system messages, pinned messages, and open tool calls.
    """
    # Groups (an answer of the model, and the results of its tool calls) are kept or removed as a whole. A group on the
    # border is kept when counting messages, and removed when counting tokens, unless nothing would be kept.
    groups = groups_of(messages)
    stays = {groups[number] for number in range(_tail(messages, keep, count, groups), len(messages))}
    stays |= {groups[number] for number, message in enumerate(messages) if is_pinned(message)}
    others = (number for number, message in enumerate(messages) if not isinstance(message, SystemMessage))
    stays |= {*range(next(others, len(messages)))} | set(_open(messages, groups))
    is_kept = [group in stays for group in groups]
    gone = [message for message, kept in zip(messages, is_kept, strict=True) if not kept]
    kept = [message for message, kept in zip(messages, is_kept, strict=True) if kept]
    return Cut(gone, kept, is_kept.index(False) if gone else 0)


def groups_of(messages: Sequence[BaseMessage]) -> list[int]:
    """Return each message's group: the position of the calling answer, or its own."""
    # Some providers reuse call ids in each answer ("call_0"): a result belongs to the latest call before it.
    callers: dict[str | None, int] = {}
    groups = list(range(len(messages)))
    for number, message in enumerate(messages):
        callers |= dict.fromkeys(calls_of(message), number)
        if isinstance(message, ToolMessage):
            groups[number] = callers.get(message.tool_call_id, number)
    return groups


def calls_of(message: BaseMessage) -> list[str]:
    """Return the ids of all tool calls in a message, including malformed ones."""
    calls = (*message.tool_calls, *message.invalid_tool_calls) if isinstance(message, AIMessage) else ()
    return [call["id"] for call in calls if call["id"]]


def answered_in(messages: Sequence[BaseMessage], groups: Sequence[int]) -> set[tuple[int, str]]:
    """Return the calls with a result, as position of the calling message and call id."""
    return {(groups[at], each.tool_call_id) for at, each in enumerate(messages) if isinstance(each, ToolMessage)}


def _open(messages: Sequence[BaseMessage], groups: Sequence[int]) -> Iterator[int]:
    """Yield the answers with a (not malformed) call that lacks a result."""
    answered = answered_in(messages, groups)
    for number, message in enumerate(messages):
        calls = message.tool_calls if isinstance(message, AIMessage) else ()
        if any(call["id"] and (number, call["id"]) not in answered for call in calls):
            yield number


def _tail(
    messages: Sequence[BaseMessage],
    keep: tuple[str, int],
    count: Callable[[Sequence[BaseMessage]], int],
    groups: Sequence[int],
) -> int:
    """Return the start of the kept end."""
    kind, size = keep
    if kind == "messages":
        return max(0, len(messages) - size)
    fits = bisect_left(range(len(messages)), True, key=lambda start: count(messages[start:]) <= size)
    earliest = [*accumulate(reversed(groups), min)][::-1]  # of the groups from here on
    whole = (start for start in range(fits, len(messages)) if earliest[start] == start)
    return next(whole, min(fits, len(messages) - 1)) if messages else 0
