"""Strays: threads that hold something and show no checkpoint."""

from __future__ import annotations

from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.frames import frame
from langgraph_keel.testing.rig import Rig, RigFixtures, at

LONG = "größer/" * 100
"""An id that no file, and no index, takes as it is."""


def strays(rig: Rig, size: int = 100) -> list[str]:
    """Return the names of all strays, read in pages."""
    names: list[str] = []
    while True:
        page = rig.face.verb("list_strays", names[-1] if names else None, size)
        names += page
        if len(page) < size:
            return names


def fill(rig: Rig, thread_id: str | None, key: str = "k", origin: str = "") -> None:
    """Fill a cell of a thread."""
    rig.face.verb("swap_cell", Shelf(thread_id, "other"), key, None, Cell("1", frame(b"header"), origin=origin))


def write(rig: Rig, thread_id: str) -> None:
    """Store the writes of a task whose checkpoint is not there."""
    rig.face.put_writes(at(thread_id, checkpoint_id="00000000"), [("a", 1)], "task")


class StrayContract(RigFixtures):
    """`list_strays`."""

    def test_what_has_no_checkpoint_is_a_stray(self, rig: Rig) -> None:
        assert strays(rig) == []
        fill(rig, "cells")
        fill(rig, None, "shared", origin="Origin: of {something}")
        fill(rig, None, "nobody's")
        write(rig, "writes")
        assert sorted(strays(rig)) == ["Origin: of {something}", "cells", "writes"]

    def test_what_has_one_is_none(self, rig: Rig) -> None:
        for thread_id in ("all", "subgraph"):
            fill(rig, thread_id)
            fill(rig, None, f"of-{thread_id}", origin=thread_id)
            write(rig, thread_id)
        rig.author("all").put({"a": 1})
        rig.author("subgraph", "ns").put({"a": 1})
        assert strays(rig) == []
        rig.face.prune(["all"])
        assert strays(rig) == []

    def test_strays_are_read_in_pages(self, rig: Rig) -> None:
        for n in range(7):
            (fill if n % 2 else write)(rig, f"T{n}")
            rig.author(f"t{n}").put({"a": 1})
        names = sorted(f"T{n}" for n in range(7))
        assert [sorted(strays(rig, size)) for size in (1, 3, 7, 100)] == [names] * 4
        assert strays(rig, 3) == strays(rig)

    def test_a_stray_is_deleted_by_its_name_or_what_stands_for_it(self, warm: Rig) -> None:
        for thread_id in ("t", "T", LONG, LONG + "2"):
            fill(warm, thread_id)
        write(warm, LONG + "3")
        fill(warm, None, "shared", origin=LONG + "4")
        names = strays(warm)
        assert len(names) == 6
        assert len(strays(warm, 1)) == 6
        for name in names:
            warm.face.verb("delete_thread", name)
        assert strays(warm) == []
        assert warm.face.verb("read_cells", Shelf(LONG, "other"), ["k"]) == {}
        assert warm.face.verb("list_cells", Shelf(None, "other"), "", None, 9) == []
        assert "ößer".encode() not in warm.backend.raw()

    def test_a_thread_whose_checkpoints_all_go_is_a_stray(self, rig: Rig) -> None:
        run = "5f0c2a91-0000-4000-8000-000000000000"
        rig.author().put({"a": 1}, metadata={"run_id": run})
        fill(rig, "t")
        rig.face.delete_for_runs([run])
        assert strays(rig) == ["t"]
        rig.author().put({"a": 1})
        assert strays(rig) == []
