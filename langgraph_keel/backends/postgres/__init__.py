"""Keel on PostgreSQL."""

from langgraph_keel.backends.postgres.saver import PostgresSaver, open_url

__all__ = ["PostgresSaver", "open_url"]
