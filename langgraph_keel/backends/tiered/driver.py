"""The driver of two stores: it routes requests, and pauses after failures."""

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
"""Seconds between two requests to a failing hot store, which may time out."""


@record
class Hot:
    """A request for the hot store; all others are for the cold one."""

    request: Any
    must: bool = False  # whether it is sent even during the pause after a failure


class Absence:
    """Whether the hot store is down; failure and recovery are logged once each."""

    def __init__(self) -> None:
        self._until: float | None = None

    @contextmanager
    def asking(self, request: Hot) -> Iterator[None]:
        """Refuse a request during the pause; record whether the store answers."""
        if self._until is not None and not request.must and monotonic() < self._until:
            raise StoreUnavailable("the hot store failed a moment ago; Keel tries it again in some seconds")
        try:
            yield
        except StoreError as error:
            is_new, self._until = self._until is None, monotonic() + PAUSE
            if is_new:
                _log.warning("the hot store fails; the cold store answers alone until it recovers: %s", error)
            raise
        if self._until is not None:
            self._until = None
            _log.warning("the hot store answers again")


class TieredDriver:
    """Sends each request to one of two stores, blocking."""

    def __init__(self, cold: Driver[Any, Any], hot: Driver[Any, Any], absence: Absence) -> None:
        self._cold = cold
        self._hot = hot
        self._absence = absence

    def send(self, request: Any) -> Any:
        """Send a request to its store."""
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
        """Send a request to its store."""
        if not isinstance(request, Hot):
            return await self._cold.send(request)
        with self._absence.asking(request):
            return await self._hot.send(request.request)
