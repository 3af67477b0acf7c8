"""Removal, strays (threads with records but without checkpoints), and copying."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from langchain_core.runnables import RunnableConfig

from langgraph_keel._langgraph import INTERRUPT
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.encoding.bodies import frame
from langgraph_keel.errors import InvalidInput, ThreadExists
from langgraph_keel.testing.machine import TREE, chat
from langgraph_keel.testing.rig import Rig, RigFixtures, at, exact, id_of, values_of

SECRETS = [f"{n}-{UUID(int=n * 0x1234567890ABCDEF1234567)}" + "-x5Jq8#Vz" * 4 for n in range(9)]
"""Texts that are visible in raw bytes: separate items, too short to be compressed."""

LONG = "größer/" * 100
"""An id that cannot be used unchanged as a file name or in an index."""


def seen(rig: Rig) -> list[int]:
    """Return the secrets that the stored bytes contain."""
    raw = rig.backend.raw()
    return [n for n, secret in enumerate(SECRETS) if secret.encode() in raw]


def task(n: int) -> str:
    """Return the id of a task, in LangGraph's form."""
    return str(UUID(int=n + 7 * 2**100))


def called(rig: Rig, ns: str, *outer: RunnableConfig) -> RunnableConfig:
    """Write a subgraph's checkpoint, called at these checkpoints, outermost first."""
    outers = ["", *("|".join(ns.split("|")[: n + 1]) for n in range(ns.count("|")))]
    parents = {name: id_of(config) for name, config in zip(outers, outer, strict=True)}
    author = rig.author("t", ns)
    author.put({"ns": ns}, metadata={"parents": parents})
    return author.put({"ns": ns}, metadata={"parents": parents})


