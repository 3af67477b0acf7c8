"""PostgreSQL: one server with default settings (fsync on) for both savers; each directory is a database.

The server is that of KEEL_TEST_POSTGRES_URL, or one that `tests/servers` starts. No other program may use it.

"stored" is `pg_total_relation_size` of all tables of the saver: heap, TOAST, indexes and maps, without a VACUUM before.
"written" is the server's whole write-ahead log, from `pg_current_wal_lsn`. Before counting, the tables are created and
a CHECKPOINT runs, so that both savers start under equal conditions: the first change of each page after a checkpoint
logs the whole page. Autovacuum is off for these tables. `chat`, which counts, runs before the measures that leave dead
rows, because an autovacuum of those rows would be counted (2 MB when `prune` ran first).

LangGraph's savers have one connection, as `from_conn_string` creates them. For many concurrent threads, its saver is
also measured with a pool of ten connections, the size of Keel's pool. The target refers to the faster of the two.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from .backend import AsyncOpened, Backend, Opened, Opener, Pair
from .targets import POSTGRES

SERVER = "KEEL_BENCHMARK_POSTGRES_URL"
POOL = 10
TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
SIZE = f"SELECT sum(pg_total_relation_size(quote_ident(relname)::regclass))::bigint FROM ({TABLES}) AS tables"


@contextmanager
def serve(root: Path) -> Iterator[str]:
    """Run the server and set its URL in the environment; drop the databases at the end."""
    tempfile.tempdir = str(root.parent)  # the server's files must be on a real disk, too
    with import_module("tests.servers").postgres(fsync=True) as server:
        os.environ[SERVER] = server.url
        try:
            yield f"PostgreSQL {server.version}, fsync {ask('SHOW fsync')}"
        finally:
            for place in root.iterdir():
                _execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", place.name)


def ask(question: str, url: str | None = None) -> Any:
    """Return the single value of a query."""
    with psycopg.connect(url or os.environ[SERVER], autocommit=True) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row
    return row[0]


def _execute(statement: str, name: str) -> None:
    with psycopg.connect(os.environ[SERVER], autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


@cache
def database(directory: Path) -> str:
    """Return the URL of a directory's database, which is created if it does not exist."""
    with psycopg.connect(os.environ[SERVER], autocommit=True) as connection:
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [directory.name]).fetchone()
    if not found:
        _execute("CREATE DATABASE {}", directory.name)
    return make_conninfo(os.environ[SERVER], dbname=directory.name)


def stored(directory: Path) -> int:
    return int(ask(SIZE, database(directory)))


@contextmanager
def filled(directory: Path) -> Iterator[Path]:
    """Let connections that are opened in the block not wait for the disk."""
    _execute("ALTER DATABASE {} SET synchronous_commit = off", directory.name)
    yield directory
    _execute("ALTER DATABASE {} RESET synchronous_commit", directory.name)


def pids(directory: Path) -> list[int]:
    """Return the server processes with connections to a directory's database."""
    with psycopg.connect(os.environ[SERVER]) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        return [pid for (pid,) in connection.execute(query, [directory.name])]


def written() -> int:
    return int(ask("SELECT pg_current_wal_lsn() - '0/0'"))


def prepare(opener: Opener, directory: Path) -> None:
    """Create the tables without autovacuum, and run a CHECKPOINT."""
    with opener(directory) as saver:
        saver.setup()  # type: ignore[attr-defined]
    with psycopg.connect(database(directory), autocommit=True) as connection:
        for (name,) in connection.execute(TABLES).fetchall():
            connection.execute(sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = false)").format(sql.Identifier(name)))
    with psycopg.connect(os.environ[SERVER], autocommit=True) as connection:
        connection.execute("CHECKPOINT")


@contextmanager
def _langgraph(directory: Path) -> Opened:
    with PostgresSaver.from_conn_string(database(directory)) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def _langgraph_async(directory: Path) -> AsyncOpened:
    async with AsyncPostgresSaver.from_conn_string(database(directory)) as saver:
        await saver.setup()
        yield saver


@asynccontextmanager
async def _langgraph_pooled(directory: Path) -> AsyncOpened:
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}  # as in `from_conn_string`
    pool = AsyncConnectionPool(database(directory), min_size=POOL, max_size=POOL, kwargs=options, open=False)
    async with pool:
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]  # a pool with rows as dicts
        await saver.setup()
        yield saver


def _keel(directory: Path) -> Any:
    return import_module("langgraph_keel").PostgresSaver.from_conn_string(database(directory))


def _trip(stack: ExitStack, directory: Path) -> Callable[[], object]:
    connection = stack.enter_context(psycopg.connect(database(directory), autocommit=True))
    return lambda: connection.execute("SELECT 1").fetchone()


PAIR = Pair(
    ours=Backend("keel-postgres", _keel, _keel, stored, written, prepare, _trip, pids, filled),
    theirs=Backend("langgraph-postgres", _langgraph, _langgraph_async, stored, written, prepare, None, pids, filled),
    pooled=Backend("langgraph-postgres-pool", _langgraph, _langgraph_pooled, stored, written, prepare),
    targets=POSTGRES,
    measures=(
        "chat",
        "cells",
        "turns",
        "service",
        "processes",
        "growth",
        "bytes",
        "prune",
        "threads",
        "lists",
        "tenants",
        "fork",
        "memory",
        "ledger",
        "provenance",
        "diff",
        "travel",
        "items",
    ),
    serve=serve,
)
