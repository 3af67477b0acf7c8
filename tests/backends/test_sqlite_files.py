"""The files of a SQLite store, and other programs' reads, which delay no writer."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from langgraph_keel import Retention, SqliteSaver, StoreBusy, StoreError
from langgraph_keel.backends.sqlite import driver as sqlite_driver
from langgraph_keel.backends.sqlite.driver import LockFile

CONFIG: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}


def put(saver: SqliteSaver, number: int, size: int = 10, value: bytes = b"") -> None:
    checkpoint: Any = {"v": 4, "id": f"{number:08}", "ts": "", "channel_versions": {}, "versions_seen": {}}
    saver.put(CONFIG, checkpoint | {"channel_values": {"a": value or os.urandom(size)}}, {}, {})


@contextmanager
def old_state(path: Path) -> Iterator[None]:
    """Read an old state in another program, as a backup does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        yield


def latest(saver: SqliteSaver) -> str:
    found = saver.get_tuple(CONFIG)
    assert found is not None
    return found.checkpoint["id"]


def test_a_relative_path_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    with SqliteSaver("keel.db") as saver:
        put(saver, 1)
        monkeypatch.chdir(tmp_path / "two")
        assert latest(saver) == "00000001"
        put(saver, 2)
        assert latest(saver) == "00000002"
    assert list((tmp_path / "two").iterdir()) == []


def test_a_link_is_resolved_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_driver, "WAL_BYTES", 100_000)
    (tmp_path / "link.db").symlink_to(tmp_path / "keel.db")
    with SqliteSaver(tmp_path / "link.db") as saver:
        for number in range(20):
            put(saver, number, 20_000)
        assert (tmp_path / "keel.db-wal").stat().st_size < 200_000
    assert not (tmp_path / "link.db.lock").exists()


def test_a_long_reader_does_not_delay_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_driver, "WAL_BYTES", 50_000)
    with SqliteSaver(tmp_path / "keel.db", timeout=20) as saver:
        put(saver, 0)
        with old_state(tmp_path / "keel.db"):
            began = time.monotonic()
            for number in range(1, 15):
                put(saver, number, 20_000)
            # If each checkpoint waited for the reader, it would take the whole timeout.
            assert time.monotonic() - began < 15
        assert latest(saver) == "00000014"


def test_a_log_is_reused_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_driver, "WAL_BYTES", 50_000)
    monkeypatch.setattr(sqlite_driver, "RESERVE", 150_000)
    log = tmp_path / "keel.db-wal"
    with SqliteSaver(tmp_path / "keel.db") as saver:
        sizes = []
        for number in range(30):
            put(saver, number, 10_000)
            sizes.append(log.stat().st_size)
        assert sizes == sorted(sizes)
        assert 50_000 < sizes[-1] < 100_000
        with old_state(tmp_path / "keel.db"):
            for number in range(30, 60):
                put(saver, number, 10_000)
        assert log.stat().st_size > 300_000
        for number in range(60, 70):
            put(saver, number, 10_000)
        assert log.stat().st_size == 150_000


@pytest.mark.parametrize("way", ["delete", "prune", "delete beside a reader"])
def test_removed_data_is_not_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(sqlite_driver, "LOOK_EVERY", 3)
    files = [tmp_path / "keel.db", tmp_path / "keel.db-wal"]
    with SqliteSaver(tmp_path / "keel.db") as saver:
        put(saver, 1, value=b"SECRET" * 100)
        put(saver, 2)
        assert any(b"SECRET" in file.read_bytes() for file in files)
        if way == "prune":
            saver.prune(["1"], strategy=Retention(last=1))
        else:
            with old_state(tmp_path / "keel.db") if "reader" in way else nullcontext():
                saver.delete_thread("1")
        if "reader" in way:
            assert any(b"SECRET" in file.read_bytes() for file in files)
            for number in range(3):
                put(saver, number)
        assert not any(b"SECRET" in file.read_bytes() for file in files)


def test_a_lock_file_that_fails_once_does_not_block_later_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that writes by itself releases its turn even after an error."""

    def fail(error: BaseException) -> Callable[[LockFile], bool]:
        def take(_: LockFile) -> bool:
            raise error

        return take

    with SqliteSaver(tmp_path / "keel.db", timeout=5) as saver, ThreadPoolExecutor(1) as pool:
        pool.submit(put, saver, 1).result()
        with monkeypatch.context() as patch:
            patch.setattr(LockFile, "take", fail(MemoryError("no memory")))
            with pytest.raises(MemoryError, match="no memory"):
                pool.submit(put, saver, 2).result()
            patch.setattr(LockFile, "take", fail(OSError(errno.ENOLCK, "no locks available")))
            pool.submit(put, saver, 3).result()  # by the writing thread, which waits for the lock in another way
        pool.submit(put, saver, 4).result()
        put(saver, 5)
        assert latest(saver) == "00000005"


@pytest.mark.parametrize("in_pool", [True, False], ids=["own thread", "writing thread"])
def test_failed_writes_leave_no_data(tmp_path: Path, in_pool: bool) -> None:
    """They are one statement, without a transaction to roll back."""
    with SqliteSaver(tmp_path / "keel.db", timeout=0.4) as saver, ThreadPoolExecutor(1) as pool:

        def write(value: str) -> None:
            args: Any = {"configurable": {**CONFIG["configurable"], "checkpoint_id": "00000001"}}, [("a", value)], value
            pool.submit(saver.put_writes, *args).result() if in_pool else saver.put_writes(*args)

        put(saver, 1)
        write("first")
        with closing(sqlite3.connect(tmp_path / "keel.db", isolation_level=None)) as other:
            other.execute("CREATE TRIGGER no BEFORE INSERT ON batches BEGIN SELECT RAISE(FAIL, 'no'); END")
            with pytest.raises(StoreError, match="no"):
                write("second")
            other.execute("DROP TRIGGER no")
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreBusy):
                write("third")
            other.execute("ROLLBACK")
        write("fourth")
        put(saver, 2)
        found = saver.get_tuple({"configurable": {**CONFIG["configurable"], "checkpoint_id": "00000001"}})
        assert found is not None
        assert [value for _, _, value in found.pending_writes or ()] == ["first", "fourth"]


def held() -> tuple[int, int]:
    """Return the number of threads and descriptors of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.parametrize("face", ["sync", "async"])
def test_unclosed_savers_release_their_resources(tmp_path: Path, face: str) -> None:
    async def aput_and_read(saver: SqliteSaver) -> None:
        await asyncio.to_thread(put, saver, 1)
        await saver.aget_tuple(CONFIG)

    def use(number: int) -> None:
        saver = SqliteSaver(tmp_path / f"{number}.db")
        if face == "async":
            asyncio.run(aput_and_read(saver))
        else:
            put(saver, 1)
            assert latest(saver) == "00000001"

    use(0)
    gc.collect()
    before = held()
    for number in range(20):
        use(number)
    gc.collect()
    until = time.monotonic() + 60
    while held() > before and time.monotonic() < until:  # each thread closes its resources, and ends
        time.sleep(0.01)
    assert held() <= before
