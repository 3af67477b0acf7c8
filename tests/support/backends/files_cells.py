"""Cells of a file store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from langgraph_keel import FileSaver
from langgraph_keel.engine.cells import Cell, Shelf, Swapped
from langgraph_keel.engine.serde.serializer import Codec, KeelSerializer
from langgraph_keel.testing.rig import SyncFace, at, checkpoint_of

CODEC = Codec(KeelSerializer())


OF_THREAD, SHARED = Shelf("t", "tool"), Shelf(None, "tool")


LONG = "x" * 300


def packed(value: Any) -> bytes:
    return CODEC.encode([value])


def cell(token: str, value: Any = "result", **more: Any) -> Cell:
    return replace(Cell(token, packed({"state": "done"}), packed(value)), **more)


class Verbs:
    """The methods of a store in a directory."""

    def __init__(self, saver: FileSaver) -> None:
        self.face = SyncFace(lambda: saver)

    def swap(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> Swapped:
        swapped: Swapped = self.face.verb("swap_cell", shelf, key, expected, new)
        return swapped

    def read(self, shelf: Shelf, *keys: str) -> dict[str, Cell]:
        return dict(self.face.verb("read_cells", shelf, keys))

    def keys(self, shelf: Shelf) -> list[str]:
        return [key for key, _ in self.face.verb("list_cells", shelf, "", None, 100)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "agents"


@pytest.fixture
def saver(root: Path) -> Iterator[FileSaver]:
    with FileSaver(root) as saver:
        yield saver


@pytest.fixture(params=[OF_THREAD, SHARED, Shelf(LONG, "tool")], ids=["of a thread", "shared", "of a long id"])
def shelf(request: pytest.FixtureRequest) -> Shelf:
    shelf: Shelf = request.param
    return shelf


def put(saver: FileSaver, number: int, thread: str = "t", **values: Any) -> Any:
    checkpoint = checkpoint_of(f"{number:04}", {"list": [*range(number)], **values})
    return saver.put(at(thread), checkpoint, {}, {})  # type: ignore[arg-type]
