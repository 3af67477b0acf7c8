"""Threads as training data: what was said, what it was said with, what it cost, and how it ended.

A trajectory is the way to a thread's latest checkpoint; calls on branches that were left are no part of it.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, Generic, Literal, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, convert_to_openai_messages
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_keel.core.address import thread_id_of
from langgraph_keel.core.checkpoints import Checkpoints
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.headers import unpack_header
from langgraph_keel.core.memo import Memo
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.provenance import ModelCall
from langgraph_keel.core.queries import PAGE, checked_limit
from langgraph_keel.core.recorded import Trace, traced
from langgraph_keel.core.recorder import known_models
from langgraph_keel.core.records import ThreadInfo
from langgraph_keel.errors import CorruptStore, InvalidInput, KeelError, NotFound, ValueRefused

Reason: TypeAlias = Literal["no messages", "unknown cost", "filtered"]
OnSkip: TypeAlias = Callable[[str, Reason | KeelError], None]
Label: TypeAlias = str | Callable[[CheckpointTuple], Any]

LABELS = ("label", "outcome")
"""The metadata keys that say how a thread ended; the first that is there counts."""
_OF_A_CALL = (
    "step", "node", "model", "served_model", "provider", "system_fingerprint", "seed", "temperature", "top_p",
    "max_tokens", "stop", "parameters", "tools", "attempt", "cached", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which threads, and what of them; see `KeelSaver.trajectories`."""

    channel: str = "messages"
    model: str | None = None
    label: Label | None = None
    min_cost: float | None = None
    max_cost: float | None = None

    def label_of(self, head: CheckpointTuple) -> Any:
        """Return how a thread ended, as its latest checkpoint says; `None` if it does not."""
        if callable(self.label):
            return self.label(head)
        metadata: Mapping[str, Any] = head.metadata
        return next((metadata[key] for key in LABELS if metadata.get(key) is not None), None)

    def takes_label(self, label: Any) -> bool:
        """Tell whether threads that ended so are wanted. Of metadata that is no text, its text is compared."""
        return not isinstance(self.label, str) or (label is not None and str(label) == self.label)

    def refuses(self, models: Iterable[str], cost: float | None) -> Reason | None:
        """Return why a thread is not wanted."""
        if self.model is not None and self.model not in models:
            return "filtered"
        if self.min_cost is None and self.max_cost is None:
            return None
        if cost is None:
            return "unknown cost"
        least, most = self.min_cost or 0, math.inf if self.max_cost is None else self.max_cost
        return None if least <= cost <= most else "filtered"


