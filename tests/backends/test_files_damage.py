"""FileSaver: remains of interrupted writes are ignored, other damage is reported."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.backends.files_cells import put
from support.saver_parts import driver_of

from langgraph_keel import CorruptStore, FileSaver, NewerFormat, NotAKeelStore, StoreError
from langgraph_keel.backends.files import disk
from langgraph_keel.backends.files import thread as threads
from langgraph_keel.backends.files.log import line_of
from langgraph_keel.testing.rig import at, id_of, values_of

PUTS = 6


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(disk, "BEGUN", 0.01)  # no other process is creating a file here, whose first line to await
    return tmp_path / "agents"


def log_of(root: Path, thread: str = "t") -> Path:
    return root / "threads" / thread / "log.jsonl"


def ids(root: Path, thread: str = "t") -> list[str | None]:
    with FileSaver(root) as saver:
        return [id_of(found) for found in saver.list(at(thread))][::-1]


@pytest.fixture
def log(root: Path) -> Path:
    """The log of a thread with six checkpoints and writes."""
    with FileSaver(root) as saver:
        for number in range(PUTS):
            config = put(saver, number)
        saver.put_writes(config, [("list", 1)], "task")
        put(saver, PUTS)
    return log_of(root)


EVERYTHING = [f"{number:04}" for number in range(PUTS + 1)]


@pytest.mark.slow
def test_every_prefix_of_a_log_is_an_earlier_state(root: Path, log: Path) -> None:
    """Cut anywhere after its first line, a log is sound, and can be continued."""
    data = log.read_bytes()
    first = data.index(b"\n") + 1
    for end in range(first, len(data), 7):
        log.write_bytes(data[:end])
        there = ids(root)
        assert there == EVERYTHING[: len(there)]
        assert len(there) in (data[:end].count(b'"k":"ckpt"') - 1, data[:end].count(b'"k":"ckpt"'))
        with FileSaver(root) as saver:
            put(saver, 99)
        assert ids(root) == [*there, "0099"]


def last_line(data: bytes) -> int:
    return data.rindex(b"\n", 0, -1) + 1


def nul(data: bytes, lo: int, hi: int) -> bytes:
    return data[:lo] + b"\0" * (hi - lo) + data[hi:]


def test_unwritten_sectors_are_ignored(root: Path, log: Path) -> None:
    data = log.read_bytes()
    last = last_line(data)
    item = data.rindex(b'{"k":"item"', 0, last)
    for lo, hi in ((item + 5, item + 30), (item, last), (item, last + 9), (last + 3, len(data)), (item, len(data))):
        log.write_bytes(nul(data, lo, hi))
        assert ids(root) == EVERYTHING[:-1]


def test_an_unwritten_sector_with_only_a_line_feed_is_ignored(root: Path, log: Path) -> None:
    """For a checkpoint, and for writes, which are a line by themselves."""
    data = log.read_bytes()
    for end in (len(data), data.index(b"\n", data.index(b'{"k":"writes"')) + 1):
        log.write_bytes(nul(data[:end], end - 1, end))
        assert ids(root) == EVERYTHING[:-1]
        with FileSaver(root) as saver:
            put(saver, 99)
        assert ids(root) == [*EVERYTHING[:-1], "0099"]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing is left": lambda data: b"",
    "the first line is cut": lambda data: data[:20],
    "all of it was never written": lambda data: bytes(len(data)),
    "a letter of the last line": lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:],
    "a letter in the middle": lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:],
    "the line feed of the last line": lambda data: data[:-1] + b"\x0b",
    "NUL in a transaction before the last": lambda data: nul(data, data.index(b'"0003"') - 9, data.index(b'"0003"')),
    "NUL over writes, before a sound checkpoint": lambda data: nul(
        data, data.index(b'"k":"writes"'), data.index(b'"k":"writes"') + 9
    ),
    "NUL between two transactions of a line": lambda data: nul(
        data + data[data.index(b'{"k":"writes"') :].partition(b"\n")[0] + b"\n",
        len(data) - 9,
        len(data),
    ),
    "a letter, and a NUL after it": lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:] + b"\0",
    "a line twice": lambda data: data + data[last_line(data) :],
    "two logs": lambda data: data + data,
    "a conflict of git": lambda data: data.replace(b'{"k":"writes"', b'<<<<<<< ours\n{"k":"writes"'),
    "line ends of Windows": lambda data: data.replace(b"\n", b"\r\n"),
    "a mark of the byte order": lambda data: b"\xef\xbb\xbf" + data,
    "an unknown kind": lambda data: data + line_of({"k": "later", "what": 1}),
    "a kind that is no text": lambda data: data + line_of({"k": [], "what": 1}),
    "a list": lambda data: data + b"[1]\n",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named_and_not_overwritten(root: Path, log: Path, damage: Callable[[bytes], bytes]) -> None:
    with FileSaver(root) as saver:
        put(saver, 1, "other")
    log.write_bytes(damaged := damage(log.read_bytes()))
    with FileSaver(root) as saver:
        calls: list[Callable[[], object]] = [
            lambda: saver.get_tuple(at()),
            lambda: put(saver, 99),
            lambda: saver.put_writes(at("t", "", "0001"), [("a", 1)], "task"),
            lambda: saver.prune(["t"]),
            lambda: [*saver.list(None)],
        ]
        for call in calls:
            with pytest.raises(CorruptStore, match=r"threads/t/log\.jsonl.* byte \d+"):
                call()
        assert log.read_bytes() == damaged
        assert [finding.thread_id for finding in saver.check() if finding.kind == "repairable"] == ["t"]
        assert values_of(saver.get_tuple(at("other")) or pytest.fail("gone")) == {"list": [0]}
        [*saver.repair()]
        assert [finding for finding in saver.check() if finding.kind != "harmless"] == []
        put(saver, 99)
        assert (id_of(saver.get_tuple(at()))) == "0099"
    [aside] = log.parent.glob("*.damaged-*")
    assert aside.read_bytes() == damaged


@pytest.mark.parametrize(
    "name", ["id", "parent", "seq", "at", "ch", "head", "task", "path", "w", "n", "v", "epoch", "ns"]
)
@pytest.mark.parametrize("value", [None, [], {}, 5, -1, 0.5, "no", True, 1 << 60, {"$blob": 5}, [[]], [5]], ids=repr)
def test_a_field_of_the_wrong_type_raises_only_corrupt_store(root: Path, log: Path, name: str, value: Any) -> None:
    """The checksums fit, as an attacker would make them; no other error is raised."""
    lines = []
    for line in log.read_bytes().splitlines():
        fields = orjson.loads(line)
        fields.pop("crc")
        lines.append(line_of({**fields, **({name: value} if name in fields else {})}))
    log.write_bytes(b"".join(lines))
    with FileSaver(root) as saver:
        for call in (lambda: [*saver.list(at())], lambda: [*saver.threads()], lambda: put(saver, 99)):
            with suppress(CorruptStore):
                call()


def test_a_last_line_without_its_line_end_counts(root: Path, log: Path) -> None:
    """An editor or a kill removed it; two processes still see the line and continue."""
    log.write_bytes(log.read_bytes()[:-1])
    with FileSaver(root) as first, FileSaver(root) as second:
        assert id_of(first.get_tuple(at())) == id_of(second.get_tuple(at())) == EVERYTHING[-1]
        put(first, 7)
        assert id_of(second.get_tuple(at())) == id_of(first.get_tuple(at())) == "0007"
        put(second, 8)
    assert ids(root) == [*EVERYTHING, "0007", "0008"]


def test_a_newer_format_is_refused(root: Path, log: Path) -> None:
    first, _, rest = log.read_bytes().partition(b"\n")
    fields = orjson.loads(first)
    fields.pop("crc")
    log.write_bytes(line_of({**fields, "format": 2}) + rest)
    with FileSaver(root) as saver, pytest.raises(NewerFormat, match="upgrade"):
        saver.get_tuple(at())
    (root / "keel.json").write_bytes(b'{"keel":"files","format":2}')
    with FileSaver(root) as saver, pytest.raises(NewerFormat):
        saver.get_tuple(at())


@pytest.mark.parametrize(
    "mark", ["", "{}", "[]", '{"keel":"sqlite","format":1}', '{"keel":"files","format":true}', "\0"]
)
def test_a_foreign_format_mark_is_refused(root: Path, log: Path, mark: str) -> None:
    (root / "keel.json").write_text(mark)
    with FileSaver(root) as saver, pytest.raises(NotAKeelStore):
        saver.get_tuple(at())


# -- large values ----------------------------------------------------------------------------------------------


def test_the_file_of_a_large_value_is_checked(root: Path) -> None:
    with FileSaver(root) as saver:
        put(saver, 1, big="x" * 70_000)
        [blob] = (root / "threads" / "t" / "blobs").iterdir()
        assert orjson.loads(blob.read_bytes()) == "x" * 70_000
        for break_it in (lambda: blob.write_bytes(b'"y"'), blob.unlink, lambda: os.mkfifo(blob)):
            break_it()
            with FileSaver(root) as fresh, pytest.raises(CorruptStore):
                fresh.get_tuple(at())
        assert "lost" in {finding.kind for finding in saver.check()}


def test_compaction_removes_unreferenced_values(root: Path) -> None:
    with FileSaver(root) as saver, FileSaver(root) as reader:
        for number in range(4):
            put(saver, number, big=f"{number}" * 70_000)
        put(saver, 4, "copied", big="4" * 70_000)
        before = log_of(root).stat().st_size
        assert id_of(reader.get_tuple(at())) == "0003"
        saver.prune(["t"])
        assert log_of(root).stat().st_size < before / 2
        assert len([*(root / "threads" / "t" / "blobs").iterdir()]) == 1
        assert values_of(reader.get_tuple(at()) or pytest.fail("gone")) == {"list": [0, 1, 2], "big": "3" * 70_000}
        assert [*saver.check()] == []


# -- obstacles ---------------------------------------------------------------------------------------------------


def test_a_directory_without_a_log_does_not_wedge_its_thread(root: Path, log: Path) -> None:
    (log.parent / "blobs").mkdir()
    (log.parent / "blobs" / "left").touch()
    log.unlink()
    with FileSaver(root) as saver:
        assert saver.get_tuple(at()) is None
        put(saver, 1, big="x" * 70_000)
        assert id_of(saver.get_tuple(at())) == "0001"
        log.unlink()
        saver.delete_thread("t")
    assert not log.parent.exists()


def test_a_directory_copied_by_hand_is_a_copy_of_the_thread(root: Path, log: Path) -> None:
    import shutil

    shutil.copytree(log.parent, log.parent.with_name("copy"))
    with FileSaver(root) as saver:
        put(saver, 50, "copy")
        found = [(each.config["configurable"]["thread_id"], id_of(each)) for each in saver.list(None)]
        assert sorted(found) == sorted(
            [("t", each) for each in EVERYTHING] + [("copy", e) for e in [*EVERYTHING, "0050"]]
        )
        assert {info.thread_id for info in saver.threads()} == {"t", "copy"}


def test_links_and_pipes_are_refused(root: Path, log: Path, tmp_path: Path) -> None:
    """A root may be a clone of a stranger's repository."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / "threads" / "evil").symlink_to(elsewhere)
    data = log.read_bytes()
    log.unlink()
    (tmp_path / "log").write_bytes(data)
    log.symlink_to(tmp_path / "log")
    with FileSaver(root) as saver:
        for thread in ("evil", "t"):
            with pytest.raises(CorruptStore, match="link"):
                put(saver, 99, thread)
        log.unlink()
        os.mkfifo(log)
        with pytest.raises(CorruptStore):
            saver.get_tuple(at())
    assert [*elsewhere.iterdir()] == []
    assert (tmp_path / "log").read_bytes() == data


