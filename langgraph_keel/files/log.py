"""One log: the transactions in it, and the thread that they make.

The thread is a function of the log: what this process writes, it reads again like what others wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph_keel.core.frames import raw_frame
from langgraph_keel.core.model import Log, Thread
from langgraph_keel.core.records import Address, Batch, Row
from langgraph_keel.core.rows import is_full
from langgraph_keel.core.serde import array_header
from langgraph_keel.errors import CorruptStore, NewerFormat
from langgraph_keel.files.lines import COMMITS, FORMAT, Line, entry_in, parsed
from langgraph_keel.files.values import packed_item

Records = list[tuple[dict[str, Any], Line]]
CONFLICT = b"<<<<<<< "


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
    """A thread as its log tells it, as far as the log was read.

    Attributes:
        thread: `None` while nothing was read.
        seq: The highest sequence number that was ever given.
        end: Where the last complete transaction ends.
        last: The last line before that.
        is_closed: Whether that line has its line feed.
        nbytes: About what it takes in memory.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.thread: Thread | None = None
        self.seq = 0
        self.end = 0
        self.last = b""
        self.is_closed = True
        self.nbytes = 0
        self._stamps: dict[int, str] = {}
        self._tails: dict[tuple[str, str], _Tail] = {}

    def read(self, data: bytes, where: str) -> None:
        """Take in what stands in the log from `end` on.

        Raises:
            CorruptStore: There is damage that no interrupted write leaves; nothing was taken in.
            NewerFormat: A newer Keel wrote it.
        """
        records, size = committed(data, self.end, where)
        for fields, line in records:
            try:
                self.apply(fields, line)
            except NewerFormat as error:
                raise NewerFormat(f"{where}: {error}") from error
            except (KeyError, TypeError, ValueError, AttributeError, CorruptStore) as error:
                raise CorruptStore(f"{where}: the record at byte {line.offset} does not fit: {error}") from error
        if self.thread is None:
            # A log is made as a whole before it has its name: no interrupted write leaves it so.
            raise CorruptStore(f"{where}: damage at byte 0: it does not begin with its thread")
        self._settle()
        self.end += size
        if records:
            self.last = records[-1][1]
            self.is_closed = data[size - 1 : size] == b"\n"
            self.nbytes += 2 * size

    def apply(self, fields: dict[str, Any], line: Line) -> None:
        """Take in one record.

        Raises:
            CorruptStore: It cannot follow the others.
        """
        kind = fields["k"]
        if (kind == "thread") is not (self.thread is None):
            raise CorruptStore("a log begins with its thread, and holds only one")
        getattr(self, f"_apply_{kind}")(fields, line)

    def _apply_thread(self, fields: dict[str, Any], line: Line) -> None:
        if fields["format"] > FORMAT:
            raise NewerFormat(f"written in format {fields['format']} by a newer Keel; this one knows {FORMAT}: upgrade")
        self.thread = Thread(epoch=str(fields["epoch"]))
        self.seq = int(fields["seq"])

    def _log(self, fields: dict[str, Any]) -> Log:
        assert self.thread is not None
        return self.thread.log(fields.get("ns", ""), fields["ch"])

    def _apply_item(self, fields: dict[str, Any], line: Line) -> None:
        log, number, value = self._log(fields), fields["n"], fields["v"]
        if number < log.end:
            raise CorruptStore(f"item {number} of {fields['ch']!r} is there twice: two histories in one log?")
        tail = self._tails.setdefault((fields.get("ns", ""), fields["ch"]), _Tail())
        is_blob = isinstance(value, dict) and "$blob" in value
        if is_blob or number != tail.lo + len(tail.payloads):
            self._close(log, tail, number)
        if is_blob:
            log.rows[number] = Row(number, 1, line)
            tail.lo = number + 1
        else:
            tail.payloads.append(packed_item(value, line))
            tail.nbytes += len(tail.payloads[-1])
            if is_full(len(tail.payloads), tail.nbytes):
                self._close(log, tail, number + 1)
        log.end = number + 1

    def _close(self, log: Log, tail: _Tail, number: int) -> None:
        if tail.payloads:
            log.rows[tail.lo] = tail.row
        tail.lo, tail.payloads, tail.nbytes = number, [], 0

    def _settle(self) -> None:
        for key, tail in self._tails.items():
            if tail.payloads and self.thread is not None:
                self.thread.logs[key].rows[tail.lo] = tail.row

    def _apply_end(self, fields: dict[str, Any], line: Line) -> None:
        log = self._log(fields)
        log.end = max(log.end, int(fields["n"]))

    def _apply_ckpt(self, fields: dict[str, Any], line: Line) -> None:
        assert self.thread is not None
        seq = int(fields["seq"])
        newest = next(reversed(self._stamps), 0)
        if seq <= newest:
            raise CorruptStore(f"checkpoint {fields['id']!r} has the number {seq} after {newest}: two histories?")
        self.seq = max(seq, self.seq)
        stamp = self._stamps[seq] = f"{self.thread.epoch}.{seq}.{line.crc}"
        address = Address(self.thread_id, fields.get("ns", ""), fields["id"])
        self.thread.keep(entry_in(fields, line, stamp, address))

    def _apply_writes(self, fields: dict[str, Any], line: Line) -> None:
        assert self.thread is not None
        place = fields.get("ns", ""), fields["id"]
        self.thread.batches.setdefault(place, []).append(Batch(fields["task"], fields["path"], line))

    def _apply_gone(self, fields: dict[str, Any], line: Line) -> None:
        assert self.thread is not None
        for seq in fields["seq"]:
            self.thread.forget(self._stamps.get(seq, ""))
        for number, channels in fields["ghosts"].items():
            self.thread.make_ghost(self._stamps.get(int(number), ""), channels)


