"""The board between processes: no lost updates, late writes or missed changes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.feed_children import cursor_of
from support.places import Place
from support.process_children import exit_code, forked
from support.store.board_children import BOARD, TTL, count, follow_until, hold, last_in, take, write_until
from support.tiers import sized

from langgraph_keel import LockTaken

LIMIT = 60.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_concurrent_processes_lose_no_update(place: Place) -> None:
    processes, rounds = sized(2, 4, 8), sized(10, 100, 1000)
    with place.open() as saver:
        saver.setup()
    children = [forked(count, place, rounds, number % 2 == 1) for number in range(processes)]
    assert [exit_code(child) for child in children] == [0] * processes
    with place.open() as saver:
        found = saver.store().get(BOARD, "n")
        assert found
        assert found.value == {"n": processes * rounds}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_holder_paused_beyond_its_lease_is_refused(place: Place) -> None:
    rounds = sized(1, 3, 50)
    with place.open() as saver:
        saver.setup()
    ours, theirs = multiprocessing.Pipe()
    child = forked(hold, place, rounds, theirs)
    try:
        with place.open() as saver:
            board = saver.store()
            for number in range(rounds):
                assert ours.poll(LIMIT)
                fence = ours.recv()
                with pytest.raises(LockTaken, match=str(child)), board.lock("desk", timeout=0):
                    pass
                os.kill(child, signal.SIGSTOP)
                with board.lock("desk", ttl=TTL, timeout=LIMIT) as lock:
                    assert lock.fence > fence
                    lock.put(BOARD, "x", {"ours": number})
                    if number % 3 == 0:  # while the other process has the lock, or later
                        go_on(child, ours, fence)
                if number % 3:
                    go_on(child, ours, fence)
                found = board.get(BOARD, "x")
                assert found
                assert found.value == {"ours": number}
    finally:
        os.kill(child, signal.SIGCONT)
        theirs.close()
        ours.close()
    assert exit_code(child) == 0


def go_on(child: int, ours: Any, fence: int) -> None:
    """Let the holder continue, and check that its write is refused."""
    os.kill(child, signal.SIGCONT)
    ours.send("go on")
    assert ours.poll(LIMIT)
    assert ours.recv() == fence


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_followers_see_the_last_value_and_each_deletion(place: Place, tmp_path: Path) -> None:
    """Four writers, and four followers that continue from their cursors."""
    kills, random, ctx = sized(2, 8, 200), Random(7), multiprocessing.get_context("fork")
    with place.open() as saver:
        saver.setup()
    stop, begun = ctx.Event(), [ctx.Event() for _ in range(4)]
    logs = [tmp_path / f"log{number}" for number in range(4)]
    writers = [forked(write_until, place, f"w{number}", begun[number], stop) for number in range(4)]
    following: dict[int, tuple[int, Any]] = {}

    def begin(number: int) -> None:
        ready = ctx.Event()
        following[number] = forked(follow_until, place, logs[number], cursor_of(logs[number]), ready), ready

    try:
        for number in range(4):
            begin(number)
        for kill in range(kills):
            child, ready = following[kill % 4]
            assert ready.wait(LIMIT)  # it has reported a change in this life
            stop.wait(random.random() / 20)  # kill it at a random moment
            os.kill(child, signal.SIGKILL)
            assert exit_code(child) == -signal.SIGKILL
            begin(kill % 4)
        assert all(each.wait(LIMIT) for each in begun)
        assert all(ready.wait(LIMIT) for _, ready in following.values())
    finally:
        stop.set()
        for child, _ in following.values():
            os.kill(child, signal.SIGKILL)
            exit_code(child)
    assert [exit_code(child) for child in writers] == [0] * 4
    with place.open() as saver:
        board = saver.store()
        there = {item.key: item.value for item in board.search(BOARD, limit=100)}
        assert {"w01", "w11", "w21", "w31"} <= {*there}
        for log in logs:
            feed = board.watch(BOARD, cursor_of(log).read_text(), timeout=0)
            for change in feed:
                take(change, log)
            seen = last_in(log)
            assert {key: value for key, value in seen.items() if value is not None} == there
            assert [*board.watch(BOARD, feed.cursor, timeout=0)] == []
