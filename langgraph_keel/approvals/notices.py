"""Wakes workers after a decision, in this process and over a server.

A missed notice only delays a worker until its next poll.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

_log = logging.getLogger(__name__)

_LATER = "workers of other processes notice a decision at their next poll: %s"


class Source(Protocol):
    """Receives the notices of other processes."""

    def wait(self, seconds: float) -> None:
        """Wait for a notice, for at most so many seconds."""

    def close(self) -> None:
        """Stop listening."""


class AsyncSource(Protocol):
    """As `Source`, for a running loop."""

    async def wait(self, seconds: float) -> None:
        """Wait for a notice, for at most so many seconds."""

    async def close(self) -> None:
        """Stop listening."""


Listen = Callable[[], Source | None]
AsyncListen = Callable[[], Awaitable[AsyncSource | None]]

listening: set[Callable[[], None]] = set()
"""Wakes all waiting workers of this process, of any store: an extra poll is cheap."""


def ring() -> None:
    """Wake the waiting workers of this process."""
    for wake in list(listening):
        wake()


class Notices:
    """The notices for which a worker waits between two polls."""

    def __init__(self, listen: Listen) -> None:
        self._listen: Listen | None = listen
        self._source: Source | None = None
        self._woken = threading.Event()

    def __enter__(self) -> Self:
        """Start listening, before the first poll, so that no later decision is missed."""
        listening.add(self._woken.set)
        self._open()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening."""
        listening.discard(self._woken.set)
        self._close()

    def wait(self, seconds: float) -> None:
        """Wait for a notice, which may be spurious, for at most `seconds`."""
        if self._source is None and self._open():
            return  # look for decisions that were made before it listened
        if self._source is not None:
            try:
                return self._source.wait(seconds)
            except Exception as error:
                _log.info("no notices of decisions before the next poll: %s", error)
                self._close()
        self._woken.wait(seconds)
        self._woken.clear()

    def _open(self) -> bool:
        try:
            self._source = self._listen() if self._listen else None
        except Exception as error:
            _log.info("no notices of decisions before the next poll: %s", error)
        else:
            self._listen = self._listen if self._source else None  # it will not become available later
        return self._source is not None

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            with suppress(Exception):
                source.close()


class AsyncNotices:
    """As `Notices`, for a running loop."""

    def __init__(self, listen: AsyncListen) -> None:
        self._listen: AsyncListen | None = listen
        self._source: AsyncSource | None = None
        self._woken = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start listening, before the first poll, so that no later decision is missed."""
        self._loop = asyncio.get_running_loop()
        listening.add(self._wake)
        await self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop listening."""
        listening.discard(self._wake)
        await self._close()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, seconds: float) -> None:
        """As `Notices.wait`."""
        if self._source is None and await self._open():
            return
        if self._source is not None:
            try:
                return await self._source.wait(seconds)
            except Exception as error:
                _log.info("no notices of decisions before the next poll: %s", error)
                await self._close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()

    async def _open(self) -> bool:
        try:
            self._source = await self._listen() if self._listen else None
        except Exception as error:
            _log.info("no notices of decisions before the next poll: %s", error)
        else:
            self._listen = self._listen if self._source else None
        return self._source is not None

    async def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            with suppress(Exception):
                await source.close()


@dataclass(frozen=True, slots=True)
class Bell:
    """Notifies workers of a decision."""

    notify: Callable[[], None]  # other processes; does nothing without a server
    anotify: Callable[[], Awaitable[None]]
    listen: Listen  # to notices; returns `None` without a server
    alisten: AsyncListen

    def ring(self) -> None:
        """Notify workers of a stored decision. Failures are logged, not raised."""
        ring()
        try:
            self.notify()
        except Exception as error:
            _log.info(_LATER, error)

    async def aring(self) -> None:
        """As `ring`, asynchronously."""
        ring()
        try:
            await self.anotify()
        except Exception as error:
            _log.info(_LATER, error)

    def notices(self) -> Notices:
        """Return the notices for which a worker waits between two polls."""
        return Notices(self.listen)

    def anotices(self) -> AsyncNotices:
        """As `notices`, for a running loop."""
        return AsyncNotices(self.alisten)


async def _nothing() -> None:
    """Do nothing."""


SILENT = Bell(lambda: None, _nothing, lambda: None, _nothing)
"""A `Bell` for workers without notices."""
