"""Errands that block, and the drivers that execute errands (`plan.Errand`)."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph_keel.engine.plan import AsyncDriver, Driver, Errand


class Call(Errand):
    """A call of a blocking function.

    In a running loop, `awaited` is called instead, or else the function in another thread.
    """

    __slots__ = ("_awaited", "_function")

    def __init__(self, function: Callable[[], Any], awaited: Callable[[], Awaitable[Any]] | None = None) -> None:
        self._function = function
        self._awaited = awaited

    def do(self) -> Any:
        """See `Errand.do`."""
        return self._function()

    async def ado(self) -> Any:
        """See `Errand.ado`."""
        return await (self._awaited() if self._awaited else to_thread(self._function))


class ErrandDriver:
    """A driver that executes errands, and sends all other requests to a store.

    Args:
        store: The driver of the store.
        kinds: The classes of errands that it executes. Other errands are left to the driver below.
    """

    def __init__(self, store: Driver[Any, Any], *kinds: type[Errand]) -> None:
        self._store = store
        self._kinds = kinds

    def send(self, request: Any) -> Any:
        """Carry out a request."""
        return request.do() if isinstance(request, self._kinds) else self._store.send(request)


class AsyncErrandDriver:
    """As `ErrandDriver`, for a running event loop."""

    def __init__(self, store: AsyncDriver[Any, Any], *kinds: type[Errand]) -> None:
        self._store = store
        self._kinds = kinds

    async def send(self, request: Any) -> Any:
        """Carry out a request."""
        return await (request.ado() if isinstance(request, self._kinds) else self._store.send(request))
