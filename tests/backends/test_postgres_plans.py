"""The blocks that PostgreSQL reads depend on neither thread length nor statistics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from langgraph.types import Interrupt
from support.backends.postgres_puts import run, with_options
from support.checkpoints import METADATA, checkpoint_of, config_for
from support.saver_parts import driver_of

from langgraph_keel import PostgresSaver
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.testing.machine import chat

TABLES = [f"keel_{name}" for name in ("threads", "entries", "items", "floors", "batches", "cells")]
PACKED = 32
"""Items to a row: each 32nd checkpoint packs the items of those before it."""

# The history of the thread: copies of its first checkpoint, with items and writes.
GROW = """
UPDATE keel_entries SET seq = seq + {more};
UPDATE keel_threads SET seq = seq + {more}, head = head + {more};
INSERT INTO keel_entries
    SELECT thread_id, ns, to_char(i, 'FM00000000'), i, token, 0, to_char(i - 1, 'FM00000000'), run_id, put_at, channels,
        kinds, owners, los, his, kept, names, header
    FROM keel_entries, generate_series(1, {more}) i WHERE id = '10000001';
INSERT INTO keel_items
    SELECT thread_id, ns, channel, 1000 + i, 1, body
    FROM keel_items, generate_series(1, {more}) i WHERE channel = 'old' AND lo = 0;
INSERT INTO keel_batches
    SELECT thread_id, ns, to_char(i, 'FM00000000'), 1, token, task_id, task_path, body
    FROM keel_batches, generate_series(1, {more}) i WHERE checkpoint_id = '10000001';
"""
OTHERS = """
INSERT INTO keel_threads SELECT 'other ' || n, 1, {each}, 0, '' FROM generate_series(1, 2000) n;
INSERT INTO keel_entries SELECT 'other ' || n, '', to_char(i, 'FM00000000'), i, i, 0, NULL, NULL, '', '{{}}', '',
    '{{}}', '{{}}', '{{}}', NULL, NULL, '' FROM generate_series(1, 2000) n, generate_series(1, {each}) i;
