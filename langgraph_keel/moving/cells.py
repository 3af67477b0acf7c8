"""Copies missing and changed cells to another store, shelf by shelf in key order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph_keel.engine.audit import CONTENTS, HEAD, HEADS, LINKS
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.encoding.bodies import open_frame
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore
from langgraph_keel.moving.outline import Shelves, content_of_cell, digest_of_cell
from langgraph_keel.moving.pair import SOURCE, TARGET, on

_PAGE = 20
"""Maximum cells read per request, with their bodies."""
_BYTES = 1 << 20
"""Bytes of bodies per request above which fewer cells are read next time."""
CHAIN = {LINKS.kind, CONTENTS.kind, HEADS.kind}
"""Kinds of cells that form one chain over all threads, copied completely or not."""


@dataclass(slots=True)
class Moved:
    """The changes that a copy makes to the cells of its target."""

    count: int = 0
    nbytes: int = 0
    kept: list[str] = field(default_factory=list)  # kinds and keys of cells that differ in the target, which keeps them
    damaged: dict[str, str] = field(default_factory=dict)  # why a cell was not copied, by its thread's id


class CellCopy:
    """Copies cells."""

    def __init__(self, source: Store[Any, Any], target: Store[Any, Any], done: Moved) -> None:
        self._source, self._target, self._done = source, target, done
        self._size = 1

    def join(self, shelf: Shelf, is_meant: Callable[[str, Cell], bool], is_ours: Callable[[Cell], bool]) -> Plan[None]:
        """Copy a shelf of the source to the target."""
        wanted: dict[str, str | None] = {}
        doubtful: list[str] = []
        pair = _Pair(self._source, self._target, shelf)
        while (found := (yield from pair.next())) is not None:
            key, theirs, ours = found
            if theirs is None or not is_meant(key, theirs):
                if theirs is None and ours is not None and is_ours(ours):
                    self._done.count += yield from on(TARGET, self._target.remove_cells(shelf, {key: ours.token}))
                continue
            if ours is not None and digest_of_cell(theirs) == digest_of_cell(ours):
                continue
            if ours is not None and not is_ours(ours):
                doubtful.append(key)  # both may have the same content with different tokens
                if len(doubtful) >= _PAGE:
                    yield from self._keep_others(shelf, doubtful)
                    doubtful = []
                continue
            wanted[key] = ours.token if ours else None
            if len(wanted) >= self._size:
                yield from self._write(shelf, wanted)
                wanted = {}
        yield from self._write(shelf, wanted)
        yield from self._keep_others(shelf, doubtful)

    def _keep_others(self, shelf: Shelf, keys: Sequence[str]) -> Plan[None]:
        """Note the cells of the target that differ from the source and are kept."""
        differing = (yield from self._find_unequal(shelf, keys)) if keys else ()
        self._done.kept += [f"{shelf.kind} {key}" for key in differing]

    def _write(self, shelf: Shelf, wanted: Mapping[str, str | None]) -> Plan[None]:
        if not wanted:
            return
        cells: Mapping[str, Cell] = yield from on(SOURCE, self._source.read_cells(shelf, list(wanted)))
        nbytes = 0
        for key in wanted:
            if key in cells:
                try:
                    _content(cells, key)
                except CorruptStore as error:
                    self._done.damaged[cells[key].origin] = f"{shelf.kind} {key}: {error}"
                    continue
                swapped = yield from on(TARGET, self._target.swap_cell(shelf, key, wanted[key], cells[key]))
                self._done.count += swapped.done
                nbytes += len(cells[key].header) + len(cells[key].body)
        self._done.nbytes += nbytes
        self._size = min(_PAGE, 2 * len(wanted)) if nbytes < _BYTES else max(1, len(wanted) // 2)

    def join_chain(self) -> Plan[None]:
        """Copy the audit trail, if the target's is empty or the beginning of it."""
        # The head is read before the links, and written after them: it must never be ahead of the last link.
        heads: Mapping[str, Cell] = yield from on(SOURCE, self._source.read_cells(HEADS, [HEAD]))
        pair = _Pair(self._source, self._target, LINKS)
        while (found := (yield from pair.next())) is not None:
            key, theirs, ours = found
            if ours is not None and (theirs is None or digest_of_cell(theirs) != digest_of_cell(ours)):
                self._done.kept.append(f"the audit trail, from event {key.lstrip('0')} on")
                return
        for shelf in (CONTENTS, LINKS):
            yield from self.join(shelf, lambda *_: True, lambda _: False)
        if HEAD in heads and not self._done.damaged:
            _content(heads, HEAD)  # checks the head
            held: Mapping[str, Cell] = yield from on(TARGET, self._target.read_cells(HEADS, [HEAD]))
            if HEAD not in held or digest_of_cell(held[HEAD]) != digest_of_cell(heads[HEAD]):
                expected = held[HEAD].token if HEAD in held else None
                yield from on(TARGET, self._target.swap_cell(HEADS, HEAD, expected, heads[HEAD]))
                self._done.count += 1

    def find_difference(
        self, shelf: Shelf, is_meant: Callable[[str, Cell], bool], *, is_whole: bool = False
    ) -> Plan[str | None]:
        """Return the first cell whose content differs (ignoring tokens), or `None`."""
        keys: list[str] = []
        pair = _Pair(self._source, self._target, shelf)
        while (found := (yield from pair.next())) is not None:
            key, theirs, ours = found
            if theirs is None and is_whole:
                return f"{shelf.kind} {key}, which only the target has"
            if theirs is None or not is_meant(key, theirs):
                continue
            if ours is None:
                return f"{shelf.kind} {key}, which the target lacks"
            keys.append(key)
            if len(keys) >= self._size:
                for differs in (yield from self._find_unequal(shelf, keys)):
                    return f"{shelf.kind} {differs}"
                keys = []
        for differs in (yield from self._find_unequal(shelf, keys)) if keys else ():
            return f"{shelf.kind} {differs}"
        return None

    def _find_unequal(self, shelf: Shelf, keys: Sequence[str]) -> Plan[Sequence[str]]:
        """Return the keys of cells whose content differs between both sides."""
        theirs: Mapping[str, Cell] = yield from on(SOURCE, self._source.read_cells(shelf, keys))
        ours: Mapping[str, Cell] = yield from on(TARGET, self._target.read_cells(shelf, keys))
        nbytes = sum(len(cell.body) for cell in theirs.values())
        self._size = min(_PAGE, 2 * len(keys)) if nbytes < _BYTES else max(1, len(keys) // 2)
        return [key for key in keys if _content(theirs, key) != _content(ours, key)]


def _content(cells: Mapping[str, Cell], key: str) -> tuple[bytes, bytes] | None:
    """Check a cell, and return its content."""
    cell = cells.get(key)
    if cell is None:
        return None
    cell.check()
    if not all(isinstance(mark, str) for mark in cell.marks):
        raise CorruptStore(f"a record has the marks {cell.marks!r:.40}, which are not texts")
    return content_of_cell(cell), open_frame(cell.body) if cell.body != b"" else b""


class _Pair:
    """Iterates over a shelf of both stores: each key in either, with its cells."""

    def __init__(self, source: Store[Any, Any], target: Store[Any, Any], shelf: Shelf) -> None:
        self._theirs, self._ours = Shelves(source, shelf), Shelves(target, shelf)
        self._next: tuple[tuple[str, Cell] | None, tuple[str, Cell] | None] | None = None

    def next(self) -> Plan[tuple[str, Cell | None, Cell | None] | None]:
        if self._next is None:
            self._next = (yield from on(SOURCE, self._theirs.next())), (yield from on(TARGET, self._ours.next()))
        theirs, ours = self._next
        if theirs is None and ours is None:
            return None
        key = min(each[0] for each in (theirs, ours) if each is not None)
        is_theirs, is_ours = theirs is not None and theirs[0] == key, ours is not None and ours[0] == key
        self._next = (
            (yield from on(SOURCE, self._theirs.next())) if is_theirs else theirs,
            (yield from on(TARGET, self._ours.next())) if is_ours else ours,
        )
        return key, theirs[1] if theirs and is_theirs else None, ours[1] if ours and is_ours else None
