"""Stored bytes: packed elements, frames, and the rows of an item log.

*Frame*: one byte for its kind (`0x00` raw, `0x01` one zstandard frame with its content size in the header), four bytes
of checksum (the low half of the XXH3-64 of the rest, seeded with the first byte, big endian), and the rest. The
checksum is needed because SQLite has none: without it, 29 of 600 flipped bits gave wrong values.

*Small body*, as stored by Redis and PostgreSQL: kind `0x02`, the checksum of the raw frame, and one zstandard frame
made with a dictionary of the names that every checkpoint repeats. A header of 260 bytes takes 75. The dictionary,
`boilerplate.dict`, is part of the stored format and is never rebuilt. It contains two kilobytes of headers and empty
messages, as written by Keel's serializer, after 162 bytes of entropy tables that zstandard trained on English prose.

*Row*: a frame around a msgpack array of items. A write appends its new items as a separate row. When enough such rows
are adjacent, one packed row replaces them.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from math import inf
from operator import attrgetter
from pkgutil import get_data
from typing import Any, cast

import xxhash
import zstandard

from langgraph_keel.engine.records import NEW, Row, Run, record
from langgraph_keel.errors import BlobLost, BlobsMissing, CorruptStore, KeyMissing, StoreError

# By the first byte of an element: its size without its parts, and the number of parts.
_FIXED: dict[int, tuple[int, int]] = {
    **dict.fromkeys((*range(0x80), 0xC0, 0xC2, 0xC3, *range(0xE0, 0x100)), (1, 0)),
    **{0x80 | n: (1, 2 * n) for n in range(16)},
    **{0x90 | n: (1, n) for n in range(16)},
    **{0xA0 | n: (1 + n, 0) for n in range(32)},
    **{0xCA: (5, 0), 0xCB: (9, 0)},
    **{first + n: (1 + (1 << n), 0) for first in (0xCC, 0xD0) for n in range(4)},
    **{0xD4 + n: (2 + (1 << n), 0) for n in range(5)},
}
# By the first byte: the size of the length field, the size of the bytes between that and the payload, and the number
# of parts per unit of length (0 if the length counts bytes).
_SIZED: dict[int, tuple[int, int, int]] = {
    **{first + n: (1 << n, 0, 0) for first in (0xC4, 0xD9) for n in range(3)},
    **{0xC7 + n: (1 << n, 1, 0) for n in range(3)},
    **{0xDC + n: (2 << n, 0, 1) for n in range(2)},
    **{0xDE + n: (2 << n, 0, 2) for n in range(2)},
}

MAX_BYTES = 1 << 30
"""Default memory limit of a stored value, in bytes; also SQLite's limit for a row."""
MOST_MEMORY = 200
"""Maximum memory, in bytes, per packed byte: an empty deque takes about 800 for five."""
_MOST_BUT_CONTAINERS = 40
_CHUNK = 1 << 20
WIDE = 4096
"""Size in bytes above which the memory estimate checks whether a text is ASCII."""
_CONTAINERS = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))

_MOST_COUNTED = 1 << 23
"""Maximum number of elements counted one by one, which takes some seconds. The rest is estimated by its bytes."""

RAW = b"\x00"
ZSTD = b"\x01"
HEAD = 5
"""Size of the kind and the checksum of a frame, in bytes."""
WORTHWHILE = 4096
"""Size in bytes below which compression is not worthwhile, as zstandard releases the GIL."""
MAX_CONTENT = 1 << 30
"""Default limit of a frame's content, 1 GiB. A larger size indicates damage or an attack."""

_ABSENT_SIZE = 60

WITH_DICTIONARY = b"\x02"
SEALED = b"\x03"
"""The kind of sealed bodies (`keys.sealing`). Stores do not look into them."""
BLOB = b"\x04"
"""The kind of references to objects that contain a body (`blobs.store`). Stores do not look into them."""
LOST = b"\x05"
"""The kind of placeholders for bodies whose object is gone. Passed to readers, and never stored."""
ABSENT = (BLOB, LOST)
"""First bytes of references to bodies that are elsewhere or lost."""
OPAQUE = (SEALED, BLOB)
"""First bytes of bodies that stores keep unchanged."""
SMALL = 4096
"""Maximum size, in bytes, of a frame that is compressed with the dictionary."""
SHRUNK = 1 << 20
"""Maximum content of a small body, in bytes. A small frame with more, highly repetitive content is kept as it is."""

# Read at import, because the first use of a saver may be in a running event loop.
_DICTIONARY = zstandard.ZstdCompressionDict(
    cast(bytes, get_data(__package__, "boilerplate.dict")), dict_type=zstandard.DICT_TYPE_FULLDICT
)

