"""Calls of tools by both faces, and several at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from threading import Thread
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool
from tool_graphs import thread

AT_ONCE = 5.0
"""Seconds that nothing takes that waits for nobody: far below the lease, after which every wait ends."""


async def at_once(graph: Any, face: str, value: Any, name: str = "t") -> Any:
    """Invoke a graph, and fail if it waits: in a thread that need not end for this process to end."""
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
