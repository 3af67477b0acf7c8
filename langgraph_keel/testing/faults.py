"""Taps: what stands between a saver and its driver, to count requests and to make them fail.

A request can fail in two places that the caller cannot tell apart: before it was sent (nothing happened) and after it
was carried out, when only the reply got lost. A saver must be right in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph_keel.engine.plan import AsyncDriver, Driver
from langgraph_keel.engine.session import with_engine
from langgraph_keel.saver import KeelSaver


class Injected(Exception):
    """The error that a fault raises; no saver raises it on its own."""


class Tap:
    """Sees each request on its way out and its reply on the way back. This one does nothing."""

    def sending(self, request: Any) -> None:
        """Be told of a request before it is sent; an error raised here keeps it from being sent."""

    def replied(self, request: Any, reply: Any) -> None:
        """Be told of a reply; an error raised here takes its place."""


class Counter(Tap):
    """Counts round trips."""

    def __init__(self) -> None:
        self.count = 0

    def sending(self, request: Any) -> None:
        self.count += 1

    def taken(self) -> int:
        """Return how many round trips there were since this was last asked."""
        count, self.count = self.count, 0
        return count


class Fault(Tap):
    """Fails once: the request number `at` from now, before it is sent or after it was carried out.

    Args:
        at: Requests to let pass first; `None` lets all pass until `arm` is called.
        lost_reply: Whether the request is carried out and only its reply is lost.
    """

    def __init__(self, at: int | None = None, *, lost_reply: bool = False) -> None:
        self._left = at
        self._lost_reply = lost_reply
        self.fired = False

    def arm(self, at: int = 0) -> None:
        """Fail once more, at request number `at` from now."""
        self._left, self.fired = at, False

    def sending(self, request: Any) -> None:
        if not self._lost_reply:
            self._strike("before this request was sent")

    def replied(self, request: Any, reply: Any) -> None:
        if self._lost_reply:
            self._strike("after this request was carried out")

    def _strike(self, when: str) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            self._left, self.fired = None, True
            raise Injected(f"the connection broke {when}")


class Meanwhile(Tap):
    """Lets something else happen between two requests: just before request number `at`.

    Args:
        at: Requests to let pass first.
        action: What happens, by other savers.
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
    """A driver with a tap before it."""

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
    """As `TappedDriver`, for a running loop."""

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
    """Return a copy of `saver` that sends through `tap` on both faces; it shares store and memo with `saver`."""
    engine = saver.engine
    driver, async_driver = TappedDriver(engine.driver, tap), AsyncTappedDriver(engine.async_driver, tap)
    return with_engine(saver, engine.with_drivers(driver, async_driver))
