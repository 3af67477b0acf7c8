"""Eight processes write to one thread: never a lost update, never a corrupt thread."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from queue import Empty
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from places import Place
from process_children import by_invoke, race

PROCESSES = 8
ROUNDS = 200


def context() -> ForkServerContext:
    """A clean process that has imported what children need, and is forked for each."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["pytest", "process_children", "langgraph_keel.backends.sqlite"])
    return made


def run_race(place: Place, on_conflict: str, processes: int, rounds: int) -> list[tuple[str, str, str]]:
    mp = context()
    gate, told = mp.Barrier(processes), mp.Queue()
    rivals = [
        mp.Process(target=race, args=(place, on_conflict, who, rounds, gate, told), daemon=True)
        for who in range(processes)
    ]
    for rival in rivals:
        rival.start()
    answers = list(received(told, processes * rounds))
    for rival in rivals:
        rival.join(60)
    assert [rival.exitcode for rival in rivals] == [0] * processes
    told.close()
    return answers


def received(told: Any, count: int) -> Iterator[tuple[str, str, str]]:
    for _ in range(count):
        try:
            yield told.get(timeout=120)
        except Empty:
            pytest.fail("a rival stopped answering")


def by_id(place: Place) -> dict[str, CheckpointTuple]:
    """Every checkpoint of the thread, decoded."""
    with place.open() as saver:
        return {found.checkpoint["id"]: found for found in saver.list({"configurable": {"thread_id": "shared"}})}


def marks_of(found: CheckpointTuple) -> list[str]:
    marks: list[str] = found.checkpoint["channel_values"].get("marks", [])
    return marks


def check_lineage(checkpoints: dict[str, CheckpointTuple]) -> None:
    """Every checkpoint extends its parent: nothing that was there is gone, and nothing stands there twice."""
    for found in checkpoints.values():
        marks = marks_of(found)
        assert len(set(marks)) == len(marks)
        if found.parent_config:
            before = marks_of(checkpoints[found.parent_config["configurable"]["checkpoint_id"]])
            assert marks[: len(before)] == before


def head_marks(place: Place) -> list[str]:
    with place.open() as saver:
        head = saver.get_tuple({"configurable": {"thread_id": "shared"}})
        assert head
        return marks_of(head)


@pytest.mark.slow
@pytest.mark.parametrize("on_conflict", ["raise", "fork"])
def test_two_hundred_rounds_lose_no_update(on_conflict: str, place: Place) -> None:
    with place.open() as saver:
        by_invoke(saver, "start")
    answers = run_race(place, on_conflict, PROCESSES, ROUNDS)
    kept = {mark for mark, answer, _ in answers if answer == "kept"}
    losers = [where for _, answer, where in answers if answer == "conflict"]
    checkpoints, head = by_id(place), head_marks(place)
    check_lineage(checkpoints)
    place.check()
    # Somebody wins every round: a put is refused only because another one was not.
    assert len(kept) >= ROUNDS
    if on_conflict == "raise":
        assert set(losers) == {"shared"}
        assert kept <= set(head)
    else:
        assert not losers
        assert kept <= set(head).union(*map(marks_of, checkpoints.values()))
        assert len(kept) == PROCESSES * ROUNDS
