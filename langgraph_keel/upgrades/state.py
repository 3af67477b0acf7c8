"""A checkpoint for upgrades to change: channels, nodes, and uses of their names.

A channel's name also occurs in versions, pending writes and the input of a run. A node's name also occurs in the
channels that start it, in messages to it, and in the ids of its tasks and questions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from langgraph.constants import END, START

from langgraph_keel._langgraph import (
    BRANCH_TO,
    ERROR,
    ERROR_SOURCE_NODE,
    INTERRUPT,
    JOIN,
    NO_WRITES,
    NS_END,
    NS_SEP,
    NULL_TASK_ID,
    OVERWRITE,
    PREGEL,
    PULL,
    PUSH,
    RESUME,
    TASKS,
    DeltaSnapshot,
    interrupt_id_of,
    task_id_of,
)
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Header, is_trigger, next_nodes, sent_tasks
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langgraph.types import Interrupt, Send

_COUNTERS = "counters_since_delta_snapshot"
_MOST_ANSWERS = 64
"""Maximum answers of one task that are tried to find a question's id."""

_NO_RESULT = frozenset({INTERRUPT, RESUME, ERROR, ERROR_SOURCE_NODE})


class Refused(Exception):
    """An upgrade cannot continue; the text gives the reason."""


@dataclass(slots=True)
class Write:
    """A pending write."""

    task: str
    channel: str
    value: Any
    version: int  # of the application that stored it


def is_of_state(channel: str) -> bool:
    """Return whether a channel belongs to the state, not to LangGraph's own ones."""
    return not (is_trigger(channel) or channel.startswith((PREGEL, "__")))


