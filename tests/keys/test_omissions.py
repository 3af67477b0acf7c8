"""Omissions, as listed on the page of keys: records can be removed, not forged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.stores import MemoryUnderTest

from langgraph_keel import KeelSaver, Keyring, LocalKey
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.testing.rig import at, checkpoint_of

KEYRING = Keyring(LocalKey("k", bytes(range(32))))
PAGE = Path(__file__).parents[2] / "langgraph_keel/keys/README.md"
PUT = {"1": {"x": 1}, "2": {"x": 2}, "3": {"x": 3}}


def drop_writes(state: Any) -> None:
    state["t"].batches.clear()


def drop_label(state: Any) -> None:
    state.cells[Shelf("t", "labels")].clear()


def drop_end(state: Any) -> None:
    state["t"].records.popitem()


def make_branch(state: Any) -> None:
    [*_, last] = state["t"].records.values()
    last.trunk = False


OMISSIONS: dict[str, tuple[Callable[[Any], None], tuple[str, int, int]]] = {
    "a whole thread, or its last checkpoints": (drop_end, ("2", 2, 1)),
    "the pending writes of one task of a checkpoint": (drop_writes, ("3", 0, 1)),
    "a label": (drop_label, ("3", 3, 0)),
    "the column that marks a branch": (make_branch, ("2", 3, 1)),
}
"""The page's cases: the latest checkpoint, how many have writes, number of labels."""


def fill(saver: KeelSaver) -> None:
    config: Any = at("t")
    for number, (name, values) in enumerate(PUT.items(), 1):
        new: Any = checkpoint_of(name, values, channel_versions={"x": number})
        config = saver.put(config, new, {}, {"x": number})
        saver.put_writes(config, [("y", name)], "task")
    saver.labels.set(config, "here")


@pytest.mark.parametrize("what", OMISSIONS)
def test_an_omission_changes_no_value_and_is_documented(what: str) -> None:
    backend = MemoryUnderTest()
    fill(backend.open(encryption=KEYRING))
    take_away, left = OMISSIONS[what]
    take_away(backend._state)  # private: the records that an attacker can remove
    saver = backend.open(encryption=KEYRING)
    found = list(saver.list(at("t")))
    latest = saver.get_tuple(at("t"))
    assert latest is not None
    for each in (latest, *found):
        name = each.checkpoint["id"]
        assert each.checkpoint["channel_values"] == PUT[name]
        assert each.pending_writes in ([], [("task", "y", name)])
    writes = sum(bool(each.pending_writes) for each in found)
    assert (latest.checkpoint["id"], writes, len(list(saver.labels.list("t")))) == left
    assert re.search(rf"^  \| {re.escape(what)}", PAGE.read_text(), re.MULTILINE)
