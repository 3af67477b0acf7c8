"""Puts to a PostgreSQL store, and its rows."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import psycopg
from checkpoints import checkpoint_of, config_for

METADATA: Any = {"source": "loop", "step": 1, "parents": {}}


def put(saver: Any, thread: str, value: Any = 1, checkpoint_id: str = "00000001") -> Any:
    return saver.put(config_for(thread), checkpoint_of(checkpoint_id, {"v": value}), METADATA, {})


def value_of(saver: Any, thread: str) -> Any:
    found = saver.get_tuple(config_for(thread))
    return found and found.checkpoint["channel_values"]["v"]


def rows(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def with_options(url: str, *options: str) -> str:
    """A URL from `postgres_url`, whose options are its end, with more of them."""
    return url + "".join(quote(f" {option}", safe="") for option in options)
