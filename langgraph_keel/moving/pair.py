"""Plans with two stores, in which each request names its side."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from langgraph_keel.engine.engine import Engine
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.plan import Plan, map_requests

T = TypeVar("T")
Side: TypeAlias = Literal[0, 1]
SOURCE: Side = 0
TARGET: Side = 1


def on(side: Side, plan: Plan[T]) -> Plan[T]:
    """Run a one-store plan within a two-store plan; requests that name a side keep it."""
    return map_requests(plan, lambda request: request if type(request) is tuple else (side, request))


def from_source(plan: Plan[T], target: Engine) -> Plan[T]:
    """Run a two-store plan on the source's engine, which calls the target's drivers."""

    def route(request: tuple[Side, Any]) -> Any:
        side, inner = request
        if side == SOURCE:
            return inner
        return Call(partial(target.driver.send, inner), partial(target.async_driver.send, inner))

    return map_requests(plan, route)
