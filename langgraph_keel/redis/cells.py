"""Cells as Redis has them: their names, and values. The fields are explained in `scripts/cells.lua`."""

from __future__ import annotations

from langgraph_keel.core.bodies import restored, shrunk
from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.frames import RAW
from langgraph_keel.redis.entries import names_damage
from langgraph_keel.redis.names import name, unnamed

SHARED = ""
"""The id that no thread has: of the cells that all threads share."""
NOTHING = b"", b""
"""What an empty cell is swapped for, as `value_of` has it."""


def cell_name(shelf: Shelf, key: str) -> str:
    """Return the name of a cell among those of its thread; neither part holds what separates."""
    return f"{shelf.kind}:{key}"


def key_of(named: bytes) -> str:
    """Return the key of a cell by its name."""
    return named.partition(b":")[2].decode()


def page_of(shelf: Shelf, prefix: str, after: str | None) -> tuple[str, str]:
    """Return from which name to which a page goes, as ZRANGEBYLEX is told; DEL is after all that a key may hold."""
    first = cell_name(shelf, prefix)
    begin = f"[{first}" if after is None or after < prefix else f"({cell_name(shelf, after)}"
    return begin, f"({first}\x7f"


def value_of(cell: Cell) -> tuple[bytes, bytes]:
    """Return the value of a cell, and its body.

    The header stays as it is: to shrink that of a call of a tool takes it from 413 bytes to 316, and makes every hit
    15 to 30 µs slower, which takes some 100.
    """
    expiry = "" if cell.expires_at is None else cell.expires_at
    return f"{cell.token} {expiry} {name(cell.origin)}\n".encode() + cell.header, _shrunk(cell.body)


def _shrunk(body: bytes) -> bytes:
    # A frame that is compressed already would come back raw: the same content, but not the bytes that were brought.
    return shrunk(body) if body[:1] == RAW else body


@names_damage
def cell_of(value: bytes, body: bytes | None = None) -> Cell:
    """Return a cell, of its value and its body."""
    line, _, header = value.partition(b"\n")
    token, expiry, origin = line.decode().split(" ")
    return Cell(token, header, restored(body or b""), unnamed(origin), int(expiry) if expiry else None)
