"""Refuses tools of sync graphs whose `ToolNode` has only a cache's async wrapper."""

from __future__ import annotations

import asyncio
import sys
from contextvars import ContextVar
from functools import cache
from typing import Any

from langchain_core.tools import BaseTool

from langgraph_keel._langgraph import register_configure_hook, wrappers_of
from langgraph_keel.errors import InvalidInput
from langgraph_keel.tools.guard import ToolHandler


class _LoneHandler(ToolHandler):
    def on_tool_start(self, *given: Any, **more: Any) -> None:
        """Refuse a tool that would run without the ledger."""
        if asyncio._get_running_loop():
            return
        tool, wrappers = _find_node()
        keeps = getattr(getattr(wrappers[1], "__self__", None), "policy_of", None)
        if tool and keeps and wrappers[0] is None and keeps(tool.name) is not None:
            raise InvalidInput(
                f"the tool {tool.name!r} was not run: its ToolNode has only the async wrapper of a ToolCache, and this "
                "graph is sync, so the ledger would not record the call. Pass both: ToolNode(tools, "
                "wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)"
            )


def _find_node() -> tuple[BaseTool | None, tuple[Any, Any]]:
    """Find the tool about to run and its `ToolNode`'s wrappers on the call stack."""
    tool, frame = None, sys._getframe().f_back
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, BaseTool):
            if tool is not None and tool is not owner:
                break
            tool = owner
        elif wrappers := wrappers_of(owner):
            return tool, wrappers
        frame = frame.f_back
    return None, (None, None)


_HANDLER = _LoneHandler()
_handler: ContextVar[Any] = ContextVar("keel_lone", default=_HANDLER)


@cache
def watch() -> None:
    """Register the handler with LangChain, once per process."""
    register_configure_hook(_handler, inheritable=True)
