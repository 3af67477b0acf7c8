"""Stored values of each backend, one of which is damaged at a time.

Finds the values, damages one, and reads the store in every way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psycopg
from golden.seen import STATUSES, form, moment_form, thread_config, tuple_form
from psycopg import sql
from redis import Redis

from langgraph_keel import KeelSaver
from support.places import Place


class Refused(Exception):
    """Raised if the database rejects this value, so that it can never be stored."""


class Spot(NamedTuple):
    """A place in a store.

    Attributes:
        kind: The column, or the kind of field or line.
        where: The position among those of the same kind, as text.
        value: The stored value.
        write: Writes another value. Raises `Refused`.
        has_checksum: Whether the value has a checksum. Names, numbers and times have none.
    """

    kind: str
    where: str
    value: Any
    write: Callable[[Any], object]
    has_checksum: bool = True


@contextmanager
def spots_of(place: Place) -> Iterator[list[Spot]]:
    """Yield each stored value: of rows, fields, members of indexes, and lines of logs."""
    with {"sqlite": _sqlite, "files": _files, "postgres": _postgres, "redis": _redis}[place.kind](place) as spots:
        yield sorted(spots, key=lambda spot: (spot.kind, spot.where))


@contextmanager
def _sqlite(place: Place) -> Iterator[list[Spot]]:
    connection = sqlite3.connect(place.url.removeprefix("sqlite:///"), isolation_level=None)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    spots = []
    for table in tables:
        if table.startswith("sqlite_"):
            continue
        for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
            for rowid, value in connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
                write = _SqliteColumn(connection, table, column, rowid).write
                spots.append(Spot(f"{table}.{column}", f"row {rowid}", value, write, kind == "BLOB"))
    yield spots
    connection.close()


@dataclass(slots=True)
class _SqliteColumn:
    connection: sqlite3.Connection
    table: str
    column: str
    rowid: int

    def write(self, new: Any) -> None:
        """Write a value; `BadText` is written as text that is not valid UTF-8."""
        what = "CAST(? AS TEXT)" if isinstance(new, BadText) else "?"
        change = f"UPDATE {self.table} SET {self.column} = {what} WHERE rowid = ? RETURNING rowid"
        try:
            ((self.rowid,),) = self.connection.execute(change, (new, self.rowid)).fetchall()
        except sqlite3.IntegrityError as error:
            raise Refused from error


@contextmanager
def _postgres(place: Place) -> Iterator[list[Spot]]:
    with psycopg.connect(place.url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = current_schema AND table_name <> 'keel_format'"  # checked as a whole
        ).fetchall()
        spots = []
        rows: dict[tuple[str, str], list[str]] = {}
        for name, column, kind in found:
            query = sql.SQL("SELECT ctid, {} FROM {}").format(sql.Identifier(column), sql.Identifier(name))
            for ctid, value in connection.execute(query).fetchall():
                row = rows.setdefault((name, ctid), [ctid])
                write = _PostgresColumn(connection, name, column, row).write
                spots.append(Spot(f"{name}.{column}", f"row {ctid}", value, write, kind == "bytea"))
        yield spots


@dataclass(slots=True)
class _PostgresColumn:
    connection: psycopg.Connection[Any]
    table: str
    column: str
    row: list[str]
    """The row's `ctid`, shared by all its columns, since an update changes it."""

    def write(self, new: Any) -> None:
        """Write a value."""
        change = sql.SQL("UPDATE {} SET {} = %s WHERE ctid = %s RETURNING ctid").format(
            sql.Identifier(self.table), sql.Identifier(self.column)
        )
        try:
            ((self.row[0],),) = self.connection.execute(change, [new, self.row[0]]).fetchall()
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError) as error:
            raise Refused from error


@contextmanager
def _redis(place: Place) -> Iterator[list[Spot]]:
    with Redis.from_url(place.url) as client:
        spots = []
        for key in client.scan_iter(match=f"{place.options['prefix']}:*", count=1000, _type="hash"):
            for field, value in client.hgetall(key).items():
                kind, where = field.partition(b":")[0].decode(), f"{key!r}, {field!r}"
                write = partial(lambda key, field, new: client.hset(key, field, new), key, field)
                # Words (columns in other backends) are stored alone, or in a line before the part with a checksum.
                has_checksum = kind in ("entry", "write") or (kind != "item" and b"\n" in value)
                spots.append(Spot(kind, where, value, write, has_checksum))
                spots.append(Spot(f"name of {kind}", where, field, _RedisField(client, key, field).write, False))
        for key in client.scan_iter(match=f"{place.options['prefix']}:*", count=1000, _type="zset"):
            for member, score in client.zrange(key, 0, -1, withscores=True):
                index = _RedisMember(client, key, member, score)
                where = f"{key!r}, {member!r}"
                spots.append(Spot(f"member of {_kind_of(key)}", where, member, index.write, False))
        yield spots


def _kind_of(key: bytes) -> str:
    return key.partition(b"}:")[2].partition(b":")[0].decode()


@dataclass(slots=True)
class _RedisField:
    client: Redis
    key: bytes
    field: bytes

    def write(self, new: bytes) -> None:
        """Rename a field."""
        if new != self.field and self.client.hexists(self.key, new):
            raise Refused
        value = self.client.hget(self.key, self.field)
        self.client.hset(self.key, new, value)
        if new != self.field:
            self.client.hdel(self.key, self.field)
        self.field = new


