"""The newest part of a long thread: a fresh process reads little, and is right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from support.saver_parts import driver_of

from langgraph_keel import CorruptStore, FileSaver, Retention
from langgraph_keel.backends.files import log as logs
from langgraph_keel.backends.files.log import Newest, line_of, parse_line
from langgraph_keel.backends.files.thread import ThreadFiles
from langgraph_keel.testing.rig import at, checkpoint_of, id_of

PUTS = 30
INDEX = b'{"k":"index"'


@pytest.fixture(autouse=True)
def _indexes_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write an index at about every third checkpoint, of twelve checkpoints."""
    monkeypatch.setattr(logs, "EACH", 4000)
    monkeypatch.setattr(logs, "SHARE", 1)
    monkeypatch.setattr(logs, "NEWEST", 12)


def put(saver: FileSaver, number: int, thread: str = "t", ns: str = "", name: str | None = None) -> None:
    """Store a checkpoint and its writes.

    It has a window of messages, a rarely changed value, and a growing one.
    """
    messages = [HumanMessage(f"message {each}", id=f"m{each}") for each in range(max(0, number - 5), number + 1)]
    values = {"messages": messages, "seldom": {"number": number // 15, "long": "x" * 50}, "words": ["word"] * number}
    versions: Any = dict.fromkeys(values, str(number))
    versions["seldom"] = str(number // 15)
    checkpoint: Any = checkpoint_of(name or f"{number:04}", values, channel_versions=versions)
    metadata: Any = {"source": "loop", "step": number, "parents": {}}
    parent = saver.get_tuple(at(thread, ns))
    config = saver.put(parent.config if parent else at(thread, ns), checkpoint, metadata, versions)
    saver.put_writes(config, [("messages", messages[-1])], "task")
    if number % 7 == 0:
        saver.put_writes(at(thread, ns, f"{number + 1:04}"), [("seldom", number)], "early")


def fill(root: Path, first: int = 0, last: int = PUTS, thread: str = "t") -> None:
    with FileSaver(root) as saver:
        for number in range(first, last):
            put(saver, number, thread)
            if number % 10 == 0:
                put(saver, number, thread, ns=f"sub:{number}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patched:
        shrink(patched)
        fill(root)
    return root


@pytest.fixture
def root(tmp_path: Path, made: Path) -> Path:
    shutil.copytree(made, tmp_path / "agents")
    return tmp_path / "agents"


def log_of(root: Path, thread: str = "t") -> Path:
    return root / "threads" / thread / "log.jsonl"


def edit(root: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the log as an editor or git does."""
    data = change(log_of(root).read_bytes())
    log_of(root).unlink()
    log_of(root).write_bytes(data)


QUESTIONS: dict[str, Callable[[FileSaver], Any]] = {
    "the latest": lambda saver: saver.get_tuple(at()),
    "ten": lambda saver: list(saver.list(at(), limit=10)),
    "one before": lambda saver: saver.get_tuple(at(checkpoint_id=f"{PUTS - 3:04}")),
    "no such id": lambda saver: saver.get_tuple(at(checkpoint_id="0999")),
    "all": lambda saver: list(saver.list(at())),
    "all namespaces": lambda saver: list(saver.list({"configurable": {"thread_id": "t"}})),
    "the first": lambda saver: saver.get_tuple(at(checkpoint_id="0000")),
    "an old one": lambda saver: saver.get_tuple(at(checkpoint_id="0017")),
    "no such old one": lambda saver: saver.get_tuple(at(checkpoint_id="0017x")),
    "before": lambda saver: list(saver.list(at(), before=at(checkpoint_id="0021"), limit=3)),
    "no subgraph": lambda saver: saver.get_tuple(at(ns="sub:11")),
    "a subgraph": lambda saver: saver.get_tuple(at(ns="sub:10")),
    "all threads": lambda saver: list(saver.list(None)),
    "how many": lambda saver: [(info.thread_id, info.checkpoints) for info in saver.threads()],
}
NEW = [*QUESTIONS][:4]


def answers(root: Path, names: Iterable[str] = QUESTIONS) -> dict[str, Any]:
    """Return the answer of a fresh process to each question, or that it finds damage."""

    def ask(question: Callable[[FileSaver], Any]) -> Any:
        with FileSaver(root, read_only=True) as saver:
            try:
                return question(saver)
            except CorruptStore:
                return CorruptStore

    return {name: ask(QUESTIONS[name]) for name in names}


def whole(root: Path, names: Iterable[str] = QUESTIONS) -> dict[str, Any]:
    """Return the answers of processes that read the whole log."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(logs, "MARK", b"\n{no index}")
        return answers(root, names)


def check_newest(root: Path, thread: str) -> None:
    """Check that an index and the whole log give the same newest checkpoints."""

    def read() -> Any:
        with FileSaver(root, read_only=True) as saver:
            return saver.get_tuple(at(thread)), list(saver.list(at(thread), limit=10))

    found = read()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(logs, "MARK", b"\n{no index}")
        assert found == read()


def test_a_new_process_gives_the_same_answers_and_reads_little(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole(root)
    assert answers(root) == expected
    assert len(expected["all"]) == PUTS
    monkeypatch.setattr(logs, "read_lines", lambda handle: pytest.fail("the whole log is read"))
    for name in NEW:
        with FileSaver(root, read_only=True) as saver:
            assert QUESTIONS[name](saver) == expected[name]


def test_a_process_with_only_the_newest_part_can_put(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "read_lines", lambda handle: pytest.fail("the whole log is read"))
    for number in range(PUTS, PUTS + 25):
        with FileSaver(root) as saver:
            put(saver, number)
            # private: nothing else says how much of a thread is in memory
            assert isinstance(driver_of(saver).thread("t")._replica.thread, Newest)
            assert saver.get_tuple(at()).checkpoint["id"] == f"{number:04}"  # type: ignore[union-attr]
    monkeypatch.undo()
    shrink(monkeypatch)
    fill(root, PUTS + 25, PUTS + 30)
    assert answers(root) == whole(root)


def test_two_savers_put_and_read_the_same(root: Path) -> None:
    with FileSaver(root) as ours, FileSaver(root) as theirs:
        for number in range(PUTS, PUTS + 30):
            put((ours, theirs)[number % 5 < 2], number)
            assert ours.get_tuple(at()) == theirs.get_tuple(at())
        assert len(list(ours.list(at()))) == PUTS + 30
    assert answers(root) == whole(root)


def test_a_checkpoint_stored_again_is_the_newest(root: Path) -> None:
    for number in range(PUTS, PUTS + 15):
        with FileSaver(root) as saver:
            put(saver, number)
            if number % 4 == 0:
                put(saver, number, name="0003")
    found = answers(root)
    assert found == whole(root)
    assert [id_of(each) for each in found["all"]].count("0003") == 1


def test_forks_of_an_old_checkpoint_are_read_correctly(root: Path) -> None:
    with FileSaver(root) as saver:
        old = saver.get_tuple(at(checkpoint_id="0002"))
        assert old is not None
        for number in range(8):
            checkpoint: Any = {**old.checkpoint, "id": f"{PUTS + number:04}"}
            saver.put(old.config, checkpoint, {"source": "fork", "step": 3, "parents": {}}, {})
            put(saver, PUTS + 10 + number)
    assert answers(root) == whole(root)


def test_a_prune_removes_the_index_and_a_put_creates_one(root: Path) -> None:
    with FileSaver(root) as saver:
        saver.prune(["t"], strategy=Retention(last=20))
    assert INDEX not in log_of(root).read_bytes()
    assert answers(root) == whole(root)
    fill(root, PUTS, PUTS + 3)
    assert INDEX in log_of(root).read_bytes()
    assert b'"0003"' not in log_of(root).read_bytes()
    assert answers(root) == whole(root)


def test_removed_checkpoints_disappear_before_the_log_is_replaced(root: Path) -> None:
    """The process is killed between the two steps of a prune."""
    with pytest.MonkeyPatch.context() as patched, FileSaver(root) as saver:
        patched.setattr(ThreadFiles, "replace_log", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            saver.prune(["t"], strategy=Retention(last=2))
    assert b'{"k":"gone"' in log_of(root).read_bytes()
    assert len(answers(root)["all"]) == 2
    assert answers(root) == whole(root)
    indexes = log_of(root).read_bytes().count(INDEX)
    fill(root, PUTS, PUTS + 10)
    assert log_of(root).read_bytes().count(INDEX) == indexes
    assert answers(root) == whole(root)


def test_a_copy_does_not_use_indexes_of_the_original(root: Path) -> None:
    with FileSaver(root) as saver:
        saver.copy_thread("t", "copy")
        saver.timeline("t")["0025"].fork("fork")
    for thread in ("copy", "fork"):
        indexes = log_of(root, thread).read_bytes().count(INDEX)
        check_newest(root, thread)
        fill(root, PUTS, PUTS + 2, thread)
        assert log_of(root, thread).read_bytes().count(INDEX) > indexes
        check_newest(root, thread)


def test_a_directory_copied_by_hand_is_read_correctly(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "threads" / "t", root / "threads" / "u")
    fill(root, PUTS, PUTS + 5, "u")
    for thread in ("t", "u"):
        check_newest(root, thread)


def test_a_namespace_continued_after_an_index_is_read_correctly(root: Path) -> None:
    """After the index, only channels that have changed since are known."""

    def put_sub(saver: FileSaver, number: int, last: int | None, **values: list[str]) -> None:
        versions: Any = dict.fromkeys(values, str(number))
        checkpoint: Any = checkpoint_of(f"{number:04}", values, channel_versions=versions)
        config = at(ns="sub", checkpoint_id=None if last is None else f"{last:04}")
        saver.put(config, checkpoint, {"source": "loop", "step": 0, "parents": {}}, versions)

    with FileSaver(root) as saver:
        put_sub(saver, 0, None, often=["x"], seldom=["y"])
        for number in range(PUTS, PUTS + 20):
            put(saver, number)
        put_sub(saver, 98, 0, often=["x", "x"])
    indexes = log_of(root).read_bytes().count(INDEX)
    while log_of(root).read_bytes().count(INDEX) == indexes:
        number += 1
        with FileSaver(root) as saver:
            put(saver, number)
    with FileSaver(root) as saver:
        put_sub(saver, 99, 98, often=["x"], seldom=["z"])
    assert answers(root) == whole(root)


def test_a_log_replaced_by_git_is_read_correctly(root: Path) -> None:
    """A checkout replaces the log by a diverged one; a process has read the old one."""
    shared = log_of(root).read_bytes()
    with FileSaver(root) as saver:
        for number in range(PUTS, PUTS + 10):
            put(saver, number)
        edit(root, lambda data: shared)
        assert id_of(saver.get_tuple(at())) == f"{PUTS - 1:04}"
        with FileSaver(root) as theirs:
            for number in range(PUTS, PUTS + 10):
                put(theirs, number, name=f"{number:04}x")
        assert id_of(saver.get_tuple(at())) == f"{PUTS + 9:04}x"
    assert answers(root) == whole(root)


EDITS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a line less": lambda lines: lines[:20] + lines[21:],
    "a line twice": lambda lines: lines[:20] + lines[19:],
    "two lines exchanged": lambda lines: [*lines[:20], lines[22], lines[21], lines[20], *lines[23:]],
    "as long": lambda lines: [line.replace(b"message 17", b"massage 17") for line in lines],
    "as long, at the end": lambda lines: [line.replace(b"message 28", b"massage 28") for line in lines],
    "longer": lambda lines: [line.replace(b"message 17", b"the message 17") for line in lines],
    "without the first": lambda lines: lines[1:],
    "NULs": lambda lines: [*lines[:20], bytes(len(lines[20])), *lines[21:]],
    "another index": lambda lines: [another_index(lines) if line.startswith(INDEX) else line for line in lines],
    "damaged indexes": lambda lines: [line.replace(INDEX, INDEX[:-1] + b"'") for line in lines],
}


def another_index(lines: list[bytes]) -> bytes:
    return next(line for line in lines if line.startswith(INDEX))


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_log_is_read_correctly(root: Path, name: str) -> None:
    """An answer matches the whole log, or the old one if it needs no changed line."""
    sound = answers(root)
    edit(root, lambda data: b"".join(EDITS[name](data.splitlines(keepends=True))))
    expected, found = whole(root), answers(root)
    assert found["all"] == expected["all"]
    assert all(found[name] in (expected[name], sound[name]) for name in QUESTIONS)


def test_a_repair_accepts_edited_lines(root: Path) -> None:
    edit(root, lambda data: data.replace(b"message 28", b"massage 28"))
    with FileSaver(root) as saver:
        assert [finding.kind for finding in saver.check()] == ["repairable"]
        list(saver.repair())
        assert not list(saver.check())
        latest = saver.get_tuple(at())
        assert latest is not None
        assert "massage 28" in [message.content for message in latest.checkpoint["channel_values"]["messages"]]
    assert answers(root) == whole(root)


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "at": lambda fields: {"at": fields["at"] + 1},
    "no lines": lambda fields: {"lines": []},
    "lines after it": lambda fields: {"lines": [*fields["lines"], [fields["at"], fields["at"] + 10]]},
    "the same lines again": lambda fields: {"lines": fields["lines"] * 2},
    "half a line": lambda fields: {"lines": [*fields["lines"][:-1], [fields["lines"][-1][0], fields["at"] - 5]]},
    "numbers of other types": lambda fields: {"lines": [["0", None]]},
    "no list": lambda fields: {"lines": 1, "ends": {}, "older": 5},
    "an end of another type": lambda fields: {"ends": [["", "words", "x"]]},
    "a negative end": lambda fields: {"ends": [["", "words", -1]]},
    "nothing": lambda fields: dict.fromkeys(("lines", "ends", "older")),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_index_that_does_not_match_is_not_used(root: Path, name: str) -> None:
    expected = whole(root, NEW)
    before, _, after = log_of(root).read_bytes().rpartition(b"\n" + INDEX)
    line, _, rest = after.partition(b"\n")
    fields = parse_line(INDEX + line)
    fields.pop("crc")
    edit(root, lambda data: before + b"\n" + line_of(fields | WRONG[name](fields)) + rest)
    assert answers(root, NEW) == expected


def test_a_log_cut_at_any_place_is_read_correctly(root: Path) -> None:
    """A kill or a power cut leaves it like this; the next write removes the remains."""
    data = log_of(root).read_bytes()
    begin = data.rindex(b"\n" + INDEX) + 1
    end = data.index(b"\n", begin)
    for cut in (begin - 1, begin, begin + 1, begin + 20, end, end + 1, end + 30, len(data) - 1, len(data) // 2):
        for rest in (b"", bytes(300)):
            edit(root, lambda _, cut=cut, rest=rest: data[:cut] + rest)  # type: ignore[misc]
            assert answers(root, NEW) == whole(root, NEW), cut
    edit(root, lambda _: data[: begin + 20])
    fill(root, PUTS, PUTS + 10)
    assert answers(root) == whole(root)


def test_a_failed_put_leaves_no_partial_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileSaver(root) as saver, monkeypatch.context() as patched:
        patched.setattr(logs, "EACH", 1)
        patched.setattr(os, "fdatasync", lambda handle: (_ for _ in ()).throw(OSError(5, "no")))
        with pytest.raises(Exception, match="disk failed"):
            put(saver, PUTS)
    assert answers(root) == whole(root)
    fill(root, PUTS, PUTS + 10)
    assert answers(root) == whole(root)


def test_a_short_thread_has_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "EACH", 65536)
    fill(tmp_path, last=12)
    assert INDEX not in log_of(tmp_path).read_bytes()


def test_indexes_are_a_small_part_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a thread that keeps all messages, each of which is in every index."""
    monkeypatch.undo()
    with FileSaver(tmp_path) as saver:
        for number in range(0, 900, 3):
            put(saver, number)
    lines = log_of(tmp_path).read_bytes().splitlines(keepends=True)
    indexes = sum(len(line) for line in lines if line.startswith(INDEX))
    assert 0 < indexes < sum(map(len, lines)) / 16