class RemovalContract(RigFixtures):
    """`delete_thread`, `delete_for_runs` and `prune`."""

    def test_delete_thread_deletes_everything(self, rig: Rig) -> None:
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

    def test_a_conditional_delete_is_refused_after_a_later_put(self, rig: Rig) -> None:
        author = rig.author()
        author.follow([{"a": 1}, {"a": 2}])
        rig.author("t", "sub").put({"a": 3})
        shelves = Shelf("t", "label"), Shelf(None, "label")
        for shelf in shelves:
            rig.face.verb("swap_cell", shelf, "k", None, Cell("token", frame(b"head"), origin="t"))
        last = rig.face.verb("read_graph", "t").nodes[-1].stamp
        author.put({"a": 4})
        assert rig.face.verb("delete_thread", "t", last) is False
        assert len(list(rig.face.list(at("t", None)))) == 4
        assert all(rig.face.verb("read_cells", shelf, ["k"]) for shelf in shelves)
        last = rig.face.verb("read_graph", "t").nodes[-1].stamp
        assert rig.face.verb("delete_thread", "t", last) is True
        assert list(rig.face.list(at("t", None))) == []
        assert not any(rig.face.verb("read_cells", shelf, ["k"]) for shelf in shelves)
        assert rig.face.verb("delete_thread", "t", last) is False

    def test_a_ghost_does_not_count_as_the_last_entry(self, rig: Rig) -> None:
        rig.author().follow([{"a": 1}, {"a": 2}, {"a": 3}])
        rig.author("u").put({"a": 4})
        seen, ghost, gone = (node.stamp for node in rig.face.verb("read_graph", "t").nodes)
        rig.face.verb("remove_entries", "t", {gone}, {ghost: []})
        (other,) = (node.stamp for node in rig.face.verb("read_graph", "u").nodes)
        for stamp in (ghost, gone, other):
            assert rig.face.verb("delete_thread", "t", stamp) is False
        assert rig.face.verb("delete_thread", "t", seen) is True
        assert [config["configurable"]["thread_id"] for config, *_ in rig.face.list(None)] == ["u"]

    def test_deleting_unknown_threads_and_runs_is_not_an_error(self, rig: Rig) -> None:
        config = rig.author().put({"a": 1})
        rig.face.delete_thread("unknown")
        rig.face.delete_for_runs(["unknown"])
        rig.face.delete_for_runs([])
        rig.face.prune(["unknown"])
        rig.face.prune([])
        assert rig.face.read(at()).config == config

    def test_prune_keeps_the_latest_checkpoint(self, rig: Rig) -> None:
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

    def test_a_pruned_thread_can_be_continued(self, rig: Rig) -> None:
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
        """A saver that remembers a removed item must not mistake a new item for it."""
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

    def test_prune_affects_only_the_given_threads(self, rig: Rig) -> None:
        for thread in "tuv":
            rig.author(thread).follow([{"a": 1}, {"a": 2}])
        rig.face.prune(["t", "v"])
        assert [len(list(rig.face.list(at(thread)))) for thread in "tuv"] == [1, 2, 1]
        rig.face.prune(["u", "v"], "delete")
        assert [len(list(rig.face.list(at(thread)))) for thread in "tuv"] == [1, 0, 0]

    def test_namespaces_with_equal_ids_are_pruned_separately(self, rig: Rig) -> None:
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

    def test_an_unknown_prune_strategy_is_refused(self, rig: Rig) -> None:
        rig.author().follow([{"a": 1}, {"a": 2}])
        with pytest.raises(InvalidInput, match="keep_everything"):
            rig.face.prune(["t"], "keep_everything")
        assert len(list(rig.face.list(at()))) == 2

    def test_prune_keeps_the_last_stored_even_if_the_clock_went_back(self, rig: Rig) -> None:
        author = rig.author()
        for checkpoint_id in ("5", "9", "1"):
            author.put({"a": checkpoint_id}, checkpoint_id=checkpoint_id)
        rig.face.prune(["t"])
        assert [values_of(found) for found in rig.face.list(at())] == [{"a": "1"}]

    def test_prune_removes_only_finished_subgraph_calls(self, rig: Rig) -> None:
        """Call namespaces of finished steps are removed; persistent and latest ones stay."""
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

    def test_delete_for_runs_affects_every_thread(self, rig: Rig) -> None:
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

    def test_deleting_a_run_makes_the_last_remaining_checkpoint_the_head(self, rig: Rig) -> None:
        author = rig.author()
        kept = author.put({"a": SECRETS[0]}, metadata={"run_id": "kept"})
        author.put({"a": SECRETS[1]}, metadata={"run_id": "gone"})
        rig.face.delete_for_runs(["gone"])
        assert rig.face.read(at()).config == kept
        run = rig.continuing(at())
        run.put({"a": SECRETS[2]}, metadata={"run_id": "next"})
        assert rig.face.read(at()).parent_config == kept
        assert seen(rig) == [0, 2]

    def test_a_run_id_may_come_from_the_metadata_of_the_config(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"a": 1})
        author.config["metadata"] = {"run_id": "from the config"}
        author.put({"a": 2})
        rig.face.delete_for_runs(["from the config"])
        assert [values_of(found) for found in rig.face.list(at())] == [{"a": 1}]

    def test_deleting_a_run_keeps_checkpoints_of_other_runs(self, rig: Rig) -> None:
        states: list[dict[str, Any]] = [{"list": chat(n), "tree": {**TREE, "n": n}} for n in range(1, 40)]
        author = rig.author()
        for n, state in enumerate(states):
            author.put(state, metadata={"run_id": f"run {n % 3}"})
        rig.face.delete_for_runs(["run 1"])
        kept = [state for n, state in enumerate(states) if n % 3 != 1]
        assert exact([values_of(found) for found in rig.face.list(at())]) == exact(kept[::-1])

    def test_the_only_remaining_branch_is_the_latest(self, warm: Rig) -> None:
        face = warm.open(on_conflict="fork")
        warm.author(face=face).put({"n": 0}, metadata={"run_id": "gone"})
        winner, loser = (warm.continuing(at(), face) for _ in range(2))
        winner.put({"n": "won"}, metadata={"run_id": "gone"})
        lost = loser.put({"n": "lost"}, metadata={"run_id": "kept"})
        face.delete_for_runs(["gone"])
        assert face.read(at()).config == lost
        face.prune(["t"])
        assert values_of(face.read(at())) == {"n": "lost"}


def strays(rig: Rig, size: int = 100) -> list[str]:
    """Return the names of all strays, read in pages."""
    names: list[str] = []
    while True:
        page = rig.face.verb("list_strays", names[-1] if names else None, size)
        names += page
        if len(page) < size:
            return names


def fill_thread(rig: Rig, thread_id: str | None, key: str = "k", origin: str = "") -> None:
    """Fill a cell of a thread."""
    rig.face.verb("swap_cell", Shelf(thread_id, "other"), key, None, Cell("1", frame(b"header"), origin=origin))


def write(rig: Rig, thread_id: str) -> None:
    """Store the writes of a task whose checkpoint does not exist."""
    rig.face.put_writes(at(thread_id, checkpoint_id="00000000"), [("a", 1)], "task")


