"""Measure 5, `fork`: `update_state` on a checkpoint in the middle of a long thread: its bytes, and a turn after it.

The thread gains a message a step. Files grow by whole pages, so ten checkpoints in its middle are forked. The growth,
with the saver closed before and after, is divided by ten. Then each turn uses a new fork: both savers decode many
messages that are not in their caches, and the 99th percentile shows the cost of garbage collection.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig

from .backend import Backend
from .graphs import chat_graph, message
from .plan import Plan
from .report import TAIL, Row
from .steps import Sequence
from .timing import interleaved, timed

FORKS = 10


def long_thread(backend: Backend, directory: Path, count: int) -> list[RunnableConfig]:
    """Store a thread of `count` steps; return the configs of its middle checkpoints."""
    configs = []
    with backend.open(directory) as saver:
        sequence = Sequence(saver, "long")
        for index in range(count):
            sequence.put({"messages": [*sequence.values.get("messages", ()), message(index)]})
            configs.append(sequence.config)
    middle = (count - FORKS) // 2
    return configs[middle : middle + FORKS]


def fork(backend: Backend, directory: Path, middle: list[RunnableConfig]) -> None:
    with backend.open(directory) as saver:
        graph = chat_graph(saver)
        for number, config in enumerate(middle):
            _fork(graph, config, number)


def _fork(graph: Any, config: RunnableConfig, number: int) -> Any:
    return graph.update_state(config, {"messages": [message(100_000 + number)]}, as_node="reply")


def added(plan: Plan, backend: Backend, directory: Path, middle: list[RunnableConfig]) -> float:
    before = backend.stored(directory)
    fork(backend, directory, middle)
    return (backend.stored(directory) - before) / FORKS


def _take_turn(graph: Any, middle: list[RunnableConfig], numbers: Iterator[int]) -> float:
    number = next(numbers)
    forked = _fork(graph, middle[number % FORKS], number)
    return timed(graph.invoke, {"messages": [message(200_000 + number)]}, forked)[0]


def measure(plan: Plan) -> list[Row]:
    places = {side: plan.directory(f"fork-{backend.name}") for side, backend in plan.sides.items()}
    steps = plan.count(1000)
    middle = {side: long_thread(backend, places[side], steps) for side, backend in plan.sides.items()}
    grown = {side: added(plan, backend, places[side], middle[side]) for side, backend in plan.sides.items()}
    label = f"a fork in the middle of {steps} steps: stored"
    return [
        Row("fork", label, grown.get("theirs"), grown["ours"], "B", plan.target("fork")),
        *_turns(plan, places, middle),
    ]


def _turns(plan: Plan, places: Mapping[str, Path], middle: Mapping[str, list[RunnableConfig]]) -> list[Row]:
    with ExitStack() as stack:
        graphs = {side: chat_graph(stack.enter_context(each.open(places[side]))) for side, each in plan.sides.items()}
        took = interleaved(
            plan.rounds(200),
            {side: partial(_take_turn, graph, middle[side], count()) for side, graph in graphs.items()},
        )
    label = "a turn after a fork"
    return [
        Row("fork", label, took.get("theirs"), took["ours"], "ms", None, took.spread()),
        Row("fork", f"{label}, {TAIL}", took.tail("theirs"), took.tail("ours"), "ms"),
    ]
