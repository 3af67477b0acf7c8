"""Graphs that ask, ways to run and resume them, and the claims in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_keel import KeelSaver
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.session import Hooks
from langgraph_keel.engine.tables import Cells, Kept
from langgraph_keel.runs import claims
from langgraph_keel.runs import hook as claims_hook
from support.savers import BACKENDS as BACKENDS

FACES = ("invoke", "stream", "ainvoke", "astream")
CONFIG: Any = {"configurable": {"thread_id": "t"}}
ANSWER: Command[Any] = Command(resume="yes")


class State(TypedDict, total=False):
    answer: str
    second: str


def graph_of(saver: Any, *nodes: Callable[[State], Any]) -> Any:
    graph: Any = StateGraph(State)
    for before, node in zip([START, *(each.__name__ for each in nodes)], nodes, strict=False):
        graph.add_node(node.__name__, node)
        graph.add_edge(before, node.__name__)
    return graph.compile(checkpointer=saver)


async def go_on(face: str, graph: Any, given: Any, config: Any = CONFIG) -> None:
    """Run a graph through one of its faces."""
    if face == "ainvoke":
        await graph.ainvoke(given, config)
    elif face == "astream":
        [_ async for _ in graph.astream(given, config)]
    else:
        await asyncio.to_thread(
            lambda: list(graph.stream(given, config)) if face == "stream" else graph.invoke(given, config)
        )


def answer_to(graph: Any, value: Any, by_id: bool) -> Command[Any]:
    (asked,) = graph.get_state(CONFIG).interrupts
    return Command(resume={asked.id: value} if by_id else value)


def book(state: State) -> State:
    return {"answer": interrupt("book?")}


def wire(state: State) -> State:
    return {"second": interrupt("wire a million?")}


@dataclass
class Held:
    """A node that asks, and blocks once it has an answer."""

    ran: list[Any] = field(default_factory=list)
    is_in: Event = field(default_factory=Event)
    may_go_on: Event = field(default_factory=Event)

    def pay(self, state: State) -> State:
        answer = interrupt("pay?")
        self.ran.append(answer)
        self.is_in.set()
        assert self.may_go_on.wait(30)
        return {"answer": answer}

    def resumed(self, graph: Any, config: Any = CONFIG) -> Thread:
        """Resume a thread, and return when the node blocks."""
        thread = Thread(target=graph.invoke, args=(ANSWER, config))
        thread.start()
        assert self.is_in.wait(30)
        return thread


def asked(saver: Any, *nodes: Callable[[State], Any], config: Any = CONFIG) -> Any:
    graph = graph_of(saver, *nodes)
    graph.invoke({}, config)
    return graph


def runs_of(saver: KeelSaver) -> claims_hook.RunClaims:
    """Return the hook that claims threads for the runs of a saver."""
    found = saver.engine.session.hooks.find(claims_hook.RunClaims)
    assert found
    return found


def with_runs(saver: KeelSaver, **options: Any) -> KeelSaver:
    """Return a copy of a saver with another hook for claims."""
    engine = saver.engine
    others = [hook for hook in engine.session.hooks.all if not isinstance(hook, claims_hook.RunClaims)]
    hooks = Hooks([claims_hook.RunClaims(**options), *others])
    return with_engine(saver, replace(engine, session=replace(engine.session, hooks=hooks)))


def claim_of(saver: KeelSaver, thread_id: str = "t") -> Kept[claims.ClaimRecord] | None:
    """Return the stored claim of a thread, after ended runs have released theirs."""
    engine = saver.engine
    runs_of(saver).close()
    return engine.run(Cells(engine.session, claims.CLAIMS, thread_id).find(claims.KEY))