@publish
class StoredState(MutableMapping[str, Any]):
    """A checkpoint of an older version of the application, for an `upgrade` to change.

    As a mapping, it contains the values of the channels: `state["count"]`, `"count" in state`. A channel without a
    value is missing, as most are in early checkpoints. Methods ignore missing channels and nodes, so one function fits
    all checkpoints of a thread. Setting a value changes this checkpoint only. `rename`, `drop`, `convert` and `split`
    also change pending writes of tasks, and the input of a run that has not started.

    Attributes:
        where: The address of the checkpoint.
        thread_id: The thread.
        checkpoint_id: The checkpoint.
        graph: The graph: `""` is the root graph, `"research"` the graph in this node.
    """

    def __init__(self, where: Address, graph: str, header: Header, values: dict[str, Any], writes: list[Write]) -> None:
        self.where, self.graph = where, graph
        self.thread_id, self.checkpoint_id = where.thread_id, str(where.checkpoint_id)
        self._ns = where.checkpoint_ns
        self._checkpoint, self._metadata = header.checkpoint, header.metadata
        self._values = values
        self._all = writes
        self._version = 1
        self._interrupts: dict[str, str] = {}

    def begin(self, version: int) -> None:
        """Start an upgrade from a version; it changes no writes of later versions."""
        self._version = version

    @property
    def result(self) -> tuple[dict[str, Any], list[tuple[str, str, Any]], dict[str, str]]:
        """The values, the pending writes, and new ids of questions by their old ones."""
        return self._values, [(each.task, each.channel, each.value) for each in self._all], self._interrupts

    # -- values --------------------------------------------------------------------------------------------------------

    def __getitem__(self, channel: str) -> Any:
        """Return the value of a channel."""
        if not is_of_state(channel):
            raise KeyError(channel)
        return self._values[channel]

    def __setitem__(self, channel: str, value: Any) -> None:
        """Set the value of an existing or new channel."""
        self._check_names(channel)
        self._values[channel] = value
        self._versions.setdefault(channel, max(self._versions.values(), default=1))

    def __delitem__(self, channel: str) -> None:
        """Remove the value of a channel."""
        self[channel]
        del self._values[channel]

    def __iter__(self) -> Iterator[str]:
        """Yield the channels that have a value."""
        return iter([name for name in self._values if is_of_state(name)])

    def __len__(self) -> int:
        """Return the number of channels that have a value."""
        return sum(map(is_of_state, self._values))

    def __repr__(self) -> str:
        """Return thread, checkpoint and channels."""
        return f"<StoredState of {self.thread_id!r}, checkpoint {self.checkpoint_id}: {', '.join(self)}>"

    @property
    def metadata(self) -> Mapping[str, Any]:
        """A copy of the checkpoint's metadata."""
        return copy.deepcopy(self._metadata)

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes that run next."""
        return next_nodes(self._checkpoint, self._values)

    def refuse(self, reason: str) -> NoReturn:
        """Refuse the thread: reading it raises `UpgradeFailed` with this reason.

        Args:
            reason: Why it cannot be upgraded, and what to do.
        """
        raise Refused(reason)

    # -- channels ------------------------------------------------------------------------------------------------------

    def rename(self, channel: str, new: str) -> None:
        """Rename a channel.

        A delta channel must keep its name, as the writes of earlier checkpoints are stored under it.
        """
        self._check_names(channel, new)
        if channel in (self._metadata.get(_COUNTERS) or ()):
            raise Refused(f"{channel!r} is a delta channel, whose past is stored under its name: keep the name")
        if new in self._values and channel in self._values:
            raise Refused(f"{channel!r} cannot be renamed to {new!r}: that channel already exists")
        self._rename_channels({channel: new})
        for write in self._writes():
            write.channel = new if write.channel == channel else write.channel
        self._change_inputs(lambda given: {new if name == channel else name: value for name, value in given.items()})

    def drop(self, *channels: str) -> None:
        """Remove channels, with their values and pending writes."""
        self._check_names(*channels)
        for channel in channels:
            self._remove_channel(channel)
        self._rewrite(lambda write: [] if write.channel in channels else [write])
        self._change_inputs(lambda given: {name: each for name, each in given.items() if name not in channels})

    def convert(
        self, channel: str, function: Callable[[Any], Any], *, writes: Callable[[Any], Any] | None = None
    ) -> None:
        """Convert the value of a channel, and pending writes to it.

        Args:
            channel: The channel.
            function: Receives the value and returns the new one.
            writes: The function for pending writes, if a reducer gives them another form than the value; by default
                `function`.
        """
        self._check_names(channel)
        each = writes or function
        if channel in self._values:
            self._values[channel] = _inside(function, self._values[channel])
        for write in self._writes():
            if write.channel == channel:
                write.value = _inside(each, write.value)
        self._change_inputs(lambda given: {k: _inside(each, v) if k == channel else v for k, v in given.items()})

    def split(self, channel: str, function: Callable[[Any], Mapping[str, Any]]) -> None:
        """Replace one channel with several.

        Args:
            channel: The channel.
            function: Receives its value, or a write to it, and returns a dict of values for the new channels.
        """
        self._check_names(channel)
        if channel in self._values:
            version = self._versions.get(channel)
            parts = function(self._values[channel])
            self._remove_channel(channel)
            for name, value in parts.items():
                if version is not None:
                    self._versions[name] = version
                self[name] = value
        self._rewrite(
            lambda write: (
                [Write(write.task, name, value, write.version) for name, value in function(write.value).items()]
                if write.channel == channel
                else [write]
            )
        )
        self._change_inputs(
            lambda given: {
                name: part
                for key, value in given.items()
                for name, part in (function(value).items() if key == channel else [(key, value)])
            }
        )

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def rename_node(self, node: str, new: str) -> None:
        """Rename a node, also if it is next, waits for an answer, or was sent to.

        The ids of its tasks and questions depend on the name, and change with it; decisions about pending requests
        still find them (`saver.approvals`). A graph in the node stores its state under the name: if it waits, the
        thread is refused.
        """
        before = self._tasks(lambda name: new if name == node else name)
        moved = {channel: _with_node(channel, node, new) for channel in self._versions if is_trigger(channel)}
        self._rename_channels({old: name for old, name in moved.items() if old != name})
        for channel, value in self._values.items():
            if channel.startswith(JOIN) and isinstance(value, set):
                self._values[channel] = {new if name == node else name for name in value}
        if node in self._versions_seen:
            self._versions_seen[new] = self._versions_seen.pop(node)
        self._change_sends(lambda send: _send_to(send, new) if send.node == node else send)
        for write in self._writes():
            if write.channel == ERROR_SOURCE_NODE or write.channel.startswith(JOIN):
                write.value = new if write.value == node else write.value
            write.channel = _with_node(write.channel, node, new)
        self._move_tasks(before, self._tasks())

    def remove_node(self, node: str, go_to: str | None = None) -> None:
        """Remove a node; if it is next and `go_to` is missing, the thread is refused.

        Its pending questions are dropped, and their requests are closed when the thread continues.

        Args:
            node: The node.
            go_to: The node that runs in its place if it is next, or `END`.
        """
        starts, before = BRANCH_TO + node, self._tasks()
        is_sent_to = any(_is_sent_to(write, node) for write in self._writes())
        is_due = node in self.next or is_sent_to or any(write.channel == starts for write in self._writes())
        if is_due and go_to is None:
            raise Refused(f"node {node!r} is next, and was removed: use remove_node({node!r}, go_to=...)")
        for join in [name for name in self._versions if name.startswith(JOIN)]:
            starting, _, end = join.removeprefix(JOIN).rpartition(":")
            if node in starting.split("+") and (self._values.get(join) or end in self.next):
                raise Refused(f"node {node!r} was removed, but {end!r} waits for it and others: finish that run first")
        own = {task.id for task in before.values() if task.node == node}
        if any(write.task in own and write.channel not in _NO_RESULT for write in self._writes()):
            raise Refused(f"node {node!r} was removed, but has run in an unfinished step: finish that run first")
        if starts in self._values and go_to not in (None, END):
            self._start(str(go_to))
        for name in [name for name in self._versions if name == starts or _is_join_to(name, node)]:
            self._remove_channel(name)
        self._versions_seen.pop(node, None)
        self._rewrite(lambda write: _redirect(write, node, go_to))
        sends = sent_tasks(self._values)
        kept = [place for place, send in enumerate(sends) if getattr(send, "node", "") != node or go_to != END]
        if sends:
            self._values[TASKS] = [sends[place] for place in kept]
            self._change_sends(lambda send: _send_to(send, str(go_to)) if send.node == node else send)
        self._all[:] = [write for write in self._all if write.task not in own]
        left = {key: task for key, task in before.items() if task.id not in own}
        self._move_tasks(left, self._tasks(places=kept))

    def convert_sends(self, node: str, function: Callable[[Any], Any]) -> None:
        """Convert the pending arguments that were sent to a node (`Send`)."""
        self._change_sends(lambda send: _send_to(send, send.node, function(send.arg)) if send.node == node else send)

    def convert_questions(self, function: Callable[[Any], Any]) -> None:
        """Convert pending questions of tasks (the values of `interrupt()`)."""
        for write in self._writes():
            if write.channel == INTERRUPT:
                write.value = tuple(_copy_interrupt(each, function(each.value), each.id) for each in write.value)

    # -- helpers -------------------------------------------------------------------------------------------------------

    @property
    def _versions(self) -> dict[str, Any]:
        versions: dict[str, Any] = self._checkpoint.setdefault("channel_versions", {})
        return versions

    @property
    def _versions_seen(self) -> dict[str, dict[str, Any]]:
        seen: dict[str, dict[str, Any]] = self._checkpoint.setdefault("versions_seen", {})
        return seen

    def _writes(self) -> list[Write]:
        return [write for write in self._all if write.version <= self._version]

    def _check_names(self, *channels: str) -> None:
        for channel in channels:
            if not isinstance(channel, str) or not channel or not is_of_state(channel):
                raise InvalidInput(f"{channel!r} is not a channel of the state: use a name from its schema")

    def _rename_channels(self, names: Mapping[str, str]) -> None:
        """Rename channels in the checkpoint itself, keeping their order."""
        for holder in (self._values, self._versions, *self._versions_seen.values()):
            if names.keys() & holder.keys():
                renamed = {names.get(name, name): value for name, value in holder.items()}
                holder.clear()
                holder.update(renamed)
        updated = self._checkpoint.get("updated_channels")
        if updated:
            self._checkpoint["updated_channels"] = [names.get(name, name) for name in updated]

    def _remove_channel(self, channel: str) -> None:
        counters = self._metadata.get(_COUNTERS) or {}
        for holder in (self._values, self._versions, counters, *self._versions_seen.values()):
            holder.pop(channel, None)
        updated = self._checkpoint.get("updated_channels")
        if updated and channel in updated:
            self._checkpoint["updated_channels"] = [name for name in updated if name != channel]

    def _rewrite(self, change: Callable[[Write], list[Write]]) -> None:
        """Replace writes; a task without remaining writes still counts as finished."""
        changed = [part for each in self._all for part in (change(each) if each.version <= self._version else [each])]
        emptied = {each.task for each in self._all} - {each.task for each in changed} - {NULL_TASK_ID}
        self._all[:] = [*changed, *(Write(task, NO_WRITES, None, self._version) for task in sorted(emptied))]

    def _change_inputs(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Change the input of a run that has not started, which names channels."""
        given = self._values.get(START)
        if type(given) is dict:
            self._values[START] = change(given)

    def _change_sends(self, change: Callable[[Send], Send]) -> None:
        from langgraph.types import Send

        if sends := sent_tasks(self._values):
            self._values[TASKS] = [change(each) if isinstance(each, Send) else each for each in sends]
        for write in self._writes():
            if write.channel == TASKS and isinstance(write.value, Send):
                write.value = change(write.value)

    def _start(self, node: str) -> None:
        """Make a node run next."""
        channel = BRANCH_TO + node
        self._values[channel] = None
        self._versions[channel] = max(self._versions.values())
        self._versions_seen.get(node, {}).pop(channel, None)
        if updated := self._checkpoint.get("updated_channels"):  # LangGraph checks only the nodes of these
            self._checkpoint["updated_channels"] = sorted({*updated, channel})

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _tasks(
        self, named: Callable[[str], str] = lambda name: name, places: Sequence[int] | None = None
    ) -> dict[_Key, _Task]:
        """Return the tasks of the next step."""
        step, tasks = self._metadata.get("step"), dict[_Key, _Task]()
        if not isinstance(step, int):
            return tasks
        for node in next_nodes(self._checkpoint, {name: each for name, each in self._values.items() if name != TASKS}):
            joins = [name for name in self._versions if _is_join_to(name, node)]
            starts = [START] if node == START else sorted([BRANCH_TO + node, *joins])
            tasks[PULL, named(node), 0] = self._task(node, step + 1, PULL, *starts)
        for place, send in enumerate(sent_tasks(self._values)):
            if isinstance(to := getattr(send, "node", None), str):
                was = place if places is None else places[place]
                tasks[PUSH, named(to), was] = self._task(to, step + 1, PUSH, str(place))
        return tasks

    def _task(self, node: str, step: int, *started_by: str) -> _Task:
        place = f"{self._ns}{NS_SEP}{node}" if self._ns else node
        name = task_id_of(self.checkpoint_id, place, step, node, *started_by)
        return _Task(node, name, f"{place}{NS_END}{name}")

    def _move_tasks(self, before: Mapping[_Key, _Task], after: Mapping[_Key, _Task]) -> None:
        """Give writes the new ids of their tasks, and questions their own new ids."""
        moved = {old.id: (old, after[key]) for key, old in before.items() if key in after and after[key].id != old.id}
        known = {NULL_TASK_ID, *(task.id for task in (*before.values(), *after.values()))}
        if moved and any(write.task not in known for write in self._writes()):
            raise Refused("an unknown task has pending writes: let its step end first")
        for write in self._writes():
            if write.task in moved:
                old, new = moved[write.task]
                write.task = new.id
                if write.channel == INTERRUPT:
                    write.value = tuple(self._asked_by(each, old, new) for each in write.value)

    def _asked_by(self, interrupt: Interrupt, old: _Task, new: _Task) -> Interrupt:
        """Return a task's question with the id of the renamed task."""
        for answered in range(_MOST_ANSWERS):
            if interrupt.id == interrupt_id_of(old.ns, answered):
                name = interrupt_id_of(new.ns, answered)
                self._interrupts[interrupt.id] = name
                return _copy_interrupt(interrupt, interrupt.value, name)
        raise Refused(f"a graph in node {old.node!r} waits, and is stored under this name: let it end first")


