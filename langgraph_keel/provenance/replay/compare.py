"""Compares two states, ignoring times, marks and consistently renamed ids.

The renamed ids are those of messages and calls. Everything else must be equal to the byte: 1 differs from 1.0, and a
tuple from a list.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from langgraph_keel._langgraph import BRANCH_TO, NS_SEP
from langgraph_keel.display.text import represent
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import ValueRefused
from langgraph_keel.provenance.records import ModelCall
from langgraph_keel.provenance.replay.history import History

LONGEST = 160
"""Maximum characters shown of a value."""
NEXT = "next"
"""The field with the next nodes."""
RANDOM = frozenset(
    {
        *("id", "call_id", "response_id", "request_id"),
        *("created", "created_at", "createTime", "completed_at", "timestamp", "date"),
        *("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"),  # Ollama
        *("total_time", "prompt_time", "completion_time", "queue_time"),  # Groq
        *("ResponseMetadata", "metrics", "headers"),  # Bedrock, of the HTTP response; OpenAI
        *("__gemini_function_call_thought_signatures__", "thought_signature", "encrypted_content"),
        "keel_replay",  # the mark on tool results from a ledger
    }
)
"""Keys of message metadata, at any depth, whose values always differ."""
_UNSTREAMED = ("usage_metadata", "token_usage", "usage", "model")
"""Keys that some streamed answers lack: compared only if both sides have them."""

FIELDS = (
    "provider", "model", "seed", "temperature", "top_p", "max_tokens", "stop", "parameters", "tools", "system_hash",
    "prompt_hash", "served_model", "system_fingerprint", "finish_reason", "answer_hash",
)  # fmt: skip
"""The fields of a model call that are compared, causes first."""
BOUND = ("model", "seed", "temperature", "top_p", "max_tokens")
"""Parameters that the config can pass to the graph's models."""


class Nothing:
    """The placeholder for a value that one side does not have."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Nothing()


@publish
@dataclass(frozen=True, slots=True)
class Difference:
    """One difference from the record.

    Attributes:
        step: The step of the root graph.
        field: The differing field, such as `"messages[3].content"`, `"system_hash"` or `"tool search"`.
        recorded: The recorded value, shortened.
        replayed: The value in the replay, shortened.
        node: For a model call, the calling node, after the nodes of the graphs around it.
    """

    step: int
    field: str
    recorded: str
    replayed: str
    node: str = ""

    def __str__(self) -> str:
        """Return the difference as one line."""
        node = f", node {self.node!r}" if self.node else ""
        return f"step {self.step}{node}: {self.field}: was {self.recorded}, now {self.replayed}"


def show(value: Any) -> str:
    """Return the shortened text of a value."""
    if isinstance(value, BaseMessage):
        parts = {"type": value.type, "name": value.name, "content": value.content}
        parts["calls"] = [call["name"] for call in getattr(value, "tool_calls", ())]
        value = {name: part for name, part in parts.items() if part}
    text = " ".join(represent(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 20]}... ({len(text):,} characters)"


def state_of(values: Mapping[str, Any], ignore: Collection[str] = ()) -> dict[str, Any]:
    """Return the channels to compare, with the next nodes in one field."""
    nodes = sorted(name.removeprefix(BRANCH_TO) for name in values if name.startswith(BRANCH_TO))
    rest = {name: value for name, value in values.items() if not name.startswith(BRANCH_TO) and name not in ignore}
    return rest if NEXT in rest else {**rest, NEXT: nodes}


class Names:
    """A mapping between recorded ids and those of the replay."""

    def __init__(self) -> None:
        self._now: dict[Any, Any] = {}
        self._was: dict[Any, Any] = {}

    def are_same(self, was: Any, now: Any) -> bool:
        """Return whether two ids can correspond; if so, they correspond from now on."""
        # Copied checkpoints keep their ids, and a message without an id may get one later.
        if was == now or was is None or now is None:
            return True
        if self._now.get(was, now) != now or self._was.get(now, was) != was:
            return False
        self._now[was], self._was[now] = now, was
        return True

    def now(self, was: Any) -> Any:
        """Return the replay's id for a recorded one, or the value itself."""
        try:
            return self._now.get(was, was)
        except TypeError:
            return was


