"""Invalid files cause named errors, and never wrong data."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSqliteSaver
from support.checkpoints import METADATA, checkpoint_of, config_for, value_of
from support.contract.bad_stores import FileLock, SqliteLock, put
from support.contract.bad_stores import path as path
from support.contract.bad_stores import store as store

from langgraph_keel import (
    CorruptStore,
    FileSaver,
    KeelError,
    NewerFormat,
    NotAKeelStore,
    NotFound,
    NotSetUp,
    ReadOnlyStore,
    SqliteSaver,
    StoreBusy,
    StoreError,
)


def both_ways(path: Path, error: type[KeelError], says: str) -> None:
    """Check that reading and writing, writable and read-only, raise the same error.

    The error names the file, which is not changed.
    """
    before = path.read_bytes() if path.is_file() else None
    for read_only in (False, True):
        for call in (value_of, lambda saver: put(saver, 9), lambda saver: list(saver.list(None))):
            with SqliteSaver(path, read_only=read_only) as saver, pytest.raises(KeelError) as caught:
                call(saver)
            assert isinstance(caught.value, (error, ReadOnlyStore) if read_only else error), repr(caught.value)
            assert str(path) in str(caught.value)
            assert isinstance(caught.value, ReadOnlyStore) or says in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    if error is NotAKeelStore:
        assert [each.name for each in path.parent.iterdir()] == [path.name]  # no lock file, no log


# -- other files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"# not a database\n" * 100, b"\x00" * 4096, b"SQLite format 3\x00" + b"\xff" * 4080]
)
def test_a_file_that_is_not_a_database_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    both_ways(path, NotAKeelStore, "not a SQLite database")


def test_a_database_of_langgraph_is_refused(path: Path) -> None:
    with LangGraphSqliteSaver.from_conn_string(str(path)) as theirs:
        theirs.put(config_for("t"), checkpoint_of("1", {}), METADATA, {})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    both_ways(path, NotAKeelStore, "LangGraph's SqliteSaver")
    both_ways(path, NotAKeelStore, f"`keel import {path} ")
    with LangGraphSqliteSaver.from_conn_string(str(path)) as theirs:
        assert theirs.get_tuple(config_for("t"))


@pytest.mark.parametrize(
    "mark", ["CREATE TABLE bookmarks (url)", "PRAGMA application_id = 12345", "CREATE TABLE threads (id)"]
)
def test_a_database_of_another_program_is_refused(path: Path, mark: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(mark)
        connection.execute("PRAGMA user_version = 1")
    both_ways(path, NotAKeelStore, "another program")


def test_a_newer_format_is_refused(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    both_ways(store, NewerFormat, "format 99")


@pytest.mark.parametrize("content", [None, b""])
def test_an_empty_file_becomes_a_store(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    with (
        SqliteSaver(path, auto_setup=False) as saver,
        pytest.raises(NotSetUp, match=r"keel\.db.*call saver\.setup"),
    ):
        value_of(saver)
    assert [each.name for each in path.parent.iterdir() if content is None] == []
    with SqliteSaver(path) as saver:
        put(saver, 1)
        assert value_of(saver) == 1


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    both_ways(tmp_path, StoreError, "is a directory: name a file in it")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("is_open", [False, True])
def test_file_saver_refuses_a_directory_with_a_keel_database(store: Path, read_only: bool, is_open: bool) -> None:
    (store.parent / "another.txt").write_text("a")
    with closing(SqliteSaver(store)) as other:
        if is_open:
            put(other, 6)
        else:
            other.close()
            store.with_name(f"{store.name}.lock").unlink(missing_ok=True)
        before = sorted(store.parent.iterdir())
        with (
            FileSaver(store.parent, read_only=read_only) as saver,
            pytest.raises(
                NotFound if read_only else NotAKeelStore, match=r"a SQLite database of Keel's, .*keel\.db: use"
            ),
        ):
            value_of(saver)
        assert sorted(store.parent.iterdir()) == before


def test_file_saver_refuses_a_directory_with_another_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url)")
    with FileSaver(path.parent) as saver, pytest.raises(NotAKeelStore, match=r"it contains 'keel\.db'"):
        value_of(saver)


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "keel.db"
    with SqliteSaver(path) as saver, pytest.raises(StoreError, match="missing does not exist: create it"):
        value_of(saver)
    assert not path.parent.exists()


def test_a_missing_file_is_an_error_if_read_only(path: Path) -> None:
    with SqliteSaver(path, read_only=True) as saver, pytest.raises(NotFound, match=r"keel\.db: there is no Keel store"):
        value_of(saver)
    assert not path.exists()


# -- locked ------------------------------------------------------------------------------------------------------------


def refused_while(path: Path, blocked: Callable[[], Any]) -> None:
    """Check that a write times out while reads work, and succeeds afterwards."""
    with SqliteSaver(path, timeout=0.4) as saver:
        assert value_of(saver) == 5
        with blocked():
            with pytest.raises(StoreBusy, match=r"keel\.db.*nothing was written"):
                put(saver, 6)
            with pytest.raises(TimeoutError):
                saver.put_writes(config_for("t", "00000005"), [("v", 1)], "task")
            assert value_of(saver) == 5
        # A write that was given up is not done later.
        put(saver, 7, "other")
        assert value_of(saver) == 5
        assert saver.get_tuple(config_for("t")).pending_writes == []  # type: ignore[union-attr]
        put(saver, 6)
        assert value_of(saver) == 6


@pytest.mark.parametrize("lock", [SqliteLock, FileLock])
def test_writes_to_a_locked_store_raise_store_busy(store: Path, lock: Any) -> None:
    refused_while(store, lambda: lock(store))


@pytest.mark.parametrize("lock", [SqliteLock, FileLock])
async def test_writes_to_a_locked_store_raise_store_busy_async(store: Path, lock: Any) -> None:
    with SqliteSaver(store, timeout=0.4) as saver:
        assert await saver.aget_tuple(config_for("t"))
        with lock(store), pytest.raises(StoreBusy, match=r"keel\.db.*nothing was written"):
            await saver.aput(config_for("t"), checkpoint_of("00000006", {"v": 6}), METADATA, {})
        await saver.aput(config_for("other"), checkpoint_of("00000001", {"v": 1}), METADATA, {})
        assert value_of(saver) == 5


@pytest.mark.parametrize("lock", [SqliteLock, FileLock])
def test_opening_a_locked_store_raises_store_busy(store: Path, lock: Any) -> None:
    with lock(store), SqliteSaver(store, timeout=0.4) as saver, pytest.raises(StoreBusy, match=r"keel\.db"):
        put(saver, 6)
    with SqliteSaver(store) as saver:
        assert value_of(saver) == 5


# -- damaged -----------------------------------------------------------------------------------------------------------


def everything(path: Path) -> Any:
    """Read every checkpoint, by id and by list; or raise the error."""
    with SqliteSaver(path) as saver:
        listed = [(found.checkpoint, found.metadata) for found in saver.list(config_for("t"))]
        single = [saver.get_tuple(config_for("t", f"{number:08}")) for number in range(1, 6)]
    return listed, [found and found.checkpoint for found in single], len(listed)


@pytest.mark.parametrize("keep", [0.01, 0.2, 0.5, 0.8, 0.99])
def test_a_truncated_file_is_refused(store: Path, keep: float) -> None:
    """The truncated file is refused, or the readable part is right."""
    right = everything(store)
    os.truncate(store, int(store.stat().st_size * keep))
    with pytest.raises((CorruptStore, NotAKeelStore, StoreError)) as caught:
        assert everything(store) != right, "half the file, and nobody noticed"
    assert str(store) in str(caught.value) or "thread 't'" in str(caught.value)


class Tally:
    """Counts the outcomes of reading damaged files."""

    def __init__(self, right: Any) -> None:
        self.expected = {checkpoint["id"]: (checkpoint, metadata) for checkpoint, metadata in right[0]}
        self.right = self.refused = 0
        self.wrong: list[str] = []

    def count(self, path: Path, what: str) -> None:
        try:
            found = everything(path)[0]
        except StoreError:
            self.refused += 1
        except Exception:
            self.wrong.append(f"{what}: {traceback.format_exc(limit=-3)}")
        else:
            self.judge(found, what)

    def judge(self, found: Any, what: str) -> None:
        """Check that no checkpoint has other data.

        It may be missing or have another id: SQLite has no checksum for its columns.
        """
        for checkpoint, metadata in found:
            if self.expected.get(checkpoint["id"], (checkpoint, metadata)) != (checkpoint, metadata):
                self.wrong.append(f"{what}: other data in {checkpoint['id']}")
        self.right += 1


def flipped(data: bytes, chance: random.Random, start: int = 0) -> bytes:
    place = chance.randrange(start, len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def test_flipped_bits_give_the_right_data_or_a_named_error(store: Path, tmp_path: Path) -> None:
    original, chance, tally = store.read_bytes(), random.Random(7), Tally(everything(store))
    for number in range(200):
        damaged = tmp_path / f"damaged{number}.db"
        damaged.write_bytes(flipped(original, chance, start=100))
        tally.count(damaged, f"file {number}")
    assert tally.right
    assert tally.refused
    assert not tally.wrong, "\n".join(tally.wrong)[:3000]


@pytest.mark.parametrize(("table", "column"), [("items", "body"), ("entries", "header"), ("entries", "refs")])
def test_flipped_bits_in_bodies_are_always_noticed(store: Path, tmp_path: Path, table: str, column: str) -> None:
    chance, tally = random.Random(8), Tally(everything(store))
    for number in range(60):
        damaged = tmp_path / f"damaged{number}.db"
        shutil.copy(store, damaged)
        damage_a_body(damaged, table, column, lambda body: flipped(body, chance))
        tally.count(damaged, f"file {number}")
    assert not tally.wrong, "\n".join(tally.wrong)[:3000]
    assert tally.refused == 60


def damage_a_body(path: Path, table: str, column: str, change: Callable[[bytes], bytes]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for key, body in connection.execute(f"SELECT key, {column} FROM {table}").fetchall():
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE key = ?", (change(body), key))


CHANGES: dict[str, Callable[[bytes], Any]] = {
    "empty": lambda body: b"",
    "cut": lambda body: body[:-1],
    "longer": lambda body: body + b"\x00",
    "another kind": lambda body: b"\x07" + body[1:],
    "no bytes": lambda body: 5,
    "null in it": lambda body: body[: len(body) // 2] + b"\xc1" * 4 + body[len(body) // 2 + 4 :],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("table", "column"), [("items", "body"), ("entries", "header"), ("entries", "refs")])
def test_damaged_bodies_raise_corrupt_store(store: Path, table: str, column: str, change: str) -> None:
    damage_a_body(store, table, column, CHANGES[change])
    with SqliteSaver(store) as saver:
        with pytest.raises(CorruptStore):
            saver.get_tuple(config_for("t"))
        put(saver, 1, "other")
        assert value_of(saver, "other") == 1


def test_missing_items_are_named(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("DELETE FROM items")
    with SqliteSaver(store) as saver, pytest.raises(CorruptStore, match="item 0 is missing"):
        saver.get_tuple(config_for("t"))
