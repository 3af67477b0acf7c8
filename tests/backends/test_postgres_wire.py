"""PostgreSQL behind a proxy or PgBouncer: round trips on the wire, lost replies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import servers
from support.checkpoints import METADATA, checkpoint_of, config_for
from support.saver_parts import driver_of

from langgraph_keel import CheckpointConflict, PostgresSaver, StoreUnavailable
from langgraph_keel.backends.postgres.connection import name_error
from langgraph_keel.testing.machine import chat


def values(n: int) -> dict[str, Any]:
    return {"list": chat(n), "tree": {f"key {i}": i + (i == n) for i in range(20)}, "n": n}


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[servers.Proxy]:
    parts = urlsplit(postgres_url)
    assert parts.hostname
    assert parts.port
    with servers.proxy(parts.hostname, parts.port) as between:
        yield between


@pytest.fixture
def saver(proxy: servers.Proxy, postgres_url: str) -> Iterator[PostgresSaver]:
    with PostgresSaver(proxy.url_for(postgres_url), timeout=20) as saver:
        saver.put(config_for("t"), checkpoint_of("000", values(0)), METADATA, {})
        yield saver


def steps(saver: PostgresSaver) -> list[Callable[[], Any]]:
    """Return writes in sequence, some of which pack rows, and reads between them."""
    return [call for n in range(1, 40) for call in step(saver, n)]


def step(saver: PostgresSaver, n: int) -> list[Callable[[], Any]]:
    config = config_for("t", f"{n - 1:03}")
    here = config_for("t", f"{n:03}")
    return [
        lambda: saver.put(config, checkpoint_of(f"{n:03}", values(n)), METADATA, {}),
        lambda: saver.put_writes(here, [("n", n)], "task"),
        lambda: saver.get_tuple(config_for("t")),
        lambda: saver.get_tuple(here),
    ]


@pytest.mark.parametrize("threshold", [0, 5, None])
def test_each_operation_takes_one_round_trip_on_the_wire(
    saver: PostgresSaver, proxy: servers.Proxy, postgres_url: str, threshold: int | None
) -> None:
    """This includes statements that are new to the connection, and prepared ones."""
    with PostgresSaver(proxy.url_for(postgres_url), timeout=20, prepare_threshold=threshold) as counted:
        head_run(counted)
        before = proxy.round_trips
        for count, call in enumerate(steps(counted), 1):
            call()
            assert proxy.round_trips - before == count
        # A copy also asks for objects, carried records, the archive, tool calls, and earlier owners. It records its
        # time, the common family of the two threads (four trips), and its latest checkpoint (two: read, and written),
        # which must not be resumed automatically. A deletion asks whether a person is on hold.
        for call, trips in ((lambda: counted.copy_thread("t", "copy"), 13), (lambda: counted.delete_thread("t"), 2)):
            now = proxy.round_trips
            call()
            assert proxy.round_trips - now == trips
    with psycopg.connect(postgres_url) as behind:
        packed = behind.execute("SELECT max(count) FROM keel_items WHERE channel = 'list'").fetchone()
    assert packed == (32,)


def test_each_operation_takes_one_round_trip_on_the_wire_async(saver: PostgresSaver, proxy: servers.Proxy) -> None:
    async def count() -> list[int]:
        await saver.aget_tuple(config_for("t"))
        seen = [proxy.round_trips]
        for n in range(1, 40):
            await saver.aput(config_for("t"), checkpoint_of(f"{n:03}", values(n)), METADATA, {})
            seen.append(proxy.round_trips)
            await saver.aget_tuple(config_for("t"))
            seen.append(proxy.round_trips)
        return [after - before for before, after in pairwise(seen)]

    assert set(asyncio.run(count())) == {1}


def test_opening_adds_few_round_trips_to_connecting(proxy: servers.Proxy, postgres_url: str) -> None:
    def read(times: int = 1) -> int:
        before = proxy.round_trips
        with PostgresSaver(proxy.url_for(postgres_url)) as saver:
            for _ in range(times):
                saver.get_tuple(config_for("t"))
        return proxy.round_trips - before

    def connect() -> int:
        before = proxy.round_trips
        psycopg.connect(proxy.url_for(postgres_url)).close()
        return proxy.round_trips - before

    read()  # creates the tables
    # One to check the tables, and one for the read. One more: before its first request, a saver without keys checks
    # whether the store is encrypted.
    assert read() == connect() + 3
    assert read(times=3) == connect() + 5


def test_statements_are_prepared_again_after_deallocate(saver: PostgresSaver) -> None:
    head_run(saver)
    driver_of(saver).retry(lambda connection: connection.execute("DEALLOCATE ALL"))
    assert head_run(saver).checkpoint["channel_values"] == values(0)


def head_run(saver: PostgresSaver) -> Any:
    found = saver.get_tuple(config_for("t"))
    assert found
    return found


@pytest.mark.parametrize("cut", ["cut_before_reply", "cut_before_request"])
def test_a_put_is_recognized_after_a_lost_reply(saver: PostgresSaver, proxy: servers.Proxy, cut: str) -> None:
    """Even if another checkpoint follows it, there is no conflict; its memo is right."""
    head = head_run(saver)
    getattr(proxy, cut)()
    config = saver.put(head.config, checkpoint_of("one", values(1)), METADATA, {})
    assert saver.put(config, checkpoint_of("two", values(2)), METADATA, {})["configurable"]["checkpoint_id"] == "two"
    listed = [(found.checkpoint["id"], found.checkpoint["channel_values"]) for found in saver.list(config_for("t"))]
    assert listed == [("two", values(2)), ("one", values(1)), ("000", values(0))]


def test_a_request_is_sent_again_if_psycopg_gives_up_waiting(
    saver: PostgresSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the socket breaks between two polls, the connection stays in a waiting state."""
    wait: Any = psycopg.Connection.wait
    given_up: list[Any] = []

    def give_up(connection: Any, steps: Any, *limits: Any) -> Any:
        if given_up:
            return wait(connection, steps, *limits)
        next(steps)
        given_up.append(connection.info.transaction_status)
        raise psycopg.OperationalError("connection socket closed")

    head = head_run(saver)
    monkeypatch.setattr(psycopg.Connection, "wait", give_up)
    saver.put(head.config, checkpoint_of("one", values(1)), METADATA, {})
    assert given_up == [psycopg.pq.TransactionStatus.ACTIVE]
    assert [found.checkpoint["id"] for found in saver.list(config_for("t"))] == ["one", "000"]


