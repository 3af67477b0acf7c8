"""Cells of a FileSaver under power cuts, failing disks and kills.

As `test_power.py`, with swaps as steps.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from power import BUILDS, Recording, State, crashes, recorded, require_strace
from support.backends.files_cells import OF_THREAD, SHARED, Verbs, cell, put
from support.places import files_place
from support.tiers import sized

from langgraph_keel import FileSaver, StoreError
from langgraph_keel.engine.cells import Cell, Shelf

WANTED = os.environ.get("KEEL_POWER_STATES", sized("300", "300", "2000"))
SAMPLE = None if WANTED == "all" else int(WANTED)
NTHS = range(1, 100) if SAMPLE is None else sized((1, 5), (1, 5), (1, 2, 3, 5, 8, 13))
SEED = 5
ATTEMPTS = 5
SHELVES = (OF_THREAD, SHARED)

Step: TypeAlias = Callable[[FileSaver], object]
Contents: TypeAlias = tuple[Mapping[str, Cell], ...]
"""The content of each of `SHELVES`."""


def swap(shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> tuple[Step, Callable[[Any], None]]:
    """Return a step, and its effect on dictionaries."""

    def step(saver: FileSaver) -> None:
        reply = Verbs(saver).swap(shelf, key, expected, new)
        assert reply.done, reply

    def model(held: Any) -> None:
        held[shelf].pop(key, None)
        held[shelf].update({key: new} if new else {})

    return step, model


def remove(shelf: Shelf, tokens: dict[str, str]) -> tuple[Step, Callable[[Any], None]]:
    def model(held: Any) -> None:
        for key in tokens:
            del held[shelf][key]

    return lambda saver: Verbs(saver).face.verb("remove_cells", shelf, tokens), model


def delete(held: Any) -> None:
    for shelf in SHELVES:
        held[shelf] = {key: cell for key, cell in held[shelf].items() if shelf.thread_id != "t" and cell.origin != "t"}


# More than a sector, and it does not compress.
LARGE = bytes((n * n * 7919 + n // 7 * n) % 251 for n in range(3000))
STEPS = (
    swap(OF_THREAD, "a", None, cell("1")),
    swap(OF_THREAD, "a", "1", cell("2", LARGE)),
    swap(SHARED, "a", None, cell("3", origin="t")),
    (lambda saver: put(saver, 3), lambda held: None),
    swap(OF_THREAD, "b", None, cell("4")),
    swap(OF_THREAD, "a", "2", None),
    swap(SHARED, "b", None, cell("5", LARGE)),
    swap(OF_THREAD, "a", None, cell("6")),
    remove(OF_THREAD, {"b": "4"}),
    swap(SHARED, "a", "3", cell("7", origin="t")),
    (lambda saver: saver.delete_thread("t"), delete),
    swap(OF_THREAD, "a", None, cell("8")),
    (lambda saver: saver.delete_thread("t"), delete),
    swap(OF_THREAD, "a", None, cell("9", LARGE)),
    swap(SHARED, "b", "5", cell("10")),
)


def expected() -> list[Contents]:
    """Return the contents before the first step, and after each."""
    held: dict[Shelf, dict[str, Cell]] = {shelf: {} for shelf in SHELVES}
    states: list[Contents] = [({}, {})]
    for _, model in STEPS:
        model(held)
        states.append(tuple(dict(held[shelf]) for shelf in SHELVES))
    return states


EXPECTED = expected()


def run(directory: Path, build: str, numbers: range, pipe: Connection) -> None:
    """Do the steps with these numbers, retrying each until it succeeds."""
    BUILDS[build]()
    pipe.send("ready")
    assert pipe.recv() == "go"
    nobody = os.open(os.devnull, os.O_WRONLY)
    with FileSaver(directory / "files") as saver:
        for number in numbers:
            until_done(STEPS[number - 1][0], saver, pipe)
            os.write(nobody, f"ack {number}\n".encode())
    pipe.send("done")
    assert pipe.recv() == "end"


def until_done(step: Step, saver: FileSaver, pipe: Connection) -> None:
    for _ in range(ATTEMPTS):
        try:
            step(saver)
        except StoreError as error:
            pipe.send((type(error).__name__, str(error)))
        else:
            return
    raise AssertionError("it does not get better")


def record(directory: Path, build: str = "sound", fault: str | None = None) -> Recording:
    require_strace()
    directory.mkdir()
    faults = [fault] if fault else []
    return recorded(run, directory, build, range(1, len(STEPS) + 1), directory=directory, faults=faults)


def contents(saver: FileSaver) -> Contents:
    return tuple(Verbs(saver).read(shelf, "a", "b") for shelf in SHELVES)


def check(directory: Path, allowed: Sequence[Contents]) -> None:
    """Check that each shelf has an allowed content, and every cell can be swapped."""
    with FileSaver(directory / "files") as saver:
        found = contents(saver)
        for place, held in enumerate(found):
            assert held in [states[place] for states in allowed], (SHELVES[place], held)
        for shelf, held in zip(SHELVES, found, strict=True):
            for key in "abc":
                assert Verbs(saver).swap(shelf, key, held[key].token if key in held else None, cell("further")).done
        assert [Verbs(saver).keys(shelf) for shelf in SHELVES] == [["a", "b", "c"]] * 2
    files_place(directory).check()


def broken(states: Iterable[State], disk: Path, under_way: int = 1) -> tuple[int, str | None]:
    """Return the number of sound disks before the first broken one, and its story."""
    sound = 0
    for state in states:
        state.put_into(disk)
        try:
            check(disk, EXPECTED[state.acknowledged : state.acknowledged + 1 + under_way])
        except Exception as error:
            return sound, f"{state.story}: {error!r}"
        finally:
            shutil.rmtree(disk)
        sound += 1
    return sound, None


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as directory:
        yield Path(directory) / "disk"


@pytest.mark.slow
def test_a_power_cut_loses_no_cell(tmp_path: Path, disk: Path) -> None:
    recording = record(tmp_path / "run")
    assert (recording.code, recording.told, recording.acknowledged) == (0, [], len(STEPS))
    sound, story = broken(crashes(recording.events, SEED, SAMPLE), disk)
    assert story is None
    assert sound > 100


@pytest.mark.slow
@pytest.mark.parametrize("build", ["without fsync", "without fsync of files", "without fsync of directories"])
def test_a_build_without_fsync_is_detected(build: str, tmp_path: Path, disk: Path) -> None:
    recording = record(tmp_path / "run", build)
    assert broken(crashes(recording.events, SEED, 500), disk)[1] is not None


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("call", ["fsync", "linkat", "rename", "renameat", "unlinkat", "mkdirat", "pwrite64"])
def test_a_failing_system_call_is_named_and_loses_nothing(call: str, tmp_path: Path, disk: Path) -> None:
    """For example, the retry of a swap whose fsync failed makes it durable."""
    for nth in NTHS:
        recording = record(tmp_path / str(nth), fault=f"{call}:error=EIO:when={nth}")
        assert (recording.code, recording.acknowledged) == (0, len(STEPS)), (nth, recording.told)
        assert {name for name, _ in recording.told} <= {"StoreError"}
        story = broken(crashes(recording.events, SEED, SAMPLE and SAMPLE // 8), disk, under_way=2)[1]
        assert story is None, nth
        if not recording.injected:
            break
    assert nth > 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("call", ["fsync", "linkat", "rename", "renameat", "unlinkat", "mkdirat", "pwrite64"])
def test_the_next_process_makes_writes_of_a_killed_one_durable(call: str, tmp_path: Path, disk: Path) -> None:
    for nth in NTHS:
        directory = tmp_path / str(nth)
        killed = record(directory, fault=f"{call}:signal=KILL:when={nth}")
        if killed.code == 0:
            break
        rest = range(killed.acknowledged + 1, len(STEPS) + 1)
        recording = recorded(run, directory, "sound", rest, directory=directory, before=killed.events)
        assert (recording.code, recording.told) == (0, [])
        states = crashes(recording.events, SEED, SAMPLE and SAMPLE // 8, len(killed.events))
        story = broken(states, disk, under_way=2)[1]
        assert story is None, nth
    assert nth > 1
