"""Clients of running loops: a connection of asyncio belongs to the loop it was opened in.

A loop that ends in good order (`asyncio.run`) ends its asynchronous generators, and one of them closes the client. Of a
loop that was just closed, the sockets are closed when `Loops` is used or closed next.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, TypeAlias

from langgraph_keel.redis.connection import AsyncClient, drop, prepared

Loop: TypeAlias = asyncio.AbstractEventLoop
CLOSING = 10.0
"""Seconds that `close` waits for a loop in another thread."""


class _Own:
    """The client of a loop, and what closes it at the end of the loop."""

    def __init__(self, client: AsyncClient, keeper: AsyncGenerator[None, None]) -> None:
        self.client = client
        self.keeper = keeper
        self.is_ready = False
        self.opening = asyncio.Lock()


Opened: TypeAlias = dict[Loop, _Own]


class Loops:
    """The clients that Keel made for running loops.

    Args:
        make: Returns a new client for the running loop.
    """

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._make = make
        self._forget()

    def _forget(self) -> None:
        self._opened: Opened = {}
        self._process = os.getpid()
        # When this is collected, and at the latest at the end of the process.
        weakref.finalize(self, _bury, self._opened)

    async def client(self) -> AsyncClient:
        """Return the client of the running loop; make it, if there is none."""
        if self._process != os.getpid():
            _PARENTS.append(self._opened)
            self._forget()
        loop = asyncio.get_running_loop()
        own = self._opened.get(loop) or await self._begin(loop)
        if not own.is_ready:
            # One task does it, and the others wait: if it is cancelled, the next one does it.
            async with own.opening:
                await prepared(own.client)
                own.is_ready = True
        return own.client

    async def _begin(self, loop: Loop) -> _Own:
        _bury(self._opened)
        own = self._opened[loop] = _Own(self._make(), self._keep(loop))
        # Up to its yield it waits for nothing, so nobody comes in between.
        await anext(own.keeper)
        return own

    async def _keep(self, loop: Loop) -> AsyncGenerator[None, None]:
        opened = self._opened
        try:
            yield
        finally:
            # Otherwise it was dropped before.
            own = opened.pop(loop, None)
            if own:
                await own.client.aclose()
                pool = getattr(own.client, "connection_pool", None)
                if pool is not None:
                    await pool.disconnect()

    async def aclose(self) -> None:
        """Close the client of the running loop."""
        own = self._opened.get(asyncio.get_running_loop())
        if own:
            await own.keeper.aclose()

    def close(self) -> None:
        """Close all clients: each in its loop, if that runs elsewhere or can be made to run here."""
        if self._process == os.getpid():
            for loop in list(self._opened):
                _close_in(loop, self._opened)


def _bury(opened: Opened) -> None:
    """Close what loops left that were closed without notice."""
    for loop in list(opened):
        if loop.is_closed():
            _drop(loop, opened)


def _drop(loop: Loop, opened: Opened) -> None:
    own = opened.pop(loop, None)
    if own is None:
        return
    drop(own.client, loop.is_closed())
    # It has nothing left to await, so it can be ended without a loop.
    with suppress(StopIteration):
        own.keeper.aclose().send(None)


def _close_in(loop: Loop, opened: Opened) -> None:
    here = asyncio._get_running_loop()
    if loop is here or loop.is_closed():
        _drop(loop, opened)
    elif loop.is_running():
        asyncio.run_coroutine_threadsafe(_closed(opened[loop].keeper), loop).result(CLOSING)
    elif here is None:
        with suppress(RuntimeError):
            loop.run_until_complete(_closed(opened[loop].keeper))


async def _closed(keeper: AsyncGenerator[None, None]) -> None:
    await keeper.aclose()


# What a forked child inherits is its parent's: not to be used, closed or collected.
_PARENTS: list[Any] = []
