"""What is to be put back: of all that is archived, what was asked for, and was taken out on the way to a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_keel.core.archived import Archived, hosts_in, part_of
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.summaries.naming import FoundMessage, Which, named_in
from langgraph_keel.summaries.order import key_in, keys_of


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be put back into one list.

    Attributes:
        channel: The list.
        entries: All archived parts of it.
        keys: What is wanted of them.
        is_named: Whether that was asked for by name.
    """

    channel: str
    entries: Sequence[Archived]
    keys: Set[str]
    is_named: bool = True

    @property
    def needed(self) -> list[Archived]:
        """The parts to read."""
        return [entry for entry in self.entries if any(key in self.keys for key in keys_of(entry))]


def choices(entries: Sequence[Archived], which: Which | Iterable[Which] | None, namespace: str | None) -> list[Choice]:
    """Return what is to be put back, list by list.

    Args:
        entries: The archive.
        which: A part, a message, the id of one, or several of those; `None` for all there is.
        namespace: The graph's namespace, if it is said; else the one that what was named belongs to.

    Raises:
        NotFound: One of them is not in the archive, or it has only parts of other graphs.
        InvalidInput: They belong to different graphs, or name nothing.
    """
    wanted: dict[tuple[str, str], set[str]] = {}
    for entry, keys in _asked(entries, which, namespace or ""):
        wanted.setdefault((entry.checkpoint_ns, entry.channel), set()).update(keys)
    spaces = {space for space, _ in wanted} | ({namespace} if namespace is not None else set())
    if len(spaces) > 1:
        raise InvalidInput(f"these messages belong to different graphs ({sorted(spaces)}): restore those of one")
    return [
        Choice(
            channel,
            [each for each in entries if (each.checkpoint_ns, each.channel) == (space, channel)],
            keys,
            which is not None,
        )
        for (space, channel), keys in wanted.items()
    ]


def _asked(
    entries: Sequence[Archived], which: Which | Iterable[Which] | None, namespace: str
) -> list[tuple[Archived, Collection[str]]]:
    if which is None:
        own = [entry for entry in entries if entry.checkpoint_ns == namespace]
        if entries and not own:
            raise _elsewhere(entries, namespace)
        return [(entry, keys_of(entry)) for entry in own]
    if isinstance(which, Archived | FoundMessage | BaseMessage | str) or not isinstance(which, Iterable):
        return [named_in(entries, which)]
    return [named_in(entries, each) for each in which]


def _elsewhere(entries: Sequence[Archived], namespace: str) -> NotFound:
    spaces = sorted({entry.checkpoint_ns for entry in entries})
    named = ", ".join(map(repr, spaces[:3])) + (f" and {len(spaces) - 3} more" if len(spaces) > 3 else "")
    if all(":" in space for space in spaces):
        way = "they keep nothing between calls: summarize where the messages are kept, and read these by messages()"
    else:
        way = f"config={{'configurable': {{'checkpoint_ns': {min(spaces, key=lambda space: ':' in space)!r}}}}}"
    place = f"subgraph {namespace!r}" if namespace else "root graph"
    return NotFound(f"nothing of the {place} was archived, only of the subgraphs {named}: {way}")


def on_the_way(choice: Choice, aside: Collection[str], state: Any) -> Choice:
    """Return a choice without the parts that were taken out on other branches.

    Args:
        choice: What was asked for.
        aside: The parts of other branches.
        state: What the checkpoint shows.

    Raises:
        InvalidInput: One of those was named, or a message that only they hold.
    """
    here = [entry for entry in choice.entries if entry.id not in aside]
    known = {key for entry in here for key in keys_of(entry)} | {key for key, _ in messages_in(state, choice.channel)}
    other = next((each for each in choice.entries if not {*keys_of(each)}.isdisjoint(choice.keys - known)), None)
    if other is not None and choice.is_named:
        raise InvalidInput(
            f"part {other.id} was taken out on another branch, on which this checkpoint does not lie: messages() reads "
            f"it, and restore(config={{'configurable': {{'checkpoint_id': ...}}}}) goes on from one of that branch"
        )
    return replace(choice, entries=here, keys=choice.keys & known)


def elsewhere(entries: Sequence[Archived], way: Collection[str], beside: Collection[str], state: Any) -> set[str]:
    """Return the ids of the parts that were not taken out on the way to a checkpoint. What cannot be said, was.

    Args:
        entries: The parts of one namespace, each after what it builds on.
        way: The checkpoints on the way.
        beside: Those that are known to be on other branches.
        state: What the checkpoint shows: what its summaries stand for is on the way.
    """
    found: set[str] = set()
    for entry in entries:
        starts = set(entry.starts)
        is_known = bool(starts) and starts <= set(beside)
        if starts.isdisjoint(way) and (is_known or entry.previous in found):
            found.add(entry.id)
    return found - standing(entries, state)


def left_behind(entries: Sequence[Archived], way: Collection[str], state: Any) -> set[str]:
    """Return the parts of conversations that were left, as summaries tell where the checkpoints that would are pruned.

    A part that a summary took out, and that no summary in the state stands for, is of another branch; or its messages
    are in the state again. If there is no summary, it is, if the state has any message of it, or of what it builds on.

    Args:
        entries: The parts of one list, each after what it builds on.
        way: The checkpoints on the way; a part that was taken out there stays.
        state: What the checkpoint shows.
    """
    there = standing(entries, state)
    if there - {entry.id for entry in entries}:
        return set()  # what a part that is gone has built on, nobody can say
    shown = {message.id for message in _messages(state)} - {None, ""}
    touched = set[str | None]()
    for entry in entries:
        if there or entry.previous in touched or not shown.isdisjoint(entry.message_ids):
            touched.add(entry.id)
    unknown = {entry.id for entry in entries if entry.by == "summary" and set(entry.starts).isdisjoint(way)}
    return unknown & touched - there


def standing(entries: Collection[Archived], state: Any) -> set[str]:
    """Return the parts that the summaries in a state stand for, and those that they build on; also such as are gone."""
    parts, found = {entry.id: entry for entry in entries}, set[str]()
    others = {message.id for message in _messages(state) if message.id and not part_of(message)} - hosts_in(entries)
    for part in (*_shown(state), *(entry.id for entry in entries if entry.summary_id in others)):
        while part and part not in found:
            found.add(part)
            part = (parts[part].previous or "") if part in parts else ""
    return found


def _messages(state: Any) -> Iterator[BaseMessage]:
    """Yield the messages of all lists of a state."""
    for value in state.values() if isinstance(state, Mapping) else ():
        yield from (each for each in value if isinstance(each, BaseMessage)) if isinstance(value, list) else ()


def _shown(state: Any) -> Iterator[str]:
    """Yield the parts that the summaries in a state stand for."""
    for value in state.values() if isinstance(state, Mapping) else ():
        if isinstance(value, Mapping) and isinstance(value.get("archive"), str):
            yield value["archive"]
    yield from filter(None, map(part_of, _messages(state)))


def messages_in(state: Any, channel: str) -> Iterator[tuple[str, BaseMessage]]:
    """Yield the messages of a list of a state, each with what names it."""
    value = state.get(channel) if isinstance(state, Mapping) else None
    for place, message in enumerate(value if isinstance(value, list) else ()):
        if isinstance(message, BaseMessage):
            yield key_in(message, place), message
