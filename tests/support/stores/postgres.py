"""PostgreSQL for the contract: a schema, opened twice as by two processes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import psycopg

from langgraph_keel import PostgresSaver
from langgraph_keel.engine.encoding.bodies import restore_frame
from langgraph_keel.saver import KeelSaver
from support.saver_parts import driver_of

TABLES = ("threads", "entries", "items", "floors", "batches", "cells")


class PostgresUnderTest:
    """One schema, and two savers' connections that alternate."""

    def __init__(self, url: str, **options: Any) -> None:
        self.schema = options.get("schema")
        self._savers = [PostgresSaver(url, pool_size=4, **options) for _ in range(2)]
        self._savers[0].setup()
        self._turns = cycle(self._savers)
        self._behind = psycopg.connect(url, autocommit=True)
        self._tables = [driver_of(self._savers[0]).tables.fill_names(f"{{{name}}}") for name in TABLES]

    def open(self, **options: Any) -> KeelSaver:
        engine = next(self._turns).engine
        return KeelSaver(engine.session.store, engine.driver, engine.async_driver, **options)

    def wipe(self) -> None:
        self._behind.execute("; ".join(f"DELETE FROM {table}" for table in self._tables).encode())

    def raw(self) -> bytes:
        # Sorted, because the server moves a changed row to any free space.
        rows = [row for table in self._tables for row in sorted(self._all(table), key=repr)]
        return b"\n".join(
            restore_frame(part) if isinstance(part, bytes) else str(part).encode() for row in rows for part in row
        )

    def _all(self, table: str) -> list[Any]:
        return self._behind.execute(f"SELECT * FROM {table}".encode()).fetchall()

    def drop(self) -> None:
        self._behind.execute("SET lock_timeout = '10s'")
        self._behind.execute(f"DROP SCHEMA {self.schema} CASCADE".encode())

    def close(self) -> None:
        for saver in self._savers:
            saver.close()
        self._behind.close()


@contextmanager
def postgres_store(url: str, **options: Any) -> Iterator[PostgresUnderTest]:
    """Open a store in its own schema, which is dropped at the end."""
    store = PostgresUnderTest(url, schema=f"keel_{uuid.uuid4().hex[:12]}", **options)
    try:
        yield store
        store.drop()
    finally:
        store.close()
