"""Two versions of an application, and the upgrade between them.

Threads of version 1 are left in every possible state.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic, sleep
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from langgraph_keel import KeelSaver, StoredState, upgrade

KINDS = ("done", "asks", "inside", "sibling", "enrich", "sent", "new")


def joined(state: list[Any], writes: list[Any]) -> list[Any]:
    """Apply the writes of a delta channel."""
    return [*(state or []), *(each for write in writes for each in write)]


class State1(TypedDict, total=False):
    """The state of version 1."""

    kind: str
    name: str
    cents: int
    scratch: str
    said: str
    log: Annotated[list[str], operator.add]
    notes: Annotated[list[Any], DeltaChannel(joined)]


class State2(TypedDict, total=False):
    """The state of version 2."""

    kind: str
    first: str
    last: str
    euros: float
    currency: str
    said: str
    log: Annotated[list[str], operator.add]
    notes: Annotated[list[Any], DeltaChannel(joined)]


class Inner1(TypedDict, total=False):
    """The state of the graph in a node, version 1."""

    kind: str
    cents: int
    said: str


class Inner2(TypedDict, total=False):
    """The state of the graph in a node, version 2."""

    kind: str
    euros: float
    said: str


def build_1(saver: KeelSaver | None) -> Any:
    """Return the graph of version 1."""

    def intake(state: State1) -> Any:
        if state["kind"] == "new":
            raise ConnectionError
        return {"cents": 1250, "scratch": "x", "log": ["intake"], "notes": [1]}

    def route(state: State1) -> Any:
        return {
            "asks": "ask",
            "inside": "research",
            "sibling": ["left", "right"],
            "enrich": "enrich",
            "sent": [Send("work", {"job": 1}), Send("work", {"job": 2})],
        }.get(state["kind"], "finish")

    def ask(state: State1) -> Any:
        return {"log": [f"asked {interrupt('pay?')}"]}

    def right(state: State1, config: RunnableConfig) -> Any:
        # If a task fails while a sibling ends, LangGraph may drop the sibling's writes, so wait for those.
        thread: RunnableConfig = {"configurable": {"thread_id": config["configurable"]["thread_id"]}}
        until = monotonic() + 60
        while saver and monotonic() < until:
            found = saver.get_tuple(thread)
            # The writes of `intake` do not count: the next checkpoint may not be stored yet.
            if found and ("cents", 2000) in [(channel, value) for _, channel, value in found.pending_writes or ()]:
                break
            sleep(0.01)
        raise ConnectionError

    def inner(state: Inner1) -> Any:
        return {"cents": state["cents"] * 2}

    def inner_ask(state: Inner1) -> Any:
        return {"said": f"{interrupt('inside?')} {state['cents']}"}

    graph = StateGraph(Inner1).add_sequence([("inner", inner), ("inner_ask", inner_ask)]).add_edge(START, "inner")
    builder = StateGraph(State1).add_node("intake", intake).add_node("ask", ask).add_edge(START, "intake")
    builder.add_node("enrich", lambda state: {"log": ["enrich"]}).add_node("research", graph.compile())
    builder.add_node("left", lambda state: {"log": ["left"], "cents": 2000, "notes": [2]}).add_node("right", right)
    builder.add_node("work", lambda state: {"log": [f"work {state['job']}"]})
    builder.add_node("finish", lambda state: {"log": ["finish"], "notes": [9]})
    builder.add_conditional_edges("intake", route)
    for node in ("ask", "enrich", "research", "left", "work"):
        builder.add_edge(node, "finish")
    return builder.compile(checkpointer=saver, interrupt_before=["enrich", "work"])


def build_2(saver: KeelSaver | None) -> Any:
    """Return the graph of version 2.

    Channels and nodes are renamed, and one node is removed.
    """

    def intake(state: State2) -> Any:
        return {"euros": 12.5, "log": ["intake"], "notes": [1]}

    def confirm(state: State2) -> Any:
        assert state["last"] == "Lovelace"
        return {"log": [f"asked {interrupt('pay?')}"]}

    def inner(state: Inner2) -> Any:
        return {"euros": state["euros"] * 2}

    def inner_ask(state: Inner2) -> Any:
        return {"said": f"{interrupt('inside?')} {state['euros']}"}

    graph = StateGraph(Inner2).add_sequence([("inner", inner), ("inner_ask", inner_ask)]).add_edge(START, "inner")
    builder = StateGraph(State2).add_node("intake", intake).add_node("confirm", confirm).add_edge(START, "intake")
    builder.add_node("research", graph.compile())
    builder.add_node("left", lambda state: {"log": ["left again"], "euros": 20.0, "notes": [2]})
    builder.add_node("right", lambda state: {"log": ["right"]})
    builder.add_node("labour", lambda state: {"log": [f"work {state['task']}"]})
    builder.add_node("finish", lambda state: {"log": [f"finish {state['euros']} {state['currency']}"], "notes": [9]})
    builder.add_conditional_edges("intake", lambda state: "finish")
    for node in ("confirm", "research", "left", "labour"):
        builder.add_edge(node, "finish")
    return builder.compile(checkpointer=saver)


def deployed() -> Any:
    """Return the graph of version 2, as a command loads it."""
    return build_2(None)


@upgrade(1, 2)
def to_2(state: StoredState) -> None:
    """Split, rename, retype, drop and add channels; rename and remove nodes."""
    state.split("name", lambda name: dict(zip(("first", "last"), name.split(" "), strict=True)))
    state.rename("cents", "euros")
    state.convert("euros", lambda cents: cents / 100)
    state.drop("scratch")
    state["currency"] = "EUR"
    state.convert("notes", lambda notes: [note * 10 for note in notes])
    state.rename_node("ask", "confirm")
    state.remove_node("enrich", go_to="finish")
    state.rename_node("work", "labour")
    state.convert_sends("labour", lambda job: {"task": job["job"]})


@upgrade(1, 2, graph="research")
def inner_to_2(state: StoredState) -> None:
    """Change the state of the graph in a node."""
    state.rename("cents", "euros")
    state.convert("euros", lambda cents: cents / 100)


UPGRADES = [to_2, inner_to_2]


def thread_of(number: int) -> RunnableConfig:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": f"t{number}"}}


def write_1(saver: KeelSaver, number: int) -> None:
    """Have version 1 write a thread, and leave it in the state of its kind."""
    write_all_1(saver, [number])


def write_all_1(saver: KeelSaver, numbers: Iterable[int]) -> None:
    """Have version 1 write threads, and leave each in the state of its kind."""
    graph = build_1(saver)
    for number in numbers:
        given = {"kind": KINDS[number % len(KINDS)], "name": "Ada Lovelace", "log": ["in"], "notes": [0]}
        with suppress(ConnectionError):
            graph.invoke(given, thread_of(number))


SEEN: dict[str, tuple[list[str], tuple[str, ...], list[Any]]] = {
    "done": (["in", "intake", "finish"], (), [0, 10, 90]),
    "asks": (["in", "intake"], ("confirm",), [0, 10]),
    "inside": (["in", "intake"], ("research",), [0, 10]),
    "sibling": (
        ["in", "intake", "left"],
        ("right",),
        [0, 10, 20],
    ),  # LangGraph shows the writes of tasks that have run
    "enrich": (["in", "intake"], ("finish",), [0, 10]),
    "sent": (["in", "intake"], ("labour", "labour"), [0, 10]),
    "new": (["in"], ("intake",), [0]),
}
"""The view of version 2 of each kind: the log, the next nodes, and the notes."""

ENDS: dict[str, tuple[list[str], list[Any]]] = {
    "done": (["in", "intake", "finish"], [0, 10, 90]),
    "asks": (["in", "intake", "asked yes", "finish 12.5 EUR"], [0, 10, 9]),
    "inside": (["in", "intake", "finish 25.0 EUR"], [0, 10, 9]),
    "sibling": (["in", "intake", "left", "right", "finish 20.0 EUR"], [0, 10, 20, 9]),
    "enrich": (["in", "intake", "finish 12.5 EUR"], [0, 10, 9]),
    "sent": (["in", "intake", "work 1", "work 2", "finish 12.5 EUR"], [0, 10, 9]),
    "new": (["in", "intake", "finish 12.5 EUR"], [0, 1, 9]),
}
"""The result of version 2 for each kind after resuming it: the log and the notes."""


def check_seen(graph: Any, number: int) -> None:
    """Check that version 2 reads a thread of version 1 correctly."""
    kind = KINDS[number % len(KINDS)]
    log, after, notes = SEEN[kind]
    state = graph.get_state(thread_of(number))
    seen = dict(state.values)
    assert "scratch" not in seen
    assert "name" not in seen
    assert (seen["first"], seen["last"], seen["currency"]) == ("Ada", "Lovelace", "EUR")
    assert seen.get("euros") == {"new": None, "sibling": 20.0}.get(kind, 12.5)
    assert (seen["log"], sorted(state.next), seen["notes"]) == (log, sorted(after), notes)
    assert [each.value for each in state.interrupts] == {"asks": ["pay?"], "inside": ["inside?"]}.get(kind, [])
    for moment in graph.get_state_history(thread_of(number)):
        assert not {"cents", "name", "scratch"} & moment.values.keys()


def go_on(graph: Any, number: int) -> dict[str, Any]:
    """Run a thread of version 1 to its end with version 2; return the state."""
    kind = KINDS[number % len(KINDS)]
    if kind in ("asks", "inside"):
        graph.invoke(Command(resume="yes"), thread_of(number))
    elif kind != "done":
        graph.invoke(None, thread_of(number))
    state = graph.get_state(thread_of(number))
    assert state.next == ()
    return dict(state.values)


def check_end(values: dict[str, Any], number: int) -> None:
    """Check the final state of a thread of version 1."""
    log, notes = ENDS[KINDS[number % len(KINDS)]]
    assert (sorted(values["log"]), values["notes"]) == (sorted(log), notes)
    assert values.get("said") == ("yes 25.0" if KINDS[number % len(KINDS)] == "inside" else None)
