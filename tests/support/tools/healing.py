"""Conversations whose runs end while tools run, and the providers' rules for them.

Runs die, are cancelled, fail or ask. A life simulates one process: when it dies, its store rejects all later requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import count
from threading import Event
from typing import Any, Literal

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from langgraph_keel import KeelSaver, ToolCache
from langgraph_keel.testing.faults import Injected, Tap, with_tap
from support.provenance.models import anthropic_model, openai_model
from support.tool_graphs import Killed, run

Does = Literal["work", "fail", "die", "hang", "ask"]
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}
_openai, _anthropic = cache(openai_model), cache(anthropic_model)


def problems_of(messages: Sequence[BaseMessage]) -> list[str]:
    """Return what providers would reject.

    Each call must have one answer, directly after its message, in the order of the calls.
    """
    asked = [[call["id"] for call in _calls(message)] for message in messages]
    answered: list[list[str]] = [[] for _ in messages]
    last = 0
    for place, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            answered[last].append(message.tool_call_id)
        else:
            last = place
    found = [f"{ids} are answered by {said}" for ids, said in zip(asked, answered, strict=True) if ids != said]
    return found or [*_openai_problems(messages), *_anthropic_problems(messages)]


def _calls(message: BaseMessage) -> list[Any]:
    return [*message.tool_calls, *message.invalid_tool_calls] if isinstance(message, AIMessage) else []


def _openai_problems(messages: Sequence[BaseMessage]) -> list[str]:
    """Apply OpenAI's rule: answers to all calls must follow the assistant's message."""
    # private: builds the request of a model without sending it
    sent = _openai()._get_request_payload(list(messages))["messages"]
    due: list[str] = []
    found: list[str] = []
    for each in sent:
        if each["role"] == "tool":
            found += [] if due and due[0] == each["tool_call_id"] else [f"OpenAI: {each} answers no call"]
            due = due[1:]
            continue
        found += [f"OpenAI: {due} have no answer"] if due else []
        due = [call["id"] for call in each.get("tool_calls", ())]
    return found + ([f"OpenAI: {due} have no answer"] if due else [])


def _anthropic_problems(messages: Sequence[BaseMessage]) -> list[str]:
    """Apply Anthropic's rule: the next message must contain a result for each call."""
    # private: builds the request of a model without sending it
    sent = _anthropic()._get_request_payload(list(messages))["messages"]
    blocks = [each["content"] if isinstance(each["content"], list) else [] for each in sent]
    used = [[one["id"] for one in each if one["type"] == "tool_use"] for each in blocks]
    said = [[one["tool_use_id"] for one in each if one["type"] == "tool_result"] for each in blocks]
    pairs = zip([[], *used], [*said, []], strict=True)
    return [f"Anthropic: {uses} are answered by {results}" for uses, results in pairs if uses != results]


@dataclass
class World:
    """The actions of the tools, and the input of the model.

    Attributes:
        turns: The actions of the tools that the model calls, turn by turn. The model calls no tools when no turns
            remain.
        reuses_ids: Whether the model reuses the ids of calls in each turn.
        dies_last: Whether a dying call waits until the working call of its turn has ended.
        has_cancelled: Whether a loop has cancelled calls, maybe between the ledger and the first line of the tool.
        has_died: Whether the store of a life was cut off, so that the ledger may not know a call's outcome.
        error: The error with which the last life ended, if any.
    """

    turns: list[list[Does]]
    reuses_ids: bool = False
    dies_last: bool = False
    has_cancelled: bool = False
    has_died: bool = False
    error: BaseException | None = None
    begun: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    hangs: asyncio.Event | None = None
    has_worked: Event = field(default_factory=Event)
    numbers: count[int] = field(default_factory=count)
    _of_ids: dict[str, int] = field(default_factory=dict)

    @cached_property
    def tool(self) -> BaseTool:
        """A tool that performs the action in its arguments."""

        def act(does: str, number: int) -> str:
            self.begun.add(number)
            if does == "ask":
                interrupt("may I?")
            if does == "die" and self.dies_last:
                assert self.has_worked.wait(60)
            if does in ("die", "hang"):
                raise Killed
            if does == "fail":
                raise ValueError(f"no {number}")
            self.ended.add(number)
            self.has_worked.set()
            return f"did {number}"

        async def aact(does: str, number: int) -> str:
            if does == "hang" and self.hangs is not None:
                self.begun.add(number)
                self.hangs.set()
                await asyncio.Event().wait()
            if does == "die" and self.dies_last:
                assert await asyncio.to_thread(self.has_worked.wait, 60)
            return act(does, number)

        return StructuredTool.from_function(act, aact, name="act", description="Acts.")

    def answer(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """Return the model's answer, and record problems of its input."""
        self.problems += problems_of(messages)
        for message in messages:
            if isinstance(message, ToolMessage) and not self.reuses_ids:
                self._check(message.text, self._of_ids[message.tool_call_id])
        if not messages or isinstance(messages[-1], ToolMessage) or not self.turns:
            return AIMessage("done")
        calls: list[Any] = []
        self.has_worked.clear()
        for place, does in enumerate(self.turns.pop(0)):
            number = next(self.numbers)
            call_id = f"call-{place if self.reuses_ids else number}"
            self._of_ids[call_id] = number
            calls.append({"name": "act", "args": {"does": does, "number": number}, "id": call_id})
        return AIMessage("", tool_calls=calls)

    def _check(self, text: str, number: int) -> None:
        """Record a problem if the answer to a call is not true."""
        is_true = {
            f"did {number}": number in self.ended,
            "This call was not made": number not in self.begun,
            "This call failed": number not in self.ended,
            "This call was not finished": number not in self.ended,
            "It is not known": self.has_died
            or (number not in self.ended and (self.has_cancelled or number in self.begun)),
        }
        told = [true for begin, true in is_true.items() if text.startswith(begin)]
        self.problems += [] if told == [True] else [f"call {number} was answered {text!r}"]


class Told(BaseChatModel):
    """A model whose answers come from the world."""

    world: Any

    @property
    def _llm_type(self) -> str:
        return "told"

    def bind_tools(self, *args: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.world.answer(messages))])


