"""Archived parts: what a removal took out of a thread's state, as records, and as it is stored in headers of cells."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_keel.display.text import count_of
from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable

By: TypeAlias = Literal["summary", "window", "rule"]

ID = re.compile("[0-9a-f]{24}")
MARK = "keel_summary"
"""Where a summary of Keel's says what it stands for, in its `additional_kwargs`."""

_MARKS = (MARK, "lc_source")  # the latter is LangChain's
_DIGEST = 12
_MOST_STARTS = 100

_TEXTS = ("checkpoint_ns", "checkpoint_id", "node", "channel", "by", "model", "summary", "summary_id", "previous")
_NUMBERS = ("step", "bytes", "pieces")
_NEEDED = ("checkpoint_ns", "channel", "by")


@dataclass(frozen=True, slots=True)
class Removal:
    """Messages that are about to be taken out of a state."""

    id: str  # of the archived part: a hash of channel, namespace and messages
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None  # the checkpoint that the step began from, if known
    step: int | None
    node: str | None
    channel: str
    by: By
    messages: tuple[BaseMessage, ...] = field(repr=False)
    model: str | None = None  # that wrote the summary
    summary: str | None = None
    summary_id: str | None = None  # the id of the message in their place
    previous: str | None = None  # the id of the archived part that the summary builds on


@publish
@dataclass(frozen=True, slots=True, repr=False)
class Archived:
    """An archived part: the messages that one removal took out of a thread's state.

    Attributes:
        id: Its name: 24 hexadecimal digits, always the same for the same messages.
        thread_id: The thread.
        checkpoint_ns: The namespace of the graph; `""` is the root graph.
        checkpoint_id: The checkpoint that the step began from, if that is known: it had the messages.
        step: The step, if that is known.
        node: The node, if that is known.
        channel: The channel of the state.
        by: What took them: "summary", "window", or "rule" (the saver's `archive_removed`).
        model: The model that wrote the summary.
        at: When, in UTC.
        summary: The text that stands for them.
        summary_id: The id of the message that stands for them. It may be that of the first of them, whose place it has
            taken, and later summaries take: a summary in a state is known by what it says (`keel_summary`).
        previous: The id of the archived part that the summary builds on: it stands for that, too.
        message_ids: Their ids, in order; `""` of a message without.
        count: How many they are.
        bytes: Bytes they take before they are compressed.
        pinned: Whether the part is marked as one to keep. With its thread it goes all the same.
        digests: What tells a message from one of the same id that was edited.
        pieces: How many cells come before the head.
        starts: All checkpoints from which a step took just these messages: more than one after a rewind, the last one
            being `checkpoint_id`.
        inner: Which of the messages are themselves summaries of Keel's: their positions, and the parts they stand for.
    """

    id: str
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None
    step: int | None
    node: str | None
    channel: str
    by: By
    model: str | None
    at: datetime
    summary: str | None
    summary_id: str | None
    previous: str | None
    message_ids: tuple[str, ...]
    count: int
    bytes: int
    pinned: bool = False
    digests: tuple[str, ...] = ()
    pieces: int = 0
    starts: tuple[str, ...] = ()
    inner: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        """Return what it is, on one line."""
        step = "" if self.step is None else f", step {self.step}"
        pinned = ", pinned" if self.pinned else ""
        held = count_of(self.count, "message")
        return f"{self.id[:12]}: {held} taken out by {self.by}{step}, {self.at:%Y-%m-%d %H:%M:%S} UTC{pinned}"

    def __repr__(self) -> str:
        """Return the same: ids and summaries may take screens."""
        return f"<Archived {self}>"


def id_of(message: BaseMessage) -> str:
    """Return a message's id; `""` if it has none."""
    return str(message.id or "")


def is_summary(message: BaseMessage) -> bool:
    """Return whether a message says that it stands for others."""
    return any(mark in message.additional_kwargs for mark in _MARKS)


def part_of(message: BaseMessage) -> str | None:
    """Return the archived part that a summary of Keel's stands for; `None` of any other message."""
    facts = message.additional_kwargs.get(MARK)
    part = facts.get("archive") if isinstance(facts, Mapping) else None
    return part if isinstance(part, str) and ID.fullmatch(part) else None


def hosts_in(entries: Collection[Archived]) -> set[str]:
    """Return the ids that are those of a summary, and of a message that went: to be told apart by what they say."""
    return {entry.summary_id for entry in entries if entry.summary_id and entry.summary_id in entry.message_ids}


def add_starts(entry: Archived, starts: Sequence[str]) -> Archived:
    """Return a part that steps from other checkpoints have taken before."""
    every = dict.fromkeys((*starts, *entry.starts))
    last = [start for start in every if start != entry.checkpoint_id] + [entry.checkpoint_id or ""]
    return replace(entry, starts=tuple(filter(None, last))[-_MOST_STARTS:])