MOST_IN_ROW = 0xFFFFFFFF
"""Maximum number of items in a row: msgpack's limit for an array."""

PACK = 32
"""Items in a packed row, unless they are tiny or huge."""
TINY_ROW = 4096
HUGE_ROW = 65536
MOST_ITEMS = 1024

# -- packed elements ---------------------------------------------------------------------------------------------------
# ormsgpack does not report the ends of an array's elements, and does not limit the memory that it uses for them.


def array_header(n: int) -> bytes:
    """Return the msgpack header of an array of `n` elements."""
    if n < 16:
        return bytes((0x90 | n,))
    return struct.pack(">BH", 0xDC, n) if n < 0x10000 else struct.pack(">BI", 0xDD, n)


def _measure(data: bytes, at: int) -> tuple[int, int]:
    """Return the size without parts, and the number of parts, by the length field."""
    sized = _SIZED.get(data[at])
    if sized is None:
        raise CorruptStore(f"stored bytes contain {data[at]:#x}, which msgpack never uses")
    width, between, parts = sized
    length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
    return (1 + width, length * parts) if parts else (1 + width + between + length, 0)


def element_end(data: bytes, at: int) -> int:
    """Return the end of the element that begins at `at`."""
    missing, end, fixed = 1, len(data), _FIXED
    while missing:
        if at >= end:
            raise CorruptStore("stored bytes end within a value")
        size, parts = fixed.get(data[at]) or _measure(data, at)
        at += size
        missing += parts - 1
    if at > end:
        raise CorruptStore("stored bytes end within a value")
    return at


def split_array(content: bytes) -> list[bytes]:
    """Return the bytes of each element of a msgpack array."""
    if not content or not (content[0] & 0xF0 == 0x90 or content[0] in (0xDC, 0xDD)):
        raise CorruptStore("stored items are not an array")
    at, count = _FIXED.get(content[0]) or _measure(content, 0)
    parts = []
    for _ in range(count):
        end = element_end(content, at)
        parts.append(content[at:end])
        at = end
    if at != len(content):
        raise CorruptStore("stored bytes continue after the end of the items")
    return parts


def _cost(first: int) -> int:
    """Return an object's memory without its payload, by its element's first byte."""
    if first in _CONTAINERS or 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8:  # lists, dicts, leaves and records
        return MOST_MEMORY
    if 0xCA <= first <= 0xD3:  # numbers
        return 40
    return 60 if 0xA0 <= first < 0xE0 and first not in (0xC0, 0xC2, 0xC3) else 8  # text and bytes; singletons


_COSTS = bytes(map(_cost, range(256)))
_ALIKE = {cost: bytes(first for first in range(256) if _COSTS[first] == cost) for cost in set(_COSTS)}


def takes_more(data: bytes, limit: int) -> bool:
    """Return whether packed objects would take more than about `limit` bytes of memory.

    The length decides most cases, and the number of bytes that may begin a list or a dict (1 ns a byte) most others.
    Otherwise the elements are walked.
    """
    if len(data) * MOST_MEMORY <= limit:
        return False
    room = limit - len(data) * _MOST_BUT_CONTAINERS
    for start in range(0, len(data), _CHUNK):
        chunk = data[start : start + _CHUNK]
        room -= (len(chunk) - len(chunk.translate(None, _CONTAINERS))) * MOST_MEMORY
        if room < 0:
            return memory_of(data, limit) > limit
    return False


def memory_of(data: bytes, most: int) -> int:
    """Estimate the memory of packed objects, up to `most` (0.2 µs an element)."""
    at, end, taken, fixed, costs = 0, len(data), 0, _FIXED, _COSTS
    for _ in range(_MOST_COUNTED):
        if at >= end or taken > most:
            return taken
        first = data[at]
        size, parts = fixed.get(first) or _measure(data, at)
        taken += costs[first] + size + 8 * min(parts, end)
        if size > WIDE and not data[at + 5 : at + size].isascii():  # such a text may take four bytes a character
            taken += 3 * size
        at += size
    while at < end and taken <= most:  # an element takes at most as much as its bytes counted as elements
        chunk = data[at : at + _CHUNK]
        at += _CHUNK
        for cost, alike in _ALIKE.items():
            taken += (len(chunk) - len(chunk.translate(None, alike))) * (cost + 9)
    return taken


# -- frames ------------------------------------------------------------------------------------------------------------


