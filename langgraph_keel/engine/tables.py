"""Typed records in cells (`cells.py`).

A feature declares a `CellTable` for each kind of record, and reads and writes the records with `Cells`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Literal, TypeVar

from pydantic import TypeAdapter

from langgraph_keel.engine.cells import Cell, Search, Shelf, Swap, Swapped, check_swapped
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore, ValueRefused

T = TypeVar("T")
PAGE = 500
"""Cells read per trip."""
_UNREADABLE = (CorruptStore, ValueRefused, TypeError, ValueError, LookupError, OverflowError, AttributeError)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def record_of(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return an instance of a data class from stored values.

    Args:
        kind: The class. Values without a field are ignored, as a later version may have more.
        values: Its fields by their names.

    Raises:
        ValueError: If a value does not have the annotated type of its field.
    """
    which: Any = kind
    made: T = _adapter(which).validate_python(values)
    return made


@dataclass(frozen=True, slots=True)
class CellTable(Generic[T]):
    """A kind of cell, and the type of its records.

    Attributes:
        kind: The kind of the shelf: part of the stored format.
        name: The name of a record in errors, such as "a label". The record's key replaces `{key}` in it, or follows the
            name.
        pack: Returns the stored parts of a record, which are put in a list; part of the stored format.
        unpack: Returns the record of such parts. Stored bytes are untrusted: it must raise `TypeError`, `ValueError` or
            `LookupError` for invalid parts, as `record_of` does.
        has_body: Returns whether the cell of a record must have a body.
        is_piece: Returns whether the cell of a key contains no record, but the continuation of another cell's body.
        moves: When a copy to another store includes it. "along": with its thread, or if the caller asks for shared
            records. If the caller asks for shared records: "always", or "whole" only when all threads are copied.
            "never": not at all.
        thread_of: Returns the thread that a shared record belongs to, given its key and the record; empty if the key is
            not one of that thread's. A copy of the thread includes such records.
    """

    kind: str
    name: str
    pack: Callable[[T], Sequence[Any]]
    unpack: Callable[[Sequence[Any]], T]
    has_body: Callable[[T], bool] = lambda _: False
    is_piece: Callable[[str], bool] = lambda _: False
    moves: Literal["along", "always", "whole", "never"] = "along"
    thread_of: Callable[[str, T], str] | None = None


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """A record, and the cell that it was read from."""

    record: T
    cell: Cell

    @property
    def token(self) -> str:
        """The token to pass when changing the record."""
        return self.cell.token


