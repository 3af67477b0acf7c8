"""The file backend: a directory for each thread, with an append-only log of JSON lines."""

from langgraph_keel.backends.files.saver import FileSaver, open_url

__all__ = ["FileSaver", "open_url"]
