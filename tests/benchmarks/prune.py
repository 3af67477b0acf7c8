"""Measure 9, `prune`: `prune([thread])` of a chat of 1000 steps, which keeps the latest checkpoint.

A turn of the chat has three steps. Each round prunes another thread of the same length; all threads are stored before.
The second row prunes while another process takes turns on the same thread, through a saver of the same kind. If a turn
fails, the row shows the error.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .backend import Backend, Saver
from .child import PROCESSES
from .graphs import chat_graph, take_turn
from .plan import Plan
from .report import Row
from .timing import Clocked, Times, interleaved, timed

STEPS_A_TURN = 3


def _said(saver: Saver, turns: int, rounds: int) -> Iterator[str]:
    """Store threads with `turns` turns, one for each round and one for warm-up; return their names."""
    graph = chat_graph(saver)
    names = [f"prune-{number}" for number in range(rounds + 1)]
    for name in names:
        for turn in range(turns):
            take_turn(graph, name, 2 * turn)
    return iter(names)


def _once(saver: Saver, names: Iterator[str]) -> float:
    return timed(saver.prune, [next(names)])[0]


def append(backend: Backend, directory: Path, name: str, began: Any, stop: Any, failed: Any) -> None:
    """Take turns on a thread until `stop` is set; called in its own process."""
    with backend.open(directory) as saver:
        graph, turn = chat_graph(saver), 0
        while not stop.is_set():
            try:
                take_turn(graph, name, turn := turn + 2)
            except Exception as error:
                failed.put(f"{type(error).__name__}: {error}"[:200])
            began.set()


@contextmanager
def appending(backend: Backend, directory: Path, name: str, failed: Any) -> Iterator[None]:
    """Let another process append to a thread while the block runs."""
    began, stop = PROCESSES.Event(), PROCESSES.Event()
    child = PROCESSES.Process(target=append, args=(backend, directory, name, began, stop, failed))
    child.start()
    try:
        assert began.wait(120), "the appending process did not start"
        yield
    finally:
        stop.set()
        child.join(120)


def _once_beside(backend: Backend, directory: Path, failed: Any, saver: Saver, names: Iterator[str]) -> float:
    name = next(names)
    with appending(backend, directory, name, failed):
        return _once(saver, iter([name]))


def measure(plan: Plan) -> list[Row]:
    steps = plan.count(1000)
    alone, _ = _taken(plan, steps, 5, beside=False)
    beside, failures = _taken(plan, steps, 5, beside=True)
    label = f"prune of a chat of {steps} steps"
    told = "; ".join(f"{side} failed: {error}" for side, error in failures.items())
    also = f"{label}, while another process appends to it{told and f' ({told})'}"
    return [
        Row("prune", label, alone.get("theirs"), alone["ours"], "ms", plan.target("prune")),
        Row("prune", also, beside.get("theirs"), beside["ours"], "ms", plan.target("prune")),
    ]


def _taken(plan: Plan, steps: int, usual: int, *, beside: bool) -> tuple[Times, dict[str, str]]:
    """Return the milliseconds of each side, and the first failure of each side's appending process."""
    rounds = plan.rounds(usual)
    failed = {side: PROCESSES.Queue() for side in plan.sides}

    def opened(stack: ExitStack, side: str, backend: Backend) -> Clocked:
        directory = plan.directory(f"prune-{backend.name}")
        saver = stack.enter_context(backend.open(directory))
        act = partial(_once_beside, backend, directory, failed[side]) if beside else _once
        return partial(act, saver, _said(saver, -(-steps // STEPS_A_TURN), rounds))

    with ExitStack() as stack:
        took = interleaved(rounds, {side: opened(stack, side, backend) for side, backend in plan.sides.items()})
    return took, {side: queue.get() for side, queue in failed.items() if not queue.empty()}
