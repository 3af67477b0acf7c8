"""`keel schema`: the tables, created or printed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier
from support.checkpoints import config_for, put
from support.cli_threads import keel, keel_json

from langgraph_keel import AccessDenied, PostgresSaver, SqliteSaver

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


def test_printing_the_schema_contacts_no_server() -> None:
    printed = keel("schema", "--url", NOWHERE, "--print").stdout
    assert printed.strip() == PostgresSaver(NOWHERE).ddl.strip()
    assert "PARTITION OF" not in printed
    assert keel("schema", "--url", NOWHERE, "--print", "--partitions", "8").stdout.count("PARTITION OF") == 5 * 8


def test_the_printed_schema_creates_a_store(postgres_url: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(keel_json("schema", "--url", postgres_url, "--print")["ddl"].encode())
    with PostgresSaver(postgres_url, auto_setup=False) as saver:
        assert list(saver.threads()) == []
    path = tmp_path / "keel.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(keel("schema", "--url", f"sqlite:///{path}", "--print").stdout)
    with SqliteSaver(path, auto_setup=False) as other:
        assert list(other.threads()) == []


@pytest.mark.parametrize("schema", ["", "some where"])
def test_a_granted_role_may_use_tables_but_not_create_them(
    postgres_url: str, postgres_server: Any, schema: str
) -> None:
    role = f'an "agent" {uuid4().hex[:8]}'
    url = f"{postgres_url}&schema={quote(schema)}" if schema else postgres_url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(role)))
        (where,) = connection.execute("SELECT current_schema()").fetchone() or ()
        connection.execute(SQL("GRANT USAGE ON SCHEMA {} TO {}").format(Identifier(where), Identifier(role)))
        try:
            connection.execute(keel_json("schema", "--url", url, "--print", "--grant-to", role)["ddl"].encode())
            with PostgresSaver(conninfo_of(url, role), schema=schema or None) as saver:
                for thread in ("a", "b"):
                    put(saver, thread)
                    put(saver, thread, checkpoint_id="00000002")
                saver.labels.set(config_for("a"), "here")
                saver.prune(["a"])
                saver.delete_thread("b")
                saver.copy_thread("a", "c")
                assert {info.thread_id for info in saver.threads()} == {"a", "c"}
                with pytest.raises(AccessDenied):
                    saver.retention.reclaim_space()
        finally:
            connection.execute(SQL("DROP OWNED BY {}; DROP ROLE {}").format(Identifier(role), Identifier(role)))
            if schema:
                connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))


def conninfo_of(url: str, role: str) -> str:
    return make_conninfo(url.partition("&schema=")[0], user=role)


def test_schema_without_print_creates_the_tables(postgres_url: str) -> None:
    for _ in range(2):
        assert "tables exist" in keel("schema", "--url", postgres_url).stdout
    assert keel_json("schema", "--url", postgres_url)["done"] is True
    with PostgresSaver(postgres_url, auto_setup=False) as saver:
        assert list(saver.threads()) == []


def test_grants_without_a_postgres_server_are_refused(tmp_path: Path) -> None:
    for words in (["--print", "--url", f"sqlite:///{tmp_path}/keel.db"], ["--url", NOWHERE]):
        assert keel_json("schema", "--grant-to", "agent", *words, status=2)["error"]["code"] == "invalid_input"


@pytest.mark.parametrize("url", ["memory:", NOWHERE, "mysql://localhost"])
def test_schema_errors_are_reported(url: str) -> None:
    error = keel_json("schema", "--url", url, status=1 if url == NOWHERE else 2)["error"]
    assert error["code"] == ("store_unavailable" if url == NOWHERE else "invalid_input")


def test_sqlite_has_no_partitions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keel.db"
    assert keel_json("schema", "--url", url, "--partitions", "4", status=2)["error"]["code"] == "invalid_input"
    assert not (tmp_path / "keel.db").exists()
