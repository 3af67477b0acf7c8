"""A process of an application that stores values of its own classes.

`python application.py URL OPTIONS [archive]`. The classes are in `support.shop.models`.
"""

from __future__ import annotations

import json
import operator
import sys
from dataclasses import replace
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt

from langgraph_keel import KeelSaver, ToolCache, open_saver, request_approval
from support.shop.models import Basket, Customer, Memo, Order, Status

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Shop(MessagesState):
    order: Order
    lines: Annotated[list[Any], operator.add]
    basket: Basket
    found: dict[str, Any]


def begin(state: Shop) -> Any:
    orders = {f"o{n}": Order([f"item {n} " * 9]) for n in range(40)}
    return {
        "order": Order(["tea"]),
        "lines": ["plain", Customer(name="Ada", orders=[Order(["tea"])])],
        "basket": Basket("begun", orders),
        "found": {"customer": Customer(name="Eve"), "status": {Status.PAID}, "plain": 1},
    }


def pay(state: Shop) -> Any:
    basket = replace(state["basket"], total=3, orders={**state["basket"].orders, "o7": Order(["milk"], Status.PAID)})
    artifact = Order(["tea"], Status.PAID)
    return {
        "messages": [ToolMessage("paid", tool_call_id="c1", artifact=artifact), AIMessage("It is paid.", id="a1")],
        "order": Order(["tea"], Status.PAID),
        "basket": basket,
        "lines": [Order(["bread"])],
    }


def ask(state: Shop) -> Any:
    answer = interrupt({"question": "Send it?", "order": state["order"]})
    return {"lines": [answer]}


def beside(state: Shop) -> Any:
    return {"lines": [Order(["beside"])]}


def both(state: Shop) -> list[Any]:
    return ["ask", Send("beside", {"order": state["order"]})]


def write(saver: KeelSaver) -> None:
    """Create a thread `t` that waits at a question and has writes of another task.

    Any reader can read its messages.
    """
    graph = (
        StateGraph(Shop)
        .add_node("begin", begin)
        .add_node("pay", pay)
        .add_node("ask", ask)
        .add_node("beside", beside)
        .add_edge(START, "begin")
        .add_edge("begin", "pay")
        .add_conditional_edges(
            "pay", lambda state: ["ask", Send("beside", {"order": state["order"]})], ["ask", "beside"]
        )
        .compile(checkpointer=saver)
    )
    graph.invoke({"messages": [HumanMessage("Hello", id="h1")]}, CONFIG)  # type: ignore[call-overload]


def approve(saver: KeelSaver) -> None:
    """Create a thread `asked` that waits for an approval."""

    def act(state: Shop) -> Any:
        decision = request_approval("pay", {"order": 7})
        return {"lines": [decision.kind, Order(["tea"])]}

    graph = StateGraph(Shop).add_node("act", act).add_edge(START, "act").compile(checkpointer=saver)
    graph.invoke({"messages": []}, {"configurable": {"thread_id": "asked"}})  # type: ignore[call-overload]


def call(saver: KeelSaver) -> None:
    """Create a thread `called` with a ledger call whose message contains an order."""

    @tool(response_format="content_and_artifact")
    def find(name: str) -> tuple[str, Order]:
        """Find an order."""
        return name, Order([name])

    with ToolCache(saver) as cache:
        node = ToolNode([find], wrap_tool_call=cache.wrap_tool_call)
        graph = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").compile(checkpointer=saver)
        said = AIMessage("", tool_calls=[{"name": "find", "args": {"name": "tea"}, "id": "c1"}])
        graph.invoke({"messages": [said]}, {"configurable": {"thread_id": "called"}})


def archive(saver: KeelSaver) -> None:
    """Create a thread `archived` with two archived messages, one of class `Memo`."""

    def forget(state: MessagesState) -> Any:
        return {"messages": [RemoveMessage(id="h1"), RemoveMessage(id="m1")]}

    graph = StateGraph(MessagesState).add_node("forget", forget).add_edge(START, "forget").compile(checkpointer=saver)
    said: Any = [
        HumanMessage("An invoice", id="h1"),
        Memo(content="The invoice of o7", id="m1", order="o7"),
        AIMessage("Ah"),
    ]
    graph.invoke({"messages": said}, {"configurable": {"thread_id": "archived"}})


if __name__ == "__main__":
    if "archive" in sys.argv:
        with open_saver(sys.argv[1], **json.loads(sys.argv[2]), archive_removed=True) as opened:
            archive(opened)
        sys.exit()
    with open_saver(sys.argv[1], **json.loads(sys.argv[2])) as opened:
        write(opened)
        approve(opened)
        call(opened)
