"""Rewinds and branches, delta channels, forks, and differences."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_keel._langgraph import INTERRUPT, DeltaSnapshot
from langgraph_keel.engine.records import BaseGone, Copied, Occupied, Page, Query
from langgraph_keel.errors import CheckpointConflict, InvalidInput, NotFound, ThreadExists
from langgraph_keel.saver import KeelSaver
from langgraph_keel.testing.contract_removal import told
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.machine import TREE, chat
from langgraph_keel.testing.rig import AsyncFace, Author, Rig, RigFixtures, at, checkpoint_of, exact, id_of, values_of

CHANNELS = ["items", "other", "never"]

LONG = [random.Random(n).random() for n in range(400)]

MEMORY = "memory"
"""The namespace of a subgraph with `checkpointer=True`."""
CALL = "node:6b9c1c7e-3a0c-5d43-9d3c-111111111111"
"""The namespace of a call of a subgraph without it."""

LATER = "put later, and nobody's business in the fork"


def walked(saver: KeelSaver, config: RunnableConfig) -> Any:
    """Return the history as found by the inherited walk with `get_tuple`."""
    return exact(BaseCheckpointSaver.get_delta_channel_history(saver, config=config, channels=CHANNELS))


def history(rig: Rig, config: RunnableConfig) -> Any:
    """Return the history as found by the saver itself."""
    return exact(rig.face.delta_history(config, CHANNELS))


def step(rig: Rig, author: Author, n: int, *, snapshot: bool = False, **metadata: Any) -> RunnableConfig:
    """Write a checkpoint without delta values, and its tasks' writes to them."""
    values: dict[str, Any] = {"plain": n}
    if snapshot:
        values["items"] = DeltaSnapshot([f"all before {n}", "x" * 100])
    counters = {"items": [0, 0] if snapshot else [n, n], "other": [n, n]}
    config = author.put(values, metadata={"counters_since_delta_snapshot": counters, **metadata})
    rig.face.put_writes(config, [("items", [f"{n} b"]), ("plain", n), ("other", n)], "task 2", "~2")
    rig.face.put_writes(config, [("items", [f"{n} a"])], "task 1", "~1")
    return config


def ten_steps(rig: Rig) -> list[RunnableConfig]:
    """Write ten checkpoints, two of them with a snapshot."""
    author = rig.author()
    return [step(rig, author, n, snapshot=n in (2, 6)) for n in range(10)]


def of(told: Any, *channels: str) -> Any:
    """Return the parts of a history for these channels."""
    kind, pairs = told
    return kind, [pair for pair in pairs if pair[0] in channels]


def assert_found(rig: Rig, config: RunnableConfig, before: Any) -> None:
    """Check that a history is unchanged, for the saver and for a walk along parents."""
    for found in (history(rig, config), walked(rig.face.saver, config)):
        assert of(found, "items", "other") == of(before, "items", "other")


