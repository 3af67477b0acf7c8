"""A talk of two turns with a tool."""

from __future__ import annotations

from langchain_core.tools import tool
from tool_graphs import calls


@tool
def look(q: str) -> str:
    """Look."""
    return f"seen {q}"


TWO_TURNS = [calls(("look", {"q": "x"}, "call-1")), calls(("look", {"q": "x"}, "call-2"))]
