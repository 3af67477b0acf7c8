"""Where the elements of a msgpack array end.

ormsgpack unpacks elements and does not say where they were; packing them again would do for bytes that it wrote itself,
and for no others.
"""

from __future__ import annotations

from langgraph_keel.errors import CorruptStore

# Of a first byte: the bytes of the token with its fixed part, and how many elements follow it as its parts.
_FIXED: dict[int, tuple[int, int]] = {
    **dict.fromkeys((*range(0x80), 0xC0, 0xC2, 0xC3, *range(0xE0, 0x100)), (1, 0)),
    **{0x80 | n: (1, 2 * n) for n in range(16)},
    **{0x90 | n: (1, n) for n in range(16)},
    **{0xA0 | n: (1 + n, 0) for n in range(32)},
    **{0xCA: (5, 0), 0xCB: (9, 0)},
    **{first + n: (1 + (1 << n), 0) for first in (0xCC, 0xD0) for n in range(4)},
    **{0xD4 + n: (2 + (1 << n), 0) for n in range(5)},
}
# Of a first byte: the bytes of the length that follows it, what stands between that and the payload, and how many
# elements, if it counts any, each unit of the length means.
_SIZED: dict[int, tuple[int, int, int]] = {
    **{first + n: (1 << n, 0, 0) for first in (0xC4, 0xD9) for n in range(3)},
    **{0xC7 + n: (1 << n, 1, 0) for n in range(3)},
    **{0xDC + n: (2 << n, 0, 1) for n in range(2)},
    **{0xDE + n: (2 << n, 0, 2) for n in range(2)},
}


def _token(data: bytes, at: int) -> tuple[int, int]:
    """Return the size of the token with a length of its own at `at`, and how many elements are its parts."""
    sized = _SIZED.get(data[at])
    if sized is None:
        raise CorruptStore(f"stored bytes hold {data[at]:#x}, which msgpack never uses")
    width, between, parts = sized
    length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
    return (1 + width, length * parts) if parts else (1 + width + between + length, 0)


def element_end(data: bytes, at: int) -> int:
    """Return where the element that begins at `at` ends.

    Raises:
        CorruptStore: It ends behind the end of `data`, or is no msgpack.
    """
    missing, end, fixed = 1, len(data), _FIXED
    while missing:
        if at >= end:
            raise CorruptStore("stored bytes end within a value")
        size, parts = fixed.get(data[at]) or _token(data, at)
        at += size
        missing += parts - 1
    if at > end:
        raise CorruptStore("stored bytes end within a value")
    return at


def splits(content: bytes) -> list[bytes]:
    """Return the bytes of each element of a msgpack array.

    Raises:
        CorruptStore: The content is not exactly one array.
    """
    if not content or not (content[0] & 0xF0 == 0x90 or content[0] in (0xDC, 0xDD)):
        raise CorruptStore("stored items are not an array")
    at, count = _FIXED.get(content[0]) or _token(content, 0)
    parts = []
    for _ in range(count):
        end = element_end(content, at)
        parts.append(content[at:end])
        at = end
    if at != len(content):
        raise CorruptStore("stored bytes go on after the items they should hold")
    return parts
