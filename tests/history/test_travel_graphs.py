"""Rewind and fork with LangGraph's graphs: which nodes run, from which state."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, StateSnapshot, interrupt
from support.provenance.trajectories import World
from support.savers import SAVERS, needing

from langgraph_keel import DriftWarning, KeelSaver, NotFound
from langgraph_keel.testing.contract_removal import told
from langgraph_keel.testing.rig import SyncFace, exact

DURABILITIES = ["sync", "async", "exit"]
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}
Graph = Any  # CompiledStateGraph or Pregel, of types that differ in nothing that matters here


Node = Any  # Callable[[State], Any], of which LangGraph's own types make eight others


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Runner:
    """Runs graphs and saver methods on one of both faces.

    Attributes:
        ran: The names of the nodes that have run since this was last cleared.
    """

    def __init__(self, saver: KeelSaver, is_async: bool) -> None:
        self.saver = saver
        self.ran: list[str] = []
        self._is_async = is_async

    def __call__(self, graph: Graph, given: Any, config: RunnableConfig = CONFIG, **options: Any) -> Any:
        self.ran.clear()
        if self._is_async:
            return asyncio.run(graph.ainvoke(given, config, **options))
        return graph.invoke(given, config, **options)

    def rewind(self, at: RunnableConfig) -> RunnableConfig:
        return asyncio.run(self.saver.arewind(at)) if self._is_async else self.saver.rewind(at)

    def fork(self, at: RunnableConfig, thread_id: str | None = None) -> RunnableConfig:
        return asyncio.run(self.saver.afork(at, thread_id)) if self._is_async else self.saver.fork(at, thread_id)

    def says(self, name: str) -> Node:
        """Return a node that only records that it has run."""

        def node(state: Any) -> State:
            self.ran.append(name)
            return {"log": [name]}

        return node

    def asks(self, state: Any) -> State:
        self.ran.append("asks")
        return {"log": [f"answered {interrupt('may I?')}"]}

    def chain(self, *nodes: str | Node, state: Any = State, **options: Any) -> Graph:
        """Return a graph that runs nodes in sequence; a string becomes a logging node."""
        builder = StateGraph(state)
        names = [node if isinstance(node, str) else f"n{place}" for place, node in enumerate(nodes)]
        for name, node in zip(names, nodes, strict=True):
            builder.add_node(name, self.says(node) if isinstance(node, str) else node)
        for edge in zip([START, *names], [*names, END], strict=True):
            builder.add_edge(*edge)
        return builder.compile(checkpointer=options.pop("checkpointer", self.saver), **options)

    def everything(self, thread: str = "t") -> Any:
        """Return all visible content of a thread."""
        rig: Any = type("OneFace", (), {"face": SyncFace(lambda: self.saver)})
        return told(rig, thread)


@pytest.fixture(
    params=[pytest.param((name, face), id=f"{name}-{face}") for name in SAVERS for face in ("sync", "async")]
)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runner]:
    name, face = request.param
    needing(name, request)
    opened: AbstractContextManager[Any] = SAVERS[name](tmp_path)
    with opened as saver:
        yield Runner(saver, face == "async")


def moment(graph: Graph, *following: str, number: int = 0) -> StateSnapshot:
    """Return the newest checkpoint (or an earlier one) with these next nodes."""
    found = [each for each in graph.get_state_history(CONFIG) if each.next == following]
    snapshot: StateSnapshot = found[number]
    return snapshot


def log(graph: Graph, config: RunnableConfig = CONFIG) -> Any:
    return graph.get_state(config).values.get("log")


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("form", ["listed", "of the user's own"])
def test_a_run_from_a_pruned_checkpoint_is_refused(run: Runner, durability: Any, form: str) -> None:
    """LangGraph would start again, without the conversation so far."""
    graph = run.chain("a")
    for word in ("one", "two"):
        run(graph, {"log": [word]})
    old = list(run.saver.list(CONFIG))[-1].config
    if form != "listed":
        old = {"configurable": {name: str(value) for name, value in old["configurable"].items()}}
    run.saver.prune(["t"])
    before = run.everything()
    for given in ({"log": ["three"]}, None):
        with pytest.raises(NotFound, match="no such checkpoint to continue from"):
            run(graph, given, old, durability=durability)
    with pytest.raises(NotFound, match="no such checkpoint to continue from"):
        graph.update_state(old, {"log": ["three"]}, as_node="a")
    assert run.ran == []
    assert run.everything() == before
    assert not graph.get_state(old).values


def test_nodes_after_the_rewind_target_run_again(run: Runner) -> None:
    graph = run.chain("a", "b", "c")
    run(graph, {"log": ["in"]})
    at, before = moment(graph, "b"), run.everything()
    config = run.rewind(at.config)
    assert config == CONFIG
    assert run.everything()[1:] == before
    assert (graph.get_state(config).next, log(graph)) == (("b",), ["in", "a"])
    assert run(graph, None)["log"] == ["in", "a", "b", "c"]
    assert run.ran == ["b", "c"]
    run.rewind(moment(graph, "a", number=-1).config)
    assert run(graph, None)["log"] == ["in", "a", "b", "c"]
    assert run.ran == ["a", "b", "c"]
    run.rewind(moment(graph, "c", number=-1).config)
    assert run(graph, {"log": ["more"]})["log"] == ["in", "a", "b", "more", "a", "b", "c"]
    run.rewind(moment(graph, number=-1).config)
    assert (run(graph, None) or {}).get("log") == ["in", "a", "b", "c"]
    assert run.ran == []


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_chat_is_rewound_by_turns(run: Runner, durability: Any) -> None:
    graph = run.chain("a", "b")
    ends = []
    for turn in "xyz":
        run(graph, {"log": [turn]}, durability=durability)
        ends.append(graph.get_state(CONFIG))
    run.rewind(ends[0].config)
    assert run(graph, {"log": ["anew"]}, durability=durability)["log"] == ["x", "a", "b", "anew", "a", "b"]
    run.rewind(ends[2].config)
    assert log(graph) == ["x", "a", "b", "y", "a", "b", "z", "a", "b"]


def test_a_fork_leaves_the_source_unchanged(run: Runner) -> None:
    graph = run.chain("a", "b", "c")
    run(graph, {"log": ["in"]})
    at, before = moment(graph, "c"), run.everything()
    config = run.fork(at.config, "u")
    assert run(graph, None, config)["log"] == ["in", "a", "b", "c"]
    assert run.ran == ["c"]
    run(graph, {"log": ["more"]}, config)
    assert run.everything() == before
    assert log(graph) == ["in", "a", "b", "c"]
    assert [each.next for each in graph.get_state_history(config)][-4:] == [("c",), ("b",), ("a",), ("__start__",)]


def test_a_branch_continues_without_changing_the_trunk(run: Runner) -> None:
    graph = run.chain("a", "b", "c")
    run(graph, {"log": ["in"]})
    config = run.fork(moment(graph, "c").config)
    assert log(graph) == ["in", "a", "b", "c"]
    assert log(graph, config) == ["in", "a", "b"]
    changed = graph.update_state(config, {"log": ["changed"]}, as_node="b")
    assert run(graph, None, changed)["log"] == ["in", "a", "b", "changed", "c"]
    assert run.ran == ["c"]
    assert log(graph) == ["in", "a", "b", "changed", "c"]


def test_a_question_is_asked_again_after_a_rewind(run: Runner) -> None:
    graph = run.chain("a", run.asks, "c")
    run(graph, {"log": ["in"]})
    at = moment(graph, "n1")
    run(graph, Command(resume="yes"))
    assert log(graph) == ["in", "a", "answered yes", "c"]
    run.rewind(at.config)
    assert graph.get_state(CONFIG).interrupts == ()
    assert len(graph.get_state(at.config).interrupts) == 1
    asked = run(graph, None)
    assert [each.value for each in asked["__interrupt__"]] == ["may I?"]
    assert run.ran == ["asks"]
    assert run(graph, Command(resume="no"))["log"] == ["in", "a", "answered no", "c"]


def test_an_answer_can_follow_a_rewind_or_fork_directly(run: Runner) -> None:
    graph = run.chain("a", run.asks, "c")
    run(graph, {"log": ["in"]})
    at = moment(graph, "n1")
    run(graph, Command(resume="yes"))
    for config in (run.rewind(at.config), run.fork(at.config, "u")):
        assert run(graph, Command(resume="no"), config)["log"] == ["in", "a", "answered no", "c"]
        assert run.ran == ["asks", "c"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_waiting_question_is_forked_unanswered(run: Runner, durability: Any) -> None:
    graph = run.chain("a", run.asks, "c")
    run(graph, {"log": ["in"]}, durability=durability)
    config = run.fork(graph.get_state(CONFIG).config, "u")
    assert run(graph, Command(resume="no"), config)["log"] == ["in", "a", "answered no", "c"]
    assert len(graph.get_state(CONFIG).interrupts) == 1
    assert run(graph, Command(resume="yes"))["log"] == ["in", "a", "answered yes", "c"]


class Inner(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    notes: Annotated[list[str], operator.add]


def calling(run: Runner, checkpointer: bool | None, *inside: Any) -> Graph:
    """Return a graph that calls a subgraph between two nodes of its own."""
    inner = run.chain(
        *(inside or (lambda state: {"notes": [f"note {len(state['log'])}"]},)), state=Inner, checkpointer=checkpointer
    )
    return run.chain("a", inner, "c")


def notes(graph: Graph, saver: KeelSaver, thread: str = "t") -> Any:
    found = saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": "n1"}})
    return found.checkpoint["channel_values"].get("notes") if found else None


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_rewind_restores_the_memory_of_a_subgraph(run: Runner, durability: Any) -> None:
    graph = calling(run, True)
    ends, remembered = [], []
    for turn in "xyz":
        run(graph, {"log": [turn]}, durability=durability)
        ends.append(graph.get_state(CONFIG).config)
        remembered.append(notes(graph, run.saver))
    assert [len(each) for each in remembered] == [1, 2, 3]
    for place in (1, 0, 2, 1):
        run.rewind(ends[place])
        assert notes(graph, run.saver) == remembered[place], f"turn {place}"
        config = run.fork(ends[place], f"fork {place} {len(run.everything())}")
        thread = config["configurable"]["thread_id"]
        assert notes(graph, run.saver, thread) == remembered[place], f"turn {place}"
        run(graph, {"log": ["more"]}, config, durability=durability)
        assert len(notes(graph, run.saver, thread)) == place + 2
    run(graph, {"log": ["more"]}, durability=durability)
    assert notes(graph, run.saver)[:2] == remembered[1]
    assert len(notes(graph, run.saver)) == 3


def test_a_rewind_before_a_subgraph_call_clears_its_memory(run: Runner) -> None:
    graph = calling(run, True)
    run(graph, {"log": ["x"]})
    for following in ("n1", "a"):
        run.rewind(moment(graph, following, number=-1).config)
        assert notes(graph, run.saver) in (None, [])
        run(graph, None)
        assert len(notes(graph, run.saver)) == 1


@pytest.mark.parametrize("checkpointer", [True, None], ids=["with-memory", "without"])
def test_a_question_in_a_subgraph_is_asked_again(run: Runner, checkpointer: bool | None) -> None:
    def notes_that(state: Any) -> Any:
        run.ran.append("notes")
        return {"notes": ["noted"]}

    graph = calling(run, checkpointer, notes_that, run.asks)
    run(graph, {"log": ["in"]})
    at = moment(graph, "n1")
    first = run(graph, Command(resume="yes"))["log"]
    for config in (run.rewind(at.config), run.fork(at.config, "u")):
        asked = run(graph, None, config)
        assert [each.value for each in asked["__interrupt__"]] == ["may I?"]
        assert run.ran == ["notes", "asks"]
        told = run(graph, Command(resume="no"), config)["log"]
        assert told == [entry.replace("yes", "no") for entry in first]


def reduced(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(each for write in writes for each in write)]


class Deltas(TypedDict):
    log: Annotated[list[str], DeltaChannel(reduced, snapshot_frequency=4)]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_delta_channels_are_rewound_and_forked(run: Runner, durability: Any) -> None:
    graph = run.chain("a", "b", "c", state=Deltas)
    for turn in "xy":
        run(graph, {"log": [turn]}, durability=durability)
    history = list(graph.get_state_history(CONFIG))
    for place, at in enumerate(history):
        run.rewind(at.config)
        assert log(graph) == at.values.get("log"), f"moment {place}"
        config = run.fork(at.config, f"fork {place}")
        assert log(graph, config) == at.values.get("log"), f"moment {place}"
        if at.next and at.next != ("__start__",):
            rest = {"a": ["a", "b", "c"], "b": ["b", "c"], "c": ["c"]}[at.next[0]]
            for each in (CONFIG, config):
                assert run(graph, None, each, durability=durability)["log"] == [*at.values["log"], *rest]


def test_sent_tasks_run_again_after_a_rewind_or_fork(run: Runner) -> None:
    def work(state: Any) -> State:
        run.ran.append(state["part"])
        return {"log": [f"did {state['part']}"]}

    builder = StateGraph(State)
    builder.add_node("a", run.says("a"))
    working: Node = work
    builder.add_node("work", working)
    builder.add_node("c", run.says("c"))
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", lambda state: [Send("work", {"part": part}) for part in "xyz"], ["work"])
    builder.add_edge("work", "c")
    graph = builder.compile(checkpointer=run.saver)
    first = run(graph, {"log": ["in"]})["log"]
    at = moment(graph, "work", "work", "work")
    for config in (run.rewind(at.config), run.fork(at.config, "u")):
        assert run(graph, None, config)["log"] == first
        assert sorted(run.ran) == ["c", "x", "y", "z"]


def test_an_entrypoint_is_rewound_and_forked(run: Runner) -> None:
    @task
    def double(n: int) -> int:
        run.ran.append(f"double {n}")
        return 2 * n

    def work(given: int, *, previous: Any = None) -> Any:
        total = (previous or 0) + double(given).result()
        answer = interrupt("go on?")
        return entrypoint.final(value=[total, answer], save=total)

    async def awork(given: int, *, previous: Any = None) -> Any:
        total = (previous or 0) + await double(given)
        answer = interrupt("go on?")
        return entrypoint.final(value=[total, answer], save=total)

    graph = entrypoint(checkpointer=run.saver)(awork if run._is_async else work)
    asking = []
    for n in (1, 10):
        run(graph, n)
        asking.append(graph.get_state(CONFIG).config)
        assert run(graph, Command(resume="yes"))[1] == "yes"
    for config in (run.rewind(asking[1]), run.fork(asking[1], "u")):
        # The task's result was a write of the earlier moment, so it runs again, and the question is asked again.
        assert run(graph, None, config)["__interrupt__"][0].value == "go on?"
        assert run.ran == ["double 10"]
        assert run(graph, Command(resume="no"), config) == [22, "no"]
    run.rewind(asking[0])
    run(graph, None)
    assert run(graph, Command(resume="no")) == [2, "no"]
    run(graph, 5)
    assert run(graph, Command(resume="no")) == [12, "no"]


def test_pruned_threads_can_be_rewound_and_forked(run: Runner) -> None:
    graph = calling(run, True)
    for turn in "xy":
        run(graph, {"log": [turn]})
    before, remembered = log(graph), notes(graph, run.saver)
    run.saver.prune(["t"])
    run.rewind(CONFIG)
    assert (log(graph), notes(graph, run.saver)) == (before, remembered)
    config = run.fork(CONFIG, "u")
    assert (log(graph, config), notes(graph, run.saver, "u")) == (before, remembered)
    end = graph.get_state(CONFIG).config
    run(graph, {"log": ["z"]})
    assert len(notes(graph, run.saver)) == len(remembered) + 1
    run.rewind(end)
    assert exact((log(graph), notes(graph, run.saver))) == exact((before, remembered))


def called_by(saver: KeelSaver, model: str) -> set[str]:
    return {each.config["configurable"]["checkpoint_id"] for each in saver.list(CONFIG, filter={"model": model})}


def test_a_twin_keeps_models_of_its_thread_without_listing_calls_twice(run: Runner) -> None:
    """A twin keeps its thread's models, so that drift is noticed.

    No call is listed twice.
    """
    world = World(served="m-1")
    graph = world.graph(run.saver)
    run(graph, {"messages": [("user", "when?")]})
    [end, *_] = graph.get_state_history(CONFIG)
    called = called_by(run.saver, "m-1")
    for config in (run.rewind(end.config), run.fork(end.config)):
        assert called_by(run.saver, "m-1") == called
        assert graph.get_state(config).config["configurable"]["checkpoint_id"] not in called
    assert [info.thread_id for info in run.saver.threads(model="m-1")] == ["t"]
    world.served = "m-2"
    with pytest.warns(DriftWarning, match="m-2"):
        run(graph, {"messages": [("user", "and then?")]})
