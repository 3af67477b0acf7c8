"""Stored values, one of them damaged at a time: how they are found in each backend, and what may become of one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psycopg
from places import Place
from psycopg import sql
from redis import Redis


class Spot(NamedTuple):
    """A stored value: what it is, in words; its bytes; and how it is written."""

    where: str
    value: bytes
    write: Callable[[bytes], object]


@contextmanager
def spots_of(place: Place) -> Iterator[list[Spot]]:
    """All stored bytes of a store. What is a column of its own, names, numbers and times, is the database's to keep."""
    with {"sqlite": _sqlite, "files": _files, "postgres": _postgres, "redis": _redis}[place.kind](place) as spots:
        yield sorted(spots, key=lambda spot: spot.where)


@contextmanager
def _sqlite(place: Place) -> Iterator[list[Spot]]:
    connection = sqlite3.connect(place.url.removeprefix("sqlite:///"), isolation_level=None)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    spots = []
    for table in tables:
        columns = [name for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})") if kind == "BLOB"]
        for column in columns:
            change = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
            for row, value in connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
                write = partial(lambda change, row, new: connection.execute(change, (new, row)), change, row)
                spots.append(Spot(f"{table}.{column} of {row}", value, write))
    yield spots
    connection.close()


@contextmanager
def _postgres(place: Place) -> Iterator[list[Spot]]:
    with psycopg.connect(place.url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE data_type = 'bytea' "
            "AND table_schema = current_schema"
        ).fetchall()
        spots = []
        for names in found:
            table, column = map(sql.Identifier, names)
            keys = _keys_of(connection, names[0])
            query = sql.SQL("SELECT {}, {} FROM {}").format(sql.SQL(", ").join(keys), column, table)
            where = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(key) for key in keys)
            change = sql.SQL("UPDATE {} SET {} = %s WHERE {}").format(table, column, where)
            for *key, value in connection.execute(query).fetchall():
                write = partial(lambda change, key, new: connection.execute(change, [new, *key]), change, key)
                spots.append(Spot(f"{'.'.join(names)} of {key}", bytes(value), write))
        yield spots


def _keys_of(connection: psycopg.Connection[Any], table: str) -> list[sql.Identifier]:
    """The columns of a table's primary key."""
    query = (
        "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey) "
        "WHERE indisprimary AND indrelid = %s::regclass"
    )
    return [sql.Identifier(name) for (name,) in connection.execute(query, [table])]


@contextmanager
def _redis(place: Place) -> Iterator[list[Spot]]:
    with Redis.from_url(place.url) as client:
        spots = []
        for key in client.scan_iter(match=f"{place.options['prefix']}:*", count=1000, _type="hash"):
            for field, value in client.hgetall(key).items():
                if field.startswith(b"entry:"):
                    continue  # it begins with what are columns elsewhere
                write = partial(lambda key, field, new: client.hset(key, field, new), key, field)
                spots.append(Spot(f"{key!r}, {field!r}", value, write))
        yield spots


@contextmanager
def _files(place: Place) -> Iterator[list[Spot]]:
    """A line of a log is one."""
    spots = []
    for path in sorted(Path(place.url.removeprefix("files:")).rglob("*.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines):
            before, after = b"".join(lines[:number]), b"".join(lines[number + 1 :])
            write = partial(_write_file, path, before, after)
            spots.append(Spot(f"{path}, line {number + 1}", line, write))
    yield spots


def _write_file(path: Path, before: bytes, after: bytes, line: bytes) -> None:
    path.write_bytes(before + (line or b"?\n") + after)  # without a line, nothing is damaged: it is not there


# -- what may become of bytes -----------------------------------------------------------------------------------------


def damaged(value: bytes, others: list[Spot], random: Random) -> bytes:
    """The value with a bit turned, cut, longer, empty, or with a stretch of another value in it.

    Not another whole value: nothing says of a value where it belongs.
    """
    at, other = random.randrange(len(value) + 1), random.choice(others).value
    stretch = other[random.randrange(len(other) + 1) :][: random.randrange(1, 20)]
    return random.choice(
        [
            _turn_bit(value, random),
            _turn_bit(value, random),
            value[:at],
            value + random.randbytes(random.randrange(1, 9)),
            b"",
            value[:at] + stretch + value[at + len(stretch) :],
            value[:at] + stretch + value[at:],
        ]
    )


def _turn_bit(value: bytes, random: Random) -> bytes:
    if not value:
        return b"\x81"
    at = random.randrange(len(value))
    return value[:at] + bytes([value[at] ^ (1 << random.randrange(8))]) + value[at + 1 :]
