"""The SQLite backend."""

from langgraph_keel.backends.sqlite.saver import SqliteSaver

__all__ = ["SqliteSaver"]
