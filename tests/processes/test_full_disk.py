"""On a full disk, writes fail, and pruning, deleting and reclaiming still work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.processes.full_disks import fill_up, small_disk

from langgraph_keel import FileSaver, KeelSaver, Keyring, LocalKey, Retention, SqliteSaver, StoreFull
from langgraph_keel.testing.rig import at, checkpoint_of

pytestmark = pytest.mark.slow

MEGABYTES = 24
THREADS = 8


def put(saver: KeelSaver, thread: str, number: int, nbytes: int) -> None:
    before = saver.get_tuple(at(thread))
    values = {"n": random.Random(number).randbytes(nbytes)}  # it does not compress
    checkpoint: Any = checkpoint_of(f"{number:08}", values)
    config = before.config if before else at(thread)
    saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"n": 1})


def fill(saver: KeelSaver, nbytes: int, puts: int | None = None) -> int:
    """Write to a few threads in turn, up to `puts` times; return the count.

    A full disk ends it, too.
    """
    for number in count():
        if number == puts:
            return number
        try:
            put(saver, f"t{number % THREADS}", number, nbytes)
        except StoreFull:
            return number
    raise AssertionError


def latest(saver: KeelSaver) -> dict[str, Any]:
    found = {f"t{each}": saver.get_tuple(at(f"t{each}")) for each in range(THREADS)}
    return {name: each and (each.checkpoint, each.metadata) for name, each in found.items()}


@pytest.fixture(params=["by threads", "by another program", "by another program, the store closed"])
def full(request: pytest.FixtureRequest) -> Iterator[tuple[Path, SqliteSaver]]:
    with small_disk(MEGABYTES, "under SQLite") as disk:
        saver = SqliteSaver(disk / "agent.db")
        if request.param == "by threads":
            assert fill(saver, 20_000) > 100
        else:
            fill(saver, 20_000, 300)
            if "closed" in request.param:
                saver.close()
                saver = SqliteSaver(disk / "agent.db")
            fill_up(disk)
        yield disk, saver
        saver.close()


def test_sqlite_prunes_and_deletes_on_a_full_disk(
    full: tuple[Path, SqliteSaver], caplog: pytest.LogCaptureFixture
) -> None:
    disk, saver = full
    assert fill(saver, 200_000) < 30  # the log has some room that it may use
    before = latest(saver)
    with pytest.raises(StoreFull):  # a checkpoint may not use the reserve
        put(saver, "t0", 1000, 200_000)
    assert saver.prune(["t1"], strategy=Retention(last=1)).removed > 10
    assert "the disk is full" in caplog.text
    saver.delete_thread("t2")
    asyncio.run(saver.adelete_thread("t3"))
    assert asyncio.run(saver.retention.asweep(Retention(threads="t4", last=1))).removed > 10
    assert "free and will be used again" in saver.retention.reclaim_space().note
    assert latest(saver) == {**before, "t2": None, "t3": None}
    assert fill(saver, 20_000, 100) == 100  # as much as was removed can be stored again
    assert list(saver.check()) == []
    kept = latest(saver)
    saver.close()
    with SqliteSaver(disk / "agent.db") as again:
        assert latest(again) == kept


def test_sqlite_reclaims_on_a_full_disk(full: tuple[Path, SqliteSaver]) -> None:
    disk, saver = full
    before = latest(saver)
    saver.retention.reclaim_space()
    assert latest(saver) == before
    for thread in range(1, THREADS):
        saver.delete_thread(f"t{thread}")
    size = (disk / "agent.db").stat().st_size
    assert "VACUUM" in saver.retention.reclaim_space(full=True).note  # there is room for the remaining data
    assert (disk / "agent.db").stat().st_size < size / 2


def test_the_reserve_is_restored_after_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(MEGABYTES, "under SQLite") as disk, SqliteSaver(disk / "agent.db") as saver:
        lock = disk / "agent.db.lock"
        fill(saver, 20_000, 100)
        assert lock.stat().st_size == 0  # nothing is reserved for a small database
        fill(saver, 20_000, 300)
        size = lock.stat().st_size
        assert size > 1 << 20
        for _ in range(2):
            other = fill_up(disk)
            fill(saver, 200_000)
            saver.delete_thread("t0")
            assert lock.stat().st_size == 0
            other.unlink()
            put(saver, "t0", 0, 10)
            assert lock.stat().st_size == size
    assert caplog.text.count("the disk is full") == 2


def test_files_prune_and_delete_on_a_full_disk() -> None:
    with small_disk(MEGABYTES, "under files") as disk, FileSaver(disk / "agents") as saver:
        assert fill(saver, 20_000) > 100
        before = latest(saver)
        with pytest.raises(StoreFull):
            saver.prune(["t1"], strategy=Retention(last=1))  # a log is rewritten, which takes room for the kept part
        assert latest(saver) == before
        saver.delete_thread("t2")
        (pruned,) = saver.prune(["t1"], strategy=Retention(last=1)).threads
        assert pruned.kept == 1
        saver.retention.reclaim_space(full=True)
        assert latest(saver) == {**before, "t2": None}
        assert fill(saver, 20_000, 20) == 20
        assert list(saver.check()) == []


def test_a_tenant_with_a_key_is_deleted_on_a_full_disk() -> None:
    with small_disk(MEGABYTES, "under SQLite") as disk:
        keyring = Keyring(LocalKey("a", bytes(range(32))))
        with SqliteSaver(disk / "agent.db", encryption=keyring) as saver:
            acme, other = saver.for_tenant("acme"), saver.for_tenant("other")
            put(other, "t0", 0, 20_000)
            assert fill(acme, 20_000) > 100
            kept = latest(other)
            acme.delete_thread("t0")
            (problem,) = acme.retention.erase(user_id="ada").problems
            assert "not cleaned yet" in problem  # there is no room to rewrite the remaining data
            receipt = saver.tenants.delete("acme")
            assert (receipt.threads, receipt.problems) == (THREADS - 1, ())
            assert (list(acme.threads()), latest(other)) == ([], kept)
