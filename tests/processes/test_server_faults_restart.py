"""Servers that are down, killed, restarted or silent cause named errors.

They come in bounded time, and acknowledged writes are kept.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from servers import Proxy
from servers.server import Server
from support.checkpoints import METADATA, aput, checkpoint_of, config_for, put, value_of
from support.places import ON_SERVERS, Place
from support.processes.clients import meanwhile

from langgraph_keel import KeelSaver, StoreBusy, StoreError, StoreUnavailable
from langgraph_keel.testing.rig import FACES

pytestmark = pytest.mark.slow

SEED = random.SystemRandom().randrange(1 << 32)
BOUND = 15.0
DOWN = 0.7
"""Seconds that a server is down, more than any driver retries by itself."""


@pytest.fixture
def saver(mortal: tuple[Server, Place]) -> Iterator[KeelSaver]:
    with mortal[1].open() as saver:
        yield saver


# -- restarts ----------------------------------------------------------------------------------------------------------


def use_many_connections(saver: KeelSaver) -> None:
    """Open several connections on both faces, and leave them idle.

    They belong to threads and to one loop.
    """
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: put(saver, f"thread {number}"), range(24)))


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_dead_idle_connections_are_replaced(mortal: tuple[Server, Place], saver: KeelSaver, how: str) -> None:
    server, _ = mortal
    use_many_connections(saver)
    if how == "kill":
        server.kill()
    server.restart()
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda number: value_of(saver, f"thread {number}"), range(24))) == [1] * 24
    put(saver, "after")
    assert value_of(saver, "after") == 1


async def test_dead_idle_async_connections_are_replaced(mortal: tuple[Server, Place], saver: KeelSaver) -> None:
    server, _ = mortal
    await asyncio.gather(*(aput(saver, f"thread {number}") for number in range(24)))
    await asyncio.to_thread(server.restart)
    found = await asyncio.gather(*(saver.aget_tuple(config_for(f"thread {number}")) for number in range(24)))
    assert all(found)
    assert await aput(saver, "after")


# -- kills in the middle -----------------------------------------------------------------------------------------------


def put_until_it_fails(saver: KeelSaver, who: int) -> tuple[int, StoreError]:
    """Store one checkpoint after another; return the first that failed, and its error."""
    for number in range(1, 100_000):
        try:
            put(saver, f"thread {who}", [number] * 300, f"{number:08}")
        except StoreError as error:
            return number, error
    raise AssertionError("the server was never killed")


def test_acknowledged_puts_survive_a_kill(mortal: tuple[Server, Place], saver: KeelSaver) -> None:
    """Six writers get errors; acknowledged writes are kept, others whole or absent."""
    server, place = mortal
    use_many_connections(saver)
    with ThreadPoolExecutor(6) as pool:
        writing = [pool.submit(put_until_it_fails, saver, 100 + who) for who in range(6)]
        time.sleep(random.Random(SEED).uniform(0.3, 1.0))
        server.kill()
        began = time.monotonic()
        ends = [one.result() for one in writing]
    assert time.monotonic() - began < BOUND
    assert {type(error) for _, error in ends} == {StoreUnavailable}
    server.restart()
    with place.open() as other:
        kept = {info.thread_id: info.checkpoints for info in other.threads()}
        for who, (failed, _) in enumerate(ends, 100):
            assert kept[f"thread {who}"] in (failed - 1, failed), f"seed {SEED}"
            assert value_of(other, f"thread {who}") == [kept[f"thread {who}"]] * 300
    for who, (failed, _) in enumerate(ends, 100):  # repeat the failed write with the same saver
        put(saver, f"thread {who}", [failed] * 300, f"{failed:08}")
        assert value_of(saver, f"thread {who}") == [failed] * 300
    assert max(failed for failed, _ in ends) > 5


# -- down ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FACES)
def test_a_saver_reports_a_server_that_is_down_and_works_once_it_is_up(mortal: tuple[Server, Place], name: str) -> None:
    server, place = mortal
    server.stop()
    with place.open() as saver:
        face = FACES[name](lambda: saver)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
            face.put(config_for("t"), checkpoint_of("1", {"v": 1}), METADATA)
        with pytest.raises(StoreUnavailable):
            face.get_tuple(config_for("t"))
        with pytest.raises(StoreUnavailable):
            saver.setup()
        assert time.monotonic() - began < BOUND
        server.restart()
        face.put(config_for("t"), checkpoint_of("1", {"v": 1}), METADATA)
        assert face.read(config_for("t")).checkpoint["channel_values"] == {"v": 1}
        face.close()


def test_a_client_that_retries_loses_nothing_in_a_restart(mortal: tuple[Server, Place], saver: KeelSaver) -> None:
    """A client that retries all failures stores each checkpoint once, in order."""
    server, _ = mortal
    errors: list[StoreError] = []

    def insist(number: int) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                put(saver, "t", number, f"{number:08}")
            except StoreUnavailable as error:
                errors.append(error)
                time.sleep(0.02)
            else:
                return
        raise errors[-1]

    def restart_twice() -> None:
        for _ in range(2):
            time.sleep(0.3)
            server.stop()
            time.sleep(DOWN)
            server.restart()

    with meanwhile(restart_twice):
        end, number = time.monotonic() + 3, 0
        while time.monotonic() < end:
            number += 1
            insist(number)
    found = [found.checkpoint["channel_values"]["v"] for found in saver.list(config_for("t"))]
    assert found == list(range(number, 0, -1))
    assert errors


# -- silent ------------------------------------------------------------------------------------------------------------


@ON_SERVERS
def test_a_server_that_does_not_answer_raises_an_error_in_time(place: Place) -> None:
    with place.proxy() as proxy, impatient(place.through(proxy)) as saver:
        put(saver, "t")
        proxy.freeze()
        began = time.monotonic()
        with pytest.raises((StoreBusy, StoreUnavailable)):
            put(saver, "t", 2, "00000002")
        with pytest.raises((StoreBusy, StoreUnavailable)):
            value_of(saver, "t")
        assert time.monotonic() - began < BOUND
        proxy.thaw()
        put(saver, "t", 3, "00000003")
        assert value_of(saver, "t") == 3


@ON_SERVERS
async def test_a_server_that_does_not_answer_does_not_block_the_loop(place: Place) -> None:
    async with at_a_proxy(place, timeout=5.0) as (saver, proxy):
        await aput(saver, "t")
        proxy.freeze()
        waiting = asyncio.create_task(aput(saver, "other"))
        for _ in range(20):
            began = time.monotonic()
            await asyncio.sleep(0.01)
            assert time.monotonic() - began < 3
        assert not waiting.done()
        with pytest.raises((StoreBusy, StoreUnavailable)):
            await asyncio.wait_for(waiting, BOUND)
        proxy.thaw()
        assert await saver.aget_tuple(config_for("t"))
        assert await aput(saver, "after")


@asynccontextmanager
async def at_a_proxy(place: Place, timeout: float = 1.0) -> AsyncIterator[tuple[KeelSaver, Proxy]]:
    with place.proxy() as proxy:
        async with impatient(place.through(proxy), timeout) as saver:
            yield saver, proxy


def impatient(place: Place, timeout: float = 1.0) -> KeelSaver:
    return replace(place, options={**place.options, "timeout": timeout}).open()


@ON_SERVERS
async def test_cancelled_calls_do_not_mix_up_replies(place: Place) -> None:
    """Cancelled at any moment, even between request and reply.

    The next request receives its own reply.
    """
    chance = random.Random(SEED)
    async with place.open() as saver:
        await asyncio.gather(*(aput(saver, f"thread {n}", n) for n in range(20)))
        for _ in range(10):
            reading = [asyncio.create_task(saver.aget_tuple(config_for(f"thread {n}"))) for n in range(20)]
            await asyncio.sleep(chance.uniform(0, 0.02))
            for task in chance.sample(reading, 10):
                task.cancel()
            results = await asyncio.gather(*reading, return_exceptions=True)
            for number, found in enumerate(results):
                assert isinstance(found, asyncio.CancelledError) or value_in(found) == number, f"seed {SEED}"


def value_in(found: object) -> object:
    assert hasattr(found, "checkpoint"), found
    return found.checkpoint["channel_values"]["v"]
