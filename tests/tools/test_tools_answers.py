"""Tools of one `ToolNode` ask at different times, and each gets its own answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.types import Command, interrupt
from support.tool_graphs import ASKED, FACES, answers, at_once, both_faces, calls, hello, tool_graph

from langgraph_keel import MemorySaver, ToolCache

pytestmark = pytest.mark.timeout(30)


async def played(graph: Any, face: str) -> tuple[list[str], dict[str, Any]]:
    """Answer each question. Return the questions in order, and the calls' results."""
    result = await at_once(graph, face, hello())
    asked: list[str] = []
    while ASKED in result and len(asked) < 8:
        asked.append(result[ASKED][0].value)
        result = await at_once(graph, face, Command(resume=f"<{asked[-1]}>"))
    return asked, {name: message.content for name, message in answers(result).items()}


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_tool_that_asks_later_receives_its_own_answer(turns: int) -> None:
    """An async graph shows the question that was asked first, whatever its call."""

    @tool
    async def slow(q: str) -> str:
        """Ask after some turns of the loop."""
        for _ in range(turns):
            await asyncio.sleep(0)
        return f"slow got {interrupt('slow?')}"

    @tool
    async def quick(q: str) -> str:
        """Ask at once."""
        return f"quick got {interrupt('quick?')}"

    with ToolCache(MemorySaver()) as cache:
        script = [calls(("slow", {"q": "x"}, "1"), ("quick", {"q": "y"}, "2"))]
        graph = tool_graph(cache, [slow, quick], script)
        asked, said = await played(graph, "async")
    assert said == {"1": "slow got <slow?>", "2": "quick got <quick?>"}
    assert sorted(asked) == ["quick?", "slow?"]


def both(cache: ToolCache, log: list[str]) -> list[BaseTool]:
    """A tool that asks and calls another tool that asks, and a sibling that asks."""

    def inner(q: str) -> str:
        log.append("inner")
        return f"in {interrupt('inner?')}"

    async def ainner(q: str) -> str:
        return inner(q)

    kept = cache.tool(both_faces("inner", inner, ainner))

    def outer(q: str) -> str:
        return f"{kept.invoke({'q': q})}, out {interrupt('outer?')}"

    async def aouter(q: str) -> str:
        return f"{await kept.ainvoke({'q': q})}, out {interrupt('outer?')}"

    def beside(q: str) -> str:
        return f"beside {interrupt('beside?')}"

    async def abeside(q: str) -> str:
        return beside(q)

    return [both_faces("outer", outer, aouter), both_faces("beside", beside, abeside)]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("order", [1, -1])
async def test_nested_tools_receive_their_own_answers(face: str, order: int) -> None:
    log: list[str] = []
    asks = [("outer", {"q": "x"}, "1"), ("beside", {"q": "y"}, "2")][::order]
    with ToolCache(MemorySaver()) as cache:
        graph = tool_graph(cache, both(cache, log), [calls(*asks)])
        asked, said = await played(graph, face)
    assert said == {"1": "in <inner?>, out <outer?>", "2": "beside <beside?>"}
    assert sorted(asked) == ["beside?", "inner?", "outer?"]
    assert len(log) <= 3
