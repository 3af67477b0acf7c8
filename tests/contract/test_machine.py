"""Random histories on every backend, compared with whole values."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.stores import MemoryUnderTest, SqliteUnderTest
from support.stores.files import FilesUnderTest
from support.stores.postgres import PostgresUnderTest
from support.stores.redis import RedisUnderTest, redis_store
from support.stores.tiered import TieredUnderTest
from support.tiers import sized

from langgraph_keel.testing import SaverMachine


class MemoryMachine(SaverMachine):
    def make_backend(self) -> MemoryUnderTest:
        return MemoryUnderTest()


class SqliteMachine(SaverMachine):
    backend: SqliteUnderTest

    def make_backend(self) -> SqliteUnderTest:
        self._directory = TemporaryDirectory()
        return SqliteUnderTest(str(Path(self._directory.name) / "keel.db"))

    def release(self) -> None:
        self.backend.close()
        self._directory.cleanup()


class FilesMachine(SaverMachine):
    backend: FilesUnderTest

    def make_backend(self) -> FilesUnderTest:
        self._directory = TemporaryDirectory()
        return FilesUnderTest(Path(self._directory.name) / "files")

    def release(self) -> None:
        self.backend.close()
        self._directory.cleanup()


class TieredMachine(SaverMachine):
    def make_backend(self) -> TieredUnderTest:
        return TieredUnderTest(MemoryUnderTest(), MemoryUnderTest())


class PostgresMachine(SaverMachine):
    """Uses one store for all histories, emptied before each."""

    shared: PostgresUnderTest

    def make_backend(self) -> PostgresUnderTest:
        self.shared.wipe()
        return self.shared


class RedisMachine(SaverMachine):
    """Uses one prefix for all histories, emptied before each."""

    shared: RedisUnderTest

    def make_backend(self) -> RedisUnderTest:
        self.shared.wipe()
        return self.shared


SETTINGS = settings(deadline=None, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
def test_memory_agrees_with_the_oracle() -> None:
    run_state_machine_as_test(MemoryMachine, settings=settings(SETTINGS, max_examples=sized(8, 15, 240)))


@pytest.mark.slow
def test_two_tiers_agree_with_the_oracle() -> None:
    run_state_machine_as_test(TieredMachine, settings=settings(SETTINGS, max_examples=sized(4, 6, 100)))


@pytest.mark.slow
def test_sqlite_agrees_with_the_oracle() -> None:
    run_state_machine_as_test(SqliteMachine, settings=settings(SETTINGS, max_examples=sized(4, 6, 100)))


@pytest.mark.slow
def test_files_agree_with_the_oracle() -> None:
    run_state_machine_as_test(FilesMachine, settings=settings(SETTINGS, max_examples=sized(4, 5, 80)))


@pytest.mark.slow
def test_postgres_agrees_with_the_oracle(postgres_url: str) -> None:
    PostgresMachine.shared = PostgresUnderTest(postgres_url)
    run_state_machine_as_test(PostgresMachine, settings=settings(SETTINGS, max_examples=sized(4, 4, 60)))
    PostgresMachine.shared.close()


@pytest.mark.slow
def test_redis_agrees_with_the_oracle(redis_url: str) -> None:
    with redis_store(redis_url) as RedisMachine.shared:
        run_state_machine_as_test(RedisMachine, settings=settings(SETTINGS, max_examples=sized(4, 4, 60)))
