"""A program that uses a saver in a running loop, where nothing may block."""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Any
from unittest import mock

from blockbuster import BlockingError, blockbuster_ctx
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

import langgraph_keel as keel
from support.blocking import allow_known


@tool
async def price(item: str) -> str:
    """Say what an item costs."""
    return f"{item}: 3"


async def use(url: str, options: dict[str, Any]) -> None:
    async with keel.open_saver(url, on_busy="wait", archive_removed=True, **options) as saver:
        await saver.asetup()
        cache = keel.ToolCache(saver)
        graph = graph_of(cache).compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t", "user_id": "ann"}}
        begin: Any = {"messages": [("user", "tea?")]}
        await graph.ainvoke(begin, config)
        (request,) = await saver.approvals.apending()
        await saver.approvals.aapprove(request.id, by="ann")
        await graph.ainvoke(await saver.approvals.aresume("t"), config)
        await graph.ainvoke(Command(resume="two"), config)
        await saver.approvals.averify_audit()
        other: Any = {"configurable": {"thread_id": "two at once", "user_id": "ann"}}
        await asyncio.gather(graph.ainvoke(begin, other), graph.ainvoke(begin, other))
        timeline = await saver.atimeline("t")
        await saver.labels.aset(timeline[0], "first")
        await saver.afork(timeline[1], "forked")
        await saver.arewind(timeline[1])
        await saver.adiff(timeline[0], timeline[-1])
        await saver.acopy_thread("t", "copied")
        assert [each async for each in saver.alist(config)]
        assert [each async for each in saver.athreads()]
        assert [each async for each in saver.tools.acalls("t")]
        assert await saver.provenance.aread(config)
        await saver.aprune(["t"])
        await saver.adelete_thread("copied")
        await saver.retention.aset_policy(keel.Retention(last=2))
        await saver.retention.asweep()
        await saver.retention.areclaim_space()
        await saver.retention.aerase(user_id="ann")


def graph_of(cache: keel.ToolCache) -> Any:
    """Return a graph with a model, a tool of the ledger, and two questions."""
    model = FakeListChatModel(responses=["yes", "no", "perhaps"])
    tools = ToolNode([price], awrap_tool_call=cache.awrap_tool_call)

    async def think(state: MessagesState) -> dict[str, Any]:
        answer = await model.ainvoke(state["messages"])
        call = {"name": "price", "args": {"item": "tea"}, "id": f"call{len(state['messages'])}"}
        return {"messages": [AIMessage(answer.content, tool_calls=[call])]}

    async def ask(state: MessagesState) -> dict[str, Any]:
        decision = await keel.arequest_approval("buy", {"item": "tea"})
        answer = AIMessage(f"{decision.kind}: {interrupt('how many?')}")
        return {"messages": [answer, RemoveMessage(state["messages"][0].id or "")]}

    builder = StateGraph(MessagesState).add_node("think", think).add_node("tools", tools).add_node("ask", ask)
    return builder.add_edge(START, "think").add_edge("think", "tools").add_edge("tools", "ask")


async def main(url: str, options: dict[str, Any]) -> None:
    """Fail if a call blocked, even if its error was caught (LangChain's callbacks do)."""
    blocked: list[str] = []

    class Noted(BlockingError):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            blocked.append("".join(traceback.format_stack()))

    with blockbuster_ctx() as watch, mock.patch("blockbuster.blockbuster.BlockingError", Noted):
        allow_known(watch)
        await use(url, options)
    assert not blocked, "\n\n".join(blocked)


if __name__ == "__main__":
    for name in keel.__all__:
        getattr(keel, name)  # imported beforehand, as by a module of the program
    given: Any = dict(each.split("=", 1) for each in sys.argv[2:])
    asyncio.run(main(sys.argv[1], {name: value == "yes" or value for name, value in given.items()}))
