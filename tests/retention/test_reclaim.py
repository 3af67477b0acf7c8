"""Reclaimed space: its amount, the report, and the locks it must not take."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from support.places import Place
from support.repositories import Repository, isolate
from support.retention.people import config, graph, ids, say
from support.retention.scans import places

from langgraph_keel import AccessDenied, FileSaver, MemorySaver, PostgresSaver, ReadOnlyStore, SqliteSaver

LONG = os.urandom(3000).hex()


def fill(saver: Any, *threads: str) -> None:
    """Create threads of about 12 KB each, which do not compress."""
    for thread in threads:
        graph(saver).invoke({"messages": [HumanMessage(LONG), HumanMessage(LONG[::-1])]}, config(thread, "ann"))


async def test_reclaim_space_reports_bytes_before_and_after(place: Place) -> None:
    with place.open() as saver:
        fill(saver, *"abcdef")
        for thread in "abcde":
            saver.delete_thread(thread)
        first = saver.retention.reclaim_space()
        last = await saver.retention.areclaim_space(full=True)
        assert first.to_dict() == {"before": first.before, "after": first.after, "note": first.note}
        assert str(last).endswith(last.note)
        if place.kind != "redis":
            assert last.after is not None
            assert first.before is not None
            assert 0 < last.after <= first.before - (40_000 if place.kind == "sqlite" else 0)
        assert ids(saver) == ["f"]


# -- SQLite ------------------------------------------------------------------------------------------------------------


def free_pages(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def test_a_file_is_rewritten_when_half_of_it_is_free(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        fill(saver, *"abcdef")
        saver.delete_thread("a")
        assert "pages are free and will be used again" in saver.retention.reclaim_space().note
        assert free_pages(tmp_path / "keel.db") > 0
        assert (tmp_path / "keel.db-wal").stat().st_size == 0
        for thread in "bcde":
            saver.delete_thread(thread)
        assert "VACUUM" in saver.retention.reclaim_space().note
        assert free_pages(tmp_path / "keel.db") == 0


def test_a_database_with_auto_vacuum_uses_incremental_vacuum(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        fill(saver, *"abcdef")
    with closing(sqlite3.connect(tmp_path / "keel.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")
    with SqliteSaver(tmp_path / "keel.db") as saver:
        saver.delete_thread("a")
        assert "incremental_vacuum" in saver.retention.reclaim_space().note
        assert free_pages(tmp_path / "keel.db") == 0


@contextmanager
def reader(path: Path) -> Iterator[None]:
    """Hold a read transaction on an old state."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM entries").fetchall()
        yield


