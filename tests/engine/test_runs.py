"""A run whose checkpoint was refused stops acting.

Two and eight runs at the same time, with LangGraph's default durability.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.func import task
from langgraph.graph import START, StateGraph
from langgraph.runtime import RunControl
from support.rivals import PATIENCE, FirstStep, Race, with_hook

from langgraph_keel import CheckpointConflict, KeelSaver, MemorySaver, ToolCache

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    who: str
    log: Annotated[list[str], operator.add]


class Talker(BaseChatModel):
    """A model that records its caller."""

    note: Callable[[str], None]

    @property
    def _llm_type(self) -> str:
        return "talker"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **more: Any,
    ) -> ChatResult:
        self.note("model " + messages[0].text)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("done"))])


@dataclass
class World:
    """Counts actions from outside: of nodes, models, tools and tasks.

    The tools have a ledger or none.
    """

    race: Race
    saver: KeelSaver
    acts: list[str] = field(default_factory=list)
    refusals: list[BaseException] = field(default_factory=list)

    def acts_of(self, who: str) -> list[str]:
        return [act.removesuffix(f" {who}") for act in self.acts if act.endswith(f" {who}")]

    def graph(self, is_async: bool) -> Any:
        model = Talker(note=self.acts.append)
        tool = StructuredTool.from_function(lambda who: self.acts.append(f"tool {who}"), name="tool", description="x")
        paid = StructuredTool.from_function(lambda who: self.acts.append(f"paid {who}"), name="paid", description="x")
        kept = ToolCache(self.saver).tool(paid)

        @task
        def tasks(who: str) -> None:
            self.acts.append(f"task {who}")

        def first(state: State) -> State:
            who = state["who"]
            self.acts.append(f"first {who}")
            self.race.wait()
            doings: Sequence[Callable[[], Any]] = (
                lambda: model.invoke(who),
                lambda: tool.invoke({"who": who}),
                lambda: kept.invoke({"who": who}),
                lambda: tasks(who).result(),
            )
            for do in doings:
                try:
                    do()
                except CheckpointConflict as error:  # as in a program that continues after any error
                    self.refusals.append(error)
            return {"log": [who]}

        async def afirst(state: State) -> State:
            return await asyncio.to_thread(first, state)

        def second(state: State) -> State:
            self.acts.append(f"second {state['who']}")
            return {}

        graph: Any = StateGraph(State).add_node("first", afirst if is_async else first).add_node(second)
        return graph.add_edge(START, "first").add_edge("first", "second").compile(checkpointer=self.saver)


def run_at_once(graph: Any, names: Sequence[str], is_async: bool, config: Any = CONFIG, **more: Any) -> dict[str, Any]:
    """Run a graph in a thread for each name, and return the outcomes."""
    outcomes: dict[str, Any] = {}

    def go(who: str) -> None:
        given = {"who": who}
        try:
            outcomes[who] = (
                asyncio.run(graph.ainvoke(given, config, **more)) if is_async else graph.invoke(given, config, **more)
            )
        except CheckpointConflict as error:
            outcomes[who] = error

    threads = [Thread(target=go, args=(who,)) for who in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return outcomes


@pytest.mark.parametrize("face", ["invoke", "ainvoke"])
@pytest.mark.parametrize("names", ["ab", "abcdefgh"])
def test_refused_runs_stop_acting(saver: KeelSaver, names: str, face: str) -> None:
    race = Race(len(names))
    world = World(race, with_hook(saver, race))
    is_async = face == "ainvoke"
    outcomes = run_at_once(world.graph(is_async), names, is_async)
    (winner,) = [who for who in names if not isinstance(outcomes[who], CheckpointConflict)]
    assert world.acts_of(winner) == ["first", "model", "tool", "paid", "task", "second"]
    for loser in set(names) - {winner}:
        assert world.acts_of(loser) in ([], ["first"])
    under_way = [act for act in world.acts if act.startswith("first ")]
    assert len(world.refusals) == 4 * (len(under_way) - 1)
    assert {error.thread_id for error in world.refusals if isinstance(error, CheckpointConflict)} <= {"t"}
    assert world.saver.get_tuple(CONFIG).checkpoint["channel_values"]["log"] == [winner]  # type: ignore[union-attr]


@pytest.mark.parametrize("same", ["run_id", "control"])
def test_the_winner_continues_if_a_loser_shares_its_run_id_or_control(same: str) -> None:
    """Programs choose the ids of runs: a repeated request has the same one.

    They may also pass one `RunControl` to all.
    """
    race = Race(2)
    world = World(race, with_hook(MemorySaver(), race))
    config = {**CONFIG, "run_id": UUID(int=7)} if same == "run_id" else CONFIG
    given = {"control": RunControl()} if same == "control" else {}
    outcomes = run_at_once(world.graph(False), "ab", False, config, **given)
    (winner,) = [who for who in "ab" if not isinstance(outcomes[who], CheckpointConflict)]
    assert world.acts_of(winner) == ["first", "model", "tool", "paid", "task", "second"]


def test_a_run_continues_after_calling_a_refused_run() -> None:
    """A node may call another graph, on its own thread, whose checkpoint is refused."""
    saver, acts = MemorySaver(), list[str]()
    inner_config: Any = {"configurable": {"thread_id": "inner"}}
    model = Talker(note=acts.append)

    def moves(state: State) -> State:
        inner.update_state(inner_config, {"log": ["moved"]})
        return {}

    def acts_on(state: State) -> State:
        acts.append("inner acts")
        return {}

    def calls(state: State) -> State:
        with pytest.raises(CheckpointConflict):
            inner.invoke({"who": "x"}, inner_config, durability="sync")
        return {"log": [model.invoke("outer").text]}

    graph: Any = StateGraph(State).add_node(moves).add_node(acts_on).add_edge(START, "moves")
    inner = graph.add_edge("moves", "acts_on").compile(checkpointer=saver)
    graph = StateGraph(State).add_node(calls).add_edge(START, "calls").compile(checkpointer=saver)
    assert graph.invoke({"who": "y"}, CONFIG)["log"] == ["done"]
    assert acts == ["model outer"]


# -- storage of a refused run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["async", "sync"])
def test_input_again_omits_a_stored_input(saver: KeelSaver, durability: str) -> None:
    """A second message continues after the first, whose run is then refused."""
    began, second_has_ended = FirstStep(), Event()

    def answer(state: State) -> State:
        if state["who"] == "a":
            assert second_has_ended.wait(PATIENCE)
        return {"log": ["to " + state["who"]]}

    graph: Any = StateGraph(State).add_node(answer).add_edge(START, "answer")
    graph = graph.compile(checkpointer=with_hook(saver, began))
    refusals: list[CheckpointConflict] = []

    def first() -> None:
        with pytest.raises(CheckpointConflict) as caught:
            graph.invoke({"who": "a", "log": ["a"]}, CONFIG, durability=durability)
        refusals.append(caught.value)

    thread = Thread(target=first)
    thread.start()
    assert began.is_stored.wait(PATIENCE)
    graph.invoke({"who": "b", "log": ["b"]}, CONFIG, durability=durability)
    second_has_ended.set()
    thread.join()
    (refusal,) = refusals
    assert refusal.stored
    assert refusal.stored in [
        state.config["configurable"]["checkpoint_id"] for state in graph.get_state_history(CONFIG)
    ]
    assert refusal.stored in str(refusal)
    assert refusal.input_again({"who": "a", "log": ["a"]}) is None
    assert graph.invoke(None, CONFIG)["log"] == ["a", "b", "to b"]
    assert graph.invoke({"who": "c", "log": ["c"]}, CONFIG)["log"] == ["a", "b", "to b", "c", "to c"]


def test_a_repeated_refused_run_passes_its_input_once(saver: KeelSaver) -> None:
    names = "abcd"
    race = Race(len(names))
    world = World(race, with_hook(saver, race))
    graph = world.graph(is_async=False)
    outcomes = run_at_once(graph, names, is_async=False)
    losers = [who for who in names if isinstance(outcomes[who], CheckpointConflict)]
    race.is_over()
    for who in losers:
        given = outcomes[who].input_again({"who": who})
        assert given == {"who": who}
        graph.invoke(given, CONFIG)
    (winner,) = set(names) - set(losers)
    assert graph.get_state(CONFIG).values["log"] == [winner, *losers]
    assert all(world.acts_of(who).count("model") == 1 for who in names)
