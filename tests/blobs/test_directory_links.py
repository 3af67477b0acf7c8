"""A directory of objects: links are not followed, and pipes do not block."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.blobs.threads import messages_of, put_images

from langgraph_keel import BlobLost, CorruptStore, KeelSaver, SqliteSaver, StoreUnavailable
from langgraph_keel.testing.rig import at


def _open(tmp_path: Path) -> KeelSaver:
    return SqliteSaver(tmp_path / "keel.db", blobs=f"file:{tmp_path}/objects")


def _object(tmp_path: Path) -> Path:
    with _open(tmp_path) as saver:
        put_images(saver, 1, writes=False)
    (found,) = (path for path in (tmp_path / "objects").rglob("*") if path.is_file())
    return found


def _link(path: Path) -> None:
    copied = path.with_name("copy")
    shutil.copy(path, copied)
    path.unlink()
    path.symlink_to(copied)  # with the same bytes


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)  # socket paths must be short
        server.bind(path.name[:20])
    os.rename(path.name[:20], path)


@pytest.mark.parametrize("replace", [_link, _directory, _pipe, _socket])
def test_a_non_file_in_place_of_an_object_counts_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    replace(_object(tmp_path))
    with _open(tmp_path) as saver:
        with pytest.raises(BlobLost):
            saver.get_tuple(at("t"))
        with pytest.raises(BlobLost):
            asyncio.run(saver.aget_tuple(at("t")))
        assert [finding.kind for finding in saver.check()] == ["lost"]


def test_a_directory_in_place_of_an_object_is_not_deleted(tmp_path: Path) -> None:
    path = _object(tmp_path)
    _directory(path)
    (path / "precious").write_text("x")
    with _open(tmp_path) as saver:
        saver.delete_thread("t")
    assert (path / "precious").read_text() == "x"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Another program's directory, with an old file without references."""
    directory = tmp_path / "theirs"
    directory.mkdir()
    (directory / "precious").write_text("x")
    os.utime(directory / "precious", (1, 1))
    return directory


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path, theirs: Path) -> None:
    path = _object(tmp_path)
    shutil.move(path, theirs / path.name)
    path.parent.rmdir()
    path.parent.symlink_to(theirs)
    with _open(tmp_path) as saver:
        with pytest.raises(BlobLost):
            messages_of(saver)
        with pytest.raises(CorruptStore, match="a link"):
            put_images(saver, 2, writes=False)
        saver.delete_thread("t")
        saver.retention.reclaim_space(full=True, strays=True)
    assert sorted(each.name for each in theirs.iterdir()) == sorted([path.name, "precious"])


def test_a_link_in_place_of_the_store_is_not_followed(tmp_path: Path, theirs: Path) -> None:
    store = _object(tmp_path).parent.parent
    shutil.copytree(store, theirs, dirs_exist_ok=True)
    shutil.rmtree(store)
    store.symlink_to(theirs)
    calls: list[Callable[[KeelSaver], Any]] = [
        messages_of,
        lambda saver: saver.retention.reclaim_space(full=True, strays=True),
    ]
    with _open(tmp_path) as saver:
        for call in calls:
            with pytest.raises(StoreUnavailable, match="a link"):
                call(saver)
    assert (theirs / "precious").read_text() == "x"
