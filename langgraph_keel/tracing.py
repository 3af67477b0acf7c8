"""Traces and metrics with OpenTelemetry (extra `otel`): `extra_hooks=[Tracing()]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from opentelemetry import context, metrics, trace

from langgraph_keel.approvals.requests import OPEN
from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.events import Put, Reading, Writes
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.layers import Layer
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CheckpointConflict, StoreError
from langgraph_keel.tools.ledger import is_doubt

_NAME = "langgraph_keel"
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds of the histogram, in seconds; a write on SQLite takes about a millisecond."""
_RUNS = 1_000
"""Number of runs whose context is remembered."""
_FRESH = timedelta(seconds=1)
"""Maximum age of the data of a gauge, so that the gauges of one export share one read."""
_Event: TypeAlias = Put | Reading | Writes
_CALLS = {Put: "put", Reading: "get_tuple", Writes: "put_writes"}


class Tracing(Hook):
    """Creates a span for each `put`, `put_writes` and `get_tuple` of a run, and metrics.

    Spans are children of the current span. They have `keel.backend`, `keel.bytes` (bytes passed to or read from the
    store), `keel.conflict`, and `error.type` if the call failed. Spans and metrics contain no ids, names or contents of
    threads. The metrics are `keel.operation.duration` (a histogram in seconds, by `keel.operation` and `keel.backend`),
    `keel.conflicts` and `keel.store.errors`.

    Args:
        tracer_provider: The provider of spans; the global one by default.
        meter_provider: The provider of metrics; the global one by default.
        thread_ids: Whether spans contain the thread id, as `keel.thread_id`; not by default.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        thread_ids: bool = False,
    ) -> None:
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._seconds = meter.create_histogram(
            "keel.operation.duration", "s", "Time of a call", explicit_bucket_boundaries_advisory=_BUCKETS
        )
        self._conflicts = meter.create_counter("keel.conflicts", description="Puts refused, as another run was first")
        self._errors = meter.create_counter("keel.store.errors", description="Calls that failed at the store")
        self._thread_ids = thread_ids
        self._parents: dict[str, context.Context] = {}  # of the last runs, by thread

    def _begin(self, session: Session, event: _Event) -> None:
        parent, thread_id = context.get_current(), event.address.thread_id
        if not trace.get_current_span(parent).get_span_context().is_valid:
            # LangGraph stores the writes of parallel tasks from threads without a context.
            parent = self._parents.get(thread_id, parent)
        elif isinstance(event, Reading):
            self._parents[thread_id] = parent
            if len(self._parents) > _RUNS:
                self._parents.pop(next(iter(self._parents)), None)
        event.notes[self] = parent, session.clock()

    begin = draft_put = draft_writes = _begin  # type: ignore[assignment]

    def _end(self, session: Session, event: _Event, error: BaseException | None = None) -> None:
        if (begun := event.notes.pop(self, None)) is None:  # the call did not come from a run
            return
        name = _CALLS[type(event)]
        parent, start = begun
        end, about = session.clock(), {"keel.operation": name, "keel.backend": _backend_of(session)}
        self._seconds.record((end - start).total_seconds(), about, parent)
        failed = {} if error is None else {"error.type": type(error).__name__}
        is_conflict = isinstance(error, CheckpointConflict)
        if is_conflict:
            self._conflicts.add(1, about, parent)
        elif isinstance(error, StoreError):
            self._errors.add(1, about | failed, parent)
        kind = trace.SpanKind.CLIENT
        named = {"keel.thread_id": event.address.thread_id} if self._thread_ids else {}
        given: dict[str, Any] = {**about, **failed, **named, "keel.bytes": event.nbytes, "keel.conflict": is_conflict}
        span = self._tracer.start_span(f"keel.{name}", parent, kind, given, start_time=_nanoseconds(start))
        if error is not None:
            span.set_status(trace.StatusCode.ERROR)
        span.end(_nanoseconds(end))

    read = read_failed = after_put = put_failed = after_writes = writes_failed = _end  # type: ignore[assignment]


def observe(saver: EngineSaver, meter_provider: metrics.MeterProvider | None = None) -> None:
    """Export gauges of unfinished work.

    They are read with `saver.unfinished()` at each export, blocking. They are `keel.threads` by `keel.state` (of
    `saver.status`: `cut off`, `failed`, `waits` ...), `keel.requests.open`, and `keel.tools.doubts` (in those threads
    and in shared calls). One process of a deployment is enough.

    Args:
        saver: The saver, which must have the blocking face.
        meter_provider: The provider of metrics; the global one by default.
    """
    meter, seen = (
        metrics.get_meter(_NAME, meter_provider=meter_provider),
        list[tuple[datetime, Counter[str], int, int]](),
    )

    def look() -> tuple[datetime, Counter[str], int, int]:
        at = saver.engine.session.clock()
        if not seen or not timedelta(0) <= at - seen[0][0] < _FRESH:
            found: Sequence[Any] = [*saver.unfinished()]  # type: ignore[attr-defined]
            shared = sum(map(is_doubt, saver.tools.calls(None)))  # type: ignore[attr-defined]
            requests = sum(request.status in OPEN for each in found for request in each.requests)
            doubts = sum(len(each.doubts) for each in found)
            seen[:] = [(at, Counter(each.state for each in found), requests, doubts + shared)]
        return seen[0]

    def states(_: metrics.CallbackOptions) -> Sequence[metrics.Observation]:
        return [metrics.Observation(count, {"keel.state": state}) for state, count in look()[1].items()]

    def nth(place: Literal[2, 3]) -> Callable[[metrics.CallbackOptions], Sequence[metrics.Observation]]:
        return lambda _: [metrics.Observation(look()[place])]

    meter.create_observable_gauge("keel.threads", [states], description="Threads with something left to do")
    meter.create_observable_gauge("keel.requests.open", [nth(2)], description="Requests that wait for a person")
    meter.create_observable_gauge("keel.tools.doubts", [nth(3)], description="Calls of tools with an unknown outcome")


def _backend_of(session: Session) -> str:
    store = session.store
    while isinstance(store, Layer):
        store = store.inner
    return type(store).__module__.split(".")[-2]


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1e6) * 1000
