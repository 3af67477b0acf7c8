"""Where two states differ, when what is random by nature is set aside: the ids of messages and calls, times, marks.

Ids may differ, if they do so consistently: what one side calls "a" wherever it is named, the other may call "b". All
else is equal to the byte, or a difference: 1 is not 1.0, and a tuple no list.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from langgraph_keel.errors import ValueRefused
from langgraph_keel.provenance.facts import said

LONGEST = 160
"""Most characters that are shown of a value."""
NEXT = "next"
"""The field that says which nodes come next."""
_BRANCH = "branch:to:"
_ID = re.compile(r"(?i:(^|[_-])ids?)$|(?<=[a-z])Ids?$")
_MOMENT = re.compile(
    r"(?i:(^|[_-])(times?|timestamp|date|created|duration|latency|seconds|ms)([_-]at)?)$"
    r"|(?<=[a-z])(Time|Date|Duration|Latency|Ms)$|(?i:headers)$|^keel_replay$"
)
"""Keys of what providers and Keel say about a message that are another each time: ids, and times."""
_LASTING = frozenset({"model_id"})


class Nothing:
    """What stands where one side has something and the other has nothing."""

    def __repr__(self) -> str:
        """Say so."""
        return "nothing"


NOTHING = Nothing()


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was recorded.

    Attributes:
        step: The step of the root graph.
        field: What differs, such as `"messages[3].content"`, `"system_hash"` or `"tool search"`.
        recorded: What it was, shortened.
        replayed: What it is now, shortened.
        node: Of a model's call, the node that called, with those of the graphs around it.
    """

    step: int
    field: str
    recorded: str
    replayed: str
    node: str = ""

    def __str__(self) -> str:
        """Say it in one line."""
        node = f", node {self.node!r}" if self.node else ""
        return f"step {self.step}{node}: {self.field}: was {self.recorded}, now {self.replayed}"


def shown(value: Any) -> str:
    """Return a value as a difference shows it."""
    if isinstance(value, BaseMessage):
        parts = {"type": value.type, "name": value.name, "content": value.content}
        parts["calls"] = [call["name"] for call in getattr(value, "tool_calls", ())]
        value = {name: part for name, part in parts.items() if part}
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 20]}... ({len(text):,} characters)"


