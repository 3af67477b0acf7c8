"""Checks whether a disk after a power cut keeps the promises of the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from langgraph.checkpoint.base import CheckpointTuple
from support.checkpoints import checkpoint_of
from support.places import Place

from langgraph_keel import KeelSaver

from .crashes import State
from .workload import Contents, config_of, contents, values_at

THREADS = ("a", "b", "c")
FURTHER = checkpoint_of("99999999", values_at(5))


@dataclass(frozen=True, slots=True)
class Broken:
    """A disk that breaks a promise, and the error of its check."""

    state: State
    error: Exception


def broken(
    states: Iterable[State], place: Place, directory: Path, expected: Sequence[Contents], under_way: int = 1
) -> tuple[int, Broken | None]:
    """Return the number of sound states before the first broken one, and that one.

    Args:
        states: Disks; each takes the place of `directory` in turn.
        place: The store there.
        directory: Exists neither before nor after.
        expected: The store's contents before the first step, and after each.
        under_way: How many unacknowledged steps may have been done.
    """
    sound = 0
    for state in states:
        state.put_into(directory)
        try:
            check(place, expected[state.acknowledged : state.acknowledged + 1 + under_way])
        except Exception as error:
            return sound, Broken(state, error)
        finally:
            shutil.rmtree(directory)
        sound += 1
    return sound, None


def check(place: Place, allowed: Sequence[Contents]) -> None:
    """Check that all acknowledged writes are intact, and threads can continue.

    Other writes must be whole or absent.
    """
    with place.open() as saver:
        latest = {thread: saver.get_tuple(config_of(thread, 0)) for thread in THREADS}
    with place.open() as saver:
        found = contents(saver)
        roots = {thread: [each for each in found.get(thread, []) if not namespace_of(each)] for thread in THREADS}
        assert latest == {thread: entries[0] if entries else None for thread, entries in roots.items()}
        assert found in allowed, {thread: len(entries) for thread, entries in found.items()}
        for thread in THREADS:
            put_further(saver, thread)
    with place.open() as saver:
        again = contents(saver)
    assert {thread: again[thread][1:] for thread in THREADS} == {thread: found.get(thread, []) for thread in THREADS}
    assert all(again[thread][0].checkpoint == FURTHER for thread in THREADS)
    place.check()


def namespace_of(entry: CheckpointTuple) -> str:
    return str(entry.config["configurable"]["checkpoint_ns"])


def put_further(saver: KeelSaver, thread: str) -> None:
    latest = saver.get_tuple(config_of(thread, 0))
    config = latest.config if latest else config_of(thread, 0)
    saver.put(config, FURTHER, {"source": "loop", "step": 99, "parents": {}}, {})
