"""RedisSaver's clients: Cluster, Sentinel, a user's own, forks, threads, loops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import servers
import uvloop
from redis import Redis
from redis import asyncio as aio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster
from redis.exceptions import RedisError
from redis.sentinel import Sentinel
from servers.redis import own_redis
from support.backends.redis_steps import Open, behind, connections, opened, put
from support.saver_parts import async_driver_of
from support.stores.redis import client_of, redis_store
from support.tools.flight import wait_until

from langgraph_keel import InvalidInput, NotFound, RedisSaver, StoreBusy, StoreError, StoreUnavailable
from langgraph_keel.testing.rig import FACES, at, checkpoint_of, id_of

__all__ = ["behind", "opened"]  # fixtures


# -- a Cluster -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
def test_threads_on_all_masters_are_listed_together(redis_cluster_url: str, face: str) -> None:
    with redis_store(redis_cluster_url) as store, client_of(redis_cluster_url) as cluster:
        caller = FACES[face](store.open)
        ids = [f"{n:04}" for n in range(60)]
        for n in ids:
            caller.put(at(f"thread {n}"), checkpoint_of(n, {"n": n}, ts=f"2026-01-01T00:00:{n[2:]}"), {"run_id": n})
        nodes = {cluster.get_node_from_key(key.decode()).name for key in store.stored_keys()}
        assert len(nodes) == 3
        assert [id_of(found) for found in caller.list(None)] == ids[::-1]
        assert [info.thread_id for info in caller.saver.threads()] == [f"thread {n}" for n in ids[::-1]]
        assert [info.latest for info in caller.saver.threads(limit=7)] == ids[:-8:-1]
        for n in ids[:10]:
            caller.copy_thread(f"thread {n}", f"copy of {n}")
        caller.delete_for_runs(ids[:5])
        caller.prune([f"thread {n}" for n in ids])
        assert [id_of(found) for found in caller.list(None, limit=100)] == sorted([*ids[5:], *ids[5:10]], reverse=True)
        caller.close()


async def test_clients_of_a_cluster_are_accepted(redis_cluster_url: str) -> None:
    url = redis_cluster_url.replace("+cluster", "")
    with redis_store(redis_cluster_url) as store:
        async with AsyncRedisCluster.from_url(url) as async_client:
            with RedisCluster.from_url(url) as client:
                saver = RedisSaver(client=client, async_client=async_client, prefix=store.prefix)
                put(saver, 1)
                assert id_of(await saver.aget_tuple(at())) == "0001"
                assert saver.durability() == await saver.adurability()
                saver.close()
                assert client.ping()


def test_concurrent_tasks_start_the_client_of_a_cluster_once(redis_cluster_url: str) -> None:
    """The first of them may be cancelled during the start."""

    async def main(saver: RedisSaver, round: str) -> list[Any]:
        tasks = [asyncio.create_task(_aput(saver, f"{round} {n}")) for n in range(64)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with redis_store(redis_cluster_url) as store:
        saver = RedisSaver(redis_cluster_url, prefix=store.prefix, durability="any")
        for round in "ab":
            first, *others = asyncio.run(main(saver, round))
            assert isinstance(first, asyncio.CancelledError)
            assert [each for each in others if isinstance(each, BaseException)] == []
        saver.close()


@pytest.mark.parametrize("at_once", [40, 150])
def test_calls_to_a_cluster_wait_for_a_connection(redis_cluster_url: str, at_once: int) -> None:
    async def main(saver: RedisSaver) -> None:
        await asyncio.gather(*(_aput(saver, f"task {n}") for n in range(at_once)))

    with redis_store(redis_cluster_url) as store:
        saver = RedisSaver(redis_cluster_url, prefix=store.prefix, durability="any", max_connections=3)
        asyncio.run(main(saver))
        with ThreadPoolExecutor(at_once) as pool:
            [*pool.map(lambda n: put(saver, n, f"thread {n}"), range(at_once))]
        assert len([*saver.threads()]) == 2 * at_once
        saver.close()


async def test_a_call_to_a_cluster_does_not_wait_forever(redis_cluster_url: str) -> None:
    with redis_store(redis_cluster_url) as store:
        saver = RedisSaver(redis_cluster_url, prefix=store.prefix, durability="any", max_connections=1, timeout=2)
        await _aput(saver, "t")
        client: Any = await async_driver_of(saver).ready(writes=False)
        await client._turns.acquire()  # private: as if a call in progress had taken it
        with pytest.raises(StoreBusy, match="nothing was sent"):
            await _aput(saver, "t")
        client._turns.release()  # private: as if a call in progress had taken it
        await _aput(saver, "t")
        await async_driver_of(saver).aclose()
        saver.close()


@pytest.mark.slow
@pytest.mark.parametrize("face", ["threads", "loop"])
def test_a_cluster_without_a_master_raises_store_unavailable(face: str) -> None:
    """Waiting calls get the error, too.

    The client closes their connection after the failure of another call.
    """

    async def aput_all(saver: RedisSaver, names: Iterable[str]) -> list[Any]:
        return await asyncio.gather(*(_aput(saver, name) for name in names), return_exceptions=True)

    def put_all(saver: RedisSaver, names: Iterable[str]) -> list[Any]:
        with ThreadPoolExecutor(12) as pool:
            futures = [pool.submit(put, saver, 1, name) for name in names]
            return [future.exception() for future in futures]

    def put_some(saver: RedisSaver, round: str) -> list[Any]:
        names = [f"{round} {number}" for number in range(100)]
        results = asyncio.run(aput_all(saver, names)) if face == "loop" else put_all(saver, names)
        return [result for result in results if isinstance(result, BaseException)]

    with servers.redis_cluster() as url, RedisSaver(url, durability="any", timeout=5) as saver:
        with client_of(url) as client, ThreadPoolExecutor(1) as background:
            master = client.get_redis_connection(client.get_primaries()[1]).info("server")["process_id"]
            assert put_some(saver, "before") == []
            under_way = background.submit(put_some, saver, "meanwhile")
            os.kill(master, signal.SIGKILL)
            failed = [*under_way.result(), *put_some(saver, "after")]
        assert {type(error) for error in failed} == {StoreUnavailable}
    # redis-py leaves the connections of a dropped node to the collector, which would warn in another test.
    del failed, under_way  # the frames of errors hold connections
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def opened_of(saver: Any) -> Any:
    """Return the open clients of running loops."""
    return async_driver_of(saver)._loops._opened  # private: loops with connections are not visible from outside


async def _aput(saver: RedisSaver, thread: str) -> Any:
    return await saver.aput(at(thread), checkpoint_of("0001", {"list": [thread]}), {}, {})  # type: ignore[arg-type]


# -- a user's own client ---------------------------------------------------------------------------------------


async def test_clients_of_the_user_stay_open(redis_url: str, redis_prefix: str) -> None:
    async with aio.Redis.from_url(redis_url) as async_client:
        with Redis.from_url(redis_url) as client:
            async with RedisSaver(client=client, async_client=async_client, prefix=redis_prefix) as saver:
                put(saver, 1)
                assert id_of(await saver.aget_tuple(at())) == "0001"
            assert client.ping()
            assert await async_client.ping()


async def test_one_client_is_enough(redis_url: str, redis_prefix: str) -> None:
    with Redis.from_url(redis_url) as client:
        saver = RedisSaver(client=client, prefix=redis_prefix)
        put(saver, 1)
        assert id_of(await saver.aget_tuple(at())) == "0001"
        assert (await saver.adurability()).is_on_disk
    async with aio.Redis.from_url(redis_url) as async_client:
        saver = RedisSaver(async_client=async_client, prefix=redis_prefix)
        assert id_of(await saver.aget_tuple(at())) == "0001"
        with pytest.raises(InvalidInput, match="client="):
            saver.get_tuple(at())


def test_unsuitable_clients_are_refused(redis_url: str) -> None:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        with pytest.raises(InvalidInput, match="decode_responses"):
            RedisSaver(client=client)
        with pytest.raises(InvalidInput, match="either"):
            RedisSaver(redis_url, client=client)
    with pytest.raises(InvalidInput, match="either"):
        RedisSaver()


def test_a_saver_works_behind_sentinel(tmp_path: Path) -> None:
    _, program = own_redis()
    with servers.redis(servers.DURABLE) as server, Redis.from_url(server.url) as direct:
        port = direct.connection_pool.connection_kwargs["port"]
        with sentinel_of(program, port, tmp_path) as sentinel_port:
            sentinel: Any = _sentinel([("127.0.0.1", sentinel_port)], socket_timeout=5)
            saver = RedisSaver(client=sentinel.master_for("keel"))
            put(saver, 1)
            assert id_of(saver.get_tuple(at())) == "0001"
            assert direct.exists("keel:keel")
            with pytest.raises(NotFound, match="the Redis 'keel' of Sentinel"):
                RedisSaver(client=sentinel.master_for("keel"), prefix="nothing", read_only=True).get_tuple(at())
            sentinel.master_for("keel").close()
            for each in sentinel.sentinels:
                each.close()


_sentinel: Any = Sentinel


def _names_a_master(sentinel: Any) -> bool:
    try:
        return bool(sentinel.execute_command("SENTINEL", "get-master-addr-by-name", "keel"))
    except RedisError:  # it does not listen yet
        return False


@contextmanager
def sentinel_of(program: Path, port: int, directory: Path) -> Iterator[int]:
    """Run a sentinel that watches the server at `port`; yield its own port."""
    own = servers.free_port()
    settings = directory / "sentinel.conf"
    settings.write_text(f"port {own}\nsentinel monitor keel 127.0.0.1 {port} 1\ndir {directory}\n")
    with subprocess.Popen([program, settings, "--sentinel"], stdout=subprocess.DEVNULL) as process:
        try:
            with Redis(port=own) as asking:
                wait_until(lambda: _names_a_master(asking))
            yield own
        finally:
            process.terminate()


# -- processes, threads and loops ------------------------------------------------------------------------------


def test_a_forked_child_has_its_own_connections(opened: Open, behind: Any) -> None:
    saver = opened()
    put(saver, 1)
    asyncio.run(_get(saver))
    child = os.fork()
    if not child:
        status = 1
        try:
            put(saver, 2, "child")
            asyncio.run(_get(saver))
            saver.close()
            status = 0
        finally:
            os._exit(status)
    for number in range(3, 30):
        put(saver, number)
        assert id_of(saver.get_tuple(at())) == f"{number:04}"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert id_of(saver.get_tuple(at("child"))) == "0002"


async def _get(saver: Any, thread: str = "t") -> Any:
    return await saver.aget_tuple(at(thread))


def test_many_threads_share_a_few_connections(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(max_connections=3)

    def work(name: str) -> None:
        for number in range(20):
            put(saver, number, name)
            assert id_of(saver.get_tuple(at(name))) == f"{number:04}"

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(saver.list(None))) == 12 * 20
    assert 1 <= connections(behind, redis_prefix) <= 3


def test_many_tasks_share_a_few_connections(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened(max_connections=3)

    async def work(name: str) -> None:
        for number in range(10):
            await saver.aput(at(name), checkpoint_of(f"{number:04}", {"n": number}), {}, {})  # type: ignore[arg-type]
            assert id_of(await saver.aget_tuple(at(name))) == f"{number:04}"

    async def main() -> int:
        await asyncio.gather(*(work(f"t{n}") for n in range(30)))
        return connections(behind, redis_prefix)

    assert 1 <= asyncio.run(main()) <= 3


def run_and_close(main: Callable[[], Any]) -> None:
    """Run in a new loop without `asyncio.run`, as some programs do."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


