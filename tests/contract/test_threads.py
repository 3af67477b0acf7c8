"""`saver.threads` and `saver.athreads`: both faces list the same, on every backend."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from trajectory_worlds import World, saver, world

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, ThreadInfo
from langgraph_keel.engine.queries import PAGE

__all__ = ["saver", "world"]  # fixtures


async def asynchronously(saver: KeelSaver, *arguments: Any, **options: Any) -> list[ThreadInfo]:
    return [each async for each in saver.athreads(*arguments, **options)]


def both(saver: KeelSaver, *arguments: Any, **options: Any) -> list[str]:
    """The ids that both faces list."""
    found = list(saver.threads(*arguments, **options))
    assert asyncio.run(asynchronously(saver, *arguments, **options)) == found
    return [info.thread_id for info in found]


def test_both_faces_list_threads(saver: KeelSaver, world: World) -> None:
    assert both(saver) == []
    for thread, world.served in (("a", "m-1"), ("b", "m-2"), ("c", "m-1")):
        world.run(saver, thread)
    assert both(saver) == ["c", "b", "a"]
    assert both(saver, 2) == ["c", "b"]
    assert both(saver, 0) == []
    assert both(saver, model="m-1") == ["c", "a"]
    assert both(saver, 1, model="m-2") == ["b"]
    assert both(saver, model="other") == []


def test_a_limit_counts_threads_over_pages(saver: KeelSaver, world: World) -> None:
    world.run(saver, "first")
    for number in range(PAGE + 1):
        place: Any = {"configurable": {"thread_id": f"t{number:03}", "checkpoint_ns": ""}}
        saver.put(place, empty_checkpoint(), {}, {})
    assert len(both(saver)) == PAGE + 2
    assert both(saver, PAGE + 1) == [f"t{number:03}" for number in reversed(range(PAGE + 1))]
    assert both(saver, 1, model="m") == ["first"]  # after a page without


def test_a_limit_that_cannot_be_meant_is_refused() -> None:
    with MemorySaver() as saver, pytest.raises(InvalidInput, match="limit"):
        asyncio.run(asynchronously(saver, -1))
