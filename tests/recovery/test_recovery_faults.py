"""Workers that are killed, stopped and cut off repeatedly.

All runs complete, and each effect happens once.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.places import Place
from support.recovery.children import STEPS, config_of
from support.recovery.faults import Workers, accept, effects, overlaps, paying_graph
from support.tiers import sized

RUNS = sized(12, 12, 300)
SEED = random.SystemRandom().randrange(1 << 32)


@pytest.mark.slow
def test_all_runs_finish_and_each_effect_happens_once(place: Place, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    directory = tmp_path / "bank"
    directory.mkdir()
    names = [f"run{number}" for number in range(RUNS)]
    with place.open(recoverable=True) as saver, ExitStack() as stack:
        made = paying_graph(saver, directory)
        for name in names:
            accept(saver, made, name)
        proxy = stack.enter_context(place.proxy()) if place.kind in ("postgres", "redis") else None
        workers = Workers(place.through(proxy) if proxy else place, directory, chance, proxy)
        try:
            while any(True for _ in saver.unfinished()):
                time.sleep(chance.random() * 0.6)  # so that a fault comes at any moment
                workers.fail()
        finally:
            workers.end()
        assert effects(directory) == sorted(f"{name} {step}" for name in names for step in STEPS), f"seed {SEED}"
        assert overlaps(directory, workers.killed) == [], f"seed {SEED}"
        for name in names:
            assert made.get_state(config_of(name)).values["log"] == [*STEPS]
            moments = list(saver.timeline(name))
            assert [each.parent for each in moments[1:]] == [each.id for each in moments[:-1]]  # no branch
        assert workers.killed
    place.check()
