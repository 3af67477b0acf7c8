"""Keel on PostgreSQL."""

from langgraph_keel.backends.postgres.saver import PostgresSaver

__all__ = ["PostgresSaver"]
