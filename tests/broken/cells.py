"""Stores that keep cells wrongly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph_keel.backends.memory.store import MemoryStore, Request, State
from langgraph_keel.engine.cells import Cell, Search, Shelf, Swap, Swapped
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import CopyOutcome, Entry, Stamp

Page = Sequence[tuple[str, Cell]]
OneSwap = StorePlan[Request, Any, Swapped]
Searched = StorePlan[Request, Any, Page]


class TheLastSwapWins(MemoryStore):
    """Replaces the content of a cell without comparing it."""

    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> OneSwap:
        def token(state: State) -> str | None:
            cell = state.cells.get(shelf, {}).get(key)
            return cell.token if cell else None

        there: str | None = yield token
        swapped = yield from super().swap_cell(shelf, key, there, new)
        return swapped


class AnEmptyCellIsOpenToAll(MemoryStore):
    """Fills an empty cell although the caller expects content: the caller is too late."""

    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> OneSwap:
        swapped = yield from super().swap_cell(shelf, key, expected, new)
        if not swapped.done and swapped.cell is None:
            swapped = yield from super().swap_cell(shelf, key, None, new)
        return swapped


class ARequestSentAgainIsRefused(MemoryStore):
    """Does not recognize its own request when it is sent again."""

    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> OneSwap:
        before = yield from super().read_cells(shelf, [key])
        if new is not None and key in before and before[key].token == new.token != expected:
            return Swapped(False, before[key])
        swapped = yield from super().swap_cell(shelf, key, expected, new)
        return swapped


class ARefusalTellsNothing(MemoryStore):
    """Does not return the cell's actual content with a refusal."""

    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> OneSwap:
        swapped = yield from super().swap_cell(shelf, key, expected, new)
        return replace(swapped, cell=None)


class RenewingKeepsTheContent(MemoryStore):
    """Mistakes a swap that keeps its token for one that was sent again."""

    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> OneSwap:
        if new is not None and new.token == expected:
            yield lambda state: None
            return Swapped(True)
        swapped = yield from super().swap_cell(shelf, key, expected, new)
        return swapped


class PagesHaveBodies(MemoryStore):
    """Lists cells with their bodies."""

    def list_cells(self, shelf: Shelf, prefix: str, after: str | None, limit: int) -> StorePlan[Request, Any, Page]:
        page = yield from super().list_cells(shelf, prefix, after, limit)
        cells = yield from super().read_cells(shelf, [key for key, _ in page])
        return [(key, cells[key]) for key, _ in page]


class PagesAreInTheOrderOfWriting(MemoryStore):
    """Lists cells in the order of writing."""

    def list_cells(self, shelf: Shelf, prefix: str, after: str | None, limit: int) -> StorePlan[Request, Any, Page]:
        def listed(state: State) -> Page:
            cells = [(key, cell) for key, cell in state.cells.get(shelf, {}).items() if key.startswith(prefix)]
            start = 1 + [key for key, _ in cells].index(after) if after else 0
            return [(key, replace(cell, body=b"")) for key, cell in cells[start : start + limit]]

        page: Page = yield listed
        return page


class RemovesWhatHasChanged(MemoryStore):
    """Empties cells even if they have changed."""

    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> StorePlan[Request, Any, int]:
        cells = yield from super().read_cells(shelf, list(tokens))
        removed = yield from super().remove_cells(shelf, {key: cell.token for key, cell in cells.items()})
        return removed


class DeleteLeavesCells(MemoryStore):
    """Deletes a thread, not its cells."""

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Any, bool]:
        yield lambda state: state.pop(thread_id, None)
        return True


class DeleteLeavesWhatWasShared(MemoryStore):
    """Deletes a thread and its own cells only."""

    def delete_thread(self, thread_id: str, last: Stamp | None = None) -> StorePlan[Request, Any, bool]:
        def delete(state: State) -> None:
            state.pop(thread_id, None)
            for shelf in [shelf for shelf in state.cells if shelf.thread_id == thread_id]:
                del state.cells[shelf]

        yield delete
        return True


class ThreadsShareTheirCells(MemoryStore):
    """Keeps the cells of all threads on one shelf."""

    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> OneSwap:
        swapped = yield from super().swap_cell(Shelf(None, shelf.kind), key, expected, new)
        return swapped

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> StorePlan[Request, Any, Mapping[str, Cell]]:
        cells = yield from super().read_cells(Shelf(None, shelf.kind), keys)
        return cells


