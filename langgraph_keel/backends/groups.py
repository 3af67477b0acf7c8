"""Groups requests of a loop that wait, so that they go to the server together.

A backend defines the groups. With 64 coroutines on one loop, half of the processor's time was spent on pool turns,
timers, wake-ups and commits. A loop with one or two requests at a time sends them immediately.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeAlias
from weakref import WeakKeyDictionary

from langgraph_keel.engine.plan import Q, R

LANES = 2
"""Maximum requests or groups in progress; further ones wait."""
GROUP = 32
"""Maximum requests in one group, which bounds how long the first of them waits."""
PATIENCE = 0.1
"""Seconds without a reply after which requests count as stuck; others are sent."""

Send: TypeAlias = Callable[[Q], Awaitable[R]]
SendGroup: TypeAlias = Callable[[Sequence[Q]], Awaitable[Sequence[R | None]]]


class Groups(Generic[Q, R]):
    """The requests of all loops.

    `send_group` returns the replies of several requests, `None` for each that must be sent alone. If it raises, all of
    them raise its error.
    """

    def __init__(self, send: Send[Q, R], send_group: SendGroup[Q, R]) -> None:
        self._ways = send, send_group
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line[Q, R]] = WeakKeyDictionary()

    async def send(self, request: Q) -> R:
        """Send a request, alone or in a group, unless it is cancelled while waiting."""
        loop = asyncio.get_running_loop()
        if (line := self._lines.get(loop)) is None:
            line = self._lines[loop] = _Line(*self._ways)
        return await line.send(request)


class _Line(Generic[Q, R]):
    """The requests of one loop."""

    def __init__(self, send: Send[Q, R], send_group: SendGroup[Q, R]) -> None:
        self._send = send
        self._send_group = send_group
        self._lanes: set[object] = set()
        self._waiting: deque[tuple[Q, asyncio.Future[R | BaseException]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, request: Q) -> R:
        """Like `Groups.send`."""
        if len(self._lanes) < LANES:
            lane = self._take_lane()
            try:
                return await self._send(request)
            finally:
                self._leave_lane(lane)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[R | BaseException] = loop.create_future()
        self._waiting.append((request, waiter))
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE, self._write_off)
        outcome = await waiter
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _take_lane(self) -> object:
        lane = object()
        self._lanes.add(lane)
        return lane

    def _leave_lane(self, lane: object) -> None:
        self._lanes.discard(lane)
        self._send_waiting()

    def _write_off(self) -> None:
        self._lanes.clear()
        self._send_waiting()

    def _send_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and len(self._lanes) < LANES:
            first = [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]
            if group := [each for each in first if not each[1].done()]:
                task = asyncio.create_task(self._carry(group, self._take_lane()))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._write_off)

    async def _carry(self, group: Sequence[tuple[Q, asyncio.Future[R | BaseException]]], lane: object) -> None:
        outcomes: Sequence[R | BaseException | None]
        try:
            outcomes = await self._send_group([request for request, _ in group])
        except BaseException as error:  # also if all tasks are cancelled: no caller may wait forever
            outcomes = [error] * len(group)
        self._leave_lane(lane)
        apart = []
        for (request, waiter), outcome in zip(group, outcomes, strict=True):
            if outcome is None:
                apart.append(self._carry_one(request, waiter))
            elif not waiter.done():
                waiter.set_result(outcome)
        await asyncio.gather(*apart)

    async def _carry_one(self, request: Q, waiter: asyncio.Future[R | BaseException]) -> None:
        outcome: R | BaseException
        try:
            outcome = await self._send(request)
        except BaseException as error:
            outcome = error
        if not waiter.done():
            waiter.set_result(outcome)