class Export(Generic[Q, R]):
    """Reads trajectories one after the other, one thread in memory at a time.

    Args:
        core: Of the saver.
        wanted: Which threads.
        threads: Their ids; `None` for all, last activity first.
        limit: Most to read.
        on_skip: Told of every thread that is passed over.
    """

    def __init__(
        self,
        core: Checkpoints[Q, R],
        wanted: Wanted,
        threads: Iterable[str] | None,
        limit: int | None,
        on_skip: OnSkip | None,
    ) -> None:
        if isinstance(threads, str):
            raise InvalidInput(f"pass a list of thread ids, not one string: [{threads!r}]")
        # Without the saver's memo and recorder: what is read once must not push out what runs need.
        self._core = Checkpoints(core.store, Memo(0, 0))
        self._wanted = wanted
        self._is_named = threads is not None
        self._ids = deque(dict.fromkeys(map(thread_id_of, threads or ())))
        self._is_listed = self._is_named
        self._after: tuple[str, str] | None = None
        self._left = checked_limit(limit)
        self._on_skip: OnSkip | None = on_skip

    def next(self, codec: Codec) -> Plan[Q, R, dict[str, Any] | None]:
        """Return the next trajectory, or `None` if there are no more."""
        while self._left != 0:
            if not (self._ids or (yield from self._list(codec))):
                return None
            found = yield from self._attempt(codec, self._ids.popleft())
            if found is not None:
                self._left = self._left if self._left is None else self._left - 1
                return found
        return None

    def _list(self, codec: Codec) -> Plan[Q, R, bool]:
        """Read the ids of more threads; tell whether there were any."""
        while not (self._ids or self._is_listed):
            page = yield from self._core.store.read_threads(self._after, PAGE)
            self._is_listed = len(page) < PAGE
            for info, header in page:
                self._after = info.updated_at, info.thread_id
                self._note(info, header, codec)
        return bool(self._ids)

    def _note(self, info: ThreadInfo, header: bytes, codec: Codec) -> None:
        """Note a listed thread, unless its header says that it is not wanted."""
        model = self._wanted.model
        if model is None or model in _models(header, codec, info.thread_id, otherwise=[model]):
            self._ids.append(info.thread_id)
        else:
            self._skip(info.thread_id, "filtered")

    def _skip(self, thread_id: str, why: Reason | KeelError) -> None:
        if self._on_skip is not None:
            self._on_skip(thread_id, why)
        elif isinstance(why, KeelError):
            raise why

    def _attempt(self, codec: Codec, thread_id: str) -> Plan[Q, R, dict[str, Any] | None]:
        try:
            found = yield from self._read(codec, thread_id)
        except (CorruptStore, ValueRefused, NotFound) as error:
            self._skip(thread_id, error)
            return None
        if isinstance(found, str):
            self._skip(thread_id, found)
            return None
        return found

    def _read(self, codec: Codec, thread_id: str) -> Plan[Q, R, dict[str, Any] | Reason]:
        head = yield from self._core.get_tuple(codec, {"configurable": {"thread_id": thread_id}})
        if head is None and self._is_named:
            raise NotFound(f"there is no thread {thread_id!r}")
        messages = chat_of((yield from self._value(codec, head))) if head else None
        if head is None or not messages:
            return "no messages"
        label = self._wanted.label_of(head)
        if not self._wanted.takes_label(label):
            return "filtered"
        trace = _lineage((yield from traced(self._core, codec, thread_id)), head.checkpoint["id"])
        refused = self._wanted.refuses(_models_of(trace), _cost(trace.calls))
        return refused or _trajectory(thread_id, head, label, messages, trace)

    def _value(self, codec: Codec, head: CheckpointTuple) -> Plan[Q, R, Any]:
        """Return what the channel holds; of a `DeltaChannel` that is made of its writes, as `add_messages` would."""
        channel = self._wanted.channel
        value = head.checkpoint["channel_values"].get(channel)
        if value is None and channel in (head.metadata.get("counters_since_delta_snapshot") or {}):
            return _replayed((yield from self._core.delta_history(codec, head.config, [channel]))[channel])
        return value.value if isinstance(value, _DeltaSnapshot) else value


def _replayed(history: DeltaChannelHistory) -> Any:
    # Here, for they take as long to import as all of Keel's core; programs without a graph need neither.
    from langgraph.channels import DeltaChannel
    from langgraph.graph.message import add_messages

    replay: Any = DeltaChannel(lambda state, writes: reduce(add_messages, writes, state), list)
    replay = replay.from_checkpoint(history.get("seed", []))
    replay.replay_writes(history["writes"])
    return replay.value


def _models(header: bytes, codec: Codec, thread_id: str, otherwise: Iterable[str]) -> Iterable[str]:
    """Return the models that the header of a thread's head names; `otherwise`, if it does not decode."""
    try:
        return known_models(unpack_header(header, codec, f"thread {thread_id!r}").about) if header else ()
    except (CorruptStore, ValueRefused):
        return otherwise  # Reading the thread says what is wrong.


def _models_of(trace: Trace) -> set[str]:
    called = {name for call in trace.calls for name in call.names}
    return called.union(*(known_models(header.about) for _, header in trace.entries))


