"""Two stores in one plan: a request says which of them it is for."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.plan import Plan, map_requests
from langgraph_keel.engine.session import Engine

T = TypeVar("T")
Side: TypeAlias = Literal[0, 1]
SOURCE: Side = 0
TARGET: Side = 1


def on(side: Side, plan: Plan[T]) -> Plan[T]:
    """Carry out a plan of one store within a plan of two."""
    return map_requests(plan, lambda request: (side, request))


def from_source(plan: Plan[T], target: Engine) -> Plan[T]:
    """Carry out a plan of both stores on the engine of the source: it calls the drivers of the target."""

    def route(request: tuple[Side, Any]) -> Any:
        side, inner = request
        if side == SOURCE:
            return inner
        return Call(partial(target.driver.send, inner), partial(target.async_driver.send, inner))

    return map_requests(plan, route)
