"""Leases: renewal and expiry of claims, names of processes, waiting.

A claim has expired if a watcher has seen no renewal for a whole lease, by its own clock. Stored times do not count:
with the clock of one host 40 seconds ahead, the node of a live run ran twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Condition, Thread
from time import monotonic, sleep
from typing import Generic, Protocol, TypeVar

from langgraph_keel.engine.plan import Errand
from langgraph_keel.errors import StoreClosed

_log = logging.getLogger(__name__)
Job = Callable[[], object]
_IDLE = 10.0
"""Idle seconds after which a keeper's thread ends."""

MOST_SEEN = 10_000
"""Maximum number of watched claims. A forgotten claim only takes longer to expire."""

_UNKNOWN = "-"


class _Claim(Protocol):
    @property
    def token(self) -> str: ...

    @property
    def work(self) -> str: ...  # the work under the claim, for the log


C = TypeVar("C", bound=_Claim)


class Keeper(Generic[C]):
    """Renews claims and runs jobs, in a thread that exists while it is needed.

    Args:
        period: Seconds between two renewals of a claim.
        renew: Renews a claim; returns `False` if another process has taken it over.
        what: The data that claims and jobs write, such as "the ledger of tool calls". Log messages start with it.
    """

    def __init__(self, period: float, renew: Callable[[C], bool], what: str = "the ledger of tool calls") -> None:
        self._period = period
        self._renew = renew
        self._what = what
        self.forget()

    def forget(self) -> None:
        """Reset the keeper in a forked process: thread and claims belong to the parent."""
        self._changed = Condition()
        self._held: dict[str, tuple[float, C]] = {}
        self._jobs: list[Job] = []
        self._is_busy = False
        self._thread: Thread | None = None

    def hold(self, claim: C) -> None:
        """Renew a claim from now on."""
        if sys.is_finalizing():  # threads have stopped, and the keeper's may hold the lock
            return
        with self._changed:
            self._start()
            self._held[claim.token] = monotonic() + self._period, claim
            self._changed.notify_all()

    def drop(self, claim: C) -> None:
        """Stop renewing a claim."""
        if sys.is_finalizing():  # as in `hold`
            return
        with self._changed:
            self._held.pop(claim.token, None)

    def defer(self, job: Job) -> None:
        """Run a job soon, in the keeper's thread. Its errors are logged."""
        if sys.is_finalizing():  # as in `hold`
            return
        with self._changed:
            self._start()
            self._jobs.append(job)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for all jobs; return whether they are done."""
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
                self._attempt(partial(self._renew_or_drop, claim))

    def _next(self) -> tuple[list[Job], list[C]] | None:
        """Wait for jobs and for claims that are due; return `None` if the keeper is idle."""
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
            for claim in claims:  # even if the renewal fails, so that a failing store is not called again immediately
                self._held[claim.token] = monotonic() + self._period, claim
            return jobs, claims

    def _due(self) -> list[C]:
        now = monotonic()
        return [claim for at, claim in self._held.values() if at <= now]

    def _renew_or_drop(self, claim: C) -> None:
        if not self._renew(claim) and claim.token in self._held:
            self.drop(claim)
            _log.warning("%s, but its claim was taken over by another process", claim.work)

    def _attempt(self, job: Job) -> None:
        try:
            job()
        except StoreClosed as error:
            _log.debug("%s was not written: %s", self._what, error)  # the program closed the store
        except Exception as error:
            # The lease will expire, and other processes will see the outcome of a call as unknown, which is safe.
            _log.warning("%s could not be written: %s", self._what, error)


# -- expired claims --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sighting:
    mark: int  # of the last renewal
    since: float  # when this mark was first seen
    asked: float  # when the last read of the claim began, or earlier
    renewed: float | None = None  # the last renewal that was seen is later than this


class Watch:
    """Other processes' claims as seen by this process's clock; `lease` is in seconds."""

    def __init__(self, lease: float, timer: Callable[[], float] = monotonic) -> None:
        self.lease = lease
        self.timer = timer
        self._seen: OrderedDict[str, _Sighting] = OrderedDict()

    def is_over(self, token: str, mark: int, asked: float, lease: float | None = None) -> bool | None:
        """Return whether a claim was not renewed for a lease; `None` if unknown so far."""
        lease = lease or self.lease
        last = self._seen.get(token)
        if last is not None and last.mark == mark:
            now = replace(last, asked=asked)
        else:
            now = _Sighting(mark, self.timer(), asked, last.asked if last else None)
        self._seen[token] = now
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        if asked - now.since >= lease:
            return True
        return False if now.renewed is not None and asked - now.renewed < lease else None


def looks_alive(until: int, lease: int, now: int) -> bool:
    """Guess from the clock (in ms) whether a claim is valid, for display or refusal."""
    return now < until <= now + lease


# -- waiting ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pause(Errand):
    """A request to wait."""

    seconds: float

    def do(self) -> None:
        """Block the calling thread."""
        sleep(self.seconds)

    async def ado(self) -> None:
        """As `do`, without blocking the running loop."""
        await asyncio.sleep(self.seconds)


# -- names of processes ----------------------------------------------------------------------------------------


def this_holder() -> str:
    """Return this process's name: host, machine, process id and start time.

    The machine is the boot id (which containers share) and the process id namespace, both from Linux's `/proc`. Without
    `/proc` these parts are `-`, and only the lease shows whether a holder is alive.
    """
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    return "/".join((socket.gethostname().replace("/", "_"), _machine(), str(pid), _began(pid)))


def is_alive(holder: str) -> bool:
    """Return whether a holder is a live process of this machine; `False` if unknown."""
    parts = holder.rsplit("/", 3)
    is_here = len(parts) == 4 and _UNKNOWN not in parts[1:] and parts[1] == _machine()
    return is_here and _began(int(parts[2])) == parts[3]


def is_dead(holder: str) -> bool:
    """Return whether a holder is a dead process of this machine; `False` if unknown."""
    parts = holder.rsplit("/", 3)
    if len(parts) != 4 or _UNKNOWN in parts[1:] or parts[1] != _machine():
        return False
    began = _began(int(parts[2]))
    if began != _UNKNOWN:
        return began != parts[3]
    try:  # /proc may hide processes of other users (hidepid, ProtectProc), which must not count as dead
        os.kill(int(parts[2]), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _machine() -> str:
    try:
        with _open_proc("self/ns/pid") as namespace:
            return f"{_read_proc('sys/kernel/random/boot_id').strip()}.{os.fstat(namespace).st_ino}"
    except OSError:
        return _UNKNOWN


def _read_proc(name: str) -> str:
    with _open_proc(name) as file:
        return os.read(file, 4096).decode("utf-8", errors="replace")


@contextmanager
def _open_proc(name: str) -> Iterator[int]:
    """Open a file of `/proc`, in kernel memory, without blocking a running loop."""
    file = os.open(f"/proc/{name}", os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        yield file
    finally:
        os.close(file)


def _began(pid: int) -> str:
    """Return the start time of a process, in ticks since boot; `-` if there is none."""
    try:
        stat = _read_proc(f"{pid}/stat")
    except OSError:
        return _UNKNOWN
    # The second field, the program name in parentheses, may contain anything; see proc(5). The state is next.
    state, *fields = stat.rpartition(")")[2].split()
    return "over" if state in ("Z", "X") else fields[18]
