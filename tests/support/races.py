"""Processes that race for one thread, and the invariants that hold afterwards."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from queue import Empty
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple

from support.places import Place


def context() -> ForkServerContext:
    """Return a clean process with the children's imports, forked for each child."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["pytest", "support.process_children", "langgraph_keel.backends.sqlite"])
    return made


def received(told: Any, count: int) -> Iterator[tuple[str, str, str]]:
    for _ in range(count):
        try:
            yield told.get(timeout=120)
        except Empty:
            pytest.fail("a rival stopped answering")


def by_id(place: Place) -> dict[str, CheckpointTuple]:
    """Return every checkpoint of the thread, decoded."""
    with place.open() as saver:
        return {found.checkpoint["id"]: found for found in saver.list({"configurable": {"thread_id": "shared"}})}


def marks_of(found: CheckpointTuple) -> list[str]:
    marks: list[str] = found.checkpoint["channel_values"].get("marks", [])
    return marks


def check_lineage(checkpoints: dict[str, CheckpointTuple]) -> None:
    """Check that every checkpoint extends its parent, with no mark lost or repeated."""
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
