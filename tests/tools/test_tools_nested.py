"""The order of calls: doubts next to other calls, nested and equal calls, retries."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt
from support.tool_graphs import (
    FACES,
    Killed,
    answers,
    at_once,
    both_faces,
    calls,
    hello,
    loop_of,
    question,
    run,
    thread,
    tool_graph,
)

from langgraph_keel import MemorySaver, ToolCache, ToolOutcomeUnknown, ToolPolicy
from langgraph_keel.engine.engine import EngineSaver, with_engine

pytestmark = pytest.mark.timeout(30)
RETRIED = ToolPolicy(unknown="retry")
NOT_KEPT = ToolPolicy(scope="thread", cache_if=lambda result: False)


class Deadly:
    """A tool that is cut off as long as `error` is set."""

    def __init__(self, name: str, error: type[BaseException] = Killed) -> None:
        self.error: type[BaseException] | None = error
        self.runs = 0
        self.tool = both_faces(name, self._work, self._awork)

    def _work(self, q: str) -> str:
        self.runs += 1
        if self.error is not None:
            raise self.error("as told")
        return f"found {q}"

    async def _awork(self, q: str) -> str:
        return self._work(q)


# -- a doubt next to a call that will run ------------------------------------------------------------------------------


class Late:
    """Delays one request if `is_late` is set: the one of the first call of a step."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.is_late = False

    async def send(self, request: Any) -> Any:
        if self.is_late:
            self.is_late = False
            await asyncio.sleep(0.3)
        return await self._driver.send(request)


def late(config: Any) -> str:
    """The same for threads, where any call may be the first to send a request."""
    time.sleep(0.3)
    return "late"


@pytest.mark.parametrize("face", FACES)
async def test_a_doubt_does_not_wait_for_a_waiting_sibling(face: str) -> None:
    """The sibling has claimed its call and waits for the first, which never starts."""
    first, second = Deadly("first"), Deadly("second", ValueError)
    script = [calls(("first", {"q": "x"}, "call-1"), ("second", {"q": "y"}, "call-2"))]
    plain = MemorySaver()
    driver = Late(plain.engine.async_driver)
    saver = with_engine(plain, plain.engine.with_drivers(async_driver=driver))
    with ToolCache(saver, {"first": ToolPolicy(scope=late)}, secret=bytes(32)) as cache:
        node = ToolNode(
            [first.tool, second.tool],
            wrap_tool_call=cache.wrap_tool_call,
            awrap_tool_call=cache.awrap_tool_call,
            handle_tool_errors=False,
        )
        graph = loop_of(node, script, plain)
        with pytest.raises(Killed):
            await run(graph, face, hello(), thread("t"))
        cache.close()
        first.error, second.error, driver.is_late = None, None, True
        with pytest.raises(ToolOutcomeUnknown, match="first"):
            await at_once(graph, face, None)
    assert first.runs == 1


# -- nested tools ------------------------------------------------------------------------------------------------------


def asking_after(inner: BaseTool) -> BaseTool:
    """A tool that calls another one, and then asks a person."""

    def outer(q: str) -> str:
        found = inner.invoke({"q": q})
        return f"{found}, {interrupt('ok?')}"

    async def aouter(q: str) -> str:
        found = await inner.ainvoke({"q": q})
        return f"{found}, {interrupt('ok?')}"

    return both_faces("outer", outer, aouter)


@pytest.mark.parametrize("face", FACES)
async def test_a_tool_that_calls_a_cached_tool_can_ask_a_person(face: str) -> None:
    """The inner call must not wait for the outer one, which waits for it."""
    look = Deadly("look")
    look.error = None
    with ToolCache(MemorySaver()) as cache:
        outer = asking_after(cache.tool(look.tool))
        graph = tool_graph(cache, [outer], [calls(("outer", {"q": "x"}, "call-1"))])
        assert question(await at_once(graph, face, hello())) == "ok?"
        result = await at_once(graph, face, Command(resume="yes"))
    assert answers(result)["call-1"].content == "found x, yes"
    assert look.runs == 1


def delegating(name: str, inner: BaseTool, seconds: float = 0.0) -> BaseTool:
    def outer(q: str) -> str:
        time.sleep(seconds)
        return str(inner.invoke({"q": q}))

    async def aouter(q: str) -> str:
        await asyncio.sleep(seconds)
        return str(await inner.ainvoke({"q": q}))

    return both_faces(name, outer, aouter)


@pytest.mark.parametrize("face", FACES)
async def test_a_doubt_inside_a_tool_does_not_wait_for_a_nesting_sibling(face: str) -> None:
    look, find = Deadly("look"), Deadly("find")
    find.error = None
    script = [calls(("outer", {"q": "x"}, "call-1"), ("other", {"q": "y"}, "call-2"))]
    with ToolCache(MemorySaver(), {"outer": RETRIED, "other": RETRIED}) as cache:
        tools = [delegating("outer", cache.tool(look.tool), 0.1), delegating("other", cache.tool(find.tool), 0.3)]
        graph = tool_graph(cache, tools, script)
        with pytest.raises(Killed):
            await run(graph, face, hello(), thread("t"))
        cache.close()
        cache.clear("t")  # as if the process had been killed before the outer tool ended
        look.error = None
        with pytest.raises(ToolOutcomeUnknown, match="look"):
            await at_once(graph, face, None)
    assert look.runs == 1


