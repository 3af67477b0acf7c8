"""The whole contract with a keyring: sealed data behaves like plain data."""

from __future__ import annotations

from binascii import b2a_base64
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

from langgraph_keel import KeelSaver, Keyring, LocalKey
from langgraph_keel.keys import store as sealed_store
from langgraph_keel.keys.datakeys import KEY, STORE
from langgraph_keel.keys.sealing import seal_frame

KEYRING = Keyring(LocalKey("k1", bytes(range(32))))
HIDING = Keyring(LocalKey("k1", bytes(range(32))), hide_names=True)


class Sealed:
    """A store whose savers all have a keyring.

    `raw` adds the plain form of sealed data, for the search for secrets.
    """

    def __init__(self, store: Any, made: dict[bytes, bytes], keyring: Keyring = KEYRING) -> None:
        self._store = store
        self._made = made
        self._keyring = keyring

    def open(self, **options: Any) -> KeelSaver:
        saver: KeelSaver = self._store.open(encryption=self._keyring, **options)
        return saver

    def wipe(self) -> None:
        """Remove everything except the store's keys, which open savers remember."""
        with self.open() as saver:
            store = saver.engine.session.store
            assert isinstance(store, sealed_store.SealedStore)
            inner = store.inner
            cells = saver.engine.run(inner.read_cells(STORE, [KEY]))
            self._store.wipe()
            for key, cell in cells.items():
                saver.engine.run(inner.swap_cell(STORE, key, None, cell))

    def raw(self) -> bytes:
        data = self._store.raw()
        assert not any(frame in data for frame in self._made.values())
        kept = [frame for sealed, frame in self._made.items() if sealed in data or _base64(sealed) in data]
        return b"\n".join([data, *kept])

    def close(self) -> None:
        self._store.close()


def _base64(sealed: bytes) -> bytes:
    return b2a_base64(sealed, newline=False)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
    """The plain frames, by their sealed form."""
    found: dict[bytes, bytes] = {}

    def seal(frame: bytes, *args: Any) -> bytes:
        sealed = seal_frame(frame, *args)
        found[sealed] = frame
        return sealed

    monkeypatch.setattr(sealed_store, "seal_frame", seal)
    return found


class SealedContract(BriefContract):
    """The contract without counts of trips, which tests/keys checks.

    The first request of a thread and of a saver takes more trips.
    """

    most_trips = 20


for _name in (
    "test_each_cell_verb_takes_one_round_trip",
    "test_each_operation_takes_one_round_trip",
    "test_each_operation_takes_one_round_trip_without_a_memo",
    "test_rewinding_takes_few_round_trips",
    "test_forking_takes_few_round_trips",
    # The refused copy has given the target keys, and has removed them again.
    "test_a_copy_up_to_a_removed_entry_is_refused",
    # Its key remains.
    "test_a_tenant_without_data_is_not_listed",
):
    setattr(SealedContract, _name, None)


class NamelessContract(SealedContract):
    """The contract with hidden names.

    It omits a test of the second trip: a saver's first trip reads the keys.
    """

    test_rewinding_to_a_concurrently_pruned_checkpoint_is_refused: Any = None


class TestSealedMemory(SealedContract):
    @pytest.fixture
    def backend(self, made: dict[bytes, bytes]) -> Any:
        return Sealed(MemoryUnderTest(), made)


class TestSealedSqlite(SealedContract):
    @pytest.fixture
    def backend(self, tmp_path: Path, made: dict[bytes, bytes]) -> Iterator[Any]:
        store = SqliteUnderTest(str(tmp_path / "keel.db"))
        yield Sealed(store, made)
        store.close()


class TestNamelessMemory(NamelessContract):
    @pytest.fixture
    def backend(self, made: dict[bytes, bytes]) -> Any:
        return Sealed(MemoryUnderTest(), made, HIDING)


class TestNamelessSqlite(NamelessContract):
    @pytest.fixture
    def backend(self, tmp_path: Path, made: dict[bytes, bytes]) -> Iterator[Any]:
        store = SqliteUnderTest(str(tmp_path / "keel.db"))
        yield Sealed(store, made, HIDING)
        store.close()


class TestSealedFiles(SealedContract):
    @pytest.fixture
    def backend(self, tmp_path: Path, made: dict[bytes, bytes]) -> Iterator[Any]:
        store = FilesUnderTest(tmp_path / "files")
        yield Sealed(store, made)
        store.close()


@pytest.fixture(scope="module")
def redis(redis_server: RedisServer) -> Iterator[RedisUnderTest]:
    with redis_store(redis_server.url) as store:
        yield store


class TestSealedRedis(SealedContract):
    @pytest.fixture
    def backend(self, redis: RedisUnderTest, made: dict[bytes, bytes]) -> Any:
        redis.wipe()
        return Sealed(redis, made)


@pytest.fixture(scope="module")
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresUnderTest]:
    """Open one store for all tests, which empty it.

    Creating the tables takes longer than most tests.
    """
    with postgres_store(postgres_server.url) as store:
        yield store


class TestSealedPostgres(SealedContract):
    @pytest.fixture
    def backend(self, postgres: PostgresUnderTest, made: dict[bytes, bytes]) -> Any:
        postgres.wipe()
        return Sealed(postgres, made)


class TestNamelessFiles(NamelessContract):
    @pytest.fixture
    def backend(self, tmp_path: Path, made: dict[bytes, bytes]) -> Iterator[Any]:
        store = FilesUnderTest(tmp_path / "files")
        yield Sealed(store, made, HIDING)
        store.close()


class TestNamelessRedis(NamelessContract):
    @pytest.fixture
    def backend(self, redis: RedisUnderTest, made: dict[bytes, bytes]) -> Any:
        redis.wipe()
        return Sealed(redis, made, HIDING)


class TestNamelessPostgres(NamelessContract):
    @pytest.fixture
    def backend(self, postgres: PostgresUnderTest, made: dict[bytes, bytes]) -> Any:
        postgres.wipe()
        return Sealed(postgres, made, HIDING)