class _Contexts(threading.local):
    """Contexts of zstandard, which threads must not share. Creating one costs 20 times a small compression."""

    @cached_property
    def compressor(self) -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor(level=3)

    @cached_property
    def decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor()

    @cached_property
    def small_compressor(self) -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor(level=1, dict_data=_DICTIONARY, write_dict_id=False)

    @cached_property
    def small_decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor(dict_data=_DICTIONARY)


_contexts = _Contexts()


def _checksum(kind: bytes, rest: bytes | memoryview) -> bytes:
    return xxhash.xxh3_64_digest(rest, seed=kind[0])[4:]


def frame(data: bytes) -> bytes:
    """Frame `data`, compressed if that saves at least a tenth."""
    if len(data) >= WORTHWHILE:
        packed = _contexts.compressor.compress(data)
        if len(packed) < len(data) * 0.9:
            return ZSTD + _checksum(ZSTD, packed) + packed
    return raw_frame(data)


def raw_frame(data: bytes) -> bytes:
    """Frame `data` without compression."""
    return RAW + xxhash.xxh3_64_digest(data)[4:] + data


def _open(body: bytes) -> tuple[bytes, memoryview]:
    """Return the kind of a frame and its rest."""
    if not isinstance(body, bytes) or len(body) < HEAD:
        raise CorruptStore(f"a stored body is not a frame: {body!r:.40}")
    return body[:1], memoryview(body)[HEAD:]


def open_frame(body: bytes, most: int = MAX_CONTENT) -> bytes:
    """Return the content of a frame."""
    if type(body) is bytes and len(body) >= HEAD and body[0] == 0:  # fast path: a state of 50 channels has 50 of these
        content = body[HEAD:]
        if xxhash.xxh3_64_digest(content)[4:] == body[1:HEAD]:
            return content
    kind, rest = _open(body)
    if kind == SEALED:
        raise KeyMissing(
            "this store is encrypted: open it with encryption=Keyring(...); for `keel`, set KEEL_KEYS_FILE"
        )
    if kind in ABSENT:
        raise refuse_absent(body)
    if kind not in (RAW, ZSTD):
        raise CorruptStore(f"a stored body begins with {kind!r}, which no version of Keel writes")
    _check(body, kind, rest)
    return bytes(rest) if kind == RAW else _decompress(_contexts.decompressor, rest, most)


def _check(body: bytes, kind: bytes, rest: memoryview) -> None:
    if body[1:HEAD] != _checksum(kind, rest):
        raise CorruptStore("a stored body does not match its checksum: bytes in the store have changed")


@record
class Absent:
    """A reference to a body that is kept in an object outside of the store."""

    store: bytes  # 8 bytes that identify the store that wrote the object
    token: bytes  # 8 bytes that identify the object among those of its thread
    digest: bytes  # SHA-256 of the body
    size: int  # bytes of the body
    count: int  # items in the body
    reason: str = ""  # why the object is missing, if it is


def absent_frame(absent: Absent) -> bytes:
    """Return the stored form of a reference, or, with a reason, a reader's placeholder."""
    kind = LOST if absent.reason else BLOB
    data = absent.store + absent.token + absent.digest + struct.pack(">QI", absent.size, absent.count)
    data += absent.reason.encode(errors="replace")
    return kind + _checksum(kind, data) + data


def read_absent(body: bytes) -> Absent | None:
    """Return the reference that replaces a body; `None` if it is a body."""
    if not body.startswith(ABSENT):
        return None
    kind, rest = _open(body)
    _check(body, kind, rest)
    data = bytes(rest)
    if len(data) < _ABSENT_SIZE or (kind == BLOB) is not (len(data) == _ABSENT_SIZE):
        raise CorruptStore("the reference to a stored body is damaged")
    size, count = struct.unpack_from(">QI", data, 48)
    return Absent(data[:8], data[8:16], data[16:48], size, count, data[_ABSENT_SIZE:].decode(errors="replace"))


def refuse_absent(body: bytes) -> StoreError:
    """Return the error for decoding a body in a lost or inaccessible object."""
    absent = read_absent(body)
    assert absent is not None
    if absent.reason:
        return BlobLost(absent.reason)
    return BlobsMissing(
        f"a value of {absent.size:,} bytes is kept in an object outside of this store: open it with "
        "blobs='s3://...' (or 'file:...'), as it was written; for `keel`, set KEEL_BLOBS (or pass --source-blobs to "
        "`keel copy`)"
    )


def check_present(bodies: Iterable[bytes]) -> None:
    """Check that no body is missing before they are stored again."""
    for body in bodies:
        if body.startswith(ABSENT):
            raise refuse_absent(body)


