"""The rule of `archive_removed=True`: archives messages removed by other code.

Before a checkpoint is stored, its lists are compared with the parent's. An edited message with the same id does not
count as removed. Messages added and removed before a run's first checkpoint are not seen (`durability="exit"`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage, SystemMessage

from langgraph_keel._langgraph import OVERWRITE, DeltaSnapshot
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.entries import pending_writes
from langgraph_keel.engine.events import Copy, Put
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.memo import KnownEntry
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Found, Kind, Ref, Run
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CheckpointConflict, StoreError
from langgraph_keel.summaries.archive.parts import (
    ARCHIVE,
    Archived,
    Removal,
    digest_of,
    hosts_in,
    id_of,
    is_summary,
    part_of,
    removal_id,
)
from langgraph_keel.summaries.archive.storage import (
    archive_messages,
    copy_archive,
    fork_archive,
    read_archived,
    remove_orphans,
)


def cut_deltas(
    session: Session, found: Found, channels: Mapping[str, list[BaseMessage] | None]
) -> Plan[Mapping[str, tuple[list[BaseMessage], list[BaseMessage]]]]:
    """Return messages before and after a cut of delta channels. At most one trip."""
    # Only the writes show how a delta channel changes, and only the graph knows its reducer. Reducers for messages
    # interpret a write as `add_messages` does.
    own = {channel: list(_values(session.codec, found, channel)) for channel in channels}
    cut = [name for name, values in own.items() if channels[name] is not None or any(map(_removes, values))]
    if not cut:
        return {}
    ancestors = yield from session.store.read_history(found.entry.address, cut)
    changes = {name: _replay(_before(session.codec, name, [found, *ancestors]), own[name]) for name in cut}
    return {
        name: (before, left if (after := channels[name]) is None else after) for name, (before, left) in changes.items()
    }


def _values(codec: Codec, found: Found, channel: str) -> Iterator[Any]:
    writes = pending_writes(found.batches, codec, found.entry.address)
    return (value for _, name, value in writes if name == channel)


def _removes(value: Any) -> bool:
    # A summary may have the place and the id of the only removed message.
    gone = (isinstance(each, RemoveMessage) or is_summary(each) for each in _messages_of(value))
    return _read_overwrite(value) is not None or any(gone)


def _read_overwrite(value: Any) -> list[Any] | None:
    """Return the new list of an `Overwrite`, in any of its forms; otherwise `None`."""
    if isinstance(value, Mapping) and OVERWRITE in value:
        return list(value[OVERWRITE] or ())
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if kind != OVERWRITE:
        return None
    held = value.get("value") if isinstance(value, Mapping) else value.value
    return list(held or ())


def _before(codec: Codec, channel: str, line: Sequence[Found]) -> list[BaseMessage]:
    """Return a channel's messages at the first checkpoint; the others are ancestors."""
    values: list[Any] = []
    for place, found in enumerate(line):
        if place:
            values[:0] = _values(codec, found, channel)
        ref = found.entry.refs.get(channel)
        if ref is not None and ref.kind is not Kind.INLINE:
            seed = Unpacker(codec).values({channel: ref}, found.rows, found.entry.address)[channel]
            return _replay(_messages_of(getattr(seed, "value", seed)), values)[1]
    return _replay([], values)[1]


def _messages_of(value: Any) -> list[BaseMessage]:
    listed = value if isinstance(value, list) else [value]
    return [each for each in listed if isinstance(each, BaseMessage)]


