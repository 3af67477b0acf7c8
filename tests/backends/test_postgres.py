"""PostgreSQL's own features: creating tables, connections, names, single trips."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import psycopg_pool
import pytest
import servers
from psycopg.rows import dict_row
from support.backends.postgres_puts import rows, run, with_options
from support.checkpoints import METADATA, checkpoint_of, config_for, put, value_of
from support.saver_parts import driver_of

from langgraph_keel import (
    CheckpointConflict,
    InvalidInput,
    NewerFormat,
    NotAKeelStore,
    NotFound,
    NotSetUp,
    PostgresSaver,
    ReadOnlyStore,
    StoreBusy,
    StoreClosed,
    open_saver,
)

TABLES = {f"keel_{name}" for name in ("threads", "entries", "items", "floors", "batches", "format", "cells")}


async def arounded(saver: PostgresSaver, thread: str) -> Any:
    await saver.aput(config_for(thread), checkpoint_of("00000001", {"v": [thread]}), METADATA, {})
    found = await saver.aget_tuple(config_for(thread))
    assert found
    return found.checkpoint["channel_values"]["v"]


@pytest.fixture
def schema(postgres_server: servers.PostgresServer) -> Iterator[str]:
    """The name of a schema that does not exist yet."""
    name = f'Odd % "schema" {uuid.uuid4().hex[:8]}'
    yield name
    quoted = name.replace('"', '""')
    run(postgres_server.url, f'DROP SCHEMA IF EXISTS "{quoted}" CASCADE')


# -- the tables --------------------------------------------------------------------------------------------------------


def test_the_schema_may_have_any_name(postgres_server: servers.PostgresServer, schema: str) -> None:
    with PostgresSaver(postgres_server.url, schema=schema) as saver:
        put(saver, "t")
        assert [info.thread_id for info in saver.threads()] == ["t"]
        saver.prune(["t"])
        saver.copy_thread("t", "copy")
        saver.delete_thread("t")
        assert value_of(saver, "copy") == 1
    found = rows(postgres_server.url, "SELECT schemaname, tablename FROM pg_tables WHERE tablename LIKE 'keel%'")
    assert {table for where, table in found if where == schema} == TABLES


def test_the_schema_may_be_in_the_url(postgres_server: servers.PostgresServer) -> None:
    name = f"in_url_{uuid.uuid4().hex[:8]}"
    sign = "&" if urlsplit(postgres_server.url).query else "?"
    with open_saver(f"{postgres_server.url}{sign}schema={name}&application_name=keel%20test") as saver:
        put(saver, "t")
        assert rows(postgres_server.url, f"SELECT thread_id FROM {name}.keel_threads") == [("t",)]
        assert rows(postgres_server.url, "SELECT 1 FROM pg_stat_activity WHERE application_name = 'keel test'")
    run(postgres_server.url, f"DROP SCHEMA {name} CASCADE")
    with pytest.raises(InvalidInput, match="twice"):
        PostgresSaver(f"{postgres_server.url}{sign}schema=a", schema="b")


@pytest.mark.parametrize("bad", ["", "x" * 64, "a\0b"])
def test_an_invalid_schema_name_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput):
        PostgresSaver("postgresql://localhost/nowhere", schema=bad)


@pytest.mark.parametrize("given", ["agents.db", "postgresql://u:secret@[h/db", None, 5], ids=range(4))
def test_an_invalid_connection_string_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"not a PostgreSQL connection string|pass a URL") as told:
        PostgresSaver(given)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("postgresql://localhost/x?schma=a", "no option 'schma': do you mean 'schema'?"),
        ("postgresql://u:secret@localhost/x?sslmode=require&conect_timeout=3", "do you mean 'connect_timeout'?"),
        ("postgresql://localhost/x?hots=a&password=secret", "no option 'hots': do you mean 'host'?"),
        ("postgresql://localhost/x?zzz=1", "no option 'zzz': see the parameter key words of libpq"),
        ("host=localhost databse=x password=secret", "no option 'databse'"),
        ("host=localhost schema=x", "'schema' is an option of a URL, or of the saver: pass schema="),
    ],
)
def test_an_unknown_option_in_a_connection_string_is_named(given: str, says: str) -> None:
    with pytest.raises(InvalidInput) as told:
        open_saver(given) if "://" in given else PostgresSaver(given)
    assert says in str(told.value)
    assert "secret" not in str(told.value)
    assert told.value.__cause__ is None
    assert told.value.__context__ is None


@pytest.mark.parametrize(
    "given",
    [
        "host=localhost password=my secret=word",
        "postgresql://localhost/x?password=my&secret=word",
        "postgresql://u:my@x?secret=word@localhost/x",
        "postgresql://localhost/x?sslpassword=my&secret=word",
    ],
)
def test_parts_of_a_password_are_not_shown(given: str) -> None:
    with pytest.raises(InvalidInput, match="use postgresql://user@host/database") as told:
        PostgresSaver(given)
    assert "secret" not in str(told.value)


def test_a_url_is_passed_on_unchanged_except_for_the_schema() -> None:
    saver = PostgresSaver("postgresql://u@h/db?password=a+b%2Bc&schema=x%20y&connect_timeout=3")
    assert driver_of(saver).given == "postgresql://u@h/db?password=a+b%2Bc&connect_timeout=3"
    assert driver_of(saver).tables.schema == "x y"
    assert "connect_timeout" not in driver_of(saver).options


@pytest.mark.parametrize("partitions", [0, 4])
def test_the_printed_sql_creates_the_tables(postgres_url: str, partitions: int) -> None:
    run(postgres_url, PostgresSaver(postgres_url, partitions=partitions).ddl)
    with PostgresSaver(postgres_url, auto_setup=False) as saver:
        for n in range(40):
            put(saver, f"thread {n}", ["x" * n])
        saver.copy_thread("thread 1", "copy")
        saver.prune([f"thread {n}" for n in range(40)])
        assert len(list(saver.list(None))) == 41
    parts = rows(postgres_url, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'keel_entries'::regclass")
    assert parts == [(partitions,)]


def test_setting_up_again_changes_nothing(postgres_url: str) -> None:
    with PostgresSaver(postgres_url) as saver:
        put(saver, "t")
        saver.setup()
        asyncio.run(saver.asetup())
    with PostgresSaver(postgres_url) as again:
        again.setup()
        assert value_of(again, "t") == 1


def test_without_setup_the_first_put_raises_not_set_up(postgres_url: str) -> None:
    with PostgresSaver(postgres_url, auto_setup=False) as saver:
        with pytest.raises(NotSetUp, match=r"setup\(\).*keel schema.*CREATE TABLE"):
            put(saver, "t")
        saver.setup()
        put(saver, "t")
    with PostgresSaver(postgres_url, schema="nowhere", read_only=True) as saver, pytest.raises(NotFound):
        saver.get_tuple(config_for("t"))


def test_a_user_without_create_rights_gets_not_set_up(
    postgres_server: servers.PostgresServer, postgres_url: str
) -> None:
    role, schema = f"role_{uuid.uuid4().hex[:8]}", rows(postgres_url, "SELECT current_schema()")[0][0]
    run(postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT USAGE ON SCHEMA {schema} TO {role}")
    parts = urlsplit(postgres_url)
    url = postgres_url.replace(parts.netloc, f"{role}:secret@{parts.netloc.rpartition('@')[2]}")
    try:
        with PostgresSaver(url) as saver:
            with pytest.raises(NotSetUp, match=r"may not create them.*keel schema") as told:
                put(saver, "t")
            assert "secret" not in str(told.value)
            assert str(told.value).count("PostgreSQL at") == 1
            assert "LINE" not in str(told.value)
            run(postgres_url, f"{saver.ddl}; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
            put(saver, "t")
            assert value_of(saver, "t") == 1
    finally:
        run(postgres_url, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_tables_of_other_programs_are_left_alone(postgres_url: str) -> None:
    run(postgres_url, "CREATE TABLE keel_entries (mine int)")
    with PostgresSaver(postgres_url) as saver, pytest.raises(NotAKeelStore, match="keel_entries"):
        put(saver, "t")
    assert rows(postgres_url, "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()") == [
        ("keel_entries",)
    ]
    run(postgres_url, "CREATE TABLE keel_format (mine int)")
    with PostgresSaver(postgres_url) as saver, pytest.raises(NotAKeelStore, match="keel_format"):
        put(saver, "t")


def test_a_newer_format_is_refused(postgres_url: str) -> None:
    with PostgresSaver(postgres_url) as saver:
        put(saver, "t")
    run(postgres_url, "UPDATE keel_format SET format = 99")
    acts: list[Callable[[PostgresSaver], Any]] = [lambda s: put(s, "t"), lambda s: s.get_tuple(config_for("t"))]
    for act in acts:
        with PostgresSaver(postgres_url) as saver, pytest.raises(NewerFormat, match="99"):
            act(saver)


# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_pool_of_the_user_is_accepted(postgres_url: str, autocommit: bool) -> None:
    with psycopg_pool.ConnectionPool(postgres_url, kwargs={"autocommit": autocommit}, open=True) as pool:
        with PostgresSaver(pool) as saver, ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: put(saver, f"thread {n}", [n] * 40), range(30)))
            assert asyncio.run(arounded(saver, "async")) == ["async"]
            saver.prune(["thread 7"])
        assert not pool.closed
        with PostgresSaver(pool, timeout=0.1) as saver, ExitStack() as stack:
            for _ in range(pool.max_size):
                stack.enter_context(pool.connection())
            with pytest.raises(StoreBusy, match="in use"):
                saver.get_tuple(config_for("t"))
        with PostgresSaver(postgres_url) as other:
            assert [value_of(other, f"thread {n}") for n in range(30)] == [[n] * 40 for n in range(30)]


async def test_an_async_pool_of_the_user_is_accepted(postgres_url: str) -> None:
    async with psycopg_pool.AsyncConnectionPool(postgres_url, open=False) as pool:
        saver = PostgresSaver(pool, auto_setup=False)
        await saver.setup()  # as for LangGraph's
        found = await asyncio.gather(*(arounded(saver, f"thread {n}") for n in range(30)))
        assert found == [[f"thread {n}"] for n in range(30)]
        with pytest.raises(InvalidInput, match="async methods"):
            saver.get_tuple(config_for("t"))


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_connection_of_the_user_is_accepted(postgres_url: str, autocommit: bool) -> None:
    """With rows as dicts and no prepared statements, as LangGraph's saver requires."""
    kept: Any = {"row_factory": dict_row, "prepare_threshold": 0}
    with psycopg.connect(postgres_url, autocommit=autocommit, **kept) as connection:
        saver = PostgresSaver(connection)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: put(saver, f"thread {n}"), range(20)))
        saver.delete_thread("thread 0")
        assert asyncio.run(arounded(saver, "async")) == ["async"]
        with PostgresSaver(postgres_url) as other:
            assert len(list(other.threads())) == 20
        saver.close()
        assert not connection.closed


