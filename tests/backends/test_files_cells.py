"""FileSaver: cells as readable files, in git, with damage, links and deletions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from support.backends.files_cells import CODEC, LONG, OF_THREAD, SHARED, Verbs, cell, packed, put
from support.backends.files_cells import root as root
from support.backends.files_cells import saver as saver
from support.backends.files_cells import shelf as shelf
from support.places import file_findings
from support.saver_parts import driver_of
from support.stores.files import FilesUnderTest
from support.tiers import examples

from langgraph_keel import CorruptStore, FileSaver, ReadOnlyStore, StoreBusy
from langgraph_keel.backends.files import disk
from langgraph_keel.backends.files import disk as folders
from langgraph_keel.backends.files.cells import cell_of, key_in, name_of, text_of
from langgraph_keel.backends.files.disk import Folder
from langgraph_keel.engine.cells import Cell, Shelf, Swapped
from langgraph_keel.engine.encoding.bodies import frame, raw_frame
from langgraph_keel.retention.check import Finding
from langgraph_keel.testing.rig import SyncFace, at, id_of


@pytest.fixture
def verbs(saver: FileSaver) -> Verbs:
    return Verbs(saver)


# -- as text -----------------------------------------------------------------------------------------------------------


def test_a_person_can_read_a_cell(root: Path, verbs: Verbs) -> None:
    value = ToolMessage("12.10 m at 19:04", tool_call_id="c1")
    verbs.swap(OF_THREAD, "tides.1", None, cell("a1", value, origin="t", expires_at=7))
    text = (root / "threads/t/cells/tool/tides.1.json").read_bytes()
    shown = orjson.loads(text)
    assert text.count(b"\n") == 1
    assert list(shown) == ["k", "key", "token", "origin", "expires", "head", "body", "crc"]
    assert shown["head"] == {"state": "done"}
    assert shown["body"] == {"$role": "tool", "content": "12.10 m at 19:04", "tool_call_id": "c1"}
    verbs.swap(SHARED, "con", None, cell("b1"))
    assert [path.name for path in (root / "shared/tool").iterdir()] == ["%63on.json"]
    assert verbs.keys(SHARED) == ["con"]


framed = st.one_of(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9) | st.binary(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["$frame", "$", "a"]), inner),
    ).map(packed),
    st.binary(max_size=9),
    st.binary(max_size=9).map(frame),
    st.lists(st.integers(), max_size=3).map(CODEC.encode),
    st.sampled_from(["long " * 400, {"$frame": "AAAA"}]).map(packed),
    st.just(raw_frame(b"\x91\x92\x00\xda\x10\x00" + b"x" * 4096)),
)


@settings(max_examples=examples(300), deadline=None)
@given(framed, framed)
def test_any_bytes_in_a_cell_are_read_back(header: bytes, body: bytes) -> None:
    held = Cell("token", header, body, "größer", 1 << 60)
    text = text_of("k", held)
    assert cell_of(text, "k") == held
    assert cell_of(text.rstrip(b"\n"), "k", has_body=False) == replace(held, body=b"")


KEYS = {
    "a": "a.json",
    "0_.-": "0_.-.json",
    "a.": "a%2e.json",
    "nul.x": "%6eul.x.json",
    "a.json": "a.json.json",
    "x" * 128: "x" * 128 + ".json",
}


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_file_names_of_cells_are_part_of_the_format(key: str) -> None:
    assert name_of(key) == KEYS[key]
    assert key_in(KEYS[key]) == key


@pytest.mark.parametrize(
    "name",
    ["a", ".json", "%.json", "-a.json", "+a.json", "a b.json", "a.json.1a2b3c4d.tmp", "a.json~", "x" * 129 + ".json"],
)
def test_a_file_name_that_is_not_of_a_cell_is_recognized(name: str) -> None:
    assert key_in(name) is None


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", ["t", LONG, "T"], ids=["short", "long", "upper"])
def test_cells_alone_are_neither_a_thread_nor_a_finding(saver: FileSaver, verbs: Verbs, thread: str) -> None:
    shelf = Shelf(thread, "tool")
    verbs.swap(shelf, "k", None, cell("1"))
    verbs.swap(Shelf(thread, "gone"), "k", None, cell("1"))
    verbs.swap(Shelf(thread, "gone"), "k", "1", None)
    assert ([*saver.threads()], [*saver.list(None)], file_findings(saver)) == ([], [], [])
    put(saver, 3, thread)
    assert id_of(saver.get_tuple(at(thread))) == "0003"
    assert verbs.read(shelf, "k") == {"k": cell("1")}
    assert file_findings(saver) == []


def test_deleting_a_thread_leaves_no_files(root: Path, saver: FileSaver, verbs: Verbs) -> None:
    verbs.swap(OF_THREAD, "k", None, cell("1"))
    verbs.swap(SHARED, "k", None, cell("2", origin="t"))
    left = root / "shared/tool/k.json.12345678.tmp"
    left.write_bytes(text_of("k", cell("3", origin="t")))
    saver.delete_thread("t")
    files = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    settings = [f"{folder}/.git{what}" for folder in ("shared", "threads") for what in ("attributes", "ignore")]
    assert sorted(files) == ["keel.json", *settings]
    assert [*(root / "threads").glob("*t*")] == [*(root / "threads").glob(".git*")]


def test_a_refused_swap_creates_no_directory(root: Path, verbs: Verbs) -> None:
    assert verbs.swap(OF_THREAD, "k", "1", cell("2")) == Swapped(False)
    assert verbs.swap(OF_THREAD, "k", None, None) == verbs.swap(OF_THREAD, "k", "1", None) == Swapped(True)
    assert not (root / "threads/t").exists()


def test_a_swap_is_retried_after_a_concurrent_deletion(
    root: Path, saver: FileSaver, verbs: Verbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not write to a deleted directory, and the old content must still exist."""
    verbs.swap(OF_THREAD, "k", None, cell("1"))
    real, late = Folder.sync, iter([True, False])

    def sync(folder: Folder) -> None:
        if next(late, False):
            with FileSaver(root) as other:
                other.delete_thread("t")
        real(folder)

    monkeypatch.setattr(Folder, "sync", sync)
    assert verbs.swap(OF_THREAD, "k", "1", cell("2")) == Swapped(False)
    late = iter([True])
    assert verbs.swap(OF_THREAD, "k", None, cell("3")) == Swapped(True)
    assert verbs.read(OF_THREAD, "k") == {"k": cell("3")}


