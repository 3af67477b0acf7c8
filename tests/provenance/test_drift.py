"""A thread is continued with a different model, tool or version.

The drift is noticed, logged, marked or refused.
"""

from __future__ import annotations

import asyncio
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.places import Place
from support.provenance.runs import recorder_of

from langgraph_keel import Change, DriftDetected, DriftReport, DriftWarning, InvalidInput, KeelSaver, MemorySaver
from langgraph_keel.provenance.drift import NODES, SEEN, Fingerprint, update_fingerprint
from langgraph_keel.provenance.records import ModelCall, pack_call

CONFIG: Any = {"configurable": {"thread_id": "t"}}
HELLO: Any = {"messages": [("user", "hello")]}
faces = pytest.mark.parametrize("is_async", [False, True], ids=["sync-face", "async-face"])
durabilities = pytest.mark.parametrize("durability", ["sync", "async", "exit"])


class World:
    """The parts that may change between two runs: the model, a tool's description."""

    def __init__(self) -> None:
        self.served = "m-1"
        self.fingerprint = "fp-1"
        self.asked = "m"
        self.tool = {"name": "look_up", "description": "Looks it up."}
        self.calls = 0
        self.acted = 0

    def answer(self, state: MessagesState) -> dict[str, Any]:
        self.calls += 1
        about = {"model_name": self.served, "system_fingerprint": self.fingerprint}
        model = GenericFakeChatModel(messages=iter([AIMessage("hi", response_metadata=about)]))
        return {"messages": [model.bind(model=self.asked, tools=[self.tool]).invoke(state["messages"])]}

    def act(self, state: MessagesState) -> None:
        self.acted += 1

    def builder(self) -> StateGraph[MessagesState]:
        builder = StateGraph(MessagesState)
        for name, node in {"first": lambda state: None, "model": self.answer, "act": self.act}.items():
            builder.add_node(name, node)
        builder.add_edge(START, "first")
        builder.add_edge("first", "model")
        builder.add_edge("model", "act")
        return builder

    def graph(self, saver: KeelSaver) -> Any:
        return self.builder().compile(checkpointer=saver)

    def run(self, saver: KeelSaver, given: Any = HELLO, is_async: bool = False, **options: Any) -> Any:
        graph = self.graph(saver)
        if is_async:
            return asyncio.run(graph.ainvoke(given, CONFIG, **options))
        return graph.invoke(given, CONFIG, **options)


@pytest.fixture
def world() -> World:
    return World()


def marks(saver: KeelSaver) -> list[tuple[Any, Any]]:
    """The step and the mark of each checkpoint that has one, oldest first."""
    found = [dict(found.metadata) for found in saver.list(CONFIG)]
    return [(each["step"], each["keel_drift"]) for each in reversed(found) if "keel_drift" in each]


# -- the three ways --------------------------------------------------------------------------------------------


@faces
@durabilities
def test_drift_is_warned_of_once_and_marked(place: Place, world: World, durability: Any, is_async: bool) -> None:
    with place.open() as saver:
        world.run(saver, durability=durability)
    world.served = "m-2"
    with place.open() as saver:
        with pytest.warns(DriftWarning, match=r"node 'model': served_model was m-1 up to step 2, now m-2") as caught:
            world.run(saver, is_async=is_async, durability=durability)
        assert len(caught) == 1
        world.run(saver, is_async=is_async, durability=durability)
        step = 8 if durability == "exit" else 7  # "exit" stores only the run's last checkpoint
        assert marks(saver) == [(step, ["node 'model': served_model was m-1 up to step 2, now m-2"])]
    report = caught[0].message
    assert isinstance(report, DriftWarning)
    assert report.report == DriftReport("t", (Change("served_model", "m-1", "m-2", 2, "model"),))


@durabilities
def test_on_drift_ignore_marks_nothing(place: Place, world: World, durability: Any) -> None:
    with place.open(on_drift="ignore") as saver:
        world.run(saver, durability=durability)
        world.served = "m-2"
        world.run(saver, durability=durability)
        assert marks(saver) == []
        assert [call.served_model for call in saver.provenance.read(CONFIG)] == ["m-1", "m-2"]


@faces
@durabilities
def test_on_drift_raise_fails_the_calling_node_before_tools_act(
    place: Place, world: World, durability: Any, is_async: bool
) -> None:
    with place.open(on_drift="raise") as saver:
        world.run(saver, durability=durability)
        world.served = "m-2"
        for given in (HELLO, None):
            with pytest.raises(DriftDetected, match="served_model was m-1") as caught:
                world.run(saver, given, is_async, durability=durability)
            assert caught.value.report.changes == (Change("served_model", "m-1", "m-2", 2, "model"),)
        assert world.acted == 1
        assert [(call.served_model, call.error) for call in saver.provenance.read(CONFIG)] == [
            ("m-1", None),
            ("m-2", "DriftDetected"),
            ("m-2", "DriftDetected"),
        ]
    with place.open(on_drift="warn") as saver:
        with pytest.warns(DriftWarning, match="now m-2"):
            said = world.run(saver, None, is_async, durability=durability)
        assert len(said["messages"]) == 4
    assert world.acted == 2