ANALYZE
"""
# The table's content at the time of ANALYZE, before the thread grew.
STATISTICS = {
    "none": "",
    "of a short thread": "ANALYZE",
    "of threads of 1": OTHERS.format(each=1),
    "of threads of 10": OTHERS.format(each=10),
}


def id_of(n: int) -> str:
    return f"1{n:07}"


def values(n: int) -> dict[str, Any]:
    return {"list": chat(n), "window": chat(n)[-20:], "old": ["x"], "n": n}


def put(saver: PostgresSaver, n: int) -> None:
    parent = config_for("t", None if n == 1 else id_of(n - 1))
    config = saver.put(parent, checkpoint_of(id_of(n), values(n)), METADATA, {})
    saver.put_writes(config, [("n", n)], "task")


@pytest.fixture(params=["force_custom_plan", "force_generic_plan"])
def url(request: pytest.FixtureRequest, postgres_url: str) -> str:
    """Plans are made for the parameters, or for any: the planner does not choose."""
    return with_options(postgres_url, f"-cplan_cache_mode={request.param}")


def make_thread(url: str, length: int, statistics: str = "none") -> None:
    """Create thread `t` of `length` checkpoints; a saver writes the last ones."""
    with PostgresSaver(url) as saver:
        saver.setup()
        for table in TABLES:
            run(url, f"TRUNCATE {table}; ALTER TABLE {table} SET (autovacuum_enabled = off)")
        for n in range(1, PACKED):
            put(saver, n)
    run(url, f"{STATISTICS[statistics]}; {GROW.format(more=length)}")


def count_blocks(saver: PostgresSaver, act: Callable[[], Any]) -> int:
    """Return the blocks of tables and indexes that an act reads.

    The saver must have one connection only.
    """

    def total() -> int:
        connection_of = driver_of(saver).retry
        connection_of(lambda connection: connection.execute("SELECT pg_stat_force_next_flush()"))
        columns = "heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read"
        query = f"SELECT sum({columns}) FROM pg_statio_user_tables WHERE schemaname = current_schema()"
        return int(connection_of(lambda connection: connection.execute(query.encode()).fetchone())[0])

    before = total()
    act()
    return total() - before


def count_all(url: str) -> dict[str, int]:
    """Return the blocks that each verb reads."""
    n, old, asked = PACKED, config_for("t", "00000900"), ("__interrupt__", (Interrupt("?", id="1"),))
    acts: dict[str, Callable[[PostgresSaver], Any]] = {
        "get": lambda saver: saver.get_tuple(config_for("t")),
        "get again": lambda saver: saver.get_tuple(config_for("t")),
        "get an old one": lambda saver: saver.get_tuple(old),
        "list": lambda saver: list(saver.list(config_for("t"), limit=10)),
        "list before": lambda saver: list(saver.list(config_for("t"), limit=10, before=old)),
        "list all namespaces": lambda saver: list(saver.list({"configurable": {"thread_id": "t"}}, limit=10)),
        "list all threads": lambda saver: list(saver.list(None, limit=10)),
        "status": lambda saver: saver.status("t"),
        "put": lambda saver: put(saver, n),
        "put and pack": lambda saver: put(saver, n + 1),
        "fork": lambda saver: saver.put(old, checkpoint_of(f"fork {n}", values(n)), METADATA, {}),
        "put_writes": lambda saver: saver.put_writes(config_for("t", id_of(n)), [asked], "asking"),
        "put_writes to an old one": lambda saver: saver.put_writes(old, [("n", n)], "late"),
    }
    with PostgresSaver(url, pool_size=1) as saver:
        saver.setup()
        return {name: count_blocks(saver, partial(act, saver)) for name, act in acts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("statistics", STATISTICS)
def test_requests_read_no_more_blocks_of_a_longer_thread(url: str, statistics: str) -> None:
    make_thread(url, 1000, statistics)
    short = count_all(url)
    make_thread(url, 5000, statistics)
    read = count_all(url)
    # Each index lookup may take a block more, if the tree has one more level.
    assert {name: (short[name], blocks) for name, blocks in read.items() if blocks > short[name] * 1.2 + 9} == {}


@pytest.mark.slow
def test_operations_on_a_whole_thread_read_linearly_many_blocks(url: str) -> None:
    length, most = 3000, {"threads": 0.2, "copy": 20, "prune": 12, "delete": 4}
    acts: dict[str, Callable[[PostgresSaver], Any]] = {
        "threads": lambda saver: list(saver.threads(limit=10)),
        "copy": lambda saver: saver.copy_thread("t", "copy"),
        "prune": lambda saver: saver.prune(["t"]),
        "delete": lambda saver: saver.delete_thread("copy"),
    }
    make_thread(url, length)
    with PostgresSaver(url, pool_size=1) as saver:
        read = {name: count_blocks(saver, partial(act, saver)) / length for name, act in acts.items()}
    assert {name: blocks for name, blocks in read.items() if blocks > most[name]} == {}


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["", "ANALYZE"])
def test_requests_for_a_cell_read_no_other_cells(url: str, statistics: str) -> None:
    shelf, new = Shelf(None, "cache"), Cell("t1", b"\x00\x90")

    def count_cells(cells: int) -> dict[str, int]:
        new_row = "thread_id, kind, 'k' || i, token, origin, name, expires_at, rank, marks, header, body"
        grow = f"INSERT INTO keel_cells SELECT {new_row}"
        with PostgresSaver(url, pool_size=1) as saver:
            saver.setup()
            run(url, "TRUNCATE keel_cells; ALTER TABLE keel_cells SET (autovacuum_enabled = off)")
            store, carry_out = saver.engine.session.store, saver.engine.run
            assert carry_out(store.swap_cell(shelf, "k", None, new)).done
            run(url, f"{statistics}; {grow} FROM keel_cells, generate_series(1, {cells}) i")
            acts: dict[str, Callable[[], Any]] = {
                "read": lambda: carry_out(store.read_cells(shelf, ["k7", "k77"])),
                "replace": lambda: carry_out(store.swap_cell(shelf, "k8", "t1", Cell("t2", b"\x00\x90"))),
                "fill": lambda: carry_out(store.swap_cell(shelf, "new", None, new)),
                "page": lambda: carry_out(store.list_cells(shelf, "k", "k5", 10)),
                "remove": lambda: carry_out(store.remove_cells(shelf, {"k9": "t1"})),
            }
            for act in acts.values():
                act()  # the catalog reads of a new connection
            return {name: count_blocks(saver, act) for name, act in acts.items()}

    few, many = count_cells(100), count_cells(5000)
    assert {name: (few[name], blocks) for name, blocks in many.items() if blocks > few[name] * 1.2 + 9} == {}
