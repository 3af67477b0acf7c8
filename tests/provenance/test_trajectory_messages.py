"""Messages of many kinds in OpenAI's chat format."""

from __future__ import annotations

import json
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer

from langgraph_keel import KeelSerializer, MemorySaver, RefusedType
from langgraph_keel.provenance.export import chat_of

IMAGE = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
VIDEO = {"type": "video", "base64": "AAAA", "mime_type": "video/mp4"}
CALL = {"name": "f", "args": {"a": {1}}, "id": "1", "type": "tool_call"}


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (
            HumanMessage([{"type": "text", "text": "see"}, IMAGE]),
            [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        ),
        (HumanMessage([VIDEO]), [VIDEO]),  # the chat format has no equivalent
        (HumanMessage([{"unheard": "of"}]), [{"unheard": "of"}]),
        (AIMessage([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "a\nb"),
        (AIMessage("x", tool_calls=[CALL]), "x"),
    ],
    ids=["image", "video", "unknown", "texts", "odd arguments"],
)
def test_contents_of_many_kinds_are_converted(message: BaseMessage, content: Any) -> None:
    [said] = chat_of([message]) or []
    assert said["content"] == content
    json.dumps(said)


@pytest.mark.parametrize("value", [None, "text", 5, ["text"], [5], [{"a": 1}], [RemoveMessage("x")], {"role": "user"}])
def test_values_that_are_not_messages_are_none(value: Any) -> None:
    assert chat_of(value) is None


class Said(HumanMessage):
    """A class of the application."""


class Whole(TypedDict):
    messages: Annotated[list[Any], operator.add]


class Delta(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]


@pytest.mark.parametrize("schema", [Whole, Delta])
def test_a_conversation_with_an_unread_message_is_skipped_with_a_reason(schema: Any) -> None:
    saver = MemorySaver()
    graph = StateGraph(schema).add_node("n", lambda state: {"messages": [AIMessage("Yes")]}).add_edge(START, "n")
    given: Any = {"messages": [Said(content="Hello", id="h")]}
    graph.compile(checkpointer=saver).invoke(given, {"configurable": {"thread_id": "t"}})
    saver.serde = KeelSerializer(strict=True)
    skipped: list[Any] = []
    assert list(saver.provenance.trajectories(on_skip=lambda thread, why: skipped.append((thread, why)))) == []
    ((thread, why),) = skipped
    assert thread == "t"
    assert type(why) is RefusedType
    assert why.type_name == f"{__name__}.Said"
    assert "thread 't'" in str(why)
    assert "channel 'messages'" in str(why)
