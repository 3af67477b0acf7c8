"""A graph for LangGraph's API server.

It asks a person, remembers, and has a delta channel and its own class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import interrupt


@dataclass(frozen=True)
class Order:
    item: str
    is_paid: bool = False


def fold(state: list[str] | None, writes: Sequence[list[str]]) -> list[str]:
    return [*(state or []), *(line for lines in writes for line in lines)]


class State(TypedDict):
    order: Any  # names no class: only KEEL_TYPES does
    log: Annotated[list[str], DeltaChannel(fold)]


async def take(state: State, *, store: BaseStore) -> dict[str, Any]:
    await store.aput(("orders",), "last", {"item": "tea"})
    return {"order": Order("tea"), "log": ["taken"]}


async def pay(state: State) -> dict[str, Any]:
    answer = interrupt("pay for it?")
    return {"order": replace(state["order"], is_paid=answer == "yes"), "log": [f"paid: {answer}"]}


builder = StateGraph(State).add_node("take", take).add_node("pay", pay)
graph = builder.add_edge(START, "take").add_edge("take", "pay").compile()
