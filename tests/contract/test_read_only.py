"""A read-only store can be read; a write to it is a named error."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.checkpoints import METADATA, checkpoint_of, config_for, value_of
from support.contract.bad_stores import path, put, store
from support.process_children import exit_code, forked

from langgraph_keel import ReadOnlyStore, SqliteSaver

__all__ = ["path", "store"]


def read_it(path: Path) -> None:
    with SqliteSaver(path, read_only=True) as saver:
        assert value_of(saver) == 5
        assert len(list(saver.list(config_for("t")))) == 5
        for call in (
            lambda: put(saver, 6),
            lambda: saver.put_writes(config_for("t", "00000005"), [("v", 1)], "task"),
            lambda: saver.delete_thread("t"),
            lambda: saver.prune(["t"]),
            lambda: saver.copy_thread("t", "u"),
        ):
            with pytest.raises(ReadOnlyStore, match=r"keel\.db may only be read"):
                call()
        assert value_of(saver) == 5


def test_a_read_only_saver_refuses_writes(store: Path) -> None:
    read_it(store)


def test_a_read_only_saver_sees_writes_of_another_saver(store: Path) -> None:
    with SqliteSaver(store) as writer, SqliteSaver(store, read_only=True) as reader:
        assert value_of(reader) == 5
        put(writer, 6)
        assert value_of(reader) == 6


async def test_a_read_only_saver_refuses_writes_async(store: Path) -> None:
    async with SqliteSaver(store, read_only=True) as saver:
        assert await saver.aget_tuple(config_for("t"))
        with pytest.raises(ReadOnlyStore, match=r"keel\.db"):
            await saver.aput(config_for("t"), checkpoint_of("9", {}), METADATA, {})


def unprivileged(work: Callable[[Path], None], path: Path) -> int:
    """Run `work` in a child that is not root."""
    return exit_code(forked(as_nobody, work, path))


def as_nobody(work: Callable[[Path], None], path: Path) -> None:
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    work(path)


@pytest.fixture
def locked_away(store: Path) -> Iterator[Path]:
    """Make a read-only store in a read-only directory, as on a CD."""
    directory = Path(tempfile.gettempdir()) / f"keel-read-only-{os.getpid()}"
    directory.mkdir()
    target = directory / "keel.db"
    shutil.copy(store, target)
    target.chmod(0o444)
    directory.chmod(0o555)
    yield target
    directory.chmod(0o755)
    shutil.rmtree(directory)


def write_it(path: Path) -> None:
    with SqliteSaver(path) as saver:
        with pytest.raises(ReadOnlyStore, match=r"keel\.db"):
            put(saver, 6)
        with pytest.raises(PermissionError):
            saver.delete_thread("t")


def only_read_it(path: Path) -> None:
    with SqliteSaver(path) as saver:
        assert value_of(saver) == 5


@pytest.mark.parametrize("work", [read_it, write_it, only_read_it])
def test_a_file_without_write_permission_can_only_be_read(locked_away: Path, work: Callable[[Path], None]) -> None:
    before = locked_away.read_bytes()
    assert unprivileged(work, locked_away) == 0
    assert locked_away.read_bytes() == before


def test_a_read_only_file_in_a_writable_directory_can_only_be_read(locked_away: Path) -> None:
    locked_away.parent.chmod(0o777)
    assert unprivileged(write_it, locked_away) == 0
    assert unprivileged(only_read_it, locked_away) == 0
    assert unprivileged(read_it, locked_away) == 0
