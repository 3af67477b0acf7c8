"""The log of a thread: its records, its transactions, and the resulting thread.

Records are lines of JSON with a checksum, specified by FORMAT.md. The thread is a function of the log alone: a process
reads its own records in the same way as those of others.
"""

from __future__ import annotations

import os
import re
from binascii import a2b_base64, b2a_base64
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, starmap
from typing import Any, NoReturn, TypeAlias
from zlib import crc32

import orjson

from langgraph_keel.backends.files.disk import read, read_lines
from langgraph_keel.backends.files.values import (
    MOST,
    check_record,
    is_opaque,
    is_sealed,
    items_to_json,
    pack_item,
    pack_items,
)
from langgraph_keel.backends.migrations import Migration, find_due, newest, refuse_older
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import OPAQUE, array_header, is_full, open_frame, raw_frame
from langgraph_keel.engine.records import Batch, Entry, Kind, Ref, Row, Run
from langgraph_keel.engine.removal import live_runs, merge_runs
from langgraph_keel.engine.thread import Log, Record, Thread, graph_of
from langgraph_keel.errors import CorruptStore

Migrations: TypeAlias = Mapping[int, Migration[Callable[[dict[str, Any]], dict[str, Any] | None]]]
MIGRATIONS: Migrations = {}
"""The migrations; the work of each is a function of the fields of a record.

The record is a line of a log, or a cell (kind `cell`). The function returns the new fields, or `None` to drop the
record. A value in its own file (`$blob`) appears by name only. Cells do not record their format, so the function may
get a cell that it has already changed."""
COMMITS = frozenset({"thread", "ckpt", "writes", "gone", "end"})
"""Kinds of records that end a transaction; items precede the record."""
LARGE = 65536
"""Maximum bytes of JSON of a value in the log; a larger value gets its own file."""
_CRC = len(',"crc":"01234567"}')
_KINDS = {kind.name.lower(): kind for kind in Kind}

CONFLICT = b"<<<<<<< "
MARK = b'\n{"k":"index",'
"""The beginning of an index, with the line feed before it."""
EACH, SHARE = 65536, 16
"""Minimum bytes between two indexes, absolute and relative to the first's size."""
NEWEST = 40
"""Number of checkpoints that an index lists."""
_FAR = 1 << 24
"""Maximum bytes from the end of a log that are searched for an index."""


class Line(bytes):
    """A line of a log without its line feed, also used as a body (see `Bodies`)."""

    offset: int  # in its log

    @property
    def place(self) -> Run:
        """The offsets of this line and of the next one."""
        return self.offset, self.offset + len(self) + 1

    @property
    def crc(self) -> str:
        """The checksum at its end."""
        return self[-10:-2].decode()


