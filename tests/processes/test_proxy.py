"""The TCP proxy of the fault tests counts correctly, and cuts when requested."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, LiteralString

import psycopg
import psycopg_pool
import pytest
import redis as client
import servers
from redis import asyncio as async_client
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

# No retries: redis-py retries by default.
ONCE = Retry(NoBackoff(), 0)
BROKEN = (psycopg.OperationalError, client.ConnectionError)


class RedisWire:
    """A counter in Redis, incremented through the proxy and read directly."""

    def __init__(self, proxy: servers.Proxy, url: str, name: str) -> None:
        self.proxy, self._name = proxy, name
        # One connection: a pool checks an idle one before it lends it, and silently opens another.
        self._through = client.Redis.from_url(
            proxy.url_for(url), retry=ONCE, socket_timeout=5, single_connection_client=True
        )
        self._past = client.Redis.from_url(url)
        self.open()

    def open(self) -> None:
        self._through.ping()

    def add(self) -> None:
        self._through.incr(self._name)

    def count(self) -> int:
        return int(self._past.get(self._name) or 0)

    def close(self) -> None:
        self._through.close()
        self._past.close()


class PostgresWire:
    """A table of PostgreSQL, written through the proxy and read directly."""

    def __init__(self, proxy: servers.Proxy, url: str) -> None:
        self.proxy, self._url = proxy, url
        self._past = psycopg.connect(url, autocommit=True)
        self._past.execute("CREATE TABLE counted (at timestamptz)")
        self.open()

    def open(self) -> None:
        self._through = psycopg.connect(self.proxy.url_for(self._url), autocommit=True, connect_timeout=5)

    def add(self) -> None:
        if self._through.closed:
            self.open()
        self._through.execute("INSERT INTO counted VALUES (now())")

    def count(self) -> int:
        row = self._past.execute("SELECT count(*) FROM counted").fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        self._through.close()
        self._past.close()


@pytest.fixture(params=["postgres", "redis"])
def wire(request: pytest.FixtureRequest) -> Iterator[RedisWire | PostgresWire]:
    """An open connection through a proxy."""
    given = request.getfixturevalue
    server = given(f"{request.param}_server")
    with servers.proxy(server.host, server.port) as proxy:
        made = (
            RedisWire(proxy, server.url, given("redis_prefix"))
            if request.param == "redis"
            else PostgresWire(proxy, given("postgres_url"))
        )
        yield made
        made.close()


Wire = RedisWire | PostgresWire


def test_proxy_counts_round_trips_and_bytes(wire: Wire) -> None:
    proxy = wire.proxy
    trips, sent, received = proxy.round_trips, proxy.bytes_sent, proxy.bytes_received
    for _ in range(3):  # psycopg prepares a statement, with one more trip, at its fifth use
        wire.add()
    assert proxy.round_trips == trips + 3
    assert proxy.requests == proxy.round_trips
    assert (proxy.bytes_sent > sent, proxy.bytes_received > received) == (True, True)
    assert wire.count() == 3


def test_a_large_request_is_one_round_trip(wire: Wire) -> None:
    trips = wire.proxy.round_trips
    text = "x" * 3_000_000
    if isinstance(wire, RedisWire):
        wire._through.echo(text)
    else:
        wire._through.execute("SELECT %s::text", (text,)).fetchone()
    assert wire.proxy.round_trips == trips + 1
    assert wire.proxy.bytes_sent > 3_000_000
    assert wire.proxy.bytes_received > 3_000_000


def test_a_pipeline_is_one_round_trip(redis_server: servers.RedisServer, redis_prefix: str) -> None:
    with (
        servers.proxy(redis_server.host, redis_server.port) as proxy,
        client.Redis.from_url(proxy.url_for(redis_server.url)) as redis,
        redis.pipeline(transaction=False) as pipeline,
    ):
        redis.ping()
        trips = proxy.round_trips
        for number in range(100):
            pipeline.set(f"{redis_prefix}:{number}", number)
        pipeline.execute()
        assert proxy.round_trips == trips + 1


def test_cut_breaks_open_connections(wire: Wire) -> None:
    assert wire.proxy.connections == 1
    wire.proxy.cut()
    with pytest.raises(BROKEN):
        wire.add()
    wire.add()
    assert wire.count() == 1


def test_cut_before_the_request_prevents_it(wire: Wire) -> None:
    wire.proxy.cut_before_request(2)
    wire.add()
    with pytest.raises(BROKEN):
        wire.add()
    assert wire.count() == 1
    wire.add()
    assert wire.count() == 2


def test_cut_before_the_reply_hides_a_completed_request(wire: Wire) -> None:
    trips = wire.proxy.round_trips
    wire.proxy.cut_before_reply(2)
    wire.add()
    with pytest.raises(BROKEN):
        wire.add()
    assert wire.proxy.round_trips == trips + 1
    assert wire.count() == 2  # it was done, and not acknowledged
    wire.add()
    assert wire.count() == 3


def test_a_frozen_connection_loses_nothing(wire: Wire) -> None:
    wire.proxy.freeze()
    adding = threading.Thread(target=wire.add)
    adding.start()
    adding.join(0.3)
    assert (adding.is_alive(), wire.count()) == (True, 0)
    wire.proxy.thaw()
    adding.join(10)
    assert (adding.is_alive(), wire.count()) == (False, 1)


def test_a_frozen_connection_can_be_cut(wire: Wire) -> None:
    wire.proxy.freeze()
    wire.proxy.cut()
    with pytest.raises(BROKEN):
        wire.add()
    wire.proxy.thaw()
    wire.add()
    assert wire.count() == 1


def test_proxy_refuses_and_accepts_connections(wire: Wire) -> None:
    wire.proxy.refuse()
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(BROKEN):
            wire.add()
        assert time.monotonic() - began < 5
    wire.proxy.accept()
    wire.add()
    assert (wire.count(), wire.proxy.connections) == (1, 1)


def test_proxy_cuts_connections_at_random(wire: Wire) -> None:
    wire.proxy.cut_at_random(random.Random(3), 0.2)
    acknowledged = sum(succeeds(wire) for _ in range(150))
    wire.proxy.cut_at_random(random.Random(3), 0)
    assert succeeds(wire)
    assert 30 < acknowledged < 140
    assert acknowledged < wire.count() < 150  # some were cut before the request, some before the reply


def succeeds(wire: Wire) -> bool:
    try:
        wire.add()
    except BROKEN:
        return False
    return True


def test_a_killed_server_resets_connections() -> None:
    with (
        servers.or_skip(servers.redis(own=True)) as server,
        servers.proxy(server.host, server.port) as proxy,
        client.Redis.from_url(proxy.url_for(server.url), retry=ONCE) as redis,
    ):
        redis.ping()
        server.kill()
        for _ in range(2):
            with pytest.raises(client.ConnectionError):
                redis.ping()
        server.restart()
        assert redis.ping()


async def test_proxy_with_async_redis_connections(redis_server: servers.RedisServer) -> None:
    with servers.proxy(redis_server.host, redis_server.port) as proxy:
        async with async_client.Redis.from_url(
            proxy.url_for(redis_server.url), retry=AsyncRetry(NoBackoff(), 0)
        ) as redis:
            await redis.ping()
            trips = proxy.round_trips
            await asyncio.gather(*(redis.ping() for _ in range(10)))
            assert proxy.connections == 10
            assert proxy.round_trips - trips >= 10
            proxy.cut()
            ended = await asyncio.gather(*(redis.ping() for _ in range(10)), return_exceptions=True)
            assert {type(end) for end in ended} <= {bool, client.ConnectionError}
            assert await redis.ping()


async def statement(pool: psycopg_pool.AsyncConnectionPool, text: LiteralString) -> psycopg.AsyncCursor[Any]:
    async with pool.connection(10) as connection:
        return await connection.execute(text)


@pytest.mark.parametrize(("trip", "made"), [(3, 0), (4, 1)], ids=["statement", "commit"])
async def test_proxy_with_an_async_postgres_pool(
    postgres_server: servers.PostgresServer, postgres_url: str, trip: int, made: int
) -> None:
    with servers.proxy(postgres_server.host, postgres_server.port) as proxy:
        async with psycopg_pool.AsyncConnectionPool(
            proxy.url_for(postgres_url),
            open=False,
            min_size=2,
            max_size=2,
            check=psycopg_pool.AsyncConnectionPool.check_connection,
        ) as pool:
            await pool.wait(10)
            proxy.cut_before_reply(trip)  # the pool's check is the first, BEGIN the second
            with pytest.raises(psycopg.OperationalError):
                await statement(pool, "CREATE TABLE made (x int)")
            proxy.cut()
            found = await statement(pool, "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema")
            assert await found.fetchone() == (made,)
    assert proxy.connections == 0


def test_proxy_with_many_threads(redis_server: servers.RedisServer, redis_prefix: str) -> None:
    with (
        servers.proxy(redis_server.host, redis_server.port) as proxy,
        client.Redis.from_url(proxy.url_for(redis_server.url), socket_timeout=60) as redis,  # a busy disk is slow
        ThreadPoolExecutor(16) as pool,
    ):
        trips = proxy.round_trips
        list(pool.map(lambda _: redis.incr(redis_prefix), range(800)))
        assert redis.get(redis_prefix) == b"800"
        assert proxy.round_trips - trips >= 800


def test_proxy_leaves_no_thread_or_open_port(redis_server: servers.RedisServer) -> None:
    before = threading.active_count()
    with servers.proxy(redis_server.host, redis_server.port) as proxy:
        redis = client.Redis.from_url(proxy.url_for(redis_server.url), retry=ONCE)
        redis.ping()
        proxy.freeze()
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    for _ in range(2):  # the connection that was open, and a new one
        with pytest.raises(client.ConnectionError):
            redis.ping()
    redis.close()


def test_url_for_keeps_all_parts_of_the_url() -> None:
    proxy = servers.Proxy("127.0.0.1", 1)
    proxy.port = 5
    try:
        assert proxy.url_for("redis://:p%40ss@host:1/3") == "redis://:p%40ss@127.0.0.1:5/3"
        assert (
            proxy.url_for("postgresql://me@host/db?options=-c%20x") == "postgresql://me@127.0.0.1:5/db?options=-c%20x"
        )
    finally:
        proxy._loop.close()  # private: a proxy that did not end cleanly
