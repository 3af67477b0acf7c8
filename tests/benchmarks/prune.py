"""Measure 9, `prune`: `prune([thread])`, which keeps the latest checkpoint, of a chat of 1000 steps.

A turn of the chat is three steps. Every round prunes another thread, all equally long and said before any is pruned.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from .backend import Backend, Saver
from .graphs import chat_graph, take_turn
from .plan import Plan
from .report import Row
from .timing import interleaved, timed

STEPS_A_TURN = 3


def _said(saver: Saver, turns: int, rounds: int) -> Iterator[str]:
    """Threads that many turns long, one for each round and one to warm up."""
    graph = chat_graph(saver)
    names = [f"prune-{number}" for number in range(rounds + 1)]
    for name in names:
        for turn in range(turns):
            take_turn(graph, name, 2 * turn)
    return iter(names)


def _once(saver: Saver, names: Iterator[str]) -> float:
    return timed(saver.prune, [next(names)])[0]


def measure(plan: Plan) -> list[Row]:
    steps, rounds = plan.count(1000), plan.rounds(5)

    def opened(stack: ExitStack, backend: Backend) -> partial[float]:
        saver = stack.enter_context(backend.open(plan.directory(f"prune-{backend.name}")))
        return partial(_once, saver, _said(saver, -(-steps // STEPS_A_TURN), rounds))

    with ExitStack() as stack:
        took = interleaved(rounds, {side: opened(stack, backend) for side, backend in plan.sides.items()})
    label = f"prune of a chat of {steps} steps"
    return [Row("prune", label, took.get("theirs"), took["ours"], "ms", plan.target("prune"))]
