"""The whole contract on two stores: a hot one before a cold one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import PostgresServer, RedisServer
from support.contract.brief import BriefContract
from support.stores import MemoryUnderTest, SqliteUnderTest
from support.stores.postgres import PostgresUnderTest, postgres_store
from support.stores.redis import RedisUnderTest, redis_store
from support.stores.tiered import TieredUnderTest


class TieredContract(BriefContract):
    """The contract without counts of trips.

    There are two stores; tests/backends/test_tiered.py counts the trips to each.
    """

    most_trips = 30


for _name in (
    "test_each_operation_takes_one_round_trip",
    "test_each_operation_takes_one_round_trip_without_a_memo",
    "test_forking_takes_few_round_trips",
):
    setattr(TieredContract, _name, None)


class TestTieredMemory(TieredContract):
    @pytest.fixture
    def backend(self) -> Any:
        return TieredUnderTest(MemoryUnderTest(), MemoryUnderTest())


@pytest.fixture(scope="module")
def redis(redis_server: RedisServer) -> Iterator[RedisUnderTest]:
    with redis_store(redis_server.url) as store:
        yield store


class TestTieredRedisBeforeSqlite(TieredContract):
    @pytest.fixture
    def backend(self, redis: RedisUnderTest, tmp_path: Path) -> Iterator[Any]:
        redis.wipe()
        cold = SqliteUnderTest(str(tmp_path / "keel.db"))
        yield TieredUnderTest(redis, cold)
        cold.close()


@pytest.fixture(scope="module")
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresUnderTest]:
    with postgres_store(postgres_server.url) as store:
        yield store


class TestTieredRedisBeforePostgres(TieredContract):
    @pytest.fixture
    def backend(self, redis: RedisUnderTest, postgres: PostgresUnderTest) -> Any:
        redis.wipe()
        postgres.wipe()
        return TieredUnderTest(redis, postgres)
