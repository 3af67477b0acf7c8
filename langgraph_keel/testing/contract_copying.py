"""Copying: everything of a thread, once, and from then on each goes its own way."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_keel.errors import InvalidInput, ThreadExists
from langgraph_keel.testing.histories import TREE, chat
from langgraph_keel.testing.rig import Rig, RigFixtures, at, exact, id_of, values_of


def told(rig: Rig, thread: str) -> list[Any]:
    """Return all there is to see of a thread, without its name."""
    return [
        (
            found.config["configurable"]["checkpoint_ns"],
            id_of(found),
            id_of(found.parent_config),
            exact(found.checkpoint),
            exact(found.metadata),
            exact(found.pending_writes),
        )
        for found in rig.face.list(at(thread, None))
    ]


def fill(rig: Rig, thread: str = "t") -> None:
    """Put a history with writes, early writes, a fork and a namespace."""
    author = rig.author(thread)
    configs = author.follow([{"list": chat(n), "tree": {**TREE, "n": n}} for n in range(1, 12)])
    rig.face.put_writes(configs[-1], [("list", 1), ("__interrupt__", "ask")], "task", "~1")
    rig.face.put_writes(configs[-1], [("__interrupt__", "ask again")], "task", "~1")
    rig.face.put_writes(at(thread, "", "early"), [("list", "early")], "task")
    fork = rig.continuing(configs[8])
    fork.follow([{"list": [*chat(9), *chat(n, 100)]} for n in range(3)])
    rig.author(thread, "sub").follow([{"a": 1}, {"a": 2}])


class CopyingContract(RigFixtures):
    """`copy_thread`."""

    def test_copies_everything(self, rig: Rig) -> None:
        fill(rig)
        rig.face.copy_thread("t", "copy")
        assert told(rig, "copy") == told(rig, "t")
        assert len(told(rig, "copy")) == 16
        threads = {found.config["configurable"]["thread_id"] for found in rig.face.list(at("copy", None))}
        assert threads == {"copy"}
        assert values_of(rig.face.read(at("copy", "sub"))) == {"a": 2}
        for thread in ("t", "copy"):
            rig.continuing(at(thread)).put({}, checkpoint_id="early")
            assert rig.face.read(at(thread)).pending_writes == [("task", "list", "early")]

    def test_source_and_copy_go_their_own_ways(self, warm: Rig) -> None:
        fill(warm)
        before = told(warm, "t")
        warm.face.copy_thread("t", "copy")
        states = {thread: [*values_of(warm.face.read(at(thread)))["list"]] for thread in ("t", "copy")}
        runs = {thread: warm.continuing(at(thread)) for thread in ("t", "copy")}
        for n in range(40):
            for thread, run in runs.items():
                states[thread] = [*states[thread], *chat(1, 1000 + n + 500 * len(thread))]
                run.put({"list": states[thread], "tree": {**TREE, thread: n}})
                warm.face.put_writes(run.config, [("list", thread)], "task")
        for thread in runs:
            found = list(warm.face.list(at(thread, "")))
            assert exact([values_of(each)["list"] for each in found[:40]]) == exact(
                [states[thread][: len(states[thread]) - n] for n in range(40)]
            )
            assert found[0].pending_writes == [("task", "list", thread)]
            assert told(warm, thread)[40:] == before

    def test_the_copy_outlives_the_source(self, rig: Rig) -> None:
        fill(rig)
        before = told(rig, "t")
        rig.face.copy_thread("t", "copy")
        rig.face.prune(["t"])
        assert told(rig, "copy") == before
        rig.face.delete_thread("t")
        assert told(rig, "copy") == before
        rig.face.copy_thread("copy", "t")
        assert told(rig, "t") == before

    def test_the_source_outlives_the_copy(self, rig: Rig) -> None:
        fill(rig)
        before = told(rig, "t")
        rig.face.copy_thread("t", "copy")
        rig.face.prune(["copy"])
        rig.face.delete_thread("copy")
        assert told(rig, "t") == before

    def test_a_thread_that_exists_is_not_written_over(self, rig: Rig) -> None:
        fill(rig)
        rig.author("checkpoint").put({"a": 1})
        rig.face.put_writes(at("only writes", "", "c"), [("a", 1)], "task")
        before = rig.backend.raw()
        for target in ("checkpoint", "only writes"):
            with pytest.raises(ThreadExists, match=target):
                rig.face.copy_thread("t", target)
        with pytest.raises(InvalidInput):
            rig.face.copy_thread("t", "t")
        assert rig.backend.raw() == before

    def test_an_unknown_source_copies_nothing(self, rig: Rig) -> None:
        rig.face.copy_thread("unknown", "copy")
        assert list(rig.face.list(None)) == []
        rig.author("copy").put({"a": 1})
        assert values_of(rig.face.read(at("copy"))) == {"a": 1}
        with pytest.raises(ThreadExists, match="copy"):
            rig.face.copy_thread("unknown", "copy")

    def test_branches_stay_branches(self, warm: Rig) -> None:
        warm.author().put({"n": 0})
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        won = winner.put({"n": "won"})
        loser.put({"n": "lost"})
        warm.face.copy_thread("t", "copy")
        assert id_of(warm.face.read(at("copy"))) == id_of(won)
        warm.continuing(at("copy")).put({"n": "next"})
        assert values_of(warm.face.read(at("copy"))) == {"n": "next"}
