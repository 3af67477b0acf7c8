"""Faults of PostgreSQL alone: full disks, replicas, timeouts, refusals.

Each is a named error.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import servers
from servers.launch import unprivileged
from support.checkpoints import aput, config_for, put, value_of
from support.places import Place
from support.processes.full_disks import small_disk

from langgraph_keel import (
    AccessDenied,
    KeelError,
    KeelSaver,
    PostgresSaver,
    ReadOnlyStore,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    open_saver,
)

pytestmark = pytest.mark.slow

BOUND = 15.0


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@contextmanager
def own_server(**options: Any) -> Iterator[servers.PostgresServer]:
    """Start the test's own server, or skip the test (fail it if servers are required)."""
    try:
        with servers.postgres(own=True, **options) as server:
            yield server
    except servers.NoServer as missing:
        (pytest.fail if servers.required() else pytest.skip)(f"NOT TESTED: {missing}")


# -- refused -----------------------------------------------------------------------------------------------------------


def test_a_wrong_password_raises_access_denied_without_the_password() -> None:
    with own_server(password="right") as server:
        with open_saver(server.url) as saver:
            put(saver, "t")
        url = server.url.replace(":right@", ":sesame@")
        with open_saver(url) as saver:
            refused = [fails(AccessDenied, lambda: put(saver, "t")), fails(AccessDenied, saver.setup)]
            refused.append(fails(AccessDenied, lambda: asyncio.run(aput(saver, "t"))))
        assert not any("sesame" in error for error in refused)
        with open_saver(server.url) as saver:
            assert value_of(saver, "t") == 1


def fails(kind: type[KeelError], call: Callable[[], object]) -> str:
    """Return the message of the error, and of all its causes."""
    with pytest.raises(kind) as caught:
        call()
    error: BaseException | None = caught.value
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(said)


def test_an_error_names_a_missing_database(postgres_server: servers.PostgresServer) -> None:
    url = postgres_server.url.rpartition("/")[0] + "/no_such_database"
    with open_saver(url) as saver:
        with pytest.raises(StoreUnavailable, match="no_such_database"):
            put(saver, "t")
        with pytest.raises(StoreUnavailable, match="no_such_database"):
            asyncio.run(aput(saver, "t"))


def test_a_server_without_free_connections_is_busy() -> None:
    with own_server(options=["max_connections=5", "superuser_reserved_connections=0"]) as server:
        with open_saver(server.url) as saver:
            put(saver, "t")
        with open_saver(server.url) as saver:
            check_crowded_out(saver, server.url)
            assert value_of(saver, "t") == 1


def check_crowded_out(saver: KeelSaver, url: str) -> None:
    with ExitStack() as others:
        take_all(url, others)
        # Either error is correct: while connecting, libpq passes on only the server's message, without its code.
        with pytest.raises((StoreBusy, StoreUnavailable), match="too many clients"):
            value_of(saver, "t")


def take_all(url: str, others: ExitStack) -> None:
    """Open all connections that the server allows."""
    with suppress(psycopg.OperationalError):
        while True:
            others.enter_context(psycopg.connect(url))


