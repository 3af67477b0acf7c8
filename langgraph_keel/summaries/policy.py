"""When a conversation is summarized, and which messages go: LangChain's tuples, and `("steps", n)`."""

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
"""One size, or a list of which any is enough; a mapping says what must be reached together. `None`: always."""

Clause: TypeAlias = tuple[tuple[str, int], ...]
_COUNTED = ("messages", "tokens")

PINNED = "keel_pinned"
"""A message with this in its `additional_kwargs`, and true, always stays."""


def clauses_of(trigger: Trigger, window: int | None) -> tuple[Clause, ...]:
    """Return what a trigger says: any of these, all of which must be reached."""
    given: Any = trigger
    if given is None:
        return ((),)
    is_list = isinstance(given, tuple) and bool(given) and isinstance(given[0], (tuple, Mapping))
    if isinstance(given, (tuple, Mapping)) and not is_list:
        given = [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidInput(f"trigger must be such as ('messages', 50), or a list of those, not {trigger!r}")
    listed = [list(each.items()) if isinstance(each, Mapping) else [each] for each in given]
    if not all(listed):
        raise InvalidInput("trigger: an empty mapping says nothing that could be reached")
    clauses = tuple(tuple(_size("trigger", size, (*_COUNTED, "steps"), window) for size in sizes) for sizes in listed)
    if not clauses:
        raise InvalidInput("trigger is an empty list: None summarizes whenever there is more than `keep`")
    return clauses


def kept_size(keep: Size, window: int | None) -> tuple[str, int]:
    """Return how much stays: in messages or in tokens."""
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
    """See that what stays does not reach the trigger again."""
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


@dataclass(frozen=True, slots=True)
class Cut:
    """A conversation in two parts."""

    gone: Sequence[BaseMessage]  # in order
    kept: Sequence[BaseMessage]  # in order
    at: int  # the place of a summary among them: how many come before the first message that goes

    def with_summary(self, summary: BaseMessage | None) -> list[BaseMessage]:
        """Return what is left, with the message that stands for what goes, if one does."""
        return [*self.kept[: self.at], *([summary] if summary else []), *self.kept[self.at :]]

    def writes(self, summary: BaseMessage | None, by_id: bool) -> list[BaseMessage]:
        """Return the update by which `add_messages` leaves the messages of `with_summary`."""
        # Messages that other nodes write in the same step stay: so each message that goes is named, as
        # `REMOVE_ALL_MESSAGES` would remove those, too. The summary has the id of the first message that goes: with an
        # id of its own it would be the last one.
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
    """Divide a conversation: the last messages stay, system messages at its head, pinned ones, and open tool calls."""
    # With each message stays its whole group: an answer of the model, and the results of all tools it called. A group
    # on the border stays when messages are counted, and goes when tokens are, as long as anything stays then.
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
    """Return for each message the position of the one it belongs to: of the answer that called, or its own."""
    # Providers number calls from 0 again in each answer ("call_0"): a result belongs to the latest call before it.
    callers: dict[str | None, int] = {}
    groups = list(range(len(messages)))
    for number, message in enumerate(messages):
        callers |= dict.fromkeys(calls_of(message), number)
        if isinstance(message, ToolMessage):
            groups[number] = callers.get(message.tool_call_id, number)
    return groups


def calls_of(message: BaseMessage) -> list[str]:
    """Return the ids of the calls of tools in a message. A malformed call may have a result, too."""
    calls = (*message.tool_calls, *message.invalid_tool_calls) if isinstance(message, AIMessage) else ()
    return [call["id"] for call in calls if call["id"]]


def answered_in(messages: Sequence[BaseMessage], groups: Sequence[int]) -> set[tuple[int, str]]:
    """Return the calls that have a result: the position of the message that called, and the id of the call."""
    return {(groups[at], each.tool_call_id) for at, each in enumerate(messages) if isinstance(each, ToolMessage)}


def _open(messages: Sequence[BaseMessage], groups: Sequence[int]) -> Iterator[int]:
    """Yield the answers of which a call has no result yet. Nobody answers a malformed one."""
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
    """Return where the part begins that stays because it is the last."""
    kind, size = keep
    if kind == "messages":
        return max(0, len(messages) - size)
    fits = bisect_left(range(len(messages)), True, key=lambda start: count(messages[start:]) <= size)
    earliest = [*accumulate(reversed(groups), min)][::-1]  # of the groups from here on
    whole = (start for start in range(fits, len(messages)) if earliest[start] == start)
    return next(whole, min(fits, len(messages) - 1)) if messages else 0
