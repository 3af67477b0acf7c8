"""The SQLite backend."""

from langgraph_keel.backends.sqlite.saver import SqliteSaver, open_url

__all__ = ["SqliteSaver", "open_url"]
