"""Summaries with other nodes in the same step, and unsuitable reducers or schemas."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send
from support.summaries.conversations import Noting, ids, talk
from support.summaries.graphs import KINDS, chat, in_part, parts
from support.summaries.graphs import asked as ask
from support.tool_graphs import FACES, Scripted, run, thread
from typing_extensions import TypedDict

from langgraph_keel import InvalidInput, MemorySaver, SlidingWindow, SummarizationNode

NODES: dict[str, Any] = {
    "summary": SummarizationNode(Noting(), trigger=("messages", 6), keep=("messages", 2)),
    "window": SlidingWindow(trigger=("messages", 6), keep=("messages", 2)),
}


def said(state: Any) -> dict[str, Any]:
    found = state["messages"] if isinstance(state, dict) else state.messages
    return {"messages": [AIMessage("precious", id=f"beside {found[-1].id}")]}


def beside(name: str, node: Any, state: Any, saver: MemorySaver, is_sent: bool) -> Any:
    """A graph whose node `name` writes in the step in which messages are removed."""
    builder: Any = StateGraph(state)
    builder.add_node("shorten", node)
    builder.add_node(name, said)
    if is_sent:
        builder.add_conditional_edges(START, lambda state: [Send("shorten", state), Send(name, state)])
    else:
        builder.add_edge(START, "shorten").add_edge(START, name)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("is_sent", [False, True], ids=["edges", "sent"])
@pytest.mark.parametrize("name", ["answer", "talk"])  # LangGraph applies writes in the order of names
@pytest.mark.parametrize("state", ["messages", "model", "delta", "langgraph's delta"])
@pytest.mark.parametrize("node", NODES)
async def test_writes_of_other_nodes_in_the_same_step_are_kept(node: str, state: str, name: str, is_sent: bool) -> None:
    graph = beside(name, NODES[node], KINDS[state], saver := MemorySaver(), is_sent)
    for number in range(6):
        found = await run(graph, FACES[number % 2], ask(number), thread("1"))
    wanted = [name for number in range(6) for name in (f"question-{number}", f"beside question-{number}")]
    gone = [message for part in parts(saver) for message in in_part(saver, part)]
    kept = found["messages"][1 if node == "summary" else 0 :]
    assert len(gone) >= 6
    assert ids([*gone, *kept]) == wanted
    if node == "summary":
        first = found["messages"][0]
        assert (first.id, first.additional_kwargs["lc_source"]) == ("question-0", "summarization")


class Added(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]


class Plain(TypedDict):
    messages: list[AnyMessage]


def refusing(messages: list[AnyMessage], more: list[AnyMessage]) -> list[AnyMessage]:
    if any(isinstance(message, RemoveMessage) for message in more):
        raise ValueError("no removals here")
    return [*messages, *more]


class Refusing(TypedDict):
    messages: Annotated[list[AnyMessage], refusing]


@pytest.mark.parametrize("has_ids", [True, False], ids=["ids", "no ids"])
@pytest.mark.parametrize("node", ["summary", "window"])
@pytest.mark.parametrize("state", [Added, Plain, Refusing])
def test_a_reducer_that_cannot_remove_is_refused(state: Any, node: str, has_ids: bool) -> None:
    messages = [HumanMessage(f"{number}", id=f"{number}" if has_ids else None) for number in range(8)]
    model = Noting()
    options: Any = {"trigger": ("messages", 6), "keep": ("messages", 2)}
    shorten = SummarizationNode(model, **options) if node == "summary" else SlidingWindow(**options)
    graph = chat(shorten, saver := MemorySaver(), state)
    with pytest.raises(InvalidInput, match="add_messages"):
        graph.invoke({"messages": messages}, thread("1"))
    assert (model.seen, parts(saver)) == ([], [])
    assert graph.get_state(thread("1")).values["messages"] == messages


def test_a_state_that_contains_remove_messages_is_refused() -> None:
    """An earlier node, or LangChain's, has left such a message in the thread."""
    graph = chat(SummarizationNode(Noting()), MemorySaver(), Added)
    with pytest.raises(InvalidInput, match="RemoveMessage"):
        graph.invoke({"messages": [*talk(1), RemoveMessage("question-0")]}, thread("1"))


def test_a_missing_summary_key_is_refused() -> None:
    saver, model = MemorySaver(), Noting()
    graph = chat(SummarizationNode(model, summary_key="memory"), saver)
    with pytest.raises(InvalidInput, match="memory: dict"):  # at the first step, not when a summary is due
        graph.invoke(ask(0), thread("1"))
    agent: Any = create_agent(
        Scripted(script=[]), [], middleware=[saver.summarization_middleware(model, summary_key="memory")]
    )
    with pytest.raises(InvalidInput, match="memory: dict"):
        agent.invoke(ask(0))
    with pytest.raises(InvalidInput, match="plain list"):
        SummarizationNode(model, archive=False, summary_key="memory").invoke(talk(1))


class Noted(MessagesState):
    noted: dict[str, Any]


def test_a_function_may_call_the_node_with_its_own_keys() -> None:
    node = SummarizationNode(Noting(), trigger=("messages", 6), keep=("messages", 1), summary_key="memory")

    def shorten(state: Noted) -> Any:
        update = node.invoke({"messages": state["messages"][1:], "memory": state.get("noted")})
        return {"messages": update["messages"], "noted": update["memory"]}

    graph = chat(shorten, saver := MemorySaver(), Noted)
    found = graph.invoke({"messages": talk(2)}, thread("1"))
    assert found["noted"]["count"] == 8
    assert ids(found["messages"]) == ["question-0", "answer-1", "answer-answer-1"]
    assert [part.count for part in parts(saver)] == [8]


def test_a_stateless_subgraph_summarizes_in_each_call() -> None:
    """Its removals do not reach the outer graph: each call shortens everything again."""
    inner = chat(SummarizationNode(Noting(), trigger=("messages", 5), keep=("messages", 2)), None)
    builder: Any = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=(saver := MemorySaver()))
    for number in range(4):
        messages = graph.invoke(ask(number), thread("1"))["messages"]
    assert len(messages) == 8
    assert [part.count for part in parts(saver)] == [3, 4]
    assert [message.id for message in messages if "lc_source" in message.additional_kwargs] == ["question-0"]