class Dies(Tap):
    """The store of a process that dies: request number `at` and all later ones fail."""

    def __init__(self, at: int | None) -> None:
        self.left = at

    def sending(self, request: Any) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Injected("the process is dead")


def agent_of(cache: ToolCache, world: World, *others: Any) -> Any:
    """Return LangChain's agent: each call of a step is a task."""
    around = [cache.healing_middleware(), *others, cache.middleware()]
    return create_agent(Told(world=world), [world.tool], middleware=around, checkpointer=cache.saver)


def loop_of(cache: ToolCache, world: World) -> Any:
    """Return a custom graph: all calls of a step are one task."""

    def heal(state: MessagesState, config: RunnableConfig) -> Any:
        return {"messages": cache.heal_tool_calls(state["messages"], config)}

    async def aheal(state: MessagesState, config: RunnableConfig) -> Any:
        return {"messages": await cache.aheal_tool_calls(state["messages"], config)}

    builder = StateGraph(MessagesState)
    builder.add_node("heal", RunnableLambda(heal, aheal))
    builder.add_node("model", lambda state: {"messages": [world.answer(state["messages"])]})
    node = ToolNode([world.tool], wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)
    builder.add_node("tools", node)
    builder.add_edge(START, "heal")
    builder.add_edge("heal", "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=cache.saver)


GRAPHS = {"agent": agent_of, "loop": loop_of}


async def live(
    saver: KeelSaver, world: World, kind: str, face: str, given: Any, *, dies_at: int | None = None, **options: Any
) -> list[BaseMessage]:
    """Run a graph once, as one process; return the resulting messages of the thread."""
    tap = Dies(dies_at)
    cache = ToolCache(with_tap(saver, tap))
    graph = GRAPHS[kind](cache, world)
    world.has_died |= dies_at is not None
    world.hangs = asyncio.Event() if face == "async" else None
    task = asyncio.ensure_future(run(graph, face, given, CONFIG, **options))
    if world.hangs is not None:
        hangs = asyncio.ensure_future(world.hangs.wait())
        await asyncio.wait({task, hangs}, return_when=asyncio.FIRST_COMPLETED)
        (task if hangs.done() else hangs).cancel()
    await asyncio.wait({task})
    # A tool that dies leaves the other calls of its step running: they end with the process.
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    world.error = asyncio.CancelledError() if task.cancelled() else task.exception()
    world.has_cancelled |= face == "async" and world.error is not None
    cache.close()
    tap.left = None
    state = graph.get_state(CONFIG)
    messages: list[BaseMessage] = state.values.get("messages", [])
    if state.interrupts:  # a call that waits for a person is left alone
        assert cache.heal_tool_calls(messages, CONFIG) == []
    return messages


def said(text: str) -> Any:
    return {"messages": [("user", text)]}


ANSWER: Command[Any] = Command(resume="yes")