def _replay(before: Sequence[BaseMessage], values: Sequence[Any]) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Return all messages that ever existed, and the remaining ones."""
    left = {_key(message): message for message in before}
    seen = dict(left)
    for value in values:
        anew = _read_overwrite(value)
        if anew is not None:
            left.clear()
        for message in _messages_of(value if anew is None else anew):
            _apply(left, message)
            if not isinstance(message, RemoveMessage) and not (is_summary(message) and _key(message) in seen):
                seen[_key(message)] = message
    return list(seen.values()), list(left.values())


def _apply(left: dict[str, BaseMessage], message: BaseMessage) -> None:
    if not isinstance(message, RemoveMessage):
        left[_key(message)] = message
        return
    from langgraph.graph.message import REMOVE_ALL_MESSAGES

    if message.id == REMOVE_ALL_MESSAGES:
        left.clear()
    else:
        left.pop(str(message.id), None)


def _key(message: BaseMessage) -> str:
    return message.id or f"unnamed {id(message)}"


@dataclass(frozen=True, slots=True)
class Step:
    """A checkpoint to be stored."""

    parent: Address  # the checkpoint it continues
    number: int | None  # its step, if its metadata has one
    base: KnownEntry | None  # the last known checkpoint of its thread and namespace
    refs: Mapping[str, Ref]
    values: Mapping[str, Any]
    deltas: Collection[str] = ()  # the delta channels whose values are not in `values`

    def delta_channels(self) -> dict[str, list[BaseMessage] | None]:
        """Return all delta channels, with the messages in their snapshots, if any."""
        values = {name: value.value for name, value in self.values.items() if isinstance(value, DeltaSnapshot)}
        return dict.fromkeys(self.deltas) | {name: _messages(value) for name, value in values.items()}

    def messages(self, channel: str) -> list[BaseMessage]:
        """Return the messages of a list in the new checkpoint."""
        return _messages(self.values.get(channel))


def _messages(value: object) -> list[BaseMessage]:
    return [each for each in value if isinstance(each, BaseMessage)] if type(value) is list else []


@dataclass(frozen=True, slots=True)
class ListChange:
    """How a list of messages changes."""

    channel: str
    gone: Sequence[BaseMessage]  # messages that are in no list now
    came: Sequence[BaseMessage]  # replacements: marked so, or before the remaining messages

    @property
    def summary(self) -> BaseMessage | None:
        """The message that replaces the removed ones, if there is one."""
        return self.came[0] if len(self.came) == 1 and self.came[0].id else None


class ArchiveHook(Hook):
    """Copies archives with their threads, and removes orphaned ones.

    It adds no trips to writes.
    """

    hears_replays = True
    tables = (ARCHIVE,)

    def put_failed(self, session: Session, put: Put, error: BaseException) -> Plan[None]:
        """Remove the messages that a run archived for a thread deleted during the run."""
        if isinstance(error, CheckpointConflict) and error.found is None:
            with suppress(StoreError):
                yield from remove_orphans(session, error.thread_id)

    def after_copy(self, session: Session, copy: Copy) -> Plan[None]:
        """Copy the archive; for a fork, the parts archived on its path."""
        if copy.graph is None or copy.at is None:
            yield from copy_archive(session, copy.source, copy.target)
        else:
            yield from fork_archive(session, copy.source, copy.target, copy.graph, copy.at)


class ArchiveRule(Hook):
    """Archives messages removed from lists, before a checkpoint is stored."""

    hears_replays = True

    def __init__(self, channels: Collection[str] | None) -> None:
        self._channels = channels

    def draft_put(self, session: Session, put: Put) -> None:
        """Copy the lists before the first trip, as the program may change its own."""
        values = put.checkpoint["channel_values"].items()
        put.notes[self] = {name: copy(value) if type(value) in (list, dict) else value for name, value in values}

    def before_put(self, session: Session, put: Put) -> Plan[None]:
        """Archive messages that only the parent has. No trip if none was removed."""
        counted = put.metadata.get("counters_since_delta_snapshot") or ()
        step = Step(put.parent, put.metadata.get("step"), put.base, put.refs, put.notes[self], counted)
        # The memo knows the items of the parent's lists, so a write that removes nothing needs no trip for this.
        known = step.base.channels if step.base else {}
        lists = {name for name, held in known.items() if held.ref.kind is Kind.LIST}
        lists |= {name for name, value in step.values.items() if type(value) is list}
        watched = filter(self._is_watched, sorted(lists - set(step.deltas)))
        suspects = [channel for channel in watched if _is_cut(channel, step)]
        deltas = {channel: left for channel, left in step.delta_channels().items() if self._is_watched(channel)}
        if step.parent.checkpoint_id is None or not (suspects or deltas):
            return
        # Before the first trip, because the program may change its lists.
        left = {channel: step.messages(channel) for channel in suspects}
        here = {message.id for channel in step.values for message in step.messages(channel)}
        # langmem marks no message: its summaries are in the state, next to the list.
        held = [each for value in step.values.values() if isinstance(value, Mapping) for each in value.values()]
        texts = [getattr(each, "summary", None) for each in held if hasattr(each, "summarized_message_ids")]
        said = [text for text in texts if isinstance(text, str) and text]
        found = yield from session.store.read_entry(step.parent)
        if found is None:
            return
        changes = [
            _find_change(session.codec, said, channel, _read(session.codec, found, channel), left[channel], here)
            for channel in suspects
        ]
        for channel, (before, after) in (yield from cut_deltas(session, found, deltas)).items():
            changes.append(_find_change(session.codec, said, channel, before, after, {message.id for message in after}))
        yield from self._keep(session, step, [change for change in changes if change.gone])

    def _keep(self, session: Session, step: Step, changes: Sequence[ListChange]) -> Plan[None]:
        # Messages dropped by a window are in no part, or just in this one. Reading all parts would take longer every
        # turn, so do it only for summaries, which are rare.
        is_listed = any(change.came for change in changes)
        heads = (yield from read_archived(session, step.parent.thread_id)) if is_listed else []
        for change in changes:
            fresh = _find_unarchived(session.codec, change.gone, heads)
            if fresh:
                own = [head for head in heads if head.channel == change.channel]
                found = {head.id for _, parts in _summaries(change.gone, own) for head in parts}
                previous = next((head.id for head in reversed(own) if head.id in found), None)
                removal = _removal(session.codec, step, change, fresh, previous)
                yield from archive_messages(session, removal, is_first_hand=False)

    def _is_watched(self, channel: str) -> bool:
        return not channel.startswith("__") if self._channels is None else channel in self._channels


def _is_cut(channel: str, step: Step) -> bool:
    """Return whether a list may lack elements of the parent's."""
    if step.base is None or step.base.checkpoint_id != step.parent.checkpoint_id:
        return True
    known = step.base.channels.get(channel)
    return known is not None and known.ref.kind is Kind.LIST and not covers(step.refs.get(channel), known.ref.runs)


