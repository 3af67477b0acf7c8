"""Graphs that summarize, with states of each kind, for the tests of summaries."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict

from langgraph_keel import KeelSaver, Summary
from langgraph_keel.summaries.archive.parts import Archived
from langgraph_keel.summaries.archive.storage import read_archived, read_messages


class WithSummary(MessagesState):
    summary: Summary | None


class Other(TypedDict):
    talk: Annotated[list[AnyMessage], add_messages]


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    summary: Summary | None = None


@dataclass
class Data:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    summary: Summary | None = None


def merged(messages: list[AnyMessage], writes: list[Any]) -> list[AnyMessage]:
    return reduce(add_messages, writes, messages)  # type: ignore[arg-type]


class Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(merged)]


class LangGraphsDelta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


KINDS: dict[str, Any] = {
    "messages": MessagesState,
    "summary": WithSummary,
    "model": Model,
    "dataclass": Data,
    "delta": Delta,
    "langgraph's delta": LangGraphsDelta,
}


def chat(node: Any, saver: Any, state: Any = MessagesState, key: str = "messages", **options: Any) -> Any:
    """Return a graph that shortens its messages, and then answers."""

    def answer(state: Any) -> Any:
        found = state[key] if isinstance(state, dict) else getattr(state, key)
        return {key: [AIMessage(f"answer to {found[-1].text}", id=f"answer-{found[-1].id}")]}

    builder: Any = StateGraph(state)
    builder.add_node("shorten", node)
    builder.add_node("answer", answer)
    builder.add_edge(START, "shorten")
    builder.add_edge("shorten", "answer")
    return builder.compile(checkpointer=saver, **options)


def asked(number: int, key: str = "messages") -> dict[str, Any]:
    return {key: [HumanMessage(f"question {number}", id=f"question-{number}")]}


def parts(saver: KeelSaver, thread_id: str = "1") -> list[Archived]:
    return saver.engine.run(read_archived(saver.engine.session, thread_id))


def in_part(saver: KeelSaver, part: Archived) -> list[Any]:
    return list(saver.engine.run(read_messages(saver.engine.session, part.thread_id, part.id)))
