"""Measure 6, `threads`: 64 concurrent conversations on one event loop, with a few turns and small states.

Figures are invocations per second, the median of rounds in which the savers alternate. Each round uses new threads.
InMemorySaver shows how much of the time the graph itself takes.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any

from .backend import Backend
from .graphs import chat_graph, message, thread
from .plan import Plan
from .report import Row
from .savers import LANGGRAPH_MEMORY
from .timing import Clocked, interleaved, timed

THREADS, TURNS = 64, 4
LABEL = f"{THREADS} threads at once, async: invocations"


async def _converse(graph: Any, thread_id: str) -> None:
    for turn in range(TURNS):
        await graph.ainvoke({"messages": [message(2 * turn)]}, thread(thread_id))


async def _serve(graph: Any, number: int) -> None:
    await asyncio.gather(*(_converse(graph, f"{number}-{index}") for index in range(THREADS)))


@contextmanager
def serving(plan: Plan, backends: dict[str, Backend]) -> Iterator[dict[str, Clocked]]:
    """Open the backends on one event loop; yield a function for each that serves the 64 threads once."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            opened = {name: runner.run(_open(stack, plan, backend)) for name, backend in backends.items()}
            yield {name: partial(_once, runner, graph, count()) for name, graph in opened.items()}
        finally:
            runner.run(stack.aclose())


async def _open(stack: AsyncExitStack, plan: Plan, backend: Backend) -> Any:
    assert backend.aopen, f"{backend.name} has no async interface"
    return chat_graph(await stack.enter_async_context(backend.aopen(plan.directory("threads"))))


def _once(runner: asyncio.Runner, graph: Any, numbers: Iterator[int]) -> float:
    return timed(runner.run, _serve(graph, next(numbers)))[0]


def measure(plan: Plan) -> list[Row]:
    pooled = {"theirs, pooled": plan.pair.pooled} if plan.pair.pooled else {}
    with serving(plan, {**plan.sides, **pooled, "memory": LANGGRAPH_MEMORY}) as serve:
        took = interleaved(plan.rounds(7), serve)
    rate = {name: THREADS * TURNS / (milliseconds / 1000) for name, milliseconds in took.items()}
    return [_beside(plan, rate), *_others(rate)]


def _beside(plan: Plan, rate: dict[str, float]) -> Row:
    """Return a row that compares Keel with the faster of LangGraph's savers."""
    fastest = max((name for name in rate if name.startswith("theirs")), key=lambda name: rate[name], default="")
    label = f"{LABEL}; {fastest}" if "theirs, pooled" in rate else LABEL
    return Row("threads", label, rate.get(fastest), rate["ours"], "/s", plan.target("threads"))


def _others(rate: dict[str, float]) -> list[Row]:
    both = {"theirs", "theirs, pooled"} & set(rate)
    slower = min(both, key=lambda name: rate[name]) if len(both) == 2 else None
    rows = [Row("threads", f"{LABEL}; {slower}", rate[slower], rate["ours"], "/s")] if slower else []
    return [*rows, Row("threads", f"{LABEL}; vs InMemorySaver", rate["memory"], rate["ours"], "/s")]
