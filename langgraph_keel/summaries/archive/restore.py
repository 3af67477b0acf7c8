"""Restores archived messages to a state: at their summary, or at the beginning."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from langgraph_keel._langgraph import NS_END
from langgraph_keel.display.text import count_of
from langgraph_keel.engine.config import USER, address_of, config_of, configurable, owner_in, owner_of, thread_id_of
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import CheckpointConflict, InvalidInput, NotFound
from langgraph_keel.summaries.archive.parts import Archived, hosts_in, key_in, keys_of, part_of, summary_key
from langgraph_keel.summaries.archive.references import FoundMessage, Which, named_in
from langgraph_keel.summaries.policy import answered_in, calls_of, groups_of

_MOST_TRIES = 10
_NEXT = "with the restored messages"


@dataclass(frozen=True, slots=True)
class Choice:
    """The messages of one list to restore."""

    channel: str
    entries: Sequence[Archived]  # all archived parts of the list
    keys: Set[str]  # of the messages
    is_named: bool = True  # whether the caller named them


def choices(
    entries: Sequence[Archived], which: Which | Iterable[Which] | None, config: RunnableConfig | None
) -> list[Choice]:
    """Return the messages to restore, list by list."""
    named = configurable(config).get("checkpoint_ns") if config else None
    namespace = None if named is None else str(named)
    wanted: dict[tuple[str, str], set[str]] = {}
    found: list[tuple[Archived, Sequence[str]]]
    if which is None:
        own = [entry for entry in entries if entry.checkpoint_ns == (namespace or "")]
        if entries and not own:
            raise _only_elsewhere(entries, namespace or "")
        found = [(entry, keys_of(entry)) for entry in own]
    elif isinstance(which, Archived | FoundMessage | BaseMessage | str) or not isinstance(which, Iterable):
        found = [named_in(entries, which)]
    else:
        found = [named_in(entries, each) for each in which]
    for entry, keys in found:
        wanted.setdefault((entry.checkpoint_ns, entry.channel), set()).update(keys)
    spaces = {space for space, _ in wanted} | ({namespace} if namespace is not None else set())
    if len(spaces) > 1:
        raise InvalidInput(f"these messages belong to different graphs ({sorted(spaces)}): restore those of one")
    lists = {place: [each for each in entries if (each.checkpoint_ns, each.channel) == place] for place in wanted}
    return [Choice(place[1], lists[place], keys, which is not None) for place, keys in wanted.items()]


def _only_elsewhere(entries: Sequence[Archived], namespace: str) -> NotFound:
    spaces = sorted({entry.checkpoint_ns for entry in entries})
    named = ", ".join(map(repr, spaces[:3])) + (f" and {len(spaces) - 3} more" if len(spaces) > 3 else "")
    if all(NS_END in space for space in spaces):
        way = "these are stateless: summarize in the graph that keeps the messages, and read these with messages()"
    else:
        way = f"config={{'configurable': {{'checkpoint_ns': {min(spaces, key=lambda space: NS_END in space)!r}}}}}"
    place = f"subgraph {namespace!r}" if namespace else "root graph"
    return NotFound(f"no messages of the {place} were archived, only of the subgraphs {named}: {way}")


def keep_on_way(choice: Choice, aside: Collection[str], state: Any) -> Choice:
    """Return a choice without parts removed on other branches."""
    here = [entry for entry in choice.entries if entry.id not in aside]
    known = {key for entry in here for key in keys_of(entry)} | {key for key, _ in messages_in(state, choice.channel)}
    other = next((each for each in choice.entries if not {*keys_of(each)}.isdisjoint(choice.keys - known)), None)
    if other is not None and choice.is_named:
        raise InvalidInput(
            f"part {other.id} was taken out on another branch than this checkpoint's: read it with messages(), or "
            f"restore it on that branch with restore(config={{'configurable': {{'checkpoint_id': ...}}}})"
        )
    return replace(choice, entries=here, keys=choice.keys & known)


def find_aside(
    entries: Sequence[Archived], way: Collection[str], beside: Collection[str], state: Any, is_named: bool
) -> set[str]:
    """Return the ids of parts removed on other branches than a checkpoint's."""
    standing, aside = find_standing(entries, state), set[str]()
    for entry in entries:
        starts = set(entry.starts)
        is_known = bool(starts) and starts <= set(beside)
        if starts.isdisjoint(way) and (is_known or entry.previous in aside):
            aside.add(entry.id)
    # If checkpoints were pruned, a part counts as removed on this branch. But when restoring all parts, summaries give
    # more information: a part is of another branch if no summary in the state includes it, or, without any summary, if
    # the state has messages of it or of its previous part. (If a part is missing, its previous part is unknown.)
    if not is_named and standing <= {entry.id for entry in entries}:
        shown, touched = {message.id for message in _messages(state)} - {None, ""}, set[str | None]()
        for entry in entries:
            if standing or entry.previous in touched or not shown.isdisjoint(entry.message_ids):
                touched.add(entry.id)
                if entry.by == "summary" and set(entry.starts).isdisjoint(way):
                    aside.add(entry.id)
    return aside - standing


