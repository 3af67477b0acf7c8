"""Strategies for messages of all classes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)

texts = st.text(st.characters(codec="utf-8"), max_size=12)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


plain_dicts = st.dictionaries(texts, plain, max_size=3)


contents = texts | st.lists(texts | plain_dicts, max_size=3)


ids = st.none() | texts


tool_calls = st.lists(
    st.fixed_dictionaries({"name": texts, "args": plain_dicts, "id": ids, "type": st.just("tool_call")}), max_size=2
)


bad_calls = st.lists(
    st.fixed_dictionaries({"name": ids, "args": ids, "id": ids, "error": ids, "type": st.just("invalid_tool_call")}),
    max_size=1,
)


call_chunks = st.lists(
    st.fixed_dictionaries(
        {"name": ids, "args": st.just('{"a": 1}'), "id": ids, "index": st.integers(0, 3),
         "type": st.just("tool_call_chunk")}
    ),
    max_size=1,
)  # fmt: skip


counts = st.integers(0, 10**6)


usage = st.none() | st.fixed_dictionaries(
    {"input_tokens": counts, "output_tokens": counts, "total_tokens": counts},
    optional={"input_token_details": st.fixed_dictionaries({}, optional={"cache_read": counts})},
)


extras = st.dictionaries(st.sampled_from(["custom", "lang", "Ünï"]), plain, max_size=2)


SPECIFIC: dict[type[BaseMessage], dict[str, st.SearchStrategy[Any]]] = {
    AIMessage: {"tool_calls": tool_calls, "invalid_tool_calls": bad_calls, "usage_metadata": usage},
    AIMessageChunk: {"tool_call_chunks": call_chunks, "usage_metadata": usage,
                     "chunk_position": st.sampled_from([None, "last"])},
    ToolMessage: {"tool_call_id": texts, "artifact": plain, "status": st.sampled_from(["success", "error"])},
    ToolMessageChunk: {"tool_call_id": texts, "artifact": plain, "status": st.sampled_from(["success", "error"])},
    ChatMessage: {"role": texts},
    ChatMessageChunk: {"role": texts},
    FunctionMessage: {"name": texts},
    FunctionMessageChunk: {"name": texts},
}  # fmt: skip


CLASSES: list[type[BaseMessage]] = [
    AIMessage, AIMessageChunk, ChatMessage, ChatMessageChunk, FunctionMessage, FunctionMessageChunk, HumanMessage,
    HumanMessageChunk, RemoveMessage, SystemMessage, SystemMessageChunk, ToolMessage, ToolMessageChunk,
]  # fmt: skip


@st.composite
def messages_of(draw: st.DrawFn, cls: Any) -> BaseMessage:
    if cls is RemoveMessage:
        return RemoveMessage(id=draw(texts))
    common = {"content": contents, "id": ids, "name": ids, "additional_kwargs": plain_dicts,
              "response_metadata": plain_dicts}  # fmt: skip
    needed = {"content", "tool_call_id", "role"} | (
        {"name"} if cls in (FunctionMessage, FunctionMessageChunk) else set()
    )
    fields = common | SPECIFIC.get(cls, {})
    chosen: dict[str, Any] = {
        name: draw(part) for name, part in fields.items() if name in needed or draw(st.booleans())
    }
    made: BaseMessage = cls(**chosen, **draw(extras))
    return made


messages = st.sampled_from(CLASSES).flatmap(messages_of)
