"""Measure 2, `latency`: each call, and a whole turn, with N messages in the state.

The savers are warm, as in a running server, and take turns; medians. `put` is one more message on the list of
the checkpoint before, with a new id and version. "cold" is a fresh saver's first `get_tuple` on that file.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from uuid import uuid4

from .backend import Backend, Saver
from .graphs import chat_graph, history, message, seed_chat, take_turn, thread
from .plan import Plan
from .report import Row
from .savers import KEEL_MEMORY, LANGGRAPH_MEMORY
from .steps import Sequence
from .timing import Clocked, interleaved, timed

STATE, TURNS = thread("state"), "turns"


class Subject:
    """One open saver with two threads of N messages: one for single calls, one for turns."""

    def __init__(self, backend: Backend, saver: Saver, directory: Path, messages: int) -> None:
        self.backend, self.saver, self.directory = backend, saver, directory
        self.graph = chat_graph(saver)
        for thread_id in ("state", TURNS):
            seed_chat(self.graph, thread_id, messages)
        self.sequence = Sequence(saver, "state")
        self.said = messages
        for _ in range(10):  # so that list(limit=10) finds ten
            self.put()

    def put(self) -> float:
        messages = self.sequence.values["messages"]
        return self.sequence.put({"messages": [*messages, message(len(messages))]})

    def put_writes(self) -> float:
        writes = [("messages", [message(self.said)])]
        return timed(self.saver.put_writes, self.sequence.config, writes, str(uuid4()))[0]

    def get_tuple(self) -> float:
        return timed(self.saver.get_tuple, STATE)[0]

    def cold_get_tuple(self) -> float:
        with self.backend.open(self.directory) as saver:
            return timed(saver.get_tuple, STATE)[0]

    def list(self) -> float:
        return timed(lambda: list(self.saver.list(STATE, limit=10)))[0]

    def turn(self) -> float:
        self.said += 2
        return timed(take_turn, self.graph, TURNS, self.said - 2)[0]


CALLS: dict[str, Callable[[Subject], float]] = {
    "put": Subject.put,
    "put_writes": Subject.put_writes,
    "get_tuple": Subject.get_tuple,
    "get_tuple, cold": Subject.cold_get_tuple,
    "list(limit=10)": Subject.list,
}


def open_subject(stack: ExitStack, backend: Backend, plan: Plan) -> Subject:
    directory = plan.directory(f"latency-{backend.name}")
    saver = stack.enter_context(backend.open(directory))
    return Subject(backend, saver, directory, plan.messages)


def unsaved_turn(messages: int) -> Clocked:
    """A turn of the graph without a checkpointer, the whole chat being its input."""
    graph, said = chat_graph(None), history(messages + 1)
    return lambda: timed(graph.invoke, {"messages": said})[0]


def _call(plan: Plan, name: str, run: Callable[[Subject], float], subjects: dict[str, Subject]) -> Row:
    rounds = plan.rounds(9 if name.startswith("list") else 31)
    took = interleaved(rounds, {side: partial(run, subject) for side, subject in subjects.items()})
    label = f"{name}, {plan.messages} messages"
    return Row("latency", label, took.get("theirs"), took["ours"], "ms", plan.target(name))


def _turns(plan: Plan, subjects: dict[str, Subject]) -> list[Row]:
    runs: dict[str, Clocked] = {name: subject.turn for name, subject in subjects.items()}
    took = interleaved(plan.rounds(21), {**runs, "none": unsaved_turn(plan.messages)})
    label = f"turn, {plan.messages} messages"
    less = plan.target("turn, beside InMemorySaver")
    return [
        Row("latency", label, took.get("theirs"), took["ours"], "ms", plan.target("turn")),
        Row("latency", f"{label}; beside InMemorySaver", took["their memory"], took["ours"], "ms", less),
        Row("latency", f"{label}; both in memory", took["their memory"], took["our memory"], "ms"),
        Row("latency", f"{label}; no checkpointer", took["none"], None, "ms"),
    ]


def measure(plan: Plan) -> list[Row]:
    with ExitStack() as stack:
        subjects = {side: open_subject(stack, backend, plan) for side, backend in plan.sides.items()}
        rows = [_call(plan, name, run, subjects) for name, run in CALLS.items()]
        memories = {
            "their memory": open_subject(stack, LANGGRAPH_MEMORY, plan),
            "our memory": open_subject(stack, plan.stand_in(KEEL_MEMORY, LANGGRAPH_MEMORY), plan),
        }
        return rows + _turns(plan, {**subjects, **memories})