def find_standing(entries: Collection[Archived], state: Any) -> set[str]:
    """Return the parts, and previous parts, of the summaries in a state.

    It includes parts that are not in the archive.
    """
    parts, found = {entry.id: entry for entry in entries}, set[str]()
    others = {message.id for message in _messages(state) if message.id and not part_of(message)} - hosts_in(entries)
    values = [value for value in state.values() if isinstance(value, Mapping)] if isinstance(state, Mapping) else []
    shown = [*(value.get("archive") for value in values), *map(part_of, _messages(state))]
    for part in (*shown, *(entry.id for entry in entries if entry.summary_id in others)):
        while isinstance(part, str) and part and part not in found:
            found.add(part)
            part = (parts[part].previous or "") if part in parts else ""
    return found


def _messages(state: Any) -> Iterator[BaseMessage]:
    """Yield the messages of all lists of a state."""
    for value in state.values() if isinstance(state, Mapping) else ():
        yield from (each for each in value if isinstance(each, BaseMessage)) if isinstance(value, list) else ()


def messages_in(state: Any, channel: str) -> Iterator[tuple[str, BaseMessage]]:
    """Yield the messages of a list of a state, each with its key."""
    value = state.get(channel) if isinstance(state, Mapping) else None
    for place, message in enumerate(value if isinstance(value, list) else ()):
        if isinstance(message, BaseMessage):
            yield key_in(message, place), message


Read: TypeAlias = Mapping[str, Sequence[BaseMessage]]
"""The messages of parts, by part id."""


@publish
@dataclass(frozen=True, slots=True, repr=False)
class Restored:
    """The result of a restore.

    Attributes:
        config: The config from which to continue.
        message_ids: The ids of the restored messages, in order.
        summary_ids: The ids of the removed summaries, all of whose messages are in the state again.
        present: Number of requested messages that already were in the state.
        missing: The ids of parts of summaries in the state that are not in the archive.
    """

    config: RunnableConfig
    message_ids: tuple[str, ...]
    summary_ids: tuple[str, ...] = ()
    present: int = 0
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Describe the result on one line."""
        back, gone, missing = len(self.message_ids), len(self.summary_ids), len(self.missing)
        parts = [f"{count_of(back, 'message')} restored"]
        parts += [f"{gone:,} summar{'y' if gone == 1 else 'ies'} removed"] if gone else []
        parts += [f"{self.present:,} already in the state"] if self.present else []
        parts += [f"{count_of(missing, 'part')} of summaries not in the archive"] if missing else []
        parts += [] if len(parts) > 1 or back else ["the archive has none for this state"]
        return ", ".join(parts)

    def __repr__(self) -> str:
        """As `str`, with the config; there may be thousands of ids."""
        return f"<Restored: {self} ({configurable(self.config)})>"


@dataclass(frozen=True, slots=True)
class FilledList:
    """A list with restored messages."""

    messages: list[BaseMessage]
    back: list[str]
    gone: list[str]
    present: int


def fill(choice: Choice, channels: Mapping[str, Any], state: Any, read: Read) -> FilledList:
    """Return a list of the state with archived messages restored."""
    now = _list_of(channels, state, choice.channel)
    current = {key_in(message, place): message for place, message in enumerate(now)}
    known, unnamed = messages_of(choice.entries, read), [message for message in now if not message.id]
    back = {key: known[key] for key in choice.keys if key in known and key not in current and known[key] not in unnamed}
    start = next((place for place, message in enumerate(now) if not isinstance(message, SystemMessage)), len(now))
    shown = {**current, **back}
    summaries = Summaries(choice.entries, shown)
    over = {key for key in shown if summaries.is_over(key, shown.keys())}
    order = [key for key in _merge(list(current), choice.entries, back.keys(), start, summaries) if key not in over]
    listed = [shown[key] for key in order]
    ids = {message.id for message in listed if not part_of(message)}
    for place, message in enumerate(listed):
        if message.id in ids and (part := part_of(message)):  # a remaining summary gets its own id
            listed[place] = message.model_copy(update={"id": f"summary-{part}"})
    return FilledList(
        messages=with_results(listed),
        back=[shown[key].id or key for key in order if key in back],
        gone=[message.id or key for key, message in current.items() if key in over],
        present=sum(key in current for key in choice.keys),
    )


def _merge(
    order: list[str], entries: Sequence[Archived], wanted: Set[str], start: int, summaries: Summaries
) -> list[str]:
    """Insert the wanted keys after their part's summary, or at `start` without one."""
    current, placed, at = list(order), set[str](), start
    behind = {part: key for key in current for part in summaries.parts_of(key)}
    for entry in entries:
        if entry.id in behind:
            at = max(at, order.index(behind[entry.id]) + 1)
        for key in keys_of(entry):
            if key in wanted and key not in placed:
                order.insert(at, key)
                placed.add(key)
            at += order[at : at + 1] == [key]  # also after a message restored before
    return order


