"""Small bodies: compressed with a dictionary of what every checkpoint repeats.

Of the headers of a chat, 260 bytes each, nine tenths are names (`channel_versions`, `versions_seen`, `branch:to:`...),
and a body that small has no past that a compressor could refer to. With the names as its past a header takes 75 bytes,
in 5 µs. Measured for 1000 chat messages: 690 KB of headers, writes and small rows instead of 1130 KB; level 3 would
give 736 KB, and level 19 no less. Redis, where memory is what costs, and PostgreSQL store bodies so.

`boilerplate.dict` is two kilobytes of headers and empty messages, as Keel's serializer writes them, after 162 bytes of
entropy tables that zstandard trained on English prose in messages. It is part of the stored format: what was written
with it can be read with no other. Made once, by hand; nothing remakes it.

A body stands for the frame (`core.frames`) that it was made of: kind `0x02`, the checksum that the raw frame has, so
that the core checks what a reader makes of it, and one zstandard frame.
"""

from __future__ import annotations

import threading
from importlib.resources import files

import xxhash
import zstandard

from langgraph_keel.core.frames import HEAD, MAX_CONTENT, RAW, unframe
from langgraph_keel.errors import CorruptStore

WITH_DICTIONARY = b"\x02"
SMALL = 4096
"""Bytes of a frame above which its own content is past enough."""

_DICTIONARY = zstandard.ZstdCompressionDict(
    files(__package__).joinpath("boilerplate.dict").read_bytes(), dict_type=zstandard.DICT_TYPE_FULLDICT
)
_contexts = threading.local()


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_contexts, "compressor"):
        _contexts.compressor = zstandard.ZstdCompressor(level=7, dict_data=_DICTIONARY, write_dict_id=False)
    compressor: zstandard.ZstdCompressor = _contexts.compressor
    return compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_contexts, "decompressor"):
        _contexts.decompressor = zstandard.ZstdDecompressor(dict_data=_DICTIONARY)
    decompressor: zstandard.ZstdDecompressor = _contexts.decompressor
    return decompressor


def shrunk(body: bytes) -> bytes:
    """Return the body that stands for a frame: itself, or something smaller."""
    if not HEAD < len(body) <= SMALL:
        return body
    data = unframe(body)
    packed = _compressor().compress(data)
    if len(packed) >= len(body) - HEAD:
        return body
    return WITH_DICTIONARY + _checksum(data) + packed


def restored(body: bytes) -> bytes:
    """Return the frame that a body stands for.

    Raises:
        CorruptStore: It does not decompress.
    """
    if body[:1] != WITH_DICTIONARY:
        return body
    packed = body[HEAD:]
    try:
        size = zstandard.frame_content_size(packed)
        if not 0 <= size <= MAX_CONTENT:
            raise CorruptStore(f"a stored body claims to hold {size} bytes")
        data = _decompressor().decompress(packed, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CorruptStore(f"a stored body does not decompress: {error}") from error
    return RAW + body[1:HEAD] + data


def _checksum(data: bytes) -> bytes:
    # As core.frames has it for raw frames.
    return xxhash.xxh3_64_digest(data, seed=RAW[0])[4:]
