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
def test_it_is_carried_over_when_it_is_opened(earlier: Place) -> None:
    check_works(earlier)
    check_works(earlier)


@on_tables
def test_several_that_open_it_at_once(earlier: Place) -> None:
    savers = [earlier.open() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda saver: value_of(saver, "t"), savers)] == [1] * 4
    for saver in savers:
        saver.close()
    check_works(earlier)


@on_tables
@pytest.mark.parametrize("options", [{"read_only": True}, {"auto_setup": False}], ids=["read only", "no setup"])
def test_who_may_not_carry_it_over_is_told(earlier: Place, options: dict[str, bool]) -> None:
    with pytest.raises(NotSetUp), earlier.open(**options) as saver:
        value_of(saver, "t")
    check_works(earlier)


@on_tables
def test_the_command_carries_it_over(earlier: Place) -> None:
    keel("schema", "--upgrade", "--url", earlier.url)
    with earlier.open(auto_setup=False) as saver:
        assert value_of(saver, "t") == 1
    check_works(earlier)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_the_command_prints_what_somebody_else_may_run(earlier: Place) -> None:
    change(earlier, keel("schema", "--upgrade", "--print", "--url", earlier.url).stdout)
    with earlier.open(auto_setup=False) as saver:
        assert value_of(saver, "t") == 1
    check_works(earlier)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_an_index_that_was_dropped_is_made_again(place: Place) -> None:
    with place.open() as saver:
        saver.labels.set(put(saver, "t", 1), "first")
    change(place, "DROP INDEX cells_by_rank")
    with pytest.raises(NotSetUp, match="for writing once"), place.open(read_only=True) as saver:
        value_of(saver, "t")
    check_works(place)