def test_a_put_sent_again_after_a_later_put_does_not_conflict(saver: PostgresSaver, postgres_url: str) -> None:
    head = head_run(saver)
    requests: list[Any] = []
    driver: Any = saver.engine.driver
    send = driver.send

    def twice(request: Any) -> Any:
        first = send(request)
        if not requests:
            requests.append(request)
            with PostgresSaver(postgres_url) as other:
                found = other.get_tuple(config_for("t"))
                assert found
                other.put(found.config, checkpoint_of("theirs", values(2)), METADATA, {})
            again = send(request)
            assert [line[2:] for line in again[0]] == [line[2:] for line in first[0]]
        return first

    driver.send = twice
    saver.put(head.config, checkpoint_of("ours", values(1)), METADATA, {})
    assert [found.checkpoint["id"] for found in saver.list(config_for("t"))] == ["theirs", "ours", "000"]
    with pytest.raises(CheckpointConflict):
        saver.put(head.config, checkpoint_of("late", values(1)), METADATA, {})


def test_a_copy_succeeds_after_a_lost_reply(saver: PostgresSaver, proxy: servers.Proxy) -> None:
    proxy.cut_before_reply()
    saver.copy_thread("t", "copy")
    assert [found.checkpoint["id"] for found in saver.list(config_for("copy"))] == ["000"]


