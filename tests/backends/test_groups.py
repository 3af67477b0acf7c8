"""Requests of many coroutines are grouped, and each succeeds or fails by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any

import psycopg
import pytest
import servers
from redis import Redis
from support.backends.postgres_puts import rows, run
from support.checkpoints import METADATA, checkpoint_of, config_for
from support.places import ON_SERVERS, Place
from support.saver_parts import store_of

from langgraph_keel import KeelSaver, StoreError
from langgraph_keel.testing.machine import chat

THREADS = [f"thread {n:02}" for n in range(40)]
MIDDLE = THREADS[20]


async def aput(saver: KeelSaver, thread: str, n: int = 1) -> Any:
    return await saver.aput(config_for(thread), checkpoint_of(f"{n:08}", {"list": chat(n)}), METADATA, {})


async def aput_all(saver: KeelSaver, threads: Collection[str], n: int = 1) -> list[Any]:
    """Write to all threads concurrently; return the result or error of each."""
    return await asyncio.gather(*(aput(saver, thread, n) for thread in threads), return_exceptions=True)


def stored(place: Place) -> dict[str, list[str]]:
    """Return the checkpoints of each thread, as another process sees them."""
    with place.open() as saver:
        found: dict[str, list[str]] = {}
        for each in saver.list(None):
            found.setdefault(each.config["configurable"]["thread_id"], []).append(each.checkpoint["id"])
        return found


@pytest.fixture
def proxy(place: Place) -> Iterator[servers.Proxy]:
    with place.proxy() as proxy:
        yield proxy


@ON_SERVERS
async def test_each_of_many_requests_gets_its_own_reply(place: Place) -> None:
    async with place.open() as saver:
        await aput_all(saver, THREADS)
        await asyncio.gather(*(saver.aput_writes(config_for(each, "00000001"), [("n", 1)], "task") for each in THREADS))
        found = await asyncio.gather(*(saver.aget_tuple(config_for(thread)) for thread in THREADS))
    for each in found:
        assert each
        assert each.checkpoint["channel_values"] == {"list": chat(1)}
        assert each.pending_writes == [("task", "n", 1)]


@ON_SERVERS
async def test_each_put_is_stored_when_it_is_acknowledged(place: Place) -> None:
    async with place.open() as saver:
        with place.open() as other:
            other.setup()

            async def put_and_look(thread: str) -> None:
                await aput(saver, thread)
                assert other.get_tuple(config_for(thread, "00000001"))

            await asyncio.gather(*map(put_and_look, THREADS))


def break_thread(place: Place, saver: KeelSaver, thread: str) -> None:
    """Make writes to a thread fail.

    Its item numbers are used up, or its key holds foreign data.
    """
    if place.kind == "postgres":
        run(place.url, f"INSERT INTO keel_floors VALUES ('{thread}', '', 'list', 2147483647)")
    else:
        with Redis.from_url(place.url) as client:
            client.set(store_of(saver).keys.thread(thread), "theirs")


@ON_SERVERS
async def test_a_failing_request_fails_alone(place: Place) -> None:
    async with place.open() as saver:
        await aput(saver, "first")
        break_thread(place, saver, MIDDLE)
        outcomes = dict(zip(THREADS, await aput_all(saver, THREADS), strict=True))
        failed = {thread: error for thread, error in outcomes.items() if isinstance(error, BaseException)}
        assert list(failed) == [MIDDLE]
        assert isinstance(failed[MIDDLE], StoreError)
        good = [thread for thread in THREADS if thread != MIDDLE]
        assert stored(place) == {thread: ["00000001"] for thread in ["first", *good]}
        # A failure does not affect the next requests.
        assert {type(each) for each in await aput_all(saver, good, 2)} == {dict}


@ON_SERVERS
async def test_a_cancelled_request_does_not_affect_others(place: Place, proxy: servers.Proxy) -> None:
    async with place.through(proxy).open() as saver:
        await aput_all(saver, THREADS)
        proxy.freeze()
        puts = {thread: asyncio.create_task(aput(saver, thread, 2)) for thread in THREADS}
        await asyncio.sleep(0)
        given_up = puts.pop(MIDDLE)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        proxy.thaw()
        await asyncio.gather(*puts.values())
        # Once more, when its group may be in progress.
        late = [asyncio.create_task(aput(saver, f"late {n}")) for n in range(40)]
        await late[0]
        late[20].cancel()
        done = await asyncio.gather(*late, return_exceptions=True)
        assert {type(each) for n, each in enumerate(done) if n != 20} == {dict}
    found = stored(place)
    assert [thread for thread in puts if found[thread] != ["00000002", "00000001"]] == []


@ON_SERVERS
@pytest.mark.parametrize("cut", ["cut_before_reply", "cut_before_request"])
@pytest.mark.parametrize("nth", [1, 3, 4])
async def test_requests_survive_a_broken_connection(place: Place, proxy: servers.Proxy, cut: str, nth: int) -> None:
    """The first two requests go alone, then groups.

    All requests in progress are retried.
    """
    async with place.through(proxy).open() as saver:
        await aput_all(saver, THREADS)
        getattr(proxy, cut)(nth)
        assert {type(each) for each in await aput_all(saver, THREADS, 2)} == {dict}
    assert stored(place) == {thread: ["00000002", "00000001"] for thread in THREADS}


@ON_SERVERS
def test_a_new_loop_does_not_wait_for_requests_of_an_ended_one(place: Place, proxy: servers.Proxy) -> None:
    with place.through(proxy).open() as saver:

        async def begin_and_leave() -> None:
            await aput_all(saver, THREADS)
            proxy.freeze()
            puts = [asyncio.create_task(aput(saver, thread, 2)) for thread in THREADS]
            await asyncio.sleep(0)
            assert not any(put.done() for put in puts)
            asyncio.get_running_loop().call_soon(proxy.thaw)

        asyncio.run(begin_and_leave())
        assert {type(each) for each in asyncio.run(aput_all(saver, THREADS, 3))} == {dict}


@pytest.mark.parametrize("place", ["redis"], indirect=True)
async def test_a_group_is_one_round_trip(place: Place, proxy: servers.Proxy) -> None:
    async with place.through(proxy).open() as saver:
        await aput_all(saver, THREADS)
        before = proxy.requests
        await asyncio.gather(*(saver.aget_tuple(config_for(thread)) for thread in THREADS))
        assert proxy.requests - before < len(THREADS) / 2


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_a_group_is_one_transaction(place: Place) -> None:
    async with place.open() as saver:
        await aput(saver, "first")
        await aput_all(saver, THREADS)
    ((transactions,),) = rows(place.url, "SELECT count(DISTINCT xmin::text) FROM keel_entries")
    assert transactions < 10


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_a_locked_thread_does_not_delay_others(place: Place) -> None:
    async with place.open() as saver:
        await aput_all(saver, THREADS)
        with psycopg.connect(place.url) as other:
            other.execute("SELECT 1 FROM keel_threads WHERE thread_id = %s FOR UPDATE", [MIDDLE])
            puts = {thread: asyncio.create_task(aput(saver, thread, 2)) for thread in THREADS}
            last = puts.pop(MIDDLE)
            await asyncio.gather(*puts.values())
            assert not last.done()
            other.rollback()
            await last
    assert stored(place) == {thread: ["00000002", "00000001"] for thread in THREADS}
