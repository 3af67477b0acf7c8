"""One store, many processes, threads and loops, on every backend.

The tests start, fork, take turns, and cancel.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.checkpoints import METADATA, aput, checkpoint_of, config_for, put, value_of
from support.places import Place
from support.process_children import exit_code, forked
from support.races import context

from langgraph_keel import CheckpointConflict, KeelSaver


@pytest.fixture
def saver(place: Place) -> Iterator[KeelSaver]:
    with place.open() as saver:
        yield saver


def set_up(place: Place, gate: Any) -> None:
    gate.wait(60)
    with place.open() as saver:
        saver.setup()
        put(saver, str(os.getpid()))


@pytest.mark.slow
def test_sixteen_processes_set_up_a_new_store_concurrently(place: Place) -> None:
    mp = context()
    gate = mp.Barrier(16)
    children = [mp.Process(target=set_up, args=(place, gate)) for _ in range(16)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 16
    with place.open() as saver:
        assert {info.thread_id for info in saver.threads()} == {str(child.pid) for child in children}
    place.check()


def write_until(place: Place, who: int, gate: Any, told: Any) -> None:
    count = 0
    with place.open() as saver:
        saver.setup()
        gate.wait(60)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            count += 1
            put(saver, f"thread {who}", checkpoint_id=f"{count:08}")
    told.put((who, count))


@pytest.mark.slow
def test_no_process_starves(place: Place) -> None:
    mp = context()
    gate, told = mp.Barrier(6), mp.Queue()
    children = [mp.Process(target=write_until, args=(place, who, gate, told)) for who in range(6)]
    for child in children:
        child.start()
    writes = dict(told.get(timeout=60) for _ in children)
    for child in children:
        child.join(60)
    assert min(writes.values()) >= sum(writes.values()) * 0.03
    with place.open() as saver:
        assert {info.thread_id: info.checkpoints for info in saver.threads()} == {
            f"thread {who}": count for who, count in writes.items()
        }


# -- forks -------------------------------------------------------------------------------------------------------------


def in_child(saver: KeelSaver) -> None:
    assert value_of(saver, "parent") == 1
    put(saver, "child", value=2)
    assert value_of(saver, "child") == 2


def in_child_with_a_loop(saver: KeelSaver) -> None:
    async def main() -> None:
        found = await asyncio.wait_for(saver.aget_tuple(config_for("parent")), 15)
        assert found
        await asyncio.wait_for(aput(saver, "child", 2), 15)

    asyncio.run(main())


@pytest.mark.parametrize("work", [in_child, in_child_with_a_loop])
def test_a_saver_works_after_a_fork(saver: KeelSaver, place: Place, work: Callable[[KeelSaver], None]) -> None:
    put(saver, "parent")
    assert value_of(saver, "parent") == 1
    child = forked(work, saver)
    put(saver, "parent", 1, "00000002")
    assert exit_code(child) == 0
    put(saver, "parent", 3, "00000003")
    assert value_of(saver, "parent") == 3
    assert value_of(saver, "child") == 2
    place.check()


def write_on(saver: KeelSaver, told: int, go: int) -> None:
    put(saver, "child", checkpoint_id="00000001")
    os.write(told, b"x")
    os.read(go, 1)
    for number in range(2, 30):
        put(saver, "child", number, f"{number:08}")
    assert value_of(saver, "child") == 29


@pytest.mark.parametrize("which", ["inherited", "opened in the child"])
def test_a_childs_writes_survive_the_close_of_its_parent(place: Place, which: str) -> None:
    """SQLite would let the parent unlink the child's WAL: locks do not survive a fork."""
    saver = place.open()
    put(saver, "parent")
    assert value_of(saver, "parent") == 1
    (told, tell), (go, let_go) = os.pipe(), os.pipe()
    child = forked(lambda: write_on(saver if which == "inherited" else place.open(), tell, go))
    os.read(told, 1)
    saver.close()
    os.write(let_go, b"x")
    assert exit_code(child) == 0
    with place.open() as again:
        assert value_of(again, "child") == 29
        assert len(list(again.list(config_for("child")))) == 29
    place.check()


@pytest.mark.slow
def test_forks_during_writes_of_threads(saver: KeelSaver, place: Place) -> None:
    """Children are forked at any moment, even while the parent's writer has its locks."""
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stop.is_set():
            put(saver, "parent", checkpoint_id=f"{len(written):08}")
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
    place.check()


# -- threads and loops -------------------------------------------------------------------------------------------------


async def test_one_loop_serves_sixty_four_threads_concurrently(saver: KeelSaver) -> None:
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


async def _threads(saver: KeelSaver) -> Any:
    for info in await asyncio.to_thread(lambda: list(saver.threads())):
        yield info


def test_sync_calls_from_many_threads(saver: KeelSaver) -> None:
    def chat(number: int) -> Any:
        for step in range(5):
            put(saver, f"thread {number}", [number] * step, f"{step:08}")
            assert value_of(saver, f"thread {number}") == [number] * step
        return value_of(saver, f"thread {number}")

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(chat, range(64))) == [[number] * 4 for number in range(64)]


def test_concurrent_appends_to_one_thread_lose_nothing(saver: KeelSaver) -> None:
    """Each thread reads the head and appends, and retries after a conflict."""
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


async def test_a_cancelled_put_leaves_the_saver_usable(saver: KeelSaver) -> None:
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
    # A cancelled write was stored whole or not at all.
    listed = [found async for found in saver.alist(None)]
    assert {found.checkpoint["channel_values"]["v"] for found in listed} == {1}


async def test_a_cancelled_read_leaves_the_saver_usable(saver: KeelSaver) -> None:
    await aput(saver, "t")
    for _ in range(20):
        reading = asyncio.create_task(saver.aget_tuple(config_for("t")))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert (await asyncio.wait_for(saver.aget_tuple(config_for("t")), 20)) is not None


def test_a_with_block_in_a_coroutine_leaves_nothing_open(place: Place) -> None:
    """Plain `with` instead of `async with`: closing must be complete without waiting."""

    async def main() -> None:
        with place.open() as saver:
            await asyncio.gather(*(aput(saver, f"thread {number}") for number in range(5)))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(warning.message) for warning in said] == []


def test_two_loops_in_two_threads_share_a_saver(saver: KeelSaver) -> None:
    async def chat(name: str) -> int:
        await asyncio.gather(*(aput(saver, f"{name} {number}") for number in range(50)))
        found = await asyncio.gather(*(saver.aget_tuple(config_for(f"{name} {n}")) for n in range(50)))
        return sum(one is not None for one in found)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda name: asyncio.run(chat(name)), ["a", "b"])) == [50, 50]
