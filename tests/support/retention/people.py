"""People on every backend, whose threads tests find and erase."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from langgraph_keel import (
    KeelSaver,
)


def graph(saver: KeelSaver, *, asks: bool = False) -> Any:
    def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(str(interrupt("well?") if asks else "yes"))]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)


def config(thread_id: str, owner: object = None) -> Any:
    return {"configurable": {"thread_id": thread_id} | ({} if owner is None else {"user_id": owner})}


def say(saver: KeelSaver, thread_id: str, owner: object = None, **options: Any) -> None:
    graph(saver, **options).invoke({"messages": [HumanMessage(f"{owner} says")]}, config(thread_id, owner))


@pytest.fixture
def store(stores: Any, backend: str) -> Any:
    stores[backend].wipe()
    return stores[backend]


def ids(saver: KeelSaver) -> list[str]:
    return sorted(info.thread_id for info in saver.threads())


def cut_off(saver: KeelSaver) -> None:
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    saver.put_writes(place, [("messages", "ann writes")], "task")
