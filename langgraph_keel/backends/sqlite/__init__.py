"""The SQLite backend."""

from langgraph_keel.backends.sqlite.saver import SqliteSaver, open_url

AsyncSqliteSaver = SqliteSaver

__all__ = ["AsyncSqliteSaver", "SqliteSaver", "open_url"]
