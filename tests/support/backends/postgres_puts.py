"""Puts to a PostgreSQL store, and its rows."""

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
    """A URL from `postgres_url`, whose options are its end, with more of them."""
    return url + "".join(quote(f" {option}", safe="") for option in options)
