"""The memory backend: the reference model of a store, also for tests and scripts."""

from langgraph_keel.backends.memory.saver import MemorySaver, open_url

__all__ = ["MemorySaver", "open_url"]
