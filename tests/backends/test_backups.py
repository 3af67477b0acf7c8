"""A backup during writes is a usable store with all writes acknowledged before it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
import servers
from redis import Redis
from servers.launch import workspace
from servers.postgres import own_programs
from support.checkpoints import METADATA, checkpoint_of, config_for
from support.places import Place

from langgraph_keel import KeelSaver

pytestmark = pytest.mark.slow
BEFORE = 30


def values_at(number: int) -> dict[str, Any]:
    return {"log": [f"{n} {'x' * 500}" for n in range(number)], "large": f"{number} " * 4000, "number": number}


def put(saver: KeelSaver, number: int) -> None:
    parent = config_for("t", f"{number - 1:08}" if number > 1 else None)
    saver.put(parent, checkpoint_of(f"{number:08}", values_at(number)), METADATA, {})


@contextmanager
def written(place: Place) -> Iterator[None]:
    """The store of a thread that keeps growing, after its first steps."""
    begun, enough = Event(), Event()

    def write() -> None:
        with place.open() as saver:
            for number in count(1):
                put(saver, number)
                if number == BEFORE:
                    begun.set()
                if enough.is_set():
                    break

    thread = Thread(target=write)
    thread.start()
    assert begun.wait(60)
    try:
        yield
    finally:
        enough.set()
        thread.join()


def check(copy: Place) -> None:
    copy.check()
    with copy.open() as saver:
        found = [each.checkpoint["channel_values"] for each in saver.list(config_for("t"))]
        assert len(found) >= BEFORE
        assert found == [values_at(number) for number in range(len(found), 0, -1)]
        put(saver, len(found) + 1)
        latest = saver.get_tuple(config_for("t"))
        assert latest
        assert latest.checkpoint["channel_values"] == values_at(len(found) + 1)


def by_backup(path: Path, copy: Path) -> None:
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(copy)) as other:
        one.backup(other)


def by_vacuum(path: Path, copy: Path) -> None:
    with closing(sqlite3.connect(path)) as one:
        one.execute("VACUUM INTO ?", (str(copy),))


@pytest.mark.parametrize("make", [by_backup, by_vacuum])
def test_a_backup_of_sqlite_is_a_usable_store(make: Callable[[Path, Path], None], tmp_path: Path) -> None:
    with written(Place("sqlite", f"sqlite:///{tmp_path}/agent.db")):
        make(tmp_path / "agent.db", tmp_path / "copy.db")
    check(Place("sqlite", f"sqlite:///{tmp_path}/copy.db"))


def test_a_backup_of_files_is_a_usable_store(tmp_path: Path) -> None:
    with written(Place("files", f"files:{tmp_path}/agents")):
        shutil.copytree(tmp_path / "agents", tmp_path / "copy")
    check(Place("files", f"files:{tmp_path}/copy"))


def test_a_backup_of_postgres_is_a_usable_store(tmp_path: Path) -> None:
    with servers.postgres(own=True) as server, written(Place("postgres", server.url)):
        dump = tmp_path / "agents.dump"
        run(own_programs() / "pg_dump", "--format=custom", f"--file={dump}", f"--dbname={server.url}")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE copy")
        copy = server.url.removesuffix("/postgres") + "/copy"
        run(own_programs() / "pg_restore", "--exit-on-error", f"--dbname={copy}", dump)
        check(Place("postgres", copy))


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_backup_of_redis_is_a_usable_store() -> None:
    with workspace("backup") as directory:
        with servers.redis(own=True) as server, written(Place("redis", server.url)):
            save(server.url)
            shutil.copy(server.directory / "dump.rdb", directory)
        (directory / "dump.rdb").chmod(0o644)
        with servers.redis([*servers.VOLATILE, "--dir", str(directory)]) as copy:
            check(Place("redis", copy.url, {"durability": "any"}))


def save(url: str) -> None:
    """Have a server write a snapshot, and wait for it."""
    with Redis.from_url(url) as client:
        last = client.lastsave()
        while client.lastsave() == last:  # it counts in seconds, and refuses while another one is in progress
            if not client.info("persistence")["rdb_bgsave_in_progress"]:
                client.bgsave()
            time.sleep(0.05)
