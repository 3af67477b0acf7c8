"""PostgreSQL races, made deterministic by open transactions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import Any

import psycopg
import pytest
from support.backends.postgres_puts import rows
from support.checkpoints import METADATA, checkpoint_of, config_for, put, value_of
from support.saver_parts import driver_of

from langgraph_keel import PostgresSaver, StoreBusy, ThreadExists
from langgraph_keel.backends.postgres import statements


def held(url: str, thread: str) -> psycopg.Connection[Any]:
    """Insert a thread's row in a transaction that stays open, so that others wait."""
    connection = psycopg.connect(url)
    connection.execute("INSERT INTO keel_threads VALUES (%s, 1, 1, 0, '', NULL)", (thread,))
    return connection


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_copy_waits_for_a_writer_of_its_target(postgres_url: str, outcome: str) -> None:
    """If the other writer commits, the copy is refused; if not, it succeeds."""
    with PostgresSaver(postgres_url) as saver, ThreadPoolExecutor(1) as thread:
        put(saver, "source")
        other = held(postgres_url, "target")
        copying = thread.submit(saver.copy_thread, "source", "target")
        while not rows(postgres_url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            assert not copying.done()
        getattr(other, outcome)()
        other.close()
        if outcome == "commit":
            with pytest.raises(ThreadExists):
                copying.result()
        else:
            copying.result()
        assert value_of(saver, "target") == (None if outcome == "commit" else 1)


def test_an_emptied_thread_is_refused_as_a_target_of_a_copy(postgres_url: str) -> None:
    """Used item numbers must not come back, and another thread's must not come in."""
    with PostgresSaver(postgres_url) as saver:
        for name in ("source", "target"):
            for n in range(3):
                metadata: Any = {**METADATA, "run_id": name}
                saver.put(config_for(name), checkpoint_of(f"{n}", {"v": ["x" * n]}), metadata, {})
        saver.prune(["source"])
        saver.delete_for_runs(["target"])
        with pytest.raises(ThreadExists):
            saver.copy_thread("source", "target")
        saver.delete_thread("target")
        saver.copy_thread("source", "target")
        assert value_of(saver, "target") == ["xx"]


def test_an_error_is_not_its_own_cause(postgres_url: str) -> None:
    """An error is not its own cause.

    Keel's errors are also built-in ones, which the driver catches.
    """
    with PostgresSaver(postgres_url, pool_size=1, timeout=2) as saver:
        put(saver, "t")
        # private: a connection from the pool, as in a thread during a request
        with driver_of(saver)._source.connection(), pytest.raises(StoreBusy, match="in use") as told:
            saver.get_tuple(config_for("t"))
        assert told.value.__cause__ is None


def test_a_first_put_during_a_deletion_is_kept(postgres_url: str) -> None:
    """There was no row to lock.

    The new checkpoint belongs to another life of the thread, and is whole.
    """
    with PostgresSaver(postgres_url) as saver, psycopg.connect(postgres_url) as deleting:
        saver.setup()
        first, second = (
            driver_of(saver).tables.fill_names(text).replace("%(thread)s", "'t'").encode()
            for text in (statements.DELETE_THREAD, statements.DELETE_CONTENT)
        )
        deleting.execute(first)
        put(saver, "t", ["x"] * 40)
        deleting.execute(second)
        deleting.commit()
        assert value_of(saver, "t") == ["x"] * 40
        saver.delete_thread("t")
        assert rows(postgres_url, "SELECT count(*) FROM keel_items") == [(0,)]


def test_a_failed_removal_leaves_its_connection_usable(postgres_url: str) -> None:
    """The first of several statements fails; psycopg's prepared ones must survive."""
    with PostgresSaver(postgres_url, pool_size=1) as saver:
        for n in range(9):
            put(saver, f"thread {n}")
            saver.delete_thread(f"thread {n}")
        put(saver, "t")
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT 1 FROM keel_threads WHERE thread_id = 't' FOR UPDATE")
            # private: a connection from the pool, as in a thread during a request
            with driver_of(saver)._source.connection() as connection:
                connection.execute("SET lock_timeout = '100ms'")
            with pytest.raises(StoreBusy, match="lock"):
                saver.delete_thread("t")
        assert value_of(saver, "t") == 1
        saver.delete_thread("t")
        assert value_of(saver, "t") is None


def test_numbers_reused_after_a_failover_are_recognized(postgres_url: str) -> None:
    """After a failover to a lagging replica, this process's base is another entry."""
    with PostgresSaver(postgres_url) as saver, PostgresSaver(postgres_url) as other:
        put(saver, "t", ["kept"])
        saver.put(config_for("t"), checkpoint_of("2", {"v": ["alice"]}), METADATA, {})
        with psycopg.connect(postgres_url) as behind:
            behind.execute("DELETE FROM keel_entries WHERE id = '2'")
            behind.execute("DELETE FROM keel_items WHERE lo > 0")
            behind.execute("UPDATE keel_threads SET seq = seq - 1")
        other.put(config_for("t"), checkpoint_of("3", {"v": ["bob"]}), METADATA, {})
        saver.put(config_for("t", "2"), checkpoint_of("4", {"v": ["alice"]}), METADATA, {})
        assert value_of(other, "t") == ["alice"]


def test_a_user_who_owns_a_schema_needs_no_right_to_create_one(postgres_url: str) -> None:
    schema, role = rows(postgres_url, "SELECT current_schema()")[0][0], f"owner_{token_hex(4)}"
    with psycopg.connect(postgres_url, autocommit=True) as behind:
        behind.execute(f"CREATE ROLE {role} LOGIN; ALTER SCHEMA {schema} OWNER TO {role}".encode())
        try:
            with PostgresSaver(postgres_url.replace("postgres@", f"{role}@"), schema=schema) as saver:
                put(saver, "t")
        finally:
            behind.execute(f"REASSIGN OWNED BY {role} TO postgres; DROP ROLE {role}".encode())


def test_ddl_for_other_servers_omits_unsupported_clauses() -> None:
    tables = driver_of(PostgresSaver("postgresql://host/db", schema="x")).tables
    cockroach, yugabyte = (tables.ddl_for(version, True) for version in ("CockroachDB CCL v25", "15.2-YB-2025.1"))
    assert "COLLATE" not in cockroach
    assert "COLLATE" in yugabyte
    for text in (cockroach, yugabyte):
        assert "SET STORAGE" not in text
        assert "CREATE SCHEMA" not in text
        assert text.count("CREATE TABLE") == 7