def committed(data: bytes, base: int, where: str) -> tuple[Records, int]:
    """Return the records of all complete transactions, and how many bytes they take.

    Args:
        data: What stands in the log from the byte `base` on, where a transaction begins.
        base: Counted from the beginning of the log.
        where: How messages name the log.

    Raises:
        CorruptStore: There is damage that no interrupted write leaves.
    """
    records: Records = []
    pending: Records = []
    end = 0
    for line in lines_in(data, base):
        try:
            fields = parsed(line)
        except ValueError as error:
            if is_torn(data[end:]):
                break
            raise CorruptStore(_damage(where, line, error)) from error
        pending.append((fields, line))
        if fields["k"] in COMMITS:
            records += pending
            pending, end = [], min(line.offset - base + len(line) + 1, len(data))
    return records, end


def lines_in(data: bytes, base: int = 0) -> Iterator[Line]:
    """Return the lines of a log, damaged ones too."""
    at = 0
    while at < len(data):
        stop = data.find(b"\n", at)
        stop = len(data) if stop < 0 else stop
        line = Line(data[at:stop])
        line.offset = base + at
        yield line
        at = stop + 1


def is_torn(rest: bytes) -> bool:
    """Return whether what follows the last complete transaction is one write that was interrupted.

    Such a write is cut short; or, after a power cut, sectors of it were never written and read as NUL, which JSON
    never holds. Nothing follows it, as the next one waits until it is on disk.
    """
    *lines, last = lines_in(rest)
    if rest.endswith(b"\n"):
        lines.append(last)
    elif _is_sound(last[:-1]):
        return False  # what it lacks is its line feed, in the place of which stands something else
    is_cut = all(line.find(b"\0") >= 0 or _is_sound(line) for line in lines)
    return is_cut and all(_is_of_one_write(piece, rest) for piece in re.finditer(rb"[^\0\n]+", rest))


def _is_of_one_write(piece: re.Match[bytes], rest: bytes) -> bool:
    """Return whether what stands between NULs and line feeds can be of the one write that `rest` is.

    A record that commits is so only if it is the last, and its items reach back to the beginning of `rest` (or to
    after a line feed that was missing there).
    """
    if not _is_sound(piece[0]) or (fields := parsed(piece[0]))["k"] not in COMMITS:
        return True
    begins = piece.start() - int(fields.get("span", 0))
    return fields["k"] == "ckpt" and begins in (0, 1) and piece.end() == len(rest) - 1


def _is_sound(line: bytes) -> bool:
    try:
        return bool(parsed(line))
    except ValueError:
        return False


def _damage(where: str, line: Line, error: ValueError) -> str:
    at = line.offset
    if line.startswith((CONFLICT, b"=======", b">>>>>>> ")):
        return (
            f"{where}: git has left a conflict at byte {at}: both branches went on with this thread. "
            "`keel check` says what each of them holds"
        )
    return f"{where}: damage at byte {at}: {error}. What stands before is sound; `keel check` says more"


def tail_records(data: bytes) -> Sequence[dict[str, Any]]:
    """Return the records among the last bytes of a log that can be read, the first of them cut off or not."""
    fields = []
    for line in lines_in(data):
        try:
            fields.append(parsed(line))
        except ValueError:
            continue
    return fields
