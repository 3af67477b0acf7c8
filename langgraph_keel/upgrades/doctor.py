"""`keel doctor`: checks a store's threads against the code to be deployed.

It writes nothing and runs no node. A required channel is reported if no thread has it and no node sets it;
a reducer if it computes another value for more than half of the checked steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from langgraph.channels import LastValueAfterFinish, NamedBarrierValueAfterFinish
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel._langgraph import BRANCH_TO, ERROR, INTERRUPT, JOIN, NS_END, PREGEL, RESUME, TASKS, DeltaSnapshot
from langgraph_keel.engine.engine import EngineSaver, with_engine
from langgraph_keel.engine.entries import is_trigger, next_nodes, nodes_sent_to, waiting_tasks
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.serde.serializer import find_unread
from langgraph_keel.errors import CorruptStore, KeelError, NewerState, UpgradeFailed, ValueRefused
from langgraph_keel.upgrades.chain import graph_of
from langgraph_keel.upgrades.expectations import Fit, annotations_of, pending_calls, required_channels, tools_of
from langgraph_keel.upgrades.state import is_of_state

_LOOKED_AT = 100
"""Newest checkpoints of a thread that are searched for its namespaces."""
_MOST_STEPS = 300
"""Maximum steps, of all threads, that are computed again to check reducers."""

_UNREAD = ": convert it in an upgrade (classes=), or restore the class's name, fields and members"
_NO_NODE = (
    "LangGraph would skip it and end the run: name its successor in an upgrade "
    "(state.rename_node, or state.remove_node(..., go_to=...))"
)
_NO_EDGE = (
    "the node would not run, as its wait was stored for the former edges: let the run end with the code that started "
    "it, or keep the edges"
)
_DEFER = (
    "LangGraph would fail, or not run the node: it stores the edges of a deferred node in another form. Keep defer "
    "unchanged, or let these runs end with the code that started them and rename the node"
)
_NO_TASK = "the answer would be lost: rename the asking node in an upgrade (state.rename_node)"
_NO_TOOL = "a model has called it, and it has not run: keep it until no thread waits for it, or convert the messages"
_LOST = "the stored state of that graph would not be found: keep the node's name"
_UNKNOWN = "its values would be dropped at the next step: rename, split or drop it in an upgrade"
_NEW = "a node would fail: give it a value in an upgrade (state[...] = ...)"
_TYPE = "a node would find an unexpected value: convert it in an upgrade (state.convert)"
_REDUCED = "the stored value was made by another reducer: convert it in an upgrade if the new one cannot use it"


@dataclass(frozen=True, slots=True)
class Break:
    """A mismatch between a thread and the current code (`keel doctor`)."""

    thread_id: str  # or the first of several
    checkpoint_ns: str
    checkpoint_id: str
    kind: str
    path: str  # in the state, such as `order.items[0]`; or the node, the tool, the subgraph
    expected: str  # by the code
    found: str  # in the store
    reason: str  # the consequence, and what to do


@dataclass(slots=True)
class Diagnosis:
    """The result of `keel doctor`."""

    threads: int = 0  # number of opened threads
    breaks: list[Break] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether there are no breaks."""
        return not self.breaks

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"threads": self.threads, "breaks": [asdict(each) for each in self.breaks]}


