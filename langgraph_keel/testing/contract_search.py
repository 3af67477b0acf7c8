"""Ranked cells: several swaps in one request, and searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from langgraph_keel.engine.cells import BLOCK, Cell, Search, Shelf, Swap, Swapped
from langgraph_keel.engine.encoding.bodies import frame
from langgraph_keel.testing.contract_cells import OF_THREAD, SHARED, cell, held, listed, swap
from langgraph_keel.testing.rig import Face, Rig, RigFixtures

RED, BLUE = "0123abcd", "ffee0011"
FIRST = 1_800_000_000_000_000
"""A rank: microseconds since 1970."""


def block(n: int) -> str:
    """Return a block of a key."""
    return f"{n:x}" * BLOCK


def key_of(*blocks: int) -> str:
    """Return a key, by the digits of its four blocks."""
    return "".join(map(block, blocks))


def ranked(token: str, rank: int, *marks: str) -> Cell:
    """Return a cell that searches find."""
    return replace(cell(token), rank=FIRST + rank, marks=marks)


def fill(face: Face, shelf: Shelf, cells: Mapping[str, Cell]) -> None:
    """Fill empty cells, in one request."""
    swaps: list[Swap] = [(key, None, each) for key, each in cells.items()]
    assert face.verb("swap_cells", shelf, swaps) == [Swapped(True)] * len(swaps)


def found(face: Face, shelf: Shelf, search: Search) -> list[tuple[str, str]]:
    """Return the keys and tokens of the cells with a search's marks, read in pages."""
    cells: list[tuple[str, Cell]] = []
    while True:
        page = face.verb("find_cells", shelf, search)
        assert len(page) <= search.limit
        assert not {key for key, _ in page} & {key for key, _ in cells}
        cells += page
        if len(page) < search.limit:
            break
        search = replace(search, after=(page[-1][1].rank, page[-1][0]))
    assert all(each.body == b"" for _, each in cells)
    marks = {*search.marks}
    return [(key, each.token) for key, each in cells if search.is_bare or marks <= {*each.marks}]


