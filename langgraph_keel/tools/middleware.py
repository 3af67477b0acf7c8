"""The cache as middleware of `create_agent`, imported only on demand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command


class ToolCacheMiddleware(AgentMiddleware[Any, Any]):
    """Answers tool calls of an agent; see `ToolCache.middleware`."""

    def __init__(self, cache: Any) -> None:
        super().__init__()
        self._cache = cache

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """See `ToolCache.wrap_tool_call`."""
        result: ToolMessage | Command[Any] = self._cache.wrap_tool_call(request, handler)
        return result

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """See `ToolCache.awrap_tool_call`."""
        result: ToolMessage | Command[Any] = await self._cache.awrap_tool_call(request, handler)
        return result


class HealToolCallsMiddleware(AgentMiddleware[Any, Any]):
    """Answers open tool calls before new input; see `ToolCache.healing_middleware`."""

    def __init__(self, cache: Any) -> None:
        super().__init__()
        self._cache = cache

    def before_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """See `ToolCache.heal_tool_calls`."""
        update = self._cache.heal_tool_calls(state["messages"], get_config())
        return {"messages": update} if update else None

    async def abefore_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """See `ToolCache.heal_tool_calls`."""
        update = await self._cache.aheal_tool_calls(state["messages"], get_config())
        return {"messages": update} if update else None
