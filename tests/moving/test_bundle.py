"""One thread as a file: whatever store it comes from and goes to; what is no whole bundle is refused by name."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from copies import told, write_history
from stores import MemoryUnderTest
from tiers import BACKENDS, sized

from langgraph_keel import (
    CorruptStore,
    InvalidInput,
    Keyring,
    LocalKey,
    MemorySaver,
    NewerFormat,
    NotAKeelStore,
    NotFound,
    ThreadExists,
)
from langgraph_keel.testing.faults import Fault, Injected, with_tap
from langgraph_keel.testing.rig import FACES, Rig, at, checkpoint_of, exact

NAMES = ("t", "delta", "stray", "a:b%{ü}/#1 \x1b[31m")


@pytest.fixture
def store(stores: Any, backend: str) -> Iterator[Any]:
    stores[backend].wipe()
    yield stores[backend]
    stores[backend].wipe()


@pytest.fixture(scope="module")
def kept() -> Any:
    backend = MemoryUnderTest()
    write_history(backend)
    return backend


@pytest.fixture
def bundle(kept: Any, tmp_path: Path) -> Path:
    kept.open().export_bundle("t", tmp_path / "t.keel")
    return tmp_path / "t.keel"


@pytest.mark.parametrize("backend", BACKENDS)
def test_from_and_into_any_store(store: Any, kept: Any, tmp_path: Path, backend: str) -> None:
    with store.open() as saver:
        assert kept.open().copy_to(saver).is_done
        for number, name in enumerate(NAMES):
            info = saver.export_bundle(name, tmp_path / f"{number}.keel")
            assert info.thread_id == name
            assert info.nbytes == (tmp_path / f"{number}.keel").stat().st_size
        was = told(saver)
    store.wipe()
    with store.open() as saver:
        saver.set_retention(*kept.open().retention())
        for number in range(len(NAMES)):
            saver.import_bundle(tmp_path / f"{number}.keel")
            saver.import_bundle(tmp_path / f"{number}.keel")  # the same again
        assert told(saver) == was


async def test_the_other_face(kept: Any, bundle: Path, tmp_path: Path) -> None:
    await kept.open().aexport_bundle("t", tmp_path / "again.keel")
    assert (tmp_path / "again.keel").read_bytes() == bundle.read_bytes()
    target = MemorySaver()
    info = await target.aimport_bundle(bundle)
    assert info.checkpoints == len(list(target.list(at("t", None)))) + 0
    assert exact(await asyncio.to_thread(lambda: [each.checkpoint for each in target.list(at())])) == exact(
        [each.checkpoint for each in kept.open().list(at())]
    )


def test_a_bundle_of_a_sealed_store_is_plain_and_only_its_owners(tmp_path: Path) -> None:
    saver = MemorySaver(encryption=Keyring(LocalKey("k1", bytes(range(32)))))
    saver.put(at(), checkpoint_of("1", {"n": "said"}, channel_versions={"n": 1}), {}, {"n": 1})  # type: ignore[arg-type]
    path = tmp_path / "t.keel"
    saver.export_bundle("t", path)
    content = path.read_bytes()[14:-32]
    assert b"said" in zstandard.ZstdDecompressor().stream_reader(content).read()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    target = MemorySaver()
    target.import_bundle(path)
    found = target.get_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"n": "said"}


def test_what_is_no_whole_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    content, target, path = bundle.read_bytes(), MemoryUnderTest(), tmp_path / "other.keel"
    for end in range(0, len(content), sized(97, 31, 7)):
        path.write_bytes(content[:end])
        with pytest.raises((CorruptStore, NotAKeelStore), match=r"other\.keel"):
            target.open().import_bundle(path)
    for place in range(0, len(content), sized(97, 31, 7)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises((CorruptStore, NotAKeelStore), match=r"other\.keel"):
            target.open().import_bundle(path)
    for changed, error in ((b"\0\2", NewerFormat), (b"\0\1\0", CorruptStore)):
        forged = content[:12] + changed + content[14:-32]
        path.write_bytes(forged + hashlib.sha256(forged).digest())
        with pytest.raises(error, match=r"other\.keel"):
            target.open().import_bundle(path)
    assert target.raw() == b""


def test_what_is_in_the_way(kept: Any, bundle: Path, tmp_path: Path) -> None:
    target = MemoryUnderTest()
    Rig(target, FACES["sync"]).author().put({"mine": 1})
    was = target.raw()
    with pytest.raises(ThreadExists, match="'t'"):
        target.open().import_bundle(bundle)
    assert was in target.raw()
    with pytest.raises(InvalidInput, match="is there already"):
        kept.open().export_bundle("t", bundle)
    with pytest.raises(NotFound, match="'none'"):
        kept.open().export_bundle("none", tmp_path / "none.keel")
    with pytest.raises(InvalidInput, match="cannot be written"):
        kept.open().export_bundle("t", tmp_path / "no" / "t.keel")
    with pytest.raises(NotFound, match="no file"):
        target.open().import_bundle(tmp_path / "none.keel")
    (tmp_path / "text.keel").write_text("hello")
    with pytest.raises(NotAKeelStore, match="no bundle"):
        target.open().import_bundle(tmp_path / "text.keel")


def test_cut_off_anywhere_it_goes_on(bundle: Path) -> None:
    whole = MemoryUnderTest()
    whole.open().import_bundle(bundle)
    fault, number = Fault(0), 0
    while fault.fired or number == 0:
        target, fault = MemoryUnderTest(), Fault(number)
        try:
            with_tap(target.open(), fault).import_bundle(bundle)
        except Injected:
            target.open().import_bundle(bundle)
        assert [exact(each) for each in target.open().list(at())] == [exact(each) for each in whole.open().list(at())]
        number += sized(17, 5, 1)
