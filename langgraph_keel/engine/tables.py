"""Records in cells (`cells.py`): a feature declares a `CellTable` for each kind, and uses `Cells` on a session."""

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
"""Cells that are read in one trip."""
_UNREADABLE = (CorruptStore, ValueRefused, TypeError, ValueError, LookupError, OverflowError, AttributeError)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def record_of(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return the data class that stored values make.

    Args:
        kind: The class; values that it has no field for are left out, as a later version may have more.
        values: Its fields by their names.

    Raises:
        ValueError: A value is not of the type that its field is annotated with.
    """
    which: Any = kind
    made: T = _adapter(which).validate_python(values)
    return made


@dataclass(frozen=True, slots=True)
class CellTable(Generic[T]):
    """Cells of one kind, and the record that each of them holds.

    Attributes:
        kind: The kind of the shelf: part of the stored format.
        name: How an error names one of the records, such as "a label"; `{key}` in it stands for the record's key, which
            is put after the name otherwise.
        pack: Returns the parts of a record as they are stored, in a list of their own; part of the stored format.
        unpack: Returns the record that such parts make. Stored bytes are untrusted: it raises `TypeError`, `ValueError`
            or `LookupError` for anything else. `record_of` does.
        has_body: Says of a record whether the rest of its cell, the body, must be there.
        is_piece: Says of a key whether its cell has no record, but a piece of what the body of another one begins.
        moves: Whether a copy to another store takes it: with its thread, or if the caller asks for shared records
            ("along"); if shared records are asked for, with any thread ("always"), or with all threads only ("whole");
            or not at all ("never").
        thread_of: Returns the thread that a shared record belongs to, given its key and the record; empty if the key is
            not one of that thread's. A copy takes such a record with its thread.
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
        """The token that a change of the record must name."""
        return self.cell.token


class Cells(Generic[T]):
    """The records of one kind: of a thread, or (`None`) those that all threads share.

    Its methods raise `CorruptStore` if a record does not decode.
    """

    def __init__(self, session: Session, table: CellTable[T], thread_id: str | None) -> None:
        self.shelf = Shelf(thread_id, table.kind)
        self._session = session
        self._table = table

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[str]) -> Plan[dict[str, Kept[T]]]:
        """Read records by their keys, without those that are not there. One trip."""
        cells = yield from self.read_raw(keys)
        return {key: self.keep(key, cell) for key, cell in cells.items()}

    def find(self, key: str) -> Plan[Kept[T] | None]:
        """Read one record; `None` if it is not there. One trip."""
        return (yield from self.read([key])).get(key)

    def page(self, prefix: str = "", after: str | None = None, limit: int = PAGE) -> Plan[list[tuple[str, Kept[T]]]]:
        """Read a page of records, in the order of their keys. Without their bodies; one trip."""
        cells = yield from self._session.store.list_cells(self.shelf, prefix, after, limit)
        return [(key, self.keep(key, cell)) for key, cell in cells]

    def every(self, prefix: str = "", limit: int = PAGE) -> Plan[list[tuple[str, Kept[T]]]]:
        """Read all records whose keys begin so, in the order of their keys, without bodies. A trip for each page."""
        found: list[tuple[str, Kept[T]]] = []
        while True:
            page = yield from self.page(prefix, found[-1][0] if found else None, limit)
            found += page
            if len(page) < limit:
                return found

    def search(self, search: Search) -> Plan[list[tuple[str, Kept[T]]]]:
        """Read a page of ranked records, without their bodies; perhaps more than were asked for. One trip."""
        cells = yield from self.search_raw(search)
        return [(key, self.keep(key, cell)) for key, cell in cells]

    def keep(self, key: str, cell: Cell) -> Kept[T]:
        """Return the record in a cell."""
        try:
            cell.is_live(0)  # raises CorruptStore if its time is not a number
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
        """Replace a record, if nobody else has. One trip.

        Args:
            key: Its key.
            expected: The token of the current content; `None` if the cell is empty.
            record: What to write; `None` is nothing.
            token: What tells this content from all others; random, if it is left out.
            body: The rest of the cell.
            origin: The thread that a shared record is of, and is deleted with.
            expires_at: Milliseconds since 1970 from which on it is gone.

        Returns:
            Whether it was done, and the record that the cell holds now.
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
        """Return the cell that holds a record, ready to be written; for the arguments see `swap` and `Cell`."""
        header = self._session.codec.encode(list(self._table.pack(record)))
        return Cell(token or self._session.new_token(), header, body, origin, expires_at, rank, marks)

    def change(self, key: str, change: Callable[[T | None], T | None], *, origin: str = "") -> Plan[T | None]:
        """Change a record, again whenever another writer was quicker; return it. Two trips, and one for each retry.

        Args:
            key: Its key.
            change: Returns the new record (`None` for none), given the current one; an equal one is not written.
            origin: The thread that a shared record is of, and is deleted with.
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
        """Remove records, each only if its token is still this one; return how many went. One trip."""
        removed: int = yield from self._session.store.remove_cells(self.shelf, tokens)
        return removed

    # -- undecoded: for what must go, or be copied, even if it is damaged ----------------------------------------

    def read_raw(self, keys: Collection[str]) -> Plan[Mapping[str, Cell]]:
        """Read cells by their keys, without those that are not there. One trip."""
        cells: Mapping[str, Cell] = yield from self._session.store.read_cells(self.shelf, keys)
        return cells

    def search_raw(self, search: Search) -> Plan[Sequence[tuple[str, Cell]]]:
        """Read a page of ranked cells, without their bodies; perhaps more than were asked for. One trip."""
        cells: Sequence[tuple[str, Cell]] = yield from self._session.store.find_cells(self.shelf, search)
        return cells

    def every_raw(self, prefix: str = "") -> Plan[list[tuple[str, Cell]]]:
        """Read all cells whose keys begin so, in the order of their keys. Without their bodies; a trip for each 500."""
        found: list[tuple[str, Cell]] = []
        while True:
            after = found[-1][0] if found else None
            page = yield from self._session.store.list_cells(self.shelf, prefix, after, PAGE)
            found += page
            if len(page) < PAGE:
                return found

    def swap_raw(self, key: str, expected: str | None, cell: Cell | None) -> Plan[Swapped]:
        """Replace a cell by one that is ready, or by none, if no other writer has. Repeating is harmless. One trip."""
        swapped = yield from self._session.store.swap_cell(self.shelf, key, expected, cell)
        return check_swapped(expected, swapped, self._name(key))

    def swap_each_raw(self, swaps: Sequence[Swap]) -> Plan[list[Swapped]]:
        """Replace cells, each if no other writer has; return the reply to each. Repeating is harmless. One trip."""
        replies = yield from self._session.store.swap_cells(self.shelf, swaps)
        return [
            check_swapped(expected, reply, self._name(key))
            for (key, expected, _), reply in zip(swaps, replies, strict=True)
        ]

    def overwrite_raw(self, key: str, cell: Cell) -> Plan[None]:
        """Write a cell, whatever it held; the last writer wins. One trip, and one for each content replaced."""
        swapped = yield from self.swap_raw(key, None, cell)
        while not swapped.done:
            swapped = yield from self.swap_raw(key, swapped.cell.token if swapped.cell else None, cell)

    def copy_raw(self, thread_id: str) -> Plan[None]:
        """Copy all cells, without bodies, to a thread that has none. A trip for each 500, and one for each cell."""
        for key, cell in (yield from self.every_raw()):
            yield from self._session.store.swap_cell(Shelf(thread_id, self.shelf.kind), key, None, cell)

    def clear(self, prefix: str = "") -> Plan[int]:
        """Remove all cells whose keys begin so; return how many went. Two trips for each 500."""
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
"""Results of nodes (`KeelCache`). LangGraph does not say of which thread they are, so an erasure empties it."""
