"""A tool cache with a test clock, and tools that count their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool

from langgraph_keel import KeelSaver, SqliteSaver, ToolCache, ToolPolicy

THREAD = ToolPolicy(scope="thread")
CallId = Annotated[str, InjectedToolCallId]


class Clock:
    """Milliseconds since 1970, as passed to the cache."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("langgraph_keel.tools.cache._now", clock)
    return clock


@pytest.fixture
def saver() -> Iterator[KeelSaver]:
    with SqliteSaver(":memory:") as saver:
        yield saver


def config(thread: str = "t", **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, **more}}


def call(
    cache: ToolCache, it: BaseTool, call_id: str = "call-1", where: RunnableConfig | None = None, **args: Any
) -> Any:
    asked = {"type": "tool_call", "name": it.name, "args": args, "id": call_id}
    return cache.tool(it).invoke(asked, where or config())


class Counting:
    """A tool `make` that counts its runs; its result is `answer` of the call's id."""

    def __init__(self, answer: Callable[[str], Any] = str, **options: Any) -> None:
        self.runs = 0

        def make(call_id: CallId, x: int = 0) -> Any:
            """Make."""
            self.runs += 1
            return answer(call_id)

        self.tool = StructuredTool.from_function(make, name="make", **options)

    def again(self, cache: ToolCache, *calls: str, **args: Any) -> list[Any]:
        return [call(cache, self.tool, call_id, **args) for call_id in calls]


def keeping(saver: KeelSaver, **policy: Any) -> ToolCache:
    """Return a cache with the scope "thread" by default."""
    return ToolCache(saver, default=ToolPolicy(**{"scope": "thread"} | policy))