# -- busy --------------------------------------------------------------------------------------------------------------


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Lock the tables, as an ALTER TABLE or a VACUUM FULL does."""
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE keel_threads, keel_entries IN ACCESS EXCLUSIVE MODE")
        yield


def test_an_exhausted_pool_is_busy_and_recovers(postgres_url: str) -> None:
    with PostgresSaver(postgres_url, pool_size=2, timeout=1.5) as saver, ThreadPoolExecutor(6) as pool:
        put(saver, "t")
        began = time.monotonic()
        with locked(postgres_url):
            calls = [pool.submit(put, saver, f"thread {number}") for number in range(6)]
            errors = [call.exception() for call in calls]
        assert time.monotonic() - began < BOUND
        check_given_up(errors)
        assert any("all 2 connections were in use" in str(error) for error in errors)
        assert list(pool.map(lambda number: value_of(put_in(saver, number), f"thread {number}"), range(6))) == [1] * 6


def check_given_up(errors: list[Any]) -> None:
    """Check the errors.

    Calls that had a connection report an unknown outcome; others, that nothing was stored.
    """
    assert {type(error) for error in errors} == {StoreUnavailable, StoreBusy}


def put_in(saver: PostgresSaver, number: int) -> PostgresSaver:
    put(saver, f"thread {number}")
    return saver


async def test_an_exhausted_async_pool_is_busy_and_recovers(postgres_url: str) -> None:
    async with PostgresSaver(postgres_url, pool_size=2, timeout=1.5) as saver:
        await aput(saver, "t")
        with locked(postgres_url):
            calls = (aput(saver, f"thread {number}") for number in range(6))
            errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), BOUND)
        check_given_up(errors)
        await asyncio.gather(*(aput(saver, f"thread {number}") for number in range(6)))
        assert await saver.aget_tuple(config_for("thread 5"))


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_a_server_timeout_raises_store_busy(postgres_url: str, limit: str) -> None:
    with open_saver(postgres_url) as saver:
        put(saver, "t")
    with open_saver(f"{postgres_url}{quote(f' -c{limit}=300', safe='')}") as saver:
        assert value_of(saver, "t") == 1
        with locked(postgres_url), pytest.raises(StoreBusy):
            put(saver, "t", 2, "00000002")
        assert value_of(saver, "t") == 1
        put(saver, "t", 3, "00000003")
        assert value_of(saver, "t") == 3


# -- read-only ---------------------------------------------------------------------------------------------------------


def test_a_read_only_connection_reads_and_refuses_writes(postgres_url: str) -> None:
    with open_saver(postgres_url) as saver:
        put(saver, "t")
    with open_saver(f"{postgres_url}{quote(' -cdefault_transaction_read_only=on', safe='')}") as saver:
        check_reads_only(saver)


def check_reads_only(saver: Any) -> None:
    config = saver.get_tuple(config_for("t")).config
    for change in (
        lambda: put(saver, "t", 2, "00000002"),
        lambda: saver.put_writes(config, [("a", 1)], "task"),
        lambda: saver.delete_thread("t"),
        lambda: saver.copy_thread("t", "copy"),
        lambda: saver.prune(["t"], strategy="delete"),
    ):
        with pytest.raises(ReadOnlyStore):
            change()
    assert [found.checkpoint["channel_values"] for found in saver.list(None)] == [{"v": 1}]


def test_a_hot_standby_accepts_writes_after_its_promotion() -> None:
    """A failover: the saver's server is a replica, and becomes the primary."""
    with own_server() as server:
        with open_saver(server.url) as saver:
            put(saver, "t")
        server.stop()
        (server.directory / "data" / "standby.signal").touch()
        server.restart()
        with open_saver(server.url) as saver:
            check_reads_only(saver)
            execute(server.url, "SELECT pg_promote()")
            put(saver, "t", 2, "00000002")
            assert value_of(saver, "t") == 2


# -- full --------------------------------------------------------------------------------------------------------------


def test_a_full_disk_raises_store_full_and_leaves_no_partial_write() -> None:
    with small_disk(12, "under PostgreSQL") as disk, own_server() as server:
        if account := unprivileged():
            shutil.chown(disk, account["user"], account["group"])
        execute(server.url, f"CREATE TABLESPACE small LOCATION '{disk}'")
        place = Place("postgres", f"{server.url}?options={quote('-cdefault_tablespace=small', safe='')}")
        with place.open() as saver:
            kept = fill(saver)
            assert kept > 3
            check_kept(saver, kept)
            with pytest.raises(StoreFull):
                saver.put_writes(config_for("t", f"{kept:08}"), [("a", noise(kept + 1))], "task")
            with pytest.raises(StoreFull):
                saver.copy_thread("t", "copy")
            check_kept(saver, kept)
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            put(saver, "t", noise(kept + 1), f"{kept + 1:08}")  # the write that failed before
            check_kept(saver, kept + 1)


def noise(number: int) -> bytes:
    """Return 400 kB that do not compress."""
    return random.Random(number).randbytes(400_000)


def fill(saver: Any) -> int:
    """Store checkpoints until the disk is full; return how many were acknowledged."""
    for number in range(1, 200):
        try:
            put(saver, "t", noise(number), f"{number:08}")
        except StoreFull:
            return number - 1
    raise AssertionError("the disk was never full")


def check_kept(saver: Any, count: int) -> None:
    """Check that exactly these checkpoints are stored, whole, and no other thread."""
    found = [(found.checkpoint["id"], found.checkpoint["channel_values"]["v"]) for found in saver.list(None)]
    assert found == [(f"{number:08}", noise(number)) for number in range(count, 0, -1)]
