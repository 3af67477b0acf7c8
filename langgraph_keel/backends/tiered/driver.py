"""The driver of two stores: it sends each request to the one that it is for, and leaves one alone that is away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from langgraph_keel.engine.plan import AsyncDriver, Driver
from langgraph_keel.engine.records import record
from langgraph_keel.errors import StoreError, StoreUnavailable

_log = logging.getLogger(__name__)
PAUSE = 5.0
"""Seconds for which a hot store is left alone that has failed: a call to one that hangs takes its whole timeout."""


@record
class Hot:
    """A request for the hot store; all others are for the cold one."""

    request: Any
    must: bool = False  # whether it is sent even if the store has failed a moment ago


class Absence:
    """Whether the hot store is away: said once in the log, and once that it is back."""

    def __init__(self) -> None:
        self._until: float | None = None

    @contextmanager
    def asking(self, request: Hot) -> Iterator[None]:
        """Refuse a request while the store is left alone; note whether the store answers it."""
        if self._until is not None and not request.must and monotonic() < self._until:
            raise StoreUnavailable("the hot store has failed a moment ago, and is left alone for some seconds")
        try:
            yield
        except StoreError as error:
            is_new, self._until = self._until is None, monotonic() + PAUSE
            if is_new:
                _log.warning("the hot store fails, and the cold one answers alone until it is back: %s", error)
            raise
        if self._until is not None:
            self._until = None
            _log.warning("the hot store answers again")


class TieredDriver:
    """Sends requests to two stores, blocking."""

    def __init__(self, cold: Driver[Any, Any], hot: Driver[Any, Any], absence: Absence) -> None:
        self._cold = cold
        self._hot = hot
        self._absence = absence

    def send(self, request: Any) -> Any:
        """Send a request to the store that it is for."""
        if not isinstance(request, Hot):
            return self._cold.send(request)
        with self._absence.asking(request):
            return self._hot.send(request.request)


class AsyncTieredDriver:
    """As `TieredDriver`, for a running loop."""

    def __init__(self, cold: AsyncDriver[Any, Any], hot: AsyncDriver[Any, Any], absence: Absence) -> None:
        self._cold = cold
        self._hot = hot
        self._absence = absence

    async def send(self, request: Any) -> Any:
        """Send a request to the store that it is for."""
        if not isinstance(request, Hot):
            return await self._cold.send(request)
        with self._absence.asking(request):
            return await self._hot.send(request.request)
