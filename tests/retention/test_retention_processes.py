"""One process appends while another prunes: no error, and nothing is lost."""

from __future__ import annotations

import os
from select import select

import pytest
from support.places import Place
from support.process_children import exit_code, forked
from support.retention.threads import Written, name_of

from langgraph_keel import Retention

PUTS = 60


def append(place: Place) -> None:
    with place.open() as saver:
        thread = Written(saver)
        for number in range(PUTS):
            thread.put(source="input" if number % 5 == 0 else "loop", snapshot=number % 7 == 0)
            if number % 3 == 0:
                thread.remember()


def prune_until(place: Place, reading: int, writing: int) -> None:
    """Prune in a loop until the other end of a pipe is closed."""
    os.close(writing)
    with place.open() as saver:
        while not select([reading], [], [], 0)[0]:
            saver.prune(["t"], strategy=Retention(last=3))
            saver.retention.sweep(Retention(per="run"))


@pytest.mark.slow
def test_pruning_while_another_process_appends(place: Place) -> None:
    with place.open() as saver:
        saver.setup()
    reading, writing = os.pipe()
    pruner = forked(prune_until, place, reading, writing)
    writer = forked(append, place)
    assert exit_code(writer) == 0
    os.close(writing)
    assert exit_code(pruner) == 0
    os.close(reading)
    with place.open() as saver:
        saver.prune(["t"], strategy=Retention(last=3))
        thread = Written(saver)
        names = thread.ids()
        last = saver.get_tuple(thread.config(None))
        assert last
        assert names[-1] == last.checkpoint["id"]
        assert len(names) in (1, 2, 3)  # sweeps have kept one
        whole = Written(Nowhere())  # type: ignore[arg-type]
        for number in range(PUTS):
            made = whole.put(snapshot=number % 7 == 0)
            if number % 3 == 0:
                whole.remember()
        assert last.checkpoint["channel_values"]["list"] == whole.shown[made]
        writes = saver.get_delta_channel_history(config=thread.config(None), channels=["items"])["items"]["writes"]
        assert len(writes) == (PUTS - 1) % 7
        assert name_of(0) not in names
    place.check()


class Nowhere:
    """A saver that stores nothing."""

    def put(self, *args: object) -> None:
        """Discard it."""

    def put_writes(self, *args: object) -> None:
        """Discard it."""