class CopiesHaveDoneTheSame(MemoryStore):
    """Copies the cells of a thread with it."""

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> StorePlan[Request, Any, CopyOutcome]:
        copied = yield from super().copy_thread(source, target, upto)

        def copy(state: State) -> None:
            for shelf in [shelf for shelf in state.cells if shelf.thread_id == source]:
                state.cells[Shelf(target, shelf.kind)] = dict(state.cells[shelf])

        yield copy
        return copied


class WritesAreNoStrays(MemoryStore):
    """Looks for strays among cells only."""

    def list_strays(self, after: str | None, limit: int) -> StorePlan[Request, Any, Sequence[str]]:
        strays = yield from super().list_strays(after, 1000)
        cells: set[str] = yield lambda state: state.threads_with_cells()
        return [name for name in strays if name in cells][:limit]


class WhoSharesIsNoStray(MemoryStore):
    """Does not find strays through shared cells."""

    def list_strays(self, after: str | None, limit: int) -> StorePlan[Request, Any, Sequence[str]]:
        strays = yield from super().list_strays(after, 1000)
        own: set[str | None] = yield lambda state: {*state, *(shelf.thread_id for shelf in state.cells)}
        return [name for name in strays if name in own][:limit]


class WhatHasCellsIsAStray(MemoryStore):
    """Treats a thread with cells as a stray, even if it has checkpoints."""

    def list_strays(self, after: str | None, limit: int) -> StorePlan[Request, Any, Sequence[str]]:
        names: set[str] = yield lambda state: state.threads_with_cells()
        return sorted(name for name in names if name > (after or ""))[:limit]


class SeveralSwapsForgetWhatIsExpected(MemoryStore):
    """Writes each of several cells without comparing it."""

    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> StorePlan[Request, Any, Sequence[Swapped]]:
        there = yield from super().read_cells(shelf, [key for key, _, _ in swaps])
        blind = [(key, there[key].token if key in there else None, new) for key, _, new in swaps]
        replies = yield from super().swap_cells(shelf, blind)
        return replies


class OneRefusalStopsTheOthers(MemoryStore):
    """Stops several swaps at the first one that is refused."""

    def swap_cells(self, shelf: Shelf, swaps: Sequence[Swap]) -> StorePlan[Request, Any, Sequence[Swapped]]:
        replies: list[Swapped] = []
        for swap in swaps:
            is_over = any(not reply.done for reply in replies)
            replies.append(Swapped(False) if is_over else (yield from super().swap_cell(shelf, *swap)))
        return replies


class SearchesNarrowTooMuch(MemoryStore):
    """Treats a cell's first mark as its only one."""

    def find_cells(self, shelf: Shelf, search: Search) -> Searched:
        page = yield from super().find_cells(shelf, replace(search, marks=()))
        wanted = list(search.marks)
        return [(key, cell) for key, cell in page if wanted in ([], [*cell.marks][:1])]


class SearchesSortByKey(MemoryStore):
    """Finds cells in the order of their keys."""

    def find_cells(self, shelf: Shelf, search: Search) -> Searched:
        page = yield from super().find_cells(shelf, search)
        return sorted(page, key=lambda each: each[0])


class SearchesFindTheFirstRank(MemoryStore):
    """Keeps the rank that a cell had at its first write."""

    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> OneSwap:
        there = yield from super().read_cells(shelf, [key])
        kept = replace(new, rank=there[key].rank) if new is not None and new.rank and key in there else new
        swapped = yield from super().swap_cell(shelf, key, expected, kept)
        return swapped


class GroupsAreShownTwice(MemoryStore):
    """Begins a page of groups with the last group of the page before."""

    def find_cells(self, shelf: Shelf, search: Search) -> Searched:
        if search.is_grouped and search.after and len(search.after[1]) > 64:
            search = replace(search, after=(0, search.after[1][:64]))
        page = yield from super().find_cells(shelf, search)
        return page


CELLS: Mapping[str, Callable[[], MemoryStore]] = {
    store.__name__: store
    for store in (
        TheLastSwapWins,
        AnEmptyCellIsOpenToAll,
        ARequestSentAgainIsRefused,
        ARefusalTellsNothing,
        RenewingKeepsTheContent,
        PagesHaveBodies,
        PagesAreInTheOrderOfWriting,
        RemovesWhatHasChanged,
        DeleteLeavesCells,
        DeleteLeavesWhatWasShared,
        ThreadsShareTheirCells,
        CopiesHaveDoneTheSame,
        WritesAreNoStrays,
        WhoSharesIsNoStray,
        WhatHasCellsIsAStray,
        SeveralSwapsForgetWhatIsExpected,
        OneRefusalStopsTheOthers,
        SearchesNarrowTooMuch,
        SearchesSortByKey,
        SearchesFindTheFirstRank,
        GroupsAreShownTwice,
    )
}
