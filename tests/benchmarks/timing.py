"""Clocks: seconds of a call, and medians of calls taken in turn, so that a busy machine is busy for all."""

from collections import deque
from collections.abc import Callable, ItemsView, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
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


@dataclass(frozen=True)
class Times:
    """What each subject took, in milliseconds: `times[name]` is the median of its rounds."""

    rounds: Mapping[str, Sequence[float]]

    def __getitem__(self, name: str) -> float:
        return median(self.rounds[name])

    def __contains__(self, name: str) -> bool:
        return name in self.rounds

    def get(self, name: str) -> float | None:
        return self[name] if name in self.rounds else None

    def items(self) -> ItemsView[str, float]:
        return {name: self[name] for name in self.rounds}.items()

    def spread(self, ours: str = "ours", theirs: str = "theirs") -> tuple[float, float] | None:
        """The quartiles of the ratio of two, round by round: half of the rounds are between them."""
        if theirs not in self.rounds or len(self.rounds[ours]) < 2:
            return None
        low, _, high = quantiles(
            [mine / other for mine, other in zip(self.rounds[ours], self.rounds[theirs], strict=True)]
        )
        return low, high


def interleaved(rounds: int, subjects: Mapping[str, Clocked]) -> Times:
    """Each subject once a round, after one round of warming up.

    Every round begins with another subject: whoever follows a heavy one finds cold caches and a busy disk.
    """
    order = deque(subjects.items())
    taken = []
    for _ in range(rounds + 1):
        taken.append({name: 1000 * run() for name, run in order})
        order.rotate()
    return Times({name: [row[name] for row in taken[1:]] for name in subjects})


def bytes_written() -> int | None:
    """What this process's write calls have been given so far (`wchar`); None where there is no /proc."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))
