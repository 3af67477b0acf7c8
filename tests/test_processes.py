"""One file, many processes and threads: starting, forking, taking turns, and committing together."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from process_children import exit_code, forked
from test_encoding import checkpoint_of, config_for
from test_processes_race import context, integrity

from langgraph_keel import CheckpointConflict, SqliteSaver, UnstorableValue
from langgraph_keel.sqlite import driver as sqlite_driver
from langgraph_keel.sqlite.rows import Work

METADATA: Any = {"source": "loop", "step": 1, "parents": {}}


def put(saver: SqliteSaver, thread: str, checkpoint_id: str = "00000001", value: Any = 1) -> RunnableConfig:
    return saver.put(config_for(thread), checkpoint_of(checkpoint_id, {"v": value}), METADATA, {})


async def aput(saver: SqliteSaver, thread: str, value: Any = 1) -> RunnableConfig:
    return await saver.aput(config_for(thread), checkpoint_of("00000001", {"v": value}), METADATA, {})


def value_of(saver: SqliteSaver, thread: str) -> Any:
    found = saver.get_tuple(config_for(thread))
    return found and found.checkpoint["channel_values"]["v"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keel.db"


@pytest.fixture
def saver(path: Path) -> Iterator[SqliteSaver]:
    with SqliteSaver(path, timeout=20) as saver:
        yield saver


def set_up(path: Path, gate: Any) -> None:
    gate.wait(60)
    with SqliteSaver(path) as saver:
        saver.setup()
        put(saver, str(os.getpid()))


def test_sixteen_processes_set_up_a_new_file_at_once(path: Path) -> None:
    mp = context()
    gate = mp.Barrier(16)
    children = [mp.Process(target=set_up, args=(path, gate)) for _ in range(16)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 16
    with SqliteSaver(path) as saver:
        assert {info.thread_id for info in saver.threads()} == {str(child.pid) for child in children}
    assert integrity(path) == "ok"


def write_until(path: Path, who: int, gate: Any, told: Any) -> None:
    count = 0
    with SqliteSaver(path) as saver:
        saver.setup()
        gate.wait(60)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            count += 1
            put(saver, f"thread {who}", f"{count:08}")
    told.put((who, count))


def test_no_process_starves(path: Path) -> None:
    mp = context()
    gate, told = mp.Barrier(6), mp.Queue()
    children = [mp.Process(target=write_until, args=(path, who, gate, told)) for who in range(6)]
    for child in children:
        child.start()
    writes = dict(told.get(timeout=60) for _ in children)
    for child in children:
        child.join(60)
    assert min(writes.values()) >= sum(writes.values()) * 0.03
    with SqliteSaver(path) as saver:
        assert {info.thread_id: info.checkpoints for info in saver.threads()} == {
            f"thread {who}": count for who, count in writes.items()
        }


# -- forks -------------------------------------------------------------------------------------------------------------


def in_child(saver: SqliteSaver) -> None:
    assert value_of(saver, "parent") == 1
    put(saver, "child", value=2)
    assert value_of(saver, "child") == 2


def in_child_with_a_loop(saver: SqliteSaver) -> None:
    async def main() -> None:
        found = await asyncio.wait_for(saver.aget_tuple(config_for("parent")), 15)
        assert found
        await asyncio.wait_for(aput(saver, "child", 2), 15)

    asyncio.run(main())


@pytest.mark.parametrize("work", [in_child, in_child_with_a_loop])
def test_a_saver_outlives_a_fork(saver: SqliteSaver, path: Path, work: Callable[[SqliteSaver], None]) -> None:
    put(saver, "parent")
    assert value_of(saver, "parent") == 1
    child = forked(work, saver)
    put(saver, "parent", "00000002", 1)
    assert exit_code(child) == 0
    put(saver, "parent", "00000003", 3)
    assert value_of(saver, "parent") == 3
    assert value_of(saver, "child") == 2
    assert integrity(path) == "ok"


def write_on(saver: SqliteSaver, told: int, go: int) -> None:
    put(saver, "child", "00000001")
    os.write(told, b"x")
    os.read(go, 1)
    for number in range(2, 30):
        put(saver, "child", f"{number:08}", number)
    assert value_of(saver, "child") == 29


@pytest.mark.parametrize("which", ["inherited", "opened in the child"])
def test_a_child_keeps_what_it_wrote_after_its_parent_closed(path: Path, which: str) -> None:
    """SQLite would let the parent unlink the WAL that the child writes to: locks do not cross a fork."""
    saver = SqliteSaver(path)
    put(saver, "parent")
    assert value_of(saver, "parent") == 1
    (told, tell), (go, let_go) = os.pipe(), os.pipe()
    child = forked(lambda: write_on(saver if which == "inherited" else SqliteSaver(path), tell, go))
    os.read(told, 1)
    saver.close()
    os.write(let_go, b"x")
    assert exit_code(child) == 0
    with SqliteSaver(path) as again:
        assert value_of(again, "child") == 29
        assert len(list(again.list(config_for("child")))) == 29
    assert integrity(path) == "ok"


def test_forking_while_threads_write(saver: SqliteSaver, path: Path) -> None:
    """Children are made at any moment, also while the parent's writer holds its locks."""
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stop.is_set():
            put(saver, "parent", f"{len(written):08}")
            written.append(1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        codes = [exit_code(forked(put, saver, f"child {number}")) for number in range(20)]
    finally:
        stop.set()
        writer.join()
    assert codes == [0] * 20
    threads = {info.thread_id: info.checkpoints for info in saver.threads()}
    assert threads == {"parent": len(written)} | {f"child {number}": 1 for number in range(20)}
    assert integrity(path) == "ok"


# -- threads and loops -------------------------------------------------------------------------------------------------


async def test_sixty_four_threads_at_once_through_one_loop(saver: SqliteSaver) -> None:
    async def chat(thread: str) -> list[int]:
        config, seen = config_for(thread), []
        for step in range(5):
            config = await saver.aput(config, checkpoint_of(f"{step:08}", {"v": [thread] * step}), METADATA, {})
            await saver.aput_writes(config, [("v", step)], f"task{step}")
            found = await saver.aget_tuple(config_for(thread))
            assert found
            assert found.checkpoint["channel_values"]["v"] == [thread] * step
            seen.append(found.pending_writes[0][2])  # type: ignore[index]
        return seen

    assert await asyncio.gather(*(chat(str(n)) for n in range(64))) == [[0, 1, 2, 3, 4]] * 64
    assert {info.checkpoints async for info in _threads(saver)} == {5}


async def _threads(saver: SqliteSaver) -> Any:
    for info in await asyncio.to_thread(lambda: list(saver.threads())):
        yield info


def test_sync_calls_from_many_threads(saver: SqliteSaver) -> None:
    def chat(number: int) -> Any:
        for step in range(5):
            put(saver, f"thread {number}", f"{step:08}", [number] * step)
            assert value_of(saver, f"thread {number}") == [number] * step
        return value_of(saver, f"thread {number}")

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(chat, range(64))) == [[number] * 4 for number in range(64)]


