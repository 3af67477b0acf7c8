"""Messages of many kinds in the format of OpenAI's chat."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage

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
        (HumanMessage([VIDEO]), [VIDEO]),  # the format of the chat has no place for it
        (HumanMessage([{"unheard": "of"}]), [{"unheard": "of"}]),
        (AIMessage([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "a\nb"),
        (AIMessage("x", tool_calls=[CALL]), "x"),
    ],
    ids=["image", "video", "unknown", "texts", "odd arguments"],
)
def test_contents_of_many_kinds(message: BaseMessage, content: Any) -> None:
    [said] = chat_of([message]) or []
    assert said["content"] == content
    json.dumps(said)


@pytest.mark.parametrize("value", [None, "text", 5, ["text"], [5], [{"a": 1}], [RemoveMessage("x")], {"role": "user"}])
def test_what_is_no_list_of_messages(value: Any) -> None:
    assert chat_of(value) is None