def test_a_put_during_a_deletion_leaves_no_partial_thread(postgres_url: str) -> None:
    """It reads before the deletion and writes after it.

    Its base is gone, so it starts again.
    """
    with PostgresSaver(postgres_url) as saver, psycopg.connect(postgres_url) as deleting:
        saver.put(config_for("t"), checkpoint_of("000", values(30)), METADATA, {})
        head = head_run(saver)
        for table in ("threads", "entries", "items", "batches"):
            deleting.execute(f"DELETE FROM keel_{table}".encode())
        errors: list[BaseException] = []

        def put() -> None:
            try:
                saver.put(head.config, checkpoint_of("001", values(31)), METADATA, {})
            except BaseException as error:
                errors.append(error)

        writing = threading.Thread(target=put)
        writing.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%keel_threads%'"
        with psycopg.connect(postgres_url, autocommit=True) as watching:
            while watching.execute(waiting.encode()).fetchone() == (0,):
                assert writing.is_alive()
        deleting.commit()
        writing.join(20)
        assert [type(error) for error in errors] == [CheckpointConflict]
        assert [*saver.threads(), *saver.list(None)] == []
        saver.put(config_for("t"), checkpoint_of("again", values(3)), METADATA, {})
        assert head_run(saver).checkpoint["channel_values"] == values(3)
        saver.delete_thread("t")
        saver.put(config_for("other"), checkpoint_of("x", values(2)), METADATA, {})
        saver.copy_thread("other", "t")
        assert head_run(saver).checkpoint["channel_values"] == values(2)


@pytest.mark.slow
def test_a_silent_network_raises_store_unavailable(proxy: servers.Proxy, postgres_url: str) -> None:
    with PostgresSaver(proxy.url_for(postgres_url), timeout=2) as saver:
        saver.put(config_for("t"), checkpoint_of("000", values(0)), METADATA, {})
        proxy.freeze()
        with pytest.raises(StoreUnavailable, match="within 2 s"):
            saver.get_tuple(config_for("t"))
        with pytest.raises(StoreUnavailable, match="timeout"):
            saver.get_tuple(config_for("t"))  # needs a new connection
        proxy.thaw()
        assert head_run(saver).checkpoint["channel_values"] == values(0)


async def test_a_silent_network_raises_store_unavailable_async(proxy: servers.Proxy, postgres_url: str) -> None:
    async with PostgresSaver(proxy.url_for(postgres_url), timeout=2) as saver:
        await saver.aput(config_for("t"), checkpoint_of("000", values(0)), METADATA, {})
        proxy.freeze()
        with pytest.raises(StoreUnavailable, match="within 2 s"):
            await asyncio.wait_for(saver.aget_tuple(config_for("t")), 20)
        proxy.thaw()
        assert await saver.aget_tuple(config_for("t"))


# -- PgBouncer ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_saver_works_behind_pgbouncer(pgbouncer_url: str) -> None:
    """With transaction pooling, a client's statements run on any server connection."""
    schema = "behind_pgbouncer"
    options: dict[str, Any] = {"schema": schema, "prepare_threshold": None}
    try:
        with PostgresSaver(pgbouncer_url, **options) as saver, ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda n: converse(saver, f"thread {n}"), range(24)))
            found = asyncio.run(aconverse(saver))
            assert found == [values(2)] * 24
            saver.prune(["thread 1"])
            saver.copy_thread("thread 2", "copy")
            saver.delete_thread("thread 2")
            assert len(list(saver.threads())) == 48
    finally:
        with psycopg.connect(pgbouncer_url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.mark.parametrize("statement", [b"EXECUTE forgotten", b"PREPARE known AS SELECT 2"])
def test_the_error_of_forgotten_statements_names_the_option(postgres_url: str, statement: bytes) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("PREPARE known AS SELECT 1")
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(statement)
    assert "open with prepare_threshold=None" in str(name_error(caught.value, "here"))


def test_the_advice_of_the_server_is_a_sentence() -> None:
    error = psycopg.OperationalError("port 5432 failed: Connection refused\n\tIs the server running on that host?")
    assert str(name_error(error, "here")).endswith("failed: Connection refused. Is the server running on that host?")


def converse(saver: PostgresSaver, thread: str) -> None:
    config: Any = config_for(thread)
    for n in range(40):
        config = saver.put(config, checkpoint_of(f"{n:03}", values(n)), METADATA, {})
        found = saver.get_tuple(config_for(thread))
        assert found
        assert found.checkpoint["channel_values"] == values(n)


async def aconverse(saver: PostgresSaver) -> list[Any]:
    async def one(thread: str) -> Any:
        for n in range(3):
            await saver.aput(config_for(thread), checkpoint_of(f"{n:03}", values(n)), METADATA, {})
        found = await saver.aget_tuple(config_for(thread))
        return found and found.checkpoint["channel_values"]

    return await asyncio.gather(*(one(f"async {n}") for n in range(24)))