def line_of(fields: Mapping[str, Any]) -> bytes:
    """Return the line of a record; fields that are `None` are left out."""
    text = orjson.dumps({name: value for name, value in fields.items() if value is not None})[:-1]
    return b'%s,"crc":"%08x"}\n' % (text, crc32(text))


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the fields of a line of a log."""
    return check_record(unseal(line))


def unseal(line: bytes) -> Any:
    """Check the checksum of a line, and return its JSON."""
    text = line[:-_CRC]
    if line[-_CRC:] != b',"crc":"%08x"}' % crc32(text):
        raise ValueError("its checksum is wrong")
    return orjson.loads(memoryview(line))  # orjson accepts no subclass of bytes


class Draft:
    """A transaction before it is written."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []  # the last one commits it
        self.blobs: dict[str, bytes] = {}  # files of large values, by name

    def add(self, kind: str, ns: str | None = None, **fields: Any) -> None:
        """Append a record."""
        self.lines.append(line_of({"k": kind, "ns": ns or None, **fields}))

    def value(self, value: Any) -> Any:
        """Return a value in the form of a line."""
        text = orjson.dumps(value)
        if len(text) <= LARGE:
            return orjson.Fragment(text)
        name = sha256(text).hexdigest()
        self.blobs[name] = text
        return {"$blob": name}

    def items(self, ns: str, channel: str, first: int, rows: Sequence[Row]) -> None:
        """Append items to a log, one line each; an opaque row gets one line."""
        number = first
        for row in rows:
            if row.body.startswith(OPAQUE):
                count = row.count if row.count > 1 else None
                self.add("item", ns, ch=channel, n=number, c=count, v=self.value(body_to_json(row.body)))
                number += row.count
                continue
            for value in items_to_json(open_frame(row.body)):
                self.add("item", ns, ch=channel, n=number, v=self.value(value))
                number += 1

    def checkpoint(self, record: Record, seq: int, header: bytes, marks: Sequence[str] = ()) -> None:
        """Append an entry and the marks of its thread."""
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
            marks=marks or None,
            ch={channel: ref_to_json(ref) for channel, ref in entry.refs.items()},
            head=self.value(body_to_json(header)),
        )

    def writes(self, ns: str, checkpoint_id: str, batch: Batch) -> None:
        """Append the writes of a task."""
        w = items = None
        marks, values = batch.terms or None, body_to_json(batch.body)
        if isinstance(values, list) and _are_heads(values[0], len(values) - 1):
            w = [[*head, self.value(value)] for head, value in zip(values[0], values[1:], strict=True)]
        else:
            items = self.value(values)
        task, path = batch.task_id, batch.task_path
        self.add("writes", ns, id=checkpoint_id, task=task, path=path, marks=marks, w=w, items=items)


def body_to_json(body: bytes) -> Any:
    """Return a body in the form of a line: as JSON, or its bytes if sealed."""
    if body.startswith(OPAQUE):
        return {"$sealed": b2a_base64(body, newline=False).decode()}
    return items_to_json(open_frame(body))


def _are_heads(heads: Any, count: int) -> bool:
    """Return whether this is [[channel, index], ...], as Keel's serializer writes it."""
    return isinstance(heads, list) and len(heads) == count and all(type(h) is list and len(h) == 2 for h in heads)


def ref_to_json(ref: Ref) -> Any:
    """Return a reference in the form of a line."""
    return {ref.kind.name.lower(): ref.runs} if ref.runs or ref.kind is not Kind.INLINE else "inline"


def ref_from_json(shown: Any) -> Ref:
    """Return a reference from a line."""
    if shown == "inline":
        return Ref(Kind.INLINE)
    [(kind, runs)] = shown.items()
    return Ref(_KINDS[kind], tuple(map(_run, runs)))


def _run(pair: Any) -> Run:
    lo, hi = pair
    if not (type(lo) is type(hi) is int and 0 <= lo < hi):
        raise ValueError(f"{pair!r} is not a run of items")
    return lo, hi


def blobs_in(fields: Mapping[str, Any]) -> Iterator[str]:
    """Return the names of the blobs to which a record refers."""
    values = [fields.get("v"), fields.get("head"), fields.get("items"), *(part[-1] for part in fields.get("w") or ())]
    return (value["$blob"] for value in values if isinstance(value, dict) and "$blob" in value)


class Bodies:
    """Makes bodies from lines; `load` returns the content of a blob."""

    def __init__(self, load: Callable[[str], bytes], where: str) -> None:
        self._load = load
        self._where = where

    def of(self, body: bytes) -> bytes:
        """Return the body of a line; a body is returned unchanged."""
        if not isinstance(body, Line):
            return body
        try:
            return self._make(body)
        except (CorruptStore, ValueError, TypeError, LookupError) as error:
            raise CorruptStore(f"{self._where}: the record at byte {body.offset} has no value: {error}") from error

    def _make(self, body: Line) -> bytes:
        fields, blobs = orjson.loads(memoryview(body)), list[bytes]()
        whole = self._value(next((fields[name] for name in ("v", "head", "items") if name in fields), None), blobs)
        if is_sealed(whole):
            return a2b_base64(whole["$sealed"], strict_mode=True)
        values = self._values(fields, whole, blobs)
        text = b"".join([body.replace(b'"$blob"', b"", len(blobs)), *blobs]) if blobs else body
        return raw_frame(pack_items(values, text))

    def check(self, fields: Mapping[str, Any], line: Line) -> None:
        """Check that the body of a record can be made."""
        if fields["k"] in ("item", "ckpt", "writes"):
            self.of(line)

    def _values(self, fields: Mapping[str, Any], whole: Any, blobs: list[bytes]) -> Sequence[Any]:
        if "v" in fields:
            return [whole]
        if "w" in fields:
            return [[part[:2] for part in fields["w"]], *(self._value(part[2], blobs) for part in fields["w"])]
        values: Sequence[Any] = whole
        return values

    def _value(self, value: Any, blobs: list[bytes]) -> Any:
        """Return a value, from its blob if it has one; add that to `blobs`."""
        if isinstance(value, dict) and "$blob" in value:
            blobs.append(self._load(value["$blob"]))
            return orjson.loads(blobs[-1])
        return value