class Doctor:
    """Opens threads with a graph's code, and a saver's serializer and upgrades."""

    def __init__(self, saver: EngineSaver, graph: Any) -> None:
        self.diagnosis = Diagnosis()
        self._saver = saver
        self._graph = copy(graph)
        self._graph.checkpointer = saver
        session = saver.engine.session.with_placeholders()
        self._shown = with_engine(saver, replace(saver.engine, session=session))
        self._shown.serde = session.codec.serde
        self._graphs: dict[str, Any] = {"": graph, **dict(graph.get_subgraphs(recurse=True))}
        self._annotations = {path: annotations_of(each) for path, each in self._graphs.items()}
        self._required = {path: required_channels(each) for path, each in self._graphs.items()}
        self._tools = tools_of(self._graphs.values())
        self._fit = Fit()
        self._steps = 0
        self._made: dict[tuple[str, str], list[Break | None]] = {}
        self._seen: dict[str, set[str]] = {}
        self._first: dict[str, CheckpointTuple] = {}

    def examine(self, thread_id: str) -> Sequence[Break]:
        """Open a thread and return its breaks."""
        # Two trips, and some for each graph in it and for a step.
        self.diagnosis.threads += 1
        query = Query(thread_id, limit=_LOOKED_AT)
        entries = self._saver.engine.run(self._saver.engine.session.store.scan(query))
        root = self._read(self._saver, thread_id, "")
        found = [*self._look_at(root, thread_id, "")]
        for place in dict.fromkeys(each.address.checkpoint_ns for each in entries):
            if place and _is_live(place, root):
                found += self._look_at(self._read(self._saver, thread_id, place), thread_id, place)
        self.diagnosis.breaks += found
        return found

    def conclude(self) -> Diagnosis:
        """Return all breaks, including those that depend on all threads."""
        for made in self._made.values():
            wrong = [each for each in made if each is not None]
            if len(wrong) * 2 > len(made):
                self.diagnosis.breaks.append(wrong[0])
        for path, first in self._first.items():
            for name in sorted(self._required[path] - self._seen[path]):
                self.diagnosis.breaks.append(_break(first, "required", name, "a value", "none in any thread", _NEW))
        self._made.clear()
        self._first.clear()
        return self.diagnosis

    def _look_at(self, read: CheckpointTuple | Break | None, thread_id: str, checkpoint_ns: str) -> Iterator[Break]:
        if isinstance(read, CheckpointTuple):
            yield from self._look(read, graph_of(checkpoint_ns))
        elif read is not None:
            yield read
            # Find other breaks with a placeholder for the unreadable value.
            shown = self._read(self._shown, thread_id, checkpoint_ns) if read.kind == "unread" else None
            graph = self._graphs.get(graph_of(checkpoint_ns))
            if isinstance(shown, CheckpointTuple) and graph is not None:
                yield from self._look_at_nodes(shown, graph, is_root=False)
                yield from self._look_at_channels(shown, graph, graph_of(checkpoint_ns))

    def _read(self, saver: Any, thread_id: str, checkpoint_ns: str) -> CheckpointTuple | Break | None:
        config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}}
        try:
            return cast("CheckpointTuple | None", saver.get_tuple(config))
        except KeelError as error:
            kind, path, there, what_to_do = "unread", "", error.code, ""
            if isinstance(error, ValueRefused):
                what_to_do = _UNREAD
                path, there = f"{error.where.partition('channel ')[2]}{error.path}", error.type_name
            elif isinstance(error, UpgradeFailed | NewerState):
                kind = "refused"
            elif isinstance(error, CorruptStore) and "serde=" in str(error):
                kind = "serializer"
            expected = "a readable state"
            return Break(thread_id, checkpoint_ns, "", kind, path, expected, there, f"{error}{what_to_do}")

    def _look(self, found: CheckpointTuple, path: str) -> Iterator[Break]:
        graph = self._graphs.get(path)
        if graph is None:
            yield _break(found, "subgraph", path, "a node with a subgraph", "no node of this name", _LOST)
            return
        yield from self._look_at_nodes(found, graph, is_root=not path)
        if self._tools and _next(found):
            for name in pending_calls(found.checkpoint["channel_values"]):
                if name not in self._tools:
                    yield _break(found, "tool", name, f"one of {', '.join(sorted(self._tools))}", name, _NO_TOOL)
        yield from self._look_at_channels(found, graph, path)
        self._go_through_step(found, graph, path)

    def _look_at_nodes(self, found: CheckpointTuple, graph: Any, *, is_root: bool) -> Iterator[Break]:
        writes = found.pending_writes or []
        started = {channel.removeprefix(BRANCH_TO) for _, channel, _ in writes if channel.startswith(BRANCH_TO)}
        sent = {node for _, channel, value in writes if channel == TASKS for node in nodes_sent_to({TASKS: [value]})}
        gone = sorted({*_next(found), *started, *sent} - graph.nodes.keys())
        for node in gone:
            yield _break(found, "node", node, "a node to run next", "no node of this name", _NO_NODE)
        yield from _look_at_edges(found, graph)
        waits = waiting_tasks(writes) if is_root else set()
        if not waits:
            return
        try:
            thread_id = found.config["configurable"]["thread_id"]
            tasks = {task.id for task in self._graph.get_state({"configurable": {"thread_id": thread_id}}).tasks}
        except Exception as error:  # raised by the application's own code, or by LangGraph
            yield _break(found, "unread", "", "a state", type(error).__name__, f"get_state raised: {error}")
            return
        for _ in sorted(waits - tasks):
            yield _break(found, "question", ", ".join(gone), "a task with an open question", "no such task", _NO_TASK)

    def _look_at_channels(self, found: CheckpointTuple, graph: Any, path: str) -> Iterator[Break]:
        values, annotations = found.checkpoint["channel_values"], self._annotations[path]
        written = {channel for _, channel, _ in found.pending_writes or () if _is_plain(channel)}
        for name in [name for name in dict.fromkeys([*values, *written]) if _is_plain(name)]:
            if name not in graph.channels:
                yield _break(found, "channel", name, "a channel of the graph", "no channel of this name", _UNKNOWN)
            elif name in annotations and name in values and not any(find_unread(values[name])):
                for place, expected, there in self._fit.misfits(annotations[name], values[name], name):
                    yield _break(found, "type", place, expected, there, _TYPE)
        if found.metadata.get("step", -1) >= 0:
            self._first.setdefault(path, found)
            self._seen.setdefault(path, set()).update(values, found.checkpoint.get("channel_versions") or {})

    def _go_through_step(self, found: CheckpointTuple, graph: Any, path: str) -> None:
        """Apply the current reducers to the last step, and note differences."""
        if self._steps >= _MOST_STEPS or found.metadata.get("source") != "loop" or found.parent_config is None:
            return
        self._steps += 1
        try:
            before, again = (self._saver.get_tuple(found.parent_config) for _ in range(2))
        except KeelError:
            return
        if before is None or again is None:
            return
        now, mark = found.checkpoint["channel_values"], self._saver.engine.session.codec.fingerprint
        written = {channel for _, channel, _ in before.pending_writes or ()}
        for name in [name for name in now if name in written and name in graph.channels and is_of_state(name)]:
            was = before.checkpoint["channel_values"].get(name)
            if not was or isinstance(was, DeltaSnapshot) or isinstance(now[name], DeltaSnapshot):
                continue
            made = [_apply(graph.channels[name], name, each) for each in (before, again)]
            marks = [mark(each) for each in made]
            if marks[0] == marks[1]:  # else the reducer is not deterministic
                expected, reason = f"{made[0]!r:.80}", _REDUCED
                wrong = _break(found, "reducer", name, expected, f"{now[name]!r:.80}", reason)
                self._made.setdefault((path, name), []).append(None if marks[0] == mark(now[name]) else wrong)