def test_remains_are_removed_and_an_interrupted_swap_is_retried(
    root: Path, verbs: Verbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs.swap(OF_THREAD, "k", None, cell("1"))
    shelf = root / "threads/t/cells/tool"
    (shelf / "k.json.12345678.tmp").write_bytes(b"{")
    real, late = disk.write_all, iter([True])

    def write_all(handle: int, data: bytes, place: int) -> None:
        real(handle, data, place)
        if next(late, False):
            with FileSaver(root) as other:
                Verbs(other).swap(OF_THREAD, "other", None, cell("3"))

    monkeypatch.setattr(folders, "write_all", write_all)
    assert verbs.swap(OF_THREAD, "k", "1", cell("2")) == Swapped(True)
    assert sorted(path.name for path in shelf.iterdir()) == ["k.json", "other.json"]
    assert verbs.read(OF_THREAD, "k", "other") == {"k": cell("2"), "other": cell("3")}


def test_a_read_only_store_changes_no_cell(root: Path, verbs: Verbs) -> None:
    verbs.swap(OF_THREAD, "k", None, cell("1"))
    with FileSaver(root, read_only=True) as reader:
        assert Verbs(reader).read(OF_THREAD, "k") == {"k": cell("1")}
        with pytest.raises(ReadOnlyStore):
            Verbs(reader).swap(OF_THREAD, "k", "1", None)


def test_only_a_swap_of_a_locked_cell_times_out(root: Path, verbs: Verbs) -> None:
    verbs.swap(OF_THREAD, "k", None, cell("1"))
    with FileSaver(root, timeout=0.05) as other:
        shelves = driver_of(other).cells("t")
        with shelves.open("tool") as folder, shelves._lock(folder, "k"):  # private: as another process would hold it
            with pytest.raises(StoreBusy, match=r"k\.json"):
                Verbs(other).swap(OF_THREAD, "k", "1", cell("2"))
            assert Verbs(other).swap(OF_THREAD, "other", None, cell("3")) == Swapped(True)
            assert Verbs(other).swap(OF_THREAD, "k", None, cell("2")) == Swapped(False, cell("1"))


# -- damage ------------------------------------------------------------------------------------------------------------


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing is left": lambda data: b"",
    "it is cut": lambda data: data[:50],
    "it was never written": lambda data: bytes(len(data)),
    "a letter": lambda data: data.replace(b"result", b"resuld"),
    "twice": lambda data: data + data,
    "a conflict of git": lambda data: b"<<<<<<< ours\n" + data + b"=======\n" + data + b">>>>>>> theirs\n",
    "of another key": lambda data: text_of("other", cell("1")),
    "a value that is none": lambda data: text_of("k", cell("1")).replace(b'"result"', b'{"$no":1}'),
}


