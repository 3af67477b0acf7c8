"""Models for the tests of provenance: a fake, two providers' classes, an observer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables.config import var_child_runnable_config

if TYPE_CHECKING:  # importing the providers takes over a second in each worker, also if it runs none of their tests
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

USAGE: Any = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


@dataclass(frozen=True)
class Began:
    """The graph's own data about a call: per namespace, the checkpoint of its step."""

    id: str
    thread_id: str | None
    lineage: Mapping[str, str]
    step: int | None


class Told(BaseCallbackHandler):
    """Records all calls of the observed models, in the order in which they began."""

    run_inline = True

    def __init__(self) -> None:
        self.calls: list[Began] = []
        self._looks: dict[str, Any] = {}

    def look(self) -> None:
        """Record the config of a task's first step: LangGraph passes it to no other step."""
        config: Any = var_child_runnable_config.get()
        self._looks[config["metadata"]["langgraph_checkpoint_ns"]] = config

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **more: Any) -> None:
        looked = self._looks.get((more.get("metadata") or {}).get("langgraph_checkpoint_ns", ""))
        config: Any = looked or var_child_runnable_config.get() or {}
        values, metadata = config.get("configurable") or {}, config.get("metadata") or {}
        info = getattr(values.get("__pregel_runtime"), "execution_info", None)
        self.calls.append(
            Began(
                str(run_id),
                None if info is None else info.thread_id,
                dict(values.get("checkpoint_map") or {}),
                metadata.get("langgraph_step"),
            )
        )

    @property
    def ids(self) -> list[str]:
        return [call.id for call in self.calls]


class Failed(Exception):
    """A model failed; the message quotes the request."""


class Fake(BaseChatModel):
    """Returns the next line of a script, if it has one; streams word by word."""

    script: Sequence[AIMessage] = ()
    served: str = "fake-1.0"
    fingerprint: str = "fp_1"
    hook: Callable[[], None] = lambda: None

    def _answer(self, messages: Sequence[BaseMessage]) -> AIMessage:
        self.hook()
        said = sum(isinstance(message, AIMessage) for message in messages)
        line = self.script[said] if said < len(self.script) else AIMessage("all done")
        about = {"model_name": self.served, "system_fingerprint": self.fingerprint, "finish_reason": "stop"}
        return line.model_copy(update={"response_metadata": about, "usage_metadata": USAGE})

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        answer = self._answer(messages)
        for word in ["all ", "done"] if answer.content else []:
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                tool_calls=list(answer.tool_calls),
                response_metadata=answer.response_metadata,
                usage_metadata=answer.usage_metadata,
            )
        )

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=[{"type": "function", "function": {"name": tool.name}} for tool in tools])

    @property
    def _llm_type(self) -> str:
        return "fake"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": "fake", "seed": 7}


# -- two providers -----------------------------------------------------------------------------------------------------


def _openai(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    about: Any = {"id": "chatcmpl-1", "created": 1, "model": "gpt-4o-2024-08-06", "system_fingerprint": "fp_oa"}
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": "all done"}
        return [about | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}]
    words = [{"index": 0, "delta": {"role": "assistant", "content": word}} for word in ("all ", "done")]
    choices = [*words, {"index": 0, "delta": {}, "finish_reason": "stop"}]
    parts = [about | {"object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
    return [*parts, about | {"object": "chat.completion.chunk", "choices": [], "usage": usage}]


def _anthropic(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    about: Any = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test-20260101"}
    usage = {"input_tokens": 9, "output_tokens": 4}
    if not asked.get("stream"):
        text = {"type": "text", "text": "all done"}
        return [about | {"content": [text], "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}]
    begun = about | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage | {"output_tokens": 1}}
    delta: Any = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "all done"}}
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        delta,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def reply_to(request: Any) -> tuple[int, dict[str, str], str]:
    """Return the provider's status, headers and body for a request."""
    asked = json.loads(request.content)
    parts = (_anthropic if "/v1/messages" in str(request.url) else _openai)(asked)
    if not asked.get("stream"):
        return 200, {"content-type": "application/json"}, json.dumps(parts[0])
    events = [f"event: {part['type']}\n" if "type" in part else "" for part in parts]
    lines = [f"{event}data: {json.dumps(part)}\n\n" for event, part in zip(events, parts, strict=True)]
    end = [] if "type" in parts[0] else ["data: [DONE]\n\n"]
    return 200, {"content-type": "text/event-stream"}, "".join([*lines, *end])


Reply: TypeAlias = Callable[[Any], tuple[int, dict[str, str], str]]


def _clients(sdk: Any, reply: Reply) -> tuple[Any, Any]:
    """Return the sync and async HTTP client of an SDK (httpx or httpx2), offline."""
    http: Any = import_module(sdk.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])

    def handle(request: Any) -> Any:
        status, headers, body = reply(request)
        return http.Response(status, headers=headers, text=body)

    transport = http.MockTransport(handle)
    return http.Client(transport=transport), http.AsyncClient(transport=transport)


def openai_model(reply: Reply = reply_to, **options: Any) -> ChatOpenAI:
    """Return LangChain's class, over a transport that generates the replies."""
    import openai
    from langchain_openai import ChatOpenAI

    client, async_client = _clients(openai, reply)
    given: dict[str, Any] = {"model": "gpt-4o", "api_key": "sk-test", "max_retries": 0, "stream_usage": True}
    return ChatOpenAI(http_client=client, http_async_client=async_client, **given | options)


def anthropic_model(reply: Reply = reply_to, **options: Any) -> ChatAnthropic:
    """As `openai_model`. The class accepts no transport, but keeps its first clients."""
    import anthropic
    from langchain_anthropic import ChatAnthropic

    client, async_client = _clients(anthropic, reply)
    given: dict[str, Any] = {"model": "claude-test", "api_key": "sk-ant-test", "max_retries": 0}
    model = ChatAnthropic(**given | options)
    # private: the provider has no option for a transport
    model.__dict__["_client"] = model._client.with_options(http_client=client)
    # private: the provider has no option for a transport
    model.__dict__["_async_client"] = model._async_client.with_options(http_client=async_client)
    return model


PROVIDERS: Mapping[str, Callable[..., Any]] = {"openai": openai_model, "anthropic": anthropic_model}
