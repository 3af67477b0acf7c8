"""Cells: compare-and-set, fencing, pages, and deletion with their thread."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from langgraph_keel.engine.cells import Cell, Shelf, Swapped
from langgraph_keel.engine.encoding.bodies import frame
from langgraph_keel.engine.serde.serializer import Codec, KeelSerializer
from langgraph_keel.testing.faults import Counter, with_tap
from langgraph_keel.testing.rig import Rig, RigFixtures, at

OF_THREAD, SHARED = Shelf("t", "tool"), Shelf(None, "tool")
BODIES = [b"", b"small", bytes(range(256)), "größer \N{SNOWMAN} ".encode() * 20_000]


def cell(token: str, body: bytes = b"body", **more: object) -> Cell:
    """Return a cell with a header that names the token."""
    return replace(Cell(token, frame(b"header of " + token.encode()), frame(body)), **more)  # type: ignore[arg-type]


def legible(text: str) -> bytes:
    """Return a body with a text, as the ledger stores it."""
    return Codec(KeelSerializer()).encode([text])


def swap(rig: Rig, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> Swapped:
    """Swap a cell through the rig's face."""
    swapped: Swapped = rig.face.verb("swap_cell", shelf, key, expected, new)
    return swapped


def held(rig: Rig, shelf: Shelf, *keys: str) -> Mapping[str, Cell]:
    """Return the content of cells."""
    cells: Mapping[str, Cell] = rig.face.verb("read_cells", shelf, list(keys))
    return dict(cells)


def listed(rig: Rig, shelf: Shelf, prefix: str = "", size: int = 100) -> list[str]:
    """Return the keys of a shelf, read in pages."""
    keys: list[str] = []
    while True:
        page = rig.face.verb("list_cells", shelf, prefix, keys[-1] if keys else None, size)
        keys += [key for key, _ in page]
        if len(page) < size:
            return keys


