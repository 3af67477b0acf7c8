"""Measure 15, `ledger`: the cost of a recorded tool call, compared with the same call without a cache.

A *hit* and a *miss* are timed through `ToolCache.wrap_tool_call`, in a thread whose ledger contains 1000 calls. The
tool returns a short text at once, so its own time is negligible. The tool without a cache is timed as well, and on a
server a bare round trip (PING, SELECT 1) over a separate connection.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from itertools import count
from typing import Any

from langchain_core.tools import tool
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime

from .graphs import thread
from .plan import Plan
from .report import Row
from .timing import Clocked, interleaved, timed

CALLS = 1000


@tool
def look_up(number: int) -> str:
    """Return a text."""
    return f"the text of number {number}"


def request(number: int, call_id: str) -> ToolCallRequest:
    call: Any = {"name": "look_up", "args": {"number": number}, "id": call_id, "type": "tool_call"}
    runtime: Any = ToolRuntime(
        state={}, context=None, config=thread("ledger"), stream_writer=print, tool_call_id=call_id, store=None
    )
    return ToolCallRequest(tool_call=call, tool=look_up, state={}, runtime=runtime)


def execute(asked: ToolCallRequest) -> Any:
    return look_up.invoke({**asked.tool_call})


class Kept:
    """A cache with a thousand calls in one thread."""

    def __init__(self, saver: Any, calls: int) -> None:
        self._cache = import_module("langgraph_keel").ToolCache(saver)
        self._numbers: Iterator[int] = count()
        self._calls = calls
        for _ in range(calls):
            self.miss()

    def _timed(self, number: int) -> float:
        return timed(self._cache.wrap_tool_call, request(number, f"call-{number}"), execute)[0]

    def miss(self) -> float:
        return self._timed(next(self._numbers))

    def hit(self) -> float:
        return self._timed(self._calls // 2)

    def plain(self) -> float:
        asked = request(0, "call-0")
        return timed(execute, asked)[0]


def measure(plan: Plan) -> list[Row]:
    with ExitStack() as stack:
        directory = plan.directory("ledger")
        kept = Kept(stack.enter_context(plan.pair.ours.open(directory)), plan.count(CALLS))
        runs: dict[str, Clocked] = {"hit": kept.hit, "miss": kept.miss, "plain": kept.plain}
        if plan.pair.ours.trip:
            trip: Callable[[], object] = plan.pair.ours.trip(stack, directory)
            runs["trip"] = lambda: timed(trip)[0]
        took = interleaved(plan.rounds(201), runs)
    bare = "; compared with a bare round trip" if "trip" in took else ""
    return [
        Row("ledger", f"hit of a tool call{bare}", took.get("trip"), took["hit"], "ms", plan.target("ledger: hit")),
        Row("ledger", f"miss of a tool call{bare}", took.get("trip"), took["miss"], "ms"),
        Row("ledger", "the tool without a cache", None, took["plain"], "ms"),
    ]
