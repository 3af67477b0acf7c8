"""MemorySaver: everything Keel does, for as long as the process lives."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from langgraph_keel.memory.driver import AsyncMemoryDriver, MemoryDriver
from langgraph_keel.memory.store import MemoryStore
from langgraph_keel.saver import KeelSaver


class MemorySaver(KeelSaver):
    """A checkpointer that keeps threads in memory, in the same form as the others keep them on disk.

    Args:
        **options: As for `KeelSaver`: `serde`, `types`, `on_conflict`, `memo_entries`, `memo_bytes`.
    """

    def __init__(self, **options: Any) -> None:
        driver = MemoryDriver()
        super().__init__(MemoryStore(), driver, AsyncMemoryDriver(driver), **options)

    def setup(self) -> None:
        """Do nothing; there is nothing to set up."""

    def close(self) -> None:
        """Do nothing; what is stored goes with the last reference."""

    def __enter__(self) -> Self:
        """Return the saver itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""

    async def __aenter__(self) -> Self:
        """Return the saver itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""