def removal_id(channel: str, checkpoint_ns: str, messages: Sequence[BaseMessage], marks: Sequence[bytes]) -> str:
    """Return the id of the part that these messages make; `marks` are their fingerprints."""
    named = blake2b(digest_size=_DIGEST)
    for text in (channel, checkpoint_ns, *map(id_of, messages)):
        named.update(_with_length(text.encode("utf-8", "surrogatepass")))
    for mark in marks:
        named.update(_with_length(mark))
    return named.hexdigest()


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


def digest_of(codec: Codec, message: BaseMessage) -> str:
    """Return what tells a message from one of the same id that was edited; the same in every process."""
    return blake2b(codec.fingerprint(message), digest_size=_DIGEST).hexdigest()


# -- what names a message --------------------------------------------------------------------------------------------


def keys_of(entry: Archived) -> list[str]:
    """Return what names each message of a part: its id; of one without, its place."""
    keys = [name or f"{entry.id} {place}" for place, name in enumerate(entry.message_ids)]
    for place, part in entry.inner:
        keys[place : place + 1] = [summary_key(part)] if 0 <= place < entry.count else []
    return keys


def key_in(message: BaseMessage, place: int) -> str:
    """Return what names a message of a state."""
    part = part_of(message)
    return summary_key(part) if part else message.id or f"now {place}"


def summary_key(part: str) -> str:
    """Return what names the summary that stands for a part: it may have the id of a message of the part."""
    return f"summary {part}"


# -- as it is stored -----------------------------------------------------------------------------------------------


def _pack(entry: Archived) -> list[dict[str, Any]]:
    """Return a part as its head has it; what is not known is left out."""
    known = {name: getattr(entry, name) for name in (*_TEXTS, *_NUMBERS)}
    said = {name: value for name, value in known.items() if value is not None}
    said["at"] = entry.at.astimezone(UTC).isoformat()
    said["messages"] = list(entry.message_ids)
    said["digests"] = bytes.fromhex("".join(entry.digests))
    said["inner"] = [list(each) for each in entry.inner]
    said["starts"] = list(entry.starts)
    return [said | ({"pinned": True} if entry.pinned else {})]


def _unpack(parts: Sequence[Any]) -> Archived:
    """Return the part that a head describes, without its id and thread. Hostile bytes: each type is checked."""
    (said,) = parts
    texts = {name: _check_type(said.get(name), str, name in _NEEDED) for name in _TEXTS}
    numbers = {name: _check_type(said.get(name), int, name != "step") for name in _NUMBERS}
    ids = tuple(_check_type(each, str, True) for each in said["messages"])
    digests = _check_type(said["digests"], bytes, True).hex()
    if not ids or len(digests) != 2 * _DIGEST * len(ids) or numbers["pieces"] >= 10**5:
        raise ValueError("what it says does not fit together")
    at = datetime.fromisoformat(said["at"])
    return Archived(
        id="",
        thread_id="",
        at=at if at.tzinfo else at.replace(tzinfo=UTC),
        message_ids=ids,
        count=len(ids),
        pinned=said.get("pinned") is True,
        digests=tuple(digests[start : start + 2 * _DIGEST] for start in range(0, len(digests), 2 * _DIGEST)),
        starts=tuple(_check_type(each, str, True) for each in said["starts"]),
        inner=tuple((_check_type(place, int, True), _check_type(part, str, True)) for place, part in said["inner"]),
        **texts,
        **numbers,
    )


def _check_type(value: Any, kind: type, is_needed: bool) -> Any:
    if type(value) is kind or (value is None and not is_needed):
        return value
    raise TypeError(f"{value!r:.60} stands where a {kind.__name__} should")


# -- together ------------------------------------------------------------------------------------------------------


def in_order(entries: Collection[Archived]) -> list[Archived]:
    """Return parts by the time they were made at, but none before the one it builds on: clocks differ."""
    left = {entry.id: entry for entry in sorted(entries, key=lambda entry: (entry.at, entry.id))}
    ordered: list[Archived] = []
    while left:
        chain = [next(iter(left.values()))]
        while (before := left.get(chain[-1].previous or "")) is not None and before not in chain:
            chain.append(before)
        ordered += [left.pop(entry.id) for entry in reversed(chain)]
    return ordered


ARCHIVE: CellTable[Archived] = CellTable(
    "archive",
    "the head of archived part {key}",
    _pack,
    _unpack,
    has_body=lambda _: True,
    is_piece=lambda key: "." in key,
)


def archive_of(session: Session, thread_id: str) -> Cells[Archived]:
    """Return the archive of a thread."""
    return Cells(session, ARCHIVE, thread_id)


def part_in(archive: Cells[Archived], key: str, cell: Cell) -> Archived:
    """Return the part in a head."""
    return replace(archive.keep(key, cell).record, id=key, thread_id=str(archive.shelf.thread_id))
