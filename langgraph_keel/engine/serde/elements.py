"""Packed bytes, looked at without making objects of them: where their elements end, and what memory they would take.

ormsgpack does not tell where the elements of an array end, and has no bound on what it makes of them: a byte can stand
for an empty list, which takes a hundred.
"""

from __future__ import annotations

from langgraph_keel.errors import CorruptStore

# By the first byte of an element: its size without its parts, and how many elements these are.
_FIXED: dict[int, tuple[int, int]] = {
    **dict.fromkeys((*range(0x80), 0xC0, 0xC2, 0xC3, *range(0xE0, 0x100)), (1, 0)),
    **{0x80 | n: (1, 2 * n) for n in range(16)},
    **{0x90 | n: (1, n) for n in range(16)},
    **{0xA0 | n: (1 + n, 0) for n in range(32)},
    **{0xCA: (5, 0), 0xCB: (9, 0)},
    **{first + n: (1 + (1 << n), 0) for first in (0xCC, 0xD0) for n in range(4)},
    **{0xD4 + n: (2 + (1 << n), 0) for n in range(5)},
}
# By the first byte: the size of the length that follows, of what stands between that and the payload, and how many
# parts each unit of the length counts, if it counts parts.
_SIZED: dict[int, tuple[int, int, int]] = {
    **{first + n: (1 << n, 0, 0) for first in (0xC4, 0xD9) for n in range(3)},
    **{0xC7 + n: (1 << n, 1, 0) for n in range(3)},
    **{0xDC + n: (2 << n, 0, 1) for n in range(2)},
    **{0xDE + n: (2 << n, 0, 2) for n in range(2)},
}


def _measure(data: bytes, at: int) -> tuple[int, int]:
    """Return the size of an element with a length of its own, without its parts, and how many parts it has."""
    sized = _SIZED.get(data[at])
    if sized is None:
        raise CorruptStore(f"stored bytes hold {data[at]:#x}, which msgpack never uses")
    width, between, parts = sized
    length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
    return (1 + width, length * parts) if parts else (1 + width + between + length, 0)


def element_end(data: bytes, at: int) -> int:
    """Return where the element that begins at `at` ends.

    Raises:
        CorruptStore: It ends after the end of `data`, or is no msgpack.
    """
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
    """Return the bytes of each element of a msgpack array.

    Raises:
        CorruptStore: The content is not exactly one array.
    """
    if not content or not (content[0] & 0xF0 == 0x90 or content[0] in (0xDC, 0xDD)):
        raise CorruptStore("stored items are not an array")
    at, count = _FIXED.get(content[0]) or _measure(content, 0)
    parts = []
    for _ in range(count):
        end = element_end(content, at)
        parts.append(content[at:end])
        at = end
    if at != len(content):
        raise CorruptStore("stored bytes go on after the items they should hold")
    return parts


# --- Memory ---

MAX_BYTES = 1 << 30
"""What a stored value may take in memory, about, unless a serializer says otherwise; SQLite's own limit for a row."""
MOST = 200
"""Bytes of memory that a packed byte can take at most, about: an empty deque takes 800 for five."""
_MOST_BUT_CONTAINERS = 40
_CHUNK = 1 << 20
WIDE = 4096
"""Bytes from which on it counts that a text is not ASCII."""
_CONTAINERS = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))


def _cost(first: int) -> int:
    """Return what an object takes beside its payload, by the first byte of its element."""
    if first in _CONTAINERS or 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8:  # lists, dicts, leaves and records
        return MOST
    if 0xCA <= first <= 0xD3:  # numbers
        return 40
    return 60 if 0xA0 <= first < 0xE0 and first not in (0xC0, 0xC2, 0xC3) else 8  # text and bytes; what there is once


_COSTS = bytes(map(_cost, range(256)))


def takes_more(data: bytes, limit: int) -> bool:
    """Return whether the objects in packed bytes would take more than `limit` bytes of memory, about.

    Their length tells it of most, and of most others how often they have a byte that may begin a list or a dict (1 ns a
    byte). Only where neither does, the elements are walked.
    """
    if len(data) * MOST <= limit:
        return False
    room = limit - len(data) * _MOST_BUT_CONTAINERS
    for start in range(0, len(data), _CHUNK):
        chunk = data[start : start + _CHUNK]
        room -= (len(chunk) - len(chunk.translate(None, _CONTAINERS))) * MOST
        if room < 0:
            return memory_of(data, limit) > limit
    return False


def memory_of(data: bytes, most: int) -> int:
    """Return what the objects in packed bytes would take, about; counted (0.2 µs an element) as far as `most`."""
    at, end, taken, fixed, costs = 0, len(data), 0, _FIXED, _COSTS
    while at < end and taken <= most:
        first = data[at]
        size, parts = fixed.get(first) or _measure(data, at)
        taken += costs[first] + size + 8 * min(parts, end)
        if size > WIDE and not data[at + 5 : at + size].isascii():  # a text may take four bytes a character then
            taken += 3 * size
        at += size
    return taken
