"""An older store is migrated once, despite races and kills.

A newer one is refused with a named error.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.backends.migrations import ONE, SAVERS, TWO, count_changes, open_with
from support.checkpoints import put, value_of
from support.cli_threads import keel, keel_json
from support.places import Place

from langgraph_keel import MemorySaver, NewerFormat, NotFound, NotSetUp, TieredSaver
from langgraph_keel.backends.files.driver import FileDriver
from langgraph_keel.backends.migrations import find_due
from langgraph_keel.backends.postgres import driver as postgres
from langgraph_keel.backends.redis import driver as redis
from langgraph_keel.backends.sqlite import driver as sqlite

THREADS = [f"t{number}" for number in range(5)]
FORK = get_context("fork")


@pytest.fixture
def old(place: Place) -> Place:
    """A store of format 1."""
    with place.open() as saver:
        for number, thread in enumerate(THREADS):
            put(saver, thread, number)
        put(saver.for_tenant("acme"), "t0", "of acme")
    return place


def check_carried_over(place: Place) -> None:
    with open_with(place, TWO) as saver:
        assert [value_of(saver, thread) for thread in THREADS] == [0, 1, 2, 3, 4]
        assert value_of(saver.for_tenant("acme"), "t0") == "of acme"
        assert saver.info().format == 3
        assert saver.migrations() == []
        put(saver, "new", 5)
        assert value_of(saver, "new") == 5
        saver.delete_thread("new")
    place.check() if place.kind == "sqlite" else None
    assert set(count_changes(place)) == {2}


def open_one(place: Place, barrier: Any) -> None:
    barrier.wait()
    with open_with(place, TWO) as saver:
        assert value_of(saver, "t3") == 3


@pytest.mark.slow
def test_eight_concurrent_processes_run_each_migration_once(old: Place) -> None:
    barrier = FORK.Barrier(8)
    children = [FORK.Process(target=open_one, args=(old, barrier)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8
    check_carried_over(old)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_waiting_process_does_not_repeat_migrations(old: Place) -> None:
    """The row of the format, for which it waits, was replaced by the second migration."""
    with psycopg.connect(old.url) as other, open_with(old, TWO) as saver, ThreadPoolExecutor(1) as pool:
        other.execute("DELETE FROM keel_format; INSERT INTO keel_format VALUES (3)")
        other.execute("ALTER TABLE keel_threads ADD COLUMN done integer NOT NULL DEFAULT 2")
        waiting = pool.submit(value_of, saver, "t3")
        with psycopg.connect(old.url, autocommit=True) as watching:
            blocked = "SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
            while not watching.execute(blocked, [other.info.backend_pid]).fetchall():
                assert not waiting.done()
        other.commit()
        assert waiting.result() == 3
    check_carried_over(old)


def die_at(nth: int, kind: str) -> None:
    """Have this process die before its nth step.

    A step is a statement, a change of the disk, or a request.
    """
    steps = count(1)

    def step(*_: Any) -> None:
        if next(steps) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            step()
            return function(*args, **options)

        return call

    patch = pytest.MonkeyPatch()  # never undone: the process ends with it
    if kind == "sqlite":
        connect = sqlite.connect  # type: ignore[attr-defined]

        def traced(*args: Any) -> Any:
            connection = connect(*args)
            connection.set_trace_callback(step)
            return connection

        patch.setattr(sqlite, "connect", traced)
    elif kind == "files":
        for name in ("rename", "replace", "fsync", "unlink", "link"):
            patch.setattr(os, name, before(getattr(os, name)))
    else:
        # private: sends the requests of an opening, each of which is a step
        sender: Any = postgres._ScriptDriver if kind == "postgres" else redis._AskDriver
        patch.setattr(sender, "send", before(sender.send))


def open_and_die(place: Place, nth: int) -> None:
    die_at(nth, place.kind)
    with open_with(place, TWO) as saver:
        assert value_of(saver, "t3") == 3


@pytest.mark.slow
def test_a_migration_killed_at_each_step_is_resumed(old: Place) -> None:
    """Each process gets one step further than the one before, until one finishes."""
    for nth in count(1):
        if old.kind == "redis":  # or each would wait until the lease of the dead one expires
            forget_lease(old)
        child = FORK.Process(target=open_and_die, args=(old, nth))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
    assert nth > 5
    check_carried_over(old)


def forget_lease(place: Place) -> None:
    from redis import Redis

    with Redis.from_url(place.url) as client:
        client.delete(f"{place.options['prefix']}:migrating:keel")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_the_lease_of_a_dead_process_expires(old: Place) -> None:
    child = FORK.Process(target=open_and_die, args=(old, 12))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    check_carried_over(old)


async def test_a_process_of_the_former_format_raises_newer_format(old: Place) -> None:
    with old.open() as former, old.open() as other:
        put(former, "warm")
        assert value_of(former, "t1") == 1
        assert (await other.aget_tuple({"configurable": {"thread_id": "t1"}})) is not None
        with open_with(old, ONE) as later:
            later.migrations()  # a check changes nothing
            assert value_of(former, "t1") == 1
            later.setup()
        with pytest.raises(NewerFormat, match=r"written in format 2 by a newer Keel; this one knows 1: upgrade"):
            put(former, "t1", 7, "00000002")
        with pytest.raises(NewerFormat):
            former.get_tuple({"configurable": {"thread_id": "t2"}})
        with pytest.raises(NewerFormat):
            await other.aget_tuple({"configurable": {"thread_id": "t3"}})
        if old.kind != "redis":  # there, a separate thread is created without a check of the others
            with pytest.raises(NewerFormat):
                put(former, "a new one", 7)
    for options in ({}, {"read_only": True}, {"auto_setup": False}):
        with old.open(**options) as saver, pytest.raises(NewerFormat):
            value_of(saver, "t1")
        with old.open(**options) as saver, pytest.raises(NewerFormat):
            await saver.aget_tuple({"configurable": {"thread_id": "t1"}})


async def test_without_permission_nothing_is_migrated_and_the_command_is_named(old: Place) -> None:
    for options in ({"read_only": True}, {"auto_setup": False}):
        with open_with(old, TWO, **options) as saver:
            for _ in range(2):
                with pytest.raises(NotSetUp, match=r"has format 1, this Keel needs 3, .*`keel schema --upgrade"):
                    value_of(saver, "t1")
            with pytest.raises(NotSetUp):
                await saver.aget_tuple({"configurable": {"thread_id": "t1"}})
            assert len(await saver.amigrations()) == 2
    with old.open() as saver:
        assert value_of(saver, "t1") == 1
    with open_with(old, TWO, auto_setup=False) as saver:
        await saver.asetup()
    check_carried_over(old)


def test_a_new_store_has_the_current_format(place: Place) -> None:
    with open_with(place, TWO) as saver:
        assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is None
        put(saver, "t")
        assert saver.info().format == 3
    with place.open() as saver, pytest.raises(NewerFormat):
        value_of(saver, "t")


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_the_printed_migration_can_be_run_by_hand(old: Place) -> None:
    registry = {old.kind: {2: TWO[old.kind][2]}}
    with open_with(old, registry, read_only=True) as saver:
        (text,) = saver.migrations()
    run(old, text)
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.DivisionByZero)):  # it was done
        run(old, text)
    with open_with(old, registry, auto_setup=False) as saver:
        assert value_of(saver, "t1") == 1
        assert saver.info().format == 2


def run(place: Place, script: str) -> None:
    """Run a script by hand."""
    if place.kind == "sqlite":
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
    else:
        with psycopg.connect(place.url, autocommit=True) as server:
            server.execute(script.encode())


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_role_that_may_not_change_tables_raises_not_set_up(old: Place) -> None:
    role = f"agent_{os.getpid()}"
    with psycopg.connect(old.url, autocommit=True) as connection, old.open() as saver:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        (where,) = connection.execute("SELECT current_schema()").fetchone() or ()
        try:
            connection.execute(f'GRANT USAGE ON SCHEMA "{where}" TO {role}; {saver.grants(role)}'.encode())
            url = psycopg.conninfo.make_conninfo(old.url, user=role)
            for said in ("permission denied for table keel_format", "must be owner of table keel_threads"):
                told = pytest.raises(NotSetUp, match=rf"may not change its tables \({said}\)")
                with open_with(Place("postgres", url), TWO) as agent, told:
                    value_of(agent, "t1")
                # Grants of an older Keel let the role write this table, too: it is then refused at the next one.
                connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON keel_format TO {role}")
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("place", ["files"], indirect=True)
def test_an_older_log_restored_by_git_is_named_and_migrated(old: Place, tmp_path: Path) -> None:
    root = Path(old.url.removeprefix("files:"))
    before = (root / "threads" / "t1" / "log.jsonl").read_bytes()
    with open_with(old, TWO) as saver:
        put(saver, "t0", 9, "00000002")
    (root / "threads" / "t1" / "log.jsonl").write_bytes(before)
    with open_with(old, TWO) as saver:
        with pytest.raises(NotSetUp, match=r"t1/log\.jsonl has format 1, this Keel needs 3"):
            value_of(saver, "t1")
        saver.setup()
        assert value_of(saver, "t1") == 1


@pytest.mark.parametrize("place", ["redis"], indirect=True)
async def test_threads_started_later_by_an_older_keel_are_migrated(old: Place) -> None:
    with old.open() as former:
        put(former, "warm")
        with open_with(old, TWO) as saver:
            value_of(saver, "t1")
        put(former, "late")
        with open_with(old, TWO) as saver:
            saver.setup()
        check_carried_over(old)
        put(former, "later")
        async with open_with(old, TWO) as saver:
            await saver.asetup()
        check_carried_over(old)


@pytest.mark.parametrize("place", ["files"], indirect=True)
def test_a_damaged_log_does_not_stop_migration_of_other_threads(old: Place) -> None:
    log = Path(old.url.removeprefix("files:")) / "threads" / "t1" / "log.jsonl"
    data = log.read_bytes()
    log.write_bytes(data[: len(data) // 2] + b"x" + data[len(data) // 2 :])
    with open_with(old, TWO) as saver:
        assert value_of(saver, "t2") == 2
        with pytest.raises(NotSetUp):
            value_of(saver, "t1")
    assert log.read_bytes()[:100] == data[:100]


@pytest.mark.parametrize("place", ["files"], indirect=True)
def test_a_thread_started_during_a_migration_is_undone(old: Place, monkeypatch: Any) -> None:
    """The older Keel has read the mark before; the newer one has listed the threads."""
    with old.open() as former:
        value_of(former, "t1")
        driver: FileDriver = former._files  # type: ignore[attr-defined]  # private: to stop between two of its steps
        driver.mark.write(2, begun_from=1)
        with pytest.raises(NewerFormat):
            put(former, "late")
        assert not (driver.root / "threads" / "late").exists()


@pytest.mark.parametrize("place", ["sqlite", "files", "postgres"], indirect=True)  # a URL of Redis names no prefix
def test_the_schema_upgrade_command(old: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    url = old.url
    done = keel("schema", "--url", url, "--upgrade", "--print")
    assert (done.stdout, "has the current format" in done.stderr) == ("", True)
    monkeypatch.setattr(SAVERS[old.kind], "_registry", TWO[old.kind])
    printed = keel("schema", "--url", url, "--upgrade", "--print").stdout
    with open_with(old, TWO, read_only=True) as later:
        assert printed == "\n".join(later.migrations()) + "\n"
    assert keel_json("info", "--url", url, status=1)["error"]["code"] == "not_set_up"
    assert "2 migrations done" in keel("schema", "--url", url, "--upgrade").stdout
    assert keel_json("schema", "--url", url, "--upgrade") == {"ddl": "", "done": True}
    check_carried_over(old)


def test_a_missing_store_has_no_migrations(place: Place) -> None:
    with place.open() as saver, pytest.raises(NotFound):
        saver.migrations()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_a_tiered_saver_migrates_its_cold_store(old: Place) -> None:
    with TieredSaver(hot=MemorySaver(), cold=open_with(old, TWO, auto_setup=False)) as saver:
        assert len(saver.migrations()) == len(await saver.amigrations()) == 2
        saver.setup()
        assert saver.migrations() == []
        assert value_of(saver, "t1") == 1


def test_migrations_have_consecutive_numbers() -> None:
    assert [number for number, _ in find_due({3: "b", 2: "a"}, 1, "here")] == [2, 3]
    with pytest.raises(KeyError):
        find_due({3: "b"}, 1, "here")
    with pytest.raises(NewerFormat, match="here: written in format 4 by a newer Keel; this one knows 3"):
        find_due({3: "b", 2: "a"}, 4, "here")