def covers(ref: Ref | None, runs: Sequence[Run]) -> bool:
    """Return whether a value contains all items of `runs`."""
    if ref is None or ref.kind is not Kind.LIST:
        return not runs
    if tuple(ref.runs[: len(runs)]) == tuple(runs):
        return True
    shown = {number for lo, hi in ref.runs for number in range(lo, hi)}
    return all(number in shown for lo, hi in runs for number in range(lo, hi))


def _read(codec: Codec, found: Found, channel: str) -> list[BaseMessage]:
    ref = found.entry.refs.get(channel)
    if ref is None or ref.kind is not Kind.LIST:
        return []
    return _messages(Unpacker(codec).values({channel: ref}, found.rows, found.entry.address)[channel])


def _find_change(
    codec: Codec,
    said: Sequence[str],
    channel: str,
    before: Sequence[BaseMessage],
    left: Sequence[BaseMessage],
    here: Collection[str | None],
) -> ListChange:
    """Return the change of a list. Messages without an id are compared by content."""
    known: dict[str | None, BaseMessage] = {message.id: message for message in before if message.id}
    last = max((place for place, message in enumerate(left) if message.id in known), default=-1)
    came = []
    for place, message in enumerate(left):
        repeats = isinstance(message, SystemMessage) and any(text in message.text for text in said)
        is_new = message.id not in known and (place < last or repeats)
        if is_new or (is_summary(message) and message != known.get(message.id)):
            came.append(message)
    unnamed = {codec.fingerprint(message) for message in left if not message.id}
    there = set(here) - {message.id for message in came}
    gone = [
        message
        for message in before
        if (message.id not in there if message.id else codec.fingerprint(message) not in unnamed)
    ]
    return ListChange(channel, gone, came)


def _find_unarchived(codec: Codec, gone: Sequence[BaseMessage], heads: Sequence[Archived]) -> list[BaseMessage]:
    """Return the messages that are not archived in their current version."""
    known = {pair for head in heads for pair in zip(head.message_ids, head.digests, strict=True)}
    kept = {
        id(message)
        for message, parts in _summaries(gone, heads)
        if any(head.by != "rule" and (head.summary or "") in message.text for head in parts)
    }
    return [
        message
        for message in gone
        if id(message) not in kept and (id_of(message), digest_of(codec, message)) not in known
    ]


def _summaries(
    messages: Sequence[BaseMessage], heads: Sequence[Archived]
) -> Iterator[tuple[BaseMessage, Sequence[Archived]]]:
    """Yield the summaries among messages, with the parts of each."""
    hosts = hosts_in(heads)  # an id shared with a message does not identify a summary
    by_id: dict[str, list[Archived]] = {head.id: [head] for head in heads}
    for head in heads:
        if head.summary_id and head.summary_id not in hosts:
            by_id.setdefault(head.summary_id, []).append(head)
    for message in messages:
        if parts := by_id.get(part_of(message) or id_of(message)):
            yield message, parts


def _removal(
    codec: Codec, step: Step, change: ListChange, fresh: Sequence[BaseMessage], previous: str | None
) -> Removal:
    namespace = step.parent.checkpoint_ns
    stands_for = change.summary
    return Removal(
        id=removal_id(change.channel, namespace, fresh, list(map(codec.fingerprint, fresh))),
        thread_id=step.parent.thread_id,
        checkpoint_ns=namespace,
        checkpoint_id=step.parent.checkpoint_id,
        step=step.number,
        node=None,
        channel=change.channel,
        by="rule",
        messages=tuple(fresh),
        summary=str(stands_for.text) if stands_for else None,
        summary_id=stands_for.id if stands_for else None,
        previous=previous,
    )
