"""Graphs, messages and texts for the savers, generated from a seed, so that two runs store the same."""

import os
import random
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages

from .backend import Saver

SEED = "KEEL_BENCHMARK_SEED"
"""Environment variable with the seed of a run (`--seed`), from which all texts are generated."""
MESSAGE_BYTES = 870
_SYLLABLES = ("an", "be", "co", "da", "el", "fi", "ga", "ho", "in", "ju", "ka", "lo", "me", "no", "or", "qui")


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class DeltaChat(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


@lru_cache
def _vocabulary() -> tuple[list[str], list[float]]:
    """Return 4,000 words with Zipf's frequencies, so that texts compress about as well as prose."""
    rng = random.Random(os.environ.get(SEED, "1"))
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(4000)]
    return words, list(accumulate(1 / rank for rank in range(1, 4001)))


def chances(name: int | str) -> random.Random:
    """Return a random generator that is the same in each run with the same seed."""
    return random.Random(f"{os.environ.get(SEED, '1')} {name}")


@lru_cache(1000)
def text(seed: int | str, size: int) -> str:
    """Return `size` characters of prose-like text, a function of the seed."""
    words, weights = _vocabulary()
    chosen = chances(seed).choices(words, cum_weights=weights, k=size // 3 + 1)
    return " ".join(chosen)[:size].ljust(size, ".")


def _human(index: int, size: int) -> BaseMessage:
    return HumanMessage(content=text(index, size), id=f"{random.Random(index).getrandbits(128):032x}")


def _ai(index: int, size: int) -> BaseMessage:
    usage = {"input_tokens": 10 * index, "output_tokens": 180, "total_tokens": 10 * index + 180}
    facts = {"model_name": "scripted-1", "finish_reason": "stop", "token_usage": usage}
    name = f"run--{random.Random(index).getrandbits(128):032x}"
    return AIMessage(text(index, size), id=name, response_metadata=facts, usage_metadata=usage)


@lru_cache
def _content_size(index: int) -> int:
    """Return the length of the content with which a serialized message takes `MESSAGE_BYTES`."""
    empty = (_ai if index else _human)(1000 + index, 0)
    return MESSAGE_BYTES - len(JsonPlusSerializer().dumps_typed(empty)[1])


def message(index: int) -> BaseMessage:
    """Return the message at a position of the chat; human and AI messages alternate."""
    return (_ai if index % 2 else _human)(index, _content_size(index % 2))


def history(count: int) -> list[BaseMessage]:
    return [message(index) for index in range(count)]


def reply(state: Any) -> dict[str, Any]:
    return {"messages": [message(len(state["messages"]))]}


def chat_graph(saver: Saver | None, schema: Any = Chat) -> Any:
    """Return a graph of START, one scripted node, END."""
    builder = StateGraph(schema)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    return builder.compile(checkpointer=saver)


def thread(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


def take_turn(graph: Any, thread_id: str, index: int) -> None:
    """Send message `index` and get an answer."""
    graph.invoke({"messages": [message(index)]}, thread(thread_id))


def seed_chat(graph: Any, thread_id: str, count: int, node: str = "reply") -> None:
    """Store a thread with `count` messages in one step."""
    graph.update_state(thread(thread_id), {"messages": history(count)}, as_node=node)
