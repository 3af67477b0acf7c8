"""Delta channels: their values are the writes of ancestors, which must be there for as long as somebody needs them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_keel.saver import KeelSaver
from langgraph_keel.testing.faces import AsyncFace
from langgraph_keel.testing.rig import Author, Rig, RigFixtures, at, exact, id_of, values_of

CHANNELS = ["items", "other", "never"]


def walked(saver: KeelSaver, config: RunnableConfig, channels: list[str] = CHANNELS) -> Any:
    """Return the history as the walk that every saver inherits finds it, one `get_tuple` after the other."""
    return exact(BaseCheckpointSaver.get_delta_channel_history(saver, config=config, channels=channels))


def history(rig: Rig, config: RunnableConfig) -> Any:
    """Return the history as the saver itself finds it."""
    return exact(rig.face.delta_history(config, CHANNELS))


def step(rig: Rig, author: Author, n: int, *, snapshot: bool = False, **metadata: Any) -> RunnableConfig:
    """Put a checkpoint whose delta channels are not in its values, and write to them as its tasks would."""
    values: dict[str, Any] = {"plain": n}
    if snapshot:
        values["items"] = _DeltaSnapshot([f"all before {n}", "x" * 100])
    counters = {"items": [0, 0] if snapshot else [n, n], "other": [n, n]}
    config = author.put(values, metadata={"counters_since_delta_snapshot": counters, **metadata})
    rig.face.put_writes(config, [("items", [f"{n} b"]), ("plain", n), ("other", n)], "task 2", "~2")
    rig.face.put_writes(config, [("items", [f"{n} a"])], "task 1", "~1")
    return config


def ten_steps(rig: Rig) -> list[RunnableConfig]:
    """Put ten checkpoints, two of them with a snapshot."""
    author = rig.author()
    return [step(rig, author, n, snapshot=n in (2, 6)) for n in range(10)]


def of(told: Any, *channels: str) -> Any:
    """Return what a history tells of these channels."""
    kind, pairs = told
    return kind, [pair for pair in pairs if pair[0] in channels]


class DeltaContract(RigFixtures):
    """`get_delta_channel_history`."""

    def test_finds_what_the_inherited_walk_finds(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        for config in [at(), *configs, at("t", "", "unknown"), at("unknown")]:
            assert history(rig, config) == walked(rig.face.saver, config)
        assert rig.face.delta_history(at(), []) == {}

    def test_tells_writes_and_seed(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        found = rig.face.delta_history(configs[4], CHANNELS)
        assert [value for _, _, value in found["items"]["writes"]] == [
            ["2 a"],
            ["2 b"],
            ["3 a"],
            ["3 b"],
        ]
        assert found["items"]["seed"] == _DeltaSnapshot(["all before 2", "x" * 100])
        assert [value for _, _, value in found["other"]["writes"]] == [0, 1, 2, 3]
        assert found["never"] == {"writes": []}
        assert "seed" not in found["other"]

    def test_any_stored_value_is_a_seed(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"items": None, "other": list(range(50))})
        config = author.put({})
        found = rig.face.delta_history(config, CHANNELS)
        assert found["items"] == {"writes": [], "seed": None}
        assert found["other"]["seed"] == list(range(50))

    def test_delta_forks_see_their_own_ancestors(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        fork = rig.continuing(configs[4])
        for n in range(20, 23):
            step(rig, fork, n)
        assert history(rig, at()) == walked(rig.face.saver, at())
        found = rig.face.delta_history(at(), CHANNELS)["items"]["writes"]
        assert [value[0] for _, _, value in found][::2] == ["2 a", "3 a", "4 a", "20 a", "21 a"]
        assert history(rig, configs[-1]) == walked(rig.face.saver, configs[-1])

    def test_delta_history_survives_a_prune(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        before = history(rig, at())
        rig.face.prune(["t"])
        assert [found.config for found in rig.face.list(at())] == [configs[-1]]
        assert rig.face.get_tuple(configs[-2]) is None
        assert rig.face.read(at()).parent_config is None
        assert list(rig.face.list(configs[-2])) == []
        assert of(before, "items", "other") == of(history(rig, at()), "items", "other")
        rig.face.prune(["t"])
        assert of(before, "items", "other") == of(history(rig, at()), "items", "other")

    def test_delta_channels_go_on_after_a_prune(self, rig: Rig) -> None:
        ten_steps(rig)
        for n in range(10, 16):
            step(rig, rig.continuing(at()), n, snapshot=n == 13)
            rig.face.prune(["t"])
            writes = rig.face.delta_history(at(), CHANNELS)
            assert [value for _, _, value in writes["other"]["writes"]] == list(range(n))
            if n == 13:
                continue  # the value is in this checkpoint: nobody asks what came before
            since = 6 if n < 13 else 13
            assert [value for _, _, value in writes["items"]["writes"]][::2] == [[f"{k} a"] for k in range(since, n)]

    def test_of_delta_ancestors_only_what_is_needed_is_kept(self, rig: Rig) -> None:
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
        assert of(history(rig, at("copy")), "items", "other") == of(before, "items", "other")
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
        assert of(history(rig, at()), "items", "other") == of(before, "items", "other")

    def test_nothing_is_built_on_a_ghost(self, rig: Rig) -> None:
        counters = {"counters_since_delta_snapshot": {"items": [1, 1]}}
        long = ["x" * 300 + str(n) for n in range(9)]
        other = rig.open()
        first = rig.author().put({"plain": long}, metadata=counters)
        rig.continuing(at(), other).put({"plain": ["y" * 300]}, metadata=counters)
        author = rig.continuing(first)
        other.prune(["t"])
        stored = author.put({"plain": [*long, "z" * 300]}, metadata=counters)
        assert values_of(rig.face.read(stored)) == {"plain": [*long, "z" * 300]}

    def test_a_ghost_put_again_is_seen_again(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        rig.face.prune(["t"])
        rig.author().put({"plain": "again"}, checkpoint_id=id_of(configs[-2]))
        assert values_of(rig.face.read(at())) == {"plain": "again"}

    def test_a_snapshot_stays_until_something_is_written(self, rig: Rig) -> None:
        author = rig.author()
        told = [step_after(author, n) for n in range(4)]
        assert told == [values_of(rig.face.read(at("t", "", name))) for name in map(id_of, configs_of(rig))]
        assert ["items" in values for values in told] == [True, True, True, False]

    def test_a_snapshot_that_stays_is_no_copy(self, warm: Rig) -> None:
        author = warm.author()
        step_after(author, 0)
        before = len(warm.backend.raw())
        step_after(author, 1)
        assert len(warm.backend.raw()) - before < 4 * len(LONG)

    def test_a_snapshot_stays_after_a_prune_and_in_a_copy(self, rig: Rig) -> None:
        author = rig.author()
        told = [step_after(author, n) for n in range(3)]
        rig.face.prune(["t"])
        rig.face.copy_thread("t", "copy")
        rig.face.delete_thread("t")
        assert values_of(rig.face.read(at("copy"))) == told[-1]
        assert step_after(rig.continuing(at("copy")), 2) == told[-1]
        assert "items" not in step_after(rig.continuing(at("copy")), 3)

    def test_of_another_parent_or_version_nothing_stays(self, warm: Rig) -> None:
        author = warm.author()
        step_after(author, 0)
        first = author.config
        author.put({"plain": 0}, written=["plain"], channel_versions={"plain": 5, "items": 3})
        assert values_of(warm.face.read(at())) == {"plain": 0}
        author.config = {**first, "configurable": {**first["configurable"], "checkpoint_id": "unknown"}}
        author.put({"plain": 0}, written=["plain"], channel_versions={"plain": 6, "items": 1})
        assert values_of(warm.face.read(at())) == {"plain": 0}

    def test_a_graph_with_a_delta_channel(self, rig: Rig) -> None:
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


LONG = [random.Random(n).random() for n in range(400)]


def step_after(author: Author, n: int) -> dict[str, Any]:
    """Put what LangGraph puts when `n` steps ago it put a snapshot, which the third step after that writes to.

    Returns:
        The values as they should be.
    """
    values: dict[str, Any] = {"plain": n}
    snapshot = {"items": _DeltaSnapshot(LONG)}
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
    """Return a list with all that was written appended."""
    return [*value, *(part for write in writes for part in write)]


class State(TypedDict):
    """A list that is stored as what was written to it."""

    items: Annotated[list[str], DeltaChannel(extended, snapshot_frequency=4)]


def reply(state: State) -> Mapping[str, Any]:
    """Answer with how many questions there were."""
    return {"items": [f"re {sum(not item.startswith('re') for item in state['items'])}"]}


class GraphRuns:
    """Runs a graph of one node and one delta channel on the saver of a rig."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def _graph(self) -> Any:
        builder = StateGraph(State)
        builder.add_node("reply", reply)
        builder.add_edge(START, "reply")
        return builder.compile(checkpointer=self._rig.face.saver)

    def invoke(self, thread: str, items: list[str]) -> None:
        """Run the graph on new items."""
        graph, config = self._graph(), at(thread)
        if isinstance(self._rig.face, AsyncFace):
            self._rig.face.run(graph.ainvoke({"items": items}, config))
        else:
            graph.invoke({"items": items}, config)

    def state(self, thread: str) -> list[str]:
        """Return what the channel holds."""
        graph, face, config = self._graph(), self._rig.face, at(thread)
        found = face.run(graph.aget_state(config)) if isinstance(face, AsyncFace) else graph.get_state(config)
        items: list[str] = found.values["items"]
        return items
