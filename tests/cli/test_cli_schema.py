"""`keel schema`: the tables, made or printed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from cli_threads import keel, keel_json

from langgraph_keel import PostgresSaver, SqliteSaver

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


def test_printing_asks_no_server() -> None:
    printed = keel("schema", "--url", NOWHERE, "--print").stdout
    assert printed.strip() == PostgresSaver(NOWHERE).ddl.strip()
    assert "PARTITION OF" not in printed
    assert keel("schema", "--url", NOWHERE, "--print", "--partitions", "8").stdout.count("PARTITION OF") == 5 * 8


def test_what_is_printed_makes_a_store(postgres_url: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(keel_json("schema", "--url", postgres_url, "--print")["ddl"].encode())
    with PostgresSaver(postgres_url, auto_setup=False) as saver:
        assert list(saver.threads()) == []
    path = tmp_path / "keel.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(keel("schema", "--url", f"sqlite:///{path}", "--print").stdout)
    with SqliteSaver(path, auto_setup=False) as other:
        assert list(other.threads()) == []


def test_without_printing_the_tables_are_made(postgres_url: str) -> None:
    for _ in range(2):
        assert "tables are there" in keel("schema", "--url", postgres_url).stdout
    assert keel_json("schema", "--url", postgres_url)["done"] is True
    with PostgresSaver(postgres_url, auto_setup=False) as saver:
        assert list(saver.threads()) == []


@pytest.mark.parametrize("url", ["memory:", NOWHERE, "mysql://localhost"])
def test_what_cannot_be_done_is_said(url: str) -> None:
    error = keel_json("schema", "--url", url, status=1)["error"]
    assert error["code"] == ("store_unavailable" if url == NOWHERE else "invalid_input")


def test_sqlite_has_no_partitions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keel.db"
    assert keel_json("schema", "--url", url, "--partitions", "4", status=1)["error"]["code"] == "invalid_input"
    assert not (tmp_path / "keel.db").exists()
