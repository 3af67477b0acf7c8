"""The contract for a tenant, in a store where others have as much data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import PostgresServer, RedisServer
from support.contract.brief import BriefContract
from support.stores import MemoryUnderTest, SqliteUnderTest
from support.stores.files import FilesUnderTest
from support.stores.postgres import PostgresUnderTest, postgres_store
from support.stores.redis import RedisUnderTest, redis_store

from langgraph_keel import KeelSaver


class OfTenant:
    """A store whose savers all belong to one tenant."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def open(self, **options: Any) -> KeelSaver:
        saver: KeelSaver = self._store.open(**options)
        return saver.for_tenant("acme")

    def wipe(self) -> None:
        self._store.wipe()

    def raw(self) -> bytes:
        data: bytes = self._store.raw()
        return data

    def close(self) -> None:
        self._store.close()


class TestMemoryOfTenant(BriefContract):
    @pytest.fixture
    def backend(self) -> Any:
        return OfTenant(MemoryUnderTest())


class TestSqliteOfTenant(BriefContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Any]:
        store = SqliteUnderTest(str(tmp_path / "keel.db"))
        yield OfTenant(store)
        store.close()


class TestFilesOfTenant(BriefContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Any]:
        store = FilesUnderTest(tmp_path / "files")
        yield OfTenant(store)
        store.close()


@pytest.fixture(scope="module")
def redis(redis_server: RedisServer) -> Iterator[RedisUnderTest]:
    with redis_store(redis_server.url) as store:
        yield store


class TestRedisOfTenant(BriefContract):
    @pytest.fixture
    def backend(self, redis: RedisUnderTest) -> Any:
        redis.wipe()
        return OfTenant(redis)


@pytest.fixture(scope="module")
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresUnderTest]:
    with postgres_store(postgres_server.url) as store:
        yield store


class TestPostgresOfTenant(BriefContract):
    @pytest.fixture
    def backend(self, postgres: PostgresUnderTest) -> Any:
        postgres.wipe()
        return OfTenant(postgres)