class Comparison:
    """Compares the states of one replay, in order."""

    def __init__(self, packed: Callable[[Any], bytes], limit: int) -> None:
        self._packed = packed  # returns the stored form of a value, for values of unknown classes
        self._limit = limit
        self._names = Names()
        self._found: list[tuple[str, Any, Any]] = []
        self._starts: Mapping[str, int] = {}

    def differences(
        self, step: int, was: Mapping[str, Any], now: Mapping[str, Any], starts: Mapping[str, int] | None = None
    ) -> list[Difference]:
        """Return the differences of two states, up to the limit."""
        self._found, self._starts = [], starts or {}
        self._mapping("", was, now)
        found: list[Difference] = []
        for path, before, after in self._found:
            if type(before) is type(after) is str and max(len(before), len(after)) > LONGEST // 2:
                # Long texts are shown from shortly before their first difference.
                pairs = enumerate(zip(before, after, strict=False))
                cut = max(0, next((n for n, pair in pairs if pair[0] != pair[1]), 0) - LONGEST // 4)
                before, after = (("..." if cut else "") + text[cut:] for text in (before, after))
            found.append(Difference(step, path, show(before), show(after)))
        return found

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
            if {self._key(self._names.now(each)) for each in was} != {self._key(each) for each in now}:
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
        return bool(self._key(was) == self._key(now))

    def _key(self, value: Any) -> Any:
        """Return a key that is equal only for equal values: `==` equates {1} and {1.0}."""
        try:
            return self._packed(value)
        except ValueRefused:
            return value

    def _sequence(self, path: str, was: Sequence[Any], now: Sequence[Any]) -> None:
        start = self._starts.get(path, 0)
        for place, pair in enumerate(zip_longest(was, now, fillvalue=NOTHING), start):
            self._walk(f"{path}[{place}]", *pair)

    def _mapping(self, path: str, was: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        is_call = was.keys() >= {"name", "args", "id"}
        theirs = {(type(key), key): part for key, part in now.items()}
        for key, part in was.items():
            name = self._names.now(key)
            compare = self._id if is_call and key == "id" else self._walk
            compare(_join_path(path, key), part, theirs.pop((type(name), name), NOTHING))
        for (_, key), part in theirs.items():
            self._note(_join_path(path, key), NOTHING, part)

    def _id(self, path: str, was: Any, now: Any) -> None:
        if not self._names.are_same(was, now):
            self._note(path, was, now)

    # -- messages ----------------------------------------------------------------------------------------------

    def _message(self, path: str, was: BaseMessage, now: BaseMessage) -> None:
        before, after = _parts_of_message(was), _parts_of_message(now)
        _drop_one_sided(before, after)
        _drop_one_sided(before["response_metadata"], after["response_metadata"])
        for name in dict.fromkeys([*before, *after]):
            compare = self._id if name in ("id", "tool_call_id") else self._walk
            compare(_join_path(path, name), before.get(name, NOTHING), after.get(name, NOTHING))


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object; `None` if they are unknown."""
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.model_extra or {})}
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    slots = getattr(type(value), "__slots__", None)
    if isinstance(slots, tuple) and slots and type(value).__module__.startswith("langgraph."):
        return {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return None


def _parts_of_message(message: BaseMessage) -> dict[str, Any]:
    """Return the attributes of a message without random ones, streamed or not."""
    parts = _parts(message) or {}
    for name in ("response_metadata", "additional_kwargs"):
        parts[name] = _drop_random(parts.get(name) or {})
    return {**parts, "content": content_of(message)}


def _drop_one_sided(was: dict[str, Any], now: dict[str, Any]) -> None:
    for name in _UNSTREAMED:
        if was.get(name) is None or now.get(name) is None:
            was.pop(name, None)
            now.pop(name, None)


def _drop_random(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _drop_random(part) for key, part in value.items() if key not in RANDOM and part is not None}
    return [_drop_random(part) for part in value] if isinstance(value, list) else value


def content_of(message: BaseMessage) -> Any:
    """Return content without the calls of `tool_calls`, with joined text blocks."""
    # Streams split text into blocks.
    if not isinstance(message.content, list):
        return message.content
    calls = {call["id"] for call in getattr(message, "tool_calls", ())}
    blocks = [_block(block) for block in message.content if not _is_call(block, calls)]
    return "".join(blocks) if all(isinstance(block, str) for block in blocks) else blocks


def _is_call(block: Any, calls: Collection[Any]) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_use" and block.get("id") in calls


def _block(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    if block.keys() <= {"type", "text", "id", "index"} and isinstance(block.get("text"), str):
        return block["text"]
    # The id of a block is random, except for a block that refers to an uploaded file or has nothing else.
    is_named = block.get("source_type") == "id" or block.keys() <= {"type", "id", "index"}
    left_out = {"index"} if is_named else {"index", "id"}
    return {key: part for key, part in block.items() if key not in left_out}


def _join_path(path: str, key: Any) -> str:
    name = key if isinstance(key, str) and key.isidentifier() else None
    if name is None and path:
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else str(key)


_Group: TypeAlias = tuple[int, str, int | None]
_Facts: TypeAlias = tuple[Any, ...]


def find_agreed(calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Return the parameters that have the same value in all calls."""
    found = {name: {getattr(call, name) for call in calls} for name in BOUND}
    return {name: values.pop() for name, values in found.items() if len(values) == 1 and values != {None}}


def find_declared(graph: Any) -> set[str]:
    """Return the `ConfigurableField` ids declared in a graph and its subgraphs."""
    graphs = [graph, *(inner for _, inner in graph.get_subgraphs(recurse=True))]
    nodes = [node for each in graphs for node in getattr(each, "nodes", {}).values()]
    return {spec.id for node in nodes for spec in node.bound.config_specs}


def compare_calls(
    run_of: Mapping[int, int],
    again: Collection[int],
    was: tuple[History, Sequence[ModelCall]],
    now: tuple[History, Sequence[ModelCall]],
) -> tuple[list[Difference], list[int]]:
    """Return the differences of calls, and the steps of runs without recorded calls."""
    # `run_of` maps each step of both sides, in ascending order, to the number of its run. With `durability="exit"` a
    # step includes those before it. In the steps of `again`, a task failed or asked a question, and ran again.
    before, after = (_group_calls(list(run_of), *side) for side in (was, now))
    recorded = {run_of[group[0]] for group in before}
    groups = sorted({*before, *after}, key=lambda group: (group[0], group[2] or 0, group[1]))
    found: list[Difference] = []
    for group in groups:
        if run_of[group[0]] in recorded:
            found += _compare_group(group, before[group], after[group], group[0] in again)
    return found, sorted({step for step, _, _ in groups if run_of[step] not in recorded})


def _group_calls(steps: Sequence[int], history: History, calls: Sequence[ModelCall]) -> dict[_Group, list[ModelCall]]:
    """Return the answered calls per step and node, in their order."""
    groups: defaultdict[_Group, list[ModelCall]] = defaultdict(list)
    for call in sorted(calls, key=lambda each: (history.path(each.task_id), each.started_at)):
        step = _step_of(call, history)
        place = len(steps) if step is None else bisect_left(steps, step)
        if place < len(steps) and call.error is None:
            groups[steps[place], call.path, call.step].append(call)
    return groups


def _step_of(call: ModelCall, history: History) -> int | None:
    if not call.checkpoint_ns and NS_SEP not in call.path:
        return call.step
    return history.root_step(call.checkpoint_ns, call.checkpoint_id)


def _facts_of(call: ModelCall) -> _Facts:
    values = (getattr(call, name) for name in FIELDS)
    return tuple(tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values)


def _compare_group(
    group: _Group, was: Sequence[ModelCall], now: Sequence[ModelCall], is_again: bool
) -> Iterable[Difference]:
    """Compare the calls that differ between both sides; parallel calls have no order."""
    # A task that runs again repeats its calls, so their number differs if it does not fail this time.
    is_again = is_again or any(call.attempt > 1 for call in (*was, *now))
    mine, its = (
        Counter({_facts_of(call): 1 for call in side} if is_again else map(_facts_of, side)) for side in (was, now)
    )
    step, path, _ = group
    for before, after in zip_longest((mine - its).elements(), (its - mine).elements()):
        if before is None or after is None:
            yield Difference(step, "call of a model", _name_call(before), _name_call(after), path)
        else:
            for name, pair in zip(FIELDS, zip(before, after, strict=True), strict=True):
                yield from _compare_field(step, path, name, *pair)


def _name_call(facts: _Facts | None) -> str:
    if facts is None:
        return "none"
    about = dict(zip(FIELDS, facts, strict=True))
    return f"{about['model'] or about['served_model'] or 'a model'}, prompt {about['prompt_hash']}"


def _compare_field(step: int, path: str, name: str, was: Any, now: Any) -> Iterable[Difference]:
    if name not in ("tools", "parameters"):
        if was != now:
            yield Difference(step, name, show(was), show(now), path)
        return
    before, after = dict(was), dict(now)
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield Difference(step, f"{name}.{key}", show(before.get(key)), show(after.get(key)), path)
