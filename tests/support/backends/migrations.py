"""Migrations to store formats that do not exist yet.

Each backend with formats has them. `TWO` lead from format 1 to 3 and count their changes, so that a repeated migration
would be detected. Today's Keel can use the migrated store. `ONE` leads to format 2 and changes data that today's Keel
reads, as a real migration would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import redis

from langgraph_keel import FileSaver, KeelSaver, PostgresSaver, RedisSaver, SqliteSaver
from langgraph_keel.backends.migrations import Migration
from langgraph_keel.backends.postgres.rows import Request, Statement, Tables
from langgraph_keel.engine.plan import StorePlan
from support.places import Place

SAVERS: dict[str, Any] = {"sqlite": SqliteSaver, "files": FileSaver, "postgres": PostgresSaver, "redis": RedisSaver}


def _count_rows(execute: Any) -> None:
    execute("UPDATE threads SET done = done + 1")
    execute("INSERT INTO journal VALUES (3)")


def _count(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "done": fields.get("done", 0) + 1} if fields["k"] == "ckpt" else fields


def _count_one_by_one(tables: Tables) -> StorePlan[Any, Any, None]:
    one = "SELECT thread_id FROM {threads} WHERE done = 1 ORDER BY thread_id LIMIT 1"
    text = tables.prepare(f"UPDATE {{threads}} SET done = 2 WHERE done = 1 AND thread_id = ({one}) RETURNING done").text
    while (yield Request((Statement(text, ()),))):
        pass


def _script(number: int) -> str:
    return f"""
if redis.call('HEXISTS', KEYS[1], 'thread') == 1 and (redis.call('HGET', KEYS[1], 'format') or '1') < '{number}' then
  redis.call('HSET', KEYS[1], 'format', {number})
  redis.call('HINCRBY', KEYS[1], 'done', 1)
end"""


TWO: dict[str, dict[int, Migration[Any]]] = {
    "sqlite": {
        2: Migration(
            "a journal, and how often each thread was changed",
            "CREATE TABLE journal (number INTEGER PRIMARY KEY); INSERT INTO journal VALUES (2);\n"
            "ALTER TABLE threads ADD COLUMN done INTEGER NOT NULL DEFAULT 0; UPDATE threads SET done = done + 1;",
        ),
        3: Migration("the threads again", _count_rows),
    },
    "files": {2: Migration("a count in each checkpoint", _count), 3: Migration("the count again", _count)},
    "postgres": {
        2: Migration(
            "how often each thread was changed",
            "ALTER TABLE {threads} ADD COLUMN done integer NOT NULL DEFAULT 0; UPDATE {threads} SET done = done + 1;",
        ),
        3: Migration("the threads again, one by one", _count_one_by_one),
    },
    "redis": {2: Migration("a count in each thread", _script(2)), 3: Migration("the count again", _script(3))},
}

ONE: dict[str, dict[int, Migration[Any]]] = {
    "sqlite": {2: Migration("another header", "ALTER TABLE entries RENAME COLUMN header TO header_2;")},
    "files": {
        2: Migration("another header", lambda fields: {{"head": "head_2"}.get(n, n): v for n, v in fields.items()})
    },
    "postgres": {2: Migration("another header", "ALTER TABLE {entries} RENAME COLUMN header TO header_2;")},
    "redis": {2: Migration("another line", "redis.call('HSET', KEYS[1], 'thread', 'of format 2')")},
}


def open_with(place: Place, registry: dict[str, dict[int, Migration[Any]]], **options: Any) -> KeelSaver:
    """Open a store with a version of Keel that has these migrations."""
    kind = place.kind
    cls = type("Later", (SAVERS[kind],), {"_registry": registry[kind]})
    at = place.url.removeprefix({"sqlite": "sqlite:///", "files": "files:"}.get(kind, ""))
    saver: KeelSaver = cls(at, **place.options, **options)
    return saver


def count_changes(place: Place) -> Iterator[int]:
    """Return how often each thread was changed, as counted in the store."""
    at = place.url.removeprefix("sqlite:///").removeprefix("files:")
    if place.kind == "sqlite":
        import sqlite3

        with sqlite3.connect(at) as connection:
            assert connection.execute("SELECT number FROM journal ORDER BY number").fetchall() == [(2,), (3,)]
            yield from (done for (done,) in connection.execute("SELECT done FROM threads"))
    elif place.kind == "files":
        from pathlib import Path

        for log in Path(at).glob("threads/*/log.jsonl"):
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            assert lines[0]["format"] == 3
            yield from {line["done"] for line in lines if line["k"] == "ckpt"}
    elif place.kind == "postgres":
        with psycopg.connect(place.url) as connection:
            yield from (done for (done,) in connection.execute("SELECT done FROM keel_threads"))
    else:
        with redis.Redis.from_url(place.url) as client:
            for key in client.scan_iter(f"{place.options['prefix']}:*:thread:*"):
                yield int(client.hget(key, "done") or 0)
