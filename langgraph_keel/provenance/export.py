"""Threads as training data: messages, model calls, cost and label."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, convert_to_openai_messages
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory

from langgraph_keel._langgraph import DeltaSnapshot
from langgraph_keel.engine.checkpoints import delta_history, get_tuple
from langgraph_keel.engine.config import address_of, thread_id_of
from langgraph_keel.engine.lineage import origin_of, root_of, walk_back
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import PAGE, checked_limit
from langgraph_keel.engine.records import Page
from langgraph_keel.engine.serde.unread import Unread
from langgraph_keel.engine.session import Hooks, Session
from langgraph_keel.errors import CorruptStore, InvalidInput, KeelError, NotFound, RefusedType, ValueRefused
from langgraph_keel.provenance.carryover import find_behind, is_first
from langgraph_keel.provenance.reading import Trace, read_trace, thread_models_of
from langgraph_keel.provenance.records import ModelCall

Reason: TypeAlias = Literal["no messages", "unknown cost", "filtered"]
OnSkip: TypeAlias = Callable[[str, Reason | KeelError], None]
Label: TypeAlias = str | Callable[[CheckpointTuple], Any]

LABELS = ("label", "outcome")
"""The metadata keys of a thread's label; the first one found counts."""
_LARGEST = 1e300
"""Upper limit of token counts and costs; sums of larger floats may overflow."""
_OF_A_CALL = (
    "step", "node", "model", "served_model", "provider", "system_fingerprint", "seed", "temperature", "top_p",
    "max_tokens", "stop", "parameters", "tools", "attempt", "cached", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The checkpoints from a thread's first to its latest."""

    trace: Trace  # of these checkpoints, and of those of subgraphs within their steps
    label: Any  # of the last one that has a label
    is_pruned: bool  # whether its first checkpoints were removed
    is_known: bool  # whether all its calls are known: prunes keep those of removed checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadFilter:
    """The threads and the channel to export; see `saver.provenance.trajectories`."""

    channel: str = "messages"
    model: str | None = None
    label: Label | None = None
    min_cost: float | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that would silently match every thread or none."""
        if not (self.label is None or isinstance(self.label, str) or callable(self.label)):
            raise InvalidInput(f"label= must be a string or a function of the latest checkpoint, not {self.label!r}")
        if not isinstance(self.model, str | None):
            raise InvalidInput(f"model= must be the name of one model, not {self.model!r}")
        for cost in (self.min_cost, self.max_cost):
            if cost is not None and (not isinstance(cost, int | float) or cost < 0):
                raise InvalidInput(f"min_cost= and max_cost= must be numbers of at least 0, not {cost!r}")

    def accepts_model(self, models: Collection[str]) -> bool:
        """Return whether threads with calls of these models match."""
        return self.model is None or self.model in models

    def check_cost(self, cost: float | None) -> Reason | None:
        """Return why a thread with this cost is skipped; `None` if it is not."""
        if self.min_cost is None and self.max_cost is None:
            return None
        if cost is None:
            return "unknown cost"
        least, most = self.min_cost or 0, math.inf if self.max_cost is None else self.max_cost
        return None if least <= cost <= most else "filtered"


class Export:
    """Reads trajectories, one thread in memory at a time."""

    def __init__(
        self,
        session: Session,
        wanted: ThreadFilter,
        threads: Iterable[str] | None,
        limit: int | None,
        on_skip: OnSkip | None,
    ) -> None:
        if isinstance(threads, str):
            raise InvalidInput(f"pass a list of thread ids, not one string: [{threads!r}]")
        # Without the saver's memo and recorder: values that are read once must not evict those that runs need.
        # Only one channel is used, so values of other channels that may not be revived become placeholders.
        self._session = replace(session.with_placeholders(), hooks=Hooks())
        self._wanted = wanted
        self._is_named = threads is not None
        self._ids = deque(dict.fromkeys(map(thread_id_of, threads or ())))
        self._is_listed = self._is_named
        self._after: tuple[str, str] | None = None
        self._left = checked_limit(limit)
        self._on_skip: OnSkip | None = on_skip

    def next(self) -> Plan[Sequence[dict[str, Any]] | None]:
        """Return a page with the next trajectory; `None` at the end."""
        while self._left != 0:
            if not (self._ids or (yield from self._list())):
                return None
            found = yield from self._attempt(self._ids.popleft())
            if found is not None:
                self._left = self._left if self._left is None else self._left - 1
                return (found,)
        return None

    def _list(self) -> Plan[bool]:
        """Read the next ids; return whether there were any."""
        while not (self._ids or self._is_listed):
            page = yield from self._session.store.read_threads(Page(self._after, PAGE))
            self._is_listed = len(page) < PAGE
            for info, _ in page:
                self._after = info.updated_at, info.thread_id
                self._ids.append(info.thread_id)
        return bool(self._ids)

    def _skip(self, thread_id: str, why: Reason | KeelError) -> None:
        if self._on_skip is not None:
            self._on_skip(thread_id, why)
        elif isinstance(why, KeelError):
            raise why

    def _attempt(self, thread_id: str) -> Plan[dict[str, Any] | None]:
        try:
            found = yield from self._read(thread_id)
        except (CorruptStore, ValueRefused, NotFound) as error:
            self._skip(thread_id, error)
            return None
        if isinstance(found, str):
            self._skip(thread_id, found)
            return None
        return found

    def _read(self, thread_id: str) -> Plan[dict[str, Any] | Reason]:
        trace = yield from read_trace(self._session, thread_id)
        # From the records, because the list of names in the head is truncated if it is very long.
        if trace.entries and not self._wanted.accepts_model(_models_of(trace)):
            return "filtered"
        head = yield from get_tuple(self._session, {"configurable": {"thread_id": thread_id}})
        if head is None and self._is_named:
            raise NotFound(f"there is no thread {thread_id!r}")
        messages = chat_of((yield from self._value(head))) if head else None
        if head is None or not messages:
            return "no messages"
        way = _find_way(trace, head) or _find_way((yield from read_trace(self._session, thread_id)), head)
        return self._choose(head, messages, way) if way else "no messages"

    def _choose(
        self, head: CheckpointTuple, messages: Sequence[Mapping[str, Any]], way: Way
    ) -> dict[str, Any] | Reason:
        wanted, trace = self._wanted, way.trace
        cost = sum_costs(trace.calls) if way.is_known else None
        label = wanted.label(head) if callable(wanted.label) else way.label
        # Other metadata than strings is compared as text.
        is_labelled = not isinstance(wanted.label, str) or (label is not None and str(label) == wanted.label)
        if not (is_labelled and wanted.accepts_model(_models_of(trace))):
            return "filtered"
        called = (call["function"]["name"] for message in messages for call in message.get("tool_calls", ()))
        return wanted.check_cost(cost) or {
            "thread_id": str(head.config["configurable"]["thread_id"]),  # a subclass of `str` there
            "checkpoint_id": head.checkpoint["id"],
            "label": label,
            "messages": messages,
            "tools_called": dict(Counter(called)),
            "calls": [{name: getattr(call, name) for name in _OF_A_CALL} for call in trace.calls],
            "usage": sum_usages([call.usage for call in trace.calls]) if way.is_known else None,
            "cost": cost,
            "is_pruned": way.is_pruned,
            "steps": head.metadata.get("step"),
            "started_at": None if way.is_pruned else trace.entries[0][1].checkpoint.get("ts"),
            "ended_at": head.checkpoint["ts"],
            "drift": [asdict(mark) for mark in trace.marks()],
        }

    def _value(self, head: CheckpointTuple) -> Plan[Any]:
        """Return the channel's value; a `DeltaChannel` is rebuilt with `add_messages`."""
        channel = self._wanted.channel
        value = head.checkpoint["channel_values"].get(channel)
        if value is None and channel in (head.metadata.get("counters_since_delta_snapshot") or {}):
            at = address_of(head.config)
            history = (yield from delta_history(self._session, at, [channel]))[channel]
            _check_read(head, channel, [history.get("seed"), *(write[2] for write in history["writes"])])
            return replay_messages(history)
        value = value.value if isinstance(value, DeltaSnapshot) else value
        _check_read(head, channel, value)
        return value


def replay_messages(history: DeltaChannelHistory) -> Any:
    """Return the messages of a delta channel, applying its writes with `add_messages`."""
    # Imported here: these take as long to import as all of Keel's core, and programs without a graph need neither.
    from langgraph.channels import DeltaChannel
    from langgraph.graph.message import add_messages

    replay: Any = DeltaChannel(lambda state, writes: reduce(add_messages, writes, state), list)
    replay = replay.from_checkpoint(history.get("seed", []))
    replay.replay_writes(history["writes"])
    return replay.value


def _check_read(head: CheckpointTuple, channel: str, value: Any) -> None:
    """Raise `RefusedType` if a message is a placeholder."""
    for part in _flatten(value):
        if type(part) is Unread:
            where = f"{address_of(head.config)}, channel {channel!r}"
            raise RefusedType(part.type_name, part.reason, where=where)


def _flatten(value: Any) -> Iterator[Any]:
    """Yield the elements of nested lists, or the value itself if it is not a list."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from _flatten(part)
    else:
        yield value


def _models_of(trace: Trace) -> set[str]:
    called = {name for call in trace.calls for name in call.names}
    return called.union(*(thread_models_of(header.about) for _, header in trace.entries))


def _find_way(trace: Trace, head: CheckpointTuple) -> Way | None:
    """Return the checkpoints up to a thread's head; `None` if the trace is older."""
    root = {each[0].address.checkpoint_id: each for each in trace.entries if not each[0].address.checkpoint_ns}
    origins = {name: origin_of(entry.parent, header.metadata, root) for name, (entry, header) in root.items()}
    line = [root[name] for name in walk_back(head.checkpoint["id"], origins)]  # the nearest first
    if not line:
        return None
    kept = {entry.address.checkpoint_id for entry, _ in line}
    entries = [(entry, header) for entry, header in trace.entries if root_of(entry.address, header.metadata) in kept]
    places = {(entry.address.checkpoint_ns, entry.address.checkpoint_id) for entry, _ in entries}
    carryovers, goes_back = find_behind(trace.carryovers, [entry.address.checkpoint_id for entry, _ in line])
    before = {item[3]["id"] for each in carryovers for item in each.items}
    calls = [c for c in trace.calls if (c.checkpoint_ns, c.checkpoint_id) in places or c.id in before]
    labels = (header.metadata.get(key) for _, header in line for key in LABELS)
    label = next((label for label in labels if label is not None), None)
    first, header = line[-1]
    here = [call for call in calls if call.checkpoint_id == first.address.checkpoint_id and call.path == call.node]
    # The first checkpoint's parent may have been pruned; the step of its calls shows whether earlier calls exist.
    is_whole = is_first(header) or any(call.step is not None and call.step <= 1 for call in here)
    return Way(trace=Trace(entries, calls), label=label, is_pruned=not is_whole, is_known=is_whole or goes_back)


# -- sums ------------------------------------------------------------------------------------------------------


def sum_usages(usages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of token counts and their details."""
    # A name that has numbers in one usage and details in another is left out.
    counts: dict[str, list[Any]] = {}
    for usage in usages:
        for name, count in usage.items():
            if isinstance(count, Mapping) or _is_number(count):
                counts.setdefault(name, []).append(count)
    sums: dict[str, Any] = {}
    for name, found in counts.items():
        nested = [count for count in found if isinstance(count, Mapping)]
        if not nested:
            sums[name] = sum(found)
        elif len(nested) == len(found):
            sums[name] = sum_usages(nested)
    return sums


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def sum_costs(calls: Iterable[ModelCall]) -> float | None:
    """Return the total cost; `None` without calls, or if an answered one has no cost."""
    costs = [call.cost for call in calls if call.cost is not None or call.error is None]
    known = [cost for cost in costs if cost is not None and _is_number(cost)]
    return math.fsum(known) if known and len(known) == len(costs) else None


# -- messages --------------------------------------------------------------------------------------------------


def chat_of(value: Any) -> list[dict[str, Any]] | None:
    """Return messages in OpenAI's chat format; `None` for any other value."""
    if not isinstance(value, list | tuple):
        return None
    dicts = [each for each in value if not isinstance(each, BaseMessage)]
    if not all(isinstance(each, Mapping) and ("role" in each or "type" in each) for each in dicts):
        return None
    try:
        return [part for message in convert_to_messages(value) for part in _chat(message)]
    except (ValueError, NotImplementedError):  # a list of other dicts, a `RemoveMessage`
        return None


def _chat(message: BaseMessage) -> list[dict[str, Any]]:
    try:
        return list(convert_to_openai_messages([message]))
    except (ValueError, KeyError, TypeError):
        # The chat format lacks, for example, videos and documents by URL: the content is passed unchanged. Arguments
        # without a JSON form are passed as their `repr`.
        changes: dict[str, Any] = {"content": ""}
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            args = json.loads(json.dumps(call["args"], default=repr))
            changes.setdefault("tool_calls", []).append({**call, "args": args})
        [bare] = convert_to_openai_messages([message.model_copy(update=changes)])
        return [{**bare, "content": message.content}]