def entry_in(fields: Mapping[str, Any], line: Line, stamp: str, address: Any) -> Record:
    """Return the entry of a record."""
    try:
        refs = {channel: ref_from_json(shown) for channel, shown in fields["ch"].items()}
        entry = Entry(address, fields.get("parent"), stamp, line, refs, fields.get("run"))
        return Record(entry, not fields.get("fork"), fields["at"], bool(fields.get("ghost")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptStore(f"a checkpoint does not parse: {error!r}") from error


Records = list[tuple[dict[str, Any], Line]]


class Unknown(Exception):
    """Raised if the newest part of a thread does not contain the answer."""


class _Older:
    """A placeholder for the records that were not read."""

    def __getattr__(self, name: str) -> NoReturn:
        raise Unknown


class _Part(dict[Any, Any]):
    """The newest part of a dictionary; `is_new`: whether the rest lacks a key."""

    def __init__(self, content: Mapping[Any, Any], is_new: Callable[[Any], bool]) -> None:
        super().__init__({_Older: _Older(), **content})
        self._is_new = is_new

    def get(self, key: Any, default: Any = None) -> Any:
        if not super().__contains__(key) and not self._is_new(key):
            raise Unknown
        return super().get(key, default)

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self.get(key)
        return super().setdefault(key, default)

    def items(self) -> Any:
        raise Unknown


class _LogPart(Log):
    def find_rows(self, runs: Sequence[Run]) -> Sequence[Row]:
        rows = super().find_rows(runs)
        if not {*chain(*starmap(range, runs))} <= {*chain(*(range(row.lo, row.lo + row.count) for row in rows))}:
            raise Unknown
        return rows


class Newest(Thread):
    """The newest checkpoints, with items and writes; no other has an id over `most`."""

    def __init__(self, thread: Thread, most: str) -> None:
        super().__init__(
            thread.epoch,
            _Part(thread.records, lambda stamp: False),
            _Part(thread.ids, lambda key: key[1] > most),
            thread.logs,
            _Part({(ns, str(name)): [] for ns, name in thread.ids} | thread.batches, lambda key: key[1] > most),
        )
        self.known = {ns for ns, _ in thread.ids}  # namespaces whose item logs all have a known end

    def log(self, namespace: str, channel: str) -> Log:
        """Return the known part of the item log of a channel, empty if the channel is new."""
        found = self.logs.get((namespace, channel))
        if found is None and namespace not in self.known:
            raise Unknown
        return _LogPart(found.rows, found.end) if found else _LogPart()


@dataclass(slots=True)
class _Tail:
    """The items at the end of a log that do not fill a row yet."""

    lo: int = 0
    payloads: list[bytes] = field(default_factory=list)
    nbytes: int = 0

    @property
    def row(self) -> Row:
        payloads = self.payloads
        return Row(self.lo, len(payloads), raw_frame(array_header(len(payloads)) + b"".join(payloads)))


class Replica:
    """A thread, made from the part of its log that was read."""

    def __init__(self, thread_id: str, migrations: Migrations) -> None:
        self.thread_id = thread_id
        self._migrations = migrations
        self.thread: Thread | None = None  # until something is read
        self.seq = 0  # the highest sequence number ever used
        self.end = 0  # the end of the last complete transaction
        self.last = Line()  # the last line before `end`
        self.is_closed = True  # whether `last` has its line feed
        self.nbytes = 0  # its approximate size in memory
        self._stamps: dict[int, str] = {}
        self._tails: dict[tuple[str, str], _Tail] = {}
        # For the next index:
        self._due = EACH  # the size of the log from which an index is due
        self._newest = deque[Record](maxlen=NEWEST)
        self._most = ""  # no other checkpoint has a greater id
        self._early = set[tuple[str, str]]()  # checkpoints that have writes but are not stored yet
        # Places of items by namespace and channel, with the number after each item.
        self._places = defaultdict[str, dict[str, list[tuple[int, Run]]]](dict)

    def begin(self, handle: int, at: int, index: Line, where: str) -> None:
        """Apply the lines listed by an index that begins at byte `at` of the log."""
        try:
            fields = parse_line(index)
            if fields["at"] != at:
                raise ValueError("lines before the index were changed")
            for begin, stop in fields["lines"]:
                if not self.end <= begin < stop <= at:
                    raise ValueError("the index is damaged")
                data, self.end = os.pread(handle, stop - begin, begin), stop
                if self.thread is None:
                    self._check_format(data, where)
                for self.last in lines_in(data, begin):
                    self.apply(parse_line(self.last), self.last)
                self.nbytes += 2 * len(data)
            assert self.thread is not None
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError, CorruptStore) as error:
            raise Unknown from error
        self._most = max(self._most, fields["most"])
        self.thread, self.end = Newest(self.thread, self._most), at

    def read(self, data: bytes, where: str) -> None:
        """Apply the log from `end` on."""
        if self.thread is None:
            self._check_format(data, where)
        size = 0
        for records, size in transactions(data, self.end, where):  # noqa: B007
            for fields, self.last in records:
                try:
                    self.apply(fields, self.last)
                except (KeyError, TypeError, ValueError, AttributeError, CorruptStore) as error:
                    at = self.last.offset
                    raise CorruptStore(f"{where}: the record at byte {at} does not fit: {error}") from error
        if self.thread is None:
            # A log is complete before it gets its name, so no interrupted write leaves one without its first line.
            raise CorruptStore(f"{where}: damage at byte 0: the first line of the thread is missing")
        for key, tail in self._tails.items():
            if tail.payloads:
                self.thread.logs[key].rows[tail.lo] = tail.row
        self.end += size
        if size:
            self.is_closed = data[size - 1 : size] == b"\n"
            self.nbytes += 2 * size

    def add_index(self, draft: Draft) -> None:
        """Start a transaction with an index, if one is due."""
        thread, begin = self.thread, self.end + (not self.is_closed)
        if thread is None or begin < self._due:
            return
        graph = graph_of(Thread(thread.epoch, {record.entry.stamp: record for record in self._newest}))
        self._early = {key for key in self._early if key[1] > self._most}
        keys = {(node.address.checkpoint_ns, str(node.address.checkpoint_id)) for node in graph.nodes}
        bodies: list[Any] = [node.header for node in graph.nodes]
        bodies += [batch.body for key in keys | self._early for batch in thread.batches.get(key, ())]
        lines, live = [self._first, *(line.place for line in bodies)], live_runs(graph)
        namespaces = {ns for ns, _ in keys}
        if isinstance(thread, Newest) and not namespaces <= thread.known:
            raise Unknown
        for ns in namespaces:
            for channel, places in self._places[ns].items():
                lines.append(places[-1][1])  # gives the number of the next item
                for lo, hi in live.get((ns, channel), ()):
                    first, last = bisect_left(places, (lo + 1,)), bisect_left(places, (hi,))
                    lines += [place for _, place in places[first : last + 1]]
        draft.add("index", at=begin, most=self._most, lines=merge_runs(lines))

    def apply(self, fields: dict[str, Any], line: Line) -> None:
        """Apply one record."""
        kind = fields["k"]
        if (kind == "thread") is not (self.thread is None):
            raise CorruptStore("a log must begin with its thread, and contain only one")
        getattr(self, f"_apply_{kind}")(fields, line)

    def _check_format(self, data: bytes, where: str) -> None:
        """Check the format first: in another format, nothing else may be readable."""
        found = format_in(data)
        if found is not None and find_due(self._migrations, found, where):
            raise refuse_older(where, found, newest(self._migrations), "the rest of the store has that format")

    def _apply_thread(self, fields: dict[str, Any], line: Line) -> None:
        self.thread = Thread(epoch=str(fields["epoch"]))
        self.seq, self._first = int(fields["seq"]), line.place

    def _apply_index(self, fields: dict[str, Any], line: Line) -> None:
        if fields["at"] == line.offset:  # otherwise it came from another log, and is ignored
            self._due = line.offset + max(EACH, SHARE * len(line))

    def _log(self, fields: dict[str, Any]) -> Log:
        assert self.thread is not None
        return self.thread.logs.setdefault((fields.get("ns", ""), fields["ch"]), Log())

    def _apply_item(self, fields: dict[str, Any], line: Line) -> None:
        log, number, value = self._log(fields), fields["n"], fields["v"]
        if number < log.end:
            raise CorruptStore(f"item {number} of {fields['ch']!r} is stored twice: two histories in one log?")
        tail = self._tails.setdefault((fields.get("ns", ""), fields["ch"]), _Tail())
        count = fields.get("c", 1)
        is_row = is_opaque(value)
        if is_row or number != tail.lo + len(tail.payloads):
            self._close_tail(log, tail, number)
        if is_row:
            log.rows[number] = Row(number, count, line)
            tail.lo = number + count
        else:
            tail.payloads.append(pack_item(value, line))
            tail.nbytes += len(tail.payloads[-1])
            if is_full(len(tail.payloads), tail.nbytes):
                self._close_tail(log, tail, number + 1)
        log.end = number + (count if is_row else 1)
        self._note_end(log, fields, line)

    def _close_tail(self, log: Log, tail: _Tail, number: int) -> None:
        if tail.payloads:
            log.rows[tail.lo] = tail.row
        tail.lo, tail.payloads, tail.nbytes = number, [], 0

    def _apply_end(self, fields: dict[str, Any], line: Line) -> None:
        log = self._log(fields)
        log.end = max(log.end, int(fields["n"]))
        self._note_end(log, fields, line)

    def _note_end(self, log: Log, fields: dict[str, Any], line: Line) -> None:
        self._places[fields.get("ns", "")].setdefault(fields["ch"], []).append((log.end, line.place))

    def _apply_ckpt(self, fields: dict[str, Any], line: Line) -> None:
        assert self.thread is not None
        seq = int(fields["seq"])
        newest = next(reversed(self._stamps), 0)
        if seq <= newest:
            raise CorruptStore(f"checkpoint {fields['id']!r} has the number {seq} after {newest}: two histories?")
        self.seq = max(seq, self.seq)
        stamp = self._stamps[seq] = f"{self.thread.epoch}.{seq}.{line.crc}"
        address = Address(self.thread_id, fields.get("ns", ""), fields["id"])
        record = entry_in(fields, line, stamp, address)
        self.thread.keep(record)
        if len(self._newest) == NEWEST:
            self._most = max(self._most, str(self._newest[0].entry.address.checkpoint_id))
        self._newest.append(record)
        self._early.discard((address.checkpoint_ns, fields["id"]))

    def _apply_writes(self, fields: dict[str, Any], line: Line) -> None:
        assert self.thread is not None
        place = fields.get("ns", ""), fields["id"]
        if place not in self.thread.ids:
            self._early.add(place)
        self.thread.batches.setdefault(place, []).append(
            Batch(fields["task"], fields["path"], line, tuple(fields.get("marks", ())))
        )

    def _apply_gone(self, fields: dict[str, Any], line: Line) -> None:
        assert self.thread is not None
        self._due = MOST  # no more indexes: the log is soon rewritten without these checkpoints
        for seq in fields["seq"]:
            self.thread.forget(self._stamps.get(seq, ""))
        for number, channels in fields["ghosts"].items():
            self.thread.make_ghost(self._stamps.get(int(number), ""), channels)


def format_in(data: bytes) -> int | None:
    """Return the format from the first line of a log; `None` if the line is damaged."""
    with suppress(ValueError, KeyError, TypeError):
        found = unseal(data[: max(data.find(b"\n"), 0)])["format"]
        return found if type(found) is int else None
    return None


def read_end(handle: int, whole: bool) -> tuple[int, bytes]:
    """Return the offset of a log's last index and the log from there; or 0 and all."""
    size, length = os.fstat(handle).st_size, EACH
    while not whole and length < min(size, _FAR):
        data = read(handle, size - length)
        at = data.rfind(MARK) + 1
        if at:
            return size - length + at, data[at:]
        length *= 4
    return 0, read_lines(handle)


def read_committed(
    data: bytes, base: int, where: str, parse: Callable[[bytes], dict[str, Any]] = parse_line
) -> tuple[Records, int]:
    """Return the records of all complete transactions, and their size in bytes."""
    found, size = list[tuple[dict[str, Any], Line]](), 0
    for records, size in transactions(data, base, where, parse):  # noqa: B007
        found += records
    return found, size


def transactions(
    data: bytes, base: int, where: str, parse: Callable[[bytes], dict[str, Any]] = parse_line
) -> Iterator[tuple[Records, int]]:
    """Return the records and the end of each complete transaction."""
    pending: Records = []
    end = 0
    for line in lines_in(data, base):
        try:
            fields = parse(line)
        except ValueError as error:
            if is_torn(data[end:]):
                break
            at = line.offset
            message = f"damage at byte {at}: {error}. The log before it is intact; run `keel check` for details"
            if line.startswith((CONFLICT, b"=======", b">>>>>>> ")):
                message = (
                    f"git has left a conflict at byte {at}: both branches continued this thread. Run `keel check` to "
                    "compare the branches"
                )
            raise CorruptStore(f"{where}: {message}") from error
        pending.append((fields, line))
        if fields["k"] in COMMITS:
            end = min(line.offset - base + len(line) + 1, len(data))
            yield pending, end
            pending = []


def lines_in(data: bytes, base: int = 0) -> Iterator[Line]:
    """Return the lines of a log, including damaged ones."""
    at = 0
    while at < len(data):
        stop = data.find(b"\n", at)
        stop = len(data) if stop < 0 else stop
        line = Line(data[at:stop])
        line.offset = base + at
        yield line
        at = stop + 1


def is_torn(rest: bytes) -> bool:
    """Return whether the rest of a log is a single interrupted write.

    Such a write is cut short. After a power cut, sectors may be missing, and read as NUL, which JSON never contains.
    Nothing follows an interrupted write, because the next write waits until this one is on disk.
    """
    *lines, last = lines_in(rest)
    if rest.endswith(b"\n"):
        lines.append(last)
    elif last[-1:] != b"\0" and _is_sound(last[:-1]):  # a NUL is a sector of this byte alone
        return False  # another byte replaces its line feed
    is_cut = all(line.find(b"\0") >= 0 or _is_sound(line) for line in lines)
    return is_cut and all(_is_of_one_write(piece, rest) for piece in re.finditer(rb"[^\0\n]+", rest))


def _is_of_one_write(piece: re.Match[bytes], rest: bytes) -> bool:
    """Return whether a piece can belong to the write that left `rest`.

    A record that commits must be the last one, and its items must reach back to the beginning of `rest` (or to the byte
    after a missing line feed there).
    """
    if not _is_sound(piece[0]) or (fields := parse_line(piece[0]))["k"] not in COMMITS:
        return True
    begins = piece.start() - int(fields.get("span", 0))
    return begins in (0, 1) and piece.end() == len(rest) - 1


def _is_sound(line: bytes) -> bool:
    try:
        return bool(parse_line(line))
    except ValueError:
        return False