# -- failing disks, in cases that strace cannot select ---------------------------------------------------------------


def test_a_failed_sync_leads_to_a_new_file(root: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have dropped the pages of the old file, so it is not used again.

    A refused checkpoint is not stored.
    """
    before = log.stat().st_ino
    fails = iter([True])

    def fdatasync(handle: int) -> None:
        if next(fails, False):
            raise OSError(5, "Input/output error")

    with FileSaver(root) as saver, FileSaver(root) as other:
        put(saver, 50)
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        with pytest.raises(StoreError, match="Input/output"):
            put(saver, 51)
        assert log.stat().st_ino != before
        assert id_of(other.get_tuple(at())) == "0050"
        put(saver, 52)
        assert id_of(other.get_tuple(at())) == "0052"


def test_a_replaced_log_is_noticed(root: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = log.read_bytes()

    def git(handle: int, more: bytes, end: int) -> None:
        disk.write_all(handle, more, end)
        log.unlink()
        log.write_bytes(data)

    with FileSaver(root) as saver:
        monkeypatch.setattr(threads, "write_all", git)
        with pytest.raises(StoreError, match="took its place"):
            put(saver, 50)
        monkeypatch.undo()
        put(saver, 51)
    assert ids(root) == [*EVERYTHING, "0051"]


def test_a_lock_does_not_outlive_its_put_in_a_forked_child(root: Path, log: Path) -> None:
    with FileSaver(root, timeout=2) as saver:
        read_end, write_end = os.pipe()
        with driver_of(saver).thread("t").writing():
            child = os.fork()
            if child == 0:
                os.read(read_end, 1)
                os._exit(0)
        put(saver, 50)
        os.write(write_end, b"x")
        os.waitpid(child, 0)
    os.close(read_end)
    os.close(write_end)
