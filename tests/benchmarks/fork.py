"""Measure 5, `fork`: what `update_state` on a checkpoint in the middle of a long thread adds to the files.

The thread gains a message a step. Files grow by whole pages, so ten checkpoints in its middle are forked, and
the growth from one closing of the saver to the next is divided by ten.
"""

from pathlib import Path

from langchain_core.runnables import RunnableConfig

from .backend import Backend
from .graphs import chat_graph, message
from .plan import Plan
from .report import Row
from .steps import Sequence

FORKS = 10


def long_thread(backend: Backend, directory: Path, count: int) -> list[RunnableConfig]:
    """Put a thread of so many steps there; the addresses of its middle checkpoints."""
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
            graph.update_state(config, {"messages": [message(100_000 + number)]}, as_node="reply")


def added(plan: Plan, backend: Backend) -> float:
    directory = plan.directory(f"fork-{backend.name}")
    middle = long_thread(backend, directory, plan.count(1000))
    before = backend.stored(directory)
    fork(backend, directory, middle)
    return (backend.stored(directory) - before) / FORKS


def measure(plan: Plan) -> list[Row]:
    label = f"a fork in the middle of {plan.count(1000)} steps: stored"
    grown = {side: added(plan, backend) for side, backend in plan.sides.items()}
    return [Row("fork", label, grown.get("theirs"), grown["ours"], "B", plan.target("fork"))]