class CellContract(RigFixtures):
    """`swap_cell`, `read_cells`, `list_cells`, `remove_cells`."""

    @pytest.fixture(params=[OF_THREAD, SHARED], ids=["of a thread", "shared"])
    def shelf(self, request: pytest.FixtureRequest) -> Shelf:
        """Return a shelf."""
        shelf: Shelf = request.param
        return shelf

    @pytest.mark.parametrize("body", BODIES, ids=len)
    def test_an_empty_cell_is_filled_and_read_back(self, rig: Rig, shelf: Shelf, body: bytes) -> None:
        new = cell("1", body, origin="t", expires_at=1_800_000_000_000)
        assert swap(rig, shelf, "k", None, new) == Swapped(True)
        assert held(rig, shelf, "k", "other") == {"k": new}
        ((key, header),) = rig.face.verb("list_cells", shelf, "", None, 10)
        assert (key, header) == ("k", replace(new, body=b""))

    def test_a_cell_without_a_body_has_none(self, rig: Rig, shelf: Shelf) -> None:
        new = replace(cell("1"), body=b"")
        swap(rig, shelf, "k", None, new)
        assert held(rig, shelf, "k") == {"k": new}

    def test_replacing_a_cell_requires_its_current_token(self, rig: Rig, shelf: Shelf) -> None:
        swap(rig, shelf, "k", None, cell("1"))
        for expected in (None, "0"):
            assert swap(rig, shelf, "k", expected, cell("2")) == Swapped(False, cell("1"))
        assert swap(rig, shelf, "k", "1", cell("2", b"two")) == Swapped(True)
        assert swap(rig, shelf, "k", "1", cell("3")) == Swapped(False, cell("2", b"two"))
        assert held(rig, shelf, "k") == {"k": cell("2", b"two")}

    def test_content_may_change_under_the_same_token(self, rig: Rig, shelf: Shelf) -> None:
        swap(rig, shelf, "k", None, cell("1"))
        renewed = replace(cell("1", b"renewed"), expires_at=7, header=frame(b"later"))
        assert swap(rig, shelf, "k", "1", renewed) == Swapped(True)
        assert held(rig, shelf, "k") == {"k": renewed}

    def test_a_repeated_swap_succeeds_and_changes_nothing(self, rig: Rig, shelf: Shelf) -> None:
        swap(rig, shelf, "k", None, cell("1"))
        assert swap(rig, shelf, "k", None, cell("1", b"again")) == Swapped(True)
        swap(rig, shelf, "k", "1", cell("2"))
        assert swap(rig, shelf, "k", "1", cell("2", b"again")) == Swapped(True)
        assert held(rig, shelf, "k") == {"k": cell("2")}

    def test_emptying_a_cell_requires_its_current_token(self, rig: Rig, shelf: Shelf) -> None:
        swap(rig, shelf, "k", None, cell("1"))
        assert swap(rig, shelf, "k", "0", None) == Swapped(False, cell("1"))
        assert swap(rig, shelf, "k", "1", None) == Swapped(True)
        assert swap(rig, shelf, "k", "1", None) == Swapped(True)
        assert held(rig, shelf, "k") == {}
        assert swap(rig, shelf, "k", "1", cell("2")) == Swapped(False, None)
        assert swap(rig, shelf, "k", None, cell("3")) == Swapped(True)

    def test_shelves_are_separate(self, rig: Rig) -> None:
        shelves = [OF_THREAD, SHARED, Shelf("t", "cache"), Shelf("u", "tool"), Shelf("T", "tool")]
        for n, shelf in enumerate(shelves):
            assert swap(rig, shelf, "k", None, cell(f"a{n}")) == Swapped(True)
        assert [held(rig, shelf, "k")["k"].token for shelf in shelves] == [f"a{n}" for n in range(len(shelves))]

    def test_pages_are_sorted_by_key(self, rig: Rig, shelf: Shelf) -> None:
        keys = ["b-2", "a.1", "b-10", "a_1", "b", "9", "c" * 128]
        for key in keys:
            swap(rig, shelf, key, None, cell(f"t{key[:3].strip('-._')}"))
        assert listed(rig, shelf) == listed(rig, shelf, size=2) == listed(rig, shelf, size=7) == sorted(keys)
        assert listed(rig, shelf, "b-", size=1) == ["b-10", "b-2"]
        assert listed(rig, shelf, "a.") == ["a.1"]

    def test_remove_cells_keeps_cells_with_another_token(self, rig: Rig, shelf: Shelf) -> None:
        for key in "abc":
            swap(rig, shelf, key, None, cell(f"{key}1"))
        swap(rig, shelf, "b", "b1", cell("b2"))
        assert rig.face.verb("remove_cells", shelf, {"a": "a1", "b": "b1", "missing": "x"}) == 1
        assert rig.face.verb("remove_cells", shelf, {}) == 0
        assert listed(rig, shelf) == ["b", "c"]

    def test_deleting_a_thread_deletes_its_own_and_its_shared_cells(self, rig: Rig) -> None:
        swap(rig, OF_THREAD, "k", None, replace(cell("1"), body=legible("SECRET-OF-A-THREAD")))
        swap(rig, SHARED, "mine", None, replace(cell("2"), body=legible("SECRET-THAT-IS-SHARED"), origin="t"))
        swap(rig, SHARED, "other", None, cell("3", origin="u"))
        swap(rig, Shelf("u", "tool"), "k", None, cell("4", origin="t"))
        rig.author().put({"a": 1})
        assert rig.backend.raw().count(b"SECRET-") == 2
        rig.face.delete_thread("t")
        assert held(rig, OF_THREAD, "k") == {}
        assert listed(rig, SHARED) == ["other"]
        assert held(rig, Shelf("u", "tool"), "k") == {"k": cell("4", origin="t")}
        assert b"SECRET-" not in rig.backend.raw()

    def test_a_thread_without_checkpoints_is_deleted_with_its_cells(self, rig: Rig) -> None:
        swap(rig, OF_THREAD, "k", None, cell("1"))
        rig.face.delete_thread("t")
        assert held(rig, OF_THREAD, "k") == {}

    def test_cells_alone_are_not_a_thread(self, rig: Rig) -> None:
        rig.author("source").put({"a": 1})
        swap(rig, OF_THREAD, "k", None, cell("1"))
        assert [info.thread_id for info in rig.face.saver.threads()] == ["source"]
        assert rig.face.get_tuple(at()) is None
        rig.face.copy_thread("source", "t")
        assert rig.face.read(at()).checkpoint["channel_values"] == {"a": 1}
        assert held(rig, OF_THREAD, "k") == {"k": cell("1")}

    def test_a_store_copies_no_cells(self, rig: Rig) -> None:
        """Hooks decide which cells belong to a copy."""
        rig.author().put({"a": 1})
        swap(rig, OF_THREAD, "k", None, cell("1"))
        rig.face.verb("copy_thread", "t", "copy")
        assert held(rig, Shelf("copy", "tool"), "k") == {}

    def test_pruning_keeps_cells(self, rig: Rig) -> None:
        other = Shelf("t", "other")  # the engine prunes the cells of tool calls itself
        swap(rig, other, "k", None, cell("1", BODIES[3]))
        rig.author().follow([{"a": n} for n in range(3)])
        rig.face.prune(["t"])
        assert held(rig, other, "k") == {"k": cell("1", BODIES[3])}

    def test_one_of_many_concurrent_swaps_wins(self, warm: Rig, shelf: Shelf) -> None:
        others = [warm.open() for _ in range(8)]

        def attempt(n: int) -> Swapped:
            swapped: Swapped = others[n].verb("swap_cell", shelf, "k", None, cell(f"n{n}"))
            return swapped

        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(attempt, range(8)))
        winners = [n for n, reply in enumerate(replies) if reply.done]
        assert len(winners) == 1
        assert held(warm, shelf, "k") == {"k": cell(f"n{winners[0]}")}
        assert {reply.cell for reply in replies if not reply.done} == {cell(f"n{winners[0]}")}

    def test_concurrent_counting_loses_no_increment(self, warm: Rig, shelf: Shelf) -> None:
        others = [warm.open() for _ in range(4)]

        def count(n: int) -> None:
            for turn in range(10):
                expected, done = None, False
                while not done:
                    total = 1 + int((expected or "0x").split("x")[0])
                    reply = others[n].verb("swap_cell", shelf, "k", expected, cell(f"{total}x{n}x{turn}"))
                    done, expected = reply.done, reply.cell and reply.cell.token

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count, range(4)))
        assert held(warm, shelf, "k")["k"].token.startswith("40x")

    def test_each_cell_verb_takes_one_round_trip(self, warm: Rig, shelf: Shelf) -> None:
        counter = Counter()
        face = warm.on(with_tap(warm.face.saver, counter))
        swap_args = [("k", None, cell("1")), ("k", None, cell("2")), ("k", "1", cell("3"))]
        trips = []
        for args in swap_args:
            face.verb("swap_cell", shelf, *args)
            trips.append(counter.taken())
        face.verb("read_cells", shelf, ["k", "l"])
        trips.append(counter.taken())
        face.verb("list_cells", shelf, "", None, 5)
        trips.append(counter.taken())
        face.verb("remove_cells", shelf, {"k": "3"})
        assert [*trips, counter.taken()] == [1] * 6
