"""A graph that asks while it is replayed."""

from __future__ import annotations

from langchain_core.tools import BaseTool, tool
from langgraph.types import interrupt


def asking(runs: list[str]) -> BaseTool:
    @tool
    def ask(x: int) -> str:
        """Ask a person."""
        runs.append(interrupt({"may I": x}))
        return f"a person said {runs[-1]}"

    return ask