def found(saver: FileSaver) -> list[Finding]:
    return [finding for finding in file_findings(saver) if finding.kind != "harmless"]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_reported_until_it_is_set_aside(
    root: Path,
    saver: FileSaver,
    verbs: Verbs,
    shelf: Shelf,
    damage: Callable[[bytes], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk, "BEGUN", 0.01)  # no other process is creating the file here
    verbs.swap(shelf, "k", None, cell("1"))
    verbs.swap(shelf, "sound", None, cell("1"))
    [path] = root.rglob("k.json")
    path.write_bytes(damaged := damage(path.read_bytes()))
    for call in (
        lambda: verbs.swap(shelf, "k", "1", cell("2")),
        lambda: verbs.swap(shelf, "k", None, cell("2")),
        lambda: verbs.read(shelf, "k"),
        lambda: verbs.face.verb("remove_cells", shelf, {"k": "1"}),
    ):
        with pytest.raises(CorruptStore, match=r"k\.json"):
            call()
    assert path.read_bytes() == damaged
    assert verbs.read(shelf, "sound") == {"sound": cell("1")}
    [finding] = found(saver)
    named = None if shelf.thread_id in (None, LONG) else shelf.thread_id
    assert (finding.kind, finding.thread_id, finding.path) == ("repairable", named, str(path))
    assert "called again" in finding.advice
    [repaired] = [each for each in saver.repair() if each.kind == "repairable"]
    [aside] = path.parent.glob("*.damaged-*")
    assert str(aside) in repaired.advice
    assert aside.read_bytes() == damaged
    assert file_findings(saver) == []
    assert verbs.keys(shelf) == ["sound"]
    assert verbs.swap(shelf, "k", None, cell("2")) == Swapped(True)


def test_deleting_a_thread_reports_a_damaged_shared_cell(root: Path, saver: FileSaver, verbs: Verbs) -> None:
    verbs.swap(OF_THREAD, "k", None, cell("1"))
    for key in "abc":
        verbs.swap(SHARED, key, None, cell("1", origin="t"))
    (root / "shared/tool/b.json").write_bytes(b"?\n")
    with pytest.raises(CorruptStore, match=r"b\.json"):
        saver.delete_thread("t")
    assert verbs.keys(OF_THREAD) == []
    assert [path.name for path in (root / "shared/tool").iterdir()] == ["b.json"]


def test_links_and_pipes_are_refused(root: Path, saver: FileSaver, verbs: Verbs, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "cells" / "tool").mkdir(parents=True)
    (elsewhere / "cells" / "tool" / "k.json").write_bytes(text_of("k", cell("1")))
    before = sorted(elsewhere.rglob("*"))
    saver.setup()
    for path, to in {
        "threads/whole": elsewhere,
        "threads/cells/cells": elsewhere / "cells",
        "threads/kind/cells/tool": elsewhere / "cells/tool",
        "threads/file/cells/tool/k.json": elsewhere / "cells/tool/k.json",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(to)
    (root / "threads/pipe/cells/tool").mkdir(parents=True)
    os.mkfifo(root / "threads/pipe/cells/tool/k.json")
    (root / "threads/directory/cells/tool/k.json").mkdir(parents=True)
    for thread in ("whole", "cells", "kind", "file", "pipe", "directory"):
        for new in (cell("2"), None):
            with pytest.raises(CorruptStore, match=r"link|regular file"):
                verbs.swap(Shelf(thread, "tool"), "k", "1", new)
        with pytest.raises(CorruptStore, match=r"link|regular file"):
            verbs.swap(Shelf(thread, "tool"), "k", None, cell("2"))
    assert {finding.thread_id for finding in found(saver)} >= {"cells", "kind", "file", "pipe", "directory"}
    assert sorted(elsewhere.rglob("*")) == before
    assert cell_of((elsewhere / "cells/tool/k.json").read_bytes(), "k") == cell("1")


def test_files_that_are_not_cells_are_left_alone(root: Path, saver: FileSaver, verbs: Verbs) -> None:
    verbs.swap(OF_THREAD, "k", None, cell("1"))
    strays = [root / "threads/t/cells/tool" / name for name in ("k copy.json", ".DS_Store", "K.json")]
    for stray in strays:
        stray.write_bytes(b"?")
    assert verbs.keys(OF_THREAD) == ["k"]
    assert sorted(Path(finding.path) for finding in file_findings(saver)) == sorted(strays)
    assert found(saver) == []


def test_two_savers_see_the_same_cells(tmp_path: Path) -> None:
    store = FilesUnderTest(tmp_path / "files")
    one, other = (SyncFace(store.open) for _ in range(2))
    one.verb("swap_cell", OF_THREAD, "k", None, cell("1"))
    assert other.verb("swap_cell", OF_THREAD, "k", "1", cell("2")) == Swapped(True)
    assert one.verb("read_cells", OF_THREAD, ["k"]) == {"k": cell("2")}
    store.close()
