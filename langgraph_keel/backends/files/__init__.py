"""The file backend: one directory a thread, an append-only log of JSON lines in it."""

from langgraph_keel.backends.files.saver import FileSaver, open_url

__all__ = ["FileSaver", "open_url"]