@pytest.mark.parametrize("face", FACES)
async def test_doubts_inside_two_tools_do_not_wait_for_each_other(face: str) -> None:
    look, find = Deadly("look"), Deadly("find")
    script = [calls(("outer", {"q": "x"}, "call-1"), ("other", {"q": "y"}, "call-2"))]
    with ToolCache(MemorySaver(), {"outer": RETRIED, "other": RETRIED}) as cache:
        tools = [delegating("outer", cache.tool(look.tool), 0.1), delegating("other", cache.tool(find.tool), 0.1)]
        graph = tool_graph(cache, tools, script)
        with pytest.raises(Killed):
            await run(graph, face, hello(), thread("t"))
        cache.close()
        look.error = find.error = None
        with pytest.raises(ToolOutcomeUnknown, match=r"look|find"):
            await at_once(graph, face, None)
    assert (look.runs, find.runs) == (1, 1)


async def test_a_doubt_in_a_thread_of_a_tool_does_not_wait_for_the_tool() -> None:
    """A thread started by the tool has the tool's config, but not its context."""
    look = Deadly("look")
    with ToolCache(MemorySaver(), {"outer": RETRIED}) as cache:
        kept = cache.tool(look.tool)

        @tool
        def outer(q: str, config: RunnableConfig) -> str:
            """Have a thread do it."""
            with ThreadPoolExecutor(1) as pool:
                return str(pool.submit(kept.invoke, {"q": q}, config).result())

        graph = tool_graph(cache, [outer], [calls(("outer", {"q": "x"}, "call-1"))])
        with pytest.raises(Killed):
            await run(graph, "sync", hello(), thread("t"))
        cache.close()
        look.error = None
        with pytest.raises(ToolOutcomeUnknown, match="look"):
            await at_once(graph, "sync", None)
    assert look.runs == 1


# -- attempts and equal calls ------------------------------------------------------------------------------------------


class Sent(TypedDict):
    count: int


class Sender:
    """A node that sends messages by a kept tool, and fails while `fails` is set."""

    def __init__(self, cache: ToolCache, *names: str) -> None:
        self.names, self.fails, self.sent = names, True, list[str]()

        def send(to: str) -> str:
            self.sent.append(to)
            return f"sent to {to}"

        async def asend(to: str) -> str:
            return send(to)

        self._send = cache.tool(both_faces("send", send, asend))

    def node(self, state: Sent) -> Sent:
        for name in self.names:
            self._send.invoke({"to": name})
        return self._ended()

    async def anode(self, state: Sent) -> Sent:
        for name in self.names:
            await self._send.ainvoke({"to": name})
        return self._ended()

    def _ended(self) -> Sent:
        if self.fails:
            raise ConnectionError("later")
        return {"count": len(self.sent)}

    def graph(self, face: str, saver: EngineSaver, retry: RetryPolicy | None = None) -> Any:
        builder = StateGraph(Sent)
        builder.add_node("send", self.node if face == "sync" else self.anode, retry_policy=retry)
        return builder.add_edge(START, "send").compile(checkpointer=saver)


@pytest.mark.parametrize("face", FACES)
async def test_a_retried_node_finds_the_calls_of_its_first_attempt(face: str) -> None:
    """A retry runs in the same task; the count of equal calls must start again."""
    with ToolCache(MemorySaver(), {"send": NOT_KEPT}) as cache:
        sender = Sender(cache, "x")
        policy = RetryPolicy(max_attempts=3, initial_interval=0.01, retry_on=ConnectionError)
        with pytest.raises(ToolOutcomeUnknown, match="send"):
            await at_once(sender.graph(face, cache.saver, policy), face, {"count": 0})
    assert sender.sent == ["x"]


@pytest.mark.parametrize("face", FACES)
async def test_the_order_of_other_calls_does_not_distinguish_equal_ones(face: str) -> None:
    """Threads, `gather` and sets change the order; only equal calls are counted."""
    with ToolCache(MemorySaver(), {"send": NOT_KEPT}) as cache:
        sender = Sender(cache, "a", "b")
        graph = sender.graph(face, cache.saver)
        with pytest.raises(ConnectionError):
            await at_once(graph, face, {"count": 0})
        sender.fails, sender.names = False, ("b", "a")
        with pytest.raises(ToolOutcomeUnknown, match="send"):
            await at_once(graph, face, None)
    assert sender.sent == ["a", "b"]


@pytest.mark.parametrize("face", FACES)
async def test_equal_calls_of_a_node_stay_two_calls_in_every_attempt(face: str) -> None:
    """Neither is taken for the other, and neither may be repeated silently."""
    with ToolCache(MemorySaver(), {"send": NOT_KEPT}) as cache:
        sender = Sender(cache, "a", "a")
        graph = sender.graph(face, cache.saver)
        with pytest.raises(ConnectionError):
            await at_once(graph, face, {"count": 0})
        sender.fails = False
        with pytest.raises(ToolOutcomeUnknown, match="send") as told:
            await at_once(graph, face, None)
        cache.settle("t", told.value.key, "done", "sent to a")
        assert await at_once(graph, face, None) == {"count": 2}
    assert sender.sent == ["a", "a"]