def _both_shown(was: Any, now: Any) -> tuple[str, str]:
    """Return two values as a difference shows them: of long texts the place where they part."""
    if type(was) is type(now) is str and max(len(was), len(now)) > LONGEST // 2:
        alike = next((n for n, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1]), 0)
        cut = max(0, alike - LONGEST // 4)
        was, now = (("..." if cut else "") + text[cut:] for text in (was, now))
    return shown(was), shown(now)


def state_of(values: Mapping[str, Any], ignore: Collection[str] = ()) -> dict[str, Any]:
    """Return what of a checkpoint's channels is compared: the nodes that come next in one field."""
    nodes = sorted(name.removeprefix(_BRANCH) for name in values if name.startswith(_BRANCH))
    rest = {name: value for name, value in values.items() if not name.startswith(_BRANCH) and name not in ignore}
    return rest if NEXT in rest else {**rest, NEXT: nodes}


class Names:
    """Which id of the replay stands for which recorded one."""

    def __init__(self) -> None:
        self._now: dict[Any, Any] = {}
        self._was: dict[Any, Any] = {}

    def are_same(self, was: Any, now: Any) -> bool:
        """Return whether two ids may be the same one, which they are from then on."""
        # What was put as it is has its own ids. And one without gets one from whoever comes first.
        if was == now or was is None or now is None:
            return True
        if self._now.get(was, now) != now or self._was.get(now, was) != was:
            return False
        self._now[was], self._was[now] = now, was
        return True

    def now(self, was: Any) -> Any:
        """Return what stands for a recorded value."""
        try:
            return self._now.get(was, was)
        except TypeError:
            return was


class Comparison:
    """Compares the states of one replay, in order.

    Args:
        packed: Returns a value as it is stored: for values that are made of nothing we know.
        limit: Most differences to find in one state.
    """

    def __init__(self, packed: Callable[[Any], bytes], limit: int) -> None:
        self._packed = packed
        self._limit = limit
        self._names = Names()
        self._found: list[tuple[str, Any, Any]] = []

    def differences(self, step: int, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
        """Return where two states differ, as far as the limit."""
        self._found = []
        self._mapping("", was, now)
        return [Difference(step, path, *_both_shown(before, after)) for path, before, after in self._found]

    def _note(self, path: str, was: Any, now: Any) -> None:
        if len(self._found) < self._limit:
            self._found.append((path, was, now))

    def _walk(self, path: str, was: Any, now: Any) -> None:
        if len(self._found) >= self._limit:
            return
        if type(was) is not type(now):
            self._note(path, was, now)
        elif isinstance(was, BaseMessage):
            self._message(path, was, now)
        elif isinstance(was, Mapping):
            self._mapping(path, was, now)
        elif isinstance(was, (list, tuple, deque)):
            self._sequence(path, was, now)
        elif isinstance(was, Set):
            if {self._names.now(each) for each in was} != now:
                self._note(path, was, now)
        elif (parts := _parts(was)) is not None:
            self._mapping(path, parts, _parts(now) or {})
        elif not self._is_same(was, now):
            self._note(path, was, now)

    def _is_same(self, was: Any, now: Any) -> bool:
        if isinstance(was, str):
            return was == now or bool(self._names.now(was) == now)
        if was is None or isinstance(was, (bool, int, float, complex, bytes)):
            return repr(was) == repr(now)  # 0.0 is not -0.0, and nan is nan
        try:
            return self._packed(was) == self._packed(now)
        except ValueRefused:
            return bool(was == now)

    def _sequence(self, path: str, was: Sequence[Any], now: Sequence[Any]) -> None:
        for place in range(max(len(was), len(now))):
            self._walk(f"{path}[{place}]", *(side[place] if place < len(side) else NOTHING for side in (was, now)))

    def _mapping(self, path: str, was: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        is_call = was.keys() >= {"name", "args", "id"}
        names = {key: self._names.now(key) for key in was}
        for key, other in names.items():
            where = _joined(path, key)
            if is_call and key == "id":
                self._id(where, was[key], now.get(other, NOTHING))
            else:
                self._walk(where, was[key], now.get(other, NOTHING))
        for key in now.keys() - set(names.values()):
            self._note(_joined(path, key), NOTHING, now[key])

    def _id(self, path: str, was: Any, now: Any) -> None:
        if not self._names.are_same(was, now):
            self._note(path, was, now)

    # -- messages ----------------------------------------------------------------------------------------------

    def _message(self, path: str, was: BaseMessage, now: BaseMessage) -> None:
        before, after = _parts(was) or {}, _parts(now) or {}
        for name in dict.fromkeys([*before, *after]):
            where = _joined(path, name)
            pair = before.get(name, NOTHING), after.get(name, NOTHING)
            if name in ("id", "tool_call_id"):
                self._id(where, *pair)
            elif name in _SAID_BY:
                before_of, after_of = _SAID_BY[name](*pair)
                self._walk(where, before_of, after_of)
            else:
                self._walk(where, *pair)


def _parts(value: Any) -> dict[str, Any] | None:
    """Return what an object is made of; `None` if nobody can tell."""
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.model_extra or {})}
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    slots = getattr(type(value), "__slots__", None)
    if isinstance(slots, tuple) and slots and type(value).__module__.startswith("langgraph."):
        return {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return None


def _is_id(key: Any) -> bool:
    return bool(_ID.search(str(key))) and key not in _LASTING


def _is_of_a_moment(key: Any) -> bool:
    return _is_id(key) or bool(_MOMENT.search(str(key)))


def _without(value: Any, is_left_out: Callable[[Any], bool]) -> Any:
    """Return what is said about a message, without some keys."""
    if isinstance(value, Mapping):
        return {key: _without(part, is_left_out) for key, part in value.items() if not is_left_out(key)}
    return [_without(part, is_left_out) for part in value] if isinstance(value, list) else value


def _about(was: Any, now: Any) -> tuple[Any, Any]:
    """Return what both sides say of an answer: a provider says more of one that was not streamed."""
    if not (isinstance(was, Mapping) and isinstance(now, Mapping)):
        return (None, None) if was is None or now is None else (was, now)
    both = was.keys() & now.keys()
    mine, its = ({key: part for key, part in side.items() if key in both} for side in (was, now))
    return _without(mine, _is_of_a_moment), _without(its, _is_of_a_moment)


def _extras(was: Any, now: Any) -> tuple[Any, Any]:
    sides = (_without(side, _is_id) for side in (was, now))
    mine, its = ({k: v for k, v in side.items() if v is not None} if isinstance(side, dict) else side for side in sides)
    return mine, its


def _contents(was: Any, now: Any) -> tuple[Any, Any]:
    """Return contents without the ids of their blocks, and in one form: of a stream, text may come in blocks."""
    if isinstance(was, list) or isinstance(now, list):
        return said(was), said(now)
    return was, now


_SAID_BY: Mapping[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "response_metadata": _about,
    "usage_metadata": _about,
    "additional_kwargs": _extras,
    "content": _contents,
}


def _joined(path: str, key: Any) -> str:
    name = key if isinstance(key, str) and key.isidentifier() else None
    if name is None and path:
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else str(key)
