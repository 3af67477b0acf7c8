"""Two stores in one plan: a request says which of them it is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from langgraph_keel.engine.plan import AsyncDriver, Driver, Plan, map_requests

T = TypeVar("T")
Side: TypeAlias = Literal[0, 1]
SOURCE: Side = 0
TARGET: Side = 1


def on(side: Side, plan: Plan[T]) -> Plan[T]:
    """Carry out a plan of one store within a plan of two. A request that names its side already keeps it."""
    return map_requests(plan, lambda request: request if type(request) is tuple else (side, request))


class PairDriver:
    """Sends each request to the store that it is for, blocking."""

    def __init__(self, drivers: Sequence[Driver[Any, Any]]) -> None:
        self._drivers = drivers

    def send(self, request: Any) -> Any:
        """See `Driver.send`."""
        side, inner = request
        return self._drivers[side].send(inner)


class AsyncPairDriver:
    """As `PairDriver`, without blocking the running loop."""

    def __init__(self, drivers: Sequence[AsyncDriver[Any, Any]]) -> None:
        self._drivers = drivers

    async def send(self, request: Any) -> Any:
        """See `AsyncDriver.send`."""
        side, inner = request
        return await self._drivers[side].send(inner)
