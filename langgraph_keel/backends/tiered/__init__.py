"""Two stores as one: a cold one that has all, and a hot one that has a copy of what is read most."""

from langgraph_keel.backends.tiered.saver import TieredSaver, open_url

__all__ = ["TieredSaver", "open_url"]