def _look_at_edges(found: CheckpointTuple, graph: Any) -> Iterator[Break]:
    """Yield removed edges, and edges to nodes whose `defer` was switched."""
    for name, value in found.checkpoint["channel_values"].items():
        if not name.startswith((BRANCH_TO, JOIN)):
            continue
        is_join, node = name.startswith(JOIN), name.rpartition(":")[2]
        was_deferred = type(value) is tuple
        channel = graph.channels.get(name)
        if channel is None:
            if is_join and node in graph.nodes and (value[0] if was_deferred else value):
                yield _break(found, "edge", node, "an edge from each node that it waits for", "other edges", _NO_EDGE)
        elif isinstance(channel, LastValueAfterFinish | NamedBarrierValueAfterFinish) != was_deferred and (
            is_join or not was_deferred  # LangGraph reads the edge of a single node in the form of a deferred one, too
        ):
            yield _break(found, "edge", node, f"defer={not was_deferred}", f"defer={was_deferred}", _DEFER)


def _apply(channel: Any, name: str, before: CheckpointTuple) -> Any:
    """Return a channel's value after a step's writes, or the `repr` of its error."""
    fresh = channel.from_checkpoint(before.checkpoint["channel_values"][name])
    try:
        fresh.update([value for _, at, value in before.pending_writes or () if at == name])
        return fresh.checkpoint()
    except Exception as error:  # the reducer is the application's own
        return repr(error)


def _is_live(checkpoint_ns: str, root: CheckpointTuple | Break | None) -> bool:
    """Return whether a graph will continue: it has memory, or has not ended."""
    if NS_END not in checkpoint_ns:
        return True
    if not isinstance(root, CheckpointTuple):
        return False
    ended = {task for task, channel, _ in root.pending_writes or () if channel not in (INTERRUPT, RESUME, ERROR)}
    tasks = {level.partition(NS_END)[2] for level in checkpoint_ns.split("|")[:1]}
    node = checkpoint_ns.partition(NS_END)[0]
    asks = {task for task, _, _ in root.pending_writes or ()}
    return (node in _next(root) or bool(tasks & asks)) and not tasks & ended


def _next(found: CheckpointTuple) -> tuple[str, ...]:
    return next_nodes(found.checkpoint, found.checkpoint["channel_values"])


def _is_plain(channel: str) -> bool:
    return is_of_state(channel) and not is_trigger(channel) and not channel.startswith(PREGEL)


def _break(found: CheckpointTuple, kind: str, path: str, expected: str, there: str, reason: str) -> Break:
    place = found.config["configurable"]
    where = str(place["thread_id"]), str(place.get("checkpoint_ns", "")), found.checkpoint["id"]
    return Break(*where, kind, path, expected, there, reason)
