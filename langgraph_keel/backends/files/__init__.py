"""The file backend: a directory with an append-only log for each thread."""

from langgraph_keel.backends.files.saver import FileSaver, open_url

__all__ = ["FileSaver", "open_url"]
