"""A file store's index of threads is correct, and ignored if it may be outdated."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import orjson
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_keel import FileSaver
from langgraph_keel.backends.files import index
from langgraph_keel.backends.files.index import CHANGED, INDEX, changing
from langgraph_keel.engine.records import Page

THREADS = 12


@pytest.fixture(autouse=True)
def _is_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "LEAST", 0)
    monkeypatch.setattr(index, "SETTLED", 0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store with an index."""
    root = tmp_path / "store"
    with FileSaver(root) as saver:
        for number in range(THREADS):
            put(saver, f"t{number}")
        names(saver)  # creates `.changed`
        names(saver)  # and the index
    assert (root / "threads" / INDEX).exists()
    return root


def put(saver: FileSaver, thread_id: str) -> None:
    checkpoint = empty_checkpoint()
    checkpoint["ts"] = datetime.now(UTC).isoformat()
    config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})


def names(saver: FileSaver) -> list[str]:
    return [info.thread_id for info in saver.threads()]


def listed(root: Path) -> list[str]:
    """Return the threads that another process would list."""
    with FileSaver(root, read_only=True) as saver:
        return names(saver)


@contextmanager
def hidden(root: Path) -> Iterator[None]:
    """Let a version of Keel write that does not know the index."""
    changed = root / "threads" / CHANGED
    changed.rename(root / "aside")
    yield
    (root / "aside").rename(changed)


def test_changes_by_other_savers_are_listed(root: Path) -> None:
    with FileSaver(root) as ours, FileSaver(root) as others:
        assert names(ours)[0] == f"t{THREADS - 1}"
        put(others, "t3")
        assert names(ours)[0] == "t3" == listed(root)[0]
        put(others, "new")
        others.copy_thread("t5", "copy")
        others.delete_thread("t4")
        found = names(ours)
        assert found == listed(root)
        assert found[0] == "new"
        assert {"copy", "t4"} & {*found} == {"copy"}
        assert len(found) == THREADS + 1
        put(others, "t4")
        others.prune(["t4"])
        assert names(ours)[0] == "t4" == listed(root)[0]


def test_the_index_is_rewritten_when_many_threads_have_changed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_NEW", 3)
    before = (root / "threads" / INDEX).read_bytes()
    with FileSaver(root) as saver:
        for number in range(5):
            put(saver, f"t{number}")
        assert names(saver)[:5] == ["t4", "t3", "t2", "t1", "t0"]
        assert (root / "threads" / INDEX).read_bytes() != before
        assert listed(root) == names(saver)


def edited(root: Path, **fields: object) -> None:
    path = root / "threads" / INDEX
    head, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(orjson.dumps({**orjson.loads(head), **fields}) + b"\n" + body)


def cut(root: Path, to: float) -> None:
    path = root / "threads" / INDEX
    data = path.read_bytes()
    path.write_bytes(data[: int(to * len(data))])


def flip(root: Path) -> None:
    path = root / "threads" / INDEX
    path.write_bytes(path.read_bytes().replace(b'"t3"', b'"tX"'))


DOUBTS: dict[str, Callable[[Path], object]] = {
    "another version": lambda root: edited(root, version=99),
    "another boot": lambda root: edited(root, boot="another"),
    "of a copy": lambda root: edited(root, directory=[1, 2]),
    "old": lambda root: edited(root, made=monotonic() - 2 * index.BELIEVED),
    "of another list of names": lambda root: edited(root, token="other"),
    "no head": lambda root: edited(root, made="x"),
    "cut": lambda root: cut(root, 0.7),
    "empty": lambda root: cut(root, 0),
    "damaged": flip,
    "no names": lambda root: (root / "threads" / CHANGED).unlink(),
    "damaged names": lambda root: (root / "threads" / CHANGED).write_bytes(b"\xff\x00 x"),
    "in git": lambda root: (root.parent / ".git").mkdir(),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_the_index_is_not_used_if_a_log_may_be_newer(root: Path, doubt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SAMPLE", 0)
    with hidden(root), FileSaver(root) as saver:
        put(saver, "t3")
    assert listed(root)[0] != "t3", "an index that nobody doubts is used"
    DOUBTS[doubt](root)
    assert listed(root)[0] == "t3"


def test_an_unrecorded_change_of_a_log_is_noticed(root: Path) -> None:
    with hidden(root), FileSaver(root) as saver:
        put(saver, "t3")
    assert listed(root)[0] == "t3"


def test_a_copied_store_does_not_use_its_index(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SAMPLE", 0)
    shutil.copytree(root, tmp_path / "copy")
    with hidden(tmp_path / "copy"), FileSaver(tmp_path / "copy") as saver:
        put(saver, "t3")
    assert listed(tmp_path / "copy")[0] == "t3"


def test_a_thread_that_is_still_written_is_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SAMPLE", 0)
    monkeypatch.setattr(index, "SETTLED", 60.0)
    monkeypatch.setattr(index, "MOST_NEW", 0)
    with FileSaver(root) as saver, changing(str(root / "threads" / CHANGED), "t3"):
        assert names(saver)[0] != "t3"  # its log was read, and the index would be written again
        with hidden(root):
            put(saver, "t3")
        assert names(saver)[0] == "t3" == listed(root)[0]


def test_erasure_and_check_do_not_use_the_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SAMPLE", 0)
    with hidden(root), FileSaver(root) as saver:
        put(saver, "unknown")
    assert "unknown" not in listed(root)
    with FileSaver(root) as saver:
        page = saver.engine.run(saver.engine.session.store.read_threads(Page(None, 100)))
        assert page[0][0].thread_id == "unknown"
        assert list(saver.check()) == []


def test_readers_and_small_stores_create_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileSaver(tmp_path / "a") as saver:
        put(saver, "t")
        for _ in range(3):
            listed(tmp_path / "a")
        monkeypatch.setattr(index, "LEAST", 2)
        for _ in range(3):
            assert names(saver) == ["t"]
    assert not {INDEX, CHANGED} & {path.name for path in (tmp_path / "a" / "threads").iterdir()}


def test_a_list_of_changed_threads_without_readers_is_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "LARGEST", 100)
    with FileSaver(root) as saver:
        for _ in range(20):
            put(saver, "t3")
    assert not (root / "threads" / CHANGED).exists()
    assert listed(root)[0] == "t3"
