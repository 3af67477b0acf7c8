"""`kill -9` at random moments loses no acknowledged write, and the run resumes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from support.places import Place
from support.process_children import (
    digest_of,
    grow_and_report,
    growing_graph,
    run_config,
    writes_digest,
)
from support.races import context
from support.tiers import sized

from langgraph_keel import KeelSaver

# Lives of one client, each killed at another moment. SQLite's clients write by themselves, so the moment of a kill may
# be any of their system calls. A server only sees that the connection of a killed client ends, between or during
# requests; `test_history_runs.py` and `test_server_faults.py` test that at every possible place.
KILLS = sized(
    {"sqlite": 30, "files": 30, "postgres": 12, "redis": 12},
    {"sqlite": 30, "files": 30, "postgres": 12, "redis": 12},
    {"sqlite": 200, "files": 200, "postgres": 60, "redis": 60},
)
SEED = random.SystemRandom().randrange(1 << 32)


def lines_of(pipe: Connection) -> list[list[str]]:
    """Return the complete lines that the child wrote before it died."""
    data = b""
    while part := os.read(pipe.fileno(), 1 << 16):
        data += part
    *whole, _ = data.decode().split("\n")
    return [line.split() for line in whole]


def one_life(place: Place, chance: random.Random) -> list[list[str]]:
    """Let a process run for a while, kill it, and return its acknowledged writes."""
    mp = context()
    reading, writing = mp.Pipe(duplex=False)
    child = mp.Process(target=grow_and_report, args=(place, writing))
    child.start()
    writing.close()
    if chance.random() < 0.8:
        reading.poll(30)  # most are killed at work, some while they start or resume
    time.sleep(chance.random() * 0.05)
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    lines = lines_of(reading)
    reading.close()
    child.close()
    return lines


def check_put(found: CheckpointTuple, digest: str) -> None:
    assert digest_of(sorted(found.checkpoint["channel_values"].items())) == digest


def check_writes(found: CheckpointTuple, task: str, digest: str) -> None:
    writes = [(channel, value) for owner, channel, value in found.pending_writes or () if owner == task]
    assert writes_digest(writes) == digest


def check(saver: KeelSaver, acknowledged: Sequence[Sequence[str]]) -> None:
    for what, checkpoint_id, *rest in acknowledged:
        config = {"configurable": {"thread_id": "growing", "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}
        found = saver.get_tuple(config)  # type: ignore[arg-type]
        if what == "put":
            assert found, f"the acknowledged checkpoint {checkpoint_id} is gone"
            check_put(found, *rest)
        elif found:  # its checkpoint may not have been stored yet when the process died
            check_writes(found, *rest)


def resume(saver: KeelSaver) -> None:
    """Run one more round; no step may be repeated or skipped."""
    graph, config = growing_graph(saver), run_config("growing")
    before = saver.get_tuple(config)  # not `get_state`, which includes the writes of the last step
    if before is None:
        return  # killed before the first checkpoint
    number = before.checkpoint["channel_values"].get("round", 0)
    after = graph.invoke(None, config, interrupt_after=["act"])
    assert after["round"] == number + 1
    ids = [message.id for message in after["messages"]]
    rounds = range(number + 1)[-20:]
    assert ids[-2 * len(rounds) :] == [f"{what}-{n}" for n in rounds for what in ("think", "act")]
    assert after["notes"][f"note{number % 60}"]["round"] == number


@pytest.mark.slow
def test_kills_lose_nothing(place: Place) -> None:
    chance, kills = random.Random(SEED), KILLS[place.kind]
    everything: list[list[str]] = []
    alive = 0
    for _ in range(kills):
        said = one_life(place, chance)
        alive += bool(said)
        everything += said
        with place.open() as saver:
            check(saver, said)
            resume(saver)
    with place.open() as saver:
        check(saver, everything)
        listed = [found.checkpoint["id"] for found in saver.list(run_config("growing"))]
    assert {line[1] for line in everything if line[0] == "put"} <= set(listed)
    place.check()
    # Check the test itself: many children started work before they died; how many depends on the load of the machine.
    assert alive > kills / 4, f"seed {SEED}"
    assert len([line for line in everything if line[0] == "writes"]) > kills / 4
