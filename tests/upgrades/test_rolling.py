"""Two versions of an application on one store during a rolling deployment.

They run in separate processes, under load. `KEEL_ROLLING_SECONDS` is the duration on each store, in seconds.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import pytest
from langgraph.types import Command
from support.places import ON_SERVERS, Place
from support.tiers import sized
from support.upgrades import apps

from langgraph_keel import CheckpointConflict, NewerState, ThreadTaken

SECONDS = float(os.environ.get("KEEL_ROLLING_SECONDS") or sized(5, 5, 300))
LONGEST = 120.0
"""Timeout for a process that has not met all expected outcomes, in seconds."""
WINDOW, STILL = 1.0, 14
"""Seconds for which all processes work on the same few threads; and number of threads that are only read."""
GIVEN_1 = {"name": "Ada Lovelace", "log": ["in"], "notes": [0]}
GIVEN_2 = {"first": "Ada", "last": "Lovelace", "currency": "EUR", "log": ["in"], "notes": [0]}
FORK = get_context("fork")


class Load:
    """The work of one process, until its time ends and all expected outcomes were met."""

    def __init__(self, place: Place, version: int, seed: int, begun: float) -> None:
        self.chance = Random(seed)
        self.begun = begun
        self.saver = place.open(**({"upgrades": apps.UPGRADES} if version == 2 else {}))
        self.graph = apps.build_2(self.saver) if version == 2 else apps.build_1(self.saver)
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def config(self) -> Any:
        """Return a thread of the current window; once the time is over, of any window."""
        elapsed = min(time.monotonic() - self.begun, SECONDS)
        last = int(elapsed / WINDOW)
        window = last if elapsed < SECONDS else self.chance.randint(0, last)
        return {"configurable": {"thread_id": f"r{window}-{self.chance.randrange(6)}"}}

    def run(self, act: Callable[[Load], str], waits_for: set[str], pipe: Connection) -> None:
        until = self.begun + SECONDS
        while (now := time.monotonic()) < until or (waits_for - self.outcomes.keys() and now < until + LONGEST):
            try:
                self.outcomes[act(self)] += 1
            except NewerState as error:
                is_named = "has version 2, and this program knows versions up to 1" in str(error)
                self.outcomes["newer" if is_named else str(error)] += 1
            except (CheckpointConflict, ThreadTaken) as error:  # of two concurrent runs of one thread, one wins
                self.outcomes[error.code] += 1
            except BaseException as error:
                self.wrong.append(f"{act.__name__}: {error!r:.500}")
        self.saver.close()
        pipe.send((act.__name__, self.outcomes, self.wrong[:5]))


def write_1(load: Load) -> str:
    load.graph.invoke({"kind": load.chance.choice(["done", "asks"]), **GIVEN_1}, load.config())
    return "written"


def write_2(load: Load) -> str:
    config = load.config()
    waits = "confirm" in load.graph.get_state(config).next
    load.graph.invoke(Command(resume="yes") if waits else {"kind": "done", **GIVEN_2}, config)
    return "answered" if waits else "written"


def read_1(load: Load) -> str:
    config = apps.thread_of(load.chance.randrange(STILL)) if load.chance.random() < 0.3 else load.config()
    values = load.graph.get_state(config).values
    assert not {"first", "euros"} & values.keys()
    return "read" if values else "nothing"


def read_2(load: Load) -> str:
    if load.chance.random() < 0.3:
        apps.check_seen(load.graph, load.chance.randrange(STILL))
        return "read"
    values = load.graph.get_state(load.config()).values
    assert not {"name", "cents", "scratch"} & values.keys()
    assert values.get("last", "Lovelace") == "Lovelace"
    return "read" if values else "nothing"


# Each process: its work, its version, and the outcomes that it must meet before it ends.
PROCESSES: list[tuple[Callable[[Load], str], int, set[str]]] = [
    (write_1, 1, {"written", "newer"}),
    (write_1, 1, {"written", "newer"}),
    (write_2, 2, {"written"}),
    (read_1, 1, {"read", "newer"}),
    (read_2, 2, {"read"}),
]


READ = {"read", "nothing", "newer"}
WRITTEN = {"written", "answered", "newer", CheckpointConflict.code, ThreadTaken.code}


def work(place: Place, nth: int, begun: float, pipe: Connection) -> None:
    act, version, waits_for = PROCESSES[nth]
    Load(place, version, nth, begun).run(act, waits_for, pipe)


def stored(place: Place, thread_id: str) -> list[Any]:
    with place.open() as saver:
        found = saver.raw.list({"configurable": {"thread_id": thread_id}})
        return [(each.checkpoint, each.metadata, each.pending_writes) for each in found]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@ON_SERVERS
def test_both_versions_run_during_a_rolling_deployment(place: Place) -> None:
    with place.open() as saver:
        apps.write_all_1(saver, range(STILL))
    before = [stored(place, f"t{number}") for number in range(STILL)]
    pipes, children, begun = [], [], time.monotonic()
    for nth in range(len(PROCESSES)):
        here, there = FORK.Pipe(duplex=False)
        child = FORK.Process(target=work, args=(place, nth, begun, there))
        child.start()
        there.close()
        pipes.append(here)
        children.append(child)
    told = [pipe.recv() for pipe in pipes]
    for child in children:
        child.join()
    print(*told, sep="\n")
    assert [wrong for _, _, wrong in told] == [[]] * len(PROCESSES)
    for (act, outcomes, _), (_, _, waits_for) in zip(told, PROCESSES, strict=True):
        assert waits_for <= outcomes.keys() <= (READ if act.startswith("read") else WRITTEN)
    assert [stored(place, f"t{number}") for number in range(STILL)] == before, "a reader has written"
    with place.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        for info in [info.thread_id for info in saver.threads()]:
            check_order(place, info)
            assert not {"name", "cents"} & graph.get_state({"configurable": {"thread_id": info}}).values.keys()


def check_order(place: Place, thread_id: str) -> None:
    """Check that version 1 has stored nothing after version 2."""
    newest_first = [each for each, _, _ in stored(place, thread_id)]
    is_new = [bool({"euros", "first"} & each["channel_values"].keys()) for each in newest_first]
    is_old = [bool({"cents", "name"} & each["channel_values"].keys()) for each in newest_first]
    assert not any(new and old for new, old in zip(is_new, is_old, strict=True))
    if any(is_new) and any(is_old):
        assert max(at for at, new in enumerate(is_new) if new) < is_old.index(True), thread_id
