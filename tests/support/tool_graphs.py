"""For tests of the tool cache in graphs: a scripted model, both faces, backends."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from threading import Thread
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from langgraph_keel import ToolCache
from langgraph_keel.engine.leases import Pause
from langgraph_keel.tools.ledger import Ledger
from support.savers import BACKENDS as BACKENDS
from support.savers import FACES as FACES

ASKED = "__interrupt__"


class Killed(BaseException):
    """A crash as far as one process can simulate it: no `except Exception` catches it."""


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


def hello() -> dict[str, Any]:
    return {"messages": [HumanMessage("hello", id="hello")]}


async def run(graph: Any, face: str, value: Any, config: Any, **options: Any) -> Any:
    """Invoke a graph by one of its faces, outside this loop if it blocks."""
    if face == "sync":
        return await to_thread(graph.invoke, value, config, **options)
    return await graph.ainvoke(value, config, **options)


async def resume(graph: Any, face: str, answer: Any, config: Any) -> Any:
    return await run(graph, face, Command(resume=answer), config)


def calls(*wanted: tuple[str, dict[str, Any], str]) -> AIMessage:
    """Return a turn of the model that calls these tools: name, arguments, id."""
    asked: list[Any] = [{"name": name, "args": args, "id": call_id} for name, args, call_id in wanted]
    return AIMessage("", tool_calls=asked)


def turn_of(script: Sequence[AIMessage], messages: Sequence[BaseMessage]) -> AIMessage:
    said = sum(isinstance(message, AIMessage) for message in messages)
    return script[said].model_copy() if said < len(script) else AIMessage("done")


class Scripted(BaseChatModel):
    """Returns the next line of a script, whatever its input."""

    script: list[AIMessage]

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=turn_of(self.script, messages))])

    def bind_tools(self, *args: Any, **options: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "scripted"


def tool_graph(cache: ToolCache, tools: Sequence[Any], script: Sequence[AIMessage], **options: Any) -> Any:
    """Return a loop of a scripted model and a `ToolNode` that asks the cache first."""
    node = ToolNode(tools, wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call, **options)
    return loop_of(node, script, cache.saver)


def loop_of(node: Any, script: Sequence[AIMessage], saver: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [turn_of(script, state["messages"])]})
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def answers(result: Any) -> dict[str, ToolMessage]:
    """Return the tool messages of a result, by the ids of their calls."""
    return {message.tool_call_id: message for message in result["messages"] if isinstance(message, ToolMessage)}


def question(result: Any) -> Any:
    """Return the value of the one interrupt that a run ended with."""
    (asked,) = result[ASKED]
    return asked.value


def is_replay(message: ToolMessage) -> bool:
    return "keel_replay" in message.response_metadata


def strictly(patch: pytest.MonkeyPatch) -> None:
    """Act as if `LANGGRAPH_STRICT_MSGPACK` was set before LangGraph was imported.

    Two modules read it.
    """
    patch.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", True)
    patch.setattr("langgraph._internal._serde.STRICT_MSGPACK_ENABLED", True)


def late_at_first(monkeypatch: pytest.MonkeyPatch, trip: str) -> None:
    """Delay the store's first reply of a kind, so that it may arrive last."""
    sent, turn = getattr(Ledger, trip), count()

    def late(*given: Any) -> Any:
        yield Pause(0 if next(turn) else 0.2)
        return (yield from sent(*given))

    monkeypatch.setattr(Ledger, trip, late)


AT_ONCE = 5.0
"""Seconds within which an unblocked call ends: far below the lease, which ends every wait."""


async def at_once(graph: Any, face: str, value: Any, name: str = "t") -> Any:
    """Invoke a graph, and fail if it waits.

    The blocking face runs in a daemon thread, which cannot keep this process alive.
    """
    if face == "async":
        return await asyncio.wait_for(graph.ainvoke(value, thread(name)), AT_ONCE)
    ended: Future[Any] = Future()

    def work() -> None:
        try:
            ended.set_result(graph.invoke(value, thread(name)))
        except BaseException as error:
            ended.set_exception(error)

    Thread(target=work, daemon=True).start()
    return await asyncio.wait_for(asyncio.wrap_future(ended), AT_ONCE)


def both_faces(name: str, sync: Any, asynchronous: Any) -> BaseTool:
    return StructuredTool.from_function(sync, asynchronous, name=name, description=name)


@tool
def look(q: str) -> str:
    """Look."""
    return f"seen {q}"


TWO_TURNS = [calls(("look", {"q": "x"}, "call-1")), calls(("look", {"q": "x"}, "call-2"))]
