"""Graphs whose state is one list, to which each node adds."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from langgraph_keel import KeelSaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def joined(old: list[Any] | None, new: list[Any]) -> list[Any]:
    return [*(old or []), *new]


class State(TypedDict, total=False):
    log: Annotated[list[Any], joined]


def graph(saver: KeelSaver, *nodes: tuple[str, Any]) -> Any:
    """Return a graph that runs these nodes one after another."""
    return StateGraph(State).add_sequence(list(nodes)).add_edge(START, nodes[0][0]).compile(checkpointer=saver)


def say(word: str) -> tuple[str, Any]:
    """Return a node that adds a word and has it as its name."""
    return word, lambda state: {"log": [word]}
