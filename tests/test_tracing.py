"""Spans and metrics of a saver's operations, collected with OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.checkpoints import config_for, put
from support.places import Place

from langgraph_keel import CheckpointConflict, KeelSaver, MemorySaver, StoreUnavailable
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.tracing import Tracing, observe

FACES = pytest.mark.parametrize("face", ["sync", "async"])


class Telemetry:
    """Spans and metrics in memory."""

    def __init__(self) -> None:
        self.spans, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.traces, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.traces.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = self.traces.get_tracer("application")

    def hook(self, **options: Any) -> Tracing:
        return Tracing(self.traces, self.meters, **options)

    def ours(self) -> list[Any]:
        return [span for span in self.spans.get_finished_spans() if span.name.startswith("keel.")]

    def metrics(self) -> dict[str, dict[tuple[Any, ...], Any]]:
        """Return the points of each metric: sorted attribute values, and value or count."""
        data: Any = self.reader.get_metrics_data()
        found = [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
        return {
            metric.name: {
                tuple(sorted(point.attributes.values())): getattr(point, "value", getattr(point, "count", None))
                for point in metric.data.data_points
            }
            for metric in found
        }


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.traces.shutdown()
    made.meters.shutdown()


class Model(GenericFakeChatModel):
    def bind_tools(self, *args: Any, **more: Any) -> Any:
        return self


def agent(telemetry: Telemetry, saver: KeelSaver) -> Any:
    @tool
    def look(place: str) -> str:
        """Look at a place."""
        given: Any = {"messages": [("user", place)]}
        with telemetry.tracer.start_as_current_span("inner"):
            inner = StateGraph(MessagesState).add_node("n", lambda state: {"messages": ["x"]}).add_edge(START, "n")
            inner.compile().invoke(given)
        return "secret answer"

    calls: Any = [{"name": "look", "args": {"place": f"secret {name}"}, "id": name} for name in "ab"]
    return create_agent(
        Model(messages=iter([AIMessage("", tool_calls=calls), AIMessage("done")])), [look], checkpointer=saver
    )


@FACES
async def test_spans_of_an_agent_are_nested(place: Place, telemetry: Telemetry, face: str) -> None:
    """Spans are nested in the run's, also those of parallel tools and subgraphs."""
    with place.open(extra_hooks=[telemetry.hook()]) as saver:
        config: RunnableConfig = {"configurable": {"thread_id": "secret thread"}}
        graph = agent(telemetry, saver)
        with telemetry.tracer.start_as_current_span("run"):
            if face == "sync":
                graph.invoke({"messages": [("user", "secret")]}, config)
            else:
                await graph.ainvoke({"messages": [("user", "secret")]}, config)
            saver.get_tuple(config)
    every = {span.context.span_id: span.name for span in telemetry.spans.get_finished_spans()}
    parents = {(span.name, every.get(span.parent.span_id) if span.parent else None) for span in telemetry.ours()}
    assert {
        ("keel.put", "run"),
        ("keel.put_writes", "run"),
        ("keel.get_tuple", "run"),
        ("keel.put", "inner"),
    } <= parents
    assert {parent for _, parent in parents} == {"run", "inner"}
    for span in telemetry.ours():
        assert span.end_time >= span.start_time
        assert span.attributes["keel.backend"] == place.kind
        assert span.attributes["keel.bytes"] > 0 or span.name == "keel.get_tuple"  # known data is not read again
        assert span.attributes["keel.conflict"] is False
        assert "secret" not in span.to_json()
    puts = sum(span.name == "keel.put" for span in telemetry.ours())
    assert telemetry.metrics()["keel.operation.duration"][tuple(sorted((place.kind, "put")))] == puts


def test_conflicts_and_errors_are_counted(telemetry: Telemetry) -> None:
    with MemorySaver(extra_hooks=[telemetry.hook(thread_ids=True)]) as saver:
        first = put(saver, "t", checkpoint_id="1")
        saver.put(first, checkpoint("2"), {}, {})
        with pytest.raises(CheckpointConflict):
            saver.put(first, checkpoint("3"), {}, {})

        class Gone:
            def send(self, request: Any) -> Any:
                raise StoreUnavailable("gone")

        lost: Any = with_engine(saver, saver.engine.with_drivers(Gone()))
        with pytest.raises(StoreUnavailable):
            lost.get_tuple(config_for("t"))
        with pytest.raises(StoreUnavailable):
            lost.put_writes(
                {"configurable": {**config_for("t")["configurable"], "checkpoint_id": "2"}}, [("c", 1)], "task"
            )
    *_, conflict, read, writes = telemetry.ours()
    assert conflict.attributes["keel.conflict"]
    assert not conflict.status.is_ok
    assert conflict.attributes["error.type"] == "CheckpointConflict"
    assert conflict.attributes["keel.thread_id"] == "t"
    assert (read.name, read.attributes["error.type"]) == ("keel.get_tuple", "StoreUnavailable")
    assert (writes.name, writes.attributes["error.type"]) == ("keel.put_writes", "StoreUnavailable")
    found = telemetry.metrics()
    assert found["keel.conflicts"] == {("memory", "put"): 1}
    assert found["keel.store.errors"] == {
        ("StoreUnavailable", "get_tuple", "memory"): 1,
        ("StoreUnavailable", "memory", "put_writes"): 1,
    }


def checkpoint(name: str) -> Any:
    return {
        **{"v": 4, "id": name, "ts": "2026-01-01T00:00:00+00:00"},
        **{"channel_values": {}, "channel_versions": {}, "versions_seen": {}},
    }


def test_gauges_report_open_work(telemetry: Telemetry) -> None:
    def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage(interrupt("go on?"))]}

    def fail(state: MessagesState) -> Any:
        raise ValueError("no")

    with MemorySaver() as saver:
        observe(saver, telemetry.meters)
        for name, node in (("a", ask), ("b", ask), ("c", fail)):
            graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(checkpointer=saver)
            try:
                graph.invoke({"messages": []}, {"configurable": {"thread_id": name}})
            except ValueError:
                assert name == "c"
        found = telemetry.metrics()
    assert found["keel.threads"] == {("failed",): 1, ("waits",): 2}
    assert found["keel.requests.open"] == {(): 2}
    assert found["keel.tools.doubts"] == {(): 0}


def test_opentelemetry_is_not_imported_without_tracing() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from langgraph_keel import MemorySaver; MemorySaver().close()\n"
        "assert 'langgraph_keel.tracing' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
