"""The savers that a test can run with: a new backend is one more line."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import psycopg
import pytest
import servers
from langgraph.checkpoint.base import BaseCheckpointSaver
from redis import Redis

from langgraph_keel import FileSaver, MemorySaver, PostgresSaver, RedisSaver, SqliteSaver
from support.tiers import BACKENDS as BACKENDS

FACES = ("sync", "async")
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_face = pytest.mark.parametrize("face", FACES)

# The fixture that starts the server of a saver, and passes its URL to child processes.
SERVERS = {"postgres": "postgres_server", "redis": "redis_server"}


def needing(name: str, request: pytest.FixtureRequest) -> None:
    """Request the server of a saver; skip or fail if there is none.

    See `servers.required`.
    """
    if name in SERVERS:
        request.getfixturevalue(SERVERS[name])


@contextmanager
def postgres_saver(**options: Any) -> Iterator[PostgresSaver]:
    """Open a saver on its own schema, in a server that a parent pytest has started."""
    url, schema = os.environ[servers.SHARED["PostgreSQL"]], f"keel_{token_hex(6)}"
    try:
        with PostgresSaver(url, schema=schema, **options) as saver:
            yield saver
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


@contextmanager
def redis_place() -> Iterator[dict[str, Any]]:
    """Yield options of `RedisSaver` with a unique prefix.

    A parent pytest has started the server.
    """
    url, prefix = os.environ[servers.SHARED["Redis"]], f"keel-{token_hex(6)}"  # LangGraph's tests replace uuid4
    try:
        yield {"url": url, "prefix": prefix, "durability": "any"}
    finally:
        with Redis.from_url(url) as client:
            for key in client.scan_iter(match=f"{prefix}:*", count=1000):
                client.unlink(key)


@contextmanager
def redis_saver(**options: Any) -> Iterator[RedisSaver]:
    """Open a saver on such a prefix."""
    with redis_place() as place, RedisSaver(**place, **options) as saver:
        yield saver


# Each opens a saver on its own store, in its own directory.
SAVERS: dict[str, Callable[[Path], AbstractContextManager[BaseCheckpointSaver[Any]]]] = {
    "memory": lambda _: MemorySaver(),
    "sqlite": lambda directory: SqliteSaver.from_conn_string(str(directory / "keel.db")),
    "sqlite-memory": lambda _: SqliteSaver.from_conn_string(":memory:"),
    "files": lambda directory: FileSaver(directory / "files"),
    "postgres": lambda _: postgres_saver(),
    "redis": lambda _: redis_saver(),
}