@faces
@durabilities
def test_a_node_that_catches_drift_detected_is_not_stored(
    place: Place, world: World, durability: Any, is_async: bool
) -> None:
    """Middleware that retries or falls back would store the error as the answer."""
    answer = world.answer

    def swallowing(state: MessagesState) -> dict[str, Any]:
        try:
            return answer(state)
        except DriftDetected:
            return {"messages": [AIMessage("sorry")]}

    world.answer = swallowing  # type: ignore[method-assign]
    with place.open(on_drift="raise") as saver:
        world.run(saver, durability=durability)
        world.served = "m-2"
        with pytest.raises(DriftDetected, match="served_model was m-1"):
            world.run(saver, is_async=is_async, durability=durability)
        assert "sorry" not in str(world.graph(saver).get_state(CONFIG).values)
        world.served = "m-1"
        world.run(saver, is_async=is_async, durability=durability)
        assert [call.error for call in saver.provenance.read(CONFIG)] == [None, "DriftDetected", None]


@durabilities
def test_returning_to_the_old_model_is_always_possible(place: Place, world: World, durability: Any) -> None:
    """A refusal of one run does not affect the next ones."""
    with place.open(on_drift="raise") as saver:
        world.run(saver, durability=durability)
        world.served = "m-2"
        with pytest.raises(DriftDetected):
            world.run(saver, durability=durability)
        world.served = "m-1"
        world.run(saver, None, durability=durability)
        world.run(saver, durability=durability)
        assert marks(saver) == []


def test_drift_in_a_subgraph_is_detected(place: Place, world: World) -> None:
    with place.open(on_drift="raise") as saver:
        graph = StateGraph(MessagesState).add_node("sub", world.builder().compile()).add_edge(START, "sub")
        graph.compile(checkpointer=saver).invoke(HELLO, CONFIG)
        world.served = "m-2"
        with pytest.raises(DriftDetected, match=r"node 'sub\|model': served_model was m-1"):
            graph.compile(checkpointer=saver).invoke(HELLO, CONFIG)
    assert world.acted == 1


def test_an_update_by_a_person_is_not_refused(place: Place, world: World) -> None:
    with place.open(graph_version="1.0") as saver:
        world.run(saver)
    with place.open(graph_version="1.1", on_drift="raise") as saver:
        world.graph(saver).update_state(CONFIG, {"messages": [("user", "by hand")]})
        assert len(marks(saver)) == 1
        world.run(saver)


# -- what drifts -----------------------------------------------------------------------------------------------

DRIFTS: dict[str, tuple[dict[str, Any], str]] = {
    "fingerprint": ({"fingerprint": "fp-2"}, "system_fingerprint was fp-1 up to step 2, now fp-2"),
    "model asked for": ({"asked": "n", "served": "n-1"}, "model was m up to step 2, now n"),
    "schema of a tool": (
        {"tool": {"name": "look_up", "description": "Looks it up, twice."}},
        r"tool look_up was [0-9a-f]{12} up to step 2, now [0-9a-f]{12}",
    ),
}


@pytest.mark.parametrize("drift", DRIFTS.values(), ids=DRIFTS)
def test_each_kind_of_drift_is_detected(world: World, drift: tuple[dict[str, Any], str]) -> None:
    changed, words = drift
    with MemorySaver() as saver:
        world.run(saver)
        vars(world).update(changed)
        with pytest.warns(DriftWarning, match=f"node 'model': {words}$"):
            world.run(saver)


@faces
@durabilities
def test_a_new_graph_version_is_detected_before_anything_runs(
    place: Place, world: World, durability: Any, is_async: bool
) -> None:
    with place.open(graph_version="1.0") as saver:
        world.run(saver)
        assert {found.metadata["graph_version"] for found in saver.list(CONFIG)} == {"1.0"}  # type: ignore[typeddict-item]
        assert saver.provenance.read(CONFIG)[0].graph_version == "1.0"
        assert len(list(saver.list(CONFIG, filter={"graph_version": "1.0"}))) == 5
    with place.open(graph_version="1.1", on_drift="raise") as saver:
        with pytest.raises(DriftDetected, match=r"graph_version was 1\.0 up to step 2, now 1\.1"):
            world.run(saver, is_async=is_async, durability=durability)
        assert len(list(saver.list(CONFIG))) == 5
        assert world.graph(saver).get_state(CONFIG).next == ()  # reading is allowed
    assert (world.calls, world.acted) == (1, 1)
    with place.open(graph_version="1.1") as saver, pytest.warns(DriftWarning, match=r"now 1\.1"):
        world.run(saver, is_async=is_async, durability=durability)
    with place.open(graph_version="1.1", on_drift="raise") as saver:
        world.run(saver, is_async=is_async, durability=durability)


