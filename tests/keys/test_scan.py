"""No stored text is readable in a store's files, and all values are read back."""

from __future__ import annotations

import asyncio
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import psycopg
import pytest
from golden import story
from golden.kinds import TYPES
from golden.seen import aseen, seen
from langchain_core.messages import AIMessage, HumanMessage
from redis import Redis
from servers import PostgresServer, RedisServer
from support.retention.threads import BACKENDS

from langgraph_keel import (
    FileSaver,
    KeelSaver,
    Keyring,
    LocalKey,
    PostgresSaver,
    RedisSaver,
    Retention,
    SqliteSaver,
)
from langgraph_keel.testing.rig import at, checkpoint_of

KEYRING = Keyring(LocalKey("k1", bytes(range(32))))
HIDING = Keyring(LocalKey("k1", bytes(range(32))), hide_names=True)
WORDS = re.compile(rb"[A-Za-z][A-Za-z ]{6,60}")
NAME = re.compile(rb"[a-z]+")
"""Names of channels, nodes and cells, one lower-case word: they may be readable."""


def words_in(told: Any) -> set[bytes]:
    """The words in all readable values, without names."""
    return {word for word in map(bytes.strip, WORDS.findall(repr(told).encode())) if not NAME.fullmatch(word)}


def write(open_: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        story.write(open_)


def left_in(raw: bytes, told: Any, empty: bytes = b"") -> set[bytes]:
    """Words found in a store, except thread names and the contents of an empty store."""
    names = b"\n".join([empty, *(name.encode() for name in told["thread"])])
    return {word for word in words_in(told) if word in raw and word not in names}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_contains_no_readable_text(stores: Any, backend: str) -> None:
    def open_(**options: Any) -> KeelSaver:
        saver: KeelSaver = stores[backend].open(encryption=KEYRING, **options)
        return saver

    with open_() as saver:
        saver.retention.set_policy(Retention(last=9))  # records that Keel itself writes, such as settings for git
        empty = stores[backend].raw()
    write(open_)
    with open_(types=TYPES) as saver:
        told = seen(saver)
        assert told["verdict"] != {}
        both = asyncio.run(aseen(saver))
    assert {name: each["labels"] for name, each in told["thread"].items()} == {
        name: each["labels"] for name, each in both["thread"].items()
    }
    assert len(words_in(told)) > 130
    assert left_in(stores[backend].raw(), told, empty) == set()
    stores[backend].wipe()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(SqliteSaver, "keel.db"), (FileSaver, "")], ids=["sqlite", "files"])
def test_files_of_a_store_contain_no_readable_text(tmp_path: Path, kind: Any, name: str) -> None:
    """The log, free pages, and additional files."""

    def open_(**options: Any) -> Any:
        return kind(tmp_path / name, encryption=KEYRING, **options)

    with open_() as saver:
        saver.retention.set_policy(Retention(last=9))
        empty = files_in(tmp_path)
    write(open_)
    with open_(types=TYPES) as saver:
        told = seen(saver)
        raw = files_in(tmp_path)
    assert len(raw) > 2 * len(empty)
    assert left_in(raw, told, empty) == set()


