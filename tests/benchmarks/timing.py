"""Clocks: seconds of a call, and medians of calls taken in turn, so that a busy machine is busy for all."""

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Clocked = Callable[[], float]
"""Does something and returns the seconds that the part of interest took."""


def timed(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[float, R]:
    start = perf_counter()
    result = function(*args, **kwargs)
    return perf_counter() - start, result


def interleaved(rounds: int, subjects: Mapping[str, Clocked]) -> dict[str, float]:
    """Each subject once a round, after one round of warming up; each one's median in milliseconds.

    Every round begins with another subject: whoever follows a heavy one finds cold caches and a busy disk.
    """
    order = deque(subjects.items())
    taken = []
    for _ in range(rounds + 1):
        taken.append({name: run() for name, run in order})
        order.rotate()
    return {name: 1000 * median(row[name] for row in taken[1:]) for name in subjects}


def bytes_written() -> int | None:
    """What this process's write calls have been given so far (`wchar`); None where there is no /proc."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))
