"""The memory backend: the reference model of the store, usable in tests and scripts."""

from langgraph_keel.backends.memory.saver import MemorySaver

__all__ = ["MemorySaver"]
