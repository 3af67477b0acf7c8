"""A graph over the channels of `shop_children`, without its classes."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langgraph.graph import START, MessagesState, StateGraph

from langgraph_keel import KeelSaver


class Seen(MessagesState):
    order: Any
    lines: Annotated[list[Any], operator.add]


def looking_graph(saver: KeelSaver) -> Any:
    return (
        StateGraph(Seen)
        .add_node("look", lambda state: {"lines": ["looked"]})
        .add_edge(START, "look")
        .compile(checkpointer=saver)
    )