_Key: TypeAlias = tuple[str, str, int]
"""How a task is started, its node, and its place among sent tasks."""


@dataclass(frozen=True, slots=True)
class _Task:
    node: str
    id: str
    ns: str


def _inside(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to the inside of a wrapped one."""
    if isinstance(value, DeltaSnapshot):
        return DeltaSnapshot(function(value.value))
    if getattr(value, "type", None) == OVERWRITE and hasattr(value, "value"):
        return type(value)(function(value.value))
    return function(value)


def _is_join_to(channel: str, node: str) -> bool:
    return channel.startswith(JOIN) and channel.rpartition(":")[2] == node


def _with_node(channel: str, node: str, new: str) -> str:
    """Return the name of a trigger channel with a renamed node."""
    if channel == BRANCH_TO + node:
        return BRANCH_TO + new
    if channel.startswith(JOIN):
        starts, _, end = channel.removeprefix(JOIN).rpartition(":")
        names = [new if name == node else name for name in starts.split("+")]
        return f"{JOIN}{'+'.join(names)}:{new if end == node else end}"
    return channel


def _is_sent_to(write: Write, node: str) -> bool:
    return write.channel == TASKS and getattr(write.value, "node", None) == node


def _redirect(write: Write, node: str, go_to: str | None) -> list[Write]:
    """Return the replacement of a write that starts a removed node."""
    if _is_sent_to(write, node):
        return [] if go_to == END else [Write(write.task, TASKS, _send_to(write.value, str(go_to)), write.version)]
    if write.channel == BRANCH_TO + node:
        start = Write(write.task, f"{BRANCH_TO}{go_to}", write.value, write.version)
        return [] if go_to in (None, END) else [start]
    return [write]


def _send_to(send: Send, node: str, *arg: Any) -> Send:
    from langgraph.types import Send

    return Send(node, *(arg or (send.arg,)), timeout=send.timeout)


def _copy_interrupt(interrupt: Interrupt, value: Any, name: str) -> Interrupt:
    from langgraph.types import Interrupt

    return Interrupt(value, name, response_schema=interrupt.response_schema)
