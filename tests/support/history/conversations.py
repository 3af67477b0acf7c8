"""A conversation with a tool, for the tests of its timeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from langgraph_keel import KeelSaver
from support.places import Place

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    turns: int
    plan: dict[str, Any]


def model(state: State) -> dict[str, Any]:
    turns = state.get("turns", 0)
    call = {"name": "search", "args": {"q": turns}, "id": f"call-{turns}"}
    return {"messages": [AIMessage("I look", id=f"ai-{turns}", tool_calls=[call])], "turns": turns + 1}


def tools(state: State) -> dict[str, Any]:
    about: dict[str, Any] = {"keel_replay": {}} if state["turns"] > 1 else {}
    found = ToolMessage("found", tool_call_id="call", name="search", response_metadata=about)
    return {"messages": [found], "plan": {"turn": state["turns"], "notes": "n" * 3000}}


def ask(state: State) -> dict[str, Any]:
    return {"messages": [HumanMessage(interrupt("may I?"))]}


def builder() -> StateGraph[State]:
    graph = StateGraph(State)
    for node in (model, tools, ask):
        graph.add_node(node)
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", "ask")
    return graph


def talk(saver: KeelSaver, turns: int = 2) -> Any:
    """Fill the thread with turns of five moments; the last, unanswered one has four."""
    graph = builder().compile(checkpointer=saver)
    for turn in range(turns):
        graph.invoke({"messages": [HumanMessage("hi", id=f"hi-{turn}")]}, CONFIG, durability="sync")
        if turn < turns - 1:
            graph.invoke(Command(resume="yes"), CONFIG, durability="sync")
    return graph


@pytest.fixture
def saver(place: Place) -> Iterator[KeelSaver]:
    with place.open() as saver:
        yield saver
