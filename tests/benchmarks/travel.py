"""Measure 18, `travel`: forks and rewinds of a thread of 10,000 steps, compared with a thread of 100 steps.

The threads gain a message a step. A fork copies the rows of the history up to its moment, so its time at the end of a
thread grows with the thread. A fork at step 50 of a long thread should take no longer than at step 50 of a short one. A
rewind writes one checkpoint, and reads the headers of the thread.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

from langchain_core.runnables import RunnableConfig

from .graphs import message
from .plan import Plan
from .report import Row
from .steps import Sequence
from .timing import interleaved, timed

SHORT, EARLY = 100, 50
Moments = dict[str, RunnableConfig]


def moments(saver: Any, name: str, steps: int) -> Moments:
    """Store a thread of `steps` steps; return its early moment and its last."""
    sequence = Sequence(saver, name)
    found: Moments = {}
    for number in range(1, steps + 1):
        sequence.put({"messages": [*sequence.values.get("messages", ()), message(number)]})
        found["early" if number == EARLY else "last"] = sequence.config
    return found


def forks(saver: Any, at: RunnableConfig) -> Callable[[], float]:
    names = count()
    return lambda: timed(saver.fork, at, f"fork {id(at)} {next(names)}")[0]


def measure(plan: Plan) -> list[Row]:
    steps = plan.count(10_000)
    with plan.pair.ours.open(plan.directory("travel")) as opened:
        saver: Any = opened
        long, short = moments(saver, "long", steps), moments(saver, "short", SHORT)
        took = interleaved(
            plan.rounds(7),
            {
                "short, last": forks(saver, short["last"]),
                "short, early": forks(saver, short["early"]),
                "long, last": forks(saver, long["last"]),
                "long, early": forks(saver, long["early"]),
                "short, rewound": lambda: timed(saver.rewind, short["early"])[0],
                "long, rewound": lambda: timed(saver.rewind, long["early"])[0],
            },
        )
    beside = f"compared with a thread of {SHORT}"
    return [
        Row("travel", f"fork at the end of {steps} steps; {beside}", took["short, last"], took["long, last"], "ms"),
        Row("travel", f"fork at step {EARLY} of {steps}; {beside}", took["short, early"], took["long, early"], "ms"),
        Row("travel", f"rewind of {steps} steps; {beside}", took["short, rewound"], took["long, rewound"], "ms"),
    ]
