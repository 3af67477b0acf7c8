"""Refuses tools of a sync graph whose `ToolNode` has the async wrapper of a cache alone: it runs them without it."""

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
                f"the tool {tool.name!r} was not run: its ToolNode has a ToolCache for async graphs alone, and this is "
                "a sync one, so the ledger would not know of the call. Give it both: ToolNode(tools, "
                "wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)"
            )


def _find_node() -> tuple[BaseTool | None, tuple[Any, Any]]:
    """Return the tool that is about to run, and the wrappers of the `ToolNode` that runs it, as the stack tells."""
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
    """Have LangChain ask, from the first `ToolCache` of this process on."""
    register_configure_hook(_handler, inheritable=True)
