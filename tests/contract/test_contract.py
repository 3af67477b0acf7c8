"""The contract, on every backend."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import PostgresServer, RedisServer
from support.contract.brief import BriefContract
from support.stores import MemoryUnderTest, SqliteUnderTest
from support.stores.files import FilesUnderTest
from support.stores.postgres import PostgresUnderTest, postgres_store
from support.stores.redis import RedisUnderTest, redis_store

from langgraph_keel import testing
from langgraph_keel.testing import SaverContract


class TestMemory(SaverContract):
    @pytest.fixture
    def backend(self) -> MemoryUnderTest:
        return MemoryUnderTest()


class TestSqliteFile(SaverContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[SqliteUnderTest]:
        store = SqliteUnderTest(str(tmp_path / "keel.db"))
        yield store
        store.close()


class TestFiles(SaverContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[FilesUnderTest]:
        store = FilesUnderTest(tmp_path / "files")
        yield store
        store.close()


class TestSqliteInMemory(BriefContract):
    @pytest.fixture
    def backend(self) -> Iterator[SqliteUnderTest]:
        store = SqliteUnderTest(":memory:")
        yield store
        store.close()


@pytest.fixture(scope="module")
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresUnderTest]:
    """Open one store for all tests, which empty it.

    Creating the tables takes longer than most tests.
    """
    with postgres_store(postgres_server.url) as store:
        yield store


class TestPostgres(SaverContract):
    @pytest.fixture
    def backend(self, postgres: PostgresUnderTest) -> PostgresUnderTest:
        postgres.wipe()
        return postgres


@pytest.fixture(scope="module")
def partitioned(postgres_server: PostgresServer) -> Iterator[PostgresUnderTest]:
    with postgres_store(postgres_server.url, partitions=4) as store:
        yield store


class TestPostgresInPartitions(SaverContract):
    @pytest.fixture
    def backend(self, partitioned: PostgresUnderTest) -> PostgresUnderTest:
        partitioned.wipe()
        return partitioned


@pytest.fixture(scope="module")
def redis(redis_server: RedisServer) -> Iterator[RedisUnderTest]:
    with redis_store(redis_server.url) as store:
        yield store


class TestRedis(SaverContract):
    @pytest.fixture
    def backend(self, redis: RedisUnderTest) -> RedisUnderTest:
        redis.wipe()
        return redis


@pytest.fixture(scope="module")
def redis_cluster(redis_cluster_url: str) -> Iterator[RedisUnderTest]:
    with redis_store(redis_cluster_url) as store:
        yield store


class TestRedisCluster(BriefContract):
    @pytest.fixture
    def backend(self, redis_cluster: RedisUnderTest) -> RedisUnderTest:
        redis_cluster.wipe()
        return redis_cluster


def test_the_contract_contains_every_part_and_no_duplicate_name() -> None:
    parts = SaverContract.__bases__
    written = {path.stem for path in Path(testing.__file__).parent.glob("contract_*.py")}
    assert {part.__module__.rpartition(".")[2] for part in parts} == written
    names = [name for part in parts for name in vars(part) if not name.startswith("__")]
    assert sorted(names) == sorted(set(names))
