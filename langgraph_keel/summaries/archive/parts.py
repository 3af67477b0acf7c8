"""Archived parts: the messages of a removal as records, and their stored form."""

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
"""Key in `additional_kwargs` of Keel's summaries, for their facts."""

_MARKS = (MARK, "lc_source")  # the latter is LangChain's
_DIGEST = 12
_MOST_STARTS = 100

_TEXTS = ("checkpoint_ns", "checkpoint_id", "node", "channel", "by", "model", "summary", "summary_id", "previous")
_NUMBERS = ("step", "bytes", "pieces")
_NEEDED = ("checkpoint_ns", "channel", "by")


@dataclass(frozen=True, slots=True)
class Removal:
    """Messages to be removed from a state."""

    id: str  # of the archived part: a hash of channel, namespace and messages
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None  # the checkpoint from which the step started, if known
    step: int | None
    node: str | None
    channel: str
    by: By
    messages: tuple[BaseMessage, ...] = field(repr=False)
    model: str | None = None  # of the summary
    summary: str | None = None
    summary_id: str | None = None  # the id of the message in their place
    previous: str | None = None  # the id of the archived part of the previous summary


@publish
@dataclass(frozen=True, slots=True, repr=False)
class Archived:
    """An archived part: the messages that one removal took from a thread's state.

    Attributes:
        id: 24 hexadecimal digits, the same for equal messages.
        thread_id: The thread.
        checkpoint_ns: The namespace of the graph; `""` is the root graph.
        checkpoint_id: The checkpoint from which the step started, with the messages, if known.
        step: The step, if known.
        node: The node, if known.
        channel: The channel of the state.
        by: The cause of the removal: "summary", "window", or "rule" (the saver's `archive_removed`).
        model: The model that wrote the summary.
        at: The time of the removal, in UTC.
        summary: The text of the summary.
        summary_id: The id of the summary message. It may be the id of the first removed message, whose place it and
            later summaries take. So identify a summary in a state by its `keel_summary`.
        previous: The id of the archived part of the previous summary, which the summary includes.
        message_ids: The ids of the messages, in order; `""` for a message without an id.
        count: Number of messages.
        bytes: Size of the messages before compression.
        pinned: Whether the part is marked for keeping. It is deleted with its thread all the same.
        digests: Digests that distinguish a message from an edited one with the same id.
        pieces: Number of cells before the head.
        starts: All checkpoints from which a step removed exactly these messages: several after a rewind. The last is
            `checkpoint_id`.
        inner: Positions of messages that are summaries of Keel's, with their parts.
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
        """Describe it, on one line."""
        step = "" if self.step is None else f", step {self.step}"
        pinned = ", pinned" if self.pinned else ""
        held = count_of(self.count, "message")
        return f"{self.id[:12]}: {held} removed by {self.by}{step}, {self.at:%Y-%m-%d %H:%M:%S} UTC{pinned}"

    def __repr__(self) -> str:
        """As `str`, because ids and summaries may be very long."""
        return f"<Archived {self}>"


def id_of(message: BaseMessage) -> str:
    """Return a message's id; `""` if it has none."""
    return str(message.id or "")


def is_summary(message: BaseMessage) -> bool:
    """Return whether a message is marked as a summary."""
    return any(mark in message.additional_kwargs for mark in _MARKS)


def part_of(message: BaseMessage) -> str | None:
    """Return the archived part of a summary of Keel's; `None` for any other message."""
    facts = message.additional_kwargs.get(MARK)
    part = facts.get("archive") if isinstance(facts, Mapping) else None
    return part if isinstance(part, str) and ID.fullmatch(part) else None


def hosts_in(entries: Collection[Archived]) -> set[str]:
    """Return the ids shared by a summary and a removed message."""
    return {entry.summary_id for entry in entries if entry.summary_id and entry.summary_id in entry.message_ids}


def add_starts(entry: Archived, starts: Sequence[str]) -> Archived:
    """Add the earlier checkpoints from which steps removed a part."""
    every = dict.fromkeys((*starts, *entry.starts))
    last = [start for start in every if start != entry.checkpoint_id] + [entry.checkpoint_id or ""]
    return replace(entry, starts=tuple(filter(None, last))[-_MOST_STARTS:])


def removal_id(channel: str, checkpoint_ns: str, messages: Sequence[BaseMessage], marks: Sequence[bytes]) -> str:
    """Return the id of the part of these messages; `marks` are their fingerprints."""
    named = blake2b(digest_size=_DIGEST)
    for text in (channel, checkpoint_ns, *map(id_of, messages)):
        named.update(_with_length(text.encode("utf-8", "surrogatepass")))
    for mark in marks:
        named.update(_with_length(mark))
    return named.hexdigest()


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


def digest_of(codec: Codec, message: BaseMessage) -> str:
    """Return a digest that changes if a message is edited; the same in every process."""
    return blake2b(codec.fingerprint(message), digest_size=_DIGEST).hexdigest()


# -- keys of messages ------------------------------------------------------------------------------------------------


def keys_of(entry: Archived) -> list[str]:
    """Return the keys of a part's messages: their ids, or their places without an id."""
    keys = [name or f"{entry.id} {place}" for place, name in enumerate(entry.message_ids)]
    for place, part in entry.inner:
        keys[place : place + 1] = [summary_key(part)] if 0 <= place < entry.count else []
    return keys


def key_in(message: BaseMessage, place: int) -> str:
    """Return the key of a message of a state."""
    part = part_of(message)
    return summary_key(part) if part else message.id or f"now {place}"


def summary_key(part: str) -> str:
    """Return the key of a part's summary, whose id may be that of a message."""
    return f"summary {part}"


# -- stored form ---------------------------------------------------------------------------------------------------


def _pack(entry: Archived) -> list[dict[str, Any]]:
    """Return the stored form of a part, without unknown fields."""
    known = {name: getattr(entry, name) for name in (*_TEXTS, *_NUMBERS)}
    said = {name: value for name, value in known.items() if value is not None}
    said["at"] = entry.at.astimezone(UTC).isoformat()
    said["messages"] = list(entry.message_ids)
    said["digests"] = bytes.fromhex("".join(entry.digests))
    said["inner"] = [list(each) for each in entry.inner]
    said["starts"] = list(entry.starts)
    return [said | ({"pinned": True} if entry.pinned else {})]


def _unpack(parts: Sequence[Any]) -> Archived:
    """Return the part in an untrusted head, without id and thread."""
    (said,) = parts
    texts = {name: _check_type(said.get(name), str, name in _NEEDED) for name in _TEXTS}
    numbers = {name: _check_type(said.get(name), int, name != "step") for name in _NUMBERS}
    ids = tuple(_check_type(each, str, True) for each in said["messages"])
    digests = _check_type(said["digests"], bytes, True).hex()
    if not ids or len(digests) != 2 * _DIGEST * len(ids) or numbers["pieces"] >= 10**5:
        raise ValueError("its fields are inconsistent")
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
    raise TypeError(f"{value!r:.60} is not a {kind.__name__}")


# -- archives ------------------------------------------------------------------------------------------------------


def in_order(entries: Collection[Archived]) -> list[Archived]:
    """Return parts by time, but each after its previous one, as clocks may differ."""
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
