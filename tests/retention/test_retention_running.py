"""`prune` with running graphs, with repeated steps and with repeated tool calls."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_keel import KeelSaver, MemorySaver, Retention, SqliteSaver, ToolCache, ToolPolicy

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    """The log of executed steps."""

    log: Annotated[list[str], operator.add]


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeelSaver]:
    with MemorySaver() if request.param == "memory" else SqliteSaver(tmp_path / "keel.db") as saver:
        yield saver


@pytest.mark.parametrize("strategy", ["keep_latest", Retention(last=5)], ids=str)
def test_a_prune_before_a_subgraphs_parent_is_stored_loses_no_steps(
    saver: KeelSaver, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `durability="async"`; the root is stored after its subgraph was pruned."""
    has_put, is_pruned = Event(), Event()
    put = saver.put

    def slow(config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        is_root = not config["configurable"].get("checkpoint_ns")
        if is_root and metadata["step"] == 1:
            assert has_put.wait(30)
            saver.prune(["t"], strategy=strategy)
            is_pruned.set()
        stored = put(config, checkpoint, metadata, versions)
        if not is_root and metadata["step"] == 1:
            has_put.set()
        return stored

    monkeypatch.setattr(saver, "put", slow)
    inner = StateGraph(Log).add_sequence(
        [
            ("one", lambda state: {"log": ["one"]}),
            ("two", lambda state: {"log": ["two" if is_pruned.wait(30) else "too early"]}),
            ("three", lambda state: {"log": ["three"]}),
        ]
    )
    nodes: Any = [("a", lambda state: {"log": ["a"]}), ("inner", inner.add_edge(START, "one").compile())]
    outer = StateGraph(Log).add_sequence(nodes)
    made = outer.add_edge(START, "a").compile(checkpointer=saver)
    assert made.invoke({"log": []}, CONFIG, durability="async")["log"] == ["a", "a", "one", "two", "three"]
    saver.prune(["t"], strategy=strategy)
    assert {found.config["configurable"]["checkpoint_ns"] for found in saver.list(CONFIG)} == {""} or strategy != (
        "keep_latest"
    )


def asking(saver: KeelSaver, ran: list[str]) -> Any:
    """A graph with a subgraph that asks in its second step."""

    def first(state: Log) -> Any:
        ran.append("first")
        return {"log": ["first"]}

    inner = StateGraph(Log).add_sequence([("first", first), ("ask", lambda state: {"log": [interrupt("well?")]})])
    nodes: Any = [("a", lambda state: {"log": ["a"]}), ("inner", inner.add_edge(START, "first").compile())]
    outer = StateGraph(Log).add_sequence([*nodes, ("z", lambda state: {"log": ["z"]})])
    return outer.add_edge(START, "a").compile(checkpointer=saver)


def test_a_kept_moment_keeps_the_state_of_its_subgraphs(saver: KeelSaver) -> None:
    ran: list[str] = []
    made = asking(saver, ran)
    made.invoke({"log": []}, CONFIG)
    asked = made.get_state(CONFIG).config
    made.invoke(Command(resume="yes"), CONFIG)
    before = made.get_state(asked, subgraphs=True)
    saver.copy_thread("t", "unpruned")
    assert saver.prune(["t"], strategy=Retention(last=50)).removed == 0
    report = saver.prune(["t"], strategy=Retention(last=3))
    assert report.removed
    after = made.get_state(asked, subgraphs=True)
    assert after._replace(parent_config=None) == before._replace(parent_config=None)
    other: Any = {"configurable": {**asked["configurable"], "thread_id": "unpruned"}}
    taken = [made.invoke(Command(resume="no"), config)["log"] for config in (asked, other)]
    assert taken[0] == taken[1]
    assert ran == ["first"]


@pytest.mark.parametrize("strategy", ["keep_latest", Retention(last=2)], ids=str)
def test_a_tool_does_not_act_again_after_a_prune(saver: KeelSaver, strategy: Any) -> None:
    """Equal later calls are answered from the ledger, unless they failed or expired."""
    ran: list[str] = []

    def acting(name: str) -> Any:
        def act(order: str) -> str:
            """Act."""
            ran.append(name)
            if name == "fail":
                raise ValueError(name)
            return name

        return tool(name)(act)

    policies = {"look": ToolPolicy(scope="thread", ttl=0.001)}
    cache = ToolCache(saver, policies, default=ToolPolicy(scope="thread"))
    node = ToolNode([acting(name) for name in ("pay", "look", "fail")], wrap_tool_call=cache.wrap_tool_call,
                    handle_tool_errors=True)  # fmt: skip

    def agent(state: MessagesState) -> Any:
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage("done")]}
        calls: Any = [
            {"name": name, "args": {"order": "17"}, "id": f"{name}{len(state['messages'])}", "type": "tool_call"}
            for name in ("pay", "look", "fail")
        ]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    def goes_on(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    builder = StateGraph(MessagesState).add_node("agent", agent).add_node("tools", node)
    builder.add_edge(START, "agent").add_edge("tools", "agent").add_conditional_edges("agent", goes_on)
    made: Any = builder.compile(checkpointer=saver)
    for turn in range(3):
        made.invoke({"messages": [("user", "pay order 17")]}, CONFIG)
        saver.prune(["t"], strategy=strategy)
        assert sorted(ran) == sorted(["pay", *["look", "fail"] * (turn + 1)])
        time.sleep(0.002)
    saver.prune(["t"])
    assert [call.tool for call in saver.tools.calls("t")] == ["pay"]
