"""Lines: the records of a log, each a line of JSON that ends with a checksum. FORMAT.md is the specification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any
from zlib import crc32

import orjson

from langgraph_keel.core.frames import raw_frame, unframe
from langgraph_keel.core.model import Record
from langgraph_keel.core.records import Batch, Entry, Kind, Ref, Row, Run
from langgraph_keel.errors import CorruptStore
from langgraph_keel.files.shapes import checked
from langgraph_keel.files.values import packed_items, shown_items

FORMAT = 1
COMMITS = frozenset({"thread", "ckpt", "writes", "gone", "end"})
"""Kinds of records that end a transaction. Items stand before the one that commits them."""
LARGE = 65536
"""Bytes of JSON from which on a value has a file of its own."""
_CRC = len(',"crc":"01234567"}')
_KINDS = {kind.name.lower(): kind for kind in Kind}


class Line(bytes):
    """A line without its end, that stands for a body until somebody reads it.

    Attributes:
        offset: Where in its log it begins.
    """

    offset: int

    @property
    def crc(self) -> str:
        """The checksum that it ends with."""
        return self[-10:-2].decode()


def line_of(fields: Mapping[str, Any]) -> bytes:
    """Return a record as its line; a field that is `None` is left out."""
    text = orjson.dumps({name: value for name, value in fields.items() if value is not None})[:-1]
    return b'%s,"crc":"%08x"}\n' % (text, crc32(text))


def parsed(line: bytes) -> dict[str, Any]:
    """Return the fields of a line of a log.

    Raises:
        ValueError: It is damaged, or no record.
    """
    return checked(unsealed(line))


def unsealed(line: bytes) -> Any:
    """Return what a line holds, whatever it is.

    Raises:
        ValueError: It is damaged.
    """
    text = line[:-_CRC]
    if line[-_CRC:] != b',"crc":"%08x"}' % crc32(text):
        raise ValueError("its checksum does not fit")
    return orjson.loads(memoryview(line))  # it takes no subclass of bytes


class Draft:
    """What a transaction is to write.

    Attributes:
        lines: One after the other; the last commits them.
        blobs: Files of large values, by name.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.blobs: dict[str, bytes] = {}

    def add(self, kind: str, ns: str | None = None, **fields: Any) -> None:
        """Append a record."""
        self.lines.append(line_of({"k": kind, "ns": ns or None, **fields}))

    def value(self, value: Any) -> Any:
        """Return a value as it stands in a line."""
        text = orjson.dumps(value)
        if len(text) <= LARGE:
            return orjson.Fragment(text)
        name = sha256(text).hexdigest()
        self.blobs[name] = text
        return {"$blob": name}

    def items(self, ns: str, channel: str, first: int, rows: Sequence[Row]) -> None:
        """Append items to a log, a line each."""
        values = (value for row in rows for value in shown_items(unframe(row.body)))
        for number, value in enumerate(values, first):
            self.add("item", ns, ch=channel, n=number, v=self.value(value))

    def checkpoint(self, record: Record, seq: int, header: bytes) -> None:
        """Append an entry."""
        entry = record.entry
        self.add(
            "ckpt",
            entry.address.checkpoint_ns,
            id=entry.address.checkpoint_id,
            parent=entry.parent,
            seq=seq,
            span=sum(map(len, self.lines)) or None,
            fork=None if record.trunk else True,
            ghost=record.ghost or None,
            run=entry.run_id,
            at=record.updated_at,
            ch={channel: shown_ref(ref) for channel, ref in entry.refs.items()},
            head=self.value(shown_items(unframe(header))),
        )

    def writes(self, ns: str, checkpoint_id: str, batch: Batch) -> None:
        """Append the writes of a task."""
        heads, *values = shown_items(unframe(batch.body))
        w = items = None
        if _are_heads(heads, len(values)):
            w = [[*head, self.value(value)] for head, value in zip(heads, values, strict=True)]
        else:
            items = self.value([heads, *values])
        self.add("writes", ns, id=checkpoint_id, task=batch.task_id, path=batch.task_path, w=w, items=items)


def _are_heads(heads: Any, count: int) -> bool:
    """Return whether this is [[channel, index], ...], as the core writes it; not so with another serializer."""
    return isinstance(heads, list) and len(heads) == count and all(type(h) is list and len(h) == 2 for h in heads)


def shown_ref(ref: Ref) -> Any:
    """Return a reference as it stands in a line."""
    return {ref.kind.name.lower(): ref.runs} if ref.runs or ref.kind is not Kind.INLINE else "inline"


def ref_of(shown: Any) -> Ref:
    """Return a reference from a line."""
    if shown == "inline":
        return Ref(Kind.INLINE)
    [(kind, runs)] = shown.items()
    return Ref(_KINDS[kind], tuple(map(_run, runs)))


def _run(pair: Any) -> Run:
    lo, hi = pair
    if not (type(lo) is type(hi) is int and 0 <= lo < hi):
        raise ValueError(f"{pair!r} is no run of items")
    return lo, hi


def blobs_in(fields: Mapping[str, Any]) -> Iterator[str]:
    """Name the files that a record refers to."""
    values = [fields.get("v"), fields.get("head"), fields.get("items"), *(part[-1] for part in fields.get("w") or ())]
    return (value["$blob"] for value in values if isinstance(value, dict) and "$blob" in value)


class Bodies:
    """Makes bodies of lines.

    Args:
        load: Returns the content of a blob.
        where: How messages name the log.
    """

    def __init__(self, load: Callable[[str], bytes], where: str) -> None:
        self._load = load
        self._where = where

    def of(self, body: bytes) -> bytes:
        """Return the body that a line stands for; a body itself as it is.

        Raises:
            CorruptStore: It stands for none.
        """
        if not isinstance(body, Line):
            return body
        try:
            return self._made(body)
        except (CorruptStore, ValueError, TypeError, LookupError) as error:
            raise CorruptStore(f"{self._where}: the record at byte {body.offset} holds no value: {error}") from error

    def _made(self, body: Line) -> bytes:
        fields = orjson.loads(memoryview(body))
        text = body if body.find(b'"$blob"') < 0 else None
        return raw_frame(packed_items(self._values(fields), text))

    def check(self, fields: Mapping[str, Any], line: Line) -> None:
        """Make the bodies that a record stands for, to see that they can be made.

        Raises:
            CorruptStore: A value stands for nothing, or its file is missing or another one.
        """
        if fields["k"] in ("item", "ckpt", "writes"):
            self.of(line)

    def _values(self, fields: Mapping[str, Any]) -> Sequence[Any]:
        if "v" in fields:
            return [self._value(fields["v"])]
        if "w" in fields:
            return [[part[:2] for part in fields["w"]], *(self._value(part[2]) for part in fields["w"])]
        values: Sequence[Any] = self._value(fields["head"] if "head" in fields else fields["items"])
        return values

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict) and "$blob" in value:
            return orjson.loads(self._load(value["$blob"]))
        return value


def entry_in(fields: Mapping[str, Any], line: Line, stamp: str, address: Any) -> Record:
    """Return the entry of a record.

    Raises:
        CorruptStore: It lacks something.
    """
    try:
        refs = {channel: ref_of(shown) for channel, shown in fields["ch"].items()}
        entry = Entry(address, fields.get("parent"), stamp, line, refs, fields.get("run"))
        return Record(entry, not fields.get("fork"), fields["at"], bool(fields.get("ghost")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptStore(f"a checkpoint does not parse: {error!r}") from error