def test_a_reader_of_an_old_snapshot_is_reported(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db", timeout=1) as saver:
        say(saver, "t", "ann")
        with reader(tmp_path / "keel.db"):
            assert "a reader uses an old snapshot" in saver.retention.reclaim_space().note
            receipt = saver.retention.erase("ann")
            assert (receipt.threads, receipt.complete, receipt.reclaimed) == (("t",), False, None)
            assert "saver.retention.reclaim_space(full=True)" in str(receipt)
        assert saver.retention.erase("ann").complete
        assert places(saver, "ann says") == []


def test_concurrent_writers_wait_for_a_reclaim(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver, SqliteSaver(tmp_path / "keel.db") as other:
        fill(saver, *"abcdef")
        over = threading.Event()
        written: list[str] = []

        def write() -> None:
            while not over.is_set():
                fill(other, f"w{len(written)}")
                written.append(f"w{len(written)}")

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(5):
            saver.retention.reclaim_space(full=True)
        over.set()
        thread.join()
        assert written
        assert ids(saver) == sorted([*"abcdef", *written])


def test_a_read_only_saver_cannot_reclaim_or_erase(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        say(saver, "t", "ann")
    with SqliteSaver(tmp_path / "keel.db", read_only=True) as saver:
        with pytest.raises(ReadOnlyStore):
            saver.retention.reclaim_space()
        with pytest.raises(ReadOnlyStore):
            saver.retention.erase("ann")
        assert saver.retention.erase("ann", dry_run=True).threads == ("t",)


@pytest.mark.parametrize("kind", [MemorySaver, lambda: SqliteSaver(":memory:")], ids=["memory", "sqlite"])
def test_a_store_in_memory_reports_no_size(kind: Any) -> None:
    with kind() as saver:
        say(saver, "t", "ann")
        assert saver.retention.erase("ann").complete
        assert (saver.retention.reclaim_space(full=True).before, ids(saver)) == (None, [])


# -- files -------------------------------------------------------------------------------------------------------------


def test_remains_of_interrupted_writes_are_reclaimed(tmp_path: Path) -> None:
    with FileSaver(tmp_path) as saver:
        say(saver, "t", asks=True)
        (cells, *_) = (tmp_path / "shared").glob("*/*.json")
        left = [tmp_path / "threads" / name for name in (".gone-1", ".new-1", ".new-2")]
        for path in left:
            path.mkdir()
            (path / "log.jsonl").write_text("ann")
        os.utime(left[1], (time.time() - 100,) * 2)
        cells.with_name("x.json.0000.tmp").write_text("ann")
        reclaimed = saver.retention.reclaim_space()
        assert reclaimed.before is not None
        assert reclaimed.before - 9 == reclaimed.after
        assert [path.exists() for path in left] == [False, False, True]


def test_a_receipt_mentions_the_history_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)
    Repository.made(tmp_path)
    with FileSaver(tmp_path / "store", git=True) as saver:
        say(saver, "t", "ann")
        receipt = saver.retention.erase("ann")
    assert any("git filter-repo" in sentence for sentence in receipt.exempt)


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def test_a_connection_without_autocommit_cannot_reclaim(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection, PostgresSaver(connection) as saver:
        say(saver, "t", "ann")
        with pytest.raises(AccessDenied, match="nothing was done: VACUUM cannot run"):
            saver.retention.reclaim_space()
        receipt = saver.retention.erase("ann")
        assert (receipt.threads, receipt.complete, receipt.reclaimed) == (("t",), False, None)
        assert "not in autocommit" in str(receipt)


async def test_reclaim_uses_pools_passed_by_the_caller(postgres_url: str) -> None:
    options: Any = {"min_size": 1, "max_size": 2, "kwargs": {"autocommit": True}}
    with ConnectionPool(postgres_url, **options) as pool, PostgresSaver(pool) as saver:
        say(saver, "t", "ann")
        assert saver.retention.reclaim_space(full=True).note == "the tables were rewritten (VACUUM FULL)"
    async with AsyncConnectionPool(postgres_url, open=False, **options) as apool, PostgresSaver(apool) as saver:
        assert (await saver.retention.aerase("ann", reclaim="full")).reclaimed is not None


def test_vacuum_works_behind_a_transaction_pooler(pgbouncer_url: str, postgres_server: Any) -> None:
    schema = "reclaimed_behind_a_pooler"
    try:
        with PostgresSaver(pgbouncer_url, schema=schema, partitions=2, prepare_threshold=None) as saver:
            say(saver, "t", "ann")
            assert saver.retention.erase("ann", reclaim="full").reclaimed is not None
            assert (saver.retention.reclaim_space().before or 0) > 0
    finally:
        with psycopg.connect(postgres_server.url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


def test_missing_privileges_are_reported(postgres_url: str, postgres_server: Any) -> None:
    with PostgresSaver(postgres_url) as saver:
        say(saver, "t", "ann")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        (schema,) = connection.execute(b"SELECT current_schema()").fetchone() or ("",)
        connection.execute(b"DO $$ BEGIN CREATE ROLE keel_reclaimer LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO keel_reclaimer".encode())
        # Not ALL: from PostgreSQL 17 on, it includes the right to VACUUM.
        rights = "SELECT, INSERT, UPDATE, DELETE"
        connection.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA {schema} TO keel_reclaimer".encode())
        connection.execute(b"SET ROLE keel_reclaimer")
        with PostgresSaver(connection) as saver:
            receipt = saver.retention.erase("ann")
            assert (receipt.threads, receipt.complete, receipt.reclaimed) == (("t",), False, None)
            assert "keel_items" in receipt.problems[0]
        connection.execute(b"RESET ROLE")
