"""Conversations with parallel tool calls, and models that record their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field


class Noting(BaseChatModel):
    """Returns the next of some texts, repeating the last, and records its input."""

    said: list[Any] = Field(default_factory=lambda: ["a summary"])
    seen: list[str] = Field(default_factory=list)
    window: int | None = None

    def model_post_init(self, context: Any) -> None:
        if self.window:
            self.profile = {"max_input_tokens": self.window}

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self.seen.append("\n".join(str(message.text) for message in messages))
        answer = self.said[min(len(self.seen), len(self.said)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        message = answer if isinstance(answer, AIMessage) else AIMessage(answer)
        return ChatResult(generations=[ChatGeneration(message=message)])

    @property
    def _llm_type(self) -> str:
        return "noting"

    @property
    def everything(self) -> str:
        return "\n".join(self.seen)


def calling(number: int, calls: int) -> list[AnyMessage]:
    """Return a turn in which the model calls tools in parallel, with their results."""
    names = [f"call-{number}-{each}" for each in range(calls)]
    asked: list[Any] = [{"name": "search", "args": {"q": name}, "id": name} for name in names]
    results = [ToolMessage(f"found {name}", tool_call_id=name, id=f"result-{name}") for name in names]
    return [AIMessage(f"looking {number}", id=f"asked-{number}", tool_calls=asked), *results]


def talk(turns: int, calls: int = 2, start: int = 0) -> list[AnyMessage]:
    """Return a conversation of turns: a person asks, tools run, the model answers."""
    return [
        message
        for number in range(start, start + turns)
        for message in (
            HumanMessage(f"question {number}", id=f"question-{number}"),
            *(calling(number, calls) if calls else ()),
            AIMessage(f"answer {number}", id=f"answer-{number}"),
        )
    ]


def orphans(messages: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    """Return results without an earlier call, and calls without a result.

    Each has the numbers of its message and of its call.
    """
    caller: dict[str, str] = {}
    waiting: dict[tuple[str, str], None] = {}
    lost = []
    for message in messages:
        if isinstance(message, ToolMessage) and message.tool_call_id not in caller:
            lost.append((str(message.id), message.tool_call_id))
        elif isinstance(message, ToolMessage):
            waiting.pop((caller[message.tool_call_id], message.tool_call_id), None)
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            caller[str(call["id"])] = str(message.id)
            waiting[str(message.id), str(call["id"])] = None
    return [*lost, *waiting]


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    return [str(message.text) for message in messages]


def ids(messages: Sequence[BaseMessage]) -> list[str]:
    return [str(message.id) for message in messages]
