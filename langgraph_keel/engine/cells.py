"""Cells: values stored next to the checkpoints, changed by compare-and-set.

A *shelf* contains the cells of one kind. A writer needs the token of the current content. Tokens are random, so a slow
writer cannot know a newer one (fencing), and a request that is repeated after a lost reply is recognized by its token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from langgraph_keel.errors import CorruptStore, InvalidInput

_KIND = re.compile(r"[a-z]{1,16}")
_KEY = re.compile(r"[a-z0-9_][a-z0-9._-]{0,127}")

OBJECTS_KEY = "store"
BLOCK = 32
"""Hexadecimal digits per block (one hash) of a ranked cell's key of four blocks."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """The cells of one kind, of one thread or shared.

    Attributes:
        thread_id: The thread that the cells belong to and are deleted with; `None` for cells that all threads share.
        kind: Their kind: 1 to 16 letters from a to z.
    """

    thread_id: str | None
    kind: str

    def __post_init__(self) -> None:
        """Check the kind."""
        if not (isinstance(self.kind, str) and _KIND.fullmatch(self.kind)):
            raise InvalidInput(f"{self.kind!r} is not a valid kind of cell: use 1 to 16 letters from a to z")


OBJECTS = Shelf(None, "blobs")
"""Identifies this store's objects (`blobs.store`); never encrypted or copied."""


@dataclass(slots=True, unsafe_hash=True)  # as `records.record`, since a search makes thousands
class Cell:
    """The content of a cell.

    Attributes:
        token: Distinguishes this content from all earlier and later ones; random, 1 to 32 letters and digits.
        header: The small part, which listings read; framed (see `engine.encoding.bodies`), opaque to stores.
        body: The rest, framed; `b""` if there is none or it was not read.
        origin: The thread that wrote a shared cell and with which it is deleted; `""` if there is none.
        expires_at: Milliseconds since 1970 from which on the engine treats it as deleted; `None` means never.
        rank: Its position in a search (`Store.find_cells`): microseconds since 1970. Searches ignore cells without it.
        marks: The hashed terms by which a search finds a ranked cell (see `entries.marks_of`).
    """

    token: str
    header: bytes
    body: bytes = b""
    origin: str = ""
    expires_at: int | None = None
    rank: int | None = None
    marks: tuple[str, ...] = ()

    def is_live(self, now: float) -> bool:
        """Return whether the cell has not expired at `now`, in milliseconds since 1970."""
        if type(self.expires_at) not in (int, type(None)):
            raise CorruptStore(f"a record expires at {self.expires_at!r:.40}, which is not a time")
        return self.expires_at is None or self.expires_at > now

    def check(self) -> None:
        """Raise `CorruptStore` if its expiry or rank is not a time: columns of SQLite have no types."""
        self.is_live(0)
        if self.rank is not None and not is_time(self.rank):
            raise CorruptStore(f"a record has the rank {self.rank!r:.40}, which is not a time")


def is_time(value: Any) -> bool:
    """Return whether a stored value is a number of microseconds since 1970, before the year 10,000."""
    return type(value) is int and 0 <= value < 253_402_300_800_000_000


@dataclass(frozen=True, slots=True)
class Swapped:
    """The reply to a swap.

    Attributes:
        done: Whether the cell now has the new content.
        cell: If not: its current content with the body; `None` if it is empty.
    """

    done: bool
    cell: Cell | None = None


Swap: TypeAlias = tuple[str, str | None, Cell | None]
"""A key, the expected token of its cell, and the new cell: see `Store.swap_cell`."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search for ranked cells of a shelf.

    Attributes:
        prefix: Prefix of their keys, in whole blocks.
        marks: The marks that each result must have; none if `is_grouped`.
        after: The rank and the key of the last cell of the previous page.
        limit: Maximum number of cells.
        is_bare: Whether headers may be omitted, as the caller needs only keys, tokens and times.
        is_grouped: Whether to return only one of several cells whose keys differ in the last block.
    """

    prefix: str = ""
    marks: tuple[str, ...] = ()
    after: tuple[int, str] | None = None
    limit: int = 500
    is_bare: bool = False
    is_grouped: bool = False


def select_cells(cells: Iterable[tuple[str, Cell]], search: Search) -> list[tuple[str, Cell]]:
    """Return a page of `Store.find_cells`, for stores that search in Python."""
    wanted, after = {*search.marks}, search.after
    found = [
        (-cell.rank, key, cell)
        for key, cell in cells
        if cell.rank is not None and key.startswith(search.prefix) and (not wanted or wanted <= {*cell.marks})
    ]
    if search.is_grouped:
        firsts: dict[str, tuple[int, str, Cell]] = {}
        for each in sorted(found, key=lambda each: each[1]):
            firsts.setdefault(each[1][:-BLOCK], each)
        page = [each for group, each in firsts.items() if after is None or group > after[1][:-BLOCK]]
    else:
        found.sort()  # keys are unique
        page = [each for each in found if after is None or each[:2] > (-after[0], after[1])]
    page = page[: search.limit]
    if search.is_bare:
        return [(key, Cell(cell.token, b"", b"", "", cell.expires_at, cell.rank)) for _, key, cell in page]
    return [(key, replace(cell, body=b"")) for _, key, cell in page]


def ruling(current: Cell | None, expected: str | None, new: Cell | None) -> Literal["write", "again", "refuse"]:
    """Return the outcome of `Store.swap_cell`, for stores that decide in Python."""
    held = None if current is None else current.token
    if held == expected:
        return "write"
    return "again" if held == (None if new is None else new.token) else "refuse"


def check_swapped(expected: str | None, swapped: Swapped, what: str) -> Swapped:
    """Return the reply to a swap; raise `CorruptStore` if its token is damaged.

    A loop of retries would never end.
    """
    if not swapped.done and swapped.cell is not None and swapped.cell.token == expected:
        raise CorruptStore(f"{what} is damaged: a swap that expects its token {expected!a} is refused")
    return swapped


def key_of_cell(key: str) -> str:
    """Return `key` if it is valid as the key of a cell, also in file systems and URLs."""
    if not _KEY.fullmatch(key):
        raise InvalidInput(f"{key!r} cannot name a cell: use 1 to 128 of a-z, 0-9, '_', '.', '-', not '.' or '-' first")
    return key