def _lineage(trace: Trace, head: str) -> Trace:
    """Return what of a trace led to the head: its ancestors, and what ran inside of their steps."""
    root = {entry.address.checkpoint_id: entry for entry, _ in trace.entries if not entry.address.checkpoint_ns}
    kept: set[str | None] = set()
    at: str | None = head
    while at in root and at not in kept:
        kept.add(at)
        at = root[at].parent
    entries = [
        (entry, header)
        for entry, header in trace.entries
        if (_began(header.metadata) if entry.address.checkpoint_ns else entry.address.checkpoint_id) in kept
    ]
    places = {(entry.address.checkpoint_ns, entry.address.checkpoint_id) for entry, _ in entries}
    return Trace(entries, [call for call in trace.calls if (call.checkpoint_ns, call.checkpoint_id) in places])


def _began(metadata: Mapping[str, Any]) -> Any:
    """Return the root checkpoint that a subgraph's step began from."""
    parents = metadata.get("parents")
    return parents.get("") if isinstance(parents, Mapping) else None


# -- one line --------------------------------------------------------------------------------------------------


def _trajectory(
    thread_id: str, head: CheckpointTuple, label: Any, messages: Sequence[Mapping[str, Any]], trace: Trace
) -> dict[str, Any]:
    started = next((header.checkpoint.get("ts") for _, header in trace.entries), None)
    return {
        "thread_id": thread_id,
        "checkpoint_id": head.checkpoint["id"],
        "label": label,
        "messages": messages,
        "tools_called": _tools_called(messages),
        "calls": [{name: getattr(call, name) for name in _OF_A_CALL} for call in trace.calls],
        "usage": _sum([call.usage for call in trace.calls]),
        "cost": _cost(trace.calls),
        "steps": head.metadata.get("step"),
        "started_at": started,
        "ended_at": head.checkpoint["ts"],
        "drift": [asdict(mark) for mark in trace.marks()],
    }


def _tools_called(messages: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how often each tool was called, in the order of the first calls."""
    counts: dict[str, int] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            name = call["function"]["name"]
            counts[name] = counts.get(name, 0) + 1
    return counts


def _sum(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return counts of tokens summed, those of the details too."""
    counts: dict[str, list[Any]] = {}
    for usage in usages:
        for name, count in usage.items():
            counts.setdefault(name, []).append(count)
    return {name: _sum(each) if isinstance(each[0], Mapping) else sum(each) for name, each in counts.items()}


def _cost(calls: Iterable[ModelCall]) -> float | None:
    """Return what the calls cost; `None` if there is none, or one was answered and nobody said what it cost."""
    costs = [call.cost for call in calls if call.error is None]
    known = [cost for cost in costs if cost is not None]
    return math.fsum(known) if known and len(known) == len(costs) else None


# -- messages --------------------------------------------------------------------------------------------------


def chat_of(value: Any) -> list[dict[str, Any]] | None:
    """Return a list of messages in the format of OpenAI's chat; `None` if it is something else."""
    if not isinstance(value, list | tuple) or not all(map(_is_like_a_message, value)):
        return None
    try:
        return [part for message in convert_to_messages(value) for part in _chat(message)]
    except (ValueError, NotImplementedError):  # A list of other dicts, a message that says to remove one
        return None


def _is_like_a_message(value: Any) -> bool:
    return isinstance(value, BaseMessage) or (isinstance(value, Mapping) and ("role" in value or "type" in value))


def _chat(message: BaseMessage) -> list[dict[str, Any]]:
    try:
        return list(convert_to_openai_messages([message]))
    except (ValueError, KeyError, TypeError):
        # The chat format knows no video and no document by URL, say; they are handed on as they stand.
        [bare] = convert_to_openai_messages([_bare(message)])
        return [{**bare, "content": message.content}]


def _bare(message: BaseMessage) -> BaseMessage:
    """Return a message without its content, the arguments of its calls such that JSON can carry them."""
    changes: dict[str, Any] = {"content": ""}
    if isinstance(message, AIMessage):
        calls = message.tool_calls
        changes["tool_calls"] = [{**call, "args": json.loads(json.dumps(call["args"], default=repr))} for call in calls]
    return message.model_copy(update=changes)
