"""`saver.threads` and `saver.athreads` list the same, on every backend."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from support.provenance.trajectories import World, saver, world

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, ThreadInfo, count_threads
from langgraph_keel.engine.queries import PAGE

__all__ = ["saver", "world"]  # fixtures


async def asynchronously(saver: KeelSaver, *arguments: Any, **options: Any) -> list[ThreadInfo]:
    return [each async for each in saver.athreads(*arguments, **options)]


def both(saver: KeelSaver, *arguments: Any, **options: Any) -> list[str]:
    """Return the ids that both faces list."""
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


def test_a_limit_counts_threads_across_pages(saver: KeelSaver, world: World) -> None:
    world.run(saver, "first")
    for number in range(PAGE + 1):
        place: Any = {"configurable": {"thread_id": f"t{number:03}", "checkpoint_ns": ""}}
        saver.put(place, empty_checkpoint(), {}, {})
    assert len(both(saver)) == PAGE + 2
    assert both(saver, PAGE + 1) == [f"t{number:03}" for number in reversed(range(PAGE + 1))]
    assert both(saver, 1, model="m") == ["first"]  # after an empty page


def test_a_negative_limit_is_refused() -> None:
    with MemorySaver() as saver, pytest.raises(InvalidInput, match="limit"):
        asyncio.run(asynchronously(saver, -1))


def test_threads_lists_tokens_and_cost_of_models(saver: KeelSaver, world: World) -> None:
    world.cost = 0.25
    world.run(saver, "t")  # asks twice
    (info,) = saver.threads()
    assert (info.tokens, info.cost, info.status) == ((20, 4), 0.5, "done")
    world.cost = None
    world.run(saver, "t")
    (info,) = saver.threads(model="m-1", status="done")
    assert (info.tokens, info.cost) == ((40, 8), 0.5)
    ends = [moment for moment in saver.timeline("t") if not moment.next]
    assert len(ends) == 2
    saver.rewind(min(ends, key=lambda moment: moment.position).config)
    assert [each.tokens for each in saver.threads()] == [(20, 4)]
    saver.prune(["t"])
    assert [each.tokens for each in saver.threads()] == [(20, 4)]
    world.run(saver, "other")
    counts = count_threads(saver.threads())
    assert (counts.all.threads, counts.all.tokens, counts.all.cost) == (2, (40, 8), 0.5)


def test_incomparable_versions_do_not_hide_a_thread() -> None:
    with MemorySaver() as saver:
        place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        odd = {"channel_versions": {"branch:to:act": 2}, "versions_seen": {"act": {"branch:to:act": "1"}}}
        saver.put(place, {**empty_checkpoint(), "channel_values": {"branch:to:act": None}, **odd}, {}, {})  # type: ignore[typeddict-item]
        assert [info.next for info in saver.threads(status="incomplete", node="act")] == [("act",)]
