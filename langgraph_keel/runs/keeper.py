"""One thread per cache or saver: it keeps claims alive, and does what a cancelled call or a loop could not wait for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from threading import Condition, Thread
from time import monotonic
from typing import Generic, Protocol, TypeVar

from langgraph_keel.errors import StoreClosed

_log = logging.getLogger(__name__)
Job = Callable[[], object]
_IDLE = 10.0
"""Seconds without anything to do after which a keeper's thread ends."""


class Claimed(Protocol):
    """What is ours for as long as it is renewed."""

    @property
    def token(self) -> str:
        """Tells it from all others."""

    @property
    def work(self) -> str:
        """What goes on under it, for the log."""


C = TypeVar("C", bound=Claimed)


class Keeper(Generic[C]):
    """Renews claims, and does jobs. Its thread starts when it is needed, and ends when it was not for a while.

    Args:
        period: Seconds between two renewals of a claim.
        renew: Renews one; `False` if it is no longer ours.
        what: Where claims and jobs are written, for the log.
    """

    def __init__(self, period: float, renew: Callable[[C], bool], what: str = "the ledger of tool calls") -> None:
        self._period = period
        self._renew = renew
        self._what = what
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a process that was forked: the thread and the claims are the other one's."""
        self._changed = Condition()
        self._held: dict[str, tuple[float, C]] = {}
        self._jobs: list[Job] = []
        self._is_busy = False
        self._thread: Thread | None = None

    def hold(self, claim: C) -> None:
        """Renew a claim from now on."""
        with self._changed:
            self._start()
            self._held[claim.token] = monotonic() + self._period, claim
            self._changed.notify_all()

    def drop(self, claim: C) -> None:
        """Renew a claim no longer."""
        with self._changed:
            self._held.pop(claim.token, None)

    def defer(self, job: Job) -> None:
        """Do something soon, in the keeper's thread. What it raises is logged."""
        with self._changed:
            self._start()
            self._jobs.append(job)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all jobs are done, for at most `timeout` seconds; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._is_busy, timeout)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="keel-keeper", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            jobs, claims = work
            for job in jobs:
                self._attempt(job)
            for claim in claims:
                self._attempt(partial(self._renewed, claim))

    def _next(self) -> tuple[list[Job], list[C]] | None:
        """Wait for jobs and for claims that are due; return `None` when there was nothing for long."""
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            while not self._jobs and not self._due():
                soonest = min((at for at, _ in self._held.values()), default=monotonic() + _IDLE)
                is_told = self._changed.wait(max(0.0, soonest - monotonic()))
                if not (is_told or self._held or self._jobs):
                    self._thread = None
                    return None
            jobs, self._jobs, self._is_busy = self._jobs, [], True
            claims = self._due()
            for claim in claims:  # whether it works or not: a store that fails is not asked again at once
                self._held[claim.token] = monotonic() + self._period, claim
            return jobs, claims

    def _due(self) -> list[C]:
        now = monotonic()
        return [claim for at, claim in self._held.values() if at <= now]

    def _renewed(self, claim: C) -> None:
        if not self._renew(claim) and claim.token in self._held:
            self.drop(claim)
            _log.warning("%s, but its claim was taken over by somebody else", claim.work)

    def _attempt(self, job: Job) -> None:
        try:
            job()
        except StoreClosed as error:
            _log.debug("%s was not written: %s", self._what, error)  # as the program wanted it
        except Exception as error:
            # The lease will run out, and the outcome of a call be unknown: safe, and for others to see.
            _log.warning("%s could not be written: %s", self._what, error)
