"""MemorySaver: all features of Keel, for the lifetime of the process.

Its driver calls each request with the state, under one lock.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Unpack

from langgraph_keel.backends.memory.store import MemoryStore, Request, State
from langgraph_keel.backends.registry import path_in, refuse_url
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.options import SaverOptions, takes
from langgraph_keel.saver import KeelSaver

if TYPE_CHECKING:
    from langgraph_keel.retention.info import StoreFacts


class MemoryDriver:
    """Owns the state, and runs one request at a time."""

    def __init__(self) -> None:
        self.state = State()
        self._lock = Lock()

    def send(self, request: Request) -> Any:
        """Call the request."""
        with self._lock:
            return request(self.state)


class AsyncMemoryDriver:
    """As `MemoryDriver`, for a running loop; no request waits."""

    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver

    async def send(self, request: Request) -> Any:
        """Call the request."""
        return self._driver.send(request)


@publish
class MemorySaver(KeelSaver):
    """A checkpointer that keeps threads in memory, in the same form as on disk.

    Args:
        **options: `SaverOptions` lists and documents them.
    """

    @takes(SaverOptions)
    def __init__(self, **options: Unpack[SaverOptions]) -> None:
        driver = MemoryDriver()
        super().__init__(MemoryStore(), driver, AsyncMemoryDriver(driver), **options)

    def _facts(self) -> StoreFacts:
        from langgraph_keel.retention.info import StoreFacts

        return StoreFacts("memory", "this process", None, "lost when the process ends")


def open_url(url: str, *, read_only: bool = False, **options: Any) -> MemorySaver:
    """Return a saver for a new store in memory, for `memory:`; `read_only` is ignored.

    As `registry.OpenUrl`; options are those of `MemorySaver`.
    """
    if path_in(url, "memory:").strip("/"):
        raise refuse_url(url)
    return MemorySaver(**options)
