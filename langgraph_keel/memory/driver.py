"""The driver of the memory store: calls the request on the state, under one lock."""

from __future__ import annotations

from threading import Lock
from typing import Any

from langgraph_keel.memory.store import Request, State


class MemoryDriver:
    """Owns the state; one request at a time."""

    def __init__(self) -> None:
        self._state = State()
        self._lock = Lock()

    def send(self, request: Request) -> Any:
        """Call the request."""
        with self._lock:
            return request(self._state)


class AsyncMemoryDriver:
    """As `MemoryDriver`, for a running loop: there is nothing to wait for."""

    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver

    async def send(self, request: Request) -> Any:
        """Call the request."""
        return self._driver.send(request)
