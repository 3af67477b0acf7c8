"""Threads as training data: `saver.provenance.trajectories`, on every backend."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from support.places import Place
from support.provenance.trajectories import Other, Skipped, World, config, damage, ids, on_drift
from support.provenance.trajectories import memory as memory
from support.provenance.trajectories import saver as saver
from support.provenance.trajectories import world as world

from langgraph_keel import CorruptStore, DriftWarning, InvalidInput, KeelSaver, MemorySaver, NotFound


async def asynchronously(saver: KeelSaver, **wanted: Any) -> list[dict[str, Any]]:
    return [each async for each in saver.provenance.atrajectories(**wanted)]


# -- what a line says ------------------------------------------------------------------------------------------


def test_a_trajectory_has_messages_calls_cost_and_label(saver: KeelSaver, world: World) -> None:
    world.run(saver, label="good")
    [line] = saver.provenance.trajectories()
    head = saver.get_tuple(config("t"))
    assert head is not None
    assert line["messages"] == [
        {"role": "user", "content": "when?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "id": "c1", "function": {"name": "search", "arguments": '{"q": "tides"}'}}
            ],
        },
        {"role": "tool", "content": "found", "tool_call_id": "c1"},
        {"role": "assistant", "content": "high"},
    ]
    assert line["tools_called"] == {"search": 1}
    first, second = line["calls"]
    assert (first["step"], first["node"], first["model"], first["served_model"]) == (1, "agent", "m", "m-1")
    assert (first["seed"], first["temperature"], first["top_p"], first["max_tokens"]) == (7, 0.5, 0.9, 64)
    assert list(first["tools"]) == ["search"]
    assert first["provider"]
    assert second["step"] == 3
    details = {"input_token_details": {"audio": 2}}
    assert line["usage"] == {"input_tokens": 20, "output_tokens": 4, "total_tokens": 24, **details}
    assert line["cost"] is None
    assert (line["thread_id"], line["checkpoint_id"], line["label"]) == ("t", head.checkpoint["id"], "good")
    assert (line["steps"], line["ended_at"]) == (3, head.checkpoint["ts"])
    assert line["started_at"] < line["ended_at"]
    assert line["drift"] == []
    assert type(line["thread_id"]) is str
    assert json.loads(json.dumps(line))["messages"] == line["messages"]


def test_both_faces_return_the_same_trajectories(saver: KeelSaver, world: World) -> None:
    for thread in ("a", "b"):
        world.run(saver, thread, label=thread)
    assert asyncio.run(asynchronously(saver)) == list(saver.provenance.trajectories())
    assert asyncio.run(asynchronously(saver, label="a")) == list(saver.provenance.trajectories(["a"]))
    assert asyncio.run(saver.provenance.adrifts("a")) == saver.provenance.drifts("a") == []


def test_trajectories_are_ordered_by_activity_and_limited(saver: KeelSaver, world: World) -> None:
    for thread in ("a", "b", "c"):
        world.run(saver, thread, label="odd" if thread != "b" else "even")
    assert ids(saver) == ["c", "b", "a"]
    assert ids(saver, limit=2, label="odd") == ["c", "a"]
    assert ids(saver, limit=0) == []
    assert ids(saver, threads=["a", "c", "a"]) == ["a", "c"]


def test_trajectories_read_one_thread_at_a_time(memory: MemorySaver, world: World) -> None:
    for number in range(60):  # more than a page
        world.run(memory, f"t{number:02}")
    read = list[str]()

    def label(head: Any) -> str:
        read.append(head.config["configurable"]["thread_id"])
        return "seen"

    lines = memory.provenance.trajectories(label=label)
    assert (next(lines)["thread_id"], read) == ("t59", ["t59"])
    assert [line["label"] for line in lines] == ["seen"] * 59
    assert len(set(read)) == 60


def test_reading_trajectories_keeps_the_memo_of_runs(memory: MemorySaver, world: World) -> None:
    world.run(memory, "running")
    known = memory.engine.session.memo.get(("running", ""))
    assert known is not None
    world.run(memory, "other")
    list(memory.provenance.trajectories())
    assert memory.engine.session.memo.get(("running", "")) is known


# -- which threads ---------------------------------------------------------------------------------------------


def test_the_label_is_the_last_one_on_the_path_to_the_head(saver: KeelSaver, world: World) -> None:
    world.run(saver, "invoked", label="good", outcome="other")
    world.run(saver, "judged")
    world.graph(saver).update_state(config("judged", metadata={"outcome": "solved"}), None)
    world.run(saver, "number")
    world.graph(saver).update_state(config("number", metadata={"label": 5}), None)
    world.run(saver, "overtaken", label="good")
    world.graph(saver).update_state(config("overtaken"), None)
    labels = {line["thread_id"]: line["label"] for line in saver.provenance.trajectories()}
    assert labels == {"invoked": "good", "judged": "solved", "number": 5, "overtaken": "good"}
    skipped = Skipped()
    assert ids(saver, label="good", on_skip=skipped) == ["overtaken", "invoked"]
    assert skipped.told == dict.fromkeys(("number", "judged"), "filtered")
    assert ids(saver, label="5") == ["number"]
    assert ids(saver, label="None") == []


def test_trajectories_are_filtered_by_requested_or_served_model(saver: KeelSaver, world: World) -> None:
    world.run(saver, "old")
    world.served = "m-2"
    world.run(saver, "new")
    assert ids(saver, model="m-1") == ["old"]
    assert ids(saver, model="m") == ["new", "old"]
    assert ids(saver, threads=["old", "new"], model="m-2") == ["new"]
    skipped = Skipped()
    assert ids(saver, model="other", on_skip=skipped) == []
    assert skipped.told == {"new": "filtered", "old": "filtered"}


def test_trajectories_are_filtered_by_cost(saver: KeelSaver, world: World) -> None:
    world.run(saver, "unknown")
    for thread, world.cost in (("cheap", 0.25), ("dear", 2.0)):
        world.run(saver, thread)
    costs = {line["thread_id"]: line["cost"] for line in saver.provenance.trajectories()}
    assert costs == {"unknown": None, "cheap": 0.5, "dear": 4.0}
    skipped = Skipped()
    assert ids(saver, max_cost=0.5, on_skip=skipped) == ["cheap"]
    assert skipped.told == {"dear": "filtered", "unknown": "unknown cost"}
    assert ids(saver, min_cost=0.5) == ["dear", "cheap"]
    assert ids(saver, min_cost=1, max_cost=4) == ["dear"]


def test_a_cost_is_unknown_if_one_call_has_no_cost(memory: MemorySaver, world: World) -> None:
    world.cost = 0.25
    world.run(memory)
    world.cost = None
    world.run(memory)
    assert [line["cost"] for line in memory.provenance.trajectories()] == [None]


def test_invalid_arguments_are_refused(memory: MemorySaver) -> None:
    with pytest.raises(InvalidInput, match="list of thread ids"):
        list(memory.provenance.trajectories("t"))
    with pytest.raises(InvalidInput, match="limit"):
        list(memory.provenance.trajectories(limit=-1))
    with pytest.raises(NotFound, match="nobody"):
        list(memory.provenance.trajectories(["nobody"]))


# -- which calls -----------------------------------------------------------------------------------------------


@on_drift
def test_calls_of_an_abandoned_branch_are_excluded(saver: KeelSaver, world: World) -> None:
    graph = world.graph(saver)
    world.run(saver)
    asked = next(state for state in graph.get_state_history(config("t")) if state.next == ("agent",))
    world.served = "m-2"
    graph.invoke(None, asked.config)
    assert [call.served_model for call in saver.provenance.read(config("t"))] == ["m-1", "m-1", "m-2"]
    [line] = saver.provenance.trajectories()
    assert [(call["step"], call["served_model"]) for call in line["calls"]] == [(1, "m-1"), (4, "m-2")]
    assert line["usage"]["total_tokens"] == 24
    assert ids(saver, model="m-1") == ["t"]


def test_calls_inside_subgraphs_are_included(saver: KeelSaver, world: World) -> None:
    inner = StateGraph(MessagesState).add_node("model", world.model).add_edge(START, "model").compile()
    outer: Any = StateGraph(MessagesState).add_node("sub", inner).add_edge(START, "sub").compile(checkpointer=saver)
    outer.invoke({"messages": [("user", "when?")]}, config("t"))
    [line] = saver.provenance.trajectories()
    assert [(call["node"], call["served_model"]) for call in line["calls"]] == [("model", "m-1")]


def test_failed_attempts_are_included_without_a_cost(memory: MemorySaver, world: World) -> None:
    world.fails, world.cost = 1, 0.25
    world.run(memory)
    [line] = memory.provenance.trajectories()
    assert [(call["attempt"], call["error"]) for call in line["calls"]] == [(1, "TimeoutError"), (2, None), (1, None)]
    assert line["cost"] == 0.5


def test_drift_is_listed_at_the_step_and_call_of_its_detection(saver: KeelSaver, world: World) -> None:
    world.run(saver)
    world.served = "m-2"
    with pytest.warns(DriftWarning):
        world.run(saver)
    [line] = saver.provenance.trajectories()
    [mark] = line["drift"]
    [told] = saver.provenance.drifts("t")
    calls = saver.provenance.read(config("t"))
    assert (mark["step"], mark["call_id"]) == (told.step, told.call_id) == (6, calls[2].id)
    assert "served_model was m-1 up to step 3, now m-2" in mark["changes"][0]


@on_drift
def test_a_trajectory_after_a_prune_has_the_carried_calls(saver: KeelSaver, world: World) -> None:
    world.run(saver, label="good")
    saver.prune(["t"])
    [line] = saver.provenance.trajectories(model="m-1", label="good")
    assert len(line["messages"]) == 4
    assert [call["step"] for call in line["calls"]] == [1, 3]


def test_a_trajectory_without_provenance_has_messages(world: World) -> None:
    with MemorySaver(provenance=False) as saver:
        world.run(saver)
        [line] = saver.provenance.trajectories()
    assert (len(line["messages"]), line["calls"], line["usage"], line["cost"]) == (4, [], {}, None)


# -- messages --------------------------------------------------------------------------------------------------


class Delta(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]


@on_drift
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_messages_of_delta_channels_are_included(saver: KeelSaver, world: World, turns: int) -> None:
    for _ in range(turns):
        world.run(saver, schema=Delta)
    [line] = saver.provenance.trajectories()
    assert [message["role"] for message in line["messages"]] == ["user", "assistant", "tool", "assistant"] * turns


def test_trajectories_of_another_channel(saver: KeelSaver) -> None:
    builder = StateGraph(Other).add_node("none", lambda state: None).add_edge(START, "none")
    graph = builder.compile(checkpointer=saver)
    talk = [{"role": "user", "content": "hi"}, AIMessage("ho")]
    graph.invoke({"talk": talk, "notes": ["hi", 1]}, config("talks"))
    graph.invoke({"talk": [], "notes": [{"type": "note"}]}, config("silent"))
    skipped = Skipped()
    [line] = saver.provenance.trajectories(channel="talk", on_skip=skipped)
    assert line["messages"] == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert skipped.told == {"silent": "no messages"}
    assert ids(saver, channel="notes") == ids(saver) == []


# -- damage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["sqlite", "postgres", "files"], indirect=True)
def test_an_unreadable_thread_is_reported_and_skipped(place: Place, world: World) -> None:
    with place.open() as saver:
        for thread in ("a", "b", "c"):
            world.run(saver, thread)
    damage(place)
    named: dict[str, Any] = {"threads": ["c", "b", "a"]}
    with place.open() as saver:
        with pytest.raises(CorruptStore, match="b"):
            ids(saver)
        # A directory with a damaged log does not list its threads.
        for wanted in [named] if place.kind == "files" else [named, {}, {"model": "m"}]:
            skipped = Skipped()
            assert ids(saver, on_skip=skipped, **wanted) == ["c", "a"]
            assert {thread: why.code for thread, why in skipped.told.items()} == {"b": "corrupt_store"}