def test_threads_that_share_one_thread_lose_nothing(saver: SqliteSaver) -> None:
    """Each reads the head and appends; who is told that it lost tries again."""
    config = put(saver, "shared", value=[])

    def append(number: int) -> int:
        for attempt in range(1000):
            found = saver.get_tuple({"configurable": {"thread_id": "shared"}})
            assert found
            marks = [*found.checkpoint["channel_values"]["v"], number]
            try:
                saver.put(found.config, checkpoint_of(f"{number}-{attempt}", {"v": marks}), METADATA, {})
            except CheckpointConflict:
                continue
            return attempt
        raise AssertionError("never won")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(100)))
    assert config
    assert sorted(value_of(saver, "shared")) == list(range(100))


async def test_a_cancelled_put_leaves_the_saver_usable(saver: SqliteSaver) -> None:
    saver.setup()
    puts = [asyncio.create_task(aput(saver, f"thread {number}")) for number in range(40)]
    await asyncio.sleep(0)
    for task in puts[::2]:
        task.cancel()
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert all(isinstance(result, dict) for result in results[1::2])
    for number in range(1, 40, 2):
        assert await saver.aget_tuple(config_for(f"thread {number}"))
    assert await aput(saver, "after")
    # What was cancelled was stored whole or not at all.
    listed = [found async for found in saver.alist(None)]
    assert {found.checkpoint["channel_values"]["v"] for found in listed} == {1}


