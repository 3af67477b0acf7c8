"""Wakes workers after a decision: in this process, and over a server. A worker looks again after its poll anyway."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

_log = logging.getLogger(__name__)

_LATER = "workers of other processes see a decision at their next poll: %s"


class Source(Protocol):
    """Passes the notices of other processes on."""

    def wait(self, seconds: float) -> None:
        """Wait for a notice, for at most so many seconds."""

    def close(self) -> None:
        """Listen no longer."""


class AsyncSource(Protocol):
    """As `Source`, for a running loop."""

    async def wait(self, seconds: float) -> None:
        """Wait for a notice, for at most so many seconds."""

    async def close(self) -> None:
        """Listen no longer."""


Listen = Callable[[], Source | None]
AsyncListen = Callable[[], Awaitable[AsyncSource | None]]

listening: set[Callable[[], None]] = set()
"""What wakes those who wait in this process, for whichever store: one look too many is cheaper than telling apart."""


def ring() -> None:
    """Wake who waits in this process."""
    for wake in list(listening):
        wake()


class Notices:
    """The notice for which a worker waits between two looks."""

    def __init__(self, listen: Listen) -> None:
        self._listen: Listen | None = listen
        self._source: Source | None = None
        self._woken = threading.Event()

    def __enter__(self) -> Self:
        """Listen, before the first look: what is decided after it is heard."""
        listening.add(self._woken.set)
        self._open()
        return self

    def __exit__(self, *error: object) -> None:
        """Listen no longer."""
        listening.discard(self._woken.set)
        self._close()

    def wait(self, seconds: float) -> None:
        """Wait until somebody has decided, or has maybe; for at most so many seconds."""
        if self._source is None and self._open():
            return  # what was decided while nobody listened is to be looked for
        if self._source is not None:
            try:
                return self._source.wait(seconds)
            except Exception as error:
                _log.info("no notices of decisions until the next poll: %s", error)
                self._close()
        self._woken.wait(seconds)
        self._woken.clear()

    def _open(self) -> bool:
        try:
            self._source = self._listen() if self._listen else None
        except Exception as error:
            _log.info("no notices of decisions until the next poll: %s", error)
        else:
            self._listen = self._listen if self._source else None  # and there will be none later
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
        """Listen, before the first look: what is decided after it is heard."""
        self._loop = asyncio.get_running_loop()
        listening.add(self._wake)
        await self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Listen no longer."""
        listening.discard(self._wake)
        await self._close()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop was closed without notice
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, seconds: float) -> None:
        """As `Notices.wait`."""
        if self._source is None and await self._open():
            return
        if self._source is not None:
            try:
                return await self._source.wait(seconds)
            except Exception as error:
                _log.info("no notices of decisions until the next poll: %s", error)
                await self._close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()

    async def _open(self) -> bool:
        try:
            self._source = await self._listen() if self._listen else None
        except Exception as error:
            _log.info("no notices of decisions until the next poll: %s", error)
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
    """Rings after a decision."""

    notify: Callable[[], None]  # other processes; does nothing where there is no server
    anotify: Callable[[], Awaitable[None]]
    listen: Listen  # to notices; returns `None` where there are none
    alisten: AsyncListen

    def ring(self) -> None:
        """Tell workers that somebody has decided. That is stored, so nothing that goes wrong here is an error."""
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
        """Return what a worker waits for between two looks."""
        return Notices(self.listen)

    def anotices(self) -> AsyncNotices:
        """As `notices`, for a running loop."""
        return AsyncNotices(self.alisten)


async def _nothing() -> None:
    """Do nothing."""


SILENT = Bell(lambda: None, _nothing, lambda: None, _nothing)
"""For workers that no server wakes."""
