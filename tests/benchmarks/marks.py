"""Measure 17, `marks`: the time that `recoverable=True`, or spans and metrics, add to a `put`.

Each run has twenty steps with `durability="sync"`, on a new thread; only its `put` calls are timed. Savers with and
without the option alternate in one process. The heartbeat is stored in the warm-up round, and renewed in the
background. Spans are exported in batches, to memory.
"""

import operator
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from itertools import count
from time import process_time
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from .graphs import thread
from .plan import Plan
from .report import Row
from .sqlite import url_of
from .timing import Times, interleaved, timed

STEPS = 20


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Runs:
    """Runs of a graph, whose `put` calls are timed."""

    def __init__(self, saver: Any) -> None:
        steps = [(f"step {number}", lambda state: {"log": ["a step was taken"]}) for number in range(STEPS)]
        builder = StateGraph(State).add_sequence(steps).add_edge(START, "step 0")
        self._graph = builder.compile(checkpointer=saver)
        self._numbers = count()
        self._put = self._graph.checkpointer.put  # type: ignore[union-attr]
        self._graph.checkpointer.put = self._timed  # type: ignore[union-attr, method-assign]
        self._wall: list[float] = []
        self.processor: list[float] = []  # milliseconds of a put, by round

    def _timed(self, *args: Any) -> Any:
        took, result = timed(partial(self._put, *args))
        self._wall.append(took)
        return result

    def run(self) -> float:
        """Run the graph; return the average seconds of a `put`."""
        self._wall.clear()
        before = process_time()
        self._graph.invoke({"log": []}, thread(f"t{next(self._numbers)}"), durability="sync")
        self.processor.append(1000 * (process_time() - before) / len(self._wall))
        return sum(self._wall) / len(self._wall)


def _tracing() -> Any:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    metrics = MeterProvider([InMemoryMetricReader()])
    return import_module("langgraph_keel.tracing").Tracing(provider, metrics)


def measure(plan: Plan) -> list[Row]:
    sides: dict[str, dict[str, Any]] = {
        "plain": {},
        "marks": {"recoverable": True},
        "traces": {"extra_hooks": [_tracing()]},
    }
    with ExitStack() as stack:
        runs = {}
        for name, options in sides.items():
            url = url_of(plan.directory(f"marks-{name}"))
            runs[name] = Runs(stack.enter_context(import_module("langgraph_keel").open_saver(url, **options)))
        took = interleaved(plan.rounds(301), {name: each.run for name, each in runs.items()})
        processor = Times({name: each.processor[1:] for name, each in runs.items()})
    rows = []
    for name, said in (("marks", "recoverable=True"), ("traces", "OpenTelemetry")):
        for label, times in ((f"put with {said}", took), (f"a step's run with {said}, processor time", processor)):
            target, spread = plan.target(name), times.spread(name, "plain")
            rows.append(Row(name, f"{label}; compared with plain", times["plain"], times[name], "ms", target, spread))
    return rows