def stored_size(body: bytes) -> int:
    """Return the size of a body in bytes, in the store or in an object."""
    absent = read_absent(body)
    return len(body) + (absent.size if absent else 0)


def content_size(body: bytes) -> int:
    """Return the number of bytes that `open_frame(body)` would return."""
    kind, rest = _open(body)
    try:
        return zstandard.frame_content_size(rest) if kind == ZSTD else len(rest)
    except zstandard.ZstdError as error:
        raise CorruptStore(f"a stored body does not decompress: {error}") from error


def _decompress(decompressor: zstandard.ZstdDecompressor, data: bytes | memoryview, most: int) -> bytes:
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= most:
            raise CorruptStore(f"a stored body claims to contain {size} bytes")
        return decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptStore(f"a stored body does not decompress: {error}") from error


def shrink(body: bytes) -> bytes:
    """Return the small body of a frame, or the frame if that is not smaller."""
    if not HEAD < len(body) <= SMALL or body.startswith(OPAQUE) or content_size(body) > SHRUNK:
        return body
    data = open_frame(body)
    packed = _contexts.small_compressor.compress(data)
    if len(packed) >= len(body) - HEAD:
        return body
    return WITH_DICTIONARY + _checksum(RAW, data) + packed


def restore_frame(body: bytes) -> bytes:
    """Return the frame of a small body, or the body itself if it is a frame."""
    if body[:1] != WITH_DICTIONARY:
        return body
    return RAW + body[1:HEAD] + _decompress(_contexts.small_decompressor, body[HEAD:], SHRUNK)


# -- rows --------------------------------------------------------------------------------------------------------------


def numbers_of(runs: Sequence[Run]) -> list[int]:
    """Return the numbers in runs, in their order."""
    return [number for lo, hi in runs for number in range(lo, hi)]


def resolve(runs: Sequence[Run], first: int) -> tuple[Run, ...]:
    """Number new items in runs, starting with `first`, and join adjacent runs."""
    if len(runs) == 1:
        ((lo, hi),) = runs
        return ((lo, hi),) if lo < NEW else ((lo - NEW + first, hi - NEW + first),)
    joined: list[Run] = []
    for lo, hi in runs:
        if lo >= NEW:
            lo, hi = lo - NEW + first, hi - NEW + first
        if joined and joined[-1][1] == lo:
            lo = joined.pop()[0]
        joined.append((lo, hi))
    return tuple(joined)


def read_row(lo: int, count: Any, body: Any) -> Row:
    """Return a row from stored columns, after checking its count."""
    if type(count) is not int or not 0 < count <= MOST_IN_ROW:
        raise CorruptStore(f"a row of items has an invalid count: {count!r:.40}")
    return Row(lo, count, body)


_first_of = attrgetter("lo")
_ONE = array_header(1)


def is_full(count: int, nbytes: int) -> bool:
    """Return whether a row of `count` items in `nbytes` bytes is complete."""
    return nbytes >= HUGE_ROW or count >= MOST_ITEMS or (count >= PACK and nbytes >= TINY_ROW)


def body_of(payloads: Sequence[bytes]) -> bytes:
    """Return the framed body of a row of items."""
    return frame(array_header(len(payloads)) + b"".join(payloads))


def content_of(row: Row, opener: Callable[[bytes], bytes] = open_frame) -> bytes:
    """Return the joined packed items of a row. `opener` opens its frame."""
    content, header = opener(row.body), _ONE if row.count == 1 else array_header(row.count)
    if not content.startswith(header):
        raise CorruptStore(f"a row should contain {row.count} items, but has a different number")
    return content[len(header) :]


def raw_item(row: Row) -> bytes | None:
    """Return a row's single item if its frame is intact, small and raw; else `None`."""
    body = row.body
    if type(body) is bytes and body[:1] == RAW and len(body) <= HUGE_ROW:  # too small to exceed the memory limit
        content = body[HEAD:]
        if content[:1] == _ONE and xxhash.xxh3_64_digest(content)[4:] == body[1:HEAD]:
            return content[1:]
    return None


def rows_of(payloads: Sequence[bytes], lo: int = NEW, alone: float = inf) -> tuple[Row, ...]:
    """Distribute items to rows, numbered from `lo`.

    An item of more than `alone` bytes gets its own row.
    """
    if len(payloads) == 1:
        return (Row(lo, 1, body_of(payloads)),)
    stretches = _stretches(payloads, alone)
    return tuple(Row(lo + start, stop - start, body_of(payloads[start:stop])) for start, stop in stretches)


