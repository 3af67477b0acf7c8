"""Stores that LangGraph's own savers have written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import psycopg
import servers
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver


@dataclass(frozen=True, slots=True)
class OldStore:
    """The place of a store.

    Attributes:
        kind: `sqlite` or `postgres`.
        url: In the form that Keel accepts.
    """

    kind: str
    url: str

    @contextmanager
    def open(self) -> Iterator[BaseCheckpointSaver[Any]]:
        """Open the store with LangGraph's own saver."""
        opened: AbstractContextManager[Any] = (
            SqliteSaver.from_conn_string(self.path)
            if self.kind == "sqlite"
            else PostgresSaver.from_conn_string(self.url)
        )
        with opened as saver:
            saver.setup()
            yield saver

    @property
    def path(self) -> str:
        """Return the path of the file."""
        return self.url.removeprefix("sqlite:///")

    def dump(self) -> list[Any]:
        """Return all rows of the store."""
        tables = ("checkpoints", "writes")
        if self.kind == "sqlite":
            with SqliteSaver.from_conn_string(self.path) as saver:
                return [saver.conn.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall() for table in tables]
        with psycopg.connect(self.url) as connection:
            names = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
            return [
                connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4".encode()).fetchall() for name in names
            ]


@contextmanager
def old_store(kind: str, directory: Path) -> Iterator[OldStore]:
    """Create a store of the test's own."""
    if kind == "sqlite":
        yield OldStore(kind, f"sqlite:///{directory / 'old.db'}")
        return
    server, schema = os.environ[servers.SHARED["PostgreSQL"]], f"old_{token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        option = quote(f"-csearch_path={schema}", safe="")
        yield OldStore(kind, f"{server}{'&' if '?' in server else '?'}options={option}")
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())
