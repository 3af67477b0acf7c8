"""Removing: what goes is gone, bytes and all, and what stays is untouched."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from langchain_core.runnables import RunnableConfig

from langgraph_keel.errors import InvalidInput
from langgraph_keel.testing.histories import TREE, chat
from langgraph_keel.testing.rig import Rig, RigFixtures, at, exact, id_of, values_of

SECRETS = [f"{n}-{UUID(int=n * 0x1234567890ABCDEF1234567)}" + "-x5Jq8#Vz" * 4 for n in range(9)]
"""Texts long enough for an item of their own and too short to be compressed: they can be seen in the raw bytes."""


def seen(rig: Rig) -> list[int]:
    """Return which of the secrets stand in the stored bytes."""
    raw = rig.backend.raw()
    return [n for n, secret in enumerate(SECRETS) if secret.encode() in raw]


def task(n: int) -> str:
    """Return the id of a task, as LangGraph makes them."""
    return str(UUID(int=n + 7 * 2**100))


def called(rig: Rig, ns: str, *outer: RunnableConfig) -> RunnableConfig:
    """Put what a subgraph would that was called at these checkpoints, the outermost first."""
    outers = ["", *("|".join(ns.split("|")[: n + 1]) for n in range(ns.count("|")))]
    parents = {name: id_of(config) for name, config in zip(outers, outer, strict=True)}
    author = rig.author("t", ns)
    author.put({"ns": ns}, metadata={"parents": parents})
    return author.put({"ns": ns}, metadata={"parents": parents})


class RemovalContract(RigFixtures):
    """`delete_thread`, `delete_for_runs` and `prune`."""

    def test_deletes_everything_of_a_thread(self, rig: Rig) -> None:
        for thread in ("t", "u"):
            rig.author(thread).follow([{"a": SECRETS[0]}, {"a": SECRETS[1], "list": chat(40)}])
            rig.author(thread, "sub").put({"a": SECRETS[2]})
            rig.face.put_writes(at(thread, "", "never put"), [("a", SECRETS[3])], "task")
        rig.face.delete_thread("t")
        assert list(rig.face.list(at("t", None))) == []
        assert rig.face.get_tuple(at("t", "sub")) is None
        assert [len(list(rig.face.list(at("u", None)))), len(list(rig.face.list(None)))] == [3, 3]
        assert seen(rig) == [0, 1, 2, 3]
        rig.face.delete_thread("u")
        assert seen(rig) == []

    def test_a_deleted_thread_leaves_no_writes_behind(self, rig: Rig) -> None:
        rig.face.put_writes(at("t", "", "00000001"), [("a", "old")], "task")
        config = rig.author().put({"a": 1})
        rig.face.put_writes(config, [("b", "old")], "task 2")
        rig.face.delete_thread("t")
        rig.author().put({"a": 2}, checkpoint_id="00000001")
        found = rig.face.read(at())
        assert (values_of(found), found.pending_writes, found.parent_config) == ({"a": 2}, [], None)

    def test_deleting_what_is_not_there_is_no_error(self, rig: Rig) -> None:
        config = rig.author().put({"a": 1})
        rig.face.delete_thread("unknown")
        rig.face.delete_for_runs(["unknown"])
        rig.face.delete_for_runs([])
        rig.face.prune(["unknown"])
        rig.face.prune([])
        assert rig.face.read(at()).config == config

    def test_keeps_the_latest(self, rig: Rig) -> None:
        author = rig.author()
        for n, secret in enumerate(SECRETS[:3]):
            author.put({"a": secret, "list": chat(n + 40), "tree": {**TREE, "n": n}})
            rig.face.put_writes(author.config, [("a", SECRETS[3 + n])], "task")
        before = rig.face.read(at())
        rig.face.prune(["t"])
        (found,) = rig.face.list(at("t", None))
        assert found.parent_config is None
        assert exact((found.checkpoint, found.metadata)) == exact((before.checkpoint, before.metadata))
        assert found.pending_writes == before.pending_writes == [("task", "a", SECRETS[5])]
        assert seen(rig) == [2, 5]

    def test_a_pruned_thread_goes_on(self, rig: Rig) -> None:
        states = [{"list": chat(n), "tree": {**TREE, f"k{n}": n}} for n in range(1, 60)]
        rig.author().put(states[0])
        for n, state in enumerate(states[1:]):
            author = rig.continuing(at())
            author.put(state)
            if n % 7 == 0:
                rig.face.prune(["t"])
        listed = [values_of(found) for found in rig.face.list(at())]
        assert exact(listed) == exact(states[: -len(listed) - 1 : -1])
        assert len(listed) == 2

    def test_item_numbers_are_not_used_again(self, warm: Rig) -> None:
        """A saver that still knows an item which is gone must not take a new one for it."""
        author = warm.author()
        first = author.put({"a": SECRETS[0], "list": chat(2)})
        author.put({"b": 1})
        warm.face.prune(["t"])
        other = warm.author(face=warm.open())
        other.config = at("t", "", "00000002")
        other.put({"a": SECRETS[1], "list": chat(2, 50)})
        assert warm.face.get_tuple(first) is None
        author.put({"a": SECRETS[0], "list": chat(2)})
        assert exact(values_of(warm.open().read(at()))) == exact({"a": SECRETS[0], "list": chat(2)})

    def test_prunes_the_threads_it_is_given(self, rig: Rig) -> None:
        for thread in "tuv":
            rig.author(thread).follow([{"a": 1}, {"a": 2}])
        rig.face.prune(["t", "v"])
        assert [len(list(rig.face.list(at(thread)))) for thread in "tuv"] == [1, 2, 1]
        rig.face.prune(["u", "v"], "delete")
        assert [len(list(rig.face.list(at(thread)))) for thread in "tuv"] == [1, 0, 0]

    def test_namespaces_with_equal_ids_are_pruned_apart(self, rig: Rig) -> None:
        for ns in ("", "sub"):
            author = rig.author("t", ns)
            author.put({"ns": ns}, checkpoint_id="same")
            rig.face.put_writes(at("t", ns, "same"), [("ns", ns)], "task")
        rig.author().put({"ns": "next"})
        rig.face.prune(["t"])
        found = rig.face.read(at("t", "sub"))
        assert (values_of(found), found.pending_writes) == ({"ns": "sub"}, [("task", "ns", "sub")])
        assert rig.face.get_tuple(at("t", "", "same")) is None
        rig.face.delete_for_runs(["none"])
        assert rig.face.read(at("t", "sub")).pending_writes == [("task", "ns", "sub")]

    def test_an_unknown_strategy_is_refused(self, rig: Rig) -> None:
        rig.author().follow([{"a": 1}, {"a": 2}])
        with pytest.raises(InvalidInput, match="keep_everything"):
            rig.face.prune(["t"], "keep_everything")
        assert len(list(rig.face.list(at()))) == 2

    def test_the_latest_is_kept_though_the_clock_went_back(self, rig: Rig) -> None:
        author = rig.author()
        for checkpoint_id in ("5", "9", "1"):
            author.put({"a": checkpoint_id}, checkpoint_id=checkpoint_id)
        rig.face.prune(["t"])
        assert [values_of(found) for found in rig.face.list(at())] == [{"a": "1"}]

    def test_finished_subgraph_calls_go_and_others_stay(self, rig: Rig) -> None:
        """The namespaces of calls of a step that is over go; those of the latest step, and persistent ones, stay."""
        trunk = rig.author()
        old = trunk.put({"n": 1})
        called(rig, f"node:{task(1)}", old)
        called(rig, "persistent", old)
        inner = called(rig, f"deep:{task(2)}", old)
        called(rig, f"deep:{task(2)}|node:{task(3)}", old, inner)
        new = trunk.put({"n": 2})
        called(rig, f"asking:{task(4)}", new)
        inner = called(rig, f"asking:{task(5)}", new)
        called(rig, f"asking:{task(5)}|deep:{task(6)}", new, inner)
        called(rig, "hand made", old)
        rig.face.prune(["t"])
        kept = {found.config["configurable"]["checkpoint_ns"] for found in rig.face.list(at("t", None))}
        asking = {f"asking:{task(4)}", f"asking:{task(5)}", f"asking:{task(5)}|deep:{task(6)}"}
        assert kept == {"", "persistent", "hand made", *asking}
        assert len(list(rig.face.list(at("t", None)))) == len(kept)

    def test_deletes_runs_in_every_thread(self, rig: Rig) -> None:
        for thread in ("t", "u"):
            author = rig.author(thread)
            for n, run in enumerate(["one", "two", "one", "three"]):
                author.put({"a": SECRETS[n], "list": chat(n + 30)}, metadata={"run_id": run})
                rig.face.put_writes(author.config, [("a", SECRETS[4 + n])], "task")
        rig.author("t", "sub").put({"a": 9}, metadata={"run_id": "three"})
        rig.face.delete_for_runs(["one", "three"])
        assert seen(rig) == [1, 5]
        for thread in ("t", "u"):
            (found,) = rig.face.list(at(thread, None))
            assert exact(values_of(found)) == exact({"a": SECRETS[1], "list": chat(31)})
            assert found.parent_config is None
            assert found.pending_writes == [("task", "a", SECRETS[5])]
            assert rig.face.read(at(thread)).config == found.config

    def test_after_a_run_is_deleted_the_head_is_the_last_that_remains(self, rig: Rig) -> None:
        author = rig.author()
        kept = author.put({"a": SECRETS[0]}, metadata={"run_id": "kept"})
        author.put({"a": SECRETS[1]}, metadata={"run_id": "gone"})
        rig.face.delete_for_runs(["gone"])
        assert rig.face.read(at()).config == kept
        run = rig.continuing(at())
        run.put({"a": SECRETS[2]}, metadata={"run_id": "next"})
        assert rig.face.read(at()).parent_config == kept
        assert seen(rig) == [0, 2]

    def test_a_run_may_come_from_the_config(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"a": 1})
        author.config["metadata"] = {"run_id": "from the config"}
        author.put({"a": 2})
        rig.face.delete_for_runs(["from the config"])
        assert [values_of(found) for found in rig.face.list(at())] == [{"a": 1}]

    def test_siblings_of_what_is_deleted_stay(self, rig: Rig) -> None:
        states: list[dict[str, Any]] = [{"list": chat(n), "tree": {**TREE, "n": n}} for n in range(1, 40)]
        author = rig.author()
        for n, state in enumerate(states):
            author.put(state, metadata={"run_id": f"run {n % 3}"})
        rig.face.delete_for_runs(["run 1"])
        kept = [state for n, state in enumerate(states) if n % 3 != 1]
        assert exact([values_of(found) for found in rig.face.list(at())]) == exact(kept[::-1])

    def test_a_branch_that_alone_remains_is_the_latest(self, warm: Rig) -> None:
        face = warm.open(on_conflict="fork")
        warm.author(face=face).put({"n": 0}, metadata={"run_id": "gone"})
        winner, loser = (warm.continuing(at(), face) for _ in range(2))
        winner.put({"n": "won"}, metadata={"run_id": "gone"})
        lost = loser.put({"n": "lost"}, metadata={"run_id": "kept"})
        face.delete_for_runs(["gone"])
        assert face.read(at()).config == lost
        face.prune(["t"])
        assert values_of(face.read(at())) == {"n": "lost"}
