"""Measure 23, `tenants`: the time of "not found" for another tenant's thread, and for a thread that does not exist.

The first column is a thread that does not exist, the second another tenant's thread. With a ratio of 1, the time does
not reveal which of them it is. In one process, the calls alternate over many ids. Wall time includes the server;
processor time is that of this process. Figures are minima of the samples, which other work on the machine affects
least, with the quartiles of the ratio. The in-memory saver is measured with every backend.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from time import process_time
from typing import Any

from .graphs import message, thread
from .plan import Plan
from .report import Row
from .savers import KEEL_MEMORY
from .steps import Calls, Sequence
from .timing import Clocked, interleaved, timed

IDS, CALLS, ROUNDS = 20, 20, 61
"""Threads of each kind, calls per sample, and samples."""
ASKED: Mapping[str, Callable[[Any, str], object]] = {
    "get_tuple": lambda saver, name: saver.get_tuple(thread(name)),
    "list": lambda saver, name: list(saver.list(thread(name))),
    "timeline": lambda saver, name: len(saver.timeline(name)),
    "where, as in keel show": lambda saver, name: saver.status(name),
    "delete_thread": lambda saver, name: saver.delete_thread(name),
}


def _clocked(clock: Callable[[Callable[[], None]], float], call: Callable[[str], object], kind: str) -> Clocked:
    names = cycle([f"{kind}-{number:03}" for number in range(IDS)])

    def run() -> None:
        for _ in range(CALLS):
            call(next(names))

    return partial(clock, run)


def _wall(run: Callable[[], None]) -> float:
    return timed(run)[0] / CALLS


def _processor(run: Callable[[], None]) -> float:
    start = process_time()
    run()
    return (process_time() - start) / CALLS


def _rows(plan: Plan, name: str, saver: Any) -> list[Row]:
    theirs, ours = saver.for_tenant("globex"), saver.for_tenant("acme")
    for number in range(IDS):
        sequence = Sequence(theirs, f"owned-{number:03}", Calls(theirs))
        for turn in range(3):
            sequence.put({"messages": [message(each) for each in range(turn + 1)]})
    rows = []
    for label, ask in ASKED.items():
        for clock, what in ((_wall, "wall"), (_processor, "processor")):
            sides = {"theirs": "taken", "ours": "owned"}  # names of equal length: no thread, and another tenant's
            calls = {side: _clocked(clock, partial(ask, ours), kind) for side, kind in sides.items()}
            took = interleaved(plan.rounds(ROUNDS), calls)
            title = f"{name}, not found by {label}: {what} time"
            nobody, another = (min(took.rounds[side]) for side in ("theirs", "ours"))
            rows.append(Row("tenants", title, nobody, another, "ms", None, took.spread()))
    return rows


def measure(plan: Plan) -> list[Row]:
    rows: list[Row] = []
    for backend in (plan.ours, KEEL_MEMORY):
        with backend.open(plan.directory("tenants")) as saver:
            rows += _rows(plan, backend.name, saver)
    return rows
