"""Plans: what to send, separated from sending it.

Rule 1: a plan is a generator that yields one native request per round trip, is sent the reply, and returns
a value. It performs no I/O itself; two loops (`session.run`, `arun`) are the only place where a request meets a driver.
Rule 2: no lock, connection, cursor or transaction lives across a `yield`: each request is atomic by itself,
and a plan with several requests may be run again from the start after a crash.
Rule 3: everything before the first `yield` runs in the caller's own turn. `aput` relies on it: values are
serialized before the first `await`, so a node that mutates its state afterwards cannot tear them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")
Q_contra = TypeVar("Q_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

StorePlan: TypeAlias = Generator[Q, R, T]
"""A plan that knows the requests of its store and their replies: what stores are made of."""

Plan: TypeAlias = Generator[Any, Any, T]
"""A plan on whatever store the session has: what the engine and features are made of."""


class Driver(Protocol[Q_contra, R_co]):
    """Sends one request and waits for its reply, blocking the calling thread."""

    def send(self, request: Q_contra) -> R_co:
        """Execute `request` atomically and return its reply."""
        ...


class AsyncDriver(Protocol[Q_contra, R_co]):
    """Sends one request and waits for its reply without blocking the running loop."""

    async def send(self, request: Q_contra) -> R_co:
        """Execute `request` atomically and return its reply."""
        ...


def map_requests(plan: Plan[T], change: Callable[[Any], Any]) -> Plan[T]:
    """Carry out a plan, each request of which is changed on its way to the driver."""
    try:
        request = next(plan)
        while True:
            try:
                reply = yield change(request)
            except BaseException as error:
                request = plan.throw(error)
            else:
                request = plan.send(reply)
    except StopIteration as done:
        value: T = done.value
        return value
