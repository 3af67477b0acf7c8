"""Writes to a PostgreSQL store, and its rows."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import psycopg


def rows(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def with_options(url: str, *options: str) -> str:
    """Add options to a URL from `postgres_url`, which ends with its options."""
    return url + "".join(quote(f" {option}", safe="") for option in options)
