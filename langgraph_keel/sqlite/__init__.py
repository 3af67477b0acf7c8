"""The SQLite backend."""

from langgraph_keel.sqlite.saver import SqliteSaver

__all__ = ["SqliteSaver"]
