"""Two stores as one: a cold store with all data, and a hot store as a cache."""

from langgraph_keel.backends.tiered.saver import TieredSaver, open_url

__all__ = ["TieredSaver", "open_url"]
