"""The middleware for `langchain.agents.create_agent`. Imported only on demand."""

from __future__ import annotations

from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langgraph.config import get_config
from langgraph.runtime import Runtime

from langgraph_keel.summaries.node import SummarizationNode


class KeelSummarization(AgentMiddleware[Any, Any]):
    """Shortens conversations of agents; see `KeelSaver.summarization_middleware`."""

    def __init__(self, node: SummarizationNode) -> None:
        super().__init__()
        self._node = node

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._node!r})"

    @property
    def name(self) -> str:
        """The name in the agent's graph."""
        return str(self._node.name)

    def before_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """See `SummarizationNode.invoke`."""
        return self._node.update(state, get_config())

    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """See `SummarizationNode.ainvoke`."""
        return await self._node.aupdate(state, get_config())
