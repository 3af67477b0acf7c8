"""Search every byte of a store, bypassing its saver, for a text."""

from __future__ import annotations

import os
import pickle
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import psycopg
import servers
from psycopg.conninfo import make_conninfo

from langgraph_keel import FileSaver, MemorySaver, PostgresSaver, RedisSaver, SqliteSaver
from support.saver_parts import driver_of, store_of

Part = tuple[str, bytes]
"""A place and its bytes."""


def places(saver: Any, mark: str) -> list[str]:
    """Return the places in the store of a saver that contain a text."""
    needles = mark.encode(), mark.encode().hex().encode()
    return [where for where, data in _READERS[type(saver)](saver) if any(each in data for each in needles)]


@contextmanager
def postgres_apart(**options: Any) -> Iterator[PostgresSaver]:
    """Open a saver on its own database.

    In a shared one, transactions of other tests would keep dead rows.
    """
    url, name = os.environ[servers.SHARED["PostgreSQL"]], f"keel_{token_hex(6)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        try:
            with PostgresSaver(make_conninfo(url, dbname=name), schema="keel", **options) as opened:
                yield opened
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _in_memory(saver: Any) -> Iterator[Part]:
    state = driver_of(saver).state
    yield from (("a thread", pickle.dumps(item)) for item in state.items())
    yield from (("a shelf", pickle.dumps(item)) for item in state.cells.items())


def _of_sqlite(saver: Any) -> Iterator[Part]:
    path = Path(driver_of(saver).path)
    yield from ((each.name, each.read_bytes()) for each in sorted(path.parent.glob(f"{path.name}*")))


def _of_files(saver: Any) -> Iterator[Part]:
    for path in sorted(driver_of(saver).root.rglob("*")):
        name = str(path.relative_to(driver_of(saver).root))
        yield name, name.encode()
        if path.is_file():
            yield name, (data := path.read_bytes())
            yield from ((name, b64decode(frame + b"==")) for frame in re.findall(rb'"\$frame":"([^"]*)"', data))


def _of_redis(saver: Any) -> Iterator[Part]:
    client = driver_of(saver).ready(writes=False)  # also of a cluster
    store = store_of(saver)
    while not hasattr(store, "keys"):  # of an encrypted one, below its seals
        store = store.inner
    for key in sorted(client.scan_iter(match=f"{store.keys.prefix}*", count=1000)):
        yield from ((key.decode(), part) for part in (key, *_values(client, key)))


def _values(client: Any, key: bytes) -> Iterator[bytes]:
    kind = client.type(key)
    if kind == b"hash":
        yield from (part for pair in client.hgetall(key).items() for part in pair)
    else:
        yield from client.zrange(key, 0, -1) if kind == b"zset" else [client.get(key)]


def _of_postgres(saver: Any) -> Iterator[Part]:
    driver = driver_of(saver)
    with psycopg.connect(driver.given, autocommit=True) as connection:
        for name in _relations(connection, driver.tables.schema, "r"):
            rows = connection.execute(f"SELECT t::text FROM {name} t".encode()).fetchall()
            yield from ((name, text.encode()) for (text,) in rows)
        connection.execute(b"CHECKPOINT")
        data = Path(_one(connection, "SHOW data_directory"))
        for name, path in _files(connection, driver.tables.schema) if _is_here(data) else ():
            for part in sorted(data.glob(f"{path}*")):
                yield f"{name} ({part.name})", part.read_bytes()


def shows_pages(saver: Any) -> bool:
    """Return whether the test can read the server's files.

    It cannot if the server runs on another host or in a container.
    """
    if not isinstance(saver, PostgresSaver):
        return True
    with psycopg.connect(str(driver_of(saver).given)) as connection:
        return _is_here(Path(_one(connection, "SHOW data_directory")))


def _is_here(data: Path) -> bool:
    return os.access(data / "base", os.R_OK | os.X_OK)


def _one(connection: Any, sql: str) -> Any:
    return connection.execute(sql.encode()).fetchone()[0]


def _relations(connection: Any, schema: str, kinds: str) -> list[str]:
    rows = connection.execute(
        b"SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        b"WHERE n.nspname = %s AND c.relkind = ANY (%s)",
        (schema, list(kinds)),
    ).fetchall()
    return [name for (name,) in rows]


def _files(connection: Any, schema: str) -> list[tuple[str, str]]:
    """Return the files of tables, TOAST tables, indexes, and planner statistics."""
    return list(
        connection.execute(
            b"WITH t AS (SELECT c.oid, c.reltoastrelid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            b"WHERE (n.nspname = %s AND c.relkind IN ('r', 'i')) OR c.oid = 'pg_catalog.pg_statistic'::regclass) "
            b"SELECT r::regclass::text, pg_relation_filepath(r) FROM ("
            b"SELECT oid AS r FROM t UNION SELECT reltoastrelid FROM t WHERE reltoastrelid <> 0) AS every",
            (schema,),
        ).fetchall()
    )


_READERS: dict[type, Callable[[Any], Iterator[Part]]] = {
    MemorySaver: _in_memory,
    SqliteSaver: _of_sqlite,
    FileSaver: _of_files,
    RedisSaver: _of_redis,
    PostgresSaver: _of_postgres,
}