def _stretches(payloads: Sequence[bytes], alone: float) -> Iterator[tuple[int, int]]:
    start = nbytes = 0
    for end, payload in enumerate(payloads, 1):
        is_alone = len(payload) > alone
        if is_alone and start < end - 1:
            yield start, end - 1
            start, nbytes = end - 1, 0
        nbytes += len(payload)
        if is_alone or is_full(end - start, nbytes):
            yield start, end
            start, nbytes = end, 0
    if start < len(payloads):
        yield start, len(payloads)


def number_rows(rows: Sequence[Row], first: int) -> tuple[Row, ...]:
    """Return new rows with real numbers, starting with `first`."""
    return tuple([Row(row.lo - NEW + first, row.count, row.body) for row in rows])


def row_index(rows: Sequence[Row], number: int) -> int:
    """Return the position of the row that contains item `number`."""
    at = bisect_right(rows, number, key=_first_of) - 1
    if at < 0 or number >= rows[at].lo + rows[at].count:
        raise CorruptStore(f"item {number} is missing from the item log")
    return at


def rows_in(rows: Sequence[Row], runs: Sequence[Run]) -> Sequence[Row]:
    """Return the rows that contain items of `runs`. Input and output are in order."""
    if are_all(rows, runs):
        return rows
    found, left = [], sorted(runs, reverse=True)
    for row in rows:
        while left and left[-1][1] <= row.lo:
            left.pop()
        if not left:
            break
        if left[-1][0] < row.lo + row.count:
            found.append(row)
    return found


def are_all(rows: Sequence[Row], runs: Sequence[Run]) -> bool:
    """Return whether ordered rows contain exactly the items of `runs`, a single run."""
    at, stop = runs[0] if len(runs) == 1 else (0, -1)
    for row in rows:
        if row.lo != at:
            return False
        at += row.count
    return at == stop


def contents_of(runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[bytes]:
    """Yield the bytes of the items in runs, in order, several items at a time."""
    for lo, hi in runs:
        while lo < hi:
            row = rows[row_index(rows, lo)]
            content, stop = content_of(row), min(hi, row.lo + row.count)
            if (lo, stop) != (row.lo, row.lo + row.count):
                items = split_array(array_header(row.count) + content)
                content = b"".join(items[lo - row.lo : stop - row.lo])
            yield content
            lo = stop


def weight_of(rows: Sequence[Row]) -> int:
    """Return the approximate memory of rows, in bytes."""
    return sum([100 + len(row.body) for row in rows])


@record
class Loose:
    """The end of a log still in small rows: items `[lo, hi)` of `nbytes` bytes."""

    lo: int = 0
    hi: int = 0
    nbytes: int = 0

    def within(self, runs: Sequence[Run]) -> Loose:
        """Return itself if a version with these runs uses all items, else `NOTHING`.

        A packed row must not bring back items that the version no longer contains.
        """
        return self if any(start <= self.lo and self.hi <= end for start, end in runs) else NOTHING

    def extend(self, rows: Sequence[Row], payloads: Sequence[bytes]) -> Loose:
        """Return the loose end after these items were appended in these rows."""
        last = rows[-1]
        nbytes = sum(map(len, payloads[-last.count :]))
        if is_full(last.count, nbytes):
            return NOTHING
        if self.hi == last.lo and len(rows) == 1:
            return Loose(self.lo, last.lo + last.count, self.nbytes + nbytes)
        return Loose(last.lo, last.lo + last.count, nbytes)


NOTHING = Loose()


def pack_rows(rows: Sequence[Row], loose: Loose) -> tuple[Sequence[Row], tuple[Row, ...]]:
    """Pack the loose rows if there are enough; return all rows, and the packed one."""
    count = loose.hi - loose.lo
    if not is_full(count, loose.nbytes):
        return rows, ()
    start, stop = bisect_left(rows, loose.lo, key=_first_of), bisect_left(rows, loose.hi, key=_first_of)
    packed = Row(loose.lo, count, frame(array_header(count) + b"".join(map(content_of, rows[start:stop]))))
    return [*rows[:start], packed, *rows[stop:]], (packed,)


def loose_end(rows: Sequence[Row], runs: Sequence[Run]) -> Loose:
    """Return the loose end of a version with these runs."""
    if not runs:
        return NOTHING
    (start, hi), nbytes = runs[-1], 0
    lo = hi
    for row in reversed(rows[: row_index(rows, hi - 1) + 1]):
        size = content_size(row.body)
        if row.lo < start or row.lo + row.count > hi or is_full(row.count, size):
            break
        lo, nbytes = row.lo, nbytes + size
    return Loose(lo, hi, nbytes) if lo < hi else NOTHING