LOOPS: dict[str, Callable[[Callable[[], Any]], object]] = {
    "asyncio.run": lambda main: asyncio.run(main()),
    "closed": run_and_close,
    "uvloop.run": lambda main: uvloop.run(main()),
}


@pytest.mark.parametrize("server", ["one", "cluster"])
@pytest.mark.parametrize("kind", LOOPS)
def test_loops_that_end_leave_no_connections(
    redis_url: str, redis_cluster_url: str, kind: str, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_store(redis_url if server == "one" else redis_cluster_url) as store:
        saver = store.savers[0]
        put(saver, 0)

        async def main() -> None:
            for each in await asyncio.gather(*(_get(saver) for _ in range(5))):
                assert id_of(each) == "0000"

        for _ in range(4):
            LOOPS[kind](main)
        assert len(opened_of(saver)) <= 1
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("kind", LOOPS)
def test_an_unclosed_saver_leaves_no_warning(
    redis_url: str, redis_prefix: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def use(saver: RedisSaver) -> None:
        put(saver, 0)
        LOOPS[kind](lambda: _get(saver))

    use(RedisSaver(redis_url, prefix=redis_prefix))
    gc.collect()
    assert not caplog.records


def test_an_unclosed_saver_leaves_no_warning_during_collection(redis_url: str, redis_prefix: str) -> None:
    # A collection during a request may finalize the socket before its connection.
    thresholds = gc.get_threshold()
    gc.freeze()  # collections that look only at objects that are created here
    gc.set_threshold(50, 10, 1)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for number in range(40):
                put(RedisSaver(redis_url, prefix=redis_prefix), number)
                gc.collect()
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    assert not [each.message for each in warned if each.category is ResourceWarning]


def test_concurrent_loops_share_a_saver(opened: Open) -> None:
    saver = opened()
    failures: list[BaseException] = []

    async def main(name: str) -> None:
        for number in range(10):
            await saver.aput(at(name), checkpoint_of(f"{number:04}", {"n": number}), {}, {})  # type: ignore[arg-type]
            assert id_of(await saver.aget_tuple(at(name))) == f"{number:04}"

    def work(name: str) -> None:
        try:
            asyncio.run(main(name))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not opened_of(saver)


@pytest.mark.slow
async def test_a_saver_can_be_closed_in_a_thread_while_its_loop_runs(opened: Open) -> None:
    saver = opened()
    put(saver, 1)
    assert id_of(await saver.aget_tuple(at())) == "0001"
    await asyncio.to_thread(saver.close)
    assert not opened_of(saver)
    with pytest.raises(StoreError):
        await saver.aget_tuple(at())
    gc.collect()


@pytest.mark.slow
async def test_a_saver_can_be_closed_in_its_loop(redis_url: str, redis_prefix: str) -> None:
    with RedisSaver(redis_url, prefix=redis_prefix) as saver:
        put(saver, 1)
        assert id_of(await saver.aget_tuple(at())) == "0001"
    gc.collect()