def test_a_new_package_version_is_detected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with MemorySaver() as saver:
        world.run(saver)
        monkeypatch.setitem(recorder_of(saver).versions, "langgraph", "99")
        with pytest.warns(DriftWarning, match=r"langgraph was .* up to step 2, now 99"):
            world.run(saver)


def test_a_run_from_an_old_checkpoint_is_compared_with_its_models(place: Place, world: World) -> None:
    """Only a fork from after the change has seen the new model."""
    with place.open(on_drift="raise") as saver:
        world.run(saver)
        old = next(iter(saver.list(CONFIG))).config
    world.served = "m-2"
    with place.open(on_drift="ignore") as saver:
        world.run(saver)
        new = next(iter(saver.list(CONFIG))).config
    with place.open(on_drift="raise") as saver:
        graph = world.graph(saver)
        with pytest.raises(DriftDetected):
            graph.invoke(HELLO, old)
        graph.invoke(HELLO, new)


def test_no_drift_is_detected_without_earlier_records(place: Place, world: World) -> None:
    with place.open(provenance=False) as saver:
        world.run(saver)
        assert saver.provenance.read(CONFIG) == []
    world.served = "m-2"
    with place.open(on_drift="raise") as saver:
        world.run(saver)
        assert [call.served_model for call in saver.provenance.read(CONFIG)] == ["m-2"]


# -- the comparison itself -------------------------------------------------------------------------------------

CALL = ModelCall(id="1", path="model", step=3, model="m", served_model="m-1", system_fingerprint="a", tools={"t": "x"})


def after(*calls: ModelCall) -> Fingerprint:
    return update_fingerprint(Fingerprint(), map(pack_call, calls), {})[0]


def told(known: Fingerprint, *calls: ModelCall) -> Sequence[str]:
    return [str(change) for change in update_fingerprint(known, map(pack_call, calls), {})[1]]


def test_a_system_fingerprint_that_alternates_is_reported_once() -> None:
    other = replace(CALL, system_fingerprint="b", step=4)
    assert told(after(CALL), other, CALL, other) == ["node 'model': system_fingerprint was a up to step 3, now b"]
    assert told(after(CALL, other), CALL, other) == []


def test_missing_facts_are_not_drift() -> None:
    silent = replace(CALL, served_model=None, system_fingerprint=None, tools={})
    assert told(after(CALL), silent) == []
    assert told(after(silent), CALL) == []
    assert told(after(CALL), replace(CALL, served_model="m-2", error="TimeoutError")) == []
    assert told(after(CALL), replace(CALL, served_model="m-2", cached=True)) == []
    assert told(after(CALL), replace(CALL, path="another", model="n")) == []


def test_a_fingerprint_has_a_bounded_size() -> None:
    many = [replace(CALL, system_fingerprint=str(n), path=f"node {n // 50}") for n in range(50 * 2 * NODES)]
    known = after(*many)
    assert len(known.nodes) == NODES
    assert {len(seen.fingerprints) for models in known.nodes.values() for seen in models.values()} == {SEEN}
    assert Fingerprint.unpack(known.pack()) == known


@pytest.mark.parametrize("stored", [None, 1, [], [1, 2, 3], [{"a": 1}, {}, 1], [{"a": {"m": [1]}}, {}, None]])
def test_an_invalid_fingerprint_is_empty(stored: Any) -> None:
    assert list(Fingerprint.unpack(stored).names) == []


def test_drift_reports_can_be_pickled() -> None:
    report = DriftReport("t", (Change("model", "a", "b", 1, "n"),))
    for raised in (DriftDetected(report), DriftWarning(report)):
        again = pickle.loads(pickle.dumps(raised))
        assert (again.report, str(again)) == (report, str(raised))


def test_invalid_drift_options_are_refused() -> None:
    with pytest.raises(InvalidInput, match="on_drift"):
        MemorySaver(on_drift="panic")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="graph_version"):
        MemorySaver(graph_version=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="on_drift='raise' needs provenance=True"):
        MemorySaver(on_drift="raise", provenance=False)


def test_a_drift_warning_turned_into_an_error_marks_nothing(world: World) -> None:
    with MemorySaver() as saver, warnings.catch_warnings():
        world.run(saver)
        world.served = "m-2"
        warnings.simplefilter("error", DriftWarning)
        with pytest.raises(DriftWarning):
            world.run(saver)
        assert marks(saver) == []
