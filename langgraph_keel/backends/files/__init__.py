"""The file backend: one directory a thread, an append-only log of JSON lines in it."""

from langgraph_keel.backends.files.saver import FileSaver

__all__ = ["FileSaver"]