class Cells(Generic[T]):
    """The records of one kind, of a thread or (`None`) shared by all threads.

    Methods raise `CorruptStore` if a record does not decode.
    """

    def __init__(self, session: Session, table: CellTable[T], thread_id: str | None) -> None:
        self.shelf = Shelf(thread_id, table.kind)
        self._session = session
        self._table = table

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[str]) -> Plan[dict[str, Kept[T]]]:
        """Read the existing records of these keys. One trip."""
        cells = yield from self.read_raw(keys)
        return {key: self.keep(key, cell) for key, cell in cells.items()}

    def find(self, key: str) -> Plan[Kept[T] | None]:
        """Read one record; `None` if it does not exist. One trip."""
        return (yield from self.read([key])).get(key)

    def page(self, prefix: str = "", after: str | None = None, limit: int = PAGE) -> Plan[list[tuple[str, Kept[T]]]]:
        """Read a page of records without bodies, in key order. One trip."""
        cells = yield from self._session.store.list_cells(self.shelf, prefix, after, limit)
        return [(key, self.keep(key, cell)) for key, cell in cells]

    def every(self, prefix: str = "", limit: int = PAGE) -> Plan[list[tuple[str, Kept[T]]]]:
        """Read all records with a key prefix, in key order, without bodies.

        One trip per page.
        """
        found: list[tuple[str, Kept[T]]] = []
        while True:
            page = yield from self.page(prefix, found[-1][0] if found else None, limit)
            found += page
            if len(page) < limit:
                return found

    def search(self, search: Search) -> Plan[list[tuple[str, Kept[T]]]]:
        """Read a page of ranked records without bodies. One trip.

        The page may also contain records that do not match.
        """
        cells = yield from self.search_raw(search)
        return [(key, self.keep(key, cell)) for key, cell in cells]

    def keep(self, key: str, cell: Cell) -> Kept[T]:
        """Return the record in a cell."""
        try:
            cell.check()
            return Kept(self._table.unpack(self._session.codec.decode(cell.header)), cell)
        except _UNREADABLE as error:
            raise CorruptStore(f"{self._name(key)} does not decode: {error}") from error

    def _name(self, key: str) -> str:
        whose = "" if self.shelf.thread_id is None else f"thread {self.shelf.thread_id!r}: "
        name = self._table.name
        return whose + (name.format(key=key) if "{key}" in name else f"{name} ({key})")

    # -- changing ----------------------------------------------------------------------------------------------

    def swap(
        self,
        key: str,
        expected: str | None,
        record: T | None,
        *,
        token: str | None = None,
        body: bytes = b"",
        origin: str = "",
        expires_at: int | None = None,
    ) -> Plan[tuple[bool, Kept[T] | None]]:
        """Replace a record unless another writer has changed it. One trip.

        Args:
            key: Its key.
            expected: The token of the current content; `None` if the cell is empty.
            record: The new record; `None` to empty the cell.
            token: The unique token of the new content; random by default.
            body: The body of the cell.
            origin: The thread that a shared record belongs to and is deleted with.
            expires_at: Time of expiry, in milliseconds since 1970.

        Returns:
            Whether it was replaced, and the record that the cell now contains.
        """
        new = None
        if record is not None:
            new = self.cell(record, token=token, body=body, origin=origin, expires_at=expires_at)
        reply = yield from self.swap_raw(key, expected, new)
        if reply.done:
            return True, None if record is None or new is None else Kept(record, new)
        return False, None if reply.cell is None else self.keep(key, reply.cell)

    def cell(
        self,
        record: T,
        *,
        token: str | None = None,
        body: bytes = b"",
        origin: str = "",
        expires_at: int | None = None,
        rank: int | None = None,
        marks: tuple[str, ...] = (),
    ) -> Cell:
        """Return a cell with a record; for the arguments see `swap` and `Cell`."""
        header = self._session.codec.encode(list(self._table.pack(record)))
        return Cell(token or self._session.new_token(), header, body, origin, expires_at, rank, marks)

    def change(self, key: str, change: Callable[[T | None], T | None], *, origin: str = "") -> Plan[T | None]:
        """Change a record, with a retry whenever another writer was faster; return it.

        Two trips, and one per retry.

        Args:
            key: Its key.
            change: Returns the new record, given the current one (`None` for none). An equal record is not written.
            origin: The thread that a shared record belongs to and is deleted with.
        """
        held = yield from self.find(key)
        while True:
            was = held.record if held else None
            record = change(was)
            if record == was:
                return was
            done, held = yield from self.swap(key, held.token if held else None, record, origin=origin)
            if done:
                return record

    def remove(self, tokens: Mapping[str, str]) -> Plan[int]:
        """Remove the records that still have these tokens; return their number. One trip."""
        removed: int = yield from self._session.store.remove_cells(self.shelf, tokens)
        return removed

    # -- undecoded, to remove or copy even damaged records --------------------------------------------------------

    def read_raw(self, keys: Collection[str]) -> Plan[Mapping[str, Cell]]:
        """Read the existing cells of these keys. One trip."""
        cells: Mapping[str, Cell] = yield from self._session.store.read_cells(self.shelf, keys)
        return cells

    def search_raw(self, search: Search) -> Plan[Sequence[tuple[str, Cell]]]:
        """Read a page of ranked cells without bodies. One trip.

        The page may also contain cells that do not match.
        """
        cells: Sequence[tuple[str, Cell]] = yield from self._session.store.find_cells(self.shelf, search)
        return cells

    def every_raw(self, prefix: str = "") -> Plan[list[tuple[str, Cell]]]:
        """Read all cells with a key prefix, in key order, without bodies.

        One trip per 500.
        """
        found: list[tuple[str, Cell]] = []
        while True:
            after = found[-1][0] if found else None
            page = yield from self._session.store.list_cells(self.shelf, prefix, after, PAGE)
            found += page
            if len(page) < PAGE:
                return found

    def swap_raw(self, key: str, expected: str | None, cell: Cell | None) -> Plan[Swapped]:
        """Replace or empty a cell unless another writer changed it. Idempotent. One trip."""
        swapped = yield from self._session.store.swap_cell(self.shelf, key, expected, cell)
        return check_swapped(expected, swapped, self._name(key))

    def swap_each_raw(self, swaps: Sequence[Swap]) -> Plan[list[Swapped]]:
        """Replace cells unless other writers have changed them; return the replies.

        Idempotent. One trip.
        """
        replies = yield from self._session.store.swap_cells(self.shelf, swaps)
        return [
            check_swapped(expected, reply, self._name(key))
            for (key, expected, _), reply in zip(swaps, replies, strict=True)
        ]

    def overwrite_raw(self, key: str, cell: Cell) -> Plan[None]:
        """Write a cell regardless of its content. One trip, and one per content replaced."""
        swapped = yield from self.swap_raw(key, None, cell)
        while not swapped.done:
            swapped = yield from self.swap_raw(key, swapped.cell.token if swapped.cell else None, cell)

    def copy_raw(self, thread_id: str) -> Plan[None]:
        """Copy all cells, without bodies, to a thread that has none.

        One trip per 500, and one per cell.
        """
        for key, cell in (yield from self.every_raw()):
            yield from self._session.store.swap_cell(Shelf(thread_id, self.shelf.kind), key, None, cell)

    def clear(self, prefix: str = "") -> Plan[int]:
        """Remove all cells with a key prefix; return their number. Two trips per 500."""
        removed, page = 0, (yield from self._session.store.list_cells(self.shelf, prefix, None, PAGE))
        while page:
            removed += yield from self.remove({key: cell.token for key, cell in page})
            page = yield from self._session.store.list_cells(self.shelf, prefix, page[-1][0], PAGE)
        return removed


def _unpack_namespace(parts: Sequence[Any]) -> list[Any]:
    (namespace,) = parts
    return list(namespace)


NODE_CACHE: CellTable[Sequence[str]] = CellTable(
    "cache", "a cached result", lambda parts: [parts], _unpack_namespace, has_body=lambda _: True
)
"""Results of nodes (`KeelCache`); an erasure removes all, as threads are unknown."""