class StrayContract(RigFixtures):
    """`list_strays`."""

    def test_a_thread_without_a_checkpoint_is_a_stray(self, rig: Rig) -> None:
        assert strays(rig) == []
        fill_thread(rig, "cells")
        fill_thread(rig, None, "shared", origin="Origin: of {something}")
        fill_thread(rig, None, "nobody's")
        write(rig, "writes")
        assert sorted(strays(rig)) == ["Origin: of {something}", "cells", "writes"]

    def test_a_thread_with_a_checkpoint_is_not_a_stray(self, rig: Rig) -> None:
        for thread_id in ("all", "subgraph"):
            fill_thread(rig, thread_id)
            fill_thread(rig, None, f"of-{thread_id}", origin=thread_id)
            write(rig, thread_id)
        rig.author("all").put({"a": 1})
        rig.author("subgraph", "ns").put({"a": 1})
        assert strays(rig) == []
        rig.face.prune(["all"])
        assert strays(rig) == []

    def test_strays_are_read_in_pages(self, rig: Rig) -> None:
        for n in range(7):
            (fill_thread if n % 2 else write)(rig, f"T{n}")
            rig.author(f"t{n}").put({"a": 1})
        names = sorted(f"T{n}" for n in range(7))
        assert [sorted(strays(rig, size)) for size in (1, 3, 7, 100)] == [names] * 4
        assert strays(rig, 3) == strays(rig)

    def test_a_stray_is_deleted_by_its_listed_name(self, warm: Rig) -> None:
        for thread_id in ("t", "T", LONG, LONG + "2"):
            fill_thread(warm, thread_id)
        write(warm, LONG + "3")
        fill_thread(warm, None, "shared", origin=LONG + "4")
        names = strays(warm)
        assert len(names) == 6
        assert len(strays(warm, 1)) == 6
        for name in names:
            warm.face.verb("delete_thread", name)
        assert strays(warm) == []
        assert warm.face.verb("read_cells", Shelf(LONG, "other"), ["k"]) == {}
        assert warm.face.verb("list_cells", Shelf(None, "other"), "", None, 9) == []
        assert "ößer".encode() not in warm.backend.raw()

    def test_a_thread_becomes_a_stray_when_all_its_checkpoints_are_deleted(self, rig: Rig) -> None:
        run = "5f0c2a91-0000-4000-8000-000000000000"
        rig.author().put({"a": 1}, metadata={"run_id": run})
        fill_thread(rig, "t")
        rig.face.delete_for_runs([run])
        assert strays(rig) == ["t"]
        rig.author().put({"a": 1})
        assert strays(rig) == []


def told(rig: Rig, thread: str) -> list[Any]:
    """Return all visible data of a thread, without its name."""
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
    """Write a history with writes, early writes, a fork and a namespace."""
    author = rig.author(thread)
    configs = author.follow([{"list": chat(n), "tree": {**TREE, "n": n}} for n in range(1, 12)])
    rig.face.put_writes(configs[-1], [("list", 1), (INTERRUPT, "ask")], "task", "~1")
    rig.face.put_writes(configs[-1], [(INTERRUPT, "ask again")], "task", "~1")
    rig.face.put_writes(at(thread, "", "early"), [("list", "early")], "task")
    fork = rig.continuing(configs[8])
    fork.follow([{"list": [*chat(9), *chat(n, 100)]} for n in range(3)])
    rig.author(thread, "sub").follow([{"a": 1}, {"a": 2}])


class CopyingContract(RigFixtures):
    """`copy_thread`."""

    def test_copy_thread_copies_everything(self, rig: Rig) -> None:
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

    def test_source_and_copy_are_independent(self, warm: Rig) -> None:
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
            lists = [states[thread][: len(states[thread]) - n] for n in range(40)]
            assert exact([values_of(each)["list"] for each in found[:40]]) == exact(lists)
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

    def test_a_copy_recreated_by_another_saver_is_read(self, warm: Rig) -> None:
        fill(warm)
        warm.face.copy_thread("t", "copy")
        for _ in range(2):
            assert exact(values_of(warm.face.read(at("copy")))) == exact(values_of(warm.face.read(at("t"))))
            other = warm.open()
            other.delete_thread("copy")
            other.copy_thread("t", "copy")

    def test_the_source_outlives_the_copy(self, rig: Rig) -> None:
        fill(rig)
        before = told(rig, "t")
        rig.face.copy_thread("t", "copy")
        rig.face.prune(["copy"])
        rig.face.delete_thread("copy")
        assert told(rig, "t") == before

    def test_a_copy_does_not_overwrite_an_existing_thread(self, rig: Rig) -> None:
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

    def test_branches_of_a_copy_remain_branches(self, warm: Rig) -> None:
        warm.author().put({"n": 0})
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        won = winner.put({"n": "won"})
        loser.put({"n": "lost"})
        warm.face.copy_thread("t", "copy")
        assert id_of(warm.face.read(at("copy"))) == id_of(won)
        warm.continuing(at("copy")).put({"n": "next"})
        assert values_of(warm.face.read(at("copy"))) == {"n": "next"}
