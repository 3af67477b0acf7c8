"""Time calls; calls of all subjects alternate, so that other work on the machine affects all equally."""

import math
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Clocked = Callable[[], float]
"""Runs a call and returns the seconds of the part to measure."""


def timed(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[float, R]:
    start = perf_counter()
    result = function(*args, **kwargs)
    return perf_counter() - start, result


@dataclass(frozen=True)
class Cost:
    """Seconds of one call: wall time, and processor time of this process and of the server's processes."""

    wall: float
    client: float
    server: float


class Meter:
    """Calls functions like `timed`, and keeps the cost of each call.

    Work of a server's process after its reply is counted for the next call.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self.costs: list[Cost] = []
        self._pids = tuple(pids)
        self._server = processor_time(self._pids)

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[float, R]:
        client = process_time()
        wall, result = timed(function, *args, **kwargs)
        client, server = process_time() - client, processor_time(self._pids)
        self.costs.append(Cost(wall, client, server - self._server))
        self._server = server
        return wall, result


def processor_time(pids: Iterable[int]) -> float:
    """Return the processor time of other processes, in seconds (/proc/PID/stat has steps of 0.01)."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[0]) for pid in pids) / 1e9


@dataclass(frozen=True)
class Times:
    """Milliseconds of each subject's rounds; `times[name]` is their median."""

    rounds: Mapping[str, Sequence[float]]

    def __getitem__(self, name: str) -> float:
        return median(self.rounds[name])

    def __contains__(self, name: str) -> bool:
        return name in self.rounds

    def get(self, name: str) -> float | None:
        return self[name] if name in self.rounds else None

    def items(self) -> ItemsView[str, float]:
        return {name: self[name] for name in self.rounds}.items()

    def tail(self, name: str) -> float | None:
        """Return the 99th percentile of the rounds."""
        taken = sorted(self.rounds.get(name, ()))
        return taken[math.ceil(0.99 * len(taken)) - 1] if taken else None

    def spread(self, ours: str = "ours", theirs: str = "theirs") -> tuple[float, float] | None:
        """Return the quartiles of the ratio of two subjects over the rounds."""
        if not {ours, theirs} <= self.rounds.keys() or len(self.rounds[ours]) < 2:
            return None
        low, _, high = quantiles(
            [mine / other for mine, other in zip(self.rounds[ours], self.rounds[theirs], strict=True)]
        )
        return low, high


def interleaved(rounds: int, subjects: Mapping[str, Clocked]) -> Times:
    """Time each subject once per round, after one warm-up round.

    Each round starts with another subject, because a subject after a heavy one finds cold caches and a busy disk.
    """
    order = deque(subjects.items())
    taken = []
    for _ in range(rounds + 1):
        taken.append({name: 1000 * run() for name, run in order})
        order.rotate()
    return Times({name: [row[name] for row in taken[1:]] for name in subjects})


def bytes_written() -> int | None:
    """Return the bytes passed to this process's write calls so far (`wchar`), or None without /proc."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))
