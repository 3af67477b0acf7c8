"""A `ToolNode` with only one wrapper of a cache keeps or refuses the other calls."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from support.savers import each_face
from support.tool_graphs import calls, run, thread

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, ToolCache


class Bank:
    """Tools that pay, and the log of payments."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.inner = self._tool("pay", self.pay, self.apay)

    def _tool(self, name: str, sync: Any, coroutine: Any = None) -> BaseTool:
        return StructuredTool.from_function(sync, coroutine, name=name, description="Pays.")

    def pay(self, amount: int) -> str:
        self.paid.append(amount)
        return "paid"

    async def apay(self, amount: int) -> str:
        return self.pay(amount)

    def outer(self) -> BaseTool:
        """A tool that calls another one."""
        return self._tool("outer", lambda amount: self.inner.invoke({"amount": amount}))

    def plain(self) -> BaseTool:
        """A tool that has no async form."""
        return self._tool("pay", self.pay)


def graph_of(saver: KeelSaver, tools: list[BaseTool], name: str = "pay", **wrappers: Any) -> Any:
    node = ToolNode(tools, **wrappers)
    builder = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": calls((name, {"amount": 5}, "c1"))})
    builder.add_node("tools", node).add_edge(START, "ask").add_edge("ask", "tools")
    return builder.compile(checkpointer=saver)


async def test_a_sync_graph_with_the_async_wrapper_is_refused(saver: KeelSaver) -> None:
    bank = Bank()
    graph = graph_of(saver, [bank.inner], awrap_tool_call=ToolCache(saver).awrap_tool_call)
    with pytest.raises(InvalidInput, match="the tool 'pay' was not run: its ToolNode has only the async"):
        await run(graph, "sync", {"messages": []}, thread("t"))
    assert bank.paid == []


@pytest.mark.parametrize("form", ["inner", "plain"])
async def test_an_async_graph_may_have_only_the_async_wrapper(saver: KeelSaver, form: str) -> None:
    bank = Bank()
    tool = bank.inner if form == "inner" else bank.plain()
    cache = ToolCache(saver)
    await run(graph_of(saver, [tool], awrap_tool_call=cache.awrap_tool_call), "async", {"messages": []}, thread("t"))
    assert (bank.paid, cache.stats.misses) == ([5], 1)


@each_face
async def test_the_sync_wrapper_alone_caches_calls_of_both_faces(face: str) -> None:
    """In an async graph it blocks the event loop, so a database would not do here."""
    bank, saver = Bank(), MemorySaver()
    cache = ToolCache(saver)
    await run(graph_of(saver, [bank.inner], wrap_tool_call=cache.wrap_tool_call), face, {"messages": []}, thread("t"))
    assert (bank.paid, cache.stats.misses) == ([5], 1)


async def test_calls_that_need_no_wrapper_are_not_refused(saver: KeelSaver) -> None:
    """Tools that are not kept, called by such a tool, kept already, or have no cache."""
    bank = Bank()
    cache = ToolCache(saver, {"outer": None})
    lone: Any = {"awrap_tool_call": cache.awrap_tool_call}
    await run(graph_of(saver, [bank.outer()], "outer", **lone), "sync", {"messages": []}, thread("t"))
    await run(graph_of(saver, [cache.tool(bank.inner)], **lone), "sync", {"messages": []}, thread("t"))
    await run(graph_of(saver, [bank.inner]), "sync", {"messages": []}, thread("t"))
    assert bank.paid == [5, 5, 5]
