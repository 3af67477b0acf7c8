"""A power cut at any moment loses no acknowledged write and damages no thread.

CI checks a sample of the disks that a cut can leave. `KEEL_POWER_STATES=all` checks many for every moment, and
`KEEL_POWER_STATES=5000` a larger sample.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.tiers import sized

from langgraph_keel.backends.files import log
from power import (
    IGNORED,
    INDEXES,
    PLACES,
    STEPS,
    Acknowledged,
    Broken,
    Create,
    Event,
    Mkdir,
    Recording,
    Rename,
    State,
    Sync,
    Truncate,
    Write,
    broken,
    crashes,
    expected,
    recorded,
    require_strace,
    run,
)

WANTED = os.environ.get("KEEL_POWER_STATES", sized("300", "300", "2000"))
SAMPLE = None if WANTED == "all" else int(WANTED)
SEED = 4
PLANTED = (
    ("sqlite", "synchronous=OFF"),
    ("sqlite", "synchronous=NORMAL"),
    ("files", "without fsync"),
    ("files", "without fsync of files"),
    ("files", "without fsync of directories"),
)
SYNCS = (("sqlite", "fdatasync"), ("files", "fsync"), ("files", "fdatasync"))
DEATHS = (("sqlite", "fdatasync"), *(("files", call) for call in ("pwrite64", "fdatasync", "fsync", "rename", "mkdir")))
# The calls at which a fault is injected, counted from 1.
NTHS = range(1, 100) if SAMPLE is None else sized((1, 3), (1, 3), (1, 2, 3, 5, 8))


@pytest.fixture(autouse=True)
def _reads_begin_at_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(("EACH", "SHARE", "NEWEST"), INDEXES, strict=True):
        monkeypatch.setattr(log, name, value)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The place of the disks: in memory if possible, as hundreds are created."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as directory:
        yield Path(directory) / "disk"


def record(kind: str, directory: Path, build: str = "sound", fault: str | None = None) -> Recording:
    """Record a whole run, perhaps with a fault."""
    require_strace()
    directory.mkdir()
    faults = [fault] if fault else []
    return recorded(run, PLACES[kind](directory), build, STEPS, directory=directory, ignored=IGNORED, faults=faults)


def record_on(kind: str, directory: Path, before: Recording) -> Recording:
    """Record another process that continues an interrupted run for a few steps."""
    place, steps = PLACES[kind](directory), STEPS[before.acknowledged :][:3]
    return recorded(run, place, "sound", steps, directory=directory, ignored=IGNORED, before=before.events)


def first_broken(recording: Recording, count: int | None, kind: str, disk: Path) -> tuple[int, Broken | None]:
    assert (recording.code, recording.acknowledged) == (0, STEPS[-1]), recording.told
    return broken(crashes(recording.events, SEED, count), PLACES[kind](disk), disk, expected())


def broken_after(events: Sequence[Event], kind: str, disk: Path, first: int = 0) -> Broken | None:
    """Return the first broken disk after a fault.

    One step may be done without an acknowledgement.
    """
    states = crashes(events, SEED, SAMPLE and SAMPLE // 8, first)
    return broken(states, PLACES[kind](disk), disk, expected(), under_way=2)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_a_power_cut_loses_no_acknowledged_write(kind: str, tmp_path: Path, disk: Path) -> None:
    sound, fault = first_broken(record(kind, tmp_path / "run"), SAMPLE, kind, disk)
    assert fault is None
    assert sound > 100


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "build"), PLANTED)
def test_a_build_that_skips_a_sync_is_detected(kind: str, build: str, tmp_path: Path, disk: Path) -> None:
    _, fault = first_broken(record(kind, tmp_path / "run", build), 500, kind, disk)
    assert fault is not None


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "call"), SYNCS)
def test_data_of_a_failed_sync_is_written_again(kind: str, call: str, tmp_path: Path, disk: Path) -> None:
    """After a failed fsync, Linux considers its cache written; another cannot help."""
    for nth in NTHS:
        recording = record(kind, tmp_path / str(nth), fault=f"{call}:error=EIO:when={nth}")
        if kind == "sqlite" and Sync("", failed=True) in recording.events:
            continue  # SQLite ignores the failed sync of a directory (unixSync in its os_unix.c)
        assert (recording.code, recording.acknowledged) == (0, STEPS[-1]), recording.told
        fault = broken_after(recording.events, kind, disk)
        assert fault is None, nth
        if not recording.injected:
            break
    assert nth > 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "call"), DEATHS)
def test_unsynced_writes_of_a_killed_process_are_synced_by_the_next(
    kind: str, call: str, tmp_path: Path, disk: Path
) -> None:
    for nth in NTHS:
        killed = record(kind, tmp_path / str(nth), fault=f"{call}:signal=KILL:when={nth}")
        if killed.code == 0:
            break
        recording = record_on(kind, tmp_path / str(nth), killed)
        assert (recording.code, recording.told) == (0, [])
        fault = broken_after(recording.events, kind, disk, first=len(killed.events))
        assert fault is None, nth
    assert nth > 1


# -- the model of a disk -----------------------------------------------------------------------------------------------


def trees(*events: Event) -> list[dict[str, bytes | None]]:
    """Return the disks that a cut behind the last event can leave."""
    return [state.tree for state in states(*events, Acknowledged(1)) if state.acknowledged]


def states(*events: Event) -> list[State]:
    return [state for seed in range(20) for state in crashes(events, seed)]


def contents(path: str, *events: Event) -> set[bytes | None]:
    return {tree.get(path, b"missing") for tree in trees(*events)}


def test_a_file_is_durable_after_a_sync_of_it_and_its_directory() -> None:
    made = Create("f"), Write("f", 0, b"new")
    assert contents("f", *made) == {b"missing", b"", b"\0\0\0", b"new"}
    assert contents("f", *made, Sync("f")) == {b"missing", b"new"}
    assert contents("f", *made, Sync("")) == {b"", b"\0\0\0", b"new"}
    assert contents("f", *made, Sync("f"), Sync("")) == {b"new"}


def test_a_rename_is_atomic_and_does_not_sync_the_data() -> None:
    old = Create("f"), Write("f", 0, b"old"), Sync("f"), Sync("")
    new = Create("t"), Write("t", None, b"new")
    assert contents("f", *old, *new, Rename("t", "f")) == {b"old", b"", b"\0\0\0", b"new"}
    assert contents("f", *old, *new, Sync("t"), Rename("t", "f")) == {b"old", b"new"}
    assert contents("f", *old, *new, Sync("t"), Rename("t", "f"), Sync("")) == {b"new"}


def test_files_in_a_lost_directory_are_lost() -> None:
    made = Mkdir("d"), Create("d/f"), Sync("d/f"), Sync("d")
    assert {} in trees(*made)
    assert contents("d/f", *made, Sync("")) == {b""}


def test_sectors_are_written_atomically_in_any_order() -> None:
    old, new = b"o" * 1024, b"n" * 1024
    made = Create("f"), Write("f", 0, old), Sync("f"), Sync("")
    assert contents("f", *made, Write("f", 0, new)) == {
        o + n for o in (old[:512], new[:512]) for n in (old[512:], new[512:])
    }
    zeros = bytes(512)
    grown = contents("f", *made, Write("f", 1024, new))
    assert {old, *(old + a + b for a in (zeros, new[:512]) for b in (zeros, new[:512]))} <= grown


def test_old_and_new_data_are_not_mixed_after_an_unsynced_truncation() -> None:
    made = Create("f"), Write("f", 0, b"o" * 8192), Sync("f"), Sync("")
    found = contents("f", *made, Truncate("f", 0), Write("f", 0, b"n" * 8192))
    assert found >= {b"o" * 8192, b"", b"n" * 8192}
    assert not [content for content in found if content and b"o" in content and b"n" in content]


def test_a_failed_sync_drops_pages_that_are_not_written_again() -> None:
    made = Create("f"), Sync("f"), Sync("")
    failed = Write("f", 0, b"a" * 4096), Sync("f", failed=True)
    assert contents("f", *made, *failed, Sync("f")) == {bytes(4096)}
    assert contents("f", *made, *failed, Write("f", 4096, b"b"), Sync("f")) == {bytes(4096) + b"b"}
    assert contents("f", *made, *failed, Write("f", 4095, b"b"), Sync("f")) == {b"a" * 4095 + b"b"}


def test_each_crash_state_has_its_last_acknowledged_write() -> None:
    assert [state.acknowledged for state in crashes([Acknowledged(1), Acknowledged(2)], SEED)] == [1, 2]
