"""RedisSaver: threads that expire."""

from __future__ import annotations

import time
from asyncio import to_thread
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support.backends.redis_steps import Open, behind, keys, opened, put
from support.savers import each_face
from support.tool_graphs import run

from langgraph_keel import (
    AlreadyDecided,
    InvalidInput,
    NotFound,
)
from langgraph_keel.backends.redis import entries as names
from langgraph_keel.testing.machine import chat
from langgraph_keel.testing.rig import at, checkpoint_of, id_of, values_of

__all__ = ["behind", "opened"]  # fixtures
TS = "2026-01-01T00:00:00+00:00"


def left(behind: Any, prefix: str) -> float:
    """Return the time to live of the only thread, in seconds; negative if it stays."""
    [key] = keys(behind, prefix, ":thread:")
    return float(behind.pttl(key) / 1000)


def until_gone(behind: Any, prefix: str) -> None:
    deadline = time.monotonic() + 10
    while keys(behind, prefix, ":thread:"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_thread_expires_as_a_whole(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(ttl=1)
    put(saver, 1)
    saver.put_writes(at("t", "", "0001"), [("a", 1)], "task")
    saver.put_writes(at("only writes", "", "x"), [("a", 1)], "task")
    saver.put(at("t", "sub"), checkpoint_of("2", {"a": [1]}), {}, {})  # type: ignore[arg-type]
    assert len(keys(behind, redis_prefix, ":thread:")) == 2
    until_gone(behind, redis_prefix)
    assert saver.get_tuple(at()) is None
    assert [*saver.list(None), *saver.list(at("t", None)), *saver.threads()] == []
    # The new thread contains nothing of the old one.
    put(saver, 3)
    assert [id_of(found) for found in saver.list(at("t", None))] == ["0003"]


def test_expired_threads_are_removed_from_the_indexes(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver, stays = opened(ttl=1), opened()
    put(stays, 1, "stays")
    bucket = names.bucket_of("stays")
    threads = [f"t{n}" for n in range(3000) if names.bucket_of(f"t{n}") == bucket][:8]
    for thread in threads:
        put(saver, 1, thread)
    assert behind.zcard(f"{redis_prefix}:{{{bucket}}}:threads") == 9
    time.sleep(1.2)
    put(saver, 2, threads[0])
    assert behind.zcard(f"{redis_prefix}:{{{bucket}}}:threads") == 9 + 1 - 4
    assert [info.thread_id for info in stays.threads()] == [threads[0], "stays"]
    assert behind.zcard(f"{redis_prefix}:{{{bucket}}}:threads") == 2


def test_every_write_renews_the_ttl(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(ttl=timedelta(seconds=100))
    writes: list[Callable[[], object]] = [
        lambda: put(saver, 1),
        lambda: put(saver, 2),
        lambda: saver.put_writes(at("t", "", "0002"), [("a", 1)], "task"),
    ]
    for write in writes:
        write()
        assert 99 < left(behind, redis_prefix) <= 100
        [key] = keys(behind, redis_prefix, ":thread:")
        behind.pexpire(key, 5000)


@pytest.mark.parametrize("refreshes", [False, True])
def test_a_read_renews_the_ttl_only_on_request(opened: Open, behind: Any, redis_prefix: str, refreshes: bool) -> None:
    saver = opened(ttl=100, refresh_ttl_on_read=refreshes)
    put(saver, 1)
    [key] = keys(behind, redis_prefix, ":thread:")
    behind.pexpire(key, 5000)
    assert values_of(saver.get_tuple(at()) or pytest.fail("gone")) == {"list": chat(3)}
    assert (left(behind, redis_prefix) > 50) == refreshes
    [(member, score)] = behind.zrange(f"{redis_prefix}:{{{names.bucket_of('t')}}}:expiring", 0, -1, withscores=True)
    assert names.parse_member(member)[:2] == [TS, "t"]
    assert abs(score / 1000 - time.time() - 100) < 5


def test_a_saver_without_a_ttl_keeps_that_of_the_thread(opened: Open, behind: Any, redis_prefix: str) -> None:
    put(opened(ttl=100), 1)
    put(opened(), 2)
    assert 90 < left(behind, redis_prefix) <= 100


async def test_a_thread_may_have_its_own_ttl(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(ttl=100)
    put(saver, 1)
    saver.set_ttl("t", 1000)
    assert 990 < left(behind, redis_prefix) <= 1000
    [key] = keys(behind, redis_prefix, ":thread:")
    behind.pexpire(key, 5000)
    put(saver, 2)
    assert 990 < left(behind, redis_prefix) <= 1000
    await saver.aset_ttl("t", None)
    put(saver, 3)
    assert left(behind, redis_prefix) < 0
    assert behind.zcard(f"{redis_prefix}:{{{names.bucket_of('t')}}}:expiring") == 0
    for ttl in (5, None):
        with pytest.raises(NotFound):
            saver.set_ttl("unknown", ttl)
    assert len(keys(behind, redis_prefix, ":thread:")) == 1


def test_a_copy_gets_a_full_ttl(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(ttl=100)
    put(saver, 1)
    [key] = keys(behind, redis_prefix, ":thread:")
    behind.pexpire(key, 5000)
    saver.copy_thread("t", "copy")
    assert (
        90_000
        < behind.pttl(
            key.replace(b":thread:t", b":thread:copy").replace(
                names.bucket_of("t").encode() + b"}", names.bucket_of("copy").encode() + b"}"
            )
        )
        <= 100_000
    )


@pytest.mark.parametrize("ttl", [0, -1, 1e-9, True, "60", float("nan"), timedelta(0)], ids=repr)
def test_an_invalid_ttl_is_refused(opened: Open, ttl: Any) -> None:
    with pytest.raises(InvalidInput, match="ttl"):
        opened(ttl=ttl)
    with pytest.raises(InvalidInput, match="ttl"):
        opened().set_ttl("t", ttl)


@each_face
@pytest.mark.parametrize("is_begun_anew", [False, True])
async def test_a_request_that_expired_with_its_thread_is_superseded(
    opened: Open, behind: Any, redis_prefix: str, is_begun_anew: bool, face: str
) -> None:
    saver = opened(ttl=100)
    state: Any = dict
    builder: Any = StateGraph(state).add_node("ask", lambda state: {"said": interrupt("pay?")})
    graph = builder.add_edge(START, "ask").compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    await run(graph, face, {}, config)
    (request,) = await saver.approvals.apending()
    [key] = keys(behind, redis_prefix, ":thread:")
    behind.pexpire(key, 1)
    await to_thread(until_gone, behind, redis_prefix)
    assert await saver.approvals.apending() == []
    if is_begun_anew:
        await run(graph, face, {}, config)
    approvals, said = saver.approvals, {"value": "yes", "by": "ann"}
    with pytest.raises(AlreadyDecided, match=r"it is superseded: it expired with its thread \(ttl\)"):
        await (
            approvals.aanswer(request.id, **said)
            if face == "async"
            else to_thread(approvals.answer, request.id, **said)
        )
    found = await approvals.aget(request.id)
    assert "expired with its thread" in str(found.history[-1])
