"""Plans: generators that yield one native request per round trip and do no I/O.

1. Only `run` and `arun` pass requests to drivers. 2. No lock, connection or transaction lives across a `yield`.
3. The code before the first `yield` runs synchronously in the caller, so `aput` serializes before its first `await`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")
Q_contra = TypeVar("Q_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

_left: set[asyncio.Task[Any]] = set()
"""Tasks whose caller was cancelled, as event loops refer to tasks weakly."""


class Errand:
    """A request that is not sent to a store, such as to wait or to run a tool."""

    # Not an `ABC`, for which `isinstance` would call Python code at each request.
    __slots__ = ()

    def do(self) -> Any:
        """Carry it out in the calling thread."""
        raise NotImplementedError

    async def ado(self) -> Any:
        """Carry it out without blocking the running loop."""
        raise NotImplementedError


StorePlan: TypeAlias = Generator[Q, R, T]
"""A plan of a store, typed by the store's requests and replies."""

Plan: TypeAlias = Generator[Errand, Any, T]
"""A plan of the engine or a feature, for any store.

It yields only errands itself. The store's verbs yield the requests (`yield from session.store.scan(query)`)."""


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
    """Run a plan, changing its requests on their way to the driver."""
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


def run(plan: StorePlan[Q, R, T], driver: Driver[Q, R]) -> T:
    """Run a plan with a blocking driver, whose errors are raised inside the plan."""
    try:
        request = next(plan)
        while True:
            try:
                reply = driver.send(request)
            except BaseException as error:
                request = plan.throw(error)
            else:
                request = plan.send(reply)
    except StopIteration as done:
        value: T = done.value
        return value


async def arun(plan: StorePlan[Q, R, T], driver: AsyncDriver[Q, R], begun: Q | None = None) -> T:
    """As `run`, asynchronously. `begun` is the first request of a started plan."""
    task = asyncio.current_task()
    cancels = task.cancelling() if task else 0
    try:
        request = next(plan) if begun is None else begun
        while True:
            try:
                reply = await driver.send(request)
                if task and task.cancelling() > cancels:
                    # psycopg and redis-py wait with wait_for, which up to Python 3.11 swallows a cancellation that
                    # comes together with the reply (bpo-37658).
                    raise asyncio.CancelledError
            except BaseException as error:
                request = plan.throw(error)
            else:
                request = plan.send(reply)
    except StopIteration as done:
        value: T = done.value
        return value


def is_in_loop() -> bool:
    """Return whether the calling thread runs an event loop, which must not block."""
    return asyncio._get_running_loop() is not None


async def arun_whole(plan: StorePlan[Q, R, T], driver: AsyncDriver[Q, R]) -> T:
    """As `arun`, but finish the plan and its hooks even if the caller is cancelled."""
    try:
        request = next(plan)  # synchronously: rule 3 of plan.py
    except StopIteration as done:
        value: T = done.value
        return value
    task = asyncio.create_task(arun(plan, driver, request))
    ended = asyncio.get_running_loop().create_future()  # a third cheaper than `asyncio.wait`
    task.add_done_callback(lambda _: ended.done() or ended.set_result(None))  # type: ignore[func-returns-value]
    try:
        await ended
    except asyncio.CancelledError:
        _left.add(task)
        task.add_done_callback(_forget_left)
        raise
    return task.result()


def _forget_left(task: asyncio.Task[Any]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # else asyncio logs that the exception was never retrieved
