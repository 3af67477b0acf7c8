"""Eight processes write to one thread: never a lost update, never a corrupt thread."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from process_children import by_invoke, race

from langgraph_keel import SqliteSaver

PROCESSES = 8
ROUNDS = 200


def context() -> ForkServerContext:
    """A clean process that has imported what children need, and is forked for each."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["pytest", "process_children", "langgraph_keel.sqlite"])
    return made


def integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def run_race(path: Path, on_conflict: str, processes: int, rounds: int) -> list[tuple[str, str, str]]:
    mp = context()
    gate, told = mp.Barrier(processes), mp.Queue()
    rivals = [mp.Process(target=race, args=(path, on_conflict, who, rounds, gate, told)) for who in range(processes)]
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


def by_id(path: Path) -> dict[str, CheckpointTuple]:
    """Every checkpoint of the thread, decoded."""
    with SqliteSaver(path) as saver:
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


def head_marks(path: Path) -> list[str]:
    with SqliteSaver(path) as saver:
        head = saver.get_tuple({"configurable": {"thread_id": "shared"}})
        assert head
        return marks_of(head)


@pytest.mark.slow
@pytest.mark.parametrize("on_conflict", ["raise", "fork"])
def test_two_hundred_rounds_lose_no_update(on_conflict: str, tmp_path: Path) -> None:
    path = tmp_path / "keel.db"
    with SqliteSaver(path) as saver:
        by_invoke(saver, "start")
    answers = run_race(path, on_conflict, PROCESSES, ROUNDS)
    kept = {mark for mark, answer, _ in answers if answer == "kept"}
    losers = [where for _, answer, where in answers if answer == "conflict"]
    checkpoints, head = by_id(path), head_marks(path)
    check_lineage(checkpoints)
    assert integrity(path) == "ok"
    # Somebody wins every round: a put is refused only because another one was not.
    assert len(kept) >= ROUNDS
    if on_conflict == "raise":
        assert set(losers) == {"shared"}
        assert kept <= set(head)
    else:
        assert not losers
        assert kept <= set(head).union(*map(marks_of, checkpoints.values()))
        assert len(kept) == PROCESSES * ROUNDS
