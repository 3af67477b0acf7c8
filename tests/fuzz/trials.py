"""The loop of a fuzzer: trials with their own seeds and limits of time and memory."""

from __future__ import annotations

import faulthandler
import logging
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from time import monotonic
from typing import TypeAlias

from langgraph_keel import KeelError

MOST_SECONDS = 5
"""Maximum processor time of a trial, in seconds: other work on the machine does not count."""
MOST_WAITING = 60
"""Maximum duration of a trial, in seconds, including a server's time."""
MOST_BYTES = 3 << 30
"""Maximum address space, in bytes, that a worker may use in addition to that at its start."""
FOUND = 3
"""Exit status of a worker whose trials have failed."""
_BETWEEN = 10
"""Seconds between two lines of progress."""

Trial: TypeAlias = Callable[[Random], object]


class WrongValue(AssertionError):
    """A read returned neither the stored value nor a named error."""


def opening(kind: str) -> AbstractContextManager[Trial]:
    """Return the context manager that opens a fuzzer of a kind."""
    from fuzz import moved, serde, stored  # they import this module

    if kind in moved.KINDS:
        return moved.opened(kind)
    return serde.opened() if kind == "serde" else stored.opened(kind)


def work(kind: str, seed: int, numbers: range, seconds: float, progress: Path) -> int:
    """Run trials of these numbers, at least one, until the time has passed.

    Returns `FOUND` if one of them has failed. The number of each trial is written to `progress` before it starts.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with opening(kind) as trial, progress.open("r+") as file:
        bound_memory()
        failures: dict[str, int] = {}
        since = said = monotonic()
        for number in numbers:
            file.seek(0)
            file.write(str(number))
            file.flush()
            bound_time(MOST_SECONDS)
            try:
                trial(Random(f"{kind} {seed} {number}"))
            except KeelError:
                pass
            except Exception as error:
                note_failure(failures, error, f"python -m tests.fuzz {kind} --seed {seed} --trial {number}")
            bound_time(0)
            now = monotonic()
            if now - said > _BETWEEN:
                said = now
                size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
                print(f"{kind}: trial {number}, {now - since:.0f} s, {size} MB, {failures or 'all right'}", flush=True)
            if now - since > seconds:
                break
    return FOUND if failures else 0


def note_failure(failures: dict[str, int], error: Exception, how: str) -> None:
    """Print the first failure of each kind: its type and the place that raised it."""
    *_, last = traceback.extract_tb(error.__traceback__)
    kind = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
    if kind not in failures:
        print(f"{how}\n{''.join(traceback.format_exception(error))[-4000:]}", flush=True)
    failures[kind] = failures.get(kind, 0) + 1


def bound_memory() -> None:
    """Limit this process to `MOST_BYTES` more memory from now on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def bound_time(seconds: int) -> None:
    """End this process with a traceback after a time limit; 0 lifts the limit."""
    if seconds:
        faulthandler.register(signal.SIGPROF, file=sys.stderr, chain=True)  # also while C code runs
        faulthandler.dump_traceback_later(MOST_WAITING, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_PROF, seconds)