async def test_an_async_connection_of_the_user_is_accepted(postgres_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        saver = PostgresSaver(connection)
        assert await asyncio.gather(*(arounded(saver, f"{n}") for n in range(9))) == [[f"{n}"] for n in range(9)]


def test_a_connection_in_pipeline_mode_is_refused(postgres_url: str) -> None:
    """Previously, it reported foreign tables: a pending reply looks like no rows."""
    with psycopg.connect(postgres_url, autocommit=True) as connection, PostgresSaver(connection) as saver:
        with connection.pipeline(), pytest.raises(InvalidInput, match="pipeline mode"):
            saver.get_tuple(config_for("t"))
        assert saver.get_tuple(config_for("t")) is None


def test_each_face_opens_its_own_connections_on_demand(postgres_url: str) -> None:
    name = f"keel {uuid.uuid4().hex[:8]}"

    def count() -> Any:
        return rows(postgres_url, f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'")[0][0]

    saver = PostgresSaver(f"{postgres_url}&application_name={name.replace(' ', '%20')}", pool_size=3)
    assert count() == 0
    put(saver, "t")
    assert count() == 1

    async def many() -> None:
        await asyncio.gather(*(arounded(saver, f"thread {n}") for n in range(20)))
        assert 1 < count() <= 1 + 3

    asyncio.run(many())
    asyncio.run(many())
    assert count() <= 1 + 3
    saver.close()
    with pytest.raises(StoreClosed):
        put(saver, "t")
    assert any(count() == 0 for _ in range(1000)), "connections stay open"


async def test_concurrent_removal_of_an_ended_loop_is_harmless(postgres_url: str) -> None:
    # Previously, threads with their own loops met here, and the second one failed with a `KeyError`.
    class EndedLoop:
        def is_closed(self) -> bool:
            del pools[self]  # as another thread does it between the question and the act
            return True

    async with PostgresSaver(postgres_url) as saver:
        # private: the loops that have pools are not visible from outside
        pools: dict[Any, Any] = driver_of(saver)._source._pools
        pools[EndedLoop()] = None
        assert await arounded(saver, "t") == ["t"]


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_no_isolation_level_loses_a_write(postgres_url: str, level: str) -> None:
    url = with_options(postgres_url, f"-cdefault_transaction_isolation={level.replace(' ', chr(92) + ' ')}")
    assert rows(url, "SHOW transaction_isolation") == [(level,)]
    with PostgresSaver(url) as saver:
        put(saver, "shared", [])
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(lambda n: append(saver, n), range(40)))
        assert sorted(value_of(saver, "shared")) == list(range(40))
        assert len(list(saver.list(config_for("shared")))) == 41


@pytest.mark.parametrize("setting", ["standard_conforming_strings=off", "bytea_output=escape", "DateStyle=German"])
def test_server_settings_change_no_value(postgres_url: str, setting: str) -> None:
    url = with_options(postgres_url, f"-c{setting}")
    name, _, value = setting.partition("=")
    assert rows(url, f"SHOW {name}")[0][0].startswith(value)
    log: list[Any] = []
    with PostgresSaver(url) as saver:
        for step in range(40):  # enough for rows to be packed
            log.append((f"\\x5c '\\' {step}", b"\\0\0\\x00", "\\"))
            put(saver, "t\\", log, f"{step:08}")
        assert value_of(saver, "t\\") == log
    with PostgresSaver(postgres_url) as saver:
        assert value_of(saver, "t\\") == log


def append(saver: PostgresSaver, mark: int) -> None:
    """Append a mark to the head, and retry if the head has moved."""
    for attempt in range(1000):
        head = saver.get_tuple(config_for("shared"))
        assert head
        marks = [*head.checkpoint["channel_values"]["v"], mark]
        with suppress(CheckpointConflict):
            saver.put(head.config, checkpoint_of(f"{mark}-{attempt}", {"v": marks}), METADATA, {})
            return
    raise AssertionError("never won")


def test_a_read_only_saver_and_a_replica_refuse_writes(postgres_url: str) -> None:
    with PostgresSaver(postgres_url) as saver:
        put(saver, "t")
    with PostgresSaver(postgres_url, read_only=True) as saver:
        assert value_of(saver, "t") == 1
        with pytest.raises(ReadOnlyStore):
            put(saver, "t")
    replica = with_options(postgres_url, "-cdefault_transaction_read_only=on")
    with PostgresSaver(replica) as saver, pytest.raises(ReadOnlyStore, match="takes no writes"):
        put(saver, "t")
