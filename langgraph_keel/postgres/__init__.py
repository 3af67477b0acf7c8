"""Keel on PostgreSQL."""

from langgraph_keel.postgres.saver import PostgresSaver

__all__ = ["PostgresSaver"]