def with_results(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return messages with tool results after their calls, as providers require."""
    groups = groups_of(messages)
    answered, later = answered_in(messages, groups), dict[str, int]()
    for number in reversed(range(len(messages))):
        message = messages[number]
        later |= {call: number for call in calls_of(message) if (number, call) not in answered}
        if isinstance(message, ToolMessage) and groups[number] == number:  # no call precedes it
            groups[number] = later.get(message.tool_call_id, number)
    order = sorted(range(len(messages)), key=lambda number: (groups[number], groups[number] != number, number))
    return [messages[number] for number in order]


class Summaries:
    """The summaries of archived parts, by their keys."""

    def __init__(self, entries: Sequence[Archived], messages: Mapping[str, BaseMessage]) -> None:
        self._parts = {entry.id: entry for entry in entries}
        self._of: dict[str, list[Archived]] = {}
        others = hosts_in(entries)
        for entry in entries:
            if entry.summary_id:
                self._of[summary_key(entry.id)] = [entry]
            if entry.summary_id and entry.summary_id not in others:
                self._of.setdefault(entry.summary_id, []).append(entry)
            # To the rule, a message restored in the place of a summary looks like a summary.
            others.update(entry.message_ids)
        # With a system message, langmem inserts its summary repeatedly.
        texts = {entry.summary: entry for entry in entries if entry.by == "rule" and entry.summary}
        for key, message in messages.items():
            if isinstance(message, SystemMessage) and message.text in texts:
                self._of.setdefault(key, [texts[message.text]])

    def __contains__(self, key: str) -> bool:
        return key in self._of

    def parts_of(self, key: str) -> dict[str, Archived | None]:
        """Return the parts of a summary and of earlier ones; `None` for a missing part."""
        found, left = dict[str, Archived | None](), list(self._of.get(key, ()))
        for entry in left:  # which grows
            if entry.id not in found:
                found[entry.id] = entry
                left += [each for inner in keys_of(entry) for each in self._of.get(inner, ())]
                if before := self._parts.get(entry.previous or ""):
                    left.append(before)
                elif entry.previous:
                    found[entry.previous] = None
        return found

    def is_over(self, key: str, shown: Set[str]) -> bool:
        """Return whether a message is a summary whose messages are all shown."""
        parts = self.parts_of(key).values()
        return bool(parts) and all(part and set(keys_of(part)) - self._of.keys() <= shown for part in parts)


def _list_of(channels: Mapping[str, Any], state: Any, channel: str) -> list[BaseMessage]:
    value = state.get(channel, [] if channel in channels else None) if isinstance(state, Mapping) else None
    if not isinstance(value, list) or not all(isinstance(message, BaseMessage) for message in value):
        raise InvalidInput(f"the graph's state has no list of messages {channel!r}: is it the graph they came from?")
    return value


def messages_of(entries: Sequence[Archived], read: Read) -> dict[str, BaseMessage]:
    """Return messages by their keys; for one archived twice, the later version."""
    found: dict[str, BaseMessage] = {}
    for entry in entries:
        found.update(zip(keys_of(entry), read.get(entry.id, ()), strict=False))
    return found


class Restoring:
    """A running restore: computes updates of a graph, and checks their results."""

    def __init__(
        self,
        graph: Any,
        thread_id: str,
        config: RunnableConfig | None,
        archive: Sequence[Archived],
        chosen: Sequence[Choice],
    ) -> None:
        from langgraph.pregel import Pregel

        if not callable(getattr(graph, "update_state", None)):
            raise InvalidInput(f"graph must be a graph compiled with this saver, not {graph!r:.60}")
        if isinstance(graph, Pregel) and not isinstance(graph.checkpointer, BaseCheckpointSaver):
            raise InvalidInput("the graph has no checkpointer: compile it with checkpointer= the saver of this archive")
        named = configurable(config).get("thread_id") if config else None
        if named is not None and thread_id_of(named) != thread_id:  # never restore into another thread
            raise InvalidInput(f"config names thread {named!r:.100}, but this is the archive of thread {thread_id!r}")
        space = next((choice.entries[0].checkpoint_ns for choice in chosen), "")
        own = {"thread_id": thread_id} | ({"checkpoint_ns": space} if space else {})
        given = config or {}
        self.config: RunnableConfig = {**given, "configurable": {**own, **given.get("configurable", {})}}
        self.graph = graph
        self._given = graph
        self._space = space
        self._channels: Mapping[str, Any] = {} if space else getattr(graph, "channels", {})
        self._thread_id = thread_id
        self._archive = archive
        self._chosen = chosen
        self._done: list[FilledList] = []
        self._missing: set[str] = set()
        self._unknown: object = None
        self._tries = self._lost = 0

    def choose_for(self, snapshot: Any, way: Collection[str], beside: Collection[str]) -> list[Choice]:
        """Return the messages to restore that were removed on the path to a checkpoint."""
        is_there = snapshot.metadata is not None  # for a missing one, LangGraph repeats the config
        self._check_here(configurable(snapshot.config).get("checkpoint_id") if is_there else None, way)
        state = snapshot.values
        self._missing = find_standing(self._archive, state) - {entry.id for entry in self._archive}
        return [
            keep_on_way(choice, find_aside(choice.entries, way, beside, state, choice.is_named), state)
            for choice in self._chosen
        ]

    def _check_here(self, checkpoint_id: Any, way: Collection[str]) -> None:
        """Check that the archive and the graph's checkpoint are in the same store."""
        if checkpoint_id in way:
            return
        if not checkpoint_id and not self._archive:
            raise NotFound(
                f"the archive of thread {self._thread_id!r} is empty, and the graph has no such thread: is the id "
                "right?"
            )
        if not checkpoint_id:
            raise NotFound(
                f"the graph has no checkpoint of thread {self._thread_id!r} to restore to: the thread was deleted, or "
                "the graph uses another saver than the archive"
            )
        if checkpoint_id == self._unknown:  # the first time, it may have been removed between two reads
            raise InvalidInput(
                f"the graph reads thread {self._thread_id!r} from another store: the archive's store has no "
                f"checkpoint {checkpoint_id}. Compile the graph with checkpointer= the saver of this archive"
            )
        self._unknown = checkpoint_id
        raise CheckpointConflict(self._thread_id, self._space, str(checkpoint_id), None, _NEXT)

    def update(self, snapshot: Any, chosen: Sequence[Choice], read: Read) -> dict[str, Any]:
        """Return the update of a state; empty if all messages are in it."""
        lists = [fill(choice, self._channels, snapshot.values, read) for choice in chosen]
        missing = {choice.channel: each for choice, each in zip(chosen, lists, strict=True) if each.back}
        if missing or not self._done:
            self._done = lists
        if missing:
            if snapshot.interrupts:
                raise InvalidInput(
                    "the thread waits for an answer, which an update of its state would drop: answer first "
                    "(Command(resume=...), `keel approvals`), then restore"
                )
            self._prepare(snapshot)
        return {channel: self._whole(channel, each.messages) for channel, each in missing.items()}

    def in_name_of(self, snapshot: Any) -> RunnableConfig:
        """Return the config of the update, which keeps the owner of the thread."""
        owner = owner_in(snapshot.metadata or {})
        known = {USER: owner} if owner and not owner_of(self.config) else {}
        return {**self.config, "configurable": {**known, **configurable(self.config)}}

    def count_conflict(self, error: CheckpointConflict) -> None:
        """Count a conflict; raise it after the last try. Otherwise the caller tries again."""
        self._lost += 1
        if self._lost >= _MOST_TRIES:
            raise error

    def go_on_from(self, config: RunnableConfig) -> None:
        """Continue from the written checkpoint, if the user named a checkpoint."""
        if configurable(self.config).get("checkpoint_id"):
            self.config = {**self.config, "configurable": {**configurable(self.config), **configurable(config)}}

    def _prepare(self, snapshot: Any) -> None:
        self._tries += 1
        if self._tries > _MOST_TRIES:
            raise InvalidInput(
                f"the graph dropped the restored messages {_MOST_TRIES} times: its state keeps changing, or its "
                "reducer does not accept a whole list"
            )
        from langgraph.pregel import Pregel

        saver = getattr(self._given, "checkpointer", None)
        if isinstance(self._given, Pregel) and isinstance(saver, BaseCheckpointSaver):
            is_latest = not configurable(self.config).get("checkpoint_id")
            as_read = _as_read(saver, self._space, snapshot.config, is_latest)
            self.graph = self._given.copy({"checkpointer": as_read})

    def _whole(self, channel: str, messages: Sequence[BaseMessage]) -> Any:
        from langgraph.channels import BinaryOperatorAggregate, DeltaChannel, LastValue
        from langgraph.graph.message import REMOVE_ALL_MESSAGES
        from langgraph.types import Overwrite

        held = self._channels.get(channel)
        if isinstance(held, LastValue):
            return list(messages)
        if isinstance(held, BinaryOperatorAggregate | DeltaChannel):
            return Overwrite(list(messages))  # bypasses the reducer
        return [RemoveMessage(id=REMOVE_ALL_MESSAGES), *messages]

    def outcome(self) -> Restored:
        """Return the result."""
        return Restored(
            config={"configurable": {**configurable(self.config)}},
            message_ids=tuple(key for each in self._done for key in each.back),
            summary_ids=tuple(key for each in self._done for key in each.gone),
            present=sum(each.present for each in self._done),
            missing=tuple(sorted(self._missing)),
        )


def _as_read(
    saver: BaseCheckpointSaver[Any], space: str, config: RunnableConfig, is_latest: bool
) -> BaseCheckpointSaver[Any]:
    """Return a saver that reads a checkpoint as before, as the latest if it was.

    LangGraph's `update_state` reads the checkpoint again. The written list would lack messages that another process
    added in between, so the write is refused, as for a run that was overtaken. If the checkpoint is gone, LangGraph
    would start a new thread and so recreate an erased one.
    """
    read = address_of(config)
    there = {None, read.checkpoint_id} if is_latest else {read.checkpoint_id}

    def named(asked: RunnableConfig) -> RunnableConfig | None:
        place = address_of(asked)
        if place.checkpoint_ns != space or place.checkpoint_id not in there:
            return None
        return {**asked, "configurable": {**configurable(asked), "checkpoint_id": read.checkpoint_id}}

    def seen(found: CheckpointTuple | None) -> CheckpointTuple:
        if found is None:
            raise CheckpointConflict(read.thread_id, space, read.checkpoint_id, None, _NEXT)
        return found._replace(config=config_of(address_of(found.config), "head")) if is_latest else found

    def get_tuple(asked: RunnableConfig) -> CheckpointTuple | None:
        own = named(asked)
        return seen(saver.get_tuple(own)) if own else saver.get_tuple(asked)

    async def aget_tuple(asked: RunnableConfig) -> CheckpointTuple | None:
        own = named(asked)
        return seen(await saver.aget_tuple(own)) if own else await saver.aget_tuple(asked)

    clone = copy.copy(saver)
    vars(clone).update(get_tuple=get_tuple, aget_tuple=aget_tuple)
    return clone
