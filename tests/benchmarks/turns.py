"""Measure 3, `turns`: a whole turn of a graph, sync and async, for chats of several lengths and other graphs.

The savers are warm and alternate; figures are medians. LangGraph's `InMemorySaver`, Keel in memory, a saver that only
keeps references, and a graph without a saver show how much of the time the graph itself takes.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from .backend import Saver
from .graphs import Chat, DeltaChat, chat_graph, history, message, reply, seed_chat, text, thread
from .plan import Plan
from .report import Row
from .savers import KEEL_MEMORY, LANGGRAPH_MEMORY, REFERENCES
from .timing import Clocked, interleaved, timed


@dataclass(frozen=True)
class Form:
    """A graph, and the length of its threads.

    Attributes:
        label: Name in the table.
        build: Returns the graph, compiled with a saver.
        messages: Number of messages with which its threads start.
    """

    label: str
    build: Callable[[Saver | None], Any]
    messages: int


def _with_subgraph(saver: Saver | None) -> Any:
    """Return a graph of START, a subgraph of two nodes, END."""
    inner = StateGraph(Chat).add_node("think", reply).add_node("say", reply)
    inner.add_edge(START, "think").add_edge("think", "say")
    builder = StateGraph(Chat).add_node("team", inner.compile()).add_edge(START, "team").add_edge("team", END)
    return builder.compile(checkpointer=saver)


class Calls(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def _with_tools(saver: Saver | None) -> Any:
    """Return a graph of START, a model, four parallel tools, the model again, END."""

    def tool(number: int, state: Any) -> dict[str, Any]:
        place = len(state["messages"])
        return {"messages": [ToolMessage(text(f"{place} {number}", 400), tool_call_id=f"call-{place}-{number}")]}

    builder = StateGraph(Calls).add_node("model", reply).add_node("answer", reply).add_edge(START, "model")
    for number in range(4):
        builder.add_node(f"tool-{number}", partial(tool, number))
        builder.add_edge("model", f"tool-{number}")
    builder.add_edge([f"tool-{number}" for number in range(4)], "answer").add_edge("answer", END)
    return builder.compile(checkpointer=saver)


FORMS = (
    *(Form(f"{count} messages", chat_graph, count) for count in (10, 200, 1000)),
    Form("200 messages in a DeltaChannel", partial(chat_graph, schema=DeltaChat), 200),
    Form("20 messages, a subgraph", _with_subgraph, 20),
    Form("20 messages, four tools at once", _with_tools, 20),
)
THREADS = 8
"""Number of threads that the turns rotate through; each turn makes its thread longer."""


class Subject:
    """A graph with a saver, and threads with messages."""

    def __init__(self, form: Form, saver: Saver | None, runner: asyncio.Runner | None = None) -> None:
        self.graph, self.runner, self.turn, self.form = form.build(saver), runner, 0, form
        for nth in range(THREADS if saver else 0):
            self._seed(f"turns-{nth}")

    def _seed(self, thread_id: str) -> None:
        if self.runner:
            config, values = thread(thread_id), {"messages": history(self.form.messages)}
            self.runner.run(self.graph.aupdate_state(config, values, as_node=_last_node(self.graph)))
        else:
            seed_chat(self.graph, thread_id, self.form.messages, _last_node(self.graph))

    def take_turn(self) -> float:
        self.turn += 1
        config = thread(f"turns-{self.turn % THREADS}")
        said = {"messages": [message(self.form.messages + 2 * self.turn)]}
        if self.runner:
            return timed(self.runner.run, self.graph.ainvoke(said, config))[0]
        return timed(self.graph.invoke, said, config)[0]

    def take_unsaved_turn(self) -> float:
        """Take a turn without a saver, with the whole chat as input."""
        said = {"messages": history(self.form.messages + 1)}
        return timed(self.graph.invoke, said)[0]


def _last_node(graph: Any) -> str:
    *_, last = graph.nodes
    return str(last)


def _measure(plan: Plan, form: Form) -> list[Row]:
    with ExitStack() as stack:
        backends = {
            **plan.sides,
            "their memory": LANGGRAPH_MEMORY,
            "our memory": plan.stand_in(KEEL_MEMORY, LANGGRAPH_MEMORY),
            "references": REFERENCES,
        }
        opened = {side: stack.enter_context(each.open(plan.directory("turns"))) for side, each in backends.items()}
        runs: dict[str, Clocked] = {side: Subject(form, saver).take_turn for side, saver in opened.items()}
        took = interleaved(plan.rounds(25), {**runs, "none": Subject(form, None).take_unsaved_turn})
    label = f"turn, {form.label}"
    target = plan.target(label) or plan.target("any cell")
    beside = plan.target(f"{label}; vs InMemorySaver")
    ours, memory = took["ours"], took["their memory"]
    return [
        Row("turns", label, took.get("theirs"), ours, "ms", target, took.spread()),
        Row("turns", f"{label}; vs InMemorySaver", memory, ours, "ms", beside, took.spread("ours", "their memory")),
        Row("turns", f"{label}; both in memory", memory, took["our memory"], "ms"),
        Row("turns", f"{label}; a saver that keeps references", took["references"], None, "ms"),
        Row("turns", f"{label}; no checkpointer", took["none"], None, "ms"),
    ]


def _measure_async(plan: Plan, form: Form) -> Row:
    with asyncio.Runner() as runner:
        stack, runs = AsyncExitStack(), dict[str, Clocked]()
        try:
            for side, backend in plan.sides.items():
                assert backend.aopen, f"{backend.name} has no async interface"
                saver = runner.run(stack.enter_async_context(backend.aopen(plan.directory("turns"))))
                runs[side] = Subject(form, saver, runner).take_turn
            took = interleaved(plan.rounds(25), runs)
        finally:
            runner.run(stack.aclose())
    label = f"turn, {form.label}, async"
    target = plan.target(label) or plan.target("any cell")
    return Row("turns", label, took.get("theirs"), took["ours"], "ms", target, took.spread())


def measure(plan: Plan) -> list[Row]:
    return [row for form in FORMS for row in (*_measure(plan, form), _measure_async(plan, form))]