def files_in(directory: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


def tell(saver: KeelSaver, mark: str, *, names: bool = False) -> None:
    """Store a random mark, which compression cannot hide, in each kind of record.

    With `names`, also in each kind of name that is hidden; then nothing is erased.
    """
    config: Any = at("t")
    for number in range(1, 4):
        messages = [HumanMessage(f"{mark} asks"), AIMessage(f"{mark} answers", response_metadata={"of": mark})]
        values: Any = {"messages": messages * number, "inline": mark, "large": mark * 2000 + str(number)}
        if names:
            values |= {f"{mark} channel": mark, f"branch:to:{mark}": messages * number, mark: {mark: mark * 2000}}
        owner = "nobody" if names and number == 3 else mark  # a prune then records the previous owner
        metadata: Any = {"source": "loop", "step": number, "parents": {}, "user_id": owner, "more": [mark]}
        checkpoint: Any = checkpoint_of(f"{number:08}", values)
        config = saver.put(config, checkpoint, metadata, {})
        saver.put_writes(config, [("messages", messages[0]), ("inline", mark)], "task")
        if names:
            saver.put_writes(config, [(mark, mark)], f"task {mark}", f"~__pregel_pull, {mark}")
            inside: Any = at("t", f"{mark}:1|{mark}:2")
            inside = saver.put(inside, checkpoint, metadata, {})
            saver.put_writes(inside, [(mark, mark)], f"task {mark}", f"~__pregel_pull, {mark}")
    saver.labels.set(at("t"), mark)
    saver.retention.set_policy(Retention(last=2, threads=f"{mark}*"))
    saver.prune(["t"])
    saver.copy_thread("t", "u")
    if names:
        assert {mark, f"branch:to:{mark}"} < saver.get_tuple(at("u")).checkpoint["channel_values"].keys()  # type: ignore[union-attr]
        assert saver.get_tuple(at("u", f"{mark}:1|{mark}:2")) is not None
    else:
        saver.retention.erase(mark, reclaim=False)


def contents_of(files: list[Path]) -> Iterator[bytes]:
    """Read the files of a running server, which may remove some (log segments, maps)."""
    for path in files:
        with suppress(FileNotFoundError):
            yield path.read_bytes()


def scan_for(marks: list[str], parts: Iterator[bytes]) -> set[str]:
    """Return the marks that are found, as text or as PostgreSQL writes bytes."""
    found: set[str] = set()
    for part in parts:
        found |= {mark for mark in marks if mark.encode() in part or mark.encode().hex().encode() in part}
    return found


def test_tables_and_log_of_postgres_contain_no_readable_text(postgres_server: PostgresServer) -> None:
    sealed, hidden, plain = (f"{word}{token_hex(16)}" for word in ("sealed", "hidden", "plain"))
    schema = f"scan_{token_hex(4)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as behind:
        data = Path(behind.execute("SHOW data_directory").fetchone()[0])  # type: ignore[index]
        if not os.access(data / "pg_wal", os.R_OK | os.X_OK):
            pytest.skip("the server's files are elsewhere: KEEL_TEST_SERVERS=wheel launches one whose log can be read")
        with PostgresSaver(postgres_server.url, schema=schema, encryption=KEYRING) as saver:
            tell(saver, sealed)
        with PostgresSaver(postgres_server.url, schema=f"{schema}_hidden", encryption=HIDING) as saver:
            tell(saver, hidden, names=True)
        with PostgresSaver(postgres_server.url, schema=f"{schema}_plain") as saver:
            tell(saver, plain, names=True)
        behind.execute("CHECKPOINT")
        relations = behind.execute(
            "SELECT pg_relation_filepath(c.oid) FROM pg_class c WHERE c.relnamespace = ANY (%s::regnamespace[]) OR "
            "c.relname LIKE 'pg_toast%%' OR c.oid = 'pg_statistic'::regclass",
            ([schema, f"{schema}_hidden", f"{schema}_plain"],),
        ).fetchall()
        log = [path for path in (data / "pg_wal").iterdir() if path.is_file()]
        tables = [part for (name,) in relations if name for part in data.glob(f"{name}*")]
        assert scan_for([sealed, hidden, plain], contents_of(log)) == {plain}
        assert scan_for([sealed, hidden, plain], contents_of(tables)) == {plain}
        for name in (schema, f"{schema}_hidden", f"{schema}_plain"):
            behind.execute(f"DROP SCHEMA {name} CASCADE".encode())


def test_keys_values_and_file_of_redis_contain_no_readable_text(redis_server: RedisServer, redis_prefix: str) -> None:
    sealed, hidden, plain = (f"{word}{token_hex(16)}" for word in ("sealed", "hidden", "plain"))
    with Redis.from_url(redis_server.url) as client:
        settings = client.config_get("dir") | client.config_get("append*")
        directory = Path(settings["dir"], settings.get("appenddirname", ""))
        if settings["appendonly"] != "yes" or not os.access(directory, os.R_OK | os.X_OK):
            pytest.skip("the server keeps no file that can be read: KEEL_TEST_SERVERS=wheel launches one that does")
        with RedisSaver(redis_server.url, prefix=redis_prefix, encryption=KEYRING) as saver:
            tell(saver, sealed)
        with RedisSaver(redis_server.url, prefix=f"{redis_prefix}:hidden", encryption=HIDING) as saver:
            tell(saver, hidden, names=True)
        with RedisSaver(redis_server.url, prefix=f"{redis_prefix}:plain") as saver:
            tell(saver, plain, names=True)
        keys = list(client.scan_iter(match=f"{redis_prefix}*", count=1000))
        values = (client.dump(key) or b"" for key in keys)
        assert scan_for([sealed, hidden], iter(keys)) == set()
        assert scan_for([sealed, hidden], values) == set()
        files = [path for path in directory.glob("appendonly*") if path.is_file()]
        assert scan_for([sealed, hidden, plain], contents_of(files)) == {plain}
