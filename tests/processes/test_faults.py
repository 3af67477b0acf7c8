"""Disk faults at every writing call of a run: a named error, and no data loss.

strace injects them. CI tests some of the calls, `KEEL_POWER_STATES=all` every one.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from power import IGNORED, PLACES, STEPS, Recording, Traced, check, expected, recorded, require_strace, run, values_at
from support.checkpoints import checkpoint_of, config_for
from support.places import Place
from support.tiers import sized

from langgraph_keel import KeelError, StoreError, StoreFull

# The calls that change the files of a store, and their possible errors; the run continues with the next call.
CALLS = {
    "sqlite": ("pwrite64", "fdatasync", "ftruncate", "unlink"),
    "files": ("pwrite64", "fdatasync", "fsync", "rename", "mkdir", "unlink"),
}
FAILURES = [
    *((kind, call, "EIO", "StoreError") for kind, calls in CALLS.items() for call in calls),
    # SQLite does not report why its shared memory cannot grow.
    ("sqlite", "pwrite64", "ENOSPC", "StoreFull StoreError"),
    *(("files", call, "ENOSPC", "StoreFull") for call in ("pwrite64", "fsync", "mkdir")),
    # A network file system that keeps no locks.
    *((kind, "flock", "ENOLCK", "StoreError") for kind in CALLS),
]
DEATHS = [(kind, call) for kind, calls in CALLS.items() for call in calls]
SOME = sized((1, 3, 21), (1, 3, 21), (1, 2, 3, 5, 8, 21, 144))
PUTS = 6


def calls() -> Iterator[int]:
    """Return the calls at which a fault is injected, counted from 1."""
    return count(1) if os.environ.get("KEEL_POWER_STATES") == "all" else iter(SOME)


def record(kind: str, fault: str, directory: Path) -> tuple[Place, Recording]:
    directory.mkdir()
    place = PLACES[kind](directory)
    return place, recorded(run, place, "sound", STEPS, directory=directory, ignored=IGNORED, faults=[fault])


def check_after(recording: Recording, place: Place) -> None:
    """Check that all acknowledged writes are intact, and the store is writable.

    Other writes must be whole or absent.
    """
    check(place, expected()[recording.acknowledged : recording.acknowledged + 2])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "call", "error", "names"), FAILURES)
def test_a_failed_system_call_raises_a_named_error_and_the_saver_continues(
    kind: str, call: str, error: str, names: str, tmp_path: Path
) -> None:
    require_strace()
    for nth in calls():
        place, recording = record(kind, f"{call}:error={error}:when={nth}", tmp_path / str(nth))
        assert (recording.code, recording.acknowledged) == (0, STEPS[-1]), (nth, recording.told)
        assert {name for name, _ in recording.told} <= set(names.split()), nth
        assert all(str(tmp_path / str(nth)) in says for _, says in recording.told), nth
        check_after(recording, place)
        if not recording.injected:
            break
    assert nth > 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "call"), DEATHS)
def test_a_kill_during_a_system_call_loses_nothing(kind: str, call: str, tmp_path: Path) -> None:
    require_strace()
    for nth in calls():
        place, recording = record(kind, f"{call}:signal=KILL:when={nth}", tmp_path / str(nth))
        check_after(recording, place)
        if recording.code == 0:
            break
        assert recording.code == -signal.SIGKILL, nth
        assert not recording.told, nth
    assert nth > 1


# -- a disk that is full for a while -----------------------------------------------------------------------------------


def put_and_tell(place: Place, pipe: Connection) -> None:
    """Store checkpoints, each until it succeeds, and report each attempt."""
    with place.open() as saver:
        for number in range(PUTS + 1):
            while (failure := failure_of(saver, number)) is not None:
                pipe.send((number, *failure))
                time.sleep(0.01)
            pipe.send((number, "kept", ""))
            assert number or pipe.recv() == "go"
        pipe.send("done")
        assert pipe.recv() == "end"


def failure_of(saver: Any, number: int) -> tuple[str, str] | None:
    try:
        saver.put(config_for("t"), checkpoint_of(f"{number:08}", values_at(number)), {"source": "loop", "step": 1}, {})
    except KeelError as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_a_saver_continues_after_a_full_disk_has_room_again(kind: str, tmp_path: Path) -> None:
    """Writes fail until there is room again; then the process and the thread continue."""
    require_strace()
    place = PLACES[kind](tmp_path)
    full = "pwrite64:error=ENOSPC:when=1+"
    traced = Traced(put_and_tell, place, options=["-e", "trace=pwrite64", "-e", f"inject={full}"])
    try:
        traced.tell("go")
        for _ in range(3):
            number, name, says = traced.hear()
            assert (number, name) == (1, StoreFull.__name__)
            assert str(tmp_path) in says
            assert "no space left" in says
        assert numbers_in(place) == [0]
        traced.detach()
        told = traced.hear_all()
        assert traced.end() == 0
    finally:
        traced.kill()
    assert [one[0] for one in told if one[1] == "kept"] == list(range(PUTS + 1))
    assert numbers_in(place) == list(range(PUTS + 1))


def numbers_in(place: Place) -> list[int]:
    """Return the checkpoints of the thread, oldest first; each must be whole."""
    place.check()
    with place.open(read_only=True) as saver:
        found = [one.checkpoint["channel_values"] for one in saver.list(config_for("t"))]
    assert found == [values_at(values["number"]) for values in found]
    return [values["number"] for values in reversed(found)]


def put_until_it_fails(place: Place, pipe: Connection) -> None:
    """Write to files that may not exceed 256 KB, and report each failure; then remove."""
    with place.open() as saver:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, resource.RLIM_INFINITY))
        failures: list[tuple[str, str]] = []
        for number in range(2000):
            failure = failure_of(saver, number)
            failures += [failure] if failure else []
            if len(failures) == 3:
                break
        pipe.send(failures)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        saver.delete_thread("t")
        pipe.send(failure_of(saver, 0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_a_file_size_limit_raises_store_full(kind: str, tmp_path: Path) -> None:
    here, there = get_context("fork").Pipe()
    child = get_context("fork").Process(target=put_until_it_fails, args=(PLACES[kind](tmp_path), there))
    child.start()
    failures = here.recv()
    assert [name for name, _ in failures] == [StoreFull.__name__] * 3
    assert all(str(tmp_path) in says for _, says in failures)
    assert here.recv() is None
    child.join()
    assert child.exitcode == 0


def test_store_full_is_an_os_error() -> None:
    assert issubclass(StoreFull, (StoreError))
    assert issubclass(StoreFull, OSError)
