"""Tool results: the ledger of calls, and LangGraph's cache of nodes, on every backend."""

from __future__ import annotations

from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.tools.cache import ToolCache
from langgraph_keel.tools.node_cache import KeelCache
from langgraph_keel.tools.policy import ToolPolicy
from langgraph_keel.tools.stats import CacheStats

__all__ = ["CacheStats", "KeelCache", "ToolCache", "ToolPolicy"]

for _public in (CacheStats, KeelCache, ToolCache, ToolPolicy):
    publish(_public)  # here, since values of two of them are stored, whatever was imported by which name
