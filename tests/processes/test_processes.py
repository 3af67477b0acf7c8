"""One SQLite file, many writers: a loop that does not wait, and group commits."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from support.checkpoints import METADATA, aput, checkpoint_of, value_of
from support.saver_parts import driver_of

from langgraph_keel import SqliteSaver, UnstorableValue
from langgraph_keel.backends.sqlite import driver as sqlite_driver
from langgraph_keel.backends.sqlite.driver import Job
from langgraph_keel.backends.sqlite.entries import Work


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keel.db"


@pytest.fixture
def saver(path: Path) -> Iterator[SqliteSaver]:
    with SqliteSaver(path, timeout=20) as saver:
        yield saver


async def test_a_waiting_put_does_not_block_the_loop(saver: SqliteSaver, path: Path) -> None:
    """While another connection holds the database, the loop keeps running."""
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


# -- group commits -----------------------------------------------------------------------------------------------------


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that are committed from now on."""
    sizes: list[int] = []
    commit: Any = sqlite_driver._commit  # private: the only way to be killed in the middle of it

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
    """The transaction has a conflict, a request that raises, and a broken constraint."""
    first = await aput(saver, "shared")
    held = Held(saver)
    following: RunnableConfig = {"configurable": {**first["configurable"]}}
    calls = [saver.aput(following, checkpoint_of(f"rival {n}", {"v": n}), METADATA, {}) for n in range(3)]
    calls += [aput(saver, f"thread {number}") for number in range(10)]
    tasks = [asyncio.create_task(call) for call in calls]
    tasks.insert(5, asyncio.create_task(saver.engine.arun(_broken())))
    async with asyncio.timeout(20):
        while held.waiting() < 14:
            await asyncio.sleep(0.01)
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
    """Return a request that writes and then fails."""

    def work(execute: Any) -> None:
        execute("INSERT INTO threads (name) VALUES ('half')")
        execute("INSERT INTO threads (name) VALUES ('half')")

    yield Work(work, writes=True)


class Held:
    """Keeps the writing thread busy, so that the next requests become one group."""

    def __init__(self, saver: SqliteSaver) -> None:
        self.saver = saver
        self.begun: Queue[int] = Queue()
        self.release_it = threading.Event()
        # Not by `send`, which runs the request in the calling thread: the writing thread could take the first few.
        self.job = Job(Work(self.wait, writes=True))
        # private: the queue of the writing thread is not visible from outside
        driver_of(saver)._jobs.put(self.job)
        self.begun.get(timeout=120)

    def wait(self, execute: Any) -> None:
        self.begun.put(1)
        self.release_it.wait(20)

    def waiting(self) -> int:
        """Return the number of requests that wait for the writing thread."""
        # private: the queue of the writing thread is not visible from outside
        return int(driver_of(self.saver)._jobs.qsize())

    def release(self) -> None:
        self.release_it.set()
        assert self.job.wait(20)


async def test_an_unstorable_value_does_not_fail_its_group(saver: SqliteSaver) -> None:
    results = await asyncio.gather(
        *(aput(saver, f"thread {n}", object() if n == 5 else n) for n in range(10)), return_exceptions=True
    )
    assert [type(result) for result in results if isinstance(result, BaseException)] == [UnstorableValue]
    assert Counter([value_of(saver, f"thread {n}") for n in range(10)]) == Counter([*range(5), None, *range(6, 10)])
