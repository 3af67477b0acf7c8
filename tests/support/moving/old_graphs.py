"""Graphs of every kind, run on LangGraph's own savers, to be imported."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

Saver = BaseCheckpointSaver[Any]


def config_of(thread_id: str, **others: Any) -> Any:
    return {"configurable": {"thread_id": thread_id, **others}}


# -- a chat ------------------------------------------------------------------------------------------------------------


def chat(saver: Saver) -> Any:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}", id=f"a{len(state['messages'])}")]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)


def talk(saver: Saver, thread_id: str, turns: int = 3) -> None:
    graph = chat(saver)
    for number in range(turns):
        graph.invoke({"messages": [("user", f"question {number}")]}, config_of(thread_id, user_id="ada"))


def go_on_talking(saver: Saver, thread_id: str) -> Any:
    found = chat(saver).invoke({"messages": [("user", "one more")]}, config_of(thread_id))
    return [(each.type, each.content) for each in found["messages"]]


# -- pending questions in parallel tasks, one of which has finished ------------------------------------------------


class Asked(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def asking(saver: Saver) -> Any:
    def ask(name: str) -> Asked:
        return {"log": [f"{name}: {interrupt({'question': name})}"]}

    builder = StateGraph(Asked).add_node("first", lambda state: ask("first"))
    builder.add_node("second", lambda state: ask("second")).add_node(
        "quick", lambda state: {"log": ["quick"]}
    ).add_node("end", lambda state: {"log": ["end"]})
    for node in ("first", "second", "quick"):
        builder.add_edge(START, node).add_edge(node, "end")
    return builder.compile(checkpointer=saver)


def ask(saver: Saver, thread_id: str) -> None:
    asking(saver).invoke({"log": ["begin"]}, config_of(thread_id))


def answer_all(saver: Saver, thread_id: str) -> Any:
    graph, config = asking(saver), config_of(thread_id)
    waiting = graph.get_state(config).interrupts
    answers = {each.id: f"yes to {each.value['question']}" for each in waiting}
    return graph.invoke(Command(resume=answers), config)["log"]


# -- subgraphs: one that asks, and one with its own memory -----------------------------------------------------------


def nested(saver: Saver) -> Any:
    inner = StateGraph(Asked).add_node("inside", lambda state: {"log": [f"inside: {interrupt('inside?')}"]})
    memory = StateGraph(Asked).add_node("count", lambda state: {"log": ["seen"]}).add_edge(START, "count")
    outer = StateGraph(Asked).add_node("memory", memory.compile(checkpointer=True))
    outer.add_node("asks", inner.add_edge(START, "inside").compile())
    return outer.add_edge(START, "memory").add_edge("memory", "asks").compile(checkpointer=saver)


def go_deep(saver: Saver, thread_id: str) -> None:
    graph = nested(saver)
    graph.invoke({"log": ["one"]}, config_of(thread_id))
    graph.invoke(Command(resume="ok"), config_of(thread_id))
    graph.invoke({"log": ["two"]}, config_of(thread_id))


def come_up(saver: Saver, thread_id: str) -> Any:
    graph = nested(saver)
    log = graph.invoke(Command(resume="fine"), config_of(thread_id))["log"]
    return log, graph.get_state(config_of(thread_id, checkpoint_ns="memory")).values


# -- delta channels ----------------------------------------------------------------------------------------------------


def _extend(state: list[str] | None, writes: Sequence[list[str]]) -> list[str]:
    return [*(state or []), *(part for write in writes for part in write)]


class Delta(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=3)]
    count: int


def deltas(saver: Saver) -> Any:
    builder = StateGraph(Delta)
    builder.add_node("one", lambda state: {"log": [f"one {len(state['log'])}"], "count": state.get("count", 0) + 1})
    builder.add_node("two", lambda state: {"log": ["two"]}).add_node("other", lambda state: {"log": ["other"]})
    builder.add_edge(START, "one").add_edge("one", "two").add_edge("one", "other")
    return builder.compile(checkpointer=saver)


def add(saver: Saver, thread_id: str, turns: int = 4) -> None:
    graph = deltas(saver)
    for number in range(turns):
        graph.invoke({"log": [f"turn {number}"]}, config_of(thread_id))


def go_on_adding(saver: Saver, thread_id: str) -> Any:
    return deltas(saver).invoke({"log": ["more"]}, config_of(thread_id))


# -- forks, manual updates, a failed task, sent tasks ------------------------------------------------------------------


def fork(saver: Saver, thread_id: str) -> None:
    talk(saver, thread_id)
    graph = chat(saver)
    moments = list(graph.get_state_history(config_of(thread_id)))
    graph.update_state(moments[4].config, {"messages": [("user", "another way")]})
    graph.invoke(None, moments[6].config)
    graph.update_state(config_of(thread_id), {"messages": [("user", "by hand")]}, as_node="answer")


class Fails(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def failing(saver: Saver, *, heals: bool = False) -> Any:
    def fail(state: Fails) -> Fails:
        if not heals:
            raise ValueError("no such order")
        return {"log": ["healed"]}

    builder = StateGraph(Fails).add_node("good", lambda state: {"log": ["good"]}).add_node("bad", fail)
    return builder.add_edge(START, "good").add_edge(START, "bad").compile(checkpointer=saver)


def fail(saver: Saver, thread_id: str) -> None:
    with suppress(ValueError):
        failing(saver).invoke({"log": ["begin"]}, config_of(thread_id))


def heal(saver: Saver, thread_id: str) -> Any:
    return failing(saver, heals=True).invoke(None, config_of(thread_id))["log"]


def sending(saver: Saver) -> Any:
    def work(state: Any) -> Asked:
        return {"log": [f"{state['number']}: {interrupt(state['number'])}" if state["number"] == 2 else "done"]}

    builder = StateGraph(Asked).add_node("work", work)
    builder.add_conditional_edges(START, lambda state: [Send("work", {"number": each}) for each in range(4)])
    return builder.add_edge("work", END).compile(checkpointer=saver)


def send(saver: Saver, thread_id: str) -> None:
    sending(saver).invoke({"log": ["begin"]}, config_of(thread_id))


def take(saver: Saver, thread_id: str) -> Any:
    return sending(saver).invoke(Command(resume="taken"), config_of(thread_id))["log"]


Scene = tuple[Callable[[Saver, str], None], Callable[[Saver, str], Any]]
SCENES: dict[str, Scene] = {
    "chat": (talk, go_on_talking),
    "asks": (ask, answer_all),
    "subgraphs": (go_deep, come_up),
    "deltas": (add, go_on_adding),
    "forks": (fork, go_on_talking),
    "failed": (fail, heal),
    "sent": (send, take),
}
"""A scene's run on the old saver, and its continuation, which returns the result."""
