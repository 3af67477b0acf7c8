"""A small world of agents whose threads become training data, and damage to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import RetryPolicy

from langgraph_keel import KeelError, KeelSaver, MemorySaver
from support.places import Place
from support.savers import SAVERS, needing

SEARCH = {"name": "search", "description": "Searches."}


on_drift = pytest.mark.filterwarnings("ignore::langgraph_keel.errors.DriftWarning")


class Failing(GenericFakeChatModel):
    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise TimeoutError("slow")


@dataclass
class World:
    """An agent that searches once and then answers, its model, and its costs."""

    served: str = "m-1"
    cost: float | None = None
    fails: int = 0
    asked: str = "m"
    answers: int = 0

    def model(self, state: Any) -> dict[str, Any]:
        self.answers += 1
        failing, self.fails = self.fails > 0, self.fails - 1
        usage: Any = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12, "input_token_details": {"audio": 1}}
        if self.cost is not None:
            usage["total_cost"] = self.cost
        is_new = isinstance(state["messages"][-1], HumanMessage)
        calls = [{"name": "search", "args": {"q": "tides"}, "id": f"c{self.answers}", "type": "tool_call"}] * is_new
        about = {"model_name": self.served, "system_fingerprint": "fp"}
        message = AIMessage("" if calls else "high", tool_calls=calls, response_metadata=about, usage_metadata=usage)
        model = (Failing if failing else GenericFakeChatModel)(messages=iter([message]))
        bound = model.bind(model=self.asked, seed=7, temperature=0.5, top_p=0.9, max_tokens=64, tools=[SEARCH])
        return {"messages": [bound.invoke(state["messages"])]}

    def graph(self, saver: Any, schema: Any = MessagesState) -> Any:
        builder = StateGraph(schema)
        builder.add_node("agent", self.model, retry_policy=RetryPolicy(initial_interval=0, retry_on=TimeoutError))
        builder.add_node("tools", self.search)
        builder.add_edge(START, "agent").add_edge("tools", "agent")
        builder.add_conditional_edges("agent", lambda state: "tools" if state["messages"][-1].tool_calls else END)
        return builder.compile(checkpointer=saver)

    @staticmethod
    def search(state: Any) -> dict[str, Any]:
        return {"messages": [ToolMessage("found", tool_call_id=state["messages"][-1].tool_calls[0]["id"])]}

    def run(self, saver: Any, thread: str = "t", schema: Any = MessagesState, **metadata: Any) -> None:
        config: Any = {"configurable": {"thread_id": thread}, "metadata": metadata}
        self.graph(saver, schema).invoke({"messages": [("user", "when?")]}, config)


def config(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread}, **more}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=sorted(SAVERS))
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeelSaver]:
    needing(request.param, request)
    opened: AbstractContextManager[Any] = SAVERS[request.param](tmp_path)
    with opened as saver:
        yield saver


@pytest.fixture
def memory() -> Iterator[MemorySaver]:
    with MemorySaver() as saver:
        yield saver


@dataclass
class Skipped:
    """Records the calls of `on_skip`."""

    told: dict[str, Any] = field(default_factory=dict)

    def __call__(self, thread_id: str, why: str | KeelError) -> None:
        assert thread_id not in self.told
        self.told[thread_id] = why


def ids(saver: KeelSaver, **wanted: Any) -> list[str]:
    return [each["thread_id"] for each in saver.provenance.trajectories(**wanted)]


class Other(TypedDict, total=False):
    talk: list[Any]
    notes: list[Any]


DAMAGE = {
    "sqlite": "UPDATE entries SET header = x'07' WHERE key >> 32 = (SELECT id FROM threads WHERE name = 'b')",
    "postgres": "UPDATE keel_entries SET header = '\\x07' WHERE thread_id = 'b'",
}


def damage(place: Place) -> None:
    """Damage the stored data of thread b."""
    if place.kind == "sqlite":
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as file, file:
            assert file.execute(DAMAGE["sqlite"]).rowcount > 0
    if place.kind == "postgres":
        with psycopg.connect(place.url) as server:
            assert server.execute(DAMAGE["postgres"].encode()).rowcount > 0
    if place.kind == "files":
        log = Path(place.url.removeprefix("files:"), "threads", "b", "log.jsonl")
        log.write_bytes(log.read_bytes().replace(b'"source"', b'"soucre"'))
