"""Stores without ranked cells are upgraded when opened, or refused by name."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from support.checkpoints import put, value_of
from support.cli_threads import keel
from support.places import Place

from langgraph_keel import NotSetUp

on_tables = pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
STRIPPED = {
    "sqlite": "DROP INDEX cells_by_rank; ALTER TABLE cells DROP COLUMN rank; ALTER TABLE cells DROP COLUMN marks",
    "postgres": "ALTER TABLE keel_cells DROP COLUMN rank, DROP COLUMN marks",  # the index goes with the column
}


def change(place: Place, statements: str) -> None:
    """Change the tables without Keel."""
    if place.kind == "postgres":
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute(statements.encode())
    else:
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as database:
            database.executescript(statements)


@pytest.fixture
def earlier(place: Place) -> Place:
    """A store with a checkpoint and a cell, and the earlier tables."""
    with place.open() as saver:
        saver.labels.set(put(saver, "t", 1), "first")
    change(place, STRIPPED[place.kind])
    return place


def check_works(place: Place) -> None:
    with place.open() as saver:
        store = saver.store()
        store.put(("a", "b"), "k", {"n": 1})
        assert [item.key for item in store.search(("a", "b"), filter={"n": 1})] == ["k"]
        assert store.list_namespaces() == [("a", "b")]
        assert value_of(saver, "t") == 1
        assert [label.name for label in saver.labels.list("t")] == ["first"]
        assert saver.migrations() == []
        assert [*saver.check()] == []
    place.check()


@on_tables
def test_an_earlier_store_is_upgraded_when_opened(earlier: Place) -> None:
    check_works(earlier)
    check_works(earlier)


@on_tables
def test_several_savers_open_an_earlier_store_concurrently(earlier: Place) -> None:
    savers = [earlier.open() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda saver: value_of(saver, "t"), savers)] == [1] * 4
    for saver in savers:
        saver.close()
    check_works(earlier)


@on_tables
@pytest.mark.parametrize("options", [{"read_only": True}, {"auto_setup": False}], ids=["read only", "no setup"])
def test_a_saver_that_may_not_upgrade_raises_not_set_up(earlier: Place, options: dict[str, bool]) -> None:
    with pytest.raises(NotSetUp), earlier.open(**options) as saver:
        value_of(saver, "t")
    check_works(earlier)


@on_tables
def test_keel_schema_upgrade_upgrades_an_earlier_store(earlier: Place) -> None:
    keel("schema", "--upgrade", "--url", earlier.url)
    with earlier.open(auto_setup=False) as saver:
        assert value_of(saver, "t") == 1
    check_works(earlier)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_keel_schema_upgrade_prints_the_statements(earlier: Place) -> None:
    change(earlier, keel("schema", "--upgrade", "--print", "--url", earlier.url).stdout)
    with earlier.open(auto_setup=False) as saver:
        assert value_of(saver, "t") == 1
    check_works(earlier)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_dropped_index_is_created_again(place: Place) -> None:
    with place.open() as saver:
        saver.labels.set(put(saver, "t", 1), "first")
    change(place, "DROP INDEX cells_by_rank")
    with pytest.raises(NotSetUp, match="for writing once"), place.open(read_only=True) as saver:
        value_of(saver, "t")
    check_works(place)
