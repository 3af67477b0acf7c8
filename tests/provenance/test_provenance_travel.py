"""The models of a thread that was rewound or forked.

Calls that led to a checkpoint also led to its twin, also after a prune.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.places import Place

from langgraph_keel import KeelSaver


def answer(state: MessagesState) -> dict[str, Any]:
    usage: Any = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11}
    reply = AIMessage("hi", usage_metadata=usage, response_metadata={"model_name": "m-1", "token_usage": {"cost": 2.0}})
    return {"messages": [GenericFakeChatModel(messages=iter([reply])).invoke(state["messages"])]}


def chat(saver: KeelSaver) -> Any:
    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(saver)


@pytest.fixture
def saver(place: Place) -> Iterator[KeelSaver]:
    """A thread of two runs with one call each. The first is good, and has a label."""
    with place.open() as saver:
        graph = chat(saver)
        for _ in range(2):
            graph.invoke({"messages": [("user", "hello")]}, at("t"), durability="sync")
        saver.timeline("t")[2].label("good")
        yield saver


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def ids(saver: KeelSaver, thread: str) -> list[str]:
    return [call.id for call in saver.provenance.read(at(thread))]


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_rewound_thread_counts_only_calls_on_its_path(saver: KeelSaver, is_pruned: bool) -> None:
    first, second = ids(saver, "t")
    saver.rewind(saver.timeline("t")["good"])
    if is_pruned:
        saver.labels.remove("t", "good")
        saver.prune(["t"])
        assert len(saver.timeline("t")) == 1
    assert ids(saver, "t") == ([first] if is_pruned else [first, second])
    [line] = saver.provenance.trajectories()
    assert len(line["messages"]) == 2
    assert len(line["calls"]) == 1
    assert (line["cost"], line["usage"]["total_tokens"]) == (2.0, 11)


def test_a_branch_counts_only_calls_on_its_path(saver: KeelSaver) -> None:
    config = saver.fork(saver.timeline("t")["good"])
    chat(saver).invoke({"messages": [("user", "again")]}, config, durability="sync")
    [line] = saver.provenance.trajectories()
    assert (len(line["messages"]), line["cost"]) == (4, 4.0)


def test_a_fork_of_a_pruned_thread_has_its_records(saver: KeelSaver) -> None:
    first, second = ids(saver, "t")
    saver.prune(["t"])
    assert len(saver.timeline("t")) == 2
    saver.fork(saver.timeline("t")["good"], "fork")
    saver.fork(at("t"), "all of it")
    assert [ids(saver, name) for name in ("fork", "all of it", "t")] == [[first], [first, second], [first, second]]
    assert [line["cost"] for line in saver.provenance.trajectories(["fork", "all of it"])] == [2.0, 4.0]
    saver.delete_thread("t")
    assert ids(saver, "fork") == [first]


def test_rewound_and_forked_threads_keep_their_models(saver: KeelSaver) -> None:
    saver.rewind(saver.timeline("t")["good"])
    saver.fork(at("t"), "fork")
    assert {info.thread_id: info.models for info in saver.threads()} == {"t": ("m-1",), "fork": ("m-1",)}