@dataclass(slots=True)
class _RedisMember:
    client: Redis
    key: bytes
    member: bytes
    score: float

    def write(self, new: bytes) -> None:
        """Replace a member."""
        if new != self.member and self.client.zscore(self.key, new) is not None:
            raise Refused
        self.client.zrem(self.key, self.member)
        self.client.zadd(self.key, {new: self.score})
        self.member = new


@contextmanager
def _files(place: Place) -> Iterator[list[Spot]]:
    """Yield each line of each log."""
    spots = []
    for path in sorted(Path(place.url.removeprefix("files:")).rglob("*.jsonl")):
        lines = path.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines):
            before, after = b"".join(lines[:number]), b"".join(lines[number + 1 :])
            write = partial(_write_file, path, before, after)
            spots.append(Spot("line", f"{number + 1} of {path}", line, write))
    yield spots


def _write_file(path: Path, before: bytes, after: bytes, line: bytes) -> None:
    """Write a line.

    Neither an empty line nor a last line without its end counts as damage: the line is absent, or its write was
    interrupted. So those are written as other damage.
    """
    line = line or b"?"
    path.write_bytes(before + line + (b"" if after or line.endswith(b"\n") else b"\n") + after)


# -- ways to read ------------------------------------------------------------------------------------------------------

OF_ITEMS = ("items.key", "items.count", "keel_items.lo", "keel_items.count", "item", "name of item")
"""Columns that are used only to read values."""
TOLD = ("timeline", "verdict")
"""Views that show the readable part and report the rest as damaged, so that their result may change."""


def ways(saver: KeelSaver, threads: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each way to read a store, by name."""
    yield "threads", lambda: [each.thread_id for each in saver.threads()]
    yield "all requests", lambda: [form(each) for each in saver.approvals.pending(status=STATUSES, limit=None)]
    yield "audit", lambda: [form(each) for each in saver.approvals.audit(limit=1000)]
    yield "verdict", lambda: form(saver.approvals.verify_audit())
    yield "retention", lambda: form(list(saver.retention.policies()))
    for thread in threads:
        yield from ((f"{name} of {thread}", partial(read, saver, thread)) for name, read in OF_A_THREAD.items())


OF_A_THREAD: dict[str, Callable[[KeelSaver, str], Any]] = {
    "list": lambda saver, thread: [tuple_form(each) for each in saver.list(thread_config(thread))],
    "latest": lambda saver, thread: tuple_form(saver.get_tuple(thread_config(thread))),
    "timeline": lambda saver, thread: [moment_form(each) for each in saver.timeline(thread)],
    "labels": lambda saver, thread: form(list(saver.labels.list(thread))),
    "tools": lambda saver, thread: [form(each) for each in saver.tools.calls(thread)],
    "provenance": lambda saver, thread: [form(each) for each in saver.provenance.read(thread_config(thread))],
    "archive": lambda saver, thread: [form(each) for each in saver.archive(thread).messages()],
}


# -- ways to damage ----------------------------------------------------------------------------------------------------


class BadText(bytes):
    """The bytes of a text of SQLite, which need not be valid UTF-8."""


def damage_one(spots: list[Spot], random: Random, *, has_checksum: bool) -> tuple[Spot, Any]:
    """Damage a spot; return it and its new value.

    Each kind of spot is equally likely, however many there are of it.

    Args:
        spots: All spots.
        random: Chooses the spot and the damage.
        has_checksum: Which spots to damage, if there are any of these.
    """
    groups: dict[str, list[Spot]] = {}
    for spot in [each for each in spots if each.has_checksum == has_checksum] or spots:
        groups.setdefault(spot.kind, []).append(spot)
    while True:
        spot = random.choice(groups[random.choice([*groups])])
        new = damaged(spot, spots, random)
        with suppress(Refused):
            spot.write(new)
            return spot, new


def damaged(spot: Spot, others: list[Spot], random: Random) -> Any:
    """Return a damaged value, perhaps of another type, which a database may refuse."""
    if isinstance(spot.value, bytes):
        return damaged_bytes(spot.value, others, random)
    possible = [*_like(spot.value, random), None, b"\xff\x00", 1.5, str(spot.value)]
    if isinstance(spot.value, str):
        possible += [BadText(_turn_bit(spot.value.encode(), random))] * 3
    return random.choice(possible)


def _like(value: Any, random: Random) -> list[Any]:
    """Return possible damaged values of the same type."""
    if isinstance(value, bool | None):
        return [0, "x"]
    if isinstance(value, int):
        return [value ^ 1 << random.randrange(4), value ^ 1 << random.randrange(63), value + 1, -value, 0, -1]
    if isinstance(value, list):
        others = [random.choice(_like(each, random)) for each in value]
        return [value[:-1], value[1:], [*value, *value], value[::-1], others, []]
    text, at = str(value), random.randrange(len(str(value)) + 1)
    turned = _turn_bit(text.encode(), random).decode(errors="ignore").replace("\0", "")
    return [turned, turned, text[:at], f"{text}x", "", text[at:]]


def damaged_bytes(value: bytes, others: list[Spot], random: Random) -> bytes:
    """Return the value with damage.

    A bit is flipped, or the value is cut, extended, emptied, or partly overwritten by another one. It never becomes
    another whole value, since no value records its own place.
    """
    at, other = random.randrange(len(value) + 1), b""
    while not other:
        drawn = random.choice(others).value
        other = drawn if isinstance(drawn, bytes) else b""
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
