"""Concurrent runs of one thread are distinguished; unusual input and output."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from support.provenance.runs import recorder_of

from langgraph_keel import DriftDetected, KeelSaver, MemorySaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}
HELLO: Any = {"messages": [("user", "hello")]}


def graph_of(saver: KeelSaver, model: str, is_begun: asyncio.Event, go_on: asyncio.Event) -> Any:
    async def node(state: MessagesState) -> Any:
        is_begun.set()
        await go_on.wait()
        about = {"model_name": model}
        asked = GenericFakeChatModel(messages=iter([AIMessage(f"by {model}", response_metadata=about)]))
        return {"messages": [await asked.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile(checkpointer=saver)


def opened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_calls_of_a_concurrent_run_are_not_drift(durability: Any) -> None:
    saver = MemorySaver(on_drift="raise", on_conflict="fork")
    await graph_of(saver, "a", opened(), opened()).ainvoke(HELLO, CONFIG, durability=durability)
    begun, go_on = asyncio.Event(), asyncio.Event()
    other = asyncio.create_task(graph_of(saver, "a", begun, go_on).ainvoke(HELLO, CONFIG, durability=durability))
    await begun.wait()
    with pytest.raises(DriftDetected):
        await graph_of(saver, "b", opened(), opened()).ainvoke(HELLO, CONFIG, durability=durability)
    go_on.set()
    assert (await other)["messages"][-1].content == "by a"
    for call in saver.provenance.read(CONFIG):
        found = saver.get_tuple({"configurable": {**CONFIG["configurable"], "checkpoint_id": call.checkpoint_id}})
        assert found
        assert (found.checkpoint["channel_values"]["messages"][-1].content == "by a") == (call.error is None)
        assert "keel_drift" not in found.metadata


@pytest.mark.slow
async def test_each_of_1200_threads_has_its_call() -> None:
    saver = MemorySaver()
    graph = graph_of(saver, "a", opened(), opened())
    configs: list[Any] = [{"configurable": {"thread_id": f"t{number}"}} for number in range(1200)]
    await graph.abatch([HELLO] * len(configs), configs)
    assert {len(saver.provenance.read(config)) for config in configs} == {1}
    assert len(recorder_of(saver).waiting) == 0


@tool
def look_up(number: int) -> str:
    """Look it up."""
    return str(number)


DEEP: Any = {}
for _ in range(300):
    DEEP = {"more": DEEP}
ODD = {
    "a surrogate in the prompt": (HumanMessage("\ud800"), AIMessage("hi"), {}),
    "a surrogate in the answer": (HumanMessage("hello"), AIMessage("\ud800"), {}),
    "a long number": (HumanMessage("hello"), AIMessage("hi"), {"tools": [{"name": "t", "limit": 1 << 70}]}),
    "arguments that are deep": (
        HumanMessage("hello"),
        AIMessage("", tool_calls=[{"name": "look_up", "args": DEEP, "id": "1"}]),
        {},
    ),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_call_with_values_that_are_not_json_is_recorded(odd: Any) -> None:
    asked, said, options = odd

    def node(state: MessagesState) -> None:
        GenericFakeChatModel(messages=iter([said])).bind(model="m", **options).invoke([asked])

    saver = MemorySaver()
    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile(checkpointer=saver)
    graph.invoke(HELLO, CONFIG)
    [call] = saver.provenance.read(CONFIG)
    assert call.model == "m"
    assert call.prompt_hash
    assert call.answer_hash


def test_prompts_with_different_file_ids_have_different_hashes() -> None:
    hashes = set()
    for number in range(2):
        saver = MemorySaver()
        content: Any = [{"type": "file", "id": f"file-{number}"}, {"type": "text", "text": "What is it?", "id": "x"}]

        def node(state: MessagesState, content: Any = content) -> None:
            FakeListChatModel(responses=["hi"]).invoke([HumanMessage(content)])

        builder = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
        builder.compile(checkpointer=saver).invoke(HELLO, CONFIG)
        hashes.add(saver.provenance.read(CONFIG)[0].prompt_hash)
    assert len(hashes) == 2


def test_calls_of_one_subgraph_have_one_path() -> None:
    def inner(state: MessagesState) -> None:
        FakeListChatModel(responses=["hi"]).invoke("hello")

    sub = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()

    def outer(state: MessagesState) -> None:
        for _ in range(3):
            sub.invoke(HELLO)

    saver = MemorySaver()
    graph = StateGraph(MessagesState).add_node("outer", outer).add_edge(START, "outer").compile(checkpointer=saver)
    graph.invoke(HELLO, CONFIG)
    assert [call.path for call in saver.provenance.read(CONFIG)] == ["outer|inner"] * 3
