"""Measure 16, `provenance`: the cost of recording which model wrote a step.

Each run invokes a graph of two nodes, which each call a fake model, on a new thread. A saver that records model calls
is compared with one that does not.
"""

from contextlib import ExitStack
from itertools import count
from typing import Any

from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_keel.provenance.hook import Recorder

from .graphs import thread
from .plan import Plan
from .report import Row
from .timing import Clocked, interleaved, timed


def answer(state: MessagesState) -> dict[str, Any]:
    model = FakeListChatModel(responses=["This is what was asked for."])
    return {"messages": [model.bind(model="fake-1", seed=7, temperature=0.2).invoke(state["messages"])]}


def two_nodes(saver: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("first", answer)
    builder.add_node("second", answer)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


def runs(graph: Any) -> Clocked:
    numbers = count()
    return lambda: timed(graph.invoke, {"messages": [("user", "What is it?")]}, thread(f"t{next(numbers)}"))[0]


def measure(plan: Plan) -> list[Row]:
    with ExitStack() as stack:
        graphs = {}
        for name in ("recorded", "plain"):
            saver: Any = stack.enter_context(plan.pair.ours.open(plan.directory(f"provenance-{name}")))
            if name == "plain":
                # Same as provenance=False, which the openers do not accept.
                saver.engine.session.hooks.find(Recorder).captures = False
            graphs[name] = two_nodes(saver)
        took = interleaved(plan.rounds(301), {name: runs(graph) for name, graph in graphs.items()})
    return [
        Row(
            "provenance",
            "invoke of two nodes with a fake model; compared with the same, not recorded",
            took["plain"],
            took["recorded"],
            "ms",
            plan.target("provenance"),
        )
    ]
