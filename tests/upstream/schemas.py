"""Schemas of PostgreSQL that are emptied and reused.

Creating and dropping one takes longer than most tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any

import psycopg
import servers
from psycopg import errors
from support.stores.postgres import TABLES

from langgraph_keel import PostgresSaver
from langgraph_keel.backends.postgres.rows import Tables


class Schemas:
    """The schemas of this process, in a server that a parent pytest has started."""

    def __init__(self) -> None:
        self._free: list[str] = []

    @contextmanager
    def place(self) -> Iterator[dict[str, Any]]:
        """Yield options of `PostgresSaver` with an empty schema for one user."""
        schema = self._free.pop() if self._free else f"keel_{token_hex(6)}"  # LangGraph's tests replace uuid4
        yield {"connection": _url(), "schema": schema}
        self._execute("; ".join(f"DELETE FROM {Tables(schema).fill_names(f'{{{name}}}')}" for name in TABLES))
        self._free.append(schema)

    @contextmanager
    def saver(self) -> Iterator[PostgresSaver]:
        """Open a saver on such a schema."""
        with self.place() as place, PostgresSaver(**place) as saver:
            yield saver

    def drop(self) -> None:
        """Drop all schemas."""
        while self._free:
            self._execute(f"DROP SCHEMA IF EXISTS {self._free.pop()} CASCADE")

    def _execute(self, statements: str) -> None:
        with suppress(errors.UndefinedTable, errors.InvalidSchemaName), psycopg.connect(_url()) as connection:
            connection.execute(statements.encode())


def _url() -> str:
    return os.environ[servers.SHARED["PostgreSQL"]]
