"""Requests on their way to the writing thread, and back to those who wait: threads or running loops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeAlias

from langgraph_keel.sqlite.rows import Work

GROUP = 128
"""Most requests to one commit: bounds how long the first of them waits."""


class Job:
    """One request and the caller who waits for it.

    Either the writing thread claims it, and then it is carried out, or the caller gives it up before that, and then
    it is not. `list.append` is atomic: whoever stands first has it.
    """

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.work = work
        self.loop = loop
        self.result: Any = None
        self.error: BaseException | None = None
        self._claims: list[str] = []
        self._done = Lock()
        self._done.acquire()
        self.waiter = loop.create_future() if loop else None

    def claim(self) -> bool:
        """Take the job to carry it out; `False` if the caller gave it up."""
        return self._take("writer")

    def give_up(self) -> bool:
        """Take the job back; `False` if it is being carried out."""
        return self._take("caller")

    def _take(self, who: str) -> bool:
        self._claims.append(who)
        return self._claims[0] == who

    def wait(self, timeout: float = -1) -> bool:
        """Block until the job is done, or for `timeout` seconds; return whether it is done."""
        return self._done.acquire(timeout=timeout)

    def outcome(self) -> Any:
        """Return the result of a job that is done, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result

    def finish(self) -> None:
        """Let a waiting thread go on."""
        self._done.release()


Jobs: TypeAlias = SimpleQueue[Job | None]


def take(jobs: Jobs) -> list[Job]:
    """Wait for work, then take all that is there; an empty list means that the driver stops."""
    group: list[Job] = []
    job = jobs.get()
    while job is not None:
        group.append(job)
        if len(group) >= GROUP or jobs.empty():
            return group
        job = jobs.get()
    if group:
        jobs.put(None)
    return group


def fail(group: Iterable[Job], error: BaseException) -> None:
    """Leave an error in jobs, also in those nobody claimed yet."""
    for job in group:
        job.claim()
        job.error = error


def finish(group: Iterable[Job]) -> None:
    """Tell all who wait; each loop is woken once, for that is a system call."""
    waiters: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for job in group:
        job.finish()
        if job.loop is not None and job.waiter is not None:
            waiters.setdefault(job.loop, []).append(job.waiter)
    for loop, each in waiters.items():
        # A loop may have been closed by a caller who did not wait.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_wake, each)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