class DeltaContract(RigFixtures):
    """`get_delta_channel_history`."""

    def test_delta_history_equals_that_of_the_inherited_walk(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        for config in [at(), *configs, at("t", "", "unknown"), at("unknown")]:
            assert history(rig, config) == walked(rig.face.saver, config)
        assert rig.face.delta_history(at(), []) == {}

    def test_delta_history_returns_writes_and_seed(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        found = rig.face.delta_history(configs[4], CHANNELS)
        assert [value for _, _, value in found["items"]["writes"]] == [["2 a"], ["2 b"], ["3 a"], ["3 b"]]
        assert found["items"]["seed"] == DeltaSnapshot(["all before 2", "x" * 100])
        assert [value for _, _, value in found["other"]["writes"]] == [0, 1, 2, 3]
        assert found["never"] == {"writes": []}
        assert "seed" not in found["other"]

    def test_delta_history_uses_any_stored_value_as_seed(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"items": None, "other": list(range(50))})
        config = author.put({})
        found = rig.face.delta_history(config, CHANNELS)
        assert found["items"] == {"writes": [], "seed": None}
        assert found["other"]["seed"] == list(range(50))

    def test_delta_history_of_a_fork_contains_its_own_ancestors(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        fork = rig.continuing(configs[4])
        for n in range(20, 23):
            step(rig, fork, n)
        assert history(rig, at()) == walked(rig.face.saver, at())
        found = rig.face.delta_history(at(), CHANNELS)["items"]["writes"]
        assert [value[0] for _, _, value in found][::2] == ["2 a", "3 a", "4 a", "20 a", "21 a"]
        assert history(rig, configs[-1]) == walked(rig.face.saver, configs[-1])

    def test_delta_history_ends_at_a_cycle_of_parents(self, rig: Rig) -> None:
        """No graph creates one, but a descendant may become a parent when written again."""
        author = rig.author()
        first, second = (author.put({"plain": n}, checkpoint_id=f"c{n}") for n in (1, 2))
        rig.continuing(second).put({"plain": 3}, checkpoint_id="c1")
        rig.face.put_writes(first, [("items", ["first"])], "task 1")
        rig.face.put_writes(second, [("items", ["second"])], "task 2")
        for config, other in ((first, "second"), (second, "first"), (at(), "second")):
            found = rig.face.delta_history(config, CHANNELS)
            assert [value for _, _, value in found["items"]["writes"]] == [[other]]

    def test_delta_history_survives_a_prune(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        before = history(rig, at())
        rig.face.prune(["t"])
        assert [found.config for found in rig.face.list(at())] == [configs[-1]]
        assert rig.face.get_tuple(configs[-2]) is None
        assert list(rig.face.list(configs[-2])) == []
        assert_found(rig, at(), before)
        rig.face.prune(["t"])
        assert_found(rig, at(), before)

    def test_a_put_on_a_ghost_is_refused(self, rig: Rig) -> None:
        ten_steps(rig)
        rig.face.prune(["t"])
        hidden = rig.face.read(at()).parent_config
        assert hidden is not None
        found = rig.face.read(hidden)
        assert (found.config, found.parent_config) == (hidden, None)
        with pytest.raises(NotFound, match="pruned"):
            rig.face.put(hidden, checkpoint_of("new", {}), {"source": "update", "step": 9, "parents": {}}, {})
        rig.face.delete_thread("t")
        assert rig.face.get_tuple(hidden) is None

    def test_a_first_checkpoint_has_no_parent(self, rig: Rig) -> None:
        config = step(rig, rig.author(), 0)
        rig.face.prune(["t"])
        assert rig.face.read(config).parent_config is None

    def test_delta_channels_continue_after_a_prune(self, rig: Rig) -> None:
        ten_steps(rig)
        for n in range(10, 16):
            step(rig, rig.continuing(at()), n, snapshot=n == 13)
            rig.face.prune(["t"])
            writes = rig.face.delta_history(at(), CHANNELS)
            assert [value for _, _, value in writes["other"]["writes"]] == list(range(n))
            if n == 13:
                continue  # this checkpoint contains the value, so earlier ones are not needed
            since = 6 if n < 13 else 13
            assert [value for _, _, value in writes["items"]["writes"]][::2] == [[f"{k} a"] for k in range(since, n)]

    def test_prune_keeps_only_the_needed_data_of_delta_ancestors(self, rig: Rig) -> None:
        author = rig.author()
        secret = "seen in raw bytes " * 5
        config = author.put({"plain": secret}, metadata={"counters_since_delta_snapshot": {"items": [1, 1]}})
        rig.face.put_writes(config, [("items", ["a"])], "task")
        author.put({}, metadata={"counters_since_delta_snapshot": {"items": [2, 2]}})
        assert secret.encode() in rig.backend.raw()
        rig.face.prune(["t"])
        assert secret.encode() not in rig.backend.raw()
        found = rig.face.delta_history(at(), ["items"])
        assert [value for _, _, value in found["items"]["writes"]] == [["a"]]

    def test_delta_history_survives_a_copy(self, rig: Rig) -> None:
        ten_steps(rig)
        before = history(rig, at())
        rig.face.prune(["t"])
        rig.face.copy_thread("t", "copy")
        rig.face.delete_thread("t")
        assert_found(rig, at("copy"), before)
        step(rig, rig.continuing(at("copy")), 10)
        found = rig.face.delta_history(at("copy"), CHANNELS)
        assert [value for _, _, value in found["other"]["writes"]] == list(range(10))

    def test_delta_history_survives_the_deletion_of_runs(self, rig: Rig) -> None:
        author = rig.author()
        for n in range(9):
            step(rig, author, n, snapshot=n == 2, run_id=f"run {n % 3}")
        before = history(rig, at())
        rig.face.delete_for_runs(["run 1", "run 0"])
        assert [found.metadata["run_id"] for found in rig.face.list(at())] == ["run 2"] * 3
        assert_found(rig, at(), before)

    def test_a_ghost_is_never_used_as_a_base(self, rig: Rig) -> None:
        counters = {"counters_since_delta_snapshot": {"items": [1, 1]}}
        long = ["x" * 300 + str(n) for n in range(9)]
        other = rig.open()
        first = rig.author().put({"plain": long}, metadata=counters)
        rig.continuing(at(), other).put({"plain": ["y" * 300]}, metadata=counters)
        author = rig.continuing(first)
        other.prune(["t"])
        stored = author.put({"plain": [*long, "z" * 300]}, metadata=counters)
        assert values_of(rig.face.read(stored)) == {"plain": [*long, "z" * 300]}

    def test_a_ghost_stored_again_is_visible(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        rig.face.prune(["t"])
        rig.author().put({"plain": "again"}, checkpoint_id=id_of(configs[-2]))
        assert values_of(rig.face.read(at())) == {"plain": "again"}

    def test_a_delta_snapshot_is_inherited_until_the_next_write(self, rig: Rig) -> None:
        author = rig.author()
        told = [step_after(author, n) for n in range(4)]
        assert told == [values_of(rig.face.read(at("t", "", name))) for name in map(id_of, configs_of(rig))]
        assert ["items" in values for values in told] == [True, True, True, False]

    def test_an_inherited_snapshot_is_not_stored_twice(self, warm: Rig) -> None:
        author = warm.author()
        step_after(author, 0)
        before = len(warm.backend.raw())
        step_after(author, 1)
        assert len(warm.backend.raw()) - before < 4 * len(LONG)

    def test_a_snapshot_is_inherited_after_a_prune_and_in_a_copy(self, rig: Rig) -> None:
        author = rig.author()
        told = [step_after(author, n) for n in range(3)]
        rig.face.prune(["t"])
        rig.face.copy_thread("t", "copy")
        rig.face.delete_thread("t")
        assert values_of(rig.face.read(at("copy"))) == told[-1]
        assert step_after(rig.continuing(at("copy")), 2) == told[-1]
        assert "items" not in step_after(rig.continuing(at("copy")), 3)

    def test_no_snapshot_is_inherited_from_another_parent_or_version(self, warm: Rig) -> None:
        author = warm.author()
        step_after(author, 0)
        first = author.config
        author.put({"plain": 0}, written=["plain"], channel_versions={"plain": 5, "items": 3})
        assert values_of(warm.face.read(at())) == {"plain": 0}
        author.config = {**first, "configurable": {**first["configurable"], "checkpoint_id": "unknown"}}
        author.put({"plain": 0}, written=["plain"], channel_versions={"plain": 6, "items": 1})
        assert values_of(warm.face.read(at())) == {"plain": 0}

    def test_a_graph_with_a_delta_channel_survives_prunes_and_copies(self, rig: Rig) -> None:
        opened = GraphRuns(rig)
        for n in range(5):
            opened.invoke("t", [f"q{n}"])
        rig.face.copy_thread("t", "copy")
        rig.face.prune(["t"])
        for thread in ("t", "copy"):
            assert opened.state(thread) == [part for n in range(5) for part in (f"q{n}", f"re {n + 1}")]
            opened.invoke(thread, ["last"])
            assert opened.state(thread)[-3:] == ["re 5", "last", "re 6"]
        rig.face.prune(["t", "copy"])
        assert opened.state("t") == opened.state("copy")


def step_after(author: Author, n: int) -> dict[str, Any]:
    """Write the checkpoint of step `n` after a snapshot; return its values.

    The third step changes it.
    """
    values: dict[str, Any] = {"plain": n}
    snapshot = {"items": DeltaSnapshot(LONG)}
    updates = int(n == 3)
    author.put(
        values if n else values | snapshot,
        written=["plain", "items"] if n in (0, 3) else ["plain"],
        channel_versions={"plain": n + 1, "items": 1 + updates},
        metadata={"counters_since_delta_snapshot": {"items": (updates, n)}} if n else {},
    )
    return values if n == 3 else values | snapshot


def configs_of(rig: Rig) -> list[RunnableConfig]:
    """Return the configs of a thread's checkpoints, the oldest first."""
    return [found.config for found in rig.face.list(at())][::-1]


def extended(value: list[str], writes: list[list[str]]) -> list[str]:
    """Return a list with all writes appended."""
    return [*value, *(part for write in writes for part in write)]


class State(TypedDict):
    """A list that is stored as its writes."""

    items: Annotated[list[str], DeltaChannel(extended, snapshot_frequency=4)]


def reply(state: State) -> Mapping[str, Any]:
    """Answer with the number of questions."""
    return {"items": [f"re {sum(not item.startswith('re') for item in state['items'])}"]}


class GraphRuns:
    """Runs a graph of one node and one delta channel on the saver of a rig."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def _call(self, name: str, *args: Any) -> Any:
        face, builder = self._rig.face, StateGraph(State).add_node("reply", reply).add_edge(START, "reply")
        graph = builder.compile(checkpointer=face.saver)
        if isinstance(face, AsyncFace):
            return face.run(getattr(graph, f"a{name}")(*args))
        return getattr(graph, name)(*args)

    def invoke(self, thread: str, items: list[str]) -> None:
        """Run the graph on new items."""
        self._call("invoke", {"items": items}, at(thread))

    def state(self, thread: str) -> list[str]:
        """Return the value of the channel."""
        return list(self._call("get_state", at(thread)).values["items"])


def state(n: int) -> dict[str, Any]:
    """Return a state that has most in common with the next one."""
    return {"list": chat(n), "tree": {**TREE, "n": n}, "n": n}


def marked(found: CheckpointTuple, name: str) -> Any:
    """Return one of Keel's marks in a checkpoint's metadata."""
    return dict(found.metadata).get(name)


def eight_steps(rig: Rig) -> list[RunnableConfig]:
    """Write eight checkpoints, with pending writes."""
    configs = rig.author().follow([state(n) for n in range(1, 9)])
    for n, config in enumerate(configs):
        rig.face.put_writes(config, [("list", n), (INTERRUPT, f"question {n}")], f"task {n}")
    return configs


def with_memory(rig: Rig) -> list[RunnableConfig]:
    """Write five checkpoints.

    The second and third call a subgraph with a memory and one without.
    """
    root, memory, call = rig.author(), rig.author("t", MEMORY), rig.author("t", CALL)
    configs = []
    for n in range(5):
        config = root.put(state(n + 1))
        configs.append(config)
        if n in (1, 2):
            parents = {"parents": {"": id_of(config)}}
            for part in "ab":
                memory.put({"seen": [*chat(n), part]}, metadata=parents)
            call.put({"called": n}, metadata=parents)
    return configs


def remembered(rig: Rig) -> Any:
    """Return the state with which the subgraph with a memory would start."""
    found = rig.face.get_tuple(at("t", MEMORY))
    return values_of(found) if found else None


class TravelContract(RigFixtures):
    """`rewind`, and `fork` in the same thread."""

    @pytest.mark.parametrize("place", [0, 4, 7], ids=["first", "middle", "latest"])
    def test_rewinding_adds_a_twin(self, rig: Rig, place: int) -> None:
        configs = eight_steps(rig)
        before, original = told(rig, "t"), rig.face.read(configs[place])
        assert rig.face.rewind(configs[place]) == {"configurable": {"thread_id": "t"}}
        twin = rig.face.read(at())
        assert told(rig, "t")[1:] == before
        assert exact(values_of(twin)) == exact(values_of(original))
        assert id_of(twin) != id_of(original)
        assert twin.parent_config == original.parent_config
        assert twin.pending_writes == []
        own = {"id": twin.checkpoint["id"], "ts": twin.checkpoint["ts"]}
        assert exact(twin.checkpoint) == exact({**original.checkpoint, **own})
        assert twin.checkpoint["ts"] > original.checkpoint["ts"]
        assert twin.metadata == {**original.metadata, "source": "fork", "keel_rewound_to": id_of(original)}

    def test_a_run_continues_from_the_rewound_checkpoint(self, rig: Rig) -> None:
        configs = eight_steps(rig)
        late = rig.continuing(at(), rig.open())
        config = rig.face.rewind(configs[3])
        run = rig.continuing(config)
        twin = id_of(run.config)
        stored = run.follow([state(50), state(51)])
        assert id_of(rig.face.read(at())) == id_of(stored[-1])
        assert exact(values_of(rig.face.read(at()))) == exact(state(51))
        assert id_of(rig.face.read(stored[0]).parent_config) == twin
        with pytest.raises(CheckpointConflict):
            late.put(state(9))
        assert exact(values_of(rig.face.read(configs[7]))) == exact(state(8))

    def test_a_run_of_another_saver_continues_from_the_rewound_checkpoint(self, warm: Rig) -> None:
        configs = eight_steps(warm)
        other = warm.open()
        other.read(at())
        warm.face.rewind(configs[2])
        run = warm.continuing(at(), other)
        for n in range(40):
            run.put(state(3 + n))
        assert exact(values_of(warm.face.read(at()))) == exact(state(42))

    def test_rewinding_again_and_to_a_twin(self, rig: Rig) -> None:
        configs = eight_steps(rig)
        rig.face.rewind(configs[2])
        first = rig.face.read(at())
        rig.continuing(at()).put(state(9))
        rig.face.rewind(first.config)
        again = rig.face.read(at())
        assert marked(again, "keel_rewound_to") == id_of(first)
        assert exact(values_of(again)) == exact(state(3))
        assert again.parent_config == first.parent_config == rig.face.read(configs[2]).parent_config
        rig.face.rewind(configs[6])
        assert exact(values_of(rig.face.read(at()))) == exact(state(7))
        rig.face.rewind(at())
        assert marked(rig.face.read(at()), "keel_rewound_to") != id_of(configs[6])
        assert exact(values_of(rig.face.read(at()))) == exact(state(7))
        assert len(told(rig, "t")) == 8 + 1 + 4

    def test_rewinding_to_a_branch(self, warm: Rig) -> None:
        warm.author().follow([state(1), state(2)])
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        winner.put(state(3))
        lost = loser.put({"n": "lost"})
        warm.face.rewind(lost)
        assert values_of(warm.face.read(at())) == {"n": "lost"}
        warm.continuing(at()).put({"n": "next"})
        assert values_of(warm.face.read(at())) == {"n": "next"}
        winner.put({"n": "too late"})
        assert values_of(warm.face.read(at())) == {"n": "next"}

    def test_rewinding_does_not_copy_pending_questions(self, rig: Rig) -> None:
        configs = eight_steps(rig)
        rig.face.rewind(configs[4])
        assert rig.face.read(at()).pending_writes == []
        asked = rig.face.read(configs[4]).pending_writes
        assert asked == [("task 4", INTERRUPT, "question 4"), ("task 4", "list", 4)]
        rig.face.put_writes(rig.face.read(at()).config, [(INTERRUPT, "anew")], "new task")
        assert rig.face.read(at()).pending_writes == [("new task", INTERRUPT, "anew")]
        assert rig.face.read(configs[4]).pending_writes == asked

    @pytest.mark.parametrize("place", [0, 3, 6, 9])
    def test_rewinding_restores_delta_channels(self, rig: Rig, place: int) -> None:
        configs = ten_steps(rig)
        before = history(rig, configs[place])
        rig.face.rewind(configs[place])
        assert history(rig, at()) == before
        run = rig.continuing(at())
        for n in (20, 21):
            step(rig, run, n)
        assert history(rig, at()) == walked(rig.face.saver, at())
        writes = rig.face.delta_history(at(), ["other"])["other"]["writes"]
        assert [value for _, _, value in writes] == [*range(place), 20]

    def test_a_twin_is_complete_after_a_prune(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        before, values = history(rig, configs[5]), values_of(rig.face.read(configs[5]))
        rig.face.rewind(configs[5])
        rig.face.prune(["t"])
        assert len(told(rig, "t")) == 1
        assert values_of(rig.face.read(at())) == values
        assert of(history(rig, at()), "items", "other") == of(before, "items", "other")
        # Now its parent is only kept for delta channels.
        for make in (rig.face.rewind, rig.face.fork):
            config = make(at())
            assert of(history(rig, {**at(), **config}), "items", "other") == of(before, "items", "other")

    def test_values_of_a_twin_are_complete_after_a_prune(self, warm: Rig) -> None:
        configs = eight_steps(warm)
        warm.face.rewind(configs[5])
        warm.face.prune(["t"])
        assert exact(values_of(warm.face.read(at()))) == exact(state(6))
        warm.continuing(at()).put(state(7))
        assert exact(values_of(warm.open().read(at()))) == exact(state(7))

    def test_a_twin_belongs_to_the_run_that_wrote_its_state(self, rig: Rig) -> None:
        author = rig.author()
        configs = [author.put(state(n), metadata={"run_id": "odd" if n % 2 else "even"}) for n in range(6)]
        rig.face.rewind(configs[3])
        found = list(rig.face.list(at(), filter={"source": "fork"}))
        assert [id_of(each) for each in found] == [id_of(rig.face.read(at()))]
        assert found[0].metadata["run_id"] == "odd"
        rig.face.delete_for_runs(["odd"])
        assert exact(values_of(rig.face.read(at()))) == exact(state(4))
        assert found[0].parent_config is not None
        assert len(told(rig, "t")) == 3

    def test_rewinding_restores_memories_of_subgraphs(self, rig: Rig) -> None:
        configs = with_memory(rig)
        after = {0: None, 1: None, 2: [*chat(1), "b"], 3: [*chat(2), "b"], 4: [*chat(2), "b"]}
        for place in (2, 0, 4, 1, 3, 1, 4, 4, 2):
            before = told(rig, "t")
            rig.face.rewind(configs[place])
            expected = {} if after[place] is None else {"seen": after[place]}
            assert exact(remembered(rig)) == exact(expected), f"at step {place}"
            assert rig.face.read(at("t", MEMORY)).pending_writes == []
            assert [each for each in told(rig, "t") if each in before] == before
        calls = [id_of(each) for each in rig.face.list(at("t", CALL))]
        assert calls == [each[1] for each in told(rig, "t") if each[0] == CALL]
        assert len(calls) == 2

    def test_rewinding_restores_memories_written_after_a_rewind(self, rig: Rig) -> None:
        configs = with_memory(rig)
        rig.face.rewind(configs[2])
        root, memory = rig.continuing(at()), rig.continuing(at("t", MEMORY))
        called_by = {"parents": {"": id_of(root.config)}}
        memory.put({"seen": ["anew"]}, metadata=called_by)
        then = root.put(state(60))
        root.put(state(61))
        rig.face.rewind(configs[4])
        assert exact(remembered(rig)) == exact({"seen": [*chat(2), "b"]})
        rig.face.rewind(then)
        assert remembered(rig) == {"seen": ["anew"]}
        count = len(told(rig, "t"))
        rig.face.rewind(then)
        assert len(told(rig, "t")) == count + 1, "a memory that is where it should be stays as it is"

    def test_rewinding_restores_memories_without_a_stored_caller(self, rig: Rig) -> None:
        """With `durability="exit"` it never is. Checkpoints between two root checkpoints belong to the second."""
        root, memory, ends = rig.author(), rig.author("t", MEMORY), []
        for n in range(3):
            memory.put({"seen": n}, metadata={"parents": {"": "never stored"}})
            ends.append(root.put(state(n + 1)))
        for place in (1, 0, 2, 0):
            rig.face.rewind(ends[place])
            assert remembered(rig) == {"seen": place}
        # On a path from the former latest checkpoint, twins written after it do not count.
        later = rig.continuing(ends[2]).put(state(9))
        rig.face.rewind(later)
        assert remembered(rig) == {"seen": 2}

    def test_rewinding_to_a_replay_restores_the_memories_before_it(self, rig: Rig) -> None:
        """LangGraph's replay starts with a copy of the checkpoint as its child, same step."""
        configs = with_memory(rig)
        step_of = rig.face.read(configs[2]).metadata["step"]
        copy = rig.continuing(configs[2]).put(state(3), metadata={"source": "fork", "step": step_of})
        rig.face.rewind(copy)
        assert exact(remembered(rig)) == exact({"seen": [*chat(1), "b"]})
        rig.face.rewind(configs[0])
        count = len(told(rig, "t"))
        rig.face.rewind(configs[1])
        assert remembered(rig) == {}
        assert len(told(rig, "t")) == count + 1, "a memory that is empty is not emptied again"

    def test_rewinding_to_a_concurrently_pruned_checkpoint_is_refused(self, warm: Rig) -> None:
        for verb in ("rewind", "fork"):
            warm.backend.wipe()
            config = eight_steps(warm)[3]
            meanwhile = Meanwhile(1, lambda: warm.backend.open().prune(["t"]))
            face = warm.on(with_tap(warm.backend.open(), meanwhile))
            with pytest.raises(NotFound, match="concurrently"):
                getattr(face, verb)(config)
            assert len(told(warm, "t")) == 1

    def test_rewinding_to_an_unknown_checkpoint_is_refused(self, rig: Rig) -> None:
        eight_steps(rig)
        rig.author("t", "sub").put({"a": 1})
        before = rig.backend.raw()
        for go in (rig.face.rewind, rig.face.fork):
            for config in (at("t", "", "unknown"), at("unknown"), at("unknown", "", "00000001")):
                with pytest.raises(NotFound, match="no such checkpoint"):
                    go(config)
            with pytest.raises(InvalidInput, match="subgraph"):
                go(at("t", "sub"))
        rig.face.prune(["t"])
        with pytest.raises(NotFound, match="00000003"):
            rig.face.rewind(at("t", "", "00000003"))
        assert len(before) > len(rig.backend.raw())

    def test_rewinding_takes_few_round_trips(self, warm: Rig) -> None:
        configs = with_memory(warm)
        counter = Counter()
        face = warm.on(with_tap(warm.backend.open(), counter))
        face.rewind(configs[3])
        assert counter.taken() <= 3  # one of them reads the thread's questions
        face.rewind(configs[2])
        assert counter.taken() <= 4
        face.fork(configs[2])
        assert counter.taken() <= 2

    @pytest.mark.parametrize("lost_reply", [False, True])
    def test_rewinding_may_break_anywhere(self, warm: Rig, lost_reply: bool) -> None:
        for trip in count():
            warm.backend.wipe()
            configs = with_memory(warm)
            before, latest = told(warm, "t"), exact(values_of(warm.face.read(at())))
            fault = Fault(trip, lost_reply=lost_reply)
            try:
                warm.on(with_tap(warm.backend.open(), fault)).rewind(configs[2])
            except Injected:
                assert exact(values_of(warm.face.read(at()))) in (latest, exact(state(3)))
            assert [each for each in told(warm, "t") if each in before] == before
            warm.face.rewind(configs[2])
            assert exact(values_of(warm.face.read(at()))) == exact(state(3))
            assert exact(remembered(warm)) == exact({"seen": [*chat(1), "b"]})
            if not fault.fired:
                break

    def test_forking_within_a_thread_does_not_move_its_head(self, rig: Rig) -> None:
        configs = eight_steps(rig)
        before, latest = told(rig, "t"), rig.face.read(at())
        for place in (7, 0, 4):
            config = rig.face.fork(configs[place])
            twin, original = rig.face.read(config), rig.face.read(configs[place])
            assert exact(values_of(twin)) == exact(values_of(original))
            assert (twin.parent_config, twin.pending_writes) == (original.parent_config, [])
            assert marked(twin, "keel_branched_from") == id_of(original)
            assert rig.face.read(at()) == latest
        assert told(rig, "t")[3:] == before
        run = rig.continuing(config)
        stored = run.put(state(70))
        assert id_of(rig.face.read(at())) == id_of(stored)
        assert id_of(rig.face.read(stored).parent_config) == id_of(config)
        rig.face.rewind(configs[7])
        assert exact(values_of(rig.face.read(at()))) == exact(state(8))


def lived(rig: Rig) -> tuple[list[RunnableConfig], list[Any]]:
    """Write eight checkpoints with subgraphs, branches, writes; return all, and the data."""
    root, memory = rig.author(), rig.author("t", MEMORY)
    configs, then = [], []
    for n in range(8):
        # The clock of this host was wrong for a moment.
        checkpoint_id = "later than all" if n == 2 else None
        config = root.put(state(n + 1), checkpoint_id=checkpoint_id, metadata={"run_id": f"run {n % 2}"})
        configs.append(config)
        then.append(told(rig, "t"))
        memory.put({"seen": chat(n)}, metadata={"parents": {"": id_of(config)}})
        rig.author("t", f"{CALL[:-1]}{n}").put({"n": n}, metadata={"parents": {"": id_of(config)}})
        rig.face.put_writes(config, [("list", n)], "task 2", "~2")
        rig.face.put_writes(config, [("list", -n), (INTERRUPT, n)], "task 1", "~1")
        rig.face.put_writes(at("t", "", f"orphan {n}"), [("list", "orphan")], "task")
        if n == 3:
            rig.author("t").put({"list": chat(3), "n": "a branch"})
    return configs, then


def as_it_was(rig: Rig, thread: str, config: RunnableConfig) -> list[Any]:
    """Return all visible data of a fork, except the origin in its latest checkpoint."""
    (*latest, (kind, metadata), writes), *rest = told(rig, thread)
    origin = {"keel_forked_from": {"thread_id": "t", "checkpoint_id": id_of(config)}}
    assert metadata[-1:] == exact(origin)[1]
    return [(*latest, (kind, metadata[:-1]), writes), *rest]


class ForksContract(RigFixtures):
    """`fork` to another thread, and `Store.copy_thread` up to an entry."""

    @pytest.mark.parametrize("place", [0, 3, 5, 7])
    def test_a_fork_equals_the_thread_at_that_checkpoint(self, rig: Rig, place: int) -> None:
        configs, then = lived(rig)
        before = told(rig, "t")
        assert rig.face.fork(configs[place], "fork") == {"configurable": {"thread_id": "fork"}}
        assert as_it_was(rig, "fork", configs[place]) == then[place]
        assert told(rig, "t") == before
        latest = rig.face.read(at("fork"))
        assert id_of(latest) == id_of(configs[place])
        assert latest.pending_writes == []
        assert exact(values_of(latest)) == exact(state(place + 1))
        memory = rig.face.get_tuple(at("fork", MEMORY))
        assert exact(memory and values_of(memory)) == exact({"seen": chat(place - 1)} if place else None)

    def test_a_superseded_checkpoint_is_the_latest_of_its_fork(self, warm: Rig) -> None:
        warm.author().follow([state(1), state(2)])
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        winner.put(state(3))
        lost = loser.put({"n": "lost"})
        warm.face.fork(lost, "fork")
        assert values_of(warm.face.read(at("fork"))) == {"n": "lost"}
        run, late = (warm.continuing(at("fork"), warm.open()) for _ in range(2))
        stored = run.put({"n": "next"})
        assert id_of(warm.face.read(at("fork"))) == id_of(stored)
        with pytest.raises(CheckpointConflict):
            late.put({"n": "too late"})
        assert exact(values_of(warm.face.read(at()))) == exact(state(3))

    def test_a_rewound_thread_can_be_forked(self, rig: Rig) -> None:
        configs, _ = lived(rig)
        rig.face.rewind(configs[2])
        rig.face.fork(at(), "fork")
        latest = rig.face.read(at("fork"))
        assert exact(values_of(latest)) == exact(state(3))
        assert marked(latest, "keel_rewound_to") == id_of(configs[2])
        assert marked(latest, "keel_forked_from") == {"thread_id": "t", "checkpoint_id": id_of(latest)}
        assert exact(values_of(rig.face.read(at("fork", MEMORY)))) == exact({"seen": chat(1)})
        rig.face.rewind(at("fork", "", id_of(configs[6])))
        assert exact(values_of(rig.face.read(at("fork")))) == exact(state(7))

    def test_fork_and_source_are_independent(self, warm: Rig) -> None:
        configs, then = lived(warm)
        before = told(warm, "t")
        warm.face.fork(configs[4], "fork")
        runs = {thread: warm.continuing(at(thread)) for thread in ("t", "fork")}
        states = {"t": chat(8), "fork": chat(5)}
        for n in range(40):
            for thread, run in runs.items():
                states[thread] = [*states[thread], *chat(1, 1000 + n + 500 * len(thread))]
                run.put({"list": states[thread]})
        for thread in runs:
            assert exact(values_of(warm.open().read(at(thread)))) == exact({"list": states[thread]})
        assert told(warm, "t")[40:] == before
        forked = told(warm, "fork")[40:]
        assert [each[:4] for each in forked] == [each[:4] for each in then[4]]
        assert forked[1:] == then[4][1:]

    def test_fork_and_source_survive_deletion_of_each_other(self, rig: Rig) -> None:
        configs, _ = lived(rig)
        source = told(rig, "t")
        rig.face.fork(configs[4], "gone")
        rig.face.prune(["gone"])
        assert exact(values_of(rig.face.read(at("gone")))) == exact(state(5))
        rig.face.delete_thread("gone")
        assert told(rig, "t") == source
        rig.face.fork(configs[4], "fork")
        before = told(rig, "fork")
        rig.face.prune(["t"])
        assert told(rig, "fork") == before
        rig.face.delete_thread("t")
        assert told(rig, "fork") == before
        rig.face.fork(at("fork", "", id_of(configs[2])), "t")
        assert exact(values_of(rig.face.read(at()))) == exact(state(3))
        assert told(rig, "fork") == before

    def test_a_fork_contains_no_later_data(self, rig: Rig) -> None:
        root = rig.author()
        configs = root.follow([{"list": chat(n), "n": n} for n in range(1, 4)])
        rig.face.put_writes(configs[2], [("list", LATER)], "task")
        rig.face.put_writes(at("t", "", "orphan"), [("list", LATER)], "task")
        root.put({"list": [*chat(3), {"text": LATER}], "text": f"{LATER} " * 9}, metadata={"note": LATER})
        rig.author("t", f"sub {LATER}").put({"text": LATER})
        rig.author("t", MEMORY).put({"text": LATER, LATER: f"{LATER} " * 9})
        assert rig.backend.raw().count(LATER.encode()) >= 6
        rig.face.fork(configs[2], "fork")
        rig.face.delete_thread("t")
        assert LATER.encode() not in rig.backend.raw()
        assert exact(values_of(rig.face.read(at("fork")))) == exact({"list": chat(3), "n": 3})

    def test_a_fork_excludes_subgraph_checkpoints_called_by_its_latest(self, rig: Rig) -> None:
        first = rig.author().put(state(1), checkpoint_id="first")
        memory, call = rig.author("t", MEMORY), rig.author("t", CALL)
        memory.put({"seen": "before"}, metadata={"parents": {"": "first"}})
        for author in (memory, call):
            author.put({"seen": LATER * 9}, metadata={"parents": {"": "second"}})
            rig.face.put_writes(author.config, [("seen", LATER)], "task")
        second = rig.continuing(first).put(state(2), checkpoint_id="second")
        rig.face.fork(second, "fork")
        assert values_of(rig.face.read(at("fork", MEMORY))) == {"seen": "before"}
        assert [id_of(each) for each in rig.face.list(at("fork"))] == ["second", "first"]
        assert rig.face.get_tuple(at("fork", CALL)) is None
        rig.face.delete_thread("t")
        assert LATER.encode() not in rig.backend.raw()

    @pytest.mark.parametrize("place", [2, 6, 9])
    def test_delta_channels_are_forked(self, rig: Rig, place: int) -> None:
        configs = ten_steps(rig)
        before = history(rig, configs[place])
        rig.face.fork(configs[place], "fork")
        rig.face.delete_thread("t")
        assert history(rig, at("fork")) == before
        step(rig, rig.continuing(at("fork")), 20)
        writes = rig.face.delta_history(at("fork"), CHANNELS)["other"]["writes"]
        assert [value for _, _, value in writes] == list(range(place))

    def test_ghosts_are_forked(self, rig: Rig) -> None:
        ten_steps(rig)
        rig.face.prune(["t"])
        head = rig.face.read(at())
        before = history(rig, at())
        step(rig, rig.continuing(at()), 10)
        rig.face.fork(head.config, "fork")
        rig.face.delete_thread("t")
        assert of(history(rig, at("fork")), "items", "other") == of(before, "items", "other")
        assert len(told(rig, "fork")) == 1

    def test_invalid_sources_and_targets_of_a_fork_are_refused(self, rig: Rig) -> None:
        configs, _ = lived(rig)
        rig.author("checkpoint").put({"a": 1})
        rig.face.put_writes(at("only writes", "", "c"), [("a", 1)], "task")
        before = rig.backend.raw()
        for target in ("checkpoint", "only writes", "t"):
            with pytest.raises(ThreadExists, match=target):
                rig.face.fork(configs[3], target)
        for config in (at("t", "", "unknown"), at("unknown"), at("unknown", "", "c")):
            with pytest.raises(NotFound, match="no such checkpoint"):
                rig.face.fork(config, "fork")
        with pytest.raises(InvalidInput, match="subgraph"):
            rig.face.fork(at("t", MEMORY), "fork")
        assert rig.backend.raw() == before
        rig.face.fork(configs[3], "fork")

    def test_a_copy_up_to_a_removed_entry_is_refused(self, rig: Rig) -> None:
        ten_steps(rig)
        rig.author("other").follow([{"n": 1}, {"n": 2}])
        latest, *gone_and_ghosts = rig.face.verb("scan", Query("t", ""))
        (of_other, *_) = rig.face.verb("scan", Query("other", ""))
        rig.face.prune(["t"])
        before = rig.backend.raw()
        for entry in (*gone_and_ghosts, of_other):
            assert rig.face.verb("copy_thread", "t", "target", entry) == BaseGone()
            assert rig.face.verb("copy_thread", "t", "other", entry) == Occupied()
        assert rig.face.verb("copy_thread", "unknown", "target", latest) == BaseGone()
        assert rig.backend.raw() == before
        assert rig.face.verb("copy_thread", "t", "target", latest) == Copied()
        assert [each[:5] for each in told(rig, "target")] == [each[:5] for each in told(rig, "t")]
        rig.face.delete_thread("t")
        rig.author().put({"n": "another life"})
        assert rig.face.verb("copy_thread", "t", "second", latest) == BaseGone()

    def test_a_fork_is_listed_with_its_own_time_and_runs(self, rig: Rig) -> None:
        root = rig.author()
        configs = [
            root.put({"n": n}, ts=f"2026-01-0{n + 1}T00:00:00+00:00", metadata={"run_id": f"run {n % 2}"})
            for n in range(6)
        ]
        began = datetime.now(UTC).isoformat()
        rig.face.fork(configs[3], "fork")
        infos = {info.thread_id: info for info, _ in rig.face.verb("read_threads", Page(None, 10))}
        assert infos["fork"].updated_at >= began > infos["t"].updated_at == "2026-01-06T00:00:00+00:00"
        assert [info.thread_id for info in rig.face.saver.threads()] == ["fork", "t"]
        assert (infos["fork"].checkpoints, infos["fork"].latest) == (4, id_of(configs[3]))
        assert sorted(rig.face.verb("find_runs", ["run 1"])) == ["fork", "t"]
        rig.face.delete_for_runs(["run 1"])
        assert [values_of(each)["n"] for each in rig.face.list(at("fork"))] == [2, 0]
        assert rig.face.verb("find_runs", ["run 1"]) == []
        rig.face.fork(at("fork"), "again")
        rig.face.delete_for_runs(["run 0"])
        assert list(rig.face.list(None)) == []

    def test_a_parent_stored_again_is_not_a_parent_in_the_fork(self, rig: Rig) -> None:
        """Its number is later than the copy's. No other entry of the fork may get that number and become the parent."""
        first, second = rig.author().follow([{"n": 1}, {"n": 2}])
        rig.face.put(at(), checkpoint_of(str(id_of(first)), {"n": 1}))
        rig.face.fork(second, "fork")
        assert rig.face.read(at("fork")).parent_config is None
        run = rig.continuing(at("fork"))
        run.follow([{"n": n} for n in range(3, 9)])
        assert rig.face.read(at("fork", "", id_of(second))).parent_config is None

    def test_forking_takes_few_round_trips(self, warm: Rig) -> None:
        configs, _ = lived(warm)
        counter = Counter()
        face = warm.on(with_tap(warm.backend.open(), counter))
        face.fork(configs[4], "fork")
        assert counter.taken() <= 15  # six of them are for the ledger: its calls, and threads that share a history

    def test_forking_a_concurrently_pruned_checkpoint_is_refused(self, warm: Rig) -> None:
        configs, _ = lived(warm)
        meanwhile = Meanwhile(1, lambda: warm.backend.open().prune(["t"]))
        with pytest.raises(NotFound, match="no such checkpoint"):
            warm.on(with_tap(warm.backend.open(), meanwhile)).fork(configs[4], "fork")
        assert told(warm, "fork") == []
        warm.author("fork").put({"n": 1})

    @pytest.mark.parametrize("lost_reply", [False, True])
    def test_forking_may_break_anywhere(self, warm: Rig, lost_reply: bool) -> None:
        configs, then = lived(warm)
        for trip in count():
            fault, target = Fault(trip, lost_reply=lost_reply), f"fork {trip}"
            try:
                warm.on(with_tap(warm.backend.open(), fault)).fork(configs[4], target)
            except Injected:
                assert not told(warm, target) or as_it_was(warm, target, configs[4]) == then[4]
                warm.face.delete_thread(target)
                warm.face.fork(configs[4], target)
            assert as_it_was(warm, target, configs[4]) == then[4]
            if not fault.fired:
                break


Told = list[tuple[str, tuple[Any, ...], Any]]


def told_changes(rig: Rig, before: RunnableConfig, after: RunnableConfig) -> Told:
    """Return edits between checkpoints: kind, place, new (or removed) value."""
    found = rig.face.diff(before, after)
    return [
        (edit.kind, edit.path, exact(edit.before if edit.kind == "removed" else edit.after)) for edit in found.edits
    ]


class DiffContract(RigFixtures):
    """`diff`."""

    def test_a_diff_contains_only_changes(self, rig: Rig) -> None:
        first, second = rig.author().follow([state(3), state(5)])
        added = [("added", ("list", n), exact(chat(5)[n])) for n in (3, 4)]
        assert told_changes(rig, first, second) == [
            *added,
            ("changed", ("tree", "n"), exact(5)),
            ("changed", ("n",), exact(5)),
        ]
        assert told_changes(rig, first, first) == []
        removed = [("removed", ("list", n), exact(chat(5)[n])) for n in (3, 4)]
        assert told_changes(rig, second, first) == [
            *removed, ("changed", ("tree", "n"), exact(3)), ("changed", ("n",), exact(3)),
        ]  # fmt: skip

    @pytest.mark.parametrize("places", [(0, 69), (30, 31), (40, 20)], ids=str)
    def test_a_diff_of_a_long_thread_with_packed_rows(self, rig: Rig, places: tuple[int, int]) -> None:
        configs = rig.author().follow([{"list": chat(n + 1), "tree": TREE} for n in range(70)])
        lo, hi = (configs[place] for place in places)
        kind = "added" if places[0] < places[1] else "removed"
        between = range(min(places) + 1, max(places) + 1)
        assert told_changes(rig, lo, hi) == [(kind, ("list", n), exact(chat(70)[n])) for n in between]

    def test_a_diff_finds_edits_in_the_middle_of_a_list(self, rig: Rig) -> None:
        messages = chat(40)
        edited = [*messages[:7], *messages[8:20], *chat(1, 100), *messages[20:]]
        first, second = rig.author().follow([{"list": messages}, {"list": edited}])
        assert told_changes(rig, first, second) == [
            ("removed", ("list", 7), exact(messages[7])),
            ("added", ("list", 19), exact(chat(1, 100)[0])),
        ]

    def test_a_diff_contains_added_and_removed_channels(self, rig: Rig) -> None:
        first, second = rig.author().follow([{"a": 1, "b": [1], "c": {"x"}}, {"b": [], "c": {"x"}, "d": None}])
        assert told_changes(rig, first, second) == [
            ("removed", ("a",), exact(1)),
            ("removed", ("b", 0), exact(1)),
            ("added", ("d",), exact(None)),
        ]

    def test_a_diff_ignores_pending_writes_and_questions(self, rig: Rig) -> None:
        first, second = rig.author().follow([state(2), state(3)])
        expected = told_changes(rig, first, second)
        rig.face.put_writes(first, [("list", "early"), (INTERRUPT, "may I?")], "task", "~1")
        assert told_changes(rig, first, second) == expected

    def test_a_diff_between_branches_and_with_a_twin(self, rig: Rig) -> None:
        configs = rig.author().follow([state(n) for n in range(1, 6)])
        branch = rig.continuing(configs[1]).put({**state(2), "n": "branch"})
        assert told_changes(rig, configs[1], branch) == [("changed", ("n",), exact("branch"))]
        rig.face.rewind(configs[2])
        assert told_changes(rig, configs[2], at()) == []
        assert told_changes(rig, at(), configs[3]) == told_changes(rig, configs[2], configs[3])

    def test_a_diff_between_threads(self, rig: Rig) -> None:
        [first] = rig.author().follow([state(3)])
        [other] = rig.author("other").follow([{**state(3), "list": [*chat(3), *chat(1, 9)]}])
        assert told_changes(rig, first, other) == [("added", ("list", 3), exact(chat(1, 9)[0]))]
        rig.face.fork(first, "fork")
        assert told_changes(rig, first, at("fork")) == []

    def test_a_diff_in_a_subgraph(self, rig: Rig) -> None:
        with_memory(rig)
        found = [each.config for each in rig.face.list(at("t", MEMORY))]
        assert len(found) == 4
        assert told_changes(rig, found[1], found[0]) == [("changed", ("seen", 2), exact("b"))]

    def test_a_diff_ignores_snapshots_of_delta_channels(self, rig: Rig) -> None:
        configs = ten_steps(rig)  # with a snapshot in the third, which does not count as a change
        assert told_changes(rig, configs[1], configs[2]) == [("changed", ("plain",), exact(2))]
        assert told_changes(rig, configs[2], configs[3]) == [("changed", ("plain",), exact(3))]

    def test_a_diff_with_an_unknown_checkpoint_is_refused(self, rig: Rig) -> None:
        [first] = rig.author().follow([state(1)])
        for missing in (at("t", "", "nothing"), at("nobody"), at("t", "sub", id_of(first))):
            with pytest.raises(NotFound):
                rig.face.diff(first, missing)
            with pytest.raises(NotFound):
                rig.face.diff(missing, first)