async def test_a_cancelled_read_leaves_the_saver_usable(saver: SqliteSaver) -> None:
    await aput(saver, "t")
    for _ in range(20):
        reading = asyncio.create_task(saver.aget_tuple(config_for("t")))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert (await asyncio.wait_for(saver.aget_tuple(config_for("t")), 20)) is not None


def test_two_loops_in_two_threads(saver: SqliteSaver) -> None:
    async def chat(name: str) -> int:
        await asyncio.gather(*(aput(saver, f"{name} {number}") for number in range(50)))
        found = await asyncio.gather(*(saver.aget_tuple(config_for(f"{name} {n}")) for n in range(50)))
        return sum(one is not None for one in found)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda name: asyncio.run(chat(name)), ["a", "b"])) == [50, 50]


async def test_a_loop_is_not_blocked_by_a_put(saver: SqliteSaver, path: Path) -> None:
    """While somebody else holds the database, the loop goes on."""
    import sqlite3

    saver.setup()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(aput(saver, "t"))
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert not waiting.done()
    blocker.execute("ROLLBACK")
    blocker.close()
    assert await asyncio.wait_for(waiting, 20)


# -- committing together -----------------------------------------------------------------------------------------------


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each group that was committed, from now on."""
    sizes: list[int] = []
    commit: Any = sqlite_driver._commit

    def counted(connection: Any, path: str, group: list[Any]) -> Any:
        sizes.append(len(group))
        return commit(connection, path, group)

    monkeypatch.setattr(sqlite_driver, "_commit", counted)
    return sizes


async def test_concurrent_puts_share_commits(saver: SqliteSaver, groups: list[int]) -> None:
    saver.setup()
    await asyncio.gather(*(aput(saver, f"thread {number}") for number in range(64)))
    assert sum(groups) == 64
    assert len(groups) < 32


async def test_one_failing_request_does_not_fail_its_group(saver: SqliteSaver, groups: list[int]) -> None:
    """A conflict, a request that raises and one that breaks a constraint, among others in one transaction."""
    first = await aput(saver, "shared")
    held = Held(saver)
    following: RunnableConfig = {"configurable": {**first["configurable"]}}
    calls = [saver.aput(following, checkpoint_of(f"rival {n}", {"v": n}), METADATA, {}) for n in range(3)]
    calls += [aput(saver, f"thread {number}") for number in range(10)]
    tasks = [asyncio.create_task(call) for call in calls]
    tasks.insert(5, asyncio.create_task(saver._arun(_broken())))
    await asyncio.sleep(0.05)
    del groups[:]
    held.release()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert max(groups) >= 14
    failed = [type(result).__name__ for result in results if isinstance(result, BaseException)]
    assert sorted(failed) == ["CheckpointConflict", "CheckpointConflict", "StoreError"]
    assert value_of(saver, "shared") == 0
    assert [value_of(saver, f"thread {number}") for number in range(10)] == [1] * 10
    assert value_of(saver, "half") is None


def _broken() -> Any:
    """A request that writes something and then fails."""

    def work(execute: Any) -> None:
        execute("INSERT INTO threads (name) VALUES ('half')")
        execute("INSERT INTO threads (name) VALUES ('half')")

    yield Work(work, writes=True)


class Held:
    """Keeps the writing thread busy, so that what is sent meanwhile becomes one group."""

    def __init__(self, saver: SqliteSaver) -> None:
        self.begun: Queue[int] = Queue()
        self.release_it = threading.Event()
        self.thread = threading.Thread(target=saver._sqlite.send, args=(Work(self.wait, writes=True),))
        self.thread.start()
        self.begun.get(timeout=20)

    def wait(self, execute: Any) -> None:
        self.begun.put(1)
        self.release_it.wait(20)

    def release(self) -> None:
        self.release_it.set()
        self.thread.join()


async def test_a_value_that_cannot_be_stored_does_not_reach_the_group(saver: SqliteSaver) -> None:
    results = await asyncio.gather(
        *(aput(saver, f"thread {n}", object() if n == 5 else n) for n in range(10)), return_exceptions=True
    )
    assert [type(result) for result in results if isinstance(result, BaseException)] == [UnstorableValue]
    assert Counter([value_of(saver, f"thread {n}") for n in range(10)]) == Counter([*range(5), None, *range(6, 10)])
