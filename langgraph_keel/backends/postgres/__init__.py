"""Keel on PostgreSQL."""

from langgraph_keel.backends.postgres.saver import PostgresSaver, open_url

AsyncPostgresSaver = PostgresSaver

__all__ = ["AsyncPostgresSaver", "PostgresSaver", "open_url"]
