"""Taps between a saver and its driver, which count requests or make them fail.

A request can fail before it was sent (nothing happened), or after it was executed (only the reply got lost). The caller
cannot distinguish the two, and a saver must handle both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.plan import AsyncDriver, Driver
from langgraph_keel.saver import KeelSaver


class Injected(Exception):
    """The error raised by a fault, and by nothing else."""


class Tap:
    """Observes each request and its reply. The base class does nothing."""

    def sending(self, request: Any) -> None:
        """Called before a request is sent. An error raised here prevents sending it."""

    def replied(self, request: Any, reply: Any) -> None:
        """Called with a reply. An error raised here replaces it."""


class Counter(Tap):
    """Counts round trips."""

    def __init__(self) -> None:
        self.count = 0

    def sending(self, request: Any) -> None:
        self.count += 1

    def taken(self) -> int:
        """Return the number of round trips since the last call."""
        count, self.count = self.count, 0
        return count


class Fault(Tap):
    """Makes one request fail, before it is sent or after it was executed.

    Args:
        at: Number of requests to let pass first; `None` lets all pass until `arm` is called.
        lost_reply: Whether the request is executed and only its reply is lost.
    """

    def __init__(self, at: int | None = None, *, lost_reply: bool = False) -> None:
        self._left = at
        self._lost_reply = lost_reply
        self.fired = False

    def arm(self, at: int = 0) -> None:
        """Fail again, after `at` more requests."""
        self._left, self.fired = at, False

    def sending(self, request: Any) -> None:
        if not self._lost_reply:
            self._strike("before this request was sent")

    def replied(self, request: Any, reply: Any) -> None:
        if self._lost_reply:
            self._strike("after this request was executed")

    def _strike(self, when: str) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            self._left, self.fired = None, True
            raise Injected(f"the connection broke {when}")


class Meanwhile(Tap):
    """Runs an action once, just before a request.

    Args:
        at: Number of requests to let pass first.
        action: The action, usually by other savers.
    """

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self._left = at
        self._action = action
        self.happened = False

    def sending(self, request: Any) -> None:
        self._left -= 1
        if self._left < 0 and not self.happened:
            self.happened = True
            self._action()


class TappedDriver:
    """A driver behind a tap."""

    def __init__(self, driver: Driver[Any, Any], tap: Tap) -> None:
        self._driver = driver
        self._tap = tap

    def send(self, request: Any) -> Any:
        """Send `request` through the tap."""
        self._tap.sending(request)
        reply = self._driver.send(request)
        self._tap.replied(request, reply)
        return reply


class AsyncTappedDriver:
    """An async driver behind a tap."""

    def __init__(self, driver: AsyncDriver[Any, Any], tap: Tap) -> None:
        self._driver = driver
        self._tap = tap

    async def send(self, request: Any) -> Any:
        """Send `request` through the tap."""
        self._tap.sending(request)
        reply = await self._driver.send(request)
        self._tap.replied(request, reply)
        return reply


def with_tap(saver: KeelSaver, tap: Tap) -> KeelSaver:
    """Return a copy of a saver, with shared store and memo, that sends through a tap."""
    engine = saver.engine
    driver, async_driver = TappedDriver(engine.driver, tap), AsyncTappedDriver(engine.async_driver, tap)
    return with_engine(saver, engine.with_drivers(driver, async_driver))
