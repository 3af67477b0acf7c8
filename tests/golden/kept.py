"""Save a store as a file and restore it, with the database's own means only."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import psycopg
from redis import Redis
from support.places import Place, file_place, files_place, postgres_place, redis_place

HERE = Path(__file__).parent
KINDS = ("sqlite", "files", "postgres", "redis")
VERSIONS = sorted(path.name for path in HERE.glob("v*") if path.is_dir())
_DATE = 1_767_225_600
_TABLES = ("format", "threads", "entries", "items", "floors", "batches", "cells")


def expected(version: str, kind: str) -> dict[str, Any]:
    """Return the content of a store as read by the version that wrote it."""
    with gzip.open(HERE / version / f"{kind}.expected.json.gz", "rt") as file:
        return json.load(file)  # type: ignore[no-any-return]


def pack(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(data, 9, mtime=0))


def unpacked(version: str, name: str) -> bytes:
    return gzip.decompress((HERE / version / name).read_bytes())


def save(place: Place, version: str) -> None:
    """Save a store as a file."""
    saved = {"sqlite": _sqlite_data, "files": _files_data, "postgres": _postgres_data, "redis": _redis_data}
    pack(HERE / version / _NAMES[place.kind], saved[place.kind](place))


_NAMES = {"sqlite": "sqlite.db.gz", "files": "files.tar.gz", "postgres": "postgres.json.gz", "redis": "redis.json.gz"}


def loaded(version: str, kind: str, directory: Path, url: str = "", prefix: str = "") -> Place:
    """Restore a store from a file.

    Args:
        version: The version that wrote it.
        kind: One of `KINDS`.
        directory: Directory for a store on files.
        url: URL of a server: an empty schema, or a Redis.
        prefix: Prefix of its keys in Redis.
    """
    data = unpacked(version, _NAMES[kind])
    if kind == "sqlite":
        (directory / "keel.db").write_bytes(data)
        return file_place(directory)
    if kind == "files":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # absent before Python 3.11.4
            archive.extractall(directory)
        return files_place(directory)
    if kind == "postgres":
        _load_postgres(url, json.loads(data))
        return postgres_place(url)
    _load_redis(url, prefix, json.loads(data))
    return redis_place(url, prefix)


# -- one file, a directory --------------------------------------------------------------------------------------------


def _sqlite_data(place: Place) -> bytes:
    path = Path(place.url.removeprefix("sqlite:///"))
    assert not path.with_name(f"{path.name}-wal").exists(), "somebody has it open"
    return path.read_bytes()


def _files_data(place: Place) -> bytes:
    root, data = Path(place.url.removeprefix("files:")), io.BytesIO()

    def nobodys(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = _DATE
        return info

    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, f"files/{path.relative_to(root)}", recursive=False, filter=nobodys)
    return data.getvalue()


# -- PostgreSQL: the statements that made the tables, and their rows as COPY writes them ------------------------------


def _postgres_data(place: Place) -> bytes:
    with place.open() as saver:
        ddl = saver.ddl
    rows = {}
    with psycopg.connect(place.url) as connection:
        for table in _TABLES:
            with connection.cursor().copy(f"COPY keel_{table} TO STDOUT".encode()) as copy:
                lines = b"".join(bytes(line) for line in copy).decode().splitlines()
            rows[table] = sorted(lines)
    return json.dumps({"ddl": ddl, "rows": rows}).encode()


def _load_postgres(url: str, data: dict[str, Any]) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(data["ddl"].encode())
        connection.execute(b"TRUNCATE keel_format")
        for table, lines in data["rows"].items():
            with connection.cursor().copy(f"COPY keel_{table} FROM STDIN".encode()) as copy:
                copy.write("".join(f"{line}\n" for line in lines))


# -- Redis: keys by their types, without the prefix of the store ------------------------------------------------------


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _redis_data(place: Place) -> bytes:
    prefix, found = place.options["prefix"].encode(), {}
    with Redis.from_url(place.url) as client:
        for key in sorted(client.scan_iter(match=prefix + b":*", count=1000)):
            found[_text(key.removeprefix(prefix))] = _value(client, key)
            assert client.pttl(key) == -1, key
    return json.dumps(found).encode()


def _value(client: Any, key: bytes) -> list[Any]:
    kind = client.type(key).decode()
    if kind == "string":
        return [kind, _text(client.get(key))]
    if kind == "hash":
        return [kind, [[_text(name), _text(part)] for name, part in sorted(client.hgetall(key).items())]]
    if kind == "zset":
        return [kind, [[_text(member), score] for member, score in client.zrange(key, 0, -1, withscores=True)]]
    if kind == "set":
        return [kind, sorted(map(_text, client.smembers(key)))]
    assert kind == "list", kind
    return [kind, [_text(part) for part in client.lrange(key, 0, -1)]]


def _load_redis(url: str, prefix: str, data: dict[str, Any]) -> None:
    bytes_of = base64.b64decode
    with Redis.from_url(url) as client:
        for name, (kind, value) in data.items():
            key = prefix.encode() + bytes_of(name)
            if kind == "string":
                client.set(key, bytes_of(value))
            elif kind == "hash":
                client.hset(key, mapping={bytes_of(field): bytes_of(part) for field, part in value})
            elif kind == "zset":
                client.zadd(key, {bytes_of(member): score for member, score in value})
            else:
                (client.sadd if kind == "set" else client.rpush)(key, *map(bytes_of, value))
