"""A trajectory's label and cost, and whether its first checkpoint still exists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support.provenance.trajectories import Skipped, World, config, ids, memory, on_drift, saver, world

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver
from langgraph_keel.provenance.export import sum_costs, sum_usages
from langgraph_keel.provenance.records import ModelCall

__all__ = ["memory", "saver", "world"]  # fixtures


# -- labels ----------------------------------------------------------------------------------------------------


def asking(saver: Any) -> Any:
    """A graph that asks before it pays."""
    builder = StateGraph(MessagesState)
    builder.add_node("pay", lambda state: {"messages": [("ai", f"paid: {interrupt('pay?')}")]})
    return builder.add_edge(START, "pay").compile(checkpointer=saver)


def test_a_label_in_the_metadata_of_a_run_is_used(saver: KeelSaver) -> None:
    graph = asking(saver)
    graph.invoke({"messages": [("user", "go")]}, config("t", metadata={"label": "good"}))
    assert [line["label"] for line in saver.provenance.trajectories(label="good")] == ["good"]
    assert [question.value for question in graph.get_state(config("t")).interrupts] == ["pay?"]
    graph.invoke(Command(resume="yes"), config("t"))  # without a label
    [line] = saver.provenance.trajectories(label="good")
    assert (line["label"], line["messages"][-1]["content"]) == ("good", "paid: yes")


def test_a_later_label_overrides_an_earlier_one(saver: KeelSaver, world: World) -> None:
    world.run(saver, label="good")
    world.run(saver)
    assert ids(saver, label="good") == ["t"]
    world.run(saver, outcome="bad")
    world.run(saver)
    assert [line["label"] for line in saver.provenance.trajectories()] == ["bad"]
    assert ids(saver, label="good") == []


def test_the_label_of_an_abandoned_branch_is_ignored(saver: KeelSaver, world: World) -> None:
    graph = world.graph(saver)
    graph.invoke({"messages": [("user", "when?")]}, config("t"))
    head = graph.get_state(config("t")).config
    world.run(saver, label="bad")
    graph.update_state(head, None)
    assert [line["label"] for line in saver.provenance.trajectories()] == [None]


def test_a_label_from_a_function(saver: KeelSaver, world: World) -> None:
    for thread in ("a", "b"):
        world.run(saver, thread, label="of the run")
    ratings = {"a": 5}
    lines = saver.provenance.trajectories(label=lambda head: ratings.get(head.config["configurable"]["thread_id"]))
    assert {line["thread_id"]: line["label"] for line in lines} == {"a": 5, "b": None}


# -- a beginning that is gone ----------------------------------------------------------------------------------


@on_drift
def test_a_pruned_thread_keeps_its_cost(saver: KeelSaver, world: World) -> None:
    world.cost = 0.25
    world.run(saver)
    world.run(saver, label="good")
    [whole] = saver.provenance.trajectories()
    assert (whole["is_pruned"], whole["cost"], whole["usage"]["total_tokens"]) == (False, 1.0, 48)
    saver.prune(["t"])
    [line] = saver.provenance.trajectories()
    assert (line["is_pruned"], line["started_at"]) == (True, None)
    told = ("label", "messages", "usage", "cost", "calls")
    assert [line[name] for name in told] == [whole[name] for name in told]
    assert ids(saver, max_cost=1) == ids(saver, min_cost=1) == ["t"]
    for cost in (1.5, 2.0):
        world.run(saver)
        assert [(line["is_pruned"], line["cost"]) for line in saver.provenance.trajectories()] == [(True, cost)]
        saver.prune(["t"])
        assert [(line["is_pruned"], line["cost"]) for line in saver.provenance.trajectories()] == [(True, cost)]


@on_drift
def test_a_prune_with_labels_keeps_the_cost(saver: KeelSaver, world: World) -> None:
    world.cost = 0.25
    graph = world.graph(saver)
    for name in ("one", "two", "three"):
        world.run(saver)
        if name != "three":
            saver.labels.set(graph.get_state(config("t")).config, name)
    whole = saver.provenance.read(config("t"))
    saver.prune(["t"])
    assert {call.id for call in saver.provenance.read(config("t"))} == {call.id for call in whole}
    [line] = saver.provenance.trajectories()
    assert (line["is_pruned"], line["cost"], len(line["calls"])) == (True, 1.5, 6)
    saver.prune(["t"])
    assert [line["cost"] for line in saver.provenance.trajectories()] == [1.5]


@on_drift
def test_deleted_runs_of_a_pruned_thread_make_its_cost_unknown(saver: KeelSaver, world: World) -> None:
    world.cost = 0.25
    graph = world.graph(saver)
    graph.invoke({"messages": [("user", "when?")]}, config("t", metadata={"run_id": "first"}))
    saver.prune(["t"])
    world.run(saver)
    saver.delete_for_runs(["first"])
    [line] = saver.provenance.trajectories()
    assert (line["is_pruned"], line["cost"], line["usage"], len(line["calls"])) == (True, None, None, 2)
    skipped = Skipped()
    assert ids(saver, max_cost=0.5, on_skip=skipped) == ids(saver, min_cost=0) == []
    assert skipped.told == {"t": "unknown cost"}


def test_a_thread_with_a_deleted_middle_run_is_pruned(saver: KeelSaver, world: World) -> None:
    world.cost = 0.25
    graph = world.graph(saver)
    graph.invoke({"messages": [("user", "when?")]}, config("t"))
    graph.invoke({"messages": [("user", "when?")]}, config("t", metadata={"run_id": "middle"}))
    graph.invoke({"messages": [("user", "when?")]}, config("t"))
    saver.delete_for_runs(["middle"])
    assert [(line["is_pruned"], line["cost"]) for line in saver.provenance.trajectories()] == [(True, None)]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_complete_thread_is_not_pruned(saver: KeelSaver, world: World, durability: Any) -> None:
    world.cost = 0.25
    for _ in range(2):
        graph = world.graph(saver)
        graph.invoke({"messages": [("user", "when?")]}, config("t"), durability=durability)
    [line] = saver.provenance.trajectories(min_cost=1)
    assert (line["is_pruned"], line["cost"]) == (False, 1.0)
    if durability == "exit":
        saver.prune(["t"])
        assert [(line["is_pruned"], line["cost"]) for line in saver.provenance.trajectories()] == [(True, 1.0)]


def test_a_thread_that_began_with_an_update_is_not_pruned(saver: KeelSaver, world: World) -> None:
    world.cost = 0.25
    graph = world.graph(saver)
    graph.update_state(config("t"), {"messages": [("user", "when?")]}, as_node=START)
    graph.invoke(None, config("t"))
    assert [(line["is_pruned"], line["cost"]) for line in saver.provenance.trajectories()] == [(False, 0.5)]


# -- models ----------------------------------------------------------------------------------------------------


@on_drift
def test_an_early_model_is_found_beyond_the_names_in_the_head(
    memory: MemorySaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SEEN", "NODES", "NAMES"):  # maximum names per head
        monkeypatch.setattr(f"langgraph_keel.provenance.drift.{name}", 3, raising=False)
    for number in range(6):
        World(asked=f"m{number}", served=f"m{number}-x").run(memory)
    [head] = memory.threads()
    assert "m0" not in head.models
    assert [ids(memory, model=name) for name in ("m0", "m0-x", "m5", "m6")] == [["t"], ["t"], ["t"], []]
    assert ids(memory, threads=["t"], model="m0") == ["t"]


# -- usage -----------------------------------------------------------------------------------------------------


@on_drift
@pytest.mark.parametrize(
    ("first", "second", "total"),
    [
        (3, 4, 7),
        (3, None, 3),
        (None, "many", "nothing"),
        (True, 2, 2),
        (0.5, 2, 2.5),
        ({"web": 1}, {"web": 2, "file": 1}, {"web": 3, "file": 1}),
        ({"web": 1}, 3, "nothing"),
        (3, {"web": 1}, "nothing"),
        ([1], 2, 2),
        (float("nan"), 2, 2),
        ({"web": {"page": 1}}, {"web": 1}, {}),
    ],
    ids=str,
)
def test_malformed_usage_counts_are_skipped(memory: MemorySaver, first: Any, second: Any, total: Any) -> None:
    for count in (first, second):
        usage: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "odd": count}
        answer = AIMessage("ho", usage_metadata=usage)
        builder = StateGraph(MessagesState)
        model = GenericFakeChatModel(messages=iter([answer]))
        builder.add_node("agent", lambda state, model=model: {"messages": [model.invoke(state["messages"])]})
        graph: Any = builder.add_edge(START, "agent").compile(checkpointer=memory)
        graph.invoke({"messages": [("user", "hi")]}, config("t"))
    [line] = memory.provenance.trajectories()
    assert line["usage"]["total_tokens"] == 4
    assert line["usage"].get("odd", "nothing") == total
    json.dumps(line["usage"], allow_nan=False)


def test_a_call_that_failed_after_its_answer_has_a_cost() -> None:
    paid = ModelCall(id="1", cost=0.5, error="DriftDetected")
    assert sum_costs([paid, ModelCall(id="2", cost=0.25), ModelCall(id="3", error="TimeoutError")]) == 0.75
    assert sum_costs([paid, ModelCall(id="2")]) is None
    assert sum_costs([paid, ModelCall(id="2", cost=float("inf"))]) is None


def test_invalid_counts_are_ignored() -> None:
    assert sum_usages([{"a": 10**400, "b": 1}, {"a": 0.5, "b": 10**20}]) == {"a": 0.5, "b": 10**20 + 1}
    assert sum_usages([{"a": float("inf")}, {}]) == {}


@pytest.mark.parametrize(
    "wanted",
    [{"label": 5}, {"label": ["good"]}, {"label": b"good"}, {"model": ["m"]}, {"max_cost": "a"}, {"min_cost": -1}],
    ids=str,
)
def test_invalid_filters_are_refused(wanted: dict[str, Any]) -> None:
    with MemorySaver() as saver, pytest.raises(InvalidInput, match=next(iter(wanted))):
        list(saver.provenance.trajectories(**wanted))
