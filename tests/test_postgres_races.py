"""PostgreSQL: what happens between two moments of another writer. Threads are held in open transactions, not raced."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from test_encoding import checkpoint_of, config_for
from test_postgres import put, rows, value_of

from langgraph_keel import PostgresSaver, StoreBusy, ThreadExists
from langgraph_keel.postgres import statements

METADATA: Any = {"source": "loop", "step": 1, "parents": {}}


def held(url: str, thread: str) -> psycopg.Connection[Any]:
    """Begin a thread's row in a transaction that stays open: what meets it waits."""
    connection = psycopg.connect(url)
    connection.execute("INSERT INTO keel_threads VALUES (%s, 1, 1, 0, '', NULL)", (thread,))
    return connection


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_copy_that_meets_another_writer_of_its_target(postgres_url: str, outcome: str) -> None:
    """The other one is first: told so. It gives up: copied. Never "copied" with nothing there."""
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


def test_what_a_removal_emptied_is_no_target(postgres_url: str) -> None:
    """Item numbers that were used must not come back, nor those of another thread come in."""
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


def test_errors_have_their_cause(postgres_url: str) -> None:
    """Not themselves: errors of Keel are also the built-in ones that fit, which the driver catches."""
    with PostgresSaver(postgres_url, pool_size=1, timeout=0.2) as saver:
        put(saver, "t")
        with saver._postgres._source.connection(), pytest.raises(StoreBusy, match="in use") as told:
            saver.get_tuple(config_for("t"))
        assert told.value.__cause__ is None


def test_a_first_put_in_the_middle_of_a_deletion_stays(postgres_url: str) -> None:
    """There was no row to lock; what came in between is another life of the thread, and is whole."""
    with PostgresSaver(postgres_url) as saver, psycopg.connect(postgres_url) as deleting:
        saver.setup()
        first, second = (
            saver._postgres.tables.named(text).replace("%(thread)s", "'t'").encode()
            for text in (statements.DELETE_THREAD, statements.DELETE_CONTENT)
        )
        deleting.execute(first)
        put(saver, "t", ["x"] * 40)
        deleting.execute(second)
        deleting.commit()
        assert value_of(saver, "t") == ["x"] * 40
        saver.delete_thread("t")
        assert rows(postgres_url, "SELECT count(*) FROM keel_items") == [(0,)]
