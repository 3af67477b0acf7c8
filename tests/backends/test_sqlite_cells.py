"""Cells in a SQLite file: waiting, reads of a listing, deletions, older stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.contract.bad_stores import FileLock, SqliteLock, path, store
from support.process_children import exit_code, forked

from langgraph_keel import CorruptStore, ReadOnlyStore, SqliteSaver, StoreBusy
from langgraph_keel.engine.cells import Cell, Shelf, Swapped
from langgraph_keel.engine.encoding.bodies import raw_frame
from langgraph_keel.testing.rig import AsyncFace, Face, SyncFace

__all__ = ["path", "store"]

SHELVES = [Shelf("t", "tool"), Shelf(None, "tool")]
ONE, TWO = (Cell(token, raw_frame(b"header"), raw_frame(b"body")) for token in "12")
PAGE = 512


@pytest.fixture(params=[SyncFace, AsyncFace])
def face(request: pytest.FixtureRequest, path: Path) -> Iterator[Face]:
    with SqliteSaver(path, timeout=0.4) as saver:
        face = request.param(lambda: saver)
        face.verb("swap_cell", SHELVES[0], "k", None, ONE)
        yield face
        face.close()


def swap(saver: SqliteSaver, *args: Any) -> Any:
    return SyncFace(lambda: saver).verb("swap_cell", *args)


def read(saver: SqliteSaver, shelf: Shelf, *keys: str) -> Any:
    return SyncFace(lambda: saver).verb("read_cells", shelf, keys)


def listed(saver: SqliteSaver, shelf: Shelf) -> list[str]:
    return [key for key, _ in SyncFace(lambda: saver).verb("list_cells", shelf, "", None, 100)]


@pytest.mark.parametrize("lock", [SqliteLock, FileLock])
def test_a_hit_does_not_wait_for_a_writer(face: Face, path: Path, lock: Any) -> None:
    with lock(path):
        assert face.verb("swap_cell", SHELVES[0], "k", None, TWO) == Swapped(False, ONE)
        assert face.verb("swap_cell", SHELVES[0], "k", None, ONE) == Swapped(True)
        with pytest.raises(StoreBusy, match="nothing was written"):
            face.verb("swap_cell", SHELVES[0], "k", "1", TWO)
        with pytest.raises(StoreBusy, match="nothing was written"):
            face.verb("swap_cell", SHELVES[0], "other", None, TWO)
    # A write that was given up is not done later.
    assert face.verb("swap_cell", SHELVES[0], "k", "1", TWO) == Swapped(True)
    assert face.verb("read_cells", SHELVES[0], ["k", "other"]) == {"k": TWO}


def test_a_refused_swap_writes_nothing(face: Face, path: Path) -> None:
    files = [path, path.with_name("keel.db-wal")]
    before = [file.read_bytes() for file in files]
    for expected in (None, "0"):
        assert face.verb("swap_cell", SHELVES[0], "k", expected, TWO) == Swapped(False, ONE)
    assert face.verb("swap_cell", SHELVES[0], "empty", "0", TWO) == Swapped(False)
    assert face.verb("swap_cell", SHELVES[1], "k", None, None) == Swapped(True)
    assert face.verb("remove_cells", SHELVES[0], {"k": "0"}) == 0
    assert [file.read_bytes() for file in files] == before


def test_a_listing_reads_no_bodies(path: Path) -> None:
    with SqliteSaver(path) as saver:
        for key in "abc":
            swap(saver, SHELVES[0], key, None, Cell("1", raw_frame(b"header"), raw_frame(b"B" * 50 * PAGE)))
    content = path.read_bytes()
    pages = [content[at : at + PAGE] for at in range(0, len(content), PAGE)]
    assert sum(page.endswith(b"B" * 100) for page in pages) > 140
    path.write_bytes(b"".join(bytes(PAGE) if page.endswith(b"B" * 100) else page for page in pages))
    with SqliteSaver(path) as saver:
        assert listed(saver, SHELVES[0]) == ["a", "b", "c"]
        with pytest.raises(CorruptStore):
            read(saver, SHELVES[0], "a")


@pytest.mark.parametrize("shelf", SHELVES, ids=["of a thread", "shared"])
@pytest.mark.parametrize("way", ["removed", "emptied", "replaced", "deleted"])
def test_deleted_cells_are_not_in_the_file(path: Path, shelf: Shelf, way: str) -> None:
    secret = Cell("1", raw_frame(b"SECRET-HEADER"), raw_frame(b"SECRET-BODY" * 200), origin="t")
    with SqliteSaver(path) as saver:
        swap(saver, shelf, "k", None, secret)
    assert path.read_bytes().count(b"SECRET-") > 100
    with SqliteSaver(path) as saver:
        match way:
            case "removed":
                SyncFace(lambda: saver).verb("remove_cells", shelf, {"k": "1"})
            case "deleted":
                saver.delete_thread("t")
            case _:
                swap(saver, shelf, "k", "1", None if way == "emptied" else TWO)
    assert b"SECRET-" not in path.read_bytes()


def test_a_read_only_saver_refuses_swaps(store: Path) -> None:
    with SqliteSaver(store) as saver:
        swap(saver, SHELVES[0], "k", None, ONE)
    with SqliteSaver(store, read_only=True) as saver:
        assert read(saver, SHELVES[0], "k") == {"k": ONE}
        assert listed(saver, SHELVES[0]) == ["k"]
        # Even if the cell exists: otherwise the stored data would decide whether a program runs.
        for key in ("k", "other"):
            with pytest.raises(ReadOnlyStore, match=r"keel\.db may only be read"):
                swap(saver, SHELVES[0], key, None, TWO)
        with pytest.raises(ReadOnlyStore, match=r"keel\.db may only be read"):
            SyncFace(lambda: saver).verb("remove_cells", SHELVES[0], {"k": "1"})


CHILDREN, KEYS = 6, 25


def claim_all(path: Path, who: int) -> None:
    """Claim every key, starting at a different one; store a result after each success."""
    with SqliteSaver(path) as saver:
        for n in range(KEYS):
            key = f"k{(n + who * 4) % KEYS:02}"
            claim = Cell(f"claim{who}", raw_frame(b"claim"))
            if swap(saver, SHELVES[1], key, None, claim).done:
                result = Cell(f"result{who}", raw_frame(b"result"), raw_frame(str(who).encode()))
                assert swap(saver, SHELVES[1], key, claim.token, result).done
                swap(saver, Shelf(f"of-{who}", "tool"), key, None, result)


def test_each_key_is_claimed_by_one_of_many_processes(path: Path) -> None:
    with SqliteSaver(path) as saver:
        children = [forked(claim_all, path, who) for who in range(CHILDREN)]
        assert [exit_code(child) for child in children] == [0] * CHILDREN
        keys = listed(saver, SHELVES[1])
        assert keys == [f"k{n:02}" for n in range(KEYS)]
        held = read(saver, SHELVES[1], *keys)
        won = [(who, key) for who in range(CHILDREN) for key in listed(saver, Shelf(f"of-{who}", "tool"))]
        assert sorted((f"result{who}", key) for who, key in won) == sorted((held[key].token, key) for key in keys)