class SearchContract(RigFixtures):
    """`swap_cells` and `find_cells`; `shelf` is the fixture of `CellContract`."""

    def test_each_of_several_swaps_is_decided_independently(self, rig: Rig, shelf: Shelf) -> None:
        swap(rig, shelf, "b", None, cell("b1"))
        swap(rig, shelf, "c", None, cell("c1"))
        swap(rig, shelf, "d", None, cell("d1"))
        asked: list[Swap] = [
            ("d", "d1", None),
            ("c", "c1", cell("c2")),
            ("b", "other", cell("b2")),
            ("e", "gone", cell("e1")),
            ("a", None, ranked("a1", 1)),
        ]
        replies = [Swapped(True), Swapped(True), Swapped(False, cell("b1")), Swapped(False), Swapped(True)]
        assert rig.face.verb("swap_cells", shelf, asked) == replies
        assert rig.face.verb("swap_cells", shelf, asked) == replies  # again, after a lost reply
        assert held(rig, shelf, *"abcde") == {"a": ranked("a1", 1), "b": cell("b1"), "c": cell("c2")}
        assert rig.face.verb("swap_cells", shelf, []) == []

    def test_rank_and_marks_are_read_back(self, rig: Rig, shelf: Shelf) -> None:
        new = replace(ranked("1", 5, RED, BLUE), origin="t", expires_at=1_800_000_000_000)
        assert swap(rig, shelf, key_of(1, 2, 3, 4), None, new) == Swapped(True)
        bodyless = [(key_of(1, 2, 3, 4), replace(new, body=b""))]
        assert held(rig, shelf, key_of(1, 2, 3, 4)) == {key_of(1, 2, 3, 4): new}
        assert [*rig.face.verb("list_cells", shelf, "", None, 10)] == bodyless
        for depth in range(5):
            search = Search(key_of(1, 2, 3, 4)[: depth * BLOCK], (BLUE,))
            assert [*rig.face.verb("find_cells", shelf, search)] == bodyless
        assert swap(rig, shelf, key_of(1, 2, 3, 4), "2", None) == Swapped(False, new)

    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    def test_the_highest_rank_comes_first(self, rig: Rig, shelf: Shelf, size: int) -> None:
        order = {key_of(1, 2, 3, n): ranked(f"t{n}", rank) for n, rank in enumerate([3, 1, 4, 1, 5, 9, 2, 6])}
        others = {key_of(1, 2, 4, 9): ranked("o1", 7), key_of(1, 3, 3, 9): ranked("o2", 8), "plain": cell("p")}
        fill(rig.face, shelf, order | others)
        tokens = ["t5", "t7", "t4", "t2", "t0", "t6", "t1", "t3"]

        def tokens_of(prefix: str) -> list[str]:
            return [token for _, token in found(rig.face, shelf, Search(prefix, limit=size))]

        assert [token for token in tokens_of(key_of(1, 2, 3)) if token[0] == "t"] == tokens
        assert tokens_of(key_of(1, 2)) == ["t5", "o1", *tokens[1:]]
        assert tokens_of(key_of(1)) == tokens_of("") == ["t5", "o2", "o1", *tokens[1:]]
        assert tokens_of(key_of(2)) == tokens_of(key_of(1, 1)) == []

    def test_a_search_by_marks_finds_exactly_the_matches(self, rig: Rig, shelf: Shelf) -> None:
        cells = {
            key_of(1, 2, 3, n): ranked(f"t{n}", n, *([RED] if n % 2 else []), *([BLUE] if n % 3 else []))
            for n in range(12)
        }
        fill(rig.face, shelf, cells)
        for prefix in ("", key_of(1, 2)):
            for marks in ((), (RED,), (BLUE,), (RED, BLUE)):
                expected = [each.token for each in reversed(cells.values()) if {*marks} <= {*each.marks}]
                for size in (2, 100):
                    search = Search(prefix, marks, limit=size)
                    assert [token for _, token in found(rig.face, shelf, search)] == expected

    def test_searches_follow_changes_and_removals_of_cells(self, rig: Rig, shelf: Shelf) -> None:
        keys = [key_of(1, 2, 3, n) for n in range(4)]
        fill(rig.face, shelf, {key: ranked(f"t{n}", n, RED) for n, key in enumerate(keys)})
        swap(rig, shelf, keys[0], "t0", ranked("t0b", 9, BLUE))
        swap(rig, shelf, keys[2], "t2", None)
        assert rig.face.verb("remove_cells", shelf, {keys[3]: "t3"}) == 1
        for prefix in ("", key_of(1, 2)):
            assert found(rig.face, shelf, Search(prefix)) == [(keys[0], "t0b"), (keys[1], "t1")]
            assert found(rig.face, shelf, Search(prefix, (RED,))) == [(keys[1], "t1")]
        swap(rig, shelf, keys[1], "t1", cell("unranked"))
        assert found(rig.face, shelf, Search(key_of(1, 2))) == [(keys[0], "t0b")]
        assert listed(rig, shelf) == keys[:2]

    @pytest.mark.parametrize("size", [1, 2, 100])
    def test_a_grouped_search_returns_one_cell_per_group(self, rig: Rig, shelf: Shelf, size: int) -> None:
        groups = [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3)]
        cells = {key_of(*group, n): ranked(f"t{n}", n) for group in groups for n in range(3)}
        fill(rig.face, shelf, cells | {key_of(3, 3, 3, 3): cell("plain")})

        def groups_of(prefix: str) -> list[str]:
            pages = found(rig.face, shelf, Search(prefix, limit=size, is_grouped=True))
            return [key[:-BLOCK] for key, _ in pages]

        assert groups_of("") == [key_of(*group) for group in groups]
        assert groups_of(key_of(1)) == [key_of(*group) for group in groups[:3]]
        assert groups_of(key_of(1, 2)) == [key_of(*group) for group in groups[:2]]

    def test_a_bare_search_returns_keys_tokens_and_ranks(self, rig: Rig, shelf: Shelf) -> None:
        expiring = replace(ranked("t2", 2, RED), expires_at=1_800_000_000_000)
        fill(rig.face, shelf, {key_of(1, 2, 3, 4): ranked("t1", 1), key_of(1, 2, 3, 5): expiring})
        for prefix in ("", key_of(1, 2)):
            page = rig.face.verb("find_cells", shelf, Search(prefix, is_bare=True))
            assert [(key, each.token, each.rank, each.expires_at) for key, each in page] == [
                (key_of(1, 2, 3, 5), "t2", FIRST + 2, 1_800_000_000_000),
                (key_of(1, 2, 3, 4), "t1", FIRST + 1, None),
            ]

    def test_searches_ignore_cells_without_a_rank(self, rig: Rig, shelf: Shelf) -> None:
        plain = {key_of(1, 2, 3, n): Cell(f"p{n}", frame(b"a 7 " + RED.encode())) for n in range(2)}
        fill(rig.face, shelf, plain | {key_of(1, 2, 3, 9): ranked("t", 1, RED)})
        for prefix in ("", key_of(1, 2)):
            assert found(rig.face, shelf, Search(prefix)) == [(key_of(1, 2, 3, 9), "t")]
        assert rig.face.verb("remove_cells", shelf, {key: each.token for key, each in plain.items()}) == 2
        assert listed(rig, shelf) == [key_of(1, 2, 3, 9)]

    def test_ranked_cells_are_deleted_only_with_their_origin(self, rig: Rig) -> None:
        rig.author().put({"a": 1})
        mine = {key_of(1, 2, 3, 4): replace(ranked("1", 1), origin="t"), key_of(1, 2, 3, 5): ranked("2", 2)}
        fill(rig.face, SHARED, mine)
        rig.face.delete_thread("t")
        assert found(rig.face, SHARED, Search(key_of(1, 2))) == [(key_of(1, 2, 3, 5), "2")]
        assert listed(rig, SHARED) == [key_of(1, 2, 3, 5)]

    def test_shelves_are_searched_separately(self, rig: Rig) -> None:
        shelves = [OF_THREAD, SHARED, Shelf("u", "ranked"), Shelf(None, "other")]
        for n, shelf in enumerate(shelves):
            fill(rig.face, shelf, {key_of(1, 2, 3, 4): ranked(f"t{n}", n)})
        for n, shelf in enumerate(shelves):
            for search in (Search(), Search(key_of(1, 2)), Search(is_grouped=True)):
                assert found(rig.face, shelf, search) == [(key_of(1, 2, 3, 4), f"t{n}")]
