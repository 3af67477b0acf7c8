"""The contract with all values over 1 KB in objects, which makes no difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.contract.brief import BriefContract
from support.stores import MemoryUnderTest, SqliteUnderTest

from langgraph_keel import KeelSaver
from langgraph_keel.blobs.store import LEAST


class WithBlobs:
    """A store whose savers keep values in objects if possible.

    `raw` adds the content of the objects.
    """

    def __init__(self, store: Any, objects: Path, **options: Any) -> None:
        self._store = store
        self._objects = objects
        self._options = {"blobs": f"file:{objects}", "blob_limit": LEAST, **options}

    def open(self, **options: Any) -> KeelSaver:
        saver: KeelSaver = self._store.open(**self._options, **options)
        return saver

    def wipe(self) -> None:
        self._store.wipe()

    def raw(self) -> bytes:
        files = (path for path in self._objects.rglob("*") if path.is_file())
        return b"\n".join([self._store.raw(), *(path.read_bytes() for path in files)])

    def close(self) -> None:
        self._store.close()


class BlobContract(BriefContract):
    """The contract without counts of trips, which tests/blobs checks.

    Large values take more trips.
    """

    most_trips = 20


for _name in (
    "test_each_operation_takes_one_round_trip",
    "test_each_operation_takes_one_round_trip_without_a_memo",
    "test_forking_takes_few_round_trips",
):
    setattr(BlobContract, _name, None)


class TestBlobsMemory(BlobContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Any:
        return WithBlobs(MemoryUnderTest(), tmp_path / "objects")


class TestBlobsSqlite(BlobContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Any]:
        store = SqliteUnderTest(str(tmp_path / "keel.db"))
        yield WithBlobs(store, tmp_path / "objects")
        store.close()
