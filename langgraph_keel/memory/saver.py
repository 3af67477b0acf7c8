"""MemorySaver: everything Keel does, for as long as the process lives."""

from __future__ import annotations

from typing import Any

from langgraph_keel.memory.driver import AsyncMemoryDriver, MemoryDriver
from langgraph_keel.memory.store import MemoryStore
from langgraph_keel.saver import KeelSaver


class MemorySaver(KeelSaver):
    """A checkpointer that keeps threads in memory, in the same form as the others keep them on disk.

    Args:
        **options: As for `KeelSaver`: `serde`, `types`, `on_conflict`, `memo_entries`, `memo_bytes`; `keep_last`,
            `ttl`, `upkeep_every` (upkeep by itself), `archive_removed`, `owner`, and what else stands there.
    """

    def __init__(self, **options: Any) -> None:
        driver = MemoryDriver()
        super().__init__(MemoryStore(), driver, AsyncMemoryDriver(driver), **options)
